//! Answers on their way: whole ones and streams, their headers and their bytes.

use super::rig::*;

#[tokio::test(start_paused = true)]
async fn a_whole_answer_is_passed_on_byte_for_byte() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let body = "{\"n\":12345678901234567890123, \"f\":1.10,\"u\":\"\u{e9}\"}\n";
    w.next(script().say(json(body)));
    let sent = r#" {"messages":[{"x":1.50}], "seed":9007199254740993,"model":"m","z":null} "#;
    let reply = rig.chat(sent).await;
    assert_eq!((reply.status, reply.text()), (200, body));
    assert_eq!(reply.ended, Ended::Length);
    assert_eq!(reply.header("x-smg-routed-worker-id").as_deref(), Some("http://w1:8000"));
    // Its tokens, that is: what stands between them pleases the eye only.
    assert_eq!(w.last().body, sent.replace(' ', "").as_bytes());
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn an_event_stream_is_passed_on_byte_for_byte() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let whole =
        "data: {\"a\":\"\u{20ac}\u{1f600}\"}\r\n\r\n: note\n\ndata:x\ndata: y\n\ndata: [DONE]\n\n";
    for cut in 1..whole.len() {
        let (a, b) = whole.as_bytes().split_at(cut);
        let stream = script().say(events_head()).say(chunked(a)).pause(0.1).say(chunked(b));
        w.next(stream.say("0\r\n\r\n"));
        let reply = rig.chat(CHAT_STREAM).await;
        assert_eq!((reply.text(), reply.ended), (whole, Ended::LastChunk), "cut at {cut}");
        assert_eq!(reply.header("content-type").as_deref(), Some("text/event-stream"));
        assert_eq!(reply.worker(), "w1");
    }
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn every_event_travels_on_its_own_as_soon_as_it_comes() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let mut stream = script().say(events_head()).pause(1.5);
    for n in 0..5 {
        stream = stream.say(chunked(format!("data: {n}\n\n"))).pause(0.2);
    }
    w.next(stream.say("0\r\n\r\n"));
    let mut client = rig.client();
    client.send(post("/v1/chat/completions", &[], CHAT_STREAM)).await;
    let begun = tokio::time::Instant::now();
    assert_eq!(client.head().await.status, 200);
    assert!(begun.elapsed().is_zero(), "the head waits for the first event");
    for n in 0..5 {
        let event = client.chunk().await.unwrap();
        assert_eq!(event, format!("data: {n}\n\n").as_bytes());
        assert_eq!(begun.elapsed().as_millis(), 1500 + 200 * n);
    }
}

#[tokio::test(start_paused = true)]
async fn empty_chunks_and_trailers_end_at_the_gateway() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let answer = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntrailer: x-sum\r\ntransfer-encoding: chunked\r\n\r\n";
    w.next(
        script()
            .say(answer)
            .say(chunked("data: 1\n\n"))
            .pause(0.1)
            .say(chunked("data: 2\n\n"))
            .say("0\r\nx-sum: 5\r\n\r\n"),
    );
    let mut client = rig.client();
    let reply = client.post("/v1/chat/completions", &[], CHAT_STREAM).await;
    assert_eq!(reply.text(), "data: 1\n\ndata: 2\n\n");
    assert_eq!((reply.header("trailer"), reply.ended), (None, Ended::LastChunk));
    // The connection is in step: the next answer is the next answer.
    assert_eq!(client.post("/v1/chat/completions", &[], CHAT).await.text(), r#"{"from":"w1"}"#);
    assert_eq!(w.last().on, w.now(|story| story.requests[0].on));
}

#[tokio::test(start_paused = true)]
async fn only_headers_that_travel_reach_the_worker() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let sent = [
        ("authorization", "Bearer k"),
        ("X-Request-ID", "r1"),
        ("x-correlation-id", "c1"),
        ("traceparent", "00-1"),
        ("x-smg-routing-key", "k1"),
        ("anthropic-beta", "a"),
        ("anthropic-beta", "b"),
        ("cookie", "secret"),
        ("user-agent", "sdk"),
        ("x-custom", "1"),
        ("accept-encoding", "gzip"),
        ("content-type", "text/plain"),
        ("connection", "keep-alive, tracestate"),
        ("tracestate", "nominated"),
        ("te", "trailers"),
        ("x-smg-target-worker", "0"),
    ];
    assert_eq!(rig.chat_with(&sent, CHAT).await.status, 200);
    let got = w.last();
    let names = got.head.lines().skip(1).filter_map(|line| line.split_once(": "));
    let mut names: Vec<_> = names.map(|(name, _)| name.to_ascii_lowercase()).collect();
    names.sort();
    let wanted = [
        "accept",
        "anthropic-beta",
        "anthropic-beta",
        "authorization",
        "content-length",
        "content-type",
        "host",
        "traceparent",
        "x-correlation-id",
        "x-request-id",
        "x-smg-routing-key",
    ];
    assert_eq!(names, wanted);
    assert_eq!(got.header("anthropic-beta"), ["a", "b"]);
    assert_eq!(got.header("content-type"), ["application/json"]);
    assert_eq!(got.header("host"), ["w1:8000"]);
}

