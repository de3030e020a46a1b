//! `--request-timeout-secs` bounds the whole exchange; connecting has a bound of its own.

use std::time::Duration;

use tokio::time::Instant;

use super::rig::*;

const RETRIES: &str = "smg_router_upstream_send_retries_total";

async fn start(w: &Worker) -> Rig {
    Rig::start(&[w], |settings| settings.request_timeout = Duration::from_secs(300)).await
}

async fn timed_out(rig: &Rig, w: &Worker, begun: Instant) {
    assert_eq!(begun.elapsed().as_secs(), 300);
    w.until("its connection is closed", |story| story.open == 0).await;
    assert_eq!(rig.count("smg_worker_errors_total", &[("error_type", "timeout")]), 1);
    assert_eq!((rig.count("smg_worker_errors_total", &[]), rig.count(RETRIES, &[])), (1, 0));
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_never_answers_is_a_timeout() {
    for acts in [
        script().hang(),
        Script::deaf().hang(),
        script().say("HTTP/1.1 200 OK\r\ncontent-").hang(),
        script().say("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{").hang(),
    ] {
        let w = Worker::new("w1");
        let rig = start(&w).await;
        w.next(acts);
        let begun = Instant::now();
        let reply = rig.chat(CHAT).await;
        reply.is_refusal(504, "call_upstream_timeout");
        timed_out(&rig, &w, begun).await;
        assert_eq!(rig.count("smg_router_request_errors_total", &[("error_type", "timeout")]), 1);
        assert_eq!(rig.count("smg_router_request_errors_total", &[]), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_between_events_is_told_of_its_deadline() {
    let w = Worker::new("w1");
    let rig = start(&w).await;
    w.next(script().say(events_head()).pause(299.0).say(chunked("data: 1\n\n")).hang());
    let begun = Instant::now();
    let reply = rig.chat(CHAT_STREAM).await;
    assert_eq!(reply.ended, Ended::LastChunk);
    let (first, error) = reply.text().split_once("\n\n").unwrap();
    assert_eq!(first, "data: 1");
    assert!(error.contains("call_upstream_timeout"), "{error}");
    timed_out(&rig, &w, begun).await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_within_an_event_is_cut_at_its_deadline() {
    let w = Worker::new("w1");
    let rig = start(&w).await;
    w.next(script().say(events_head()).say(chunked("data: 1")).hang());
    let begun = Instant::now();
    let reply = rig.chat(CHAT_STREAM).await;
    assert_eq!((reply.text(), reply.ended), ("data: 1", Ended::Unterminated));
    timed_out(&rig, &w, begun).await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_never_pauses_has_a_deadline_too() {
    let w = Worker::new("w1");
    let rig = start(&w).await;
    let mut drip = script().say(events_head());
    for _ in 0..400 {
        drip = drip.say(chunked("data: 1\n\n")).pause(1.0);
    }
    w.next(drip);
    let begun = Instant::now();
    let reply = rig.chat(CHAT_STREAM).await;
    assert!(reply.text().contains("call_upstream_timeout"));
    timed_out(&rig, &w, begun).await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_always_ahead_of_its_client_has_a_deadline_too() {
    let w = Worker::new("w1").narrow(4096);
    let rig = start(&w).await;
    let mut flood = script().say(events_head());
    for _ in 0..4000 {
        flood = flood.say(chunked(format!("data: {}\n\n", "x".repeat(4000))));
    }
    w.next(flood.hang());
    let mut client = rig.narrow_client(4096);
    client.send(post("/v1/chat/completions", &[], CHAT_STREAM)).await;
    client.head().await;
    let begun = Instant::now();
    while client.chunk().await.is_some_and(|chunk| !chunk.is_empty()) {
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(begun.elapsed().as_secs() < 1000, "the stream outlives its deadline");
    }
    w.until("its connection is closed", |story| story.open == 0).await;
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_dial_that_never_ends_is_bounded() {
    for (connect, request, waited) in [(10, 300, 10), (10, 4, 4)] {
        let w = Worker::new("w1");
        let rig = Rig::start(&[&w], |settings| {
            settings.connections.connect_timeout = Duration::from_secs(connect);
            settings.request_timeout = Duration::from_secs(request);
        })
        .await;
        w.door(Door::Silent);
        let begun = Instant::now();
        rig.chat(CHAT).await.is_refusal(504, "call_upstream_timeout");
        assert_eq!(begun.elapsed().as_secs(), waited);
        assert_eq!(rig.count(RETRIES, &[]), 0);
        rig.is_at_rest().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_that_never_ends_is_given_up_after_half_a_minute() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    for pause in [0.0, 1.0] {
        let mut client = rig.client();
        client.send("POST /v1/chat/completions HTTP/1.1\r\nx-slow: ").await;
        let begun = Instant::now();
        // A byte now and then is no progress worth waiting for.
        while pause > 0.0 && client.try_send("a").await && begun.elapsed().as_secs() < 99 {
            later(pause).await;
        }
        client.sees_the_end().await;
        assert!((30..=32).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    }
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn neither_an_idle_connection_nor_a_body_nor_an_answer_is_a_head() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    w.usually(script().pause(100.0).say(json("{}")));
    let mut client = rig.client();
    for _ in 0..2 {
        // A head in two pieces, a body in two pieces, a slow answer, an idle hour.
        let request = post("/v1/chat/completions", &[], CHAT);
        let (head, body) = request.split_at(request.len() - CHAT.len());
        for (piece, pause) in
            [(&head[..9], 20.0), (&head[9..], 100.0), (&body[..9], 100.0), (&body[9..], 0.0)]
        {
            client.send(piece).await;
            later(pause).await;
        }
        assert_eq!(client.reply().await.status, 200);
        later(3600.0).await;
        // Answers that are ready at once, and one without anything to wait for.
        for path in ["/health", "/v1/models", "/nowhere"] {
            assert_ne!(client.get(path).await.status, 0);
            later(3600.0).await;
        }
    }
}
