//! Request bodies that go to the worker as they arrive (001, "How the Router Decides" and "Stalled and
//! Aborted Uploads").

use std::time::Duration;

use smg_gateway::settings::{BreakerRules, PolicyName, Settings};

use super::rig::*;

pub(crate) const PATH: &str = "/v1/chat/completions";

pub(crate) const KEY: &str = "x-smg-routing-key";

/// Retries off, so that every eligible body streams.
pub(crate) fn flows(settings: &mut Settings) {
    settings.bodies.model_selection = false;
    settings.bodies.stall = Some(Duration::from_secs(300));
}

/// The head of a POST that announces so many bytes.
pub(crate) fn head(length: usize) -> String {
    format!("POST {PATH} HTTP/1.1\r\nhost: gw\r\ncontent-length: {length}\r\n\r\n")
}

pub(crate) fn plans(rig: &Rig, path: &str, reason: &str) -> i64 {
    rig.count("smg_router_request_body_path_total", &[("path", path), ("reason", reason)])
}

/// One plan was made, and this is it.
pub(crate) fn only(rig: &Rig, path: &str, reason: &str) -> bool {
    let all = rig.count("smg_router_request_body_path_total", &[]);
    (all, plans(rig, path, reason)) == (1, 1)
}

#[tokio::test(start_paused = true)]
async fn the_worker_gets_the_clients_bytes_in_chunks_while_they_arrive() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], flows).await;
    let body = "{ not json, and nobody here reads it \u{e9} ";
    let (first, second) = body.as_bytes().split_at(10);
    let mut client = rig.client();
    client.send(head(body.len())).await;
    w.until("the head is there before any byte of the body", |story| story.requests.len() == 1)
        .await;
    client.send(first).await;
    w.until("the first half is there", |story| story.requests[0].body == first).await;
    assert!(only(&rig, "streamed", "pure_forward"));
    client.send(second).await;
    let reply = client.reply().await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("x-smg-routed-worker-id").as_deref(), Some(w.url()));
    assert_eq!(reply.header("connection"), None, "the client may go on");
    assert_eq!((w.last().body, w.last().whole), (body.as_bytes().to_vec(), true));
    for (name, value) in [
        ("content-type", &["application/json"][..]),
        ("transfer-encoding", &["chunked"]),
        ("content-length", &[]),
    ] {
        assert_eq!(w.last().header(name), value);
    }
    // The model was never read, nor whether a stream was asked for.
    let labels = [("model", "unknown"), ("streaming", "false"), ("endpoint", "chat")];
    assert_eq!(rig.count("smg_router_requests_total", &labels), 1);
    assert_eq!(client.post(PATH, &[], CHAT).await.status, 200);
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_streamed_request_is_sent_once_and_its_answer_relayed_as_it_comes() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |settings| {
        flows(settings);
        settings.retry.attempts = 5;
        settings.bodies.max_buffered = 10;
    })
    .await;
    w.next(script().say(answer("503 Busy", &[], "later")));
    assert_eq!((rig.chat(CHAT).await.status, w.served()), (503, 1));
    assert!(only(&rig, "streamed", "retry_forfeited"));
    w.next(script().say(events_head()).say(chunked("data: 1\n\n")).hang());
    let mut client = rig.client();
    client.send(post(PATH, &[], CHAT_STREAM)).await;
    client.head().await;
    assert_eq!(client.chunk().await.as_deref(), Some(&b"data: 1\n\n"[..]));
    client.leave().await;
    rig.is_at_rest().await;
}