#[tokio::test(start_paused = true)]
async fn only_headers_that_travel_reach_the_client() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let lines = [
        "content-type: application/json",
        "set-cookie: a=1",
        "set-cookie: b=2",
        "retry-after: 7",
        "x-odd: caf\u{e9}",
        "server: engine",
        "connection: keep-alive, x-private",
        "keep-alive: timeout=5",
        "x-private: 1",
        "x-request-id: the-workers",
        "x-smg-error-code: made_up",
        "x-smg-routed-worker-id: http://elsewhere",
        "proxy-connection: keep-alive",
    ];
    w.next(script().say(answer("429 Slow Down", &lines, "{}")));
    let reply = rig.chat_with(&[("x-request-id", "mine")], CHAT).await;
    assert_eq!((reply.status, reply.text()), (429, "{}"));
    for (name, value) in [
        ("set-cookie", Some("a=1|b=2")),
        ("retry-after", Some("7")),
        ("x-odd", Some("caf\u{c3}\u{a9}")),
        ("server", Some("engine")),
        ("x-request-id", Some("mine")),
        ("x-smg-routed-worker-id", Some("http://w1:8000")),
        ("x-smg-error-code", None),
        ("x-private", None),
        ("keep-alive", None),
        ("proxy-connection", None),
    ] {
        assert_eq!(reply.header(name).as_deref(), value, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_id_is_kept_or_made() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let id = |reply: &Reply| reply.header("x-request-id").unwrap();
    for (headers, kept) in [
        (vec![("x-request-id", "r")], "r"),
        (vec![("x-correlation-id", "c")], "c"),
        (vec![("x-correlation-id", "c"), ("x-request-id", "r")], "r"),
        (vec![("x-request-id", ""), ("x-correlation-id", "c")], "c"),
    ] {
        assert_eq!(id(&rig.chat_with(&headers, CHAT).await), kept, "{headers:?}");
    }
    let made = id(&rig.chat(CHAT).await);
    assert!(made.starts_with("chatcmpl-") && made.len() == 9 + 24, "{made}");
    assert_ne!(made, id(&rig.chat(CHAT).await));
    let body = r#"{"model":"m","prompt":"x"}"#;
    let reply = rig.client().post("/v1/completions", &[], body).await;
    assert!(id(&reply).starts_with("cmpl-") && reply.status == 200);
    // Answers of the gateway's own carry one too.
    assert!(id(&rig.get("/nowhere").await).starts_with("req-"));
    assert!(id(&rig.chat("x").await).starts_with("chatcmpl-"));
}

#[tokio::test(start_paused = true)]
async fn header_values_may_hold_any_bytes() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |settings| settings.sticky = sticky()).await;
    for byte in (1..=255_u8).filter(|byte| !matches!(byte, b'\r' | b'\n')) {
        let mut client = rig.client();
        let request = post(
            "/v1/chat/completions",
            &[("x-request-id", "@"), ("x-smg-routing-key", "@"), ("authorization", "@")],
            CHAT,
        );
        let request: Vec<u8> = request.iter().map(|b| if *b == b'@' { byte } else { *b }).collect();
        client.send(request).await;
        let reply = client.reply().await;
        let fine = byte >= 0x20 && byte != 0x7f || byte == b'\t';
        assert_eq!(reply.status, if fine { 200 } else { 400 }, "byte {byte}");
        if fine && byte > b' ' {
            assert_eq!(reply.header("x-request-id"), Some(char::from(byte).to_string()));
            assert_eq!(w.last().header("authorization").len(), 1, "byte {byte}");
        }
    }
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn what_the_workers_framing_was_does_not_show() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let chunks = [
        &b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"[..],
        &chunked("{\"a\""),
        &chunked(":1}"),
        b"0\r\n\r\n",
    ]
    .concat();
    for (said, close) in [
        (answer("200 OK", &[], "{\"a\":1}").into_bytes(), false),
        (chunks, false),
        (b"HTTP/1.1 200 OK\r\n\r\n{\"a\":1}".to_vec(), true),
        (b"HTTP/1.0 200 OK\r\n\r\n{\"a\":1}".to_vec(), true),
        (answer("200 OK", &["connection: close"], "{\"a\":1}").into_bytes(), true),
    ] {
        let answers = script().say(&said);
        w.next(if close { answers.close() } else { answers });
        let mut client = rig.client();
        for _ in 0..2 {
            let reply = client.post("/v1/chat/completions", &[], CHAT).await;
            assert_eq!((reply.status, reply.ended), (200, Ended::Length));
            assert_eq!(reply.header("connection"), None);
            if reply.text() != r#"{"from":"w1"}"# {
                assert_eq!(reply.text(), "{\"a\":1}", "{:?}", String::from_utf8_lossy(&said));
            }
        }
    }
    assert_eq!(rig.count("smg_router_upstream_send_retries_total", &[]), 0);
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn informational_answers_are_passed_over() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let early = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n";
    w.next(script().say(early).say(json("{}")));
    let reply = rig.chat(CHAT).await;
    assert_eq!((reply.status, reply.text(), reply.header("link")), (200, "{}", None));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_has_no_body_has_none_here_either() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    for status in ["204 No Content", "304 Not Modified"] {
        w.next(script().say(format!("HTTP/1.1 {status}\r\n\r\n")));
        let mut client = rig.client();
        let reply = client.post("/v1/chat/completions", &[], CHAT).await;
        assert!(status.starts_with(&reply.status.to_string()));
        assert_eq!(client.post("/v1/chat/completions", &[], CHAT).await.status, 200);
    }
    w.next(script().say(answer("200 OK", &[], "")));
    let reply = rig.chat(CHAT).await;
    assert_eq!((reply.text(), reply.ended), ("", Ended::Length));
}

