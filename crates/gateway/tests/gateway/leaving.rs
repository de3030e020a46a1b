//! Clients that go away: the worker sees it at once, and nothing stays counted.

use std::time::Duration;

use tokio::time::Instant;

use super::rig::*;

const HEAD: &str = "POST /v1/chat/completions HTTP/1.1\r\nhost: gw\r\n";

async fn start(w: &Worker) -> Rig {
    Rig::start(&[w], |settings| settings.sticky = sticky()).await
}

fn keyed(body: &str) -> Vec<u8> {
    post("/v1/chat/completions", &[("x-smg-routing-key", "k")], body)
}

/// The client goes; the worker's connections close and all counts are zero, before time passes.
async fn leaves_no_trace(client: Client, w: &Worker, rig: &Rig) {
    let now = Instant::now();
    client.leave().await;
    w.until("its connection is closed", |story| story.open == 0).await;
    rig.is_at_rest().await;
    assert_eq!(Instant::now(), now, "it took time to notice");
}

#[tokio::test(start_paused = true)]
async fn while_its_body_is_read() {
    let w = Worker::new("w1");
    let rig = start(&w).await;
    for sent in [
        format!("{HEAD}content-length: 500\r\n\r\n"),
        format!("{HEAD}content-length: 500\r\n\r\n{{\"model\""),
        format!("{HEAD}transfer-encoding: chunked\r\n\r\n5\r\n{{\"mod"),
        format!("{HEAD}transfer-encoding: chunked\r\n\r\n5\r\n{{\"mod\r\n"),
    ] {
        let mut client = rig.client();
        client.send(sent).await;
        settle().await;
        assert_eq!(rig.count("smg_http_connections_active", &[]), 1);
        leaves_no_trace(client, &w, &rig).await;
    }
    assert_eq!(w.served(), 0);
}

#[tokio::test(start_paused = true)]
async fn within_a_head_or_between_requests() {
    let w = Worker::new("w1");
    let rig = start(&w).await;
    for sent in ["", "POST /v1/ch", HEAD] {
        let mut client = rig.client();
        client.send(sent).await;
        settle().await;
        leaves_no_trace(client, &w, &rig).await;
    }
    let mut client = rig.client();
    assert_eq!(client.get("/health").await.status, 200);
    leaves_no_trace(client, &w, &rig).await;
    assert_eq!(rig.gw.connections(), 0);
}

#[tokio::test(start_paused = true)]
async fn while_the_worker_is_dialled() {
    let w = Worker::new("w1");
    let rig = start(&w).await;
    w.door(Door::Silent);
    let dials = w.now(|story| story.dials);
    let mut client = rig.client();
    client.send(keyed(CHAT)).await;
    w.until("it is dialled", |story| story.dials == dials + 1).await;
    assert_eq!(rig.count("smg_worker_routing_keys_active", &[]), 1);
    leaves_no_trace(client, &w, &rig).await;
}

#[tokio::test(start_paused = true)]
async fn while_the_worker_does_not_read_the_request() {
    let w = Worker::new("w1").narrow(1000);
    let rig = start(&w).await;
    w.next(Script::deaf().pause(100_000.0));
    let mut client = rig.client();
    client.send(keyed(&format!("{CHAT}{}", " ".repeat(50_000)))).await;
    w.until("the head is there", |story| story.requests.len() == 1).await;
    settle().await;
    leaves_no_trace(client, &w, &rig).await;
}

#[tokio::test(start_paused = true)]
async fn while_the_worker_thinks() {
    for body in [CHAT, CHAT_STREAM] {
        let w = Worker::new("w1");
        let rig = start(&w).await;
        w.next(script().hang());
        let mut client = rig.client();
        client.send(keyed(body)).await;
        w.until("the request is there", |story| story.open == 1).await;
        assert_eq!(rig.count("smg_worker_routing_keys_active", &[("worker", w.url())]), 1);
        tokio::time::advance(Duration::from_secs(60)).await;
        leaves_no_trace(client, &w, &rig).await;
        assert_eq!(w.served(), 1, "nothing is sent again");
        assert_eq!(rig.count("smg_worker_errors_total", &[]), 0, "it was not the worker's fault");
    }
}

#[tokio::test(start_paused = true)]
async fn while_a_whole_answer_is_read() {
    let w = Worker::new("w1");
    let rig = start(&w).await;
    w.next(script().say("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"a\":").hang());
    let mut client = rig.client();
    client.send(keyed(CHAT)).await;
    w.until("the answer has begun", |story| story.written > 0).await;
    settle().await;
    leaves_no_trace(client, &w, &rig).await;
    assert_eq!(rig.count("smg_worker_errors_total", &[]), 0);
}

#[tokio::test(start_paused = true)]
async fn in_the_middle_of_a_stream() {
    let w = Worker::new("w1");
    let rig = start(&w).await;
    for between in ["data: 1\n\n", "data: 1"] {
        w.next(script().say(events_head()).say(chunked(between)).hang());
        let mut client = rig.client();
        client.send(keyed(CHAT_STREAM)).await;
        client.head().await;
        assert_eq!(client.chunk().await.unwrap(), between.as_bytes());
        leaves_no_trace(client, &w, &rig).await;
    }
    assert_eq!(rig.count("smg_worker_errors_total", &[]), 0);
}

#[tokio::test(start_paused = true)]
async fn before_it_has_read_what_the_stream_sent() {
    let w = Worker::new("w1").narrow(1000);
    let rig = start(&w).await;
    let mut flood = script().say(events_head());
    for _ in 0..1000 {
        flood = flood.say(chunked(format!("data: {}\n\n", "x".repeat(500))));
    }
    w.next(flood.hang());
    let mut client = rig.narrow_client(1000);
    client.send(keyed(CHAT_STREAM)).await;
    w.until("the stream has begun", |story| story.written > 1_500).await;
    settle().await;
    assert_eq!(rig.count("smg_worker_requests_active", &[]), 1);
    leaves_no_trace(client, &w, &rig).await;
}

#[tokio::test(start_paused = true)]
async fn with_a_half_close_is_leaving_too() {
    for answers in [script().hang(), script().say(events_head()).say(chunked("data: 1\n\n")).hang()]
    {
        let w = Worker::new("w1");
        let rig = start(&w).await;
        w.next(answers);
        let mut client = rig.client();
        client.send(keyed(CHAT_STREAM)).await;
        w.until("the request is there", |story| story.open == 1).await;
        settle().await;
        let now = Instant::now();
        client.half_close().await;
        w.until("its connection is closed", |story| story.open == 0).await;
        rig.is_at_rest().await;
        assert_eq!(Instant::now(), now);
    }
}

#[tokio::test(start_paused = true)]
async fn many_at_once_leaves_nothing_behind() {
    let w = Worker::new("w1");
    let rig = start(&w).await;
    w.usually(script().say(events_head()).say(chunked("data: 1\n\n")).hang());
    let mut clients = Vec::new();
    for n in 0..50 {
        let mut client = rig.client();
        let key = format!("k{}", n % 7);
        client
            .send(post("/v1/chat/completions", &[("x-smg-routing-key", &key)], CHAT_STREAM))
            .await;
        clients.push(client);
    }
    w.until("all are there", |story| story.open == 50).await;
    settle().await;
    assert_eq!(rig.count("smg_worker_requests_active", &[]), 50);
    assert_eq!(rig.count("smg_worker_routing_keys_active", &[]), 7);
    for client in clients {
        client.leave().await;
    }
    w.until("all are closed", |story| story.open == 0).await;
    rig.is_at_rest().await;
}
