//! A worker that was down and comes back as another engine.

use std::time::Duration;

use serde_json::Value;
use smg_gateway::settings::{BreakerRules, Settings};

use super::rig::*;

const DOWN: Option<&str> = Some("503 Service Unavailable");
const UP: Option<&str> = Some("200 OK");
const OTHER: &str = r#"{"model":"n","messages":[]}"#;

/// Looks for outages every second, so that tests of many take no time.
fn watchful(settings: &mut Settings) {
    settings.health.as_mut().expect("checks").interval = Duration::from_secs(1);
}

/// Lets the worker fail its checks, be changed, and pass them again.
async fn outage(rig: &Rig, w: &Worker, change: impl FnOnce(&Worker)) {
    w.health(DOWN);
    later(8.0).await;
    assert!(!all_ready(rig), "it is out");
    change(w);
    w.health(UP);
    // Longer than it takes to say nothing, if need be.
    for _ in 0..12 {
        if !all_ready(rig) {
            later(1.0).await;
        }
    }
    assert!(all_ready(rig), "it is back");
    // So is whoever served there before.
    later(4.0).await;
}

fn all_ready(rig: &Rig) -> bool {
    let (ready, all) = rig.gw.workers();
    ready == all
}

async fn workers(rig: &Rig) -> Vec<Value> {
    rig.get("/workers").await.json()["workers"].as_array().expect("a list").clone()
}

/// What a worker says of itself, without what the gateway gave it.
fn said(mut worker: Value) -> Value {
    worker.as_object_mut().expect("an object").remove("id");
    worker
}

async fn listed(rig: &Rig) -> Value {
    let mut list = rig.get("/v1/models").await.json()["data"].clone();
    for model in list.as_array_mut().expect("a list") {
        model.as_object_mut().expect("an object").remove("created");
    }
    list
}

