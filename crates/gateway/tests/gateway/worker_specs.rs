//! What an operator may say of a worker, when it is added and later.

use super::rig::*;

async fn with_spec(w: &Worker, spec: &str) -> (Rig, String) {
    let rig = Rig::unready(&[w], |settings| settings.workers.clear());
    let comma = if spec.is_empty() { "" } else { "," };
    let body = format!(r#"{{"url":"{}"{comma}{spec}}}"#, w.url());
    let reply = rig.ask("POST", "/workers", &body).await;
    assert_eq!(reply.status, 202, "{}", reply.text());
    rig.until("it registers", |gw| gw.workers() == (1, 1)).await;
    (rig, reply.header("location").unwrap())
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_a_worker_is_refused() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    for (body, status, code) in [
        ("{}", 400, "missing_required_parameter"),
        (r#"{"url":null}"#, 400, "missing_required_parameter"),
        (r#"{"url":5}"#, 400, "invalid_worker_url"),
        (r#"{"url":"w2:8000"}"#, 400, "invalid_worker_url"),
        (r#"{"url":"http://user@w2"}"#, 400, "invalid_worker_url"),
        (r#"{"url":"grpc://w2:1"}"#, 400, "worker_scheme_unsupported"),
        (r#"{"url":"ipc:///tmp/engine"}"#, 400, "worker_scheme_unsupported"),
        (r#"{"url":"zmq://w2:1"}"#, 400, "worker_scheme_unsupported"),
        (r#"{"url":"http://w2","colour":"red"}"#, 400, "invalid_worker_spec"),
        (r#"{"url":"http://w2","http_pool":{"http2":"yes"}}"#, 400, "invalid_worker_spec"),
        ("[]", 400, "invalid_worker_spec"),
        ("{", 400, "invalid_json"),
        (r#"{"url":"http://w1:8000"}"#, 409, "worker_already_exists"),
    ] {
        let reply = rig.ask("POST", "/workers", body).await;
        reply.is_refusal(status, code);
        let message = reply.json()["error"]["message"].as_str().unwrap().to_owned();
        if code == "worker_scheme_unsupported" {
            assert!(message.contains("http://"), "{message}");
        }
        assert!(!body.contains("colour") || message.contains("colour"), "{message}");
    }
    for path in ["/workers/7", "/workers/w1"] {
        for method in ["GET", "DELETE", "PUT", "PATCH"] {
            rig.ask(method, path, "{}").await.is_refusal(400, "invalid_worker_id");
        }
    }
    let unknown = "/workers/00000000-0000-4000-8000-000000000000";
    for method in ["GET", "DELETE", "PUT", "PATCH"] {
        rig.ask(method, unknown, "{}").await.is_refusal(404, "worker_not_found");
    }
    assert_eq!(rig.gw.workers(), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_request_to_the_api_is_bounded() {
    let rig = Rig::unready(&[], |_| {});
    let body = format!(r#"{{"url":"http://w1","labels":{{"a":"{}"}}}}"#, "x".repeat(1 << 20));
    let mut client = rig.client();
    client.try_send(post("/workers", &[], &body)).await;
    let reply = client.reply().await;
    reply.is_refusal(413, "request_body_too_large");
}

#[tokio::test(start_paused = true)]
async fn a_spec_says_what_is_served_and_how_it_is_placed() {
    let w = Worker::new("w1");
    w.info(r#"{"tp_size":2,"version":"1"}"#);
    let spec = r#""models":["x",{"id":"y"}],"labels":{"policy":"least_load","version":"9"},
                  "priority":7,"cost":2.5"#;
    let (rig, path) = with_spec(&w, spec).await;
    let shown = rig.get(&path).await.json();
    assert_eq!(shown["models"], serde_json::json!([{"id": "x"}, {"id": "y"}]));
    let labels = serde_json::json!({"policy": "least_load", "tp_size": "2", "version": "9"});
    assert_eq!(shown["labels"], labels);
    assert_eq!((&shown["priority"], &shown["cost"]), (&7.into(), &2.5.into()));
    rig.chat(CHAT).await.is_refusal(404, "model_not_found");
    assert_eq!(rig.chat(r#"{"model":"y","messages":[]}"#).await.status, 200);
    let placed = |policy| rig.count("smg_worker_selection_total", &[("policy", policy)]);
    assert_eq!(placed("least_load"), 1);
    let reply = rig.ask("PATCH", &path, r#"{"labels":{"policy":"random"}}"#).await;
    assert_eq!(reply.json()["labels"]["policy"], "random");
    rig.chat(r#"{"model":"x","messages":[]}"#).await;
    assert_eq!((placed("least_load"), placed("random")), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_worker_is_changed_while_it_serves() {
    let w = Worker::new("w1");
    let (rig, path) = with_spec(&w, "").await;
    let shown = rig.get(&path).await.json();
    assert_eq!((&shown["priority"], &shown["cost"]), (&50.into(), &1.0.into()));
    let patch = r#"{"priority":1,"http_pool":{"timeout_secs":2},"retry":{"max_retries":9}}"#;
    let reply = rig.ask("PATCH", &path, patch).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.json()["ignored"], serde_json::json!(["retry"]));
    assert_eq!(rig.get(&path).await.json()["http_pool"]["timeout_secs"], 2);
    w.next(script().hang());
    rig.chat(CHAT).await.is_refusal(504, "call_upstream_timeout");
    // PUT says everything anew.
    let reply = rig.ask("PUT", &path, r#"{"cost":3}"#).await.json();
    assert_eq!((&reply["priority"], &reply["cost"]), (&50.into(), &3.0.into()));
    assert_eq!(reply.get("http_pool"), None);
    w.next(script().pause(5.0).say(json("{}")));
    assert_eq!(rig.chat(CHAT).await.status, 200);
    for bad in [r#"{"cost":-1}"#, r#"{"url":"http://w2"}"#, r#"{"models":["x"]}"#, r#"{"x":null}"#]
    {
        rig.ask("PATCH", &path, bad).await.is_refusal(400, "invalid_worker_spec");
    }
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_workers_own_connection_rules_hold() {
    let w = Worker::new("w1");
    let spec =
        r#""http_pool":{"pool_max_idle_per_host":1,"pool_idle_timeout_secs":20,"http2":false}"#;
    let (rig, path) = with_spec(&w, spec).await;
    w.usually(script().pause(1.0).say(json("{}")));
    let mut clients: Vec<_> = (0..4).map(|_| rig.client()).collect();
    for client in &mut clients {
        client.send(post("/v1/chat/completions", &[], CHAT)).await;
    }
    for client in &mut clients {
        assert_eq!(client.reply().await.status, 200);
    }
    settle().await;
    assert_eq!(w.now(|story| story.open), 1);
    later(15.0).await;
    assert_eq!(w.now(|story| story.open), 1);
    later(10.0).await;
    assert_eq!(w.now(|story| story.open), 0);
    rig.chat(CHAT).await;
    rig.ask("PATCH", &path, r#"{"http_pool":{"pool_max_idle_per_host":0}}"#).await;
    settle().await;
    assert_eq!(w.now(|story| story.open), 0, "new rules hold for what is idle already");
}

#[tokio::test(start_paused = true)]
async fn a_workers_own_health_checks_hold() {
    let w = Worker::new("w1");
    let spec = r#""health":{"interval_secs":2,"failure_threshold":1,"success_threshold":1}"#;
    let (rig, path) = with_spec(&w, spec).await;
    w.health(Some("503 Busy"));
    later(3.0).await;
    assert_eq!(rig.gw.workers(), (0, 1));
    rig.ask("PATCH", &path, r#"{"health":{"disabled":true}}"#).await;
    assert_eq!(rig.gw.workers(), (1, 1), "nobody checks any more");
    assert_eq!(rig.get(&path).await.json()["status"], "ready");
    later(600.0).await;
    assert_eq!(rig.gw.workers(), (1, 1));
    rig.ask("PATCH", &path, r#"{"health":{"disabled":null,"interval_secs":30}}"#).await;
    later(25.0).await;
    assert_eq!(rig.gw.workers(), (1, 1));
    later(10.0).await;
    assert_eq!(rig.gw.workers(), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_workers_own_breaker_holds() {
    let w = Worker::new("w1");
    let spec = r#""circuit_breaker":{"failure_threshold":1,"timeout_secs":10}"#;
    let (rig, path) = with_spec(&w, spec).await;
    w.next(script().say(answer("500 Broken", &[], "")));
    assert_eq!(rig.chat(CHAT).await.status, 500);
    rig.chat(CHAT).await.is_refusal(503, "no_available_workers");
    rig.ask("PATCH", &path, r#"{"circuit_breaker":{"disabled":true}}"#).await;
    assert_eq!(rig.chat(CHAT).await.status, 200);
    let state = rig.metric("smg_worker_cb_state", &[("worker", w.url())]);
    assert_eq!(state, Some(0.0));
}

/// Nothing but its own spec asks for its load, and a change counts from the next report on.
#[tokio::test(start_paused = true)]
async fn a_workers_own_overload_rules_hold() {
    let w = Worker::new("w1");
    w.reports(2, 0.5);
    let (rig, at) = with_spec(&w, r#""overload":{"waiting_requests":2}"#).await;
    settle().await;
    rig.chat(CHAT).await.is_refusal(503, "worker_overload_protection_shed");
    for (overload, status) in [
        (r#"{"waiting_requests":3}"#, 200),
        (r#"{"token_usage":0.5}"#, 503),
        (r#"{"token_usage":0.51}"#, 200),
        (r#"{"waiting_requests":1}"#, 503),
        ("null", 200),
    ] {
        let spec = format!(r#"{{"overload":{overload}}}"#);
        let changed = rig.ask("PATCH", &at, &spec).await;
        assert_eq!(changed.status, 200);
        for reply in [changed, rig.get(&at).await] {
            let said: serde_json::Value = serde_json::from_str(overload).unwrap();
            let told = &reply.json()["overload"];
            let told_all =
                said.as_object().is_none_or(|said| said.iter().all(|(k, v)| told[k] == *v));
            assert!(told_all && told.is_null() == said.is_null(), "{overload}: {told}");
        }
        later(10.0).await;
        settle().await;
        assert_eq!(rig.chat(CHAT).await.status, status, "{overload}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_is_kept_and_never_shown() {
    let w = Worker::new("w1");
    let (rig, path) = with_spec(&w, r#""api_key":"sesame""#).await;
    for reply in [
        rig.get("/workers").await,
        rig.get(&path).await,
        rig.ask("PATCH", &path, r#"{"priority":2}"#).await,
        rig.ask("PUT", &path, r#"{"priority":3}"#).await,
    ] {
        assert!(reply.status == 200 && !reply.text().contains("sesame"), "{}", reply.text());
    }
    let has_key = |reply: Reply| reply.json()["has_api_key"].as_bool();
    assert_eq!(has_key(rig.get(&path).await), Some(true));
    assert_eq!(has_key(rig.ask("PATCH", &path, r#"{"api_key":null}"#).await), Some(false));
    assert!(!format!("{:?}", rig.gw).contains("sesame"));
}
