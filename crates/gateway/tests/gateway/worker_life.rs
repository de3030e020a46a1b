//! The whole life of a worker that comes and goes through the API.

use smg_gateway::Gateway;

use super::rig::*;

/// A gateway that knows the first worker only; the others can be reached.
async fn knowing_one(workers: &[&Worker]) -> Rig {
    let rig = Rig::unready(workers, |settings| {
        settings.workers.truncate(1);
        settings.sticky = sticky();
        settings.loads.always = true;
    });
    rig.until("the first is ready", |gw: &Gateway| gw.workers() == (1, 1)).await;
    rig
}

async fn add(rig: &Rig, w: &Worker) -> Reply {
    let reply = rig.ask("POST", "/workers", &format!(r#"{{"url":"{}"}}"#, w.url())).await;
    assert_eq!(reply.status, 202, "{}", reply.text());
    reply
}

fn location(accepted: &Reply) -> String {
    accepted.json()["location"].as_str().unwrap().to_owned()
}

async fn of_url(rig: &Rig, w: &Worker) -> String {
    let list = rig.get("/workers").await.json();
    let mut workers = list["workers"].as_array().unwrap().iter();
    let found = workers.find(|worker| worker["url"] == w.url()).expect("listed");
    format!("/workers/{}", found["id"].as_str().unwrap())
}

/// Series that carry this worker's address.
fn series(rig: &Rig, w: &Worker) -> Vec<String> {
    let label = format!("worker=\"{}\"", w.url());
    let text = rig.gw.metrics_text();
    text.lines().filter(|line| line.contains(&label)).map(str::to_owned).collect()
}

async fn keyed(rig: &Rig, key: &str) -> String {
    rig.chat_with(&[("x-smg-routing-key", key)], CHAT).await.worker()
}

#[tokio::test(start_paused = true)]
async fn an_added_worker_is_accepted_at_once_and_serves_when_it_answers() {
    let (w1, w2) = (Worker::new("w1"), Worker::serving("w2", &["m", "n"]));
    let rig = knowing_one(&[&w1, &w2]).await;
    w2.door(Door::Refusing);
    let reply = add(&rig, &w2).await;
    let body = reply.json();
    assert_eq!((&body["status"], &body["url"]), (&"accepted".into(), &w2.url().into()));
    let id = body["worker_id"].as_str().unwrap();
    assert_eq!(body["location"], format!("/workers/{id}"));
    assert_eq!(reply.header("location").as_deref(), body["location"].as_str());
    assert!(body["message"].as_str().is_some_and(|message| !message.is_empty()));

    later(10.0).await;
    assert_eq!(rig.get("/workers").await.json()["total"], 1, "it has not answered");
    let pending = rig.get(&location(&reply)).await;
    assert_eq!((pending.status, &pending.json()["status"]), (200, &"pending".into()));
    assert!(pending.json()["message"].as_str().unwrap().contains("/health"), "{}", pending.text());
    let named = r#"{"model":"n","messages":[]}"#;
    rig.chat(named).await.is_refusal(404, "model_not_found");

    w2.door(Door::Open);
    rig.until("it registers", |gw| gw.workers() == (2, 2)).await;
    let shown = rig.get(&location(&reply)).await.json();
    assert_eq!((&shown["url"], &shown["status"]), (&w2.url().into(), &"ready".into()));
    assert_eq!(shown["id"], id);
    assert_eq!(rig.chat(named).await.worker(), "w2");
}

#[tokio::test(start_paused = true)]
async fn no_key_moves_when_a_worker_comes_and_the_newcomer_gets_new_ones() {
    let (w1, w2) = (Worker::new("w1"), Worker::new("w2"));
    let rig = knowing_one(&[&w1, &w2]).await;
    let keys: Vec<_> = (0..8).map(|n| format!("k{n}")).collect();
    for key in &keys {
        assert_eq!(keyed(&rig, key).await, "w1");
    }
    add(&rig, &w2).await;
    rig.until("it registers", |gw| gw.workers() == (2, 2)).await;
    for key in &keys {
        assert_eq!(keyed(&rig, key).await, "w1");
    }
    let mut fresh = Vec::new();
    for n in 0..4 {
        fresh.push(keyed(&rig, &format!("new{n}")).await);
    }
    assert!(fresh.contains(&"w2".to_owned()), "{fresh:?}");
}

#[tokio::test(start_paused = true)]
async fn a_removed_workers_keys_move_once_and_its_running_requests_end() {
    let (w1, w2) = (Worker::new("w1"), Worker::new("w2"));
    let rig = Rig::start(&[&w1, &w2], |settings| {
        settings.sticky = sticky();
        settings.loads.always = true;
    })
    .await;
    let home = keyed(&rig, "k").await;
    let (gone, left) = if home == "w1" { (&w1, &w2) } else { (&w2, &w1) };
    gone.next(
        script().say(events_head()).pause(100.0).say(chunked("data: 1\n\n")).say("0\r\n\r\n"),
    );
    let mut client = rig.client();
    client.send(post("/v1/chat/completions", &[("x-smg-routing-key", "k")], CHAT_STREAM)).await;
    client.head().await;

    let path = of_url(&rig, gone).await;
    let reply = rig.ask("DELETE", &path, "").await;
    assert_eq!((reply.status, &reply.json()["status"]), (202, &"accepted".into()));
    assert_eq!(reply.json()["url"], gone.url());
    assert_eq!((rig.gw.workers(), rig.get(&path).await.status), ((1, 1), 404));
    assert_eq!(keyed(&rig, "k").await, left.url().replace("http://", "").replace(":8000", ""));
    assert_eq!((rig.branch("occupied_hit"), rig.branch("occupied_miss")), (1, 1));
    keyed(&rig, "k").await;
    assert_eq!((rig.branch("occupied_hit"), rig.branch("occupied_miss")), (2, 1));
    assert!(!series(&rig, gone).is_empty(), "it is still serving");

    assert_eq!(client.chunk().await.as_deref(), Some(&b"data: 1\n\n"[..]));
    assert_eq!(client.chunk().await.as_deref(), Some(&b""[..]));
    settle().await;
    assert_eq!(series(&rig, gone), [""; 0]);
    assert!(!series(&rig, left).is_empty());
    assert_eq!(gone.now(|story| story.open), 0, "its pool is closed");
    let (probed, dials) = gone.now(|story| (story.probed.len(), story.dials));
    later(1000.0).await;
    assert_eq!(gone.now(|story| (story.probed.len(), story.dials)), (probed, dials), "left alone");
    assert_eq!(rig.metric("smg_worker_pool_size", &[("model", "m")]), Some(1.0));
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn the_last_worker_takes_its_model_along_and_may_come_back_to_its_keys() {
    let (w1, w2) = (Worker::new("w1"), Worker::new("w2"));
    let rig = Rig::start(&[&w1, &w2], |settings| settings.sticky = sticky()).await;
    let homes = [keyed(&rig, "a").await, keyed(&rig, "b").await];
    assert_ne!(homes[0], homes[1]);
    for w in [&w1, &w2] {
        let path = of_url(&rig, w).await;
        assert_eq!(rig.ask("DELETE", &path, "").await.status, 202);
        rig.ask("DELETE", &path, "").await.is_refusal(404, "worker_not_found");
    }
    settle().await;
    rig.chat(CHAT).await.is_refusal(404, "model_not_found");
    assert_eq!(rig.get("/v1/models").await.json()["data"], serde_json::json!([]));
    assert_eq!(rig.metric("smg_worker_pool_size", &[]), None);
    assert_eq!(rig.get("/readiness").await.status, 503);
    add(&rig, &w2).await;
    add(&rig, &w1).await;
    rig.until("both are back", |gw| gw.workers() == (2, 2)).await;
    for (key, home) in ["a", "b"].iter().zip(&homes) {
        assert_eq!(keyed(&rig, key).await, *home);
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_comes_back_before_it_has_drained_keeps_its_series() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |settings| settings.sticky = sticky()).await;
    w.next(script().say(events_head()).pause(100.0).say("0\r\n\r\n"));
    let mut client = rig.client();
    client.send(post("/v1/chat/completions", &[("x-smg-routing-key", "k")], CHAT_STREAM)).await;
    client.head().await;
    assert_eq!(rig.ask("DELETE", &of_url(&rig, &w).await, "").await.status, 202);
    add(&rig, &w).await;
    rig.until("it is back", |gw| gw.workers() == (1, 1)).await;
    w.next(script().pause(200.0).say(json("{}")));
    let mut second = rig.client();
    second.send(post("/v1/chat/completions", &[("x-smg-routing-key", "k")], CHAT)).await;
    settle().await;
    assert_eq!(rig.count("smg_worker_routing_keys_active", &[]), 1);
    assert_eq!(client.chunk().await.as_deref(), Some(&b""[..]));
    settle().await;
    assert_eq!(rig.count("smg_worker_requests_active", &[("worker", w.url())]), 1);
    assert_eq!(second.reply().await.status, 200);
    assert_eq!(rig.metric("smg_worker_health", &[("worker", w.url())]), Some(1.0));
    rig.is_at_rest().await;
    assert_eq!(keyed(&rig, "k").await, "w1");
}

#[tokio::test(start_paused = true)]
async fn one_that_never_answered_can_be_removed_and_is_asked_no_more() {
    let (w1, w2) = (Worker::new("w1"), Worker::new("w2"));
    let rig = knowing_one(&[&w1, &w2]).await;
    w2.door(Door::Refusing);
    let path = location(&add(&rig, &w2).await);
    let body = format!(r#"{{"url":"{}/"}}"#, w2.url());
    rig.ask("POST", "/workers", &body).await.is_refusal(409, "worker_already_exists");
    rig.ask("PATCH", &path, "{}").await.is_refusal(409, "worker_pending");
    assert_eq!(rig.ask("DELETE", &path, "").await.status, 202);
    rig.get(&path).await.is_refusal(404, "worker_not_found");
    settle().await;
    let dials = w2.now(|story| story.dials);
    w2.door(Door::Open);
    later(3600.0).await;
    assert_eq!((w2.now(|story| story.dials), rig.gw.workers()), (dials, (1, 1)));
    add(&rig, &w2).await;
    rig.until("it may still come", |gw| gw.workers() == (2, 2)).await;
}

#[tokio::test(start_paused = true)]
async fn one_that_stays_away_is_forgotten() {
    let (w1, w2) = (Worker::new("w1"), Worker::new("w2"));
    let rig = knowing_one(&[&w1, &w2]).await;
    w2.door(Door::Refusing);
    let path = location(&add(&rig, &w2).await);
    later(2000.0).await;
    rig.get(&path).await.is_refusal(404, "worker_not_found");
    w2.door(Door::Open);
    add(&rig, &w2).await;
    rig.until("it may be named again", |gw| gw.workers() == (2, 2)).await;
}

#[tokio::test(start_paused = true)]
async fn the_api_counts_under_its_template() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let path = of_url(&rig, &w).await;
    assert_eq!(rig.get(&path).await.status, 200);
    rig.get("/workers/7").await.is_refusal(400, "invalid_worker_id");
    let count = |method| {
        let labels = [("path", "/workers/{worker_id}"), ("method", method)];
        rig.count("smg_http_requests_total", &labels)
    };
    assert_eq!((count("GET"), count("DELETE")), (2, 0));
    assert!(!rig.gw.metrics_text().contains(&*path));
}
