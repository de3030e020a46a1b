//! Requests that two parsers might read in two ways. Each is refused and its connection closed, or its worker sees
//! exactly one request whose length can be read in one way only. Behind or within most of them stands a whole second
//! request, which must never be served.

use super::rig::*;

const LINE: &str = "POST /v1/chat/completions HTTP/1.1\r\nhost: gw\r\n";
/// What hides. Its own path tells it apart wherever it comes out.
const HIDDEN: &str = "POST /v1/completions HTTP/1.1\r\nhost: gw\r\ncontent-length: 26\r\n\r\n{\"model\":\"m\",\"prompt\":\"h\"}";

/// Bodies are read before they are sent, or sent as they arrive.
const WAYS: [bool; 2] = [true, false];

async fn rig(w: &Worker, read: bool) -> Rig {
    Rig::start(&[w], |settings| settings.bodies.model_selection = read).await
}

/// A body of one chunk.
fn in_chunks() -> String {
    format!("{:x}\r\n{CHAT}\r\n0\r\n\r\n", CHAT.len())
}

/// All of these are refused, their connections closed at once, and the worker hears of none.
async fn are_refused(requests: &[Vec<u8>]) {
    for read in WAYS {
        let w = Worker::new("w1");
        let rig = rig(&w, read).await;
        for request in requests {
            let shown: String = String::from_utf8_lossy(request).chars().take(200).collect();
            let mut client = rig.client();
            client.try_send([request, HIDDEN.as_bytes()].concat()).await;
            let begun = tokio::time::Instant::now();
            let said = String::from_utf8(client.rest().await).unwrap();
            assert!(said.starts_with("HTTP/1.1 4"), "{shown:?}: {said}");
            assert_eq!(said.matches("HTTP/1.1 ").count(), 1, "{shown:?}: {said}");
            assert!(begun.elapsed().as_secs() <= 10, "{shown:?}");
            assert_eq!(w.served(), 0, "{shown:?}");
        }
        rig.is_at_rest().await;
    }
}

/// The worker's last request is the chat and nothing else, and says once how long it is.
#[track_caller]
fn is_one_chat(w: &Worker, shown: &str) {
    let got = w.last();
    assert!(
        got.head.starts_with("POST /v1/chat/completions HTTP/1.1\r\n"),
        "{shown:?}: {}",
        got.head
    );
    assert_eq!(got.body, CHAT.as_bytes(), "{shown:?}");
    let told = [got.header("content-length"), got.header("transfer-encoding")].concat();
    let length = CHAT.len().to_string();
    assert!(told == [&*length] || told == ["chunked"], "{shown:?}: {told:?}");
    assert_eq!(got.header("host"), ["w1:8000"], "{shown:?}");
    for name in ["connection", "upgrade", "te", "trailer", "expect"] {
        assert_eq!(got.header(name), [""; 0], "{shown:?}");
    }
}

/// Each of these is one chat for the worker, and the connection goes on in step.
async fn are_one_chat(requests: &[Vec<u8>]) {
    for read in WAYS {
        let w = Worker::new("w1");
        let rig = rig(&w, read).await;
        for (at, request) in requests.iter().enumerate() {
            let shown = String::from_utf8_lossy(request);
            let mut client = rig.client();
            let mut reply = client.send(request).await.reply().await;
            if reply.status == 100 {
                reply = client.reply().await;
            }
            assert_eq!((reply.status, w.served()), (200, 2 * at + 1), "{shown:?}");
            is_one_chat(&w, &shown);
            assert_eq!(
                client.post("/v1/chat/completions", &[], CHAT).await.status,
                200,
                "{shown:?}"
            );
        }
        rig.is_at_rest().await;
    }
}

fn all<const N: usize>(heads: [String; N], body: &str) -> Vec<Vec<u8>> {
    heads.map(|head| format!("{LINE}{head}\r\n\r\n{body}").into_bytes()).to_vec()
}

