//! Workers that come and go: registration, health checks, and where conversations go meanwhile.

use std::time::Duration;

use smg_gateway::settings::Assignment;
use tokio::time::Instant;

use super::rig::*;

async fn fleet(assignment: Assignment) -> (Rig, [Worker; 2]) {
    let workers = [Worker::new("w1"), Worker::new("w2")];
    let rig = Rig::start(&[&workers[0], &workers[1]], |settings| {
        settings.sticky =
            smg_gateway::settings::Sticky { assignment: Some(assignment), ..sticky() };
    })
    .await;
    (rig, workers)
}

async fn turn(rig: &Rig, key: &str) -> String {
    rig.chat_with(&[("x-smg-routing-key", key)], CHAT).await.worker()
}

fn named<'a>(workers: &'a [Worker; 2], name: &str) -> &'a Worker {
    workers.iter().find(|w| w.url().contains(name)).unwrap()
}

#[tokio::test(start_paused = true)]
async fn three_failed_checks_take_a_worker_out_and_two_good_ones_bring_it_back() {
    let (rig, [w1, w2]) = fleet(Assignment::Delegate).await;
    for (said, secs) in [(Some("503 Busy"), 182), (None, 182)] {
        w1.health(said);
        let begun = Instant::now();
        rig.until("it is out", |gw| gw.workers() == (1, 2)).await;
        assert!((120..=secs).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
        let health = |w: &Worker| rig.count("smg_worker_health", &[("worker", w.url())]);
        assert_eq!((health(&w1), health(&w2)), (0, 1));
        for _ in 0..4 {
            assert_eq!(rig.chat(CHAT).await.worker(), "w2");
        }
        w1.health(Some("204 Fine"));
        let begun = Instant::now();
        rig.until("it is back", |gw| gw.workers() == (2, 2)).await;
        assert!((60..=122).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
        assert_eq!(health(&w1), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_check_that_hangs_fails() {
    let (rig, [w1, _]) = fleet(Assignment::Delegate).await;
    w1.door(Door::Silent);
    rig.until("it is out", |gw| gw.workers() == (1, 2)).await;
    let failed = rig.count("smg_worker_health_checks_total", &[("result", "failure")]);
    assert_eq!(failed, 3);
}

#[tokio::test(start_paused = true)]
async fn a_conversation_moves_when_its_worker_is_out_and_delegate_keeps_it_there() {
    let (rig, workers) = fleet(Assignment::Delegate).await;
    let home = turn(&rig, "k").await;
    named(&workers, &home).health(Some("500 No"));
    rig.until("it is out", |gw| gw.workers() == (1, 2)).await;
    let refuge = turn(&rig, "k").await;
    assert_ne!(refuge, home);
    assert_eq!((rig.branch("occupied_miss"), rig.branch("occupied_hit")), (1, 0));
    named(&workers, &home).health(Some("200 OK"));
    rig.until("it is back", |gw| gw.workers() == (2, 2)).await;
    assert_eq!(turn(&rig, "k").await, refuge, "the new worker leads");
    assert_eq!(rig.branch("occupied_hit"), 1);
    // Now the first home is the candidate, and is remembered.
    named(&workers, &refuge).health(Some("500 No"));
    rig.until("it is out", |gw| gw.workers() == (1, 2)).await;
    assert_eq!(turn(&rig, "k").await, home);
    assert_eq!((rig.branch("occupied_miss"), rig.branch("occupied_hit")), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn a_conversation_returns_home_in_the_other_modes() {
    for assignment in [Assignment::Random, Assignment::MinLoad, Assignment::MinGroup] {
        let (rig, workers) = fleet(assignment).await;
        let home = turn(&rig, "k").await;
        named(&workers, &home).health(Some("500 No"));
        rig.until("it is out", |gw| gw.workers() == (1, 2)).await;
        let refuge = turn(&rig, "k").await;
        assert_ne!(refuge, home, "{assignment:?}");
        assert_eq!(turn(&rig, "k").await, refuge);
        named(&workers, &home).health(Some("200 OK"));
        rig.until("it is back", |gw| gw.workers() == (2, 2)).await;
        assert_eq!(turn(&rig, "k").await, home, "{assignment:?}");
        assert_eq!((rig.branch("occupied_miss"), rig.branch("occupied_hit")), (1, 2));
    }
}

#[tokio::test(start_paused = true)]
async fn with_no_healthy_worker_requests_are_refused_and_pins_survive() {
    let (rig, workers) = fleet(Assignment::Delegate).await;
    let home = turn(&rig, "k").await;
    workers.iter().for_each(|w| w.health(Some("500 No")));
    rig.until("both are out", |gw| gw.workers() == (0, 2)).await;
    for headers in [&[("x-smg-routing-key", "k")][..], &[]] {
        let reply = rig.chat_with(headers, CHAT).await;
        reply.is_refusal(503, "no_available_workers");
        assert_eq!(reply.header("retry-after").as_deref(), Some("1"));
        assert_eq!(reply.header("x-smg-routed-worker-id"), None);
    }
    assert_eq!(rig.branch("no_healthy_workers"), 1);
    assert_eq!(rig.get("/readiness").await.status, 503);
    // An unknown model stays unknown.
    rig.chat(r#"{"model":"x","messages":[]}"#).await.is_refusal(404, "model_not_found");
    workers.iter().for_each(|w| w.health(Some("200 OK")));
    rig.until("both are back", |gw| gw.workers() == (2, 2)).await;
    assert_eq!(turn(&rig, "k").await, home);
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_new_worker_moves_no_conversation() {
    let workers = [Worker::new("w1"), Worker::new("w2")];
    workers[1].door(Door::Refusing);
    let rig = Rig::unready(&[&workers[0], &workers[1]], |s| s.sticky = sticky());
    rig.until("one is there", |gw| gw.workers() == (1, 1)).await;
    for n in 0..10 {
        assert_eq!(turn(&rig, &n.to_string()).await, "w1");
    }
    workers[1].door(Door::Open);
    rig.until("both are there", |gw| gw.workers() == (2, 2)).await;
    for n in 0..10 {
        assert_eq!(turn(&rig, &n.to_string()).await, "w1");
    }
    assert_eq!((rig.branch("vacant"), rig.branch("occupied_hit")), (10, 10));
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_comes_late_is_waited_for_until_the_timeout() {
    let (late, never) = (Worker::new("late"), Worker::new("never"));
    late.door(Door::Refusing);
    never.health(Some("503 Loading"));
    let rig = Rig::unready(&[&late, &never], |s| s.startup.timeout = Duration::from_secs(600));
    later(300.0).await;
    assert_eq!(rig.gw.workers(), (0, 0));
    late.door(Door::Open);
    let begun = Instant::now();
    rig.until("it registers", |gw| gw.workers() == (1, 1)).await;
    assert!(begun.elapsed() <= Duration::from_secs(31), "{:?}", begun.elapsed());
    let other = r#"{"model":"x","messages":[]}"#;
    rig.chat(other).await.is_refusal(503, "no_available_workers");
    later(600.0).await;
    rig.chat(other).await.is_refusal(404, "model_not_found");
    let asked = never.now(|story| story.probed.len());
    later(600.0).await;
    assert_eq!(never.now(|story| story.probed.len()), asked, "it was given up");
}

#[tokio::test(start_paused = true)]
async fn a_request_in_flight_survives_its_worker_being_out() {
    let (rig, [w1, w2]) = fleet(Assignment::Delegate).await;
    for w in [&w1, &w2] {
        w.next(
            script().say(events_head()).pause(900.0).say(chunked("data: 1\n\n")).say("0\r\n\r\n"),
        );
    }
    let mut client = rig.client();
    client.send(post("/v1/chat/completions", &[("x-smg-routing-key", "k")], CHAT_STREAM)).await;
    client.head().await;
    [&w1, &w2].iter().for_each(|w| w.health(Some("500 No")));
    rig.until("both are out", |gw| gw.workers() == (0, 2)).await;
    assert_eq!(client.chunk().await.unwrap(), b"data: 1\n\n");
    assert_eq!(client.chunk().await.unwrap(), b"");
    rig.is_at_rest().await;
}
