//! What an operator and a prober ask.

use super::rig::*;

#[tokio::test(start_paused = true)]
async fn the_fleet_is_listed_in_the_peers_shape() {
    let workers = [Worker::serving("w1", &["m", "lora"]), Worker::new("w2")];
    let rig = Rig::start(&[&workers[0], &workers[1]], |_| {}).await;
    let reply = rig.get("/workers").await;
    assert_eq!(reply.header("content-type").as_deref(), Some("application/json"));
    let list = reply.json();
    assert_eq!(list["total"], 2);
    let stats = serde_json::json!({"prefill_count": 0, "decode_count": 0, "regular_count": 2});
    assert_eq!(list["stats"], stats);
    let mut urls = Vec::new();
    for worker in list["workers"].as_array().unwrap() {
        urls.push(worker["url"].as_str().unwrap().to_owned());
        assert_eq!(worker["id"].as_str().unwrap().len(), 36);
        for (field, value) in [
            ("model_id", serde_json::json!("m")),
            ("worker_type", "regular".into()),
            ("connection_mode", "http".into()),
            ("runtime_type", "generic".into()),
            ("status", "ready".into()),
            ("is_healthy", true.into()),
            ("load", 0.into()),
            ("http2", false.into()),
            ("labels", serde_json::json!({})),
        ] {
            assert_eq!(worker[field], value, "{field}");
        }
    }
    urls.sort();
    assert_eq!(urls, ["http://w1:8000", "http://w2:8000"]);
}

#[tokio::test(start_paused = true)]
async fn a_workers_load_shows_while_it_is_there() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    w.next(script().say(events_head()).hang());
    let mut client = rig.client();
    client.send(post("/v1/chat/completions", &[], CHAT_STREAM)).await;
    client.head().await;
    let loaded = |reply: Reply| reply.json()["workers"][0]["load"].as_i64();
    assert_eq!(loaded(rig.get("/workers").await), Some(1));
    client.leave().await;
    assert_eq!(loaded(rig.get("/workers").await), Some(0));
}

#[tokio::test(start_paused = true)]
async fn every_model_is_listed_once() {
    let workers = [Worker::serving("w1", &["z", "a"]), Worker::serving("w2", &["z"])];
    let rig = Rig::start(&[&workers[0], &workers[1]], |_| {}).await;
    let list = rig.get("/v1/models").await.json();
    assert_eq!(list["object"], "list");
    let ids: Vec<_> = list["data"].as_array().unwrap().iter().map(|m| &m["id"]).collect();
    assert_eq!(ids, ["a", "z"]);
    assert!(list["data"].as_array().unwrap().iter().all(|m| m["object"] == "model"));
    for model in ["a", "z"] {
        assert_eq!(rig.chat(&format!(r#"{{"messages":[],"model":"{model}"}}"#)).await.status, 200);
    }
}

#[tokio::test(start_paused = true)]
async fn it_is_alive_at_once_and_ready_with_its_first_worker() {
    let w = Worker::new("w1");
    w.door(Door::Refusing);
    let rig = Rig::unready(&[&w], |_| {});
    for path in ["/health", "/liveness"] {
        let reply = rig.get(path).await;
        assert_eq!((reply.status, reply.text()), (200, "OK"));
    }
    let reply = rig.get("/readiness").await;
    assert_eq!(reply.status, 503);
    let wanted = serde_json::json!({
        "status": "not ready", "reason": "insufficient healthy workers",
        "healthy_workers": 0, "total_workers": 0,
    });
    assert_eq!(reply.json(), wanted);
    assert_eq!(rig.get("/workers").await.json()["total"], 0);
    assert_eq!(rig.get("/v1/models").await.json()["data"], serde_json::json!([]));
    w.door(Door::Open);
    rig.until("it registers", |gw| gw.workers() == (1, 1)).await;
    let reply = rig.get("/readiness").await;
    let wanted = serde_json::json!({"status": "ready", "healthy_workers": 1, "total_workers": 1});
    assert_eq!((reply.status, reply.json()), (200, wanted));
}

#[tokio::test(start_paused = true)]
async fn a_head_is_answered_without_a_body() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let mut client = rig.client();
    for path in ["/health", "/liveness", "/readiness", "/workers", "/v1/models"] {
        client.send(format!("HEAD {path} HTTP/1.1\r\nhost: gw\r\n\r\n")).await;
        assert_eq!(client.head().await.status, 200, "{path}");
    }
    assert_eq!(client.get("/health").await.text(), "OK");
}