/// The worker may have begun on it, and nobody has the bytes a second time.
#[tokio::test(start_paused = true)]
async fn an_answer_that_never_begins_is_not_asked_for_again() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], flows).await;
    w.next(script().close());
    let reply = rig.chat(CHAT).await;
    reply.is_refusal(500, "call_upstream_request_error");
    assert_eq!(w.served(), 1);
    assert_eq!(rig.count("smg_router_upstream_send_retries_total", &[]), 0);
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_client_does_to_its_upload_is_answered_and_never_held_against_the_worker() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |settings| {
        flows(settings);
        settings.breaker = BreakerRules { failures: Some(1), successes: 1, timeout_ms: 60_000 };
    })
    .await;
    let mut stalled = rig.client();
    stalled.send(head(100)).await.send("{").await;
    later(299.0).await;
    // Every byte starts the clock anew.
    stalled.send("}").await;
    later(299.0).await;
    assert_eq!(w.now(|story| story.open), 1);
    let reply = stalled.reply().await;
    reply.is_refusal(408, "request_body_stalled");
    assert_eq!(reply.header("connection").as_deref(), Some("close"));
    w.until("its upload is broken off", |story| story.open == 0).await;
    assert!(!w.last().whole);

    let mut leaving = rig.client();
    leaving.send(head(100)).await.send("{").await;
    w.until("the second is there", |story| story.requests.len() == 2).await;
    leaving.leave().await;
    w.until("so is its upload", |story| story.open == 0).await;
    assert!(!w.last().whole);

    let outcomes = rig.count("smg_worker_cb_outcomes_total", &[("outcome", "failure")]);
    assert_eq!(outcomes, 0);
    assert_eq!(rig.chat(CHAT).await.status, 200);
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn the_clock_stands_still_while_the_worker_reads_nothing_and_after_the_last_byte() {
    let w = Worker::new("w1").narrow(1024);
    let rig = Rig::start(&[&w], flows).await;
    let body = "x".repeat(200_000);
    w.next(Script::deaf().pause(400.0).read().pause(400.0).say(json("{}")));
    let mut client = rig.narrow_client(1024);
    client.send(head(body.len())).await;
    client.send(&body).await;
    assert_eq!(client.reply().await.status, 200);
    assert_eq!(w.last().body.len(), body.len());
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_before_the_upload_has_ended_is_passed_on_and_ends_the_connection() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], flows).await;
    w.next(Script::deaf().say(answer("413 Too Much", &[], "no")).hang());
    let mut client = rig.client();
    client.send(head(1_000_000)).await.send("{").await;
    let reply = client.reply().await;
    assert_eq!((reply.status, reply.text()), (413, "no"));
    assert_eq!(reply.header("connection").as_deref(), Some("close"));
    w.until("the upload is broken off", |story| story.open == 0).await;
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn what_streams_stays_compressed_and_what_is_read_does_not() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], flows).await;
    rig.chat_with(&[("content-encoding", "br")], "whatever").await;
    assert_eq!(w.last().header("content-encoding"), ["br"]);
    let reading = Rig::start(&[&w], |_| {}).await;
    let reply = reading.chat_with(&[("content-encoding", "br")], "whatever").await;
    reply.is_refusal(415, "unsupported_content_encoding");
    let reply = reading.chat_with(&[("content-encoding", "gzip")], CHAT).await;
    reply.is_refusal(400, "invalid_content_encoding");
    // {"messages":[]} as one stored block.
    let mut packed = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff, 1, 15, 0, 0xf0, 0xff];
    packed.extend(br#"{"messages":[]}"#);
    packed.extend([0x91, 0xc3, 0x30, 0x00, 15, 0, 0, 0]);
    let mut client = reading.client();
    let reply = client.post(PATH, &[("content-encoding", "gzip")], packed).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(w.last().body, br#"{"messages":[]}"#);
    assert_eq!(w.last().header("content-encoding"), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn nobody_to_send_to_or_a_fleet_that_needs_the_body_read_makes_it_buffered() {
    let none = Rig::start(&[], flows).await;
    none.chat(CHAT).await.is_refusal(404, "model_not_found");
    assert!(only(&none, "buffered", "no_available_worker"));

    let (a, b) = (Worker::new("w1"), Worker::serving("w2", &["other"]));
    let two = Rig::start(&[&a, &b], flows).await;
    assert_eq!(two.chat(CHAT).await.status, 200);
    assert!(only(&two, "buffered", "model_ambiguous"));

    let reading = Rig::start(&[&a], |settings| {
        flows(settings);
        settings.placement.policy = PolicyName::CacheAware;
    })
    .await;
    assert_eq!(reading.chat(CHAT).await.status, 200);
    assert!(only(&reading, "buffered", "policy_needs_text"));
    assert_eq!(
        reading.count("smg_router_request_buffers_released_early_bytes_total", &[]),
        CHAT.len() as i64
    );
    assert_eq!(reading.chat_with(&[("x-smg-routing-tokens", "1,2")], CHAT).await.status, 200);
    assert_eq!(plans(&reading, "streamed", "pure_forward"), 1);

    let selecting = Rig::start(&[&a], |settings| settings.bodies.model_selection = true).await;
    assert_eq!(selecting.chat(CHAT).await.status, 200);
    assert!(only(&selecting, "buffered", "model_selection"));
}

/// A request that waits for its turn is held against the fleet as it is when its turn comes.
#[tokio::test(start_paused = true)]
async fn a_fleet_that_changes_while_a_streamed_request_waits_is_noticed() {
    let (a, b) = (Worker::new("w1"), Worker::serving("w2", &["other"]));
    let rig = Rig::unready(&[&a, &b], |settings| {
        flows(settings);
        settings.workers.truncate(1);
        settings.admission = Some(smg_gateway::settings::AdmissionRules {
            limit: 1,
            queue: 10,
            wait_ms: 1_000_000,
            rate: None,
        });
    });
    rig.until("the first has registered", |gw| gw.workers() == (1, 1)).await;
    a.next(script().pause(100.0).say(json("{}")));
    let mut first = rig.client();
    first.send(post(PATH, &[], CHAT)).await;
    a.until("the first is there", |story| story.requests.len() == 1).await;
    let mut second = rig.client();
    second.send(post(PATH, &[], CHAT)).await;
    settle().await;
    rig.ask("POST", "/workers", &format!(r#"{{"url":"{}"}}"#, b.url())).await;
    rig.until("it has registered", |gw| gw.workers() == (2, 2)).await;
    assert_eq!(first.reply().await.status, 200);
    assert_eq!(second.reply().await.status, 200);
    assert_eq!(plans(&rig, "buffered", "model_ambiguous"), 1);
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_vendor_gets_the_clients_own_key_and_pins_nothing() {
    let vendor = Worker::serving("vendor", &[]);
    let rig = Rig::start(&[&vendor], |settings| {
        settings.startup.external = true;
        settings.sticky = sticky();
        settings.access.api_key = "house".parse().ok();
    })
    .await;
    let send = |key: &'static str| {
        let headers =
            [("authorization", key), ("x-api-key", "house"), ("openai-organization", "org")];
        let rig = &rig;
        async move { rig.client().post(PATH, &[&headers[..], &[(KEY, "k")]].concat(), CHAT).await }
    };
    assert_eq!(send("Bearer theirs").await.status, 200);
    assert_eq!(vendor.last().header("authorization"), ["Bearer theirs"]);
    assert_eq!(vendor.last().header("openai-organization"), ["org"]);
    assert_eq!(vendor.last().header("x-api-key"), [""; 0]);
    assert_eq!(send("Bearer house").await.status, 200);
    assert_eq!(vendor.last().header("authorization"), [""; 0], "the gateway's key stays here");
    assert_eq!(plans(&rig, "buffered", "openai"), 2);
    assert_eq!(rig.count("smg_manual_policy_branch_total", &[]), 0);
    assert_eq!(vendor.now(|story| story.probed.len()), 0, "nothing is asked of a vendor");
    rig.is_at_rest().await;
}
