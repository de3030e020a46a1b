//! Details of the relay that no application asks for and every intermediary owes (RFC 9110, 7.6; RFC 9112, 6).

use super::rig::*;

const PATH: &str = "/v1/chat/completions";

/// A whole answer in chunks, with these lines behind the last one.
fn in_chunks(headers: &str, body: &str, trailers: &str) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\n{headers}transfer-encoding: chunked\r\n\r\n");
    [head.as_bytes(), &chunked(body), b"0\r\n", trailers.as_bytes(), b"\r\n"].concat()
}

/// The next answer on the same connection is the worker's usual one, whatever came before it.
async fn goes_on(client: &mut Client, shown: &str) {
    assert_eq!(client.post(PATH, &[], CHAT).await.text(), r#"{"from":"w1"}"#, "{shown}");
}

#[tokio::test(start_paused = true)]
async fn what_belongs_to_one_hop_ends_there_whichever_way_it_goes() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let hop = [
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "keep-alive"),
        ("te", "trailers"),
        ("trailer", "x-sum"),
        ("upgrade", "h2c"),
        ("proxy-authenticate", "Basic"),
        // Nominated in two lists, in any case, although it would travel by itself.
        ("connection", "upgrade, TraceParent"),
        ("connection", "x-request-id, anthropic-beta"),
        ("traceparent", "00-1"),
        ("anthropic-beta", "a"),
    ];
    let mut lines: Vec<_> = hop.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    lines.push("set-cookie: a=1".to_owned());
    let lines: Vec<_> = lines.iter().map(String::as_str).collect();
    for (body, said) in [
        (CHAT, answer("200 OK", &lines, "{}").into_bytes()),
        (CHAT_STREAM, {
            let head = events_head().trim_end().to_owned() + "\r\n" + &lines.join("\r\n");
            [head.as_bytes(), b"\r\n\r\n", &chunked("data: 1\n\n"), b"0\r\n\r\n"].concat()
        }),
    ] {
        w.next(script().say(said));
        let reply = rig.chat_with(&hop, body).await;
        assert_eq!((reply.status, reply.header("set-cookie").as_deref()), (200, Some("a=1")));
        for (name, _) in hop {
            assert_eq!(reply.header(name), None, "to the client: {name}");
            assert_eq!(w.last().header(name), [""; 0], "to the worker: {name}");
        }
    }
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn trailers_of_a_worker_end_here_whoever_writes_the_answer() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let trailers = "x-sum: 5\r\ncontent-length: 9\r\nset-cookie: late\r\n";
    let plain = in_chunks("trailer: x-sum\r\n", "{}", trailers);
    let stream = in_chunks("content-type: text/event-stream\r\n", "data: 1\n\n", trailers);
    for (said, body) in [(plain, "{}"), (stream, "data: 1\n\n")] {
        w.next(script().say(&said));
        let mut client = rig.client();
        let reply = client.post(PATH, &[], CHAT_STREAM).await;
        assert_eq!(reply.text(), body);
        for name in ["trailer", "x-sum", "set-cookie"] {
            assert_eq!(reply.header(name), None);
        }
        goes_on(&mut client, body).await;
        // In chunks of its own, the request leaves its answer to hyper.
        let request =
            format!("POST {PATH} HTTP/1.1\r\nhost: gw\r\ntransfer-encoding: chunked\r\n\r\n");
        w.next(script().say(&said));
        client.send(request).await.send(chunked(CHAT_STREAM)).await.send("0\r\n\r\n").await;
        assert_eq!(client.reply().await.text(), body);
        goes_on(&mut client, body).await;
    }
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_head_alone_is_answered_where_a_get_is() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    for path in ["/health", "/liveness", "/readiness", "/v1/models", "/workers"] {
        let mut client = rig.client();
        let whole = client.get(path).await;
        client.send(format!("HEAD {path} HTTP/1.1\r\nhost: gw\r\n\r\n")).await;
        let head = client.head().await;
        assert_eq!(head.status, whole.status, "{path}");
        for name in ["content-type", "content-length"] {
            assert_eq!(head.header(name), whole.header(name), "{path}: {name}");
        }
        // No body follows: the next answer begins where this one has ended.
        assert_eq!(client.get("/liveness").await.status, 200, "{path}");
    }
    let mut client = rig.client();
    client.send(format!("HEAD {PATH} HTTP/1.1\r\nhost: gw\r\n\r\n")).await;
    assert_eq!(client.head().await.status, 405);
    goes_on(&mut client, "after 405").await;
}

