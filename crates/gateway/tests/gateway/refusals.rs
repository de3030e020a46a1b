//! What the gateway says no to, and how: OpenAI-shaped JSON, a code in header and body, a status.

use super::rig::*;

#[tokio::test(start_paused = true)]
async fn a_body_that_is_no_request_is_refused() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let deep = format!(r#"{{"model":"m","messages":{}{}}}"#, "[".repeat(200), "]".repeat(200));
    let cases: [(&[u8], &str, Option<&str>); 14] = [
        (b"", "invalid_json", None),
        (b"{", "invalid_json", None),
        (b"{\"model\":\"m\",\"messages\":[]}}", "invalid_json", None),
        (b"{\"model\":\"m\",\"messages\":[],}", "invalid_json", None),
        (b"{\"model\":\"m\",\"messages\":[NaN]}", "invalid_json", None),
        (b"\xef\xbb\xbf{\"model\":\"m\",\"messages\":[]}", "invalid_json", None),
        (b"{\"model\":\"m\",\"messages\":\"\xff\"}", "invalid_json", None),
        (deep.as_bytes(), "invalid_json", None),
        (b"[]", "invalid_type", None),
        (b"\"x\"", "invalid_type", None),
        (b"null", "invalid_type", None),
        (b"{\"model\":5,\"messages\":[]}", "invalid_type", Some("model")),
        (b"{\"model\":\"m\"}", "missing_required_parameter", Some("messages")),
        (b"{\"model\":\"m\",\"messages\":null}", "missing_required_parameter", Some("messages")),
    ];
    for (body, code, param) in cases {
        let reply = rig.client().post("/v1/chat/completions", &[], body).await;
        reply.is_refusal(400, code);
        assert_eq!(reply.json()["error"]["param"].as_str(), param);
        assert_eq!(reply.json()["error"]["type"], "invalid_request_error");
        assert_eq!(reply.header("x-smg-routed-worker-id"), None);
    }
    rig.client()
        .post("/v1/completions", &[], CHAT)
        .await
        .is_refusal(400, "missing_required_parameter");
    assert_eq!(w.served(), 0);
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_body_leaves_the_connection_in_step() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let mut client = rig.client();
    for (body, status) in
        [("{", 400), (CHAT, 200), (r#"{"messages":1,"model":"?"}"#, 404), (CHAT, 200)]
    {
        assert_eq!(client.post("/v1/chat/completions", &[], body).await.status, status);
    }
}

#[tokio::test(start_paused = true)]
async fn an_unknown_model_is_not_found() {
    let (w1, w2) = (Worker::new("w1"), Worker::serving("w2", &["n"]));
    let rig = Rig::start(&[&w1, &w2], |_| {}).await;
    for model in [r#""x""#, r#""M""#, r#""m ""#, r#""""#, r#""\ud800""#] {
        let reply = rig.chat(&format!(r#"{{"messages":[],"model":{model}}}"#)).await;
        if model.contains("ud800") {
            reply.is_refusal(400, "invalid_type");
            continue;
        }
        reply.is_refusal(404, "model_not_found");
        assert_eq!(reply.json()["error"]["param"], "model");
        assert_eq!(reply.header("retry-after"), None);
    }
    // Without a name, two models are one too many.
    rig.chat(r#"{"messages":[]}"#).await.is_refusal(400, "missing_required_parameter");
    assert_eq!(w1.served() + w2.served(), 0);
    for (model, worker) in [("m", "w1"), ("n", "w2")] {
        let reply = rig.chat(&format!(r#"{{"messages":[],"model":"{model}"}}"#)).await;
        assert_eq!(reply.worker(), worker);
    }
}

#[tokio::test(start_paused = true)]
async fn of_two_models_in_one_body_the_last_one_counts() {
    let (w1, w2) = (Worker::new("w1"), Worker::serving("w2", &["n"]));
    let rig = Rig::start(&[&w1, &w2], |_| {}).await;
    for (body, worker) in [
        (r#"{"model":"m","messages":[],"model":"n"}"#, "w2"),
        (r#"{"model":"n","messages":[],"mod\u0065l":"m"}"#, "w1"),
        (r#"{"model":null,"messages":[{"model":"n"}],"model":"\u006d"}"#, "w1"),
    ] {
        assert_eq!(rig.chat(body).await.worker(), worker, "{body}");
    }
}

#[tokio::test(start_paused = true)]
async fn with_one_model_a_request_need_not_name_it() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    for body in [r#"{"messages":[]}"#, r#"{"messages":[],"model":null}"#] {
        assert_eq!(rig.chat(body).await.status, 200);
        assert_eq!(w.last().body, body.as_bytes());
    }
}

#[tokio::test(start_paused = true)]
async fn a_fleet_that_is_still_coming_is_unavailable_not_unknown() {
    let w = Worker::new("w1");
    w.door(Door::Refusing);
    let rig = Rig::unready(&[&w], |_| {});
    for model in ["m", "x"] {
        let reply = rig.chat(&format!(r#"{{"messages":[],"model":"{model}"}}"#)).await;
        reply.is_refusal(503, "no_available_workers");
        assert_eq!(reply.header("retry-after").as_deref(), Some("1"));
    }
    w.door(Door::Open);
    rig.until("the worker registers", |gw| gw.workers() == (1, 1)).await;
    assert_eq!(rig.chat(CHAT).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn no_workers_at_all_serve_no_model() {
    let rig = Rig::unready(&[], |_| {});
    rig.chat(CHAT).await.is_refusal(404, "model_not_found");
    rig.chat(r#"{"messages":[]}"#).await.is_refusal(404, "model_not_found");
}

#[tokio::test(start_paused = true)]
async fn a_length_beyond_the_limit_is_refused_in_plain_text_before_the_body() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |settings| settings.bodies.max_payload = 100).await;
    for length in ["101", "1000000000000", "18446744073709551613"] {
        let mut client = rig.client();
        client.send(format!("POST /v1/chat/completions HTTP/1.1\r\nhost: gw\r\nexpect: 100-continue\r\ncontent-length: {length}\r\n\r\n")).await;
        let reply = client.reply().await;
        assert_eq!((reply.status, reply.header("x-smg-error-code")), (413, None));
        assert!(reply.header("content-type").unwrap().starts_with("text/plain"));
        assert_eq!(reply.header("connection").as_deref(), Some("close"));
        client.sees_the_end().await;
    }
    let fits = format!(r#"{{"messages":["{}"]}}"#, "x".repeat(100 - 17));
    assert_eq!(rig.chat(&fits).await.status, 200);
    assert_eq!(w.served(), 1);
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_body_that_grows_beyond_the_limit_is_refused_in_json() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |settings| settings.bodies.max_payload = 100).await;
    let head =
        "POST /v1/chat/completions HTTP/1.1\r\nhost: gw\r\ntransfer-encoding: chunked\r\n\r\n";
    let mut client = rig.client();
    client.send(head).await.send(chunked("x".repeat(60))).await.send(chunked("x".repeat(60))).await;
    let reply = client.reply().await;
    reply.is_refusal(413, "request_body_too_large");
    // Nothing waits for the rest of the upload, and the client is told so.
    assert_eq!(reply.header("connection").as_deref(), Some("close"));
    client.sees_the_end().await;
    // At the limit it is served, and its chunks are joined.
    let mut client = rig.client();
    let fits = format!(r#"{{"messages":["{}"]}}"#, "x".repeat(100 - 17));
    client.send(head).await;
    for byte in fits.chars() {
        client.send(chunked(byte.to_string())).await;
    }
    client.send("0\r\nx-trailer: 1\r\n\r\n").await;
    assert_eq!(client.reply().await.status, 200);
    assert_eq!(w.last().body, fits.as_bytes());
    assert_eq!(w.last().header("content-length"), ["100"]);
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_method_that_a_path_does_not_answer_is_told_which_it_does() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    for (method, path, allow) in [
        ("GET", "/v1/chat/completions", "POST"),
        ("GET", "/v1/messages", "POST"),
        ("PUT", "/v1/messages/count_tokens", "POST"),
        ("PUT", "/v1/completions", "POST"),
        ("OPTIONS", "/v1/chat/completions", "POST"),
        ("DELETE", "/v1/models", "GET, HEAD"),
        ("POST", "/health", "GET, HEAD"),
        ("BREW", "/workers", "GET, HEAD, POST"),
        ("POST", "/workers/7f", "GET, HEAD, PUT, PATCH, DELETE"),
    ] {
        let mut client = rig.client();
        client
            .send(format!("{method} {path} HTTP/1.1\r\nhost: gw\r\ncontent-length: 2\r\n\r\n{{}}"))
            .await;
        let reply = client.reply().await;
        reply.is_refusal(405, "method_not_allowed");
        assert_eq!(reply.header("allow").as_deref(), Some(allow));
        // Anthropic's SDKs look for the outer type.
        assert_eq!(reply.json()["type"] == "error", path.starts_with("/v1/messages"), "{path}");
        assert_eq!(client.get("/health").await.status, 200, "{method} {path}: out of step");
    }
    assert_eq!(w.served(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_path_that_is_not_there_is_not_found() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    for path in [
        "/",
        "/v1",
        "/v1/chat/completions/",
        "//v1/models",
        "/V1/models",
        "/metrics",
        "/%2e",
        "/a\"b",
        "/health?x=1",
    ] {
        let reply = rig.get(path).await;
        if path.starts_with("/health") {
            assert_eq!(reply.status, 200);
        } else {
            reply.is_refusal(404, "route_not_found");
        }
    }
    let mut client = rig.client();
    client.send("CONNECT other:443 HTTP/1.1\r\nhost: other:443\r\n\r\n").await;
    client.reply().await.is_refusal(404, "route_not_found");
    let mut client = rig.client();
    client.send("OPTIONS * HTTP/1.1\r\nhost: gw\r\n\r\n").await;
    client.reply().await.is_refusal(404, "route_not_found");
    assert_eq!(w.served(), 0);
}

/// A client that is still sending would see a reset in place of the answer.
#[tokio::test(start_paused = true)]
async fn a_long_upload_to_where_nothing_is_is_heard_out() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    for (path, method, status) in [("/nowhere", "POST", 404), ("/v1/chat/completions", "PUT", 405)]
    {
        let mut client = rig.client();
        client
            .send(format!(
                "{method} {path} HTTP/1.1\r\nhost: gw\r\ncontent-length: 900000\r\n\r\n{{"
            ))
            .await;
        let reply = client.reply().await;
        assert_eq!(reply.status, status);
        assert_eq!(reply.header("connection").as_deref(), Some("close"), "{path}");
        client.send(vec![b'x'; 500_000]).await;
        // A short one keeps its connection.
        let short = rig.ask(method, path, "{}").await;
        assert_eq!((short.status, short.header("connection")), (status, None));
    }
    rig.is_at_rest().await;
}
