//! Clients that read slowly: nobody reads from the worker for them, and others are not held up.

use super::rig::*;

/// What may lie in the gateway for one stream: the buffers of both connections and a chunk.
const AT_MOST: usize = 192 << 10;

fn flood(events: usize) -> Script {
    let mut flood = script().say(events_head());
    for n in 0..events {
        flood = flood.say(chunked(format!("data: {n} {}\n\n", "x".repeat(8000))));
    }
    flood.say("0\r\n\r\n")
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_nobody_reads_stops_the_worker() {
    let w = Worker::new("w1").narrow(4096);
    let rig = Rig::start(&[&w], |_| {}).await;
    w.next(flood(1000));
    let mut client = rig.narrow_client(4096);
    client.send(post("/v1/chat/completions", &[], CHAT_STREAM)).await;
    let mut last = 0;
    loop {
        settle().await;
        let written = w.now(|story| story.written);
        if written == last {
            break;
        }
        last = written;
    }
    assert!(last < AT_MOST, "{last} bytes were taken from the worker");
    // Another client is served meanwhile, and what waited comes whole.
    assert_eq!(rig.chat(CHAT).await.status, 200);
    let reply = client.reply().await;
    assert_eq!(reply.ended, Ended::LastChunk);
    assert_eq!(reply.text().matches("data: ").count(), 1000);
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_upload_is_taken_at_its_own_pace() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let mut client = rig.client();
    let request = post("/v1/chat/completions", &[], CHAT);
    let (head, body) = request.split_at(request.len() - CHAT.len());
    client.send(head).await;
    for byte in body {
        client.send([*byte]).await;
        tokio::time::advance(std::time::Duration::from_secs(7)).await;
    }
    assert_eq!(client.reply().await.status, 200);
    assert_eq!(w.last().body, CHAT.as_bytes());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_stops_reading_holds_its_worker_no_longer_than_a_request_may_take() {
    let w = Worker::new("w1").narrow(4096);
    let rig = Rig::start(&[&w], |_| {}).await;
    w.next(flood(1000));
    let mut client = rig.narrow_client(4096);
    client.send(post("/v1/chat/completions", &[], CHAT_STREAM)).await;
    settle().await;
    tokio::time::advance(TIMEOUT + std::time::Duration::from_secs(1)).await;
    settle().await;
    rig.is_at_rest().await;
}
