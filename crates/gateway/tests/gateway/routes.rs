//! The routes beside completions: token counts, tokens, recordings, and what engines are asked.

use smg_gateway::settings::PolicyName;

use super::rig::*;

const COUNT: &str = "/v1/messages/count_tokens";
const MULTIPART: &str = "multipart/form-data; boundary=b";

#[tokio::test(start_paused = true)]
async fn agents_bring_queries_and_versions_along() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let headers = [
        ("anthropic-version", "2023-06-01"),
        ("anthropic-beta", "claude-code-20250219,interleaved-thinking-2025-05-14"),
        ("x-api-key", "k"),
        ("x-stainless-retry-count", "0"),
        ("x-app", "cli"),
    ];
    for path in ["/v1/messages", COUNT] {
        w.next(script().say(json(r#"{"input_tokens":7}"#)));
        let reply = rig.client().post(&format!("{path}?beta=true"), &headers, CHAT).await;
        assert_eq!((reply.status, reply.text()), (200, r#"{"input_tokens":7}"#));
        let received = w.last();
        assert!(received.head.starts_with(&format!("POST {path}?beta=true HTTP")));
        for (name, value) in &headers[..2] {
            assert_eq!(received.header(name), [*value]);
        }
        assert!(received.header("x-api-key").is_empty() && received.header("x-app").is_empty());
        assert_eq!(received.body, CHAT.as_bytes());
    }
    let refused = rig.client().post(COUNT, &[], r#"{"model":"x","messages":[]}"#).await;
    refused.is_refusal(404, "model_not_found");
    assert_eq!(refused.json()["type"], "error");
}

#[tokio::test(start_paused = true)]
async fn counting_tokens_moves_neither_pins_nor_the_cycle() {
    let workers = ["w1", "w2"].map(Worker::new);
    let rig = Rig::start(&workers.each_ref(), |settings| settings.sticky = sticky()).await;
    let rid = |n| format!(r#"{{"model":"m","messages":[],"rid":"conversation-{n}"}}"#);
    let mut homes = Vec::new();
    for n in 0..4 {
        for path in [COUNT, "/v1/tokenize", "/v1/detokenize"] {
            let key = format!("conversation-{n}");
            let headers = [("x-smg-routing-key", &*key)];
            assert_eq!(rig.client().post(path, &headers, rid(n)).await.status, 200);
        }
        homes.push(rig.client().post("/v1/messages", &[], rid(n)).await.worker());
    }
    assert_eq!(homes, ["w1", "w2", "w1", "w2"]);
    assert_eq!((rig.branch("vacant"), rig.count("smg_manual_policy_cache_entries", &[])), (4, 4));
    assert_eq!(rig.count("smg_router_requests_total", &[("endpoint", "other")]), 12);
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn tokens_are_asked_for_where_the_engine_has_them() {
    let (sglang, vllm) = (Worker::serving("w1", &["m"]), Worker::serving("w2", &["n"]));
    vllm.page("/v1/models", r#"{"data":[{"id":"n","owned_by":"vllm"}]}"#);
    let rig = Rig::start(&[&sglang, &vllm], |_| {}).await;
    for (path, bare) in [("/v1/tokenize", "/tokenize"), ("/v1/detokenize", "/detokenize")] {
        for (worker, model, wanted) in [(&sglang, "m", path), (&vllm, "n", bare)] {
            let body = format!(r#"{{"model":"{model}","prompt":"a","tokens":[1]}}"#);
            assert_eq!(rig.client().post(path, &[], &body).await.status, 200);
            assert!(worker.last().head.starts_with(&format!("POST {wanted} HTTP")));
        }
    }
}

fn form(model: &str) -> Vec<u8> {
    let mut form = b"--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\
        Content-Type: audio/wav\r\n\r\nRIFF\x00\xff\r\n--bad\r\n"
        .to_vec();
    let field = format!("\r\n--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n{model}");
    form.extend(field.as_bytes());
    form.extend(b"\r\n--b--\r\n");
    form
}

#[tokio::test(start_paused = true)]
async fn a_recording_is_relayed_as_it_came() {
    let (speech, other) = (Worker::serving("w1", &["whisper"]), Worker::new("w2"));
    let rig = Rig::start(&[&other, &speech], |settings| {
        settings.aliases.insert("ears".to_owned(), "whisper".to_owned());
    })
    .await;
    let path = "/v1/audio/transcriptions";
    let headers = [("content-type", MULTIPART)];
    for model in ["whisper", "ears"] {
        speech.next(script().say(json(r#"{"text":"hello"}"#)));
        let reply = rig.client().post(path, &headers, form(model)).await;
        assert_eq!((reply.status, reply.text()), (200, r#"{"text":"hello"}"#));
        assert_eq!(speech.last().header("content-type"), [MULTIPART]);
        assert_eq!(speech.last().body, form("whisper"), "the alias is replaced and nothing else");
    }
    let refused = rig.client().post(path, &headers, form("nobody")).await;
    refused.is_refusal(404, "model_not_found");
    for headers in [&[("content-type", "application/json")][..], &[], &headers] {
        let refused = rig.client().post(path, headers, CHAT).await;
        refused.is_refusal(400, "invalid_form");
    }
    assert_eq!((speech.served(), other.served()), (2, 0));
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn an_engine_says_who_it_is_and_tells_no_keys() {
    let (first, second) = (Worker::new("w1"), Worker::new("w2"));
    for worker in [&first, &second] {
        worker.page("/get_model_info", r#"{"model_path":"p","is_generation":true}"#);
        // Newer engines have this one only.
        worker.page("/server_info", r#"{"version":"1","api_key":"hush"}"#);
        worker.page("/health_generate", "");
    }
    let rig = Rig::start(&[&first, &second], |_| {}).await;
    let model = rig.get("/get_model_info?full=1").await;
    assert_eq!((model.status, &*model.worker()), (200, "w1"));
    assert_eq!(model.json()["model_path"], "p");
    assert!(first.now(|story| story.probed.contains(&"/get_model_info?full=1".to_owned())));
    let server = rig.get("/get_server_info").await;
    assert_eq!((server.status, server.text()), (200, r#"{"api_key":null,"version":"1"}"#));
    assert_eq!(rig.get("/health_generate").await.status, 200);
    first.health(None);
    rig.until("w1 is out", |gw| gw.workers().0 == 1).await;
    assert_eq!(rig.get("/health_generate").await.worker(), "w2");
    second.health(None);
    rig.until("w2 is out", |gw| gw.workers().0 == 0).await;
    for path in ["/get_model_info", "/get_server_info", "/health_generate"] {
        rig.get(path).await.is_refusal(503, "no_available_workers");
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_than_four_ask_for_a_word_at_once_and_nobody_queues() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    w.door(Door::Silent);
    let mut asking: Vec<_> = (0..4).map(|_| rig.client()).collect();
    for client in &mut asking {
        client.send("GET /health_generate HTTP/1.1\r\nhost: gw\r\n\r\n").await;
    }
    later(1.0).await;
    rig.get("/health_generate").await.is_refusal(429, "health_generate_busy");
    for client in &mut asking {
        client.reply().await.is_refusal(502, "engine_not_answering");
    }
    w.door(Door::Open);
    assert_eq!(rig.get("/health_generate").await.status, 404, "the worker's own");
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_cannot_say_a_word_is_told() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    // The worker's own status.
    assert_eq!(rig.get("/health_generate").await.status, 404);
    w.door(Door::Refusing);
    rig.get("/health_generate").await.is_refusal(502, "engine_not_answering");
    w.door(Door::Silent);
    rig.get("/get_model_info").await.is_refusal(502, "engine_not_answering");
}

#[tokio::test(start_paused = true)]
async fn caches_are_flushed_everywhere_and_what_was_known_of_them_is_forgotten() {
    let workers = ["w1", "w2"].map(Worker::new);
    let rig = Rig::start(&workers.each_ref(), |settings| {
        settings.placement.policy = PolicyName::CacheAware;
    })
    .await;
    let text = "the same long prompt ".repeat(200);
    let prompt = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{text}"}}]}}"#);
    let matched = || rig.count("smg_cache_aware_policy_branch_total", &[("branch", "tree_match")]);
    rig.chat(&prompt).await;
    rig.chat(&prompt).await;
    assert_eq!(matched(), 1);
    let done = rig.ask("POST", "/flush_cache", "").await;
    assert_eq!((done.status, done.text()), (200, r#"{"flushed":2,"status":"ok"}"#));
    for worker in &workers {
        assert!(worker.last().head.starts_with("POST /flush_cache HTTP"));
    }
    rig.chat(&prompt).await;
    assert_eq!(matched(), 1, "nothing is known any more");
    workers[1].next(script().say(answer("400 Busy", &[], "")));
    let refused = rig.get("/flush_cache").await;
    refused.is_refusal(502, "flush_cache_failed");
    assert!(refused.text().contains("1 of 2 engines") && refused.text().contains("w2"));
}

#[tokio::test(start_paused = true)]
async fn loads_are_listed() {
    let workers = ["w1", "w2"].map(Worker::new);
    workers[0]
        .loads(r#"{"loads":[{"num_running_reqs":3,"num_waiting_reqs":2,"token_usage":0.5}]}"#);
    let rig = Rig::start(&workers.each_ref(), |settings| settings.loads.always = true).await;
    rig.until("a report", |gw| gw.metrics_text().contains("smg_engine_running_requests{")).await;
    workers[0].next(script().hang());
    let mut client = rig.client();
    client.send(post("/v1/chat/completions", &[], CHAT)).await;
    workers[0].until("the request", |story| story.requests.len() == 1).await;
    let loads = rig.get("/get_loads").await.json();
    assert_eq!(loads["total"], 2);
    let [first, second] = [0, 1].map(|n| &loads["workers"][n]);
    assert_eq!((&first["worker"], &first["load"]), (&workers[0].url().into(), &1.into()));
    assert_eq!(first["engine"]["waiting_requests"], 2);
    assert_eq!(first["engine"]["token_usage"], 0.5);
    assert_eq!((&second["load"], &second["engine"]), (&0.into(), &serde_json::Value::Null));
    client.leave().await;
}

#[tokio::test(start_paused = true)]
async fn whatever_else_is_asked_for_is_404_in_json() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    for path in ["/v1/files", "/v1/messages/", "/v1/responses/", "/v1/responses/a/b", "/tokenize"] {
        rig.get(path).await.is_refusal(404, "route_not_found");
        rig.client().post(path, &[], CHAT).await.is_refusal(404, "route_not_found");
    }
    rig.get(COUNT).await.is_refusal(405, "method_not_allowed");
    assert_eq!(w.served(), 0);
    let counted = [("path", "other"), ("status_code", "404")];
    assert_eq!(rig.count("smg_http_responses_total", &counted), 10);
}