#[tokio::test(start_paused = true)]
async fn lengths_that_are_no_number_are_refused() {
    let l = CHAT.len();
    are_refused(&all(
        [
            format!("content-length: {l}\r\ncontent-length: 0"),
            format!("content-length: 0\r\ncontent-length: {l}"),
            format!("content-length: {l}\r\nContent-Length: {l}, {l}"),
            format!("content-length: +{l}"),
            format!("content-length: -{l}"),
            format!("content-length: {l}, {l}"),
            format!("content-length: {l},"),
            format!("content-length: {l} {l}"),
            format!("content-length: 0x{l:x}"),
            format!("content-length: {l}.0"),
            format!("content-length: \"{l}\""),
            "content-length:".to_owned(),
            "content-length: 18446744073709551643".to_owned(),
            format!("content-length : {l}"),
            format!("content-length\t: {l}"),
            format!("content-length:\r\n {l}"),
            format!("content-length: {l}\r\n {l}"),
            format!("content-length: {l}\0"),
            format!("content-length: {l}\rx: y"),
        ],
        CHAT,
    ))
    .await;
}

#[tokio::test(start_paused = true)]
async fn transfer_codings_other_than_chunked_once_are_refused() {
    let requests = all(
        [
            "transfer-encoding: identity",
            "transfer-encoding: gzip",
            "transfer-encoding: xchunked",
            "transfer-encoding: chunked;q=1",
            "transfer-encoding: \"chunked\"",
            "transfer-encoding: chunked, identity",
            "transfer-encoding: chunked, gzip",
            "transfer-encoding: gzip, chunked",
            "transfer-encoding: identity, chunked",
            "transfer-encoding: chunked, chunked",
            "transfer-encoding: , chunked",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked",
            "transfer-encoding: identity\r\ntransfer-encoding: chunked",
            "transfer-encoding: chunked\r\ntransfer-encoding: identity",
            "transfer-encoding: chunked\r\ntransfer-encoding:",
            "transfer-encoding : chunked",
            "transfer-encoding\t: chunked",
            "transfer-encoding:\r\n chunked",
            "transfer-encoding: \x0bchunked",
            "transfer-encoding: chunked\0",
            "transfer-encoding: chun\rked",
            "x: y\r transfer-encoding: chunked",
        ]
        .map(str::to_owned),
        &in_chunks(),
    );
    are_refused(&requests).await;
    let old = LINE.replace("1.1", "1.0");
    are_refused(&[format!("{old}transfer-encoding: chunked\r\n\r\n{}", in_chunks()).into()]).await;
}

#[tokio::test(start_paused = true)]
async fn heads_that_are_none_are_refused() {
    let l = format!("content-length: {}", CHAT.len());
    let mut requests = all(
        [
            format!(" {l}"),
            format!("x\r\n{l}"),
            format!(": x\r\n{l}"),
            format!("(x): y\r\n{l}"),
            format!("x y: z\r\n{l}"),
            format!("\"x\": y\r\n{l}"),
            format!("x\0: y\r\n{l}"),
            format!("x: \0\r\n{l}"),
            format!("x\u{e9}: y\r\n{l}"),
            format!("x: y\r\n\tz\r\n{l}"),
            format!("x: y\rz: {l}"),
            format!("host: other\r\n{l}"),
            format!("x: {}\r\n{l}", "y".repeat(300_000)),
            format!("{}{l}", "x: y\r\n".repeat(200)),
        ],
        CHAT,
    );
    for line in [
        "POST  /v1/chat/completions HTTP/1.1",
        "POST\t/v1/chat/completions HTTP/1.1",
        "POST /v1/chat/completions  HTTP/1.1",
        "POST /v1/chat/completions HTTP/1.1 ",
        "POST /v1/chat/completions HTTP/1.2",
        "POST /v1/chat/completions http/1.1",
        "POST /v1/chat /completions HTTP/1.1",
        "POST /v1/chat\0/completions HTTP/1.1",
        "POST /v1/chat/completions",
        " POST /v1/chat/completions HTTP/1.1",
        "P(ST /v1/chat/completions HTTP/1.1",
        "PRI * HTTP/2.0",
    ] {
        requests.push(format!("{line}\r\nhost: gw\r\n{l}\r\n\r\n{CHAT}").into());
    }
    are_refused(&requests).await;
}

#[tokio::test(start_paused = true)]
async fn who_wants_a_tunnel_is_refused_and_nothing_that_follows_is_read() {
    are_refused(&[
        b"CONNECT gw:80 HTTP/1.1\r\nhost: gw:80\r\n\r\n".to_vec(),
        "CONNECT gw:80 HTTP/1.1\r\nhost: gw:80\r\ncontent-length: 5\r\n\r\n".into(),
        "CONNECT /v1/chat/completions HTTP/1.1\r\nhost: gw\r\n\r\n".into(),
    ])
    .await;
}

