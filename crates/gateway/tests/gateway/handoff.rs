//! A stream takes the connections of its client and its worker over from hyper, and gives both back:
//! nobody can tell, before it, after it or in between.

use std::sync::Arc;
use std::time::Duration;

use super::rig::*;

const PATH: &str = "/v1/chat/completions";

fn ask(body: &str) -> Vec<u8> {
    post(PATH, &[], body)
}

/// A stream of one event that ends a second later.
fn slow_stream() -> Script {
    script().say(events_head()).say(chunked("data: 1\n\n")).pause(1.0).say("0\r\n\r\n")
}

#[tokio::test(start_paused = true)]
async fn connections_go_on_after_a_stream() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let mut client = rig.client();
    for _ in 0..3 {
        w.next(script().say(events(&["data: 1\n\n", "data: 2\n\n"])));
        w.next(slow_stream());
        for told in ["data: 1\n\ndata: 2\n\n", "data: 1\n\n"] {
            let reply = client.post(PATH, &[], CHAT_STREAM).await;
            assert_eq!((reply.text(), reply.ended), (told, Ended::LastChunk));
            assert_eq!(reply.header("connection"), None);
            assert!(reply.header("date").is_some());
        }
        assert_eq!(client.post(PATH, &[], CHAT).await.text(), r#"{"from":"w1"}"#);
    }
    let used = w.now(|story| story.requests.iter().map(|r| r.on).collect::<Vec<_>>());
    assert!(used.iter().all(|on| *on == used[0]), "{used:?}");
    rig.is_at_rest().await;
}

