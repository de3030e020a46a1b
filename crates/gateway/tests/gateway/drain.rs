//! Leaving: nobody is cut off, nobody new is let in.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::rig::*;

fn drain(rig: &Rig, secs: u64) -> JoinHandle<bool> {
    let gw = Arc::clone(&rig.gw);
    tokio::spawn(async move { gw.drain(Duration::from_secs(secs)).await })
}

#[tokio::test(start_paused = true)]
async fn a_running_stream_ends_and_then_the_drain_does() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    w.next(
        script().say(events_head()).pause(20.0).say(chunked("data: [DONE]\n\n")).say("0\r\n\r\n"),
    );
    let mut client = rig.client();
    client.send(post("/v1/chat/completions", &[], CHAT_STREAM)).await;
    client.head().await;
    let begun = Instant::now();
    let drained = drain(&rig, 30);
    assert_eq!(client.chunk().await.unwrap(), b"data: [DONE]\n\n");
    assert_eq!(client.chunk().await.unwrap(), b"");
    client.sees_the_end().await;
    assert!(within("the drain ends", drained).await.unwrap());
    assert_eq!(begun.elapsed().as_secs(), 20);
    assert_eq!(rig.gw.connections(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_head_was_read_is_answered() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    w.next(script().pause(5.0).say(json("{}")));
    let mut client = rig.client();
    client.send(post("/v1/chat/completions", &[], CHAT)).await;
    w.until("it is there", |story| story.requests.len() == 1).await;
    let drained = drain(&rig, 30);
    let reply = client.reply().await;
    assert_eq!((reply.status, reply.header("connection").as_deref()), (200, Some("close")));
    assert!(within("the drain ends", drained).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn idle_connections_are_closed_at_once() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let mut used = rig.client();
    assert_eq!(used.post("/v1/chat/completions", &[], CHAT).await.status, 200);
    let silent = rig.client();
    settle().await;
    let begun = Instant::now();
    let drained = drain(&rig, 30);
    used.sees_the_end().await;
    silent.sees_the_end().await;
    assert!(within("the drain ends", drained).await.unwrap());
    assert!(begun.elapsed().is_zero());
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_lasts_longer_than_the_grace_ends_the_wait() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    w.next(script().say(events_head()).hang());
    let mut client = rig.client();
    client.send(post("/v1/chat/completions", &[], CHAT_STREAM)).await;
    client.head().await;
    let begun = Instant::now();
    assert!(!drain(&rig, 30).await.unwrap());
    assert_eq!((begun.elapsed().as_secs(), rig.gw.connections()), (30, 1));
}

/// Often, since a connection that comes while the gateway leaves must not depend on luck.
#[tokio::test(start_paused = true)]
async fn who_comes_while_it_drains_is_told_so() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    w.next(script().say(events_head()).hang());
    let mut holds = rig.client();
    holds.send(post("/v1/chat/completions", &[], CHAT_STREAM)).await;
    holds.head().await;
    let _drained = drain(&rig, 3000);
    settle().await;
    for n in 0..40 {
        let mut client = rig.client();
        if n % 2 == 0 {
            // Connected a while before it asks, as over a real network.
            settle().await;
        }
        let reply = client.post("/v1/chat/completions", &[], CHAT).await;
        reply.is_refusal(503, "gateway_draining");
        assert_eq!(reply.header("retry-after").as_deref(), Some("1"));
        assert_eq!(reply.header("connection").as_deref(), Some("close"));
        client.sees_the_end().await;
        let reply = rig.get("/readiness").await;
        assert_eq!((reply.status, &reply.json()["reason"]), (503, &"draining".into()));
        for path in ["/health", "/liveness", "/v1/models"] {
            assert_eq!(rig.get(path).await.status, 200);
        }
    }
    assert_eq!(w.served(), 1);
}

#[tokio::test(start_paused = true)]
async fn who_connects_while_it_drains_and_says_nothing_does_not_hold_it() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    w.next(script().say(events_head()).pause(5.0).say("0\r\n\r\n"));
    let mut client = rig.client();
    client.send(post("/v1/chat/completions", &[], CHAT_STREAM)).await;
    client.head().await;
    let begun = Instant::now();
    let drained = drain(&rig, 30);
    settle().await;
    let _silent = rig.client();
    settle().await;
    assert_eq!(client.chunk().await.unwrap(), b"");
    assert!(within("the drain ends", drained).await.unwrap());
    assert_eq!(begun.elapsed().as_secs(), 5);
}

/// Many times, since which of the two is seen first must not depend on luck.
#[tokio::test(start_paused = true)]
async fn a_request_that_came_just_before_the_signal_is_answered() {
    let w = Worker::new("w1");
    for used in [false, true].repeat(20) {
        let rig = Rig::start(&[&w], |_| {}).await;
        let mut client = rig.client();
        if used {
            assert_eq!(client.get("/health").await.status, 200);
        }
        settle().await;
        client.send(post("/v1/chat/completions", &[], CHAT)).await;
        rig.gw.drain(Duration::ZERO).await;
        client.reply().await.is_refusal(503, "gateway_draining");
        client.sees_the_end().await;
    }
}

/// Half a head, whether it came alone or behind a request that was answered, is nobody's request.
#[tokio::test(start_paused = true)]
async fn half_a_head_does_not_hold_it_up() {
    for before in ["", "\r\n", "GET /health HTTP/1.1\r\nhost: gw\r\n\r\n"] {
        let w = Worker::new("w1");
        let rig = Rig::start(&[&w], |_| {}).await;
        let mut client = rig.client();
        client.send(format!("{before}POST /v1/chat")).await;
        settle().await;
        let begun = Instant::now();
        let drained = drain(&rig, 3000);
        assert!(within("the drain ends", drained).await.unwrap(), "{before:?}");
        assert!(begun.elapsed().as_secs() <= 30, "{before:?}: {:?}", begun.elapsed());
    }
}
