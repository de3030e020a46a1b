//! Connections to workers: reused newest first, closed when idle for long, never too many.

use std::time::Duration;

use tokio::time::Instant;

use super::rig::*;

/// The connection each of the requests so far came on.
fn used(w: &Worker) -> Vec<usize> {
    w.now(|story| story.requests.iter().map(|request| request.on).collect())
}

async fn together(rig: &Rig, count: usize) -> Vec<Client> {
    let mut clients: Vec<_> = (0..count).map(|_| rig.client()).collect();
    for client in &mut clients {
        client.send(post("/v1/chat/completions", &[], CHAT)).await;
    }
    for client in &mut clients {
        assert_eq!(client.reply().await.status, 200);
    }
    clients
}

#[tokio::test(start_paused = true)]
async fn one_connection_serves_one_request_after_the_other() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    for n in 0..20 {
        w.next(if n % 2 == 0 {
            script().say(events(&["data: 1\n\n"]))
        } else {
            script().say(json("{}"))
        });
        assert_eq!(rig.chat(CHAT).await.status, 200);
    }
    let used = used(&w);
    assert!(used.iter().all(|on| *on == used[0]), "{used:?}");
}

#[tokio::test(start_paused = true)]
async fn a_keep_alive_client_and_a_new_one_share_the_pool() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let mut client = rig.client();
    for _ in 0..3 {
        assert_eq!(client.post("/v1/chat/completions", &[], CHAT).await.status, 200);
        assert_eq!(rig.chat(CHAT).await.status, 200);
    }
    assert_eq!(used(&w).windows(2).filter(|pair| pair[0] != pair[1]).count(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_connection_used_last_is_used_next() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    for secs in [1.0, 3.0, 2.0] {
        w.next(script().pause(secs).say(json("{}")));
    }
    together(&rig, 3).await;
    let first = used(&w);
    rig.chat(CHAT).await;
    assert_eq!(used(&w)[3], first[1], "the one that ended last is taken");
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_closed_three_seconds_after_its_last_answer() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    // The clock starts at check-in, however long the exchange took.
    w.next(script().pause(60.0).say(json("{}")));
    rig.chat(CHAT).await;
    for _ in 0..3 {
        tokio::time::advance(Duration::from_millis(2900)).await;
        settle().await;
        rig.chat(CHAT).await;
    }
    assert!(used(&w).iter().all(|on| *on == used(&w)[0]), "{:?}", used(&w));
    let idle = Instant::now();
    w.until("it is closed", |story| story.open == 0).await;
    let lasted = idle.elapsed().as_secs_f64();
    assert!((3.0..3.5).contains(&lasted), "{lasted} s");
    rig.chat(CHAT).await;
    assert_ne!(used(&w)[4], used(&w)[0]);
    assert_eq!(rig.count("smg_router_upstream_send_retries_total", &[]), 0);
}

#[tokio::test(start_paused = true)]
async fn without_a_timeout_idle_connections_stay() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |settings| settings.connections.idle_timeout = None).await;
    rig.chat(CHAT).await;
    tokio::time::advance(Duration::from_secs(100_000)).await;
    rig.chat(CHAT).await;
    assert_eq!(used(&w)[0], used(&w)[1]);
}

#[tokio::test(start_paused = true)]
async fn no_more_idle_connections_are_kept_than_allowed() {
    for (max_idle, left) in [(2, 2), (1, 1), (0, 0)] {
        let w = Worker::new("w1");
        let rig = Rig::start(&[&w], |settings| {
            settings.connections.max_idle = max_idle;
            settings.connections.idle_timeout = None;
        })
        .await;
        w.usually(script().pause(1.0).say(json("{}")));
        together(&rig, 5).await;
        w.until("the rest is closed", |story| story.open == left).await;
        settle().await;
        assert_eq!(w.now(|story| story.open), left);
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_says_close_is_believed() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    // It closes a little after saying so; nothing is sent on that connection meanwhile.
    w.usually(script().say(answer("200 OK", &["connection: close"], "{}")).pause(0.03).close());
    let mut client = rig.client();
    for _ in 0..25 {
        assert_eq!(client.post("/v1/chat/completions", &[], CHAT).await.status, 200);
    }
    let mut used = used(&w);
    used.dedup();
    assert_eq!(used.len(), 25);
    assert_eq!(rig.count("smg_router_upstream_send_retries_total", &[]), 0);
}

#[tokio::test(start_paused = true)]
async fn a_stream_whose_client_left_gives_no_connection_back() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    w.next(script().say(events_head()).say(chunked("data: 1\n\n")).pause(5.0).say(json("{}")));
    let mut client = rig.client();
    client.send(post("/v1/chat/completions", &[], CHAT_STREAM)).await;
    client.head().await;
    client.leave().await;
    assert_eq!(rig.chat(CHAT).await.text(), r#"{"from":"w1"}"#);
    assert_ne!(used(&w)[0], used(&w)[1]);
}

#[tokio::test(start_paused = true)]
async fn each_worker_has_a_pool_of_its_own() {
    let workers = [Worker::new("w1"), Worker::new("w2")];
    let rig = Rig::start(&[&workers[0], &workers[1]], |_| {}).await;
    for _ in 0..10 {
        rig.chat(CHAT).await;
    }
    for w in &workers {
        let used = used(w);
        assert!(used.len() == 5 && used.iter().all(|on| *on == used[0]), "{used:?}");
    }
}

/// The sweep of idle connections comes every second; who asks before it must not get an old one.
#[tokio::test(start_paused = true)]
async fn a_connection_that_is_too_old_is_not_used_though_nobody_has_closed_it_yet() {
    let w = Worker::new("w1");
    let eight = Some(Duration::from_secs(8));
    let rig = Rig::start(&[&w], |settings| settings.connections.idle_timeout = eight).await;
    later(0.5).await;
    rig.chat(CHAT).await;
    later(8.2).await;
    assert_eq!(w.now(|story| story.open), 1);
    rig.chat(CHAT).await;
    assert_ne!(used(&w)[0], used(&w)[1]);
}
