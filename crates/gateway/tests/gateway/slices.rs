//! Chat streams whose text is cut anew (001, "Delta Re-Slicing for MiniMax Models"), and streams that are
//! kept alive while nothing comes (`--sse-keepalive-secs`).

use std::time::Duration;

use serde_json::{Value, json as value};
use smg_gateway::settings::Settings;

use super::rig::*;

const PATH: &str = "/v1/chat/completions";
const MINIMAX: &str = "MiniMax-M1";

fn ask(model: &str) -> String {
    format!(r#"{{"model":"{model}","messages":[],"stream":true}}"#)
}

fn delta(delta: Value) -> String {
    format!("data: {}\n\n", value!({"id": "c", "choices": [{"index": 0, "delta": delta}]}))
}

fn content(text: &str) -> String {
    delta(value!({"content": text}))
}

/// The `content` of each event.
fn contents(body: &str) -> Vec<String> {
    let data = body.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
    let events = data.filter_map(|data| serde_json::from_str::<Value>(data).ok());
    let text = |event: Value| Some(event["choices"][0]["delta"]["content"].as_str()?.to_owned());
    events.filter_map(text).collect()
}

async fn serving(models: &[&'static str], change: impl FnOnce(&mut Settings)) -> (Rig, Worker) {
    let w = Worker::serving("w1", models);
    let rig = Rig::start(&[&w], change).await;
    (rig, w)
}

fn tokens(count: usize) -> Vec<String> {
    (0..count).map(|_| content("x")).collect()
}

#[tokio::test(start_paused = true)]
async fn tokens_of_a_minimax_model_are_joined_and_those_of_others_are_not() {
    let (rig, w) = serving(&[MINIMAX, "other"], |settings| {
        settings.aliases.insert("fast".to_owned(), MINIMAX.to_owned());
        settings.aliases.insert("abab-alias".to_owned(), "other".to_owned());
    })
    .await;
    let said = tokens(200);
    let chunks: Vec<_> = said.iter().map(String::as_str).chain(["data: [DONE]\n\n"]).collect();
    w.usually(script().say(events(&chunks)));
    for (model, lengths) in [
        (MINIMAX, vec![80, 80, 40]),
        // The name that the client uses decides.
        ("fast", vec![1; 200]),
        ("abab-alias", vec![80, 80, 40]),
        ("other", vec![1; 200]),
    ] {
        let reply = rig.chat(&ask(model)).await;
        let texts = contents(reply.text());
        assert_eq!(texts.iter().map(String::len).collect::<Vec<_>>(), lengths, "{model}");
        assert!(reply.text().ends_with("data: [DONE]\n\n"));
        assert_eq!(reply.header("content-length"), None);
    }
    // Nor are answers to who did not ask for a stream, or of another route.
    let plain = rig.chat(&format!(r#"{{"model":"{MINIMAX}","messages":[]}}"#)).await;
    assert_eq!(contents(plain.text()).len(), 200);
    let messages = rig.client().post("/v1/messages", &[], ask(MINIMAX)).await;
    assert_eq!(contents(messages.text()).len(), 200);
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn text_leaves_when_the_worker_is_silent_and_not_before() {
    let (rig, w) = serving(&[MINIMAX], |_| {}).await;
    w.next(
        script()
            .say(events_head())
            .say(chunked(content("one ")))
            .pause(0.2)
            .say(chunked(content("two")))
            .pause(0.3)
            .say(chunked(content("three")))
            .say(chunked("data: [DONE]\n\n"))
            .say("0\r\n\r\n"),
    );
    let mut client = rig.client();
    client.send(post(PATH, &[], ask(MINIMAX))).await;
    client.head().await;
    let begun = tokio::time::Instant::now();
    let first = String::from_utf8(client.chunk().await.unwrap()).unwrap();
    assert_eq!(contents(&first), ["one two"]);
    let waited = begun.elapsed();
    assert!(
        (Duration::from_millis(440)..Duration::from_millis(470)).contains(&waited),
        "{waited:?}"
    );
    assert_eq!(contents(&client.reply_body().await), ["three"]);
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn text_that_was_held_back_precedes_the_error_of_a_stream_that_breaks() {
    let (rig, w) = serving(&[MINIMAX], |_| {}).await;
    w.next(script().say(events_head()).say(chunked(content("held"))).close());
    let reply = rig.chat(&ask(MINIMAX)).await;
    assert_eq!(contents(reply.text()), ["held"]);
    assert!(reply.text().contains("read_response_body_failed"), "{}", reply.text());
    assert_eq!(reply.ended, Ended::LastChunk);
    // Half an event is dropped with what it would have spoilt.
    w.next(script().say(events_head()).say(chunked(content("held") + "data: {")).close());
    let reply = rig.chat(&ask(MINIMAX)).await;
    assert_eq!(contents(reply.text()), ["held"]);
    assert_eq!(reply.ended, Ended::LastChunk);
    rig.is_at_rest().await;
}

fn kept_alive(settings: &mut Settings) {
    settings.sse_keepalive = Some(Duration::from_secs(15));
}

#[tokio::test(start_paused = true)]
async fn a_silent_stream_is_kept_alive_between_events() {
    for (path, frame) in [
        (PATH, ": keep-alive\n\n"),
        ("/v1/messages", "event: ping\ndata: {\"type\": \"ping\"}\n\n"),
    ] {
        let (rig, w) = serving(&[MODEL], kept_alive).await;
        let first = script().say(events_head()).say(chunked("data: 1\n\n")).pause(40.0);
        w.next(first.say(chunked("data: 2")).pause(40.0).say(chunked("\n\n")).say("0\r\n\r\n"));
        let reply = rig.client().post(path, &[], CHAT_STREAM).await;
        let told = format!("data: 1\n\n{frame}{frame}data: 2\n\n");
        assert_eq!((reply.text(), reply.ended), (&*told, Ended::LastChunk));
        rig.is_at_rest().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_whose_worker_is_slow_to_begin_is_kept_alive_too() {
    let (rig, w) = serving(&[MODEL], kept_alive).await;
    w.next(script().pause(40.0).say(events(&["data: 1\n\n"])));
    let mut client = rig.client();
    let reply = client.post(PATH, &[], CHAT_STREAM).await;
    assert_eq!(reply.text(), ": keep-alive\n\n: keep-alive\n\ndata: 1\n\n");
    assert_eq!(reply.header("content-type").as_deref(), Some("text/event-stream"));
    // Who comes in time is answered as ever, and so is who asked for no stream.
    assert!(client.post(PATH, &[], CHAT_STREAM).await.header("x-smg-routed-worker-id").is_some());
    w.next(script().pause(40.0).say(answer("503 Busy", &[], "{}")));
    assert_eq!(rig.chat(CHAT).await.status, 503);
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn what_fails_after_the_status_is_told_in_the_stream() {
    let (rig, w) = serving(&[MODEL], kept_alive).await;
    for (path, event) in [(PATH, "data: {"), ("/v1/messages", "event: error\ndata: {")] {
        w.next(script().pause(20.0).close()).next(script().pause(20.0).close());
        let reply = rig.client().post(path, &[], CHAT_STREAM).await;
        assert_eq!((reply.status, reply.ended), (200, Ended::LastChunk), "{path}");
        assert!(reply.text().contains(event), "{path}: {}", reply.text());
        assert!(reply.text().contains("call_upstream_request_error"), "{}", reply.text());
    }
    // A client that leaves takes its request along.
    w.next(script().hang());
    let mut client = rig.client();
    client.send(post(PATH, &[], CHAT_STREAM)).await;
    client.head().await;
    client.leave().await;
    w.until("it is cancelled", |story| story.open == 0).await;
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn what_comes_compressed_after_the_status_is_a_failure() {
    let (rig, w) = serving(&[MODEL], kept_alive).await;
    w.next(script().pause(20.0).say(answer("200 OK", &["content-encoding: gzip"], "packed")));
    let reply = rig.chat(CHAT_STREAM).await;
    assert_eq!((reply.status, reply.ended), (200, Ended::LastChunk));
    assert_eq!(reply.header("content-encoding"), None);
    assert!(reply.text().contains("upstream_error") && !reply.text().contains("packed"));
    rig.is_at_rest().await;
}

/// Nobody can tell its end from a failure, but that half an event is none.
#[tokio::test(start_paused = true)]
async fn a_stream_that_only_its_connection_ends_ends_between_events_or_not_at_all() {
    let (rig, w) = serving(&[MODEL], |_| {}).await;
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
    w.next(script().say(head).say("data: 1\n\n").close());
    let whole = rig.chat(CHAT_STREAM).await;
    assert_eq!((whole.text(), whole.ended), ("data: 1\n\n", Ended::LastChunk));
    w.next(script().say(head).say("data: 1\n\ndata: 2").close());
    let cut = rig.chat(CHAT_STREAM).await;
    assert_eq!((cut.text(), cut.ended), ("data: 1\n\ndata: 2", Ended::Unterminated));
    rig.is_at_rest().await;
}
