//! Retries and circuit breakers, from outside.

use std::time::Duration;

use smg_gateway::Settings;
use smg_gateway::settings::BreakerRules;

use super::rig::*;

fn retries(settings: &mut Settings) {
    settings.sticky = sticky();
    settings.retry.attempts = 3;
}

fn status(code: u16, headers: &str) -> Script {
    script().say(format!(
        "HTTP/1.1 {code} Told\r\n{headers}content-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}"
    ))
}

/// Asks as the conversation `k` and says who answered, with what.
async fn turn(rig: &Rig) -> (u16, String) {
    let reply = rig.chat(r#"{"model":"m","messages":[],"rid":"k_t1"}"#).await;
    (reply.status, reply.worker())
}

#[tokio::test(start_paused = true)]
async fn a_busy_worker_is_avoided_once_and_keeps_its_conversation() {
    for busy in [408, 429, 503] {
        let (a, b) = (Worker::new("w1"), Worker::new("w2"));
        let rig = Rig::start(&[&a, &b], retries).await;
        let (_, home) = turn(&rig).await;
        let pinned = if home == "w1" { &a } else { &b };
        pinned.next(status(busy, "retry-after: 7\r\n"));
        let (code, elsewhere) = turn(&rig).await;
        assert_eq!(code, 200, "{busy}");
        assert_ne!(elsewhere, home, "{busy}");
        assert_eq!(turn(&rig).await, (200, home), "{busy}: the pin did not move");
        rig.is_at_rest().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_broken_worker_loses_its_conversation() {
    for broken in [status(502, ""), status(500, ""), script().say("garbage\r\n\r\n")] {
        let (a, b) = (Worker::new("w1"), Worker::new("w2"));
        let rig = Rig::start(&[&a, &b], retries).await;
        let (_, home) = turn(&rig).await;
        let pinned = if home == "w1" { &a } else { &b };
        pinned.next(broken);
        let (code, elsewhere) = turn(&rig).await;
        assert_eq!(code, 200);
        assert_ne!(elsewhere, home);
        assert_eq!(turn(&rig).await, (200, elsewhere), "the pin moved");
        rig.is_at_rest().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_poisoned_prompt_visits_two_workers_at_most() {
    let workers = ["w1", "w2", "w3"].map(Worker::new);
    let rig = Rig::start(&workers.each_ref(), retries).await;
    for worker in &workers {
        worker.next(status(500, ""));
    }
    assert_eq!(turn(&rig).await.0, 500);
    assert_eq!(workers.iter().map(Worker::served).sum::<usize>(), 2);
    assert_eq!(rig.count("smg_worker_retries_total", &[("endpoint", "chat")]), 1);
}

#[tokio::test(start_paused = true)]
async fn a_lone_worker_is_asked_again_as_late_as_it_says_or_not_at_all() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], retries).await;
    let began = tokio::time::Instant::now();
    w.next(status(429, "retry-after: 7\r\n"));
    assert_eq!(turn(&rig).await.0, 200);
    assert!(began.elapsed() >= Duration::from_secs(7));
    for late in ["31", "99999999999999999999"] {
        w.next(status(429, &format!("retry-after: {late}\r\n")));
        let reply = rig.chat(CHAT).await;
        assert_eq!((reply.status, reply.header("retry-after").as_deref()), (429, Some(late)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_comes_as_an_event_stream_is_a_failure() {
    for code in [500, 502, 503, 504] {
        let (a, b) = (Worker::new("w1"), Worker::new("w2"));
        let rig = Rig::start(&[&a, &b], |settings| {
            retries(settings);
            settings.breaker = BreakerRules { failures: Some(1), successes: 1, timeout_ms: 60_000 };
        })
        .await;
        let (_, home) = turn(&rig).await;
        let pinned = if home == "w1" { &a } else { &b };
        let body = "data: {\"error\":1}\n\n";
        let kind = ["content-type: text/event-stream"];
        pinned.next(script().say(answer(&format!("{code} Told"), &kind, body)));
        let (answered, elsewhere) = turn(&rig).await;
        assert_eq!(answered, 200, "{code}");
        assert_ne!(elsewhere, home, "{code}");
        let worker = ("worker", pinned.url());
        assert_eq!(rig.count("smg_worker_cb_state", &[worker]), 1, "{code}");
        let failed = [worker, ("outcome", "failure")];
        assert_eq!(rig.count("smg_worker_cb_outcomes_total", &failed), 1, "{code}");
        rig.is_at_rest().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_stream_that_goes_on_is_waited_for_and_passed_on_whole() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let head = events_head().replace("200 OK", "400 Bad Request");
    w.next(script().say(head).pause(5.0).say(chunked("data: {\"error\":1}\n\n")).say("0\r\n\r\n"));
    let reply = rig.chat(CHAT_STREAM).await;
    assert_eq!((reply.status, reply.text()), (400, "data: {\"error\":1}\n\n"));
    assert_eq!(reply.header("content-type").as_deref(), Some("text/event-stream"));
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn our_own_timeout_is_never_retried() {
    let (a, b) = (Worker::new("w1"), Worker::new("w2"));
    let rig = Rig::start(&[&a, &b], retries).await;
    a.next(script().hang());
    b.next(script().hang());
    let reply = rig.chat(CHAT).await;
    assert_eq!(reply.status, 504);
    assert_eq!(a.served() + b.served(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_last_answer_is_passed_on_as_it_came() {
    let (a, b) = (Worker::new("w1"), Worker::new("w2"));
    let rig = Rig::start(&[&a, &b], retries).await;
    for worker in [&a, &b, &a, &b] {
        worker.next(status(503, "x-why: busy\r\n"));
    }
    let reply = rig.chat(CHAT).await;
    assert_eq!((reply.status, reply.header("x-why").as_deref()), (503, Some("busy")));
    assert_eq!(a.served() + b.served(), 3);
    assert_eq!(rig.count("smg_worker_retries_exhausted_total", &[("endpoint", "chat")]), 1);
    let unavailable = [("error_type", "unavailable")];
    assert_eq!(rig.count("smg_router_request_errors_total", &unavailable), 1);
}

#[tokio::test(start_paused = true)]
async fn an_open_breaker_moves_conversations_and_closes_again() {
    let (a, b) = (Worker::new("w1"), Worker::new("w2"));
    let rig = Rig::start(&[&a, &b], |settings| {
        settings.sticky = sticky();
        settings.breaker = BreakerRules { failures: Some(1), successes: 1, timeout_ms: 2000 };
    })
    .await;
    let (_, home) = turn(&rig).await;
    let pinned = if home == "w1" { &a } else { &b };
    let state = || rig.count("smg_worker_cb_state", &[("worker", pinned.url())]);
    pinned.next(status(500, ""));
    assert_eq!(turn(&rig).await, (500, home.clone()));
    assert_eq!(state(), 1);
    let (code, elsewhere) = turn(&rig).await;
    assert_eq!(code, 200);
    assert_ne!(elsewhere, home);
    tokio::time::advance(Duration::from_secs(3)).await;
    assert_eq!(turn(&rig).await.1, elsewhere, "delegate: the replacement leads");
    // Round robin gives the half-open worker its probe.
    for _ in 0..2 {
        assert_eq!(rig.chat(CHAT).await.status, 200);
    }
    assert_eq!(state(), 0);
    assert_eq!(rig.count("smg_worker_cb_transitions_total", &[("from", "half_open")]), 1);
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn clients_that_leave_and_refused_requests_open_no_breaker() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |settings| {
        settings.breaker = BreakerRules { failures: Some(1), successes: 1, timeout_ms: 60_000 };
    })
    .await;
    for told in [status(400, ""), status(429, ""), status(503, "retry-after: 1\r\n")] {
        w.next(told);
        rig.chat(CHAT).await;
    }
    w.next(script().hang());
    let mut client = rig.client();
    client.send(post("/v1/chat/completions", &[], CHAT)).await;
    settle().await;
    client.leave().await;
    settle().await;
    assert_eq!(rig.chat(CHAT).await.status, 200);
    assert_eq!(rig.count("smg_worker_cb_state", &[("worker", w.url())]), 0);
}