#[tokio::test(start_paused = true)]
async fn answers_before_the_answer_are_read_and_dropped() {
    let hint =
        "HTTP/1.1 103 Early Hints\r\nlink: </x>\r\nset-cookie: early\r\ncontent-length: 9\r\n\r\n";
    let long = format!("HTTP/1.1 102 Processing\r\nx: {}\r\n\r\n", "x".repeat(3000));
    let again = "HTTP/1.1 100 Continue\r\n\r\n";
    for before in [hint.to_owned(), long, again.repeat(3), format!("{again}{hint}{hint}")] {
        for (body, said, text) in [
            (CHAT, json("{}").into_bytes(), "{}"),
            (CHAT_STREAM, events(&["data: 1\n\n"]), "data: 1\n\n"),
        ] {
            for pause in [0.0, 1.0] {
                let w = Worker::new("w1");
                let rig = Rig::start(&[&w], |_| {}).await;
                w.next(script().say(&before).pause(pause).say(&said));
                let mut client = rig.client();
                let reply = client.post(PATH, &[], body).await;
                assert_eq!((reply.status, reply.text()), (200, text), "{before:?}");
                assert_eq!((reply.header("link"), reply.header("set-cookie")), (None, None));
                goes_on(&mut client, &before).await;
                let on = w.now(|story| story.requests.iter().map(|r| r.on).collect::<Vec<_>>());
                assert_eq!(on[0], on[1], "{before:?}");
                rig.is_at_rest().await;
            }
        }
    }
}

/// Whoever asks before it uploads hears a refusal instead of an invitation, and uploads nothing.
#[tokio::test(start_paused = true)]
async fn an_upload_that_is_refused_by_its_head_is_not_invited() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |settings| settings.bodies.max_payload = 1000).await;
    let expect = "expect: 100-continue\r\n";
    for (line, headers, status) in [
        (PATH, "content-length: 1001\r\n", 413),
        ("/nowhere", "content-length: 10\r\n", 404),
        ("/v1/models", "content-length: 10\r\n", 405),
        (PATH, "transfer-encoding: gzip, chunked\r\n", 400),
        (PATH, "routing-strategy: none-such\r\ncontent-length: 10\r\n", 400),
        (PATH, "content-length: 10\r\ncontent-encoding: br\r\n", 415),
    ] {
        let mut client = rig.client();
        client.send(format!("POST {line} HTTP/1.1\r\nhost: gw\r\n{expect}{headers}\r\n")).await;
        assert_eq!(client.reply().await.status, status, "{line}, {headers}");
        assert_eq!(w.served(), 0);
        client.leave().await;
    }
    // In chunks nobody knows how much will come: it is invited and refused as it grows.
    let mut client = rig.client();
    let head =
        format!("POST {PATH} HTTP/1.1\r\nhost: gw\r\n{expect}transfer-encoding: chunked\r\n\r\n");
    assert_eq!(client.send(head).await.head().await.status, 100);
    client.send(chunked("x".repeat(1001))).await;
    assert_eq!(client.reply().await.status, 413);
    client.leave().await;
    rig.is_at_rest().await;
}

/// The invitation goes out when the body is wanted: for one that flows, when its worker takes it.
#[tokio::test(start_paused = true)]
async fn an_upload_is_invited_before_its_body_is_read_and_once() {
    for read in [true, false] {
        let w = Worker::new("w1");
        let rig = Rig::start(&[&w], |settings| settings.bodies.model_selection = read).await;
        let mut client = rig.client();
        let length = CHAT.len();
        let head = format!("POST {PATH} HTTP/1.1\r\nhost: gw\r\nexpect: 100-Continue\r\n");
        client.send(format!("{head}content-length: {length}\r\n\r\n")).await;
        assert_eq!(client.head().await.status, 100);
        let (first, second) = CHAT.split_at(5);
        client.send(first).await;
        later(1.0).await;
        client.send(second).await;
        assert_eq!(client.reply().await.status, 200);
        assert_eq!((w.last().body, w.last().header("expect")), (CHAT.as_bytes().to_vec(), vec![]));
        // Who does not wait for it needs none.
        client.send(format!("{head}content-length: {length}\r\n\r\n{CHAT}")).await;
        let mut reply = client.reply().await;
        if reply.status == 100 {
            reply = client.reply().await;
        }
        assert_eq!(reply.status, 200);
        goes_on(&mut client, "after the invitation").await;
        rig.is_at_rest().await;
    }
}

