//! `--dp-aware`: each data-parallel rank of an engine is a worker.

use smg_gateway::Gateway;

use super::rig::*;

const INFO: &str = r#"{"dp_size":2,"tp_size":1}"#;

async fn ranked(w: &Worker, sticky_too: bool) -> Rig {
    w.info(INFO);
    let rig = Rig::unready(&[w], |settings| {
        settings.startup.dp_aware = true;
        settings.loads.always = true;
        settings.sticky.key_override = sticky_too;
    });
    rig.until("both ranks are there", |gw: &Gateway| gw.workers() == (2, 2)).await;
    rig
}

#[tokio::test(start_paused = true)]
async fn each_rank_is_a_worker_and_the_engine_is_told_which() {
    let w = Worker::new("w1");
    let rig = ranked(&w, false).await;
    let mut routed = Vec::new();
    for _ in 0..4 {
        let reply = rig.chat(r#"{"model":"m","messages":[],"x":1.10}"#).await;
        let worker = reply.header("x-smg-routed-worker-id").unwrap();
        let rank = worker.strip_prefix("http://w1:8000@").unwrap().to_owned();
        let seen = format!(r#"{{"model":"m","messages":[],"x":1.10,"data_parallel_rank":{rank}}}"#);
        assert_eq!(String::from_utf8(w.last().body).unwrap(), seen);
        assert_eq!(w.last().header("content-length"), [seen.len().to_string()]);
        assert_eq!(w.last().header("host"), ["w1:8000"]);
        routed.push(rank);
    }
    routed.sort();
    assert_eq!(routed, ["0", "0", "1", "1"]);
    let first = w.now(|story| story.requests[0].on);
    assert!(w.now(|story| story.requests.iter().all(|r| r.on == first)), "one pool for both");
    for rank in ["http://w1:8000@0", "http://w1:8000@1"] {
        assert_eq!(rig.metric("smg_worker_health", &[("worker", rank)]), Some(1.0));
    }
    assert_eq!(rig.metric("smg_worker_health", &[("worker", "http://w1:8000")]), None);
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_clients_own_rank_gives_way() {
    let w = Worker::new("w1");
    let rig = ranked(&w, false).await;
    let reply = rig.chat(r#"{"data_parallel_rank":7,"messages":[],"model":"m"}"#).await;
    let rank =
        reply.header("x-smg-routed-worker-id").unwrap().split('@').nth(1).unwrap().to_owned();
    let seen = format!(r#"{{"data_parallel_rank":{rank},"messages":[],"model":"m"}}"#);
    assert_eq!(String::from_utf8(w.last().body).unwrap(), seen);
}

#[tokio::test(start_paused = true)]
async fn a_conversation_stays_on_its_rank() {
    let w = Worker::new("w1");
    let rig = ranked(&w, true).await;
    for key in ["a", "b", "c"] {
        let mut homes = Vec::new();
        for _ in 0..3 {
            let reply = rig.chat_with(&[("x-smg-routing-key", key)], CHAT).await;
            homes.push(reply.header("x-smg-routed-worker-id").unwrap());
        }
        homes.dedup();
        assert_eq!(homes.len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn bodies_are_buffered_because_the_worker_edits_them() {
    let w = Worker::new("w1");
    w.info(r#"{"dp_size":2}"#);
    let rig = Rig::unready(&[&w], |settings| {
        settings.startup.dp_aware = true;
        settings.bodies.model_selection = false;
    });
    rig.until("both ranks are there", |gw| gw.workers() == (2, 2)).await;
    rig.chat(CHAT).await;
    let rule = [("reason", "worker_mutates_body")];
    assert_eq!(rig.count("smg_router_request_body_path_total", &rule), 1);
}

#[tokio::test(start_paused = true)]
async fn ranks_are_listed_with_their_engine_and_one_may_go() {
    let w = Worker::new("w1");
    let rig = ranked(&w, false).await;
    rig.chat(CHAT).await;
    let list = rig.get("/workers").await.json();
    for at in 0..2_usize {
        let worker = &list["workers"][at];
        assert_eq!(worker["url"], format!("http://w1:8000@{at}"));
        assert_eq!(worker["dp_base_url"], "http://w1:8000");
        assert_eq!((&worker["dp_rank"], &worker["dp_size"]), (&at.into(), &2.into()));
    }
    let again = rig.ask("POST", "/workers", r#"{"url":"http://w1:8000/"}"#).await;
    again.is_refusal(409, "worker_already_exists");
    let id = list["workers"][0]["id"].as_str().unwrap();
    assert_eq!(rig.ask("DELETE", &format!("/workers/{id}"), "").await.status, 202);
    assert_eq!(rig.gw.workers(), (1, 1));
    for _ in 0..2 {
        let reply = rig.chat(CHAT).await;
        assert_eq!(reply.header("x-smg-routed-worker-id").as_deref(), Some("http://w1:8000@1"));
    }
    assert_eq!(w.now(|story| story.open), 1, "the other rank still uses the connection");
}

#[tokio::test(start_paused = true)]
async fn each_rank_has_its_own_load() {
    let w = Worker::new("w1");
    w.loads(r#"{"loads":[{"dp_rank":0,"num_running_reqs":3},{"dp_rank":1,"num_running_reqs":5}]}"#);
    let rig = ranked(&w, false).await;
    later(1.0).await;
    for (rank, running) in [("0", 3), ("1", 5)] {
        let worker = format!("http://w1:8000@{rank}");
        let labels = [("worker", &*worker), ("dp_rank", rank)];
        assert_eq!(rig.count("smg_engine_running_requests", &labels), running);
    }
    assert_eq!(rig.count("smg_engine_running_requests", &[]), 8);
    let list = rig.get("/workers").await.json();
    let path = format!("/workers/{}", list["workers"][0]["id"].as_str().unwrap());
    assert_eq!(rig.ask("PATCH", &path, r#"{"priority":1}"#).await.status, 200);
    settle().await;
    let shown = rig.count("smg_engine_running_requests", &[]);
    assert_eq!(shown, 8, "a change does not hide what an engine said");
}

#[tokio::test(start_paused = true)]
async fn without_the_flag_or_without_ranks_a_worker_is_one() {
    for (info, aware) in [(INFO, false), (r#"{"dp_size":1}"#, true), (r#"{"dp_size":0}"#, true)] {
        let w = Worker::new("w1");
        w.info(info);
        let rig = Rig::start(&[&w], |settings| settings.startup.dp_aware = aware).await;
        let reply = rig.chat(CHAT).await;
        assert_eq!(reply.header("x-smg-routed-worker-id").as_deref(), Some("http://w1:8000"));
        assert_eq!(w.last().body, CHAT.as_bytes());
    }
}

#[tokio::test(start_paused = true)]
async fn an_engine_is_asked_once_whichever_of_its_ranks_are_left() {
    let w = Worker::new("w1");
    let rig = ranked(&w, false).await;
    let path = "/v1/responses/resp_1";
    w.page(path, r#"{"id":"resp_1"}"#);
    for left in [2, 1] {
        assert_eq!(rig.gw.workers(), (left, left));
        let done = rig.ask("POST", "/flush_cache", "").await;
        assert_eq!((done.status, done.text()), (200, r#"{"flushed":1,"status":"ok"}"#));
        assert_eq!(rig.get(path).await.status, 200);
        // The question who has it, and the request.
        assert_eq!(w.asked(path), 2 * (3 - left));
        let first = rig.get("/workers").await.json()["workers"][0]["id"].clone();
        let first = first.as_str().expect("an id");
        assert_eq!(rig.ask("DELETE", &format!("/workers/{first}"), "").await.status, 202);
        settle().await;
    }
}
