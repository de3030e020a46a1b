//! Workers whose HTTP/2 goes wrong below their answers.

use h2::Reason;
use tokio::time::Instant;

use super::super::rig::*;

/// A gateway under `--upstream-http2` and a worker that speaks it, on the connection of its first answer.
async fn start() -> (Rig, Worker, Tongue) {
    let (w, tongue) = (Worker::new("w1"), Tongue::new(100));
    w.speaks(&tongue);
    let rig = Rig::start(&[&w], |settings| settings.startup.http2 = true).await;
    assert_eq!(rig.chat(CHAT).await.status, 200);
    (rig, w, tongue)
}

fn ping(payload: &[u8; 8]) -> Vec<u8> {
    [frame(8, 6, 0, 0), payload.to_vec()].concat()
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_pings_is_answered() {
    let (rig, _w, tongue) = start().await;
    let begun = Instant::now();
    for payload in [b"pingpong", b"oncemore"] {
        assert!(tongue.says(ping(payload)).await);
        tongue.pong(payload).await;
    }
    assert!(begun.elapsed().is_zero());
    assert_eq!(rig.chat(CHAT).await.status, 200);
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_answers_no_ping_is_noticed_and_gets_another_connection() {
    // With a request on it, and without.
    for waits in [true, false] {
        let (rig, _w, tongue) = start().await;
        let first = tongue.heard()[0].on;
        tongue.deaf(true);
        let begun = Instant::now();
        if waits {
            // Nothing of an answer had come, so it is asked for again.
            tongue.next([Frame::Wait]);
            assert_eq!(rig.chat(CHAT).await.status, 200);
        } else {
            tongue.until("it is given up", |tongue| tongue.open() == 0).await;
        }
        // A PING every 30 s, answered within 20 s; the first may have been under way.
        let lasted = begun.elapsed().as_secs();
        assert!((20..=50).contains(&lasted), "{lasted} s");
        tongue.deaf(false);
        assert_eq!(rig.chat(CHAT).await.status, 200);
        let on = tongue.heard().last().map(|last| last.on);
        assert!(on.is_some_and(|on| on != first), "{on:?}");
        // One that answers again keeps its connection.
        later(100.0).await;
        assert_eq!(rig.chat(CHAT).await.status, 200);
        later(1000.0).await;
        assert_eq!(rig.chat(CHAT).await.status, 200);
        let heard = tongue.heard();
        assert_eq!(heard[heard.len() - 1].on, heard[heard.len() - 2].on);
        rig.is_at_rest().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_never_reads_what_it_asks_for_is_read_no_further_and_let_go() {
    let settings = [frame(6, 4, 0, 0), vec![0, 4, 0, 1, 0, 0]].concat();
    for (what, asks) in [("PING", ping(b"pingpong")), ("SETTINGS", settings)] {
        let (rig, _w, tongue) = start().await;
        let begun = Instant::now();
        tongue.frozen(true);
        let (many, mut asked) = (asks.repeat(100), 0_usize);
        while asked < 100 << 20 && tongue.says(many.clone()).await {
            asked += many.len();
        }
        // No more than fills the pipes both ways.
        assert!(asked < 512 << 10, "{what}: {asked} bytes");
        assert_eq!(begun.elapsed().as_secs(), 50, "{what}: a PING, and no answer to it");
        tongue.frozen(false);
        assert_eq!(rig.chat(CHAT).await.status, 200, "{what}");
        rig.is_at_rest().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_resets_without_end_costs_nothing_but_the_reading() {
    let (rig, _w, tongue) = start().await;
    let reset = [frame(4, 3, 0, 1), 8_u32.to_be_bytes().to_vec()].concat();
    for _ in 0..200 {
        tongue.says(reset.repeat(100)).await;
    }
    assert_eq!(rig.chat(CHAT).await.status, 200);
    // Streams that were never opened are another matter: the connection ends.
    let before = tongue.heard().len();
    tongue.says([frame(4, 3, 0, 4001), 8_u32.to_be_bytes().to_vec()].concat()).await;
    assert_eq!(rig.chat(CHAT).await.status, 200);
    assert_ne!(tongue.heard()[before].on, tongue.heard()[before - 1].on);
    // And so are requests: each is reset, none is lost.
    for _ in 0..50 {
        tongue.next([Frame::Reset(Reason::REFUSED_STREAM)]);
        assert_eq!(rig.chat(CHAT).await.status, 200);
    }
    rig.is_at_rest().await;
}