/// Whatever a worker puts behind the head of such an answer is no body, and no answer to anybody else.
#[tokio::test(start_paused = true)]
async fn a_status_without_a_body_has_none_though_its_worker_sends_one() {
    let smuggled = json(r#"{"not":"yours"}"#);
    for status in ["204 No Content", "304 Not Modified"] {
        for (headers, body) in [
            (format!("content-length: {}\r\n", smuggled.len()), smuggled.clone()),
            ("content-length: 500\r\n".to_owned(), String::new()),
            (
                "transfer-encoding: chunked\r\n".to_owned(),
                format!("{:x}\r\n{smuggled}\r\n0\r\n\r\n", smuggled.len()),
            ),
            (
                "content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n".to_owned(),
                "0\r\n\r\n".to_owned(),
            ),
            (String::new(), smuggled.clone()),
        ] {
            let w = Worker::new("w1");
            let rig = Rig::start(&[&w], |_| {}).await;
            w.next(script().say(format!("HTTP/1.1 {status}\r\n{headers}\r\n{body}")));
            let mut client = rig.client();
            client.send(post(PATH, &[], CHAT_STREAM)).await;
            let head = client.head().await;
            assert!(status.starts_with(&head.status.to_string()), "{}", head.status);
            for _ in 0..2 {
                goes_on(&mut client, &format!("{status}, {headers:?}")).await;
            }
            rig.is_at_rest().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_length_that_a_worker_says_twice_alike_is_one_and_chunks_beat_it() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let ok = "HTTP/1.1 200 OK\r\n";
    for said in [
        format!("{ok}content-length: 2\r\ncontent-length: 2\r\n\r\n{{}}"),
        format!("{ok}content-length: 2, 2\r\n\r\n{{}}"),
        format!(
            "{ok}content-length: 9\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n"
        ),
        format!(
            "{ok}transfer-encoding: chunked\r\ncontent-length: 1\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n"
        ),
    ] {
        w.next(script().say(&said));
        let mut client = rig.client();
        let reply = client.post(PATH, &[], CHAT).await;
        assert_eq!((reply.status, reply.text()), (200, "{}"), "{said:?}");
        assert_eq!(reply.header("content-length").as_deref(), Some("2"), "{said:?}");
        goes_on(&mut client, &said).await;
    }
    for said in [
        format!("{ok}content-length: 2\r\ncontent-length: 3\r\n\r\n{{}}"),
        format!("{ok}content-length: 2, 3\r\n\r\n{{}}"),
        format!("{ok}content-length: +2\r\n\r\n{{}}"),
        format!("{ok}content-length: -2\r\n\r\n{{}}"),
    ] {
        w.next(script().say(&said).hang());
        rig.chat(CHAT).await.is_refusal(500, "call_upstream_request_error");
    }
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_shorter_than_its_length_has_no_end_and_one_longer_ends_in_time() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length:";
    for (length, sent, whole) in [
        (18, "data: 1\n\n", false),
        (12, "data: 1\n\nda", false),
        (9, "data: 1\n\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", true),
    ] {
        let w = Worker::new("w1");
        let rig = Rig::start(&[&w], |_| {}).await;
        let said = script().say(format!("{head} {length}\r\n\r\n{sent}"));
        w.next(if whole { said } else { said.close() });
        let mut client = rig.client();
        let reply = client.post(PATH, &[], CHAT_STREAM).await;
        let told = reply.text().contains("read_response_body_failed");
        let broken = told || reply.ended == Ended::Unterminated;
        assert_eq!(broken, !whole, "{length}: {} {:?}", reply.text(), reply.ended);
        if whole {
            assert_eq!((reply.text(), reply.ended), ("data: 1\n\n", Ended::LastChunk));
            goes_on(&mut client, sent).await;
        }
        rig.is_at_rest().await;
    }
}

/// Nobody unpacks an answer here, so nothing of ours may be put between its bytes.
#[tokio::test(start_paused = true)]
async fn a_packed_answer_keeps_its_header_and_its_bytes() {
    let packed = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff, b'\n', b'\n', 0, 0xff];
    for kind in ["application/json", "text/event-stream"] {
        let w = Worker::serving("w1", &["minimax-m2"]);
        let rig = Rig::start(&[&w], |settings| {
            settings.sse_keepalive =
                (kind == "text/event-stream").then(|| std::time::Duration::from_secs(5));
        })
        .await;
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-encoding: gzip\r\nvary: accept-encoding\r\ntransfer-encoding: chunked\r\n\r\n"
        );
        let halves = || script().say(&head).say(chunked(&packed[..12])).pause(12.0);
        let body = r#"{"model":"minimax-m2","messages":[],"stream":true}"#;
        w.next(halves().say(chunked(&packed[12..])).say("0\r\n\r\n"));
        let reply = rig.chat(body).await;
        assert_eq!(reply.header("content-encoding").as_deref(), Some("gzip"), "{kind}");
        assert_eq!(reply.header("vary").as_deref(), Some("accept-encoding"));
        assert_eq!((&reply.body[..], reply.status), (&packed[..], 200), "{kind}");
        // Nor an error in clear text, where it breaks.
        w.next(halves().close());
        let reply = rig.chat(body).await;
        if kind == "text/event-stream" {
            assert_eq!((&reply.body[..], reply.ended), (&packed[..12], Ended::Unterminated));
        } else {
            reply.is_refusal(500, "read_response_body_failed");
        }
        rig.is_at_rest().await;
    }
}
