//! `--max-concurrent-requests`: who runs, who waits, who is sent away, and what comes back when
//! somebody leaves.

use super::rig::*;
use smg_gateway::settings::AdmissionRules;

const INFLIGHT: &str = "smg_admission_inflight";
const DEPTH: &str = "smg_admission_queue_depth";
const RESULT: &str = "smg_http_rate_limit_total";
const REJECTED: &str = "smg_admission_queue_rejected_total";
const CHAT_PATH: &str = "/v1/chat/completions";

fn rules(limit: u32, queue: u32) -> AdmissionRules {
    AdmissionRules { limit, queue, wait_ms: 60_000, rate: None }
}

async fn start(w: &Worker, rules: AdmissionRules) -> Rig {
    Rig::start(&[w], |settings| settings.admission = Some(rules)).await
}

/// A client whose request is on its way.
async fn ask(rig: &Rig, body: &str) -> Client {
    let mut client = rig.client();
    client.send(post(CHAT_PATH, &[], body)).await;
    settle().await;
    client
}

/// Permits held and places taken.
fn held(rig: &Rig) -> (i64, i64) {
    (rig.count(INFLIGHT, &[]), rig.count(DEPTH, &[]))
}

async fn all_is_given_back(rig: &Rig) {
    rig.is_at_rest().await;
    assert_eq!(held(rig), (0, 0));
    assert_eq!(rig.chat(CHAT).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn one_runs_one_waits_and_one_is_sent_away() {
    let w = Worker::new("w1");
    let rig = start(&w, rules(1, 1)).await;
    w.next(script().pause(30.0).say(json("{}")));
    let (mut first, mut second) = (ask(&rig, CHAT).await, ask(&rig, CHAT).await);
    assert_eq!((held(&rig), w.served()), ((1, 1), 1));
    let reply = rig.chat(CHAT).await;
    reply.is_refusal(429, "admission_queue_full");
    assert_eq!(reply.header("retry-after").as_deref(), Some("2"));
    assert_eq!((first.reply().await.status, second.reply().await.status), (200, 200));
    assert_eq!(rig.count(RESULT, &[("result", "allowed")]), 2);
    assert_eq!(rig.count(RESULT, &[("result", "rejected")]), 1);
    assert_eq!(rig.count(REJECTED, &[("reason", "full")]), 1);
    all_is_given_back(&rig).await;
}

#[tokio::test(start_paused = true)]
async fn who_waits_too_long_is_told_so() {
    let w = Worker::new("w1");
    let rig = start(&w, rules(1, 5)).await;
    w.next(script().pause(90.0).say(json("{}")));
    let mut first = ask(&rig, CHAT).await;
    let begun = tokio::time::Instant::now();
    let reply = rig.chat(CHAT).await;
    reply.is_refusal(503, "admission_queue_timeout");
    assert_eq!(reply.header("retry-after").as_deref(), Some("2"));
    assert_eq!(begun.elapsed().as_secs(), 60);
    assert_eq!((held(&rig), rig.count(REJECTED, &[("reason", "timeout")])), ((1, 0), 1));
    assert_eq!(first.reply().await.status, 200);
    all_is_given_back(&rig).await;
}

#[tokio::test(start_paused = true)]
async fn first_come_first_served() {
    let w = Worker::new("w1");
    let rig = start(&w, rules(1, 10)).await;
    w.usually(script().pause(1.0).say(json("{}")));
    let mut clients = Vec::new();
    for n in 0..5 {
        clients.push(ask(&rig, &format!(r#"{{"model":"m","messages":[],"n":{n}}}"#)).await);
    }
    for client in &mut clients {
        assert_eq!(client.reply().await.status, 200);
    }
    let order: Vec<_> = w.now(|s| s.requests.iter().map(|r| r.body[r.body.len() - 2]).collect());
    assert_eq!(order, b"01234");
}

#[tokio::test(start_paused = true)]
async fn a_stream_holds_its_permit_to_its_last_byte() {
    let w = Worker::new("w1");
    let rig = start(&w, rules(1, 0)).await;
    let event = chunked("data: 1\n\n");
    w.next(script().say(events_head()).say(&event).pause(30.0).say(&event).say("0\r\n\r\n"));
    let mut client = ask(&rig, CHAT_STREAM).await;
    client.head().await;
    client.chunk().await;
    rig.chat(CHAT).await.is_refusal(429, "admission_queue_full");
    assert_eq!(client.reply_body().await, "data: 1\n\n");
    all_is_given_back(&rig).await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_gives_back_its_place_or_its_permit() {
    let w = Worker::new("w1");
    let rig = start(&w, rules(1, 2)).await;
    w.next(script().hang());
    let running = ask(&rig, CHAT).await;
    let (one, other) = (ask(&rig, CHAT).await, ask(&rig, CHAT).await);
    assert_eq!(held(&rig), (1, 2));
    one.leave().await;
    assert_eq!(held(&rig), (1, 1));
    // The next in the queue is not held up by the one that has left.
    w.next(script().say(events_head()).hang());
    running.leave().await;
    w.until("the next one runs", |story| story.requests.len() == 2).await;
    assert_eq!(held(&rig), (1, 0));
    other.leave().await;
    all_is_given_back(&rig).await;
    assert_eq!(rig.count(REJECTED, &[]), 0);
}

#[tokio::test(start_paused = true)]
async fn a_refused_request_holds_nothing_and_other_routes_need_no_permit() {
    let w = Worker::new("w1");
    let rig = start(&w, rules(1, 0)).await;
    rig.chat("{").await.is_refusal(400, "invalid_json");
    rig.chat(r#"{"model":"x","messages":[]}"#).await.is_refusal(404, "model_not_found");
    assert_eq!(held(&rig), (0, 0));
    w.next(script().hang());
    let running = ask(&rig, CHAT).await;
    assert_eq!(rig.get("/health").await.status, 200);
    assert_eq!(rig.get("/v1/models").await.status, 200);
    running.leave().await;
    all_is_given_back(&rig).await;
}

#[tokio::test(start_paused = true)]
async fn a_rate_lets_a_burst_in_and_then_one_after_the_other() {
    let w = Worker::new("w1");
    let rig = start(&w, AdmissionRules { rate: Some(1), ..rules(2, 0) }).await;
    for status in [200, 200, 429] {
        assert_eq!(rig.chat(CHAT).await.status, status);
    }
    later(1.0).await;
    assert_eq!((rig.chat(CHAT).await.status, rig.chat(CHAT).await.status), (200, 429));
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_token_and_leaves_gives_it_back() {
    let w = Worker::new("w1");
    let rig = start(&w, AdmissionRules { rate: Some(1), ..rules(2, 5) }).await;
    for _ in 0..2 {
        assert_eq!(rig.chat(CHAT).await.status, 200);
    }
    let begun = tokio::time::Instant::now();
    let leaving = ask(&rig, CHAT).await;
    assert_eq!(held(&rig), (0, 1));
    leaving.leave().await;
    assert_eq!(held(&rig), (0, 0));
    assert_eq!(rig.chat(CHAT).await.status, 200);
    assert_eq!(begun.elapsed().as_millis(), 1000);
    assert_eq!(rig.chat(CHAT).await.status, 200);
    assert_eq!(begun.elapsed().as_millis(), 2000);
}