#[tokio::test(start_paused = true)]
async fn a_workers_error_is_passed_on_as_it_is() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    for (status, body) in
        [(400, CHAT), (422, CHAT_STREAM), (500, CHAT_STREAM), (503, CHAT), (599, CHAT)]
    {
        let said = r#"{"error":{"message":"mine"}}"#;
        let line = format!("{status} Odd");
        w.next(script().say(answer(
            &line,
            &["content-type: application/json", "retry-after: 9"],
            said,
        )));
        let reply = rig.chat(body).await;
        assert_eq!((reply.status, reply.text(), reply.worker()), (status, said, "w1".into()));
        assert_eq!(reply.header("content-type").as_deref(), Some("application/json"));
        assert_eq!(reply.header("retry-after").as_deref(), Some("9"));
        assert_eq!(reply.header("x-smg-error-code"), None);
    }
    let failed = |kind| rig.count("smg_worker_errors_total", &[("error_type", kind)]);
    assert_eq!((failed("backend_error"), failed("timeout")), (3, 0));
}

#[tokio::test(start_paused = true)]
async fn a_stream_without_a_content_type_is_given_one() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let said = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n0\r\n\r\n";
    w.next(script().say(said)).next(script().say(said));
    let streamed = rig.chat(CHAT_STREAM).await;
    assert_eq!(streamed.header("content-type").as_deref(), Some("text/event-stream"));
    assert_eq!(streamed.ended, Ended::LastChunk);
    let whole = rig.chat(CHAT).await;
    assert_eq!((whole.header("content-type"), whole.ended), (None, Ended::Length));
}

#[tokio::test(start_paused = true)]
async fn pipelined_requests_are_answered_in_order() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    for n in 0..3 {
        w.next(script().pause(f64::from(3 - n)).say(json(&n.to_string())));
    }
    let mut client = rig.client();
    client.send(post("/v1/chat/completions", &[], CHAT).repeat(3)).await;
    for n in 0..3 {
        assert_eq!(client.reply().await.text(), n.to_string());
    }
}

#[tokio::test(start_paused = true)]
async fn a_query_travels_with_its_path() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    for target in ["/v1/chat/completions?beta=true&x=%20", "http://other:1/v1/chat/completions?a"] {
        assert_eq!(rig.client().post(target, &[], CHAT).await.status, 200);
        let line = w.last().head.lines().next().unwrap().to_owned();
        let path = target.trim_start_matches("http://other:1");
        assert_eq!(line, format!("POST {path} HTTP/1.1"));
        assert_eq!(w.last().header("host"), ["w1:8000"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_waits_for_100_continue_gets_it() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let mut client = rig.client();
    let length = CHAT.len();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: gw\r\nexpect: 100-continue\r\n";
    client.send(format!("{head}content-length: {length}\r\n\r\n")).await;
    assert_eq!(client.head().await.status, 100);
    client.send(CHAT).await;
    assert_eq!(client.reply().await.status, 200);
    assert_eq!(w.last().header("expect"), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_request_counts_as_in_flight_until_its_answer_is_read() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let body = "x".repeat(100_000);
    w.next(script().say(answer("200 OK", &[], &body)));
    let mut client = rig.narrow_client(1000);
    client.send(post("/v1/chat/completions", &[], CHAT)).await;
    client.head().await;
    settle().await;
    let active = |name| rig.count(name, &[]);
    // The worker is free again, the client's connection is not.
    assert_eq!((active("smg_worker_requests_active"), rig.gw.connections()), (0, 1));
    drop(client);
    rig.is_at_rest().await;
}