#[tokio::test(start_paused = true)]
async fn whatever_it_was_it_is_known_as_what_it_is() {
    let engines: [(&[&str], &str); 7] = [
        (&["m"], r#"{"context_length":4096,"version":"1"}"#),
        (&["n"], r#"{"context_length":4096,"version":"1"}"#),
        (&["m", "lora"], r#"{"context_length":8192,"version":"2"}"#),
        (&["m"], r#"{"is_embedding":true,"is_generation":false}"#),
        (&["m"], r#"{"dp_size":2}"#),
        (&["m"], r#"{"dp_size":4,"tp_size":2}"#),
        (&[], r#"{"model_path":"/models/org/z"}"#),
    ];
    let be = |w: &Worker, engine: usize| {
        w.serves(engines[engine].0);
        w.info(engines[engine].1);
    };
    for dp_aware in [false, true] {
        let mut fresh = Vec::new();
        for engine in 0..engines.len() {
            let w = Worker::new("w1");
            be(&w, engine);
            let rig = Rig::unready(&[&w], |settings| {
                watchful(settings);
                settings.startup.dp_aware = dp_aware;
            });
            rig.until("it is there", |gw| gw.workers().0 > 0).await;
            let list: Vec<_> = workers(&rig).await.into_iter().map(said).collect();
            fresh.push((list, listed(&rig).await));
        }
        let w = Worker::new("w1");
        be(&w, 0);
        let rig = Rig::unready(&[&w], |settings| {
            watchful(settings);
            settings.startup.dp_aware = dp_aware;
        });
        rig.until("it is there", |gw| gw.workers().0 > 0).await;
        let id = workers(&rig).await[0]["id"].clone();
        let mut before = 0;
        for after in each_to_each(engines.len()) {
            outage(&rig, &w, |w| be(w, after)).await;
            let now = workers(&rig).await;
            assert_eq!(now[0]["id"], id, "{before} {after}: it is the same worker");
            let now: Vec<_> = now.into_iter().map(said).collect();
            assert_eq!(now, fresh[after].0, "{before} {after} {dp_aware}");
            assert_eq!(listed(&rig).await, fresh[after].1, "{before} {after}");
            let count = rig.count("smg_discovery_workers_discovered", &[]);
            assert_eq!(count as usize, now.len());
            before = after;
        }
        rig.is_at_rest().await;
    }
}

/// A walk from 0 that goes from each of `count` to each other one.
fn each_to_each(count: usize) -> Vec<usize> {
    let of = |from: usize| {
        let there_and_back = (from + 1..count).flat_map(move |to| [to, from]);
        there_and_back.chain((from + 1 < count).then_some(from + 1))
    };
    (0..count).flat_map(of).collect()
}

#[tokio::test(start_paused = true)]
async fn another_model_is_served_in_place_of_the_old_one_and_metrics_follow() {
    let w = Worker::new("w1");
    w.waiting(1);
    let rig = Rig::start(&[&w], |settings| {
        watchful(settings);
        settings.loads.always = true;
    })
    .await;
    assert_eq!(rig.chat(CHAT).await.status, 200);
    rig.chat(OTHER).await.is_refusal(404, "model_not_found");
    later(20.0).await;
    assert_eq!(rig.count("smg_engine_waiting_requests", &[("model", "m")]), 1);
    outage(&rig, &w, |w| w.serves(&["n"])).await;
    later(20.0).await;
    rig.chat(CHAT).await.is_refusal(404, "model_not_found");
    assert_eq!(rig.chat(OTHER).await.status, 200);
    assert_eq!(w.served(), 2, "what is refused does not reach it");
    for name in ["smg_worker_requests_total", "smg_worker_pool_size", "smg_engine_waiting_requests"]
    {
        assert_eq!(rig.metric(name, &[("model", "m")]), None, "{name}");
        assert_eq!(rig.metric(name, &[("model", "n")]), Some(1.0), "{name}");
    }
    assert!(w.now(|story| story.probed.iter().any(|path| path == "/loads?model=n")));
    let polls = rig.count("smg_engine_load_polls_total", &[("mode", "loads")]);
    assert!(polls > 2, "{polls}: they go on");
    assert_eq!(rig.count("smg_discovery_registrations_total", &[]), 1, "it has not registered");
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn no_request_reaches_it_before_it_has_said_what_it_is() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], watchful).await;
    w.health(DOWN);
    rig.until("it is out", |gw| gw.workers().0 == 0).await;
    w.serves(&["n"]);
    w.health(UP);
    w.usually(script().say(answer("404 Not Found", &[], "no such model")));
    loop {
        let reply = rig.chat(CHAT).await;
        if reply.status == 404 {
            reply.is_refusal(404, "model_not_found");
            break;
        }
        assert_eq!(reply.status, 503);
        later(0.5).await;
    }
    assert_eq!(w.served(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_the_operator_said_stays() {
    let w = Worker::new("w1");
    let rig = Rig::unready(&[&w], |settings| {
        watchful(settings);
        settings.workers.clear();
    });
    let spec = format!(
        r#"{{"url":"{}","models":["m"],"runtime_type":"vllm","labels":{{"version":"mine"}},
           "priority":7,"circuit_breaker":{{"failure_threshold":2}}}}"#,
        w.url()
    );
    assert_eq!(rig.ask("POST", "/workers", &spec).await.status, 202);
    rig.until("it is there", |gw| gw.workers() == (1, 1)).await;
    let before = rig.get(&path(&rig).await).await.json();
    outage(&rig, &w, |w| {
        w.serves(&["n"]);
        w.info(r#"{"version":"9","context_length":4096}"#);
    })
    .await;
    let mut after = rig.get(&path(&rig).await).await.json();
    let label = after["labels"].as_object_mut().expect("labels").remove("context_length");
    assert_eq!(label, Some("4096".into()), "this was found out");
    assert_eq!(after, before);
    assert_eq!(rig.chat(CHAT).await.status, 200);
}

async fn path(rig: &Rig) -> String {
    format!("/workers/{}", workers(rig).await[0]["id"].as_str().expect("an id"))
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_found_out_stays_and_is_asked_for_again() {
    for (at, status) in [
        ("/v1/models", None),
        ("/server_info", None),
        ("/v1/models", DOWN),
        ("/server_info", DOWN),
        ("/model_info", Some("502 Bad Gateway")),
        ("/get_model_info", Some("429 Too Many Requests")),
    ] {
        let w = Worker::new("w1");
        w.info(r#"{"context_length":4096}"#);
        let rig = Rig::start(&[&w], watchful).await;
        let before = workers(&rig).await;
        outage(&rig, &w, |w| {
            w.fails(at, status);
            w.serves(&["n"]);
            w.info(r#"{"context_length":8192}"#);
        })
        .await;
        assert_eq!(workers(&rig).await, before, "{at} {status:?}");
        assert_eq!(rig.chat(CHAT).await.status, 200);
        outage(&rig, &w, Worker::mends).await;
        assert_eq!(rig.chat(OTHER).await.status, 200, "{at} {status:?}");
        assert_eq!(workers(&rig).await[0]["labels"]["context_length"], "8192");
    }
}

#[tokio::test(start_paused = true)]
async fn a_conversation_goes_where_its_model_is_and_its_pin_stays_there() {
    let (w1, w2) = (Worker::new("w1"), Worker::new("w2"));
    let rig = Rig::start(&[&w1, &w2], |settings| {
        watchful(settings);
        settings.sticky = sticky();
    })
    .await;
    let keyed = async || rig.chat_with(&[("x-smg-routing-key", "k")], CHAT).await.worker();
    let home = keyed().await;
    let (left, other) = if home == "w1" { (&w1, "w2") } else { (&w2, "w1") };
    outage(&rig, left, |w| w.serves(&["n"])).await;
    assert_eq!((keyed().await, keyed().await), (other.to_owned(), other.to_owned()));
    assert_eq!((rig.branch("occupied_miss"), rig.branch("occupied_hit")), (1, 1));
    assert_eq!(rig.chat(OTHER).await.worker(), home);
}

#[tokio::test(start_paused = true)]
async fn its_counts_and_its_breaker_are_still_its_own() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |settings| {
        watchful(settings);
        settings.breaker = BreakerRules { failures: Some(1), successes: 1, timeout_ms: 3_600_000 };
    })
    .await;
    w.next(script().say(events_head()).pause(1000.0).say("0\r\n\r\n"));
    let mut client = rig.client();
    client.send(post("/v1/chat/completions", &[], CHAT_STREAM)).await;
    client.head().await;
    w.next(script().say(answer("500 Oops", &[], "")));
    rig.chat(CHAT).await;
    let open = || rig.count("smg_worker_cb_state", &[("worker", w.url())]) == 1;
    assert!(open(), "{}", rig.gw.metrics_text());
    outage(&rig, &w, |w| w.serves(&["n"])).await;
    assert_eq!(rig.count("smg_worker_requests_active", &[("worker", w.url())]), 1);
    assert!(open(), "still");
    assert_eq!(rig.chat(OTHER).await.status, 503);
    assert_eq!(client.chunk().await.as_deref(), Some(&b""[..]));
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_rank_that_was_removed_stays_away_and_new_ranks_come() {
    let w = Worker::new("w1");
    w.info(r#"{"dp_size":3}"#);
    let rig = Rig::unready(&[&w], |settings| {
        watchful(settings);
        settings.startup.dp_aware = true;
    });
    rig.until("they are there", |gw| gw.workers() == (3, 3)).await;
    let second = workers(&rig).await[1]["id"].as_str().expect("an id").to_owned();
    assert_eq!(rig.ask("DELETE", &format!("/workers/{second}"), "").await.status, 202);
    let ranks = async || {
        let of = |worker: &Value| (worker["dp_rank"].as_u64(), worker["dp_size"].as_u64());
        workers(&rig).await.iter().map(of).collect::<Vec<_>>()
    };
    let some =
        |ranks: &[u64], of: u64| ranks.iter().map(|at| (Some(*at), Some(of))).collect::<Vec<_>>();
    outage(&rig, &w, |w| w.info(r#"{"dp_size":3,"version":"2"}"#)).await;
    assert_eq!(ranks().await, some(&[0, 2], 3));
    outage(&rig, &w, |w| w.info(r#"{"dp_size":5}"#)).await;
    assert_eq!(ranks().await, some(&[0, 2, 3, 4], 5));
    for _ in 0..4 {
        assert_eq!(rig.chat(CHAT).await.status, 200);
    }
    outage(&rig, &w, |w| w.info(r#"{"dp_size":2}"#)).await;
    assert_eq!(ranks().await, some(&[0], 2));
    for gone in ["@2", "@3", "@4"] {
        assert!(!rig.gw.metrics_text().contains(&format!("8000{gone}\"")), "{gone}");
    }
    outage(&rig, &w, |w| w.info("{}")).await;
    assert_eq!(ranks().await, [(None, None)]);
    assert_eq!(rig.chat(CHAT).await.header("x-smg-routed-worker-id").as_deref(), Some(w.url()));
    assert_eq!(w.last().body, CHAT.as_bytes());
    assert_eq!(rig.gw.workers(), (1, 1));
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn ranks_that_still_serve_when_their_engine_is_one_again_take_no_part() {
    let w = Worker::new("w1");
    w.info(r#"{"dp_size":2}"#);
    let rig = Rig::unready(&[&w], |settings| {
        watchful(settings);
        settings.startup.dp_aware = true;
    });
    rig.until("they are there", |gw| gw.workers() == (2, 2)).await;
    // The other one is found well first, and takes this one's place along.
    let slower = r#"{"health":{"interval_secs":2}}"#;
    assert_eq!(rig.ask("PATCH", &path(&rig).await, slower).await.status, 200);
    let mut clients = [rig.client(), rig.client()];
    for client in &mut clients {
        w.next(script().say(events_head()).pause(1000.0).say("0\r\n\r\n"));
        client.send(post("/v1/chat/completions", &[], CHAT_STREAM)).await;
        client.head().await;
    }
    outage(&rig, &w, |w| w.info("{}")).await;
    assert_eq!(rig.gw.workers(), (1, 1));
    outage(&rig, &w, |w| w.info(r#"{"dp_size":2}"#)).await;
    assert_eq!(rig.gw.workers(), (2, 2));
    assert_eq!(rig.count("smg_discovery_workers_discovered", &[]), 2);
    for client in &mut clients {
        assert_eq!(client.chunk().await.as_deref(), Some(&b""[..]));
    }
    settle().await;
    assert_eq!(rig.metric("smg_worker_health", &[]), Some(2.0), "those that came back in between");
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn one_that_is_removed_while_it_is_asked_does_not_come_back() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], watchful).await;
    let path = path(&rig).await;
    w.health(DOWN);
    rig.until("it is out", |gw| gw.workers().0 == 0).await;
    w.serves(&["n"]);
    w.fails("/server_info", None);
    let asked = w.asked("/server_info");
    w.health(UP);
    w.until("it is asked", |story| {
        story.probed.iter().filter(|path| *path == "/server_info").count() > asked
    })
    .await;
    assert_eq!(rig.ask("DELETE", &path, "").await.status, 202);
    later(1000.0).await;
    assert_eq!(rig.gw.workers(), (0, 0));
    rig.chat(OTHER).await.is_refusal(404, "model_not_found");
    assert!(!rig.gw.metrics_text().contains(w.url()), "{}", rig.gw.metrics_text());
}

#[tokio::test(start_paused = true)]
async fn one_that_is_back_as_it_was_is_asked_once() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], watchful).await;
    let before = workers(&rig).await;
    outage(&rig, &w, |_| {}).await;
    assert_eq!((workers(&rig).await, w.asked("/v1/models")), (before, 2));
    later(1000.0).await;
    assert_eq!(w.asked("/v1/models"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_vendor_is_asked_nothing() {
    let w = Worker::new("w1");
    let rig = Rig::unready(&[&w], |settings| {
        watchful(settings);
        settings.workers.clear();
    });
    let spec = format!(
        r#"{{"url":"{}","models":["m"],"runtime_type":"external","health":{{"endpoint":"/health"}}}}"#,
        w.url()
    );
    assert_eq!(rig.ask("POST", "/workers", &spec).await.status, 202);
    rig.until("it is there", |gw| gw.workers() == (1, 1)).await;
    outage(&rig, &w, |w| w.serves(&["n"])).await;
    assert_eq!((w.asked("/v1/models"), w.asked("/server_info")), (0, 0));
    assert_eq!(workers(&rig).await[0]["model_id"], "m");
}
