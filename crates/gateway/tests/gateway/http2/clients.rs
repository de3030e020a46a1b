//! Clients that speak HTTP/2, kind ones and others.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use smg_gateway::settings::ServerTls;
use tokio::time::Instant;

use super::super::rig::*;

#[tokio::test(start_paused = true)]
async fn requests_of_one_connection_run_side_by_side_and_none_waits_for_another() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let mut client = H2Client::connect(&rig.gw).await;
    w.next(script().pause(50.0).say(json(r#"{"slow":1}"#)));
    let (slow, _stream) = client.send("POST", "/v1/chat/completions", Some(CHAT)).await;
    w.until("the slow one is there", |story| story.requests.len() == 1).await;
    let begun = Instant::now();
    let quick = client.post("/v1/chat/completions", CHAT).await;
    assert_eq!((quick.status, quick.text()), (200, r#"{"from":"w1"}"#));
    assert_eq!(quick.headers["x-smg-routed-worker-id"], w.url());
    assert!(begun.elapsed() < Duration::from_secs(1));
    assert_eq!(read(slow).await.text(), r#"{"slow":1}"#);
    assert_eq!(client.get("/health").await.status, 200);
    assert_eq!(client.get("/nowhere").await.status, 404);
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn an_event_stream_comes_as_it_is_said_and_no_frame_is_empty_before_the_last() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let mut client = H2Client::connect(&rig.gw).await;
    for _ in 0..130 {
        let said = script().say(events_head()).say(chunked("data: 1\n\n"));
        w.next(said.say(chunked("data: [DONE]\n\n")).say("0\r\n\r\n"));
        let reply = client.post("/v1/chat/completions", CHAT_STREAM).await;
        assert_eq!((reply.status, reply.text()), (200, "data: 1\n\ndata: [DONE]\n\n"));
        assert_eq!(reply.frames.iter().filter(|(len, last)| *len == 0 && !last).count(), 0);
        assert!(reply.headers.get("transfer-encoding").is_none());
    }
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn tls_offers_both_versions_and_a_client_takes_its_pick() {
    let (authority, w) = (Authority::new("ca"), Worker::new("w1"));
    let identity = authority.signs("gw").identity();
    let rig = Rig::start(&[&w], |settings| settings.tls = ServerTls::new(&identity).ok()).await;
    for (offered, taken) in
        [(&[&b"h2"[..], b"http/1.1"][..], &b"h2"[..]), (&[b"http/1.1"], b"http/1.1")]
    {
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        tokio::spawn(Arc::clone(&rig.gw).converse(theirs, Ipv4Addr::LOCALHOST.into()));
        let (socket, alpn) = authority.negotiate("gw", ours, offered).await;
        assert_eq!(alpn.as_deref(), Some(taken));
        if taken == b"h2" {
            let mut client = H2Client::over(socket).await;
            assert_eq!(client.post("/v1/chat/completions", CHAT).await.status, 200);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_door_for_this_machine_looks_at_whom_the_target_calls() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |settings| settings.access.api_key = "k".parse().ok()).await;
    let mut client = H2Client::connect(&rig.gw).await;
    for (called, status) in [("localhost", 200), ("127.0.0.1:30000", 200), ("evil.example", 403)] {
        let reply = client.get(&format!("http://{called}/workers")).await;
        assert_eq!(reply.status, status, "{called}: {}", reply.text());
    }
}

#[tokio::test(start_paused = true)]
async fn a_reset_stream_cancels_its_request_at_the_worker_and_no_other() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let mut client = H2Client::connect(&rig.gw).await;
    w.next(script().hang());
    w.next(script().say(events_head()).say(chunked("data: 1\n\n")).hang());
    w.next(script().pause(5.0).say(json("{}")));
    let (waiting, mut first) = client.send("POST", "/v1/chat/completions", Some(CHAT)).await;
    w.until("it waits", |story| story.open == 1).await;
    let (streaming, mut second) =
        client.send("POST", "/v1/chat/completions", Some(CHAT_STREAM)).await;
    let mut events = within("a head", streaming).await.expect("a head").into_body();
    assert_eq!(events.data().await.expect("data").expect("an event"), "data: 1\n\n");
    let (other, _third) = client.send("POST", "/v1/chat/completions", Some(CHAT)).await;
    w.until("three are there", |story| story.open == 3).await;
    first.send_reset(Reason::CANCEL);
    second.send_reset(Reason::CANCEL);
    w.until("two are cancelled", |story| story.open == 1).await;
    drop((waiting, events));
    assert_eq!(read(other).await.status, 200);
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_breaks_takes_all_its_requests_along() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let mut client = H2Client::connect(&rig.gw).await;
    w.usually(script().hang());
    let mut sent = Vec::new();
    for _ in 0..20 {
        sent.push(client.send("POST", "/v1/chat/completions", Some(CHAT)).await);
    }
    w.until("all are there", |story| story.open == 20).await;
    client.breaks();
    drop(sent);
    w.until("all are cancelled", |story| story.open == 0).await;
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_upload_costs_its_stream_and_not_the_connection() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |settings| settings.bodies.max_payload = 1000).await;
    let mut client = H2Client::connect(&rig.gw).await;
    let (answer, mut upload) = client.send("POST", "/v1/chat/completions", None).await;
    upload.send_data(Bytes::from(vec![b' '; 1001]), false).expect("sent");
    let reply = read(answer).await;
    assert_eq!(reply.status, 413, "{}", reply.text());
    assert!(reply.headers.get("connection").is_none());
    assert_eq!(client.post("/v1/chat/completions", CHAT).await.status, 200);
    assert_eq!(w.served(), 1);
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_breaks_off_resets_the_stream() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let mut client = H2Client::connect(&rig.gw).await;
    w.next(script().say(events_head()).say(chunked("data: half")).close());
    let reply = client.post("/v1/chat/completions", CHAT_STREAM).await;
    assert_eq!((reply.text(), reply.broken), ("data: half", Some(Reason::INTERNAL_ERROR)));
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_long_answer_comes_whole_with_its_length() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let mut client = H2Client::connect(&rig.gw).await;
    for length in [65_534, 65_535, 500_000] {
        let said = format!("\"{}\"", "x".repeat(length));
        w.next(script().say(json(&said)));
        let reply = client.post("/v1/chat/completions", CHAT).await;
        assert!(reply.text() == said && reply.broken.is_none(), "{length}");
        assert_eq!(reply.headers["content-length"], said.len().to_string());
        assert_eq!(reply.frames.iter().filter(|(length, _)| *length == 0).count(), 0, "{length}");
    }
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_stops_reading_one_answer_loses_that_one() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let mut client = H2Client::connect(&rig.gw).await;
    let event = chunked(format!("data: {}\n\n", "x".repeat(8000)));
    let mut talkative = script().say(events_head());
    for _ in 0..64 {
        talkative = talkative.say(&event);
    }
    w.next(talkative.hang());
    let (answer, _stream) = client.send("POST", "/v1/chat/completions", Some(CHAT_STREAM)).await;
    let unread = within("a head", answer).await.expect("a head");
    let begun = Instant::now();
    w.until("it is let go", |story| story.open == 0).await;
    let lasted = begun.elapsed();
    assert!(lasted >= TIMEOUT && lasted < TIMEOUT * 5 / 4, "{lasted:?}");
    assert_eq!(client.post("/v1/chat/completions", CHAT).await.status, 200);
    drop(unread);
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_client_is_told_to_go_and_a_busy_one_never() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |settings| {
        settings.clients.idle_timeout = Some(Duration::from_secs(100));
    })
    .await;
    let mut client = H2Client::connect(&rig.gw).await;
    for _ in 0..2 {
        w.next(script().pause(1000.0).say(json("{}")));
        assert_eq!(client.post("/v1/chat/completions", CHAT).await.status, 200);
        later(99.0).await;
        assert!(!client.is_over());
    }
    // PINGs come and go meanwhile, and are no request.
    let begun = Instant::now();
    let ended = client.ended().await;
    assert!(matches!(ended, Ok(()) | Err(Some(Reason::NO_ERROR))), "{ended:?}");
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    // Who never asks anything has as long as for a head.
    let (begun, silent) = (Instant::now(), H2Client::connect(&rig.gw).await);
    let _ = silent.ended().await;
    assert_eq!(begun.elapsed().as_secs(), 30);
}

#[tokio::test(start_paused = true)]
async fn half_a_preface_is_half_a_head_and_what_only_begins_like_it_is_http1() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let mut half = rig.client();
    half.send("PRI * HTTP/2.0\r\n").await;
    let begun = Instant::now();
    let _said = half.rest().await;
    assert_eq!(begun.elapsed().as_secs(), 30);
    let mut slow = rig.client();
    for byte in post("/v1/chat/completions", &[], CHAT) {
        slow.send([byte]).await;
        settle().await;
    }
    assert_eq!(slow.reply().await.status, 200);
    let mut odd = rig.client();
    odd.send("PRIVATE / HTTP/1.1\r\nhost: gw\r\n\r\n").await;
    assert_eq!(odd.reply().await.status, 404);
}

#[tokio::test(start_paused = true)]
async fn a_drain_ends_a_connection_with_its_last_answer_and_takes_nothing_new() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let (mut client, idle) = (H2Client::connect(&rig.gw).await, H2Client::connect(&rig.gw).await);
    w.next(script().say(events_head()).say(chunked("data: 1\n\n")).pause(10.0).say("0\r\n\r\n"));
    let (answer, _stream) = client.send("POST", "/v1/chat/completions", Some(CHAT_STREAM)).await;
    let reply = within("a head", answer).await.expect("a head");
    let begun = Instant::now();
    let drain = tokio::spawn({
        let gw = Arc::clone(&rig.gw);
        async move { gw.drain(Duration::from_secs(60)).await }
    });
    let _ = idle.ended().await;
    assert!(begun.elapsed().as_secs() < 1);
    // Who comes now is told so, and told to go.
    let mut late = H2Client::connect(&rig.gw).await;
    assert_eq!(late.get("/readiness").await.status, 503);
    let _ = late.ended().await;
    assert!(begun.elapsed().as_secs() < 1);
    let mut body = reply.into_body();
    assert_eq!(body.data().await.expect("data").expect("an event"), "data: 1\n\n");
    assert!(
        within("the end", body.data()).await.is_none_or(|data| data.is_ok_and(|d| d.is_empty()))
    );
    let _ = client.ended().await;
    assert!(within("the drain ends", drain).await.expect("drained"));
    assert!((10..12).contains(&begun.elapsed().as_secs()));
}