/// What a chunk says of its length is as dangerous as what a head says.
#[tokio::test(start_paused = true)]
async fn chunks_that_are_none_end_the_connection_unserved() {
    let n = format!("{:x}", CHAT.len());
    for body in [
        format!("+{n}\r\n{CHAT}\r\n0\r\n\r\n"),
        format!("-{n}\r\n{CHAT}\r\n0\r\n\r\n"),
        format!(" {n}\r\n{CHAT}\r\n0\r\n\r\n"),
        format!("0x{n}\r\n{CHAT}\r\n0\r\n\r\n"),
        format!("{n}_\r\n{CHAT}\r\n0\r\n\r\n"),
        format!("{n} {n}\r\n{CHAT}\r\n0\r\n\r\n"),
        format!("{n}\n{CHAT}\r\n0\r\n\r\n"),
        format!("{n}\r{CHAT}\r\n0\r\n\r\n"),
        format!("{n}\0\r\n{CHAT}\r\n0\r\n\r\n"),
        format!("\r\n{CHAT}\r\n0\r\n\r\n"),
        format!(";a=b\r\n{CHAT}\r\n0\r\n\r\n"),
        format!("1000000000000000{n}\r\n{CHAT}\r\n0\r\n\r\n"),
        format!("{n};a\n{CHAT}\r\n0\r\n\r\n"),
        format!("{n};{}\r\n{CHAT}\r\n0\r\n\r\n", "x".repeat(20_000)),
        format!("{n}\r\n{CHAT}0\r\n\r\n"),
        format!("{n}\r\n{CHAT}\n0\r\n\r\n"),
        format!("{n}\r\n{CHAT}xx\r\n0\r\n\r\n"),
        format!("{n}\r\n{CHAT}\r\n0\r\nx: {}\r\n\r\n", "x".repeat(70_000)),
        // Ever so much is to come, so that all that follows is its body.
        format!("7fffffffffffffff\r\n{CHAT}\r\n0\r\n\r\n"),
        format!("{n}\r\n{CHAT}\r\n00\r\n"),
    ] {
        let w = Worker::new("w1");
        let rig = rig(&w, true).await;
        let shown: String = body.chars().take(80).collect();
        let mut client = rig.client();
        client.try_send(format!("{LINE}transfer-encoding: chunked\r\n\r\n{body}{HIDDEN}")).await;
        let said = String::from_utf8(client.rest().await).unwrap();
        assert!(said.is_empty() || said.starts_with("HTTP/1.1 4"), "{shown:?}: {said}");
        assert!(said.matches("HTTP/1.1 ").count() <= 1, "{shown:?}: {said}");
        assert_eq!(w.served(), 0, "{shown:?}");
        rig.is_at_rest().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_can_be_read_in_one_way_is_written_anew() {
    let l = format!("content-length: {}", CHAT.len());
    let mut requests = all(
        [
            format!("{l}\r\n{l}"),
            format!("content-length: 00{}", CHAT.len()),
            format!("content-length:\t {} \t", CHAT.len()),
            format!("{l}\r\nconnection: content-length, host, content-type"),
            format!(
                "{l}\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AA"
            ),
            format!("{l}\r\nconnection: upgrade\r\nupgrade: websocket"),
            format!("{l}\r\nexpect: 100-continue"),
            format!("{l}\r\nexpect: something-else"),
            format!("{l}\r\nte: trailers, gzip\r\nconnection: te"),
            format!("{l}\r\ntrailer: content-length"),
            format!("{l}\r\nx-a: b\nx-c: d"),
        ],
        CHAT,
    );
    requests.extend(all(
        [
            "Transfer-Encoding: Chunked".to_owned(),
            "transfer-encoding:\tchunked ".to_owned(),
            "transfer-encoding: chunked\r\nconnection: transfer-encoding".to_owned(),
            "transfer-encoding: chunked\r\ntrailer: content-length".to_owned(),
        ],
        &in_chunks(),
    ));
    let n = format!("{:x}", CHAT.len());
    for body in [
        format!("{n};a=b;c=\"d\"\r\n{CHAT}\r\n0;e\r\n\r\n"),
        format!("000{}\r\n{CHAT}\r\n000\r\n\r\n", n.to_uppercase()),
        format!("{n} \t\r\n{CHAT}\r\n0\r\n\r\n"),
        format!("{n}\r\n{CHAT}\r\n0\r\ncontent-length: 5\r\nhost: x\r\n\r\n"),
        format!("{n}\r\n{CHAT}\r\n0\r\ntransfer-encoding: chunked\r\n\r\n"),
    ] {
        requests.push(format!("{LINE}transfer-encoding: chunked\r\n\r\n{body}").into());
    }
    requests.push(format!("\r\n{LINE}{l}\r\n\r\n{CHAT}").into());
    requests.push(format!("{LINE}{l}\r\n\r\n{CHAT}").replace("\r\n", "\n").into());
    for target in ["http://elsewhere:9/v1/chat/completions", "http://u:p@gw/v1/chat/completions"] {
        let line = LINE.replace("/v1/chat/completions", target);
        requests.push(format!("{line}{l}\r\n\r\n{CHAT}").into());
    }
    are_one_chat(&requests).await;
}

/// With both a length and chunks the chunks count, and the connection ends (RFC 9112, 6.1), also after a stream, for which
/// another than the parser has the connection.
#[tokio::test(start_paused = true)]
async fn after_a_length_beside_chunks_nothing_more_is_read() {
    let body = in_chunks();
    let (short, long) = (4, body.len() + HIDDEN.len());
    for head in [
        format!("content-length: {long}\r\ntransfer-encoding: chunked"),
        format!("transfer-encoding: chunked\r\ncontent-length: {long}"),
        format!("content-length: {short}\r\ntransfer-encoding: chunked"),
        format!("transfer-encoding: chunked\r\ncontent-length: {short}"),
        format!(
            "content-length: {short}\r\nx: y\r\ntransfer-encoding: chunked\r\nconnection: keep-alive"
        ),
        "transfer-encoding: chunked\r\ncontent-length: no-number".to_owned(),
    ] {
        for (answer, said) in
            [(json("{}").into_bytes(), "{}"), (events(&["data: 1\n\n"]), "data: 1\n\n")]
        {
            let w = Worker::new("w1");
            let rig = rig(&w, true).await;
            w.next(script().say(answer));
            let mut client = rig.client();
            client.send(format!("{LINE}{head}\r\n\r\n{body}{HIDDEN}")).await;
            assert_eq!(client.reply().await.text(), said, "{head:?}");
            client.sees_the_end().await;
            is_one_chat(&w, &head);
            assert_eq!(w.served(), 1, "{head:?}");
            rig.is_at_rest().await;
        }
    }
}

/// A body is read past or its connection closed, also where nobody wants one.
#[tokio::test(start_paused = true)]
async fn a_body_that_nobody_reads_is_not_the_next_request() {
    let length = HIDDEN.len();
    let chunk = format!("{length:x}\r\n{HIDDEN}\r\n0\r\n\r\n");
    for line in [
        "GET /health",
        "GET /v1/models",
        "HEAD /health",
        "OPTIONS /v1/models",
        "GET /v1/chat/completions",
        "DELETE /nowhere",
        "POST /nowhere",
        "GET http://elsewhere/health",
    ] {
        for framed in [
            format!("content-length: {length}\r\n\r\n{HIDDEN}"),
            format!("transfer-encoding: chunked\r\n\r\n{chunk}"),
        ] {
            let w = Worker::new("w1");
            let rig = rig(&w, true).await;
            let mut client = rig.client();
            client.send(format!("{line} HTTP/1.1\r\nhost: gw\r\n{framed}")).await;
            client.head().await;
            later(20.0).await;
            // Served or closed: either way the worker has seen nothing of it.
            client
                .try_send("GET /liveness HTTP/1.1\r\nhost: gw\r\nconnection: close\r\n\r\n")
                .await;
            let said = String::from_utf8(client.rest().await).unwrap();
            assert!(said.matches("HTTP/1.1 ").count() <= 1, "{line}: {said}");
            assert_eq!(w.served(), 0, "{line}: {said}");
            rig.is_at_rest().await;
        }
    }
}
