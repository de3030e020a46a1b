//! Workers that fail: what the client is told, what is sent again, what is counted.

use super::rig::*;

const RETRIES: &str = "smg_router_upstream_send_retries_total";

/// The counts after one failed request: worker errors and router errors are one each.
#[track_caller]
fn counted_once(rig: &Rig, error: &str, class: &str) {
    let text = rig.gw.metrics_text();
    assert_eq!(rig.count("smg_worker_errors_total", &[]), 1, "{text}");
    assert_eq!(rig.count("smg_worker_errors_total", &[("error_type", error)]), 1);
    assert_eq!(rig.count("smg_router_request_errors_total", &[]), 1);
    assert_eq!(rig.count("smg_router_request_errors_total", &[("error_type", class)]), 1);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_refuses_connections_is_dialled_twice() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    w.door(Door::Refusing);
    let before = w.now(|story| story.dials);
    let reply = rig.chat(CHAT).await;
    reply.is_refusal(500, "call_upstream_connection_failed");
    assert_eq!(w.now(|story| story.dials) - before, 2);
    assert_eq!(rig.count(RETRIES, &[("router_type", "http")]), 1);
    counted_once(&rig, "backend_error", "backend_error");
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_got_no_answer_is_sent_exactly_once_more() {
    for (closes, status) in [(1, 200), (2, 500), (3, 500)] {
        let w = Worker::new("w1");
        let rig = Rig::start(&[&w], |_| {}).await;
        for _ in 0..closes {
            w.next(script().close());
        }
        let reply = rig.chat(CHAT).await;
        assert_eq!((reply.status, w.served()), (status, 2), "closes {closes} times");
        assert_eq!(rig.count(RETRIES, &[]), 1);
        let bodies =
            w.now(|story| story.requests.iter().map(|r| r.body.clone()).collect::<Vec<_>>());
        assert_eq!(bodies, [CHAT.as_bytes(), CHAT.as_bytes()]);
        if status == 500 {
            reply.is_refusal(500, "call_upstream_request_error");
            counted_once(&rig, "backend_error", "backend_error");
        }
        rig.is_at_rest().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_went_stale_costs_one_resend_at_most() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    // The worker closes it in silence: that is seen when it is taken out, and nothing is resent.
    w.next(script().say(json("{}")).close());
    assert_eq!(rig.chat(CHAT).await.status, 200);
    settle().await;
    assert_eq!(rig.chat(CHAT).await.status, 200);
    assert_eq!((rig.count(RETRIES, &[]), w.served()), (0, 2));
    // It closes once the next request is there: that one is sent again, on a fresh connection even
    // when other idle ones lie there.
    let (a, b) = (rig.chat(CHAT), rig.chat(CHAT));
    w.usually(script().pause(0.1).say(json("{}")));
    tokio::join!(a, b);
    w.next(Script::deaf().close());
    let dials = w.now(|story| story.dials);
    assert_eq!(rig.chat(CHAT).await.status, 200);
    assert_eq!((rig.count(RETRIES, &[]), w.now(|story| story.dials)), (1, dials + 1));
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_body_of_a_mebibyte_is_sent_once() {
    for (size, sent) in [((1 << 20) - 1, 2), (1 << 20, 1)] {
        let w = Worker::new("w1");
        let rig = Rig::start(&[&w], |_| {}).await;
        w.next(script().close());
        let body = format!("{CHAT}{}", " ".repeat(size - CHAT.len()));
        let reply = rig.chat(&body).await;
        assert_eq!(w.served(), sent, "{size} bytes");
        assert_eq!(reply.status, if sent == 2 { 200 } else { 500 });
        assert_eq!(rig.count(RETRIES, &[]), sent as i64 - 1);
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_no_http_is_an_error_and_is_not_asked_for_again() {
    for said in [
        "garbage\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-le",
        "HTTP/1.1 2",
        "H",
        "HTTP/1.1 99 Low\r\n\r\n",
        "HTTP/1.1 600 High\r\ncontent-length: 2\r\n\r\n{}",
        "HTTP/1.1 999 Highest\r\ncontent-type: text/event-stream\r\n\r\ndata: 1\n\n",
        "HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nx",
        "HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
        "HTTP/2 200\r\n\r\n",
        "HTTP/1.1 100 Continue\r\n\r\n",
    ] {
        let w = Worker::new("w1");
        let rig = Rig::start(&[&w], |_| {}).await;
        w.usually(script().say(said).close());
        let reply = rig.chat(CHAT).await;
        reply.is_refusal(500, "call_upstream_request_error");
        assert_eq!((w.served(), rig.count(RETRIES, &[])), (1, 0), "{said:?}");
        counted_once(&rig, "backend_error", "backend_error");
        rig.is_at_rest().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_wants_another_protocol_is_an_error() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    w.usually(
        script()
            .say("HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n")
            .hang(),
    );
    rig.chat(CHAT).await.is_refusal(500, "call_upstream_request_error");
    assert_eq!(w.served(), 1);
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_whole_answer_that_breaks_off_is_an_error() {
    for said in [
        "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{}".to_owned(),
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n".to_owned(),
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n".to_owned(),
        "HTTP/1.1 500 Oh\r\ncontent-length: 10\r\n\r\n{}".to_owned(),
    ] {
        let w = Worker::new("w1");
        let rig = Rig::start(&[&w], |_| {}).await;
        w.next(script().say(&said).close());
        let reply = rig.chat(CHAT).await;
        reply.is_refusal(500, "read_response_body_failed");
        assert_eq!((w.served(), rig.count(RETRIES, &[])), (1, 0));
        counted_once(&rig, "backend_error", "backend_error");
        rig.is_at_rest().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_breaks_between_events_ends_with_an_error_event() {
    for sent in ["", "data: 1\n\n", "data: 1\r\n\r\n", ": note\n\ndata: 1\n\n"] {
        for pause in [0.0, 1.0] {
            let w = Worker::new("w1");
            let rig = Rig::start(&[&w], |_| {}).await;
            let head = script().say(events_head());
            let said = if sent.is_empty() { head } else { head.say(chunked(sent)) };
            w.next(said.pause(pause).close());
            let reply = rig.chat(CHAT_STREAM).await;
            assert_eq!((reply.status, reply.ended), (200, Ended::LastChunk), "{sent:?}");
            let event = reply.text().strip_prefix(sent).unwrap().trim_end();
            let event: serde_json::Value =
                serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
            assert_eq!(event["error"]["code"], "read_response_body_failed");
            assert_eq!(rig.count("smg_worker_errors_total", &[]), 1);
            rig.is_at_rest().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_breaks_within_an_event_is_left_unterminated() {
    for sent in ["data: 1", "data: 1\n", "data: 0\n\ndata: {\"a\""] {
        for pause in [0.0, 1.0] {
            let w = Worker::new("w1");
            let rig = Rig::start(&[&w], |_| {}).await;
            w.next(script().say(events_head()).say(chunked(sent)).pause(pause).close());
            let reply = rig.chat(CHAT_STREAM).await;
            assert_eq!((reply.text(), reply.ended), (sent, Ended::Unterminated), "after {pause} s");
            assert_eq!(rig.count("smg_worker_errors_total", &[]), 1);
            rig.is_at_rest().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_a_failed_status_counts_as_one_worker_error() {
    for end in ["0\r\n\r\n", ""] {
        let w = Worker::new("w1");
        let rig = Rig::start(&[&w], |_| {}).await;
        let head = events_head().replace("200 OK", "500 Oh");
        let said = script().say(head).say(chunked("data: {\"error\":1}\n\n")).say(end);
        w.next(if end.is_empty() { said.close() } else { said });
        assert_eq!(rig.chat(CHAT_STREAM).await.status, 500);
        counted_once(&rig, "backend_error", "backend_error");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_larger_than_the_limit_is_refused_whatever_its_framing() {
    let body = "x".repeat(101);
    for said in [
        answer("200 OK", &[], &body).into_bytes(),
        [
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec(),
            chunked("x").repeat(101),
        ]
        .concat(),
        format!("HTTP/1.1 200 OK\r\n\r\n{body}").into_bytes(),
    ] {
        let w = Worker::new("w1");
        let rig = Rig::start(&[&w], |settings| settings.bodies.max_payload = 100).await;
        w.next(script().say(said).hang());
        rig.chat(CHAT).await.is_refusal(502, "upstream_response_too_large");
        w.until("its connection is closed", |story| story.open == 0).await;
        counted_once(&rig, "backend_error", "backend_error");
        rig.is_at_rest().await;
        // At the limit it is an answer.
        w.next(script().say(answer("200 OK", &[], &body[1..])));
        assert_eq!(rig.chat(CHAT).await.body.len(), 100);
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_before_the_request_was_read_is_passed_on() {
    let body = format!("{CHAT}{}", " ".repeat(500_000));
    for close in [false, true] {
        let w = Worker::new("w1").narrow(4096);
        let rig = Rig::start(&[&w], |_| {}).await;
        let said = Script::deaf().say(answer("413 Too Large", &[], "no"));
        w.next(if close { said.close() } else { said.hang() });
        let reply = rig.chat(&body).await;
        assert_eq!((reply.status, reply.text()), (413, "no"), "closes: {close}");
        // A connection with half a request on it is of no more use.
        w.until("its connection is closed", |story| story.open == 0).await;
        assert_eq!((w.served(), rig.count(RETRIES, &[])), (1, 0));
        rig.is_at_rest().await;
    }
}

#[tokio::test(start_paused = true)]
async fn bytes_behind_an_answer_are_never_taken_for_the_next_one() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let smuggled = json(r#"{"not":"yours"}"#);
    for pause in [0.0, 0.5] {
        w.next(
            script()
                .say(json(r#"{"first":1}"#) + if pause == 0.0 { &smuggled } else { "" })
                .pause(pause)
                .say(if pause > 0.0 { &smuggled } else { "" }),
        );
        assert_eq!(rig.chat(CHAT).await.text(), r#"{"first":1}"#);
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        settle().await;
        for _ in 0..3 {
            assert_eq!(rig.chat(CHAT).await.text(), r#"{"from":"w1"}"#, "after {pause} s");
        }
    }
}
