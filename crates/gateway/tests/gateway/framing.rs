//! Requests whose bytes can be read in two ways: refused, and nothing of them reaches a worker.

use super::rig::*;

const LINE: &str = "POST /v1/chat/completions HTTP/1.1\r\nhost: gw\r\n";
/// A request that must never be taken for one when it travels inside another's body.
const HIDDEN: &str = "POST /v1/completions HTTP/1.1\r\nhost: gw\r\ncontent-length: 26\r\n\r\n{\"model\":\"m\",\"prompt\":\"h\"}";

#[tokio::test(start_paused = true)]
async fn ambiguous_framing_is_refused() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let length = CHAT.len();
    for headers in [
        format!("content-length: -{length}\r\n"),
        format!("content-length: +{length}\r\n"),
        format!("content-length: {length}, 0\r\n"),
        format!("content-length: {length}\r\ncontent-length: 0\r\n"),
        format!("content-length: 0\r\ncontent-length: {length}\r\n"),
        "content-length: 0x1b\r\n".to_owned(),
        "content-length: ten\r\n".to_owned(),
        "content-length: \r\n".to_owned(),
        "content-length: 1 7\r\n".to_owned(),
        "content-length: 99999999999999999999999999\r\n".to_owned(),
        format!("content-length : {length}\r\n"),
        format!("x\r\ncontent-length: {length}\r\n"),
        format!(" content-length: {length}\r\n"),
        "transfer-encoding: identity\r\n".to_owned(),
        "transfer-encoding: gzip\r\n".to_owned(),
        "transfer-encoding: chunked, gzip\r\n".to_owned(),
        "transfer-encoding: xchunked\r\n".to_owned(),
        "transfer-encoding : chunked\r\n".to_owned(),
        format!("transfer-encoding: \x0bchunked\r\ncontent-length: {length}\r\n"),
    ] {
        let mut client = rig.client();
        client.send(format!("{LINE}{headers}\r\n{CHAT}{HIDDEN}")).await;
        let said = String::from_utf8(client.rest().await).unwrap();
        assert!(said.starts_with("HTTP/1.1 400 "), "{headers:?}: {said}");
        assert_eq!(said.matches("HTTP/1.1").count(), 1, "{headers:?}: {said}");
    }
    assert_eq!(w.served(), 0);
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_inside_a_body_stays_there() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let inside = [chunked(CHAT), b"0\r\n\r\n".to_vec()].concat();
    for headers in [
        format!(
            "content-length: {}\r\ntransfer-encoding: chunked\r\n",
            inside.len() + HIDDEN.len()
        ),
        "transfer-encoding: chunked\r\ncontent-length: 4\r\n".to_owned(),
        "transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n".to_owned(),
    ] {
        let mut client = rig.client();
        client
            .send(format!("{LINE}{headers}\r\n"))
            .await
            .send(&inside)
            .await
            .try_send(HIDDEN)
            .await;
        client.half_close().await;
        client.rest().await;
    }
    let paths = w.now(|story| {
        story.requests.iter().map(|r| r.head.contains("/v1/completions ")).collect::<Vec<_>>()
    });
    assert!(!paths.contains(&true), "a hidden request was served");
    assert!(paths.len() <= 3);
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn broken_chunks_are_refused() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let n = format!("{:x}", CHAT.len());
    for body in [
        format!("0x{n}\r\n{CHAT}\r\n0\r\n\r\n"),
        format!("{n}\n{CHAT}\r\n0\r\n\r\n"),
        format!("-{n}\r\n{CHAT}\r\n0\r\n\r\n"),
        format!("{n}\r\n{CHAT}xx0\r\n\r\n"),
        format!("g\r\n{CHAT}\r\n0\r\n\r\n"),
        format!("ffffffffffffffff1\r\n{CHAT}\r\n0\r\n\r\n"),
        format!("\r\n{CHAT}\r\n0\r\n\r\n"),
    ] {
        let mut client = rig.client();
        client.send(format!("{LINE}transfer-encoding: chunked\r\n\r\n{body}")).await;
        client.half_close().await;
        let said = String::from_utf8(client.rest().await).unwrap();
        assert!(said.is_empty() || said.starts_with("HTTP/1.1 400 "), "{body:?}: {said}");
    }
    assert_eq!(w.served(), 0);
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_no_http_is_refused() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let many: String = (0..200).map(|n| format!("x-{n}: 1\r\n")).collect();
    let long = format!("{LINE}x-long: {}\r\n\r\n", "x".repeat(2 << 20));
    let far = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(70_000));
    for (sent, status) in [
        ("nonsense\r\n\r\n", "400"),
        ("GET / HTTP/9.9\r\n\r\n", "400"),
        ("GET /\0 HTTP/1.1\r\n\r\n", "400"),
        ("\x16\x03\x01\x02\0\x01\0\x01\u{fc}\x03\x03", "400"),
        (&format!("{LINE}{many}\r\n"), "431"),
        (&long, "431"),
        // Longer than a head may be, so that nobody looks at it as a target.
        (&far, "431"),
    ] {
        let mut client = rig.client();
        client.try_send(sent).await;
        let said = String::from_utf8(client.rest().await).unwrap();
        let shown: String = sent.chars().take(40).collect();
        assert!(said.starts_with(&format!("HTTP/1.1 {status}")), "{shown:?}: {said}");
    }
    assert_eq!(w.served(), 0);
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_head_may_be_as_long_as_said_and_no_longer() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |to| to.clients.max_header_bytes = 9000).await;
    let head_of = |bytes: usize| {
        let rest = format!("content-length: {}\r\n\r\n", CHAT.len());
        let padded = bytes - LINE.len() - "x: \r\n".len() - rest.len();
        format!("{LINE}x: {}\r\n{rest}", "x".repeat(padded))
    };
    for (bytes, pieces, status) in [
        (9000, 1, 200),
        (9000, 2, 200),
        (9001, 1, 431),
        (9001, 2, 431),
        (60_000, 1, 431),
        (60_000, 5, 431),
    ] {
        let sent = head_of(bytes) + CHAT;
        let mut client = rig.client();
        for piece in sent.as_bytes().chunks(sent.len().div_ceil(pieces)) {
            client.try_send(piece).await;
            settle().await;
        }
        let head = client.head().await;
        assert_eq!(head.status, status, "{bytes} bytes in {pieces} pieces");
    }
    assert_eq!(w.served(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_client_of_http_1_0_is_served_and_its_connection_closed() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    w.next(script().say(events(&["data: 1\n\n", "data: 2\n\n"])));
    let mut client = rig.client();
    let length = CHAT_STREAM.len();
    client
        .send(format!(
            "POST /v1/chat/completions HTTP/1.0\r\ncontent-length: {length}\r\n\r\n{CHAT_STREAM}"
        ))
        .await;
    let reply = client.reply().await;
    assert_eq!((reply.status, reply.text()), (200, "data: 1\n\ndata: 2\n\n"));
    assert_eq!(reply.header("transfer-encoding"), None);
}
