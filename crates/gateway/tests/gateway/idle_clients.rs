//! Clients that keep a connection and say nothing, or take their time to say it.

use super::rig::*;
use std::time::Duration;
use tokio::time::Instant;

const HEAD: &str = "GET /health HTTP/1.1\r\nhost: gw\r\n\r\n";

async fn start(w: &Worker, head: u64, idle: u64) -> Rig {
    let unless_zero = |secs| (secs > 0).then_some(Duration::from_secs(secs));
    Rig::start(&[w], |settings| {
        settings.clients.header_timeout = unless_zero(head);
        settings.clients.idle_timeout = unless_zero(idle);
    })
    .await
}

/// Seconds until the gateway closes.
async fn closes_after(client: Client) -> u64 {
    let begun = Instant::now();
    client.sees_the_end().await;
    begun.elapsed().as_secs()
}

#[tokio::test(start_paused = true)]
async fn a_head_has_its_time_from_its_first_byte() {
    let w = Worker::new("w1");
    let rig = start(&w, 30, 100).await;
    let mut silent = rig.client();
    silent.send("G").await;
    assert_eq!(closes_after(silent).await, 30);
    let mut slow = rig.client();
    assert_eq!(slow.get("/health").await.status, 200);
    later(70.0).await;
    let begun = Instant::now();
    for byte in HEAD.bytes() {
        if !slow.try_send([byte]).await {
            break;
        }
        later(7.0).await;
    }
    assert!(begun.elapsed().as_secs() < 60);
    assert_eq!(closes_after(slow).await, 0);
}

#[tokio::test(start_paused = true)]
async fn an_idle_client_is_closed_and_a_busy_one_never() {
    let w = Worker::new("w1");
    let rig = start(&w, 30, 100).await;
    let mut client = rig.client();
    for pause in [99.0, 250.0] {
        w.next(script().pause(1000.0).say(json("{}")));
        assert_eq!(client.post("/v1/chat/completions", &[], CHAT).await.status, 200);
        if pause < 100.0 {
            later(pause).await;
        }
    }
    assert_eq!(closes_after(client).await, 100);
    // Who has not asked anything yet has as long as for a head.
    assert_eq!(closes_after(rig.client()).await, 30);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_never_asks_is_closed_even_if_idle_ones_may_stay() {
    let w = Worker::new("w1");
    let rig = start(&w, 30, 0).await;
    let (silent, late, mut asked) = (rig.client(), rig.client(), rig.client());
    assert_eq!(asked.get("/health").await.status, 200);
    assert_eq!(closes_after(silent).await, 30);
    late.sees_the_end().await;
    later(10_000.0).await;
    assert_eq!(asked.get("/health").await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn without_bounds_a_connection_stays() {
    let w = Worker::new("w1");
    let rig = start(&w, 0, 0).await;
    let mut client = rig.client();
    for _ in 0..3 {
        later(10_000.0).await;
        assert_eq!(client.get("/health").await.status, 200);
    }
}
