//! Overload protection: what engines report keeps requests away from them.

use super::rig::*;
use smg_gateway::settings::{OverloadRules, Settings};

const OVERLOADED: &str = "smg_workers_overloaded";
const SHED: &str = "smg_worker_overload_shed_total";
const ASKED: &str = "/loads?model=m";
const KEY: [(&str, &str); 1] = [("x-smg-routing-key", "k")];

fn protected(settings: &mut Settings) {
    settings.loads.overload = OverloadRules { waiting: Some(8), token_usage: Some(0.9) };
}

/// A poll later.
async fn polled() {
    later(10.0).await;
    settle().await;
}

#[tokio::test(start_paused = true)]
async fn an_overloaded_worker_gets_nothing_until_a_report_says_otherwise() {
    let (w1, w2) = (Worker::new("w1"), Worker::new("w2"));
    w1.reports(0, 0.1);
    w2.reports(0, 0.1);
    let rig = Rig::start(&[&w1, &w2], protected).await;
    for (waiting, usage, vetoed) in [(7, 0.89, 0), (8, 0.0, 1), (0, 0.9, 1), (0, 0.0, 0)] {
        w1.reports(waiting, usage);
        polled().await;
        assert_eq!(rig.count(OVERLOADED, &[("model", "m")]), vetoed, "{waiting} {usage}");
        let before = w1.served();
        for _ in 0..4 {
            assert_eq!(rig.chat(CHAT).await.status, 200);
        }
        assert_eq!(w1.served() - before, if vetoed == 1 { 0 } else { 2 });
    }
    assert_eq!(rig.count(SHED, &[]), 0);
}

#[tokio::test(start_paused = true)]
async fn when_all_are_overloaded_requests_are_shed_at_once_and_for_good() {
    let (w1, w2) = (Worker::new("w1"), Worker::new("w2"));
    w1.reports(9, 0.1);
    w2.reports(0, 1.0);
    let rig = Rig::start(&[&w1, &w2], |settings| {
        protected(settings);
        settings.retry.attempts = 5;
    })
    .await;
    settle().await;
    let begun = tokio::time::Instant::now();
    let reply = rig.chat(CHAT).await;
    reply.is_refusal(503, "worker_overload_protection_shed");
    assert_eq!(reply.header("retry-after").as_deref(), Some("10"));
    assert_eq!(begun.elapsed(), std::time::Duration::ZERO);
    assert_eq!(rig.count(SHED, &[("stage", "selection")]), 1);
    assert_eq!(rig.count(SHED, &[("stage", "dispatch")]), 0);
    assert_eq!((w1.served(), w2.served(), rig.count(OVERLOADED, &[])), (0, 0, 2));
    rig.is_at_rest().await;
    // Not all of the unavailable are overloaded, but those that could serve are.
    w2.health(Some("500 Ill"));
    later(180.0).await;
    rig.chat(CHAT).await.is_refusal(503, "worker_overload_protection_shed");
    assert_eq!(rig.count(OVERLOADED, &[]), 1, "an ill worker is not an overloaded one");
    w1.reports(0, 0.0);
    polled().await;
    assert_eq!(rig.chat(CHAT).await.worker(), "w1");
}

#[tokio::test(start_paused = true)]
async fn a_poll_that_fails_lifts_the_veto() {
    let w = Worker::new("w1");
    w.reports(8, 0.0);
    let rig = Rig::start(&[&w], protected).await;
    settle().await;
    rig.chat(CHAT).await.is_refusal(503, "worker_overload_protection_shed");
    w.reports_nothing();
    polled().await;
    assert_eq!((rig.chat(CHAT).await.status, rig.count(OVERLOADED, &[])), (200, 0));
}

#[tokio::test(start_paused = true)]
async fn a_pin_to_an_overloaded_worker_moves_and_running_requests_go_on() {
    let (w1, w2) = (Worker::new("w1"), Worker::new("w2"));
    w1.reports(0, 0.0);
    w2.reports(0, 0.0);
    let rig = Rig::start(&[&w1, &w2], |settings| {
        protected(settings);
        settings.sticky.key_override = true;
    })
    .await;
    w1.next(script().say(events_head()).pause(60.0).say(chunked("data: 1\n\n")).say("0\r\n\r\n"));
    let mut running = rig.client();
    running.send(post("/v1/chat/completions", &KEY, CHAT_STREAM)).await;
    running.head().await;
    w1.reports(100, 1.0);
    polled().await;
    assert_eq!(rig.chat_with(&KEY, CHAT).await.worker(), "w2");
    assert_eq!(running.reply_body().await, "data: 1\n\n");
    assert_eq!(rig.count("smg_worker_cb_state", &[]), 0);
    assert_eq!(rig.count("smg_worker_health", &[]), 2);
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn engines_are_asked_when_protection_is_on_and_only_then() {
    for on in [false, true] {
        let w = Worker::new("w1");
        let rig = Rig::start(&[&w], |settings| {
            if on {
                protected(settings);
            }
        })
        .await;
        polled().await;
        assert_eq!(w.now(|story| story.probed.iter().any(|path| path == ASKED)), on);
        drop(rig);
    }
}