/// The next request may come with this one's, or while the stream runs, or in two pieces.
#[tokio::test(start_paused = true)]
async fn a_request_that_came_too_early_is_answered_after_the_stream() {
    let long = format!(r#"{{"model":"m","messages":[],"user":"{}"}}"#, "x".repeat(10_000));
    for body in [CHAT, &long] {
        for cut in [0, 1, 50, ask(body).len()] {
            let w = Worker::new("w1");
            let rig = Rig::start(&[&w], |_| {}).await;
            w.next(slow_stream());
            let mut client = rig.client();
            let both = [ask(CHAT_STREAM), ask(body)].concat();
            let (now, then) = both.split_at(ask(CHAT_STREAM).len() + cut);
            client.send(now).await;
            client.head().await;
            client.send(then).await;
            assert_eq!(client.reply_body().await, "data: 1\n\n", "cut at {cut}");
            assert_eq!(client.reply().await.text(), r#"{"from":"w1"}"#);
            assert_eq!(w.last().body, body.as_bytes());
            rig.is_at_rest().await;
        }
    }
}

/// Whoever takes the connection over must not take away what is not written yet.
#[tokio::test(start_paused = true)]
async fn an_answer_that_its_client_has_not_read_comes_before_the_stream() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let long = "x".repeat(50_000);
    w.next(script().say(json(&long))).next(slow_stream());
    let mut client = rig.narrow_client(500);
    client.send([ask(CHAT), ask(CHAT_STREAM)].concat()).await;
    w.until("one is asked", |story| story.requests.len() == 1).await;
    tokio::time::advance(Duration::from_secs(10)).await;
    settle().await;
    assert_eq!(client.reply().await.text(), long);
    let reply = client.reply().await;
    assert_eq!((reply.text(), reply.ended), ("data: 1\n\n", Ended::LastChunk));
    assert_eq!(client.post(PATH, &[], CHAT).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn who_asks_to_close_is_closed_after_the_stream() {
    for value in ["close", "Keep-Alive, Close"] {
        let w = Worker::new("w1");
        let rig = Rig::start(&[&w], |_| {}).await;
        w.next(slow_stream());
        let mut client = rig.client();
        let request = [post(PATH, &[("connection", value)], CHAT_STREAM), ask(CHAT)].concat();
        let reply = client.send(request).await.reply().await;
        assert_eq!((reply.text(), reply.ended), ("data: 1\n\n", Ended::LastChunk));
        client.sees_the_end().await;
        assert_eq!(w.served(), 1, "nothing is answered after it");
        rig.is_at_rest().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_drain_lets_the_stream_end_and_nothing_follow() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    w.next(slow_stream());
    let mut client = rig.client();
    client.send([ask(CHAT_STREAM), ask(CHAT)].concat()).await;
    client.head().await;
    let gw = Arc::clone(&rig.gw);
    let drained = tokio::spawn(async move { gw.drain(Duration::from_secs(30)).await });
    assert_eq!(client.reply_body().await, "data: 1\n\n");
    client.sees_the_end().await;
    assert!(within("the drain ends", drained).await.unwrap());
    assert_eq!(w.served(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_client_of_http_1_0_may_keep_its_connection_to_hyper() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    w.next(slow_stream());
    let mut client = rig.client();
    let length = CHAT_STREAM.len();
    let head = format!("POST {PATH} HTTP/1.0\r\ncontent-length: {length}\r\n\r\n");
    let reply = client.send(head + CHAT_STREAM).await.reply().await;
    assert_eq!((reply.text(), reply.header("transfer-encoding")), ("data: 1\n\n", None));
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_client_is_closed_as_long_after_a_stream_as_after_anything() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |s| s.clients.idle_timeout = Some(Duration::from_secs(60))).await;
    let mut stream = script().say(events_head());
    for _ in 0..10 {
        stream = stream.say(chunked("data: 1\n\n")).pause(50.0);
    }
    w.next(stream.say("0\r\n\r\n"));
    let mut client = rig.client();
    let reply = client.post(PATH, &[], CHAT_STREAM).await;
    assert_eq!(reply.ended, Ended::LastChunk, "a stream is not idle");
    let ended = tokio::time::Instant::now();
    client.sees_the_end().await;
    assert_eq!(ended.elapsed().as_secs(), 60);
}

#[tokio::test(start_paused = true)]
async fn what_is_no_chunk_breaks_the_stream() {
    for (event, bad) in [
        ("data: 1\n\n", "x\r\n"),
        ("data: 1\n\n", "1\na\r\n"),
        ("data: 1\n\n", "1\r\nab\r\n"),
        ("data: 1\n\n", "ffffffffffffffff1\r\n"),
        ("data: 1", "-1\r\n"),
    ] {
        let w = Worker::new("w1");
        let rig = Rig::start(&[&w], |_| {}).await;
        w.next(script().say(events_head()).say(chunked(event)).pause(1.0).say(bad).hang());
        let reply = rig.chat(CHAT_STREAM).await;
        assert!(reply.text().starts_with(event), "{}", reply.text());
        let told = reply.text().contains("read_response_body_failed");
        let between = event.ends_with("\n\n");
        let ended = if between { Ended::LastChunk } else { Ended::Unterminated };
        assert_eq!((told, reply.ended), (between, ended), "{bad:?}");
        w.until("its connection is closed", |story| story.open == 0).await;
        assert_eq!(rig.count("smg_worker_errors_total", &[]), 1);
        rig.is_at_rest().await;
    }
}

/// How a worker frames its stream, and what it says before it, is nothing to the client.
#[tokio::test(start_paused = true)]
async fn a_stream_is_read_whatever_its_framing() {
    let event = "data: 1\n\n";
    let kind = "content-type: text/event-stream\r\n";
    let chunks = [chunked(event), b"0\r\n\r\n".to_vec()].concat();
    let chunks = String::from_utf8(chunks).unwrap();
    for (said, goes_on) in [
        (format!("HTTP/1.1 200 OK\r\n{kind}Transfer-Encoding: Chunked\r\n\r\n{chunks}"), true),
        (format!("HTTP/1.1 200 OK\r\n{kind}content-length: 9\r\n\r\n{event}"), true),
        (format!("HTTP/1.1 200 OK\r\n{kind}\r\n{event}"), false),
        (format!("HTTP/1.0 200 OK\r\n{kind}\r\n{event}"), false),
        (format!("HTTP/1.1 103 Early\r\na: b\r\n\r\n{}{chunks}", events_head()), true),
        (format!("HTTP/1.1 201 \n{kind}transfer-encoding: chunked\n\n{chunks}"), true),
        (
            format!(
                "HTTP/1.1 200 OK\r\nconnection: close\r\n{kind}transfer-encoding: chunked\r\n\r\n{chunks}"
            ),
            false,
        ),
        (format!("{}{chunks}{}", events_head(), json("{\"not\":\"yours\"}")), false),
    ] {
        for bytewise in [false, true] {
            let w = Worker::new("w1");
            let rig = Rig::start(&[&w], |_| {}).await;
            let pieces =
                if bytewise { said.as_bytes().chunks(1) } else { said.as_bytes().chunks(9999) };
            let told = pieces.fold(script(), |told, piece| told.say(piece));
            w.next(if goes_on { told } else { told.close() });
            let mut client = rig.client();
            let reply = client.post(PATH, &[], CHAT_STREAM).await;
            assert_eq!((reply.text(), reply.ended), (event, Ended::LastChunk), "{said:?}");
            assert_eq!(client.post(PATH, &[], CHAT).await.text(), r#"{"from":"w1"}"#);
            let on = w.now(|story| story.requests.iter().map(|r| r.on).collect::<Vec<_>>());
            assert_eq!(on[0] == on[1], goes_on, "{said:?}");
            assert_eq!(rig.count("smg_worker_errors_total", &[]), 0);
            rig.is_at_rest().await;
        }
    }
}

/// The worker answers while its request is still being written, which hyper goes on with.
#[tokio::test(start_paused = true)]
async fn a_stream_that_begins_before_its_request_was_read_is_passed_on() {
    let w = Worker::new("w1").narrow(4096);
    let rig = Rig::start(&[&w], |_| {}).await;
    let body = format!("{CHAT_STREAM}{}", " ".repeat(500_000));
    w.next(Script::deaf().say(events(&["data: 1\n\n"])).hang());
    let reply = rig.chat(&body).await;
    assert_eq!((reply.text(), reply.ended), ("data: 1\n\n", Ended::LastChunk));
    w.until("its connection is closed", |story| story.open == 0).await;
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_burst_leaves_in_few_chunks() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let all: Vec<_> = (0..100).map(|n| format!("data: {n}\n\n")).collect();
    w.next(script().say(events(&all.iter().map(String::as_str).collect::<Vec<_>>())));
    let mut client = rig.client();
    client.send(ask(CHAT_STREAM)).await;
    client.head().await;
    let (mut chunks, mut body) = (0, Vec::new());
    while let Some(chunk) = client.chunk().await.filter(|chunk| !chunk.is_empty()) {
        chunks += 1;
        body.extend(chunk);
    }
    assert_eq!(String::from_utf8(body).unwrap(), all.concat());
    assert!(chunks <= 10, "{chunks} chunks");
}

/// The answer may begin while the client is still uploading: both connections stay with hyper then.
#[tokio::test(start_paused = true)]
async fn a_stream_that_begins_within_an_upload_takes_no_connection() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |settings| {
        settings.bodies.model_selection = false;
        settings.bodies.stall = None;
    })
    .await;
    let early = Script::deaf().say(events_head()).say(chunked("data: 1\n\n"));
    w.next(early.read().say(chunked("data: 2\n\n")).say("0\r\n\r\n"));
    let mut client = rig.client();
    let request = ask(CHAT_STREAM);
    let (first, second) = request.split_at(request.len() - 5);
    client.send(first).await;
    client.head().await;
    assert_eq!(client.chunk().await.as_deref(), Some(&b"data: 1\n\n"[..]));
    client.send(second).await;
    assert_eq!(client.reply_body().await, "data: 2\n\n");
    assert_eq!(w.last().body, CHAT_STREAM.as_bytes());
    client.sees_the_end().await;
    // A body that flowed and has ended is no hindrance.
    w.next(slow_stream());
    let mut client = rig.client();
    assert_eq!(client.post(PATH, &[], CHAT_STREAM).await.text(), "data: 1\n\n");
    assert_eq!(client.post(PATH, &[], CHAT).await.status, 200);
    rig.is_at_rest().await;
}
