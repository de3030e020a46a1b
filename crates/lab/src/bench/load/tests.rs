//! The load against mock workers without a gateway, and against servers that do something wrong.

use std::sync::Arc;

use tokio::net::TcpListener;

use super::*;
use crate::bench::contender::Routing;
use crate::bench::payload::{Script, chat_answer, chat_request};
use crate::bench::worker::{WorkerArgs, serve};

async fn listen() -> (TcpListener, Target) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let brief = Duration::from_millis(50);
    (listener, Target { address, pid: std::process::id(), warm_up: brief, window: brief })
}

/// A mock worker, as it stands behind a gateway.
async fn worker(events: u32) -> Target {
    let (listener, target) = listen().await;
    tokio::spawn(
        async move { serve(listener, &WorkerArgs { number: 0, events, every_ms: 0 }).await },
    );
    target
}

/// A server whose answer to a connection's n-th request is `answer(n)`, whatever was asked.
async fn server(answer: impl Fn(usize) -> String + Send + Sync + 'static) -> Target {
    let (listener, target) = listen().await;
    let answer = Arc::new(answer);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = Arc::clone(&answer);
            tokio::spawn(async move {
                let mut connection = Connection::new(stream)?;
                let mut number = 0;
                while let Some(head) = connection.head().await? {
                    connection.body(head.framing, |_| Ok(())).await?;
                    connection.stream.write_all(answer(number).as_bytes()).await?;
                    number += 1;
                }
                Ok::<(), io::Error>(())
            });
        }
    });
    target
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

#[tokio::test]
async fn good_answers_are_counted() {
    let target = worker(BURST_EVENTS).await;
    for routing in [Routing::Sticky, Routing::RoundRobin] {
        let measured = chat(target, routing, 1).await.unwrap();
        assert!(measured.units > 0);
    }
    let measured = burst(target).await.unwrap();
    assert!(measured.units > 0);
    let target = Target { warm_up: Duration::from_millis(500), ..target };
    large(target, Routing::KeyInBody, 1).await.unwrap();
}

#[tokio::test]
async fn a_large_body_that_lost_something_is_an_error() {
    let target = worker(BURST_EVENTS).await;
    let mut connection = connect(target.address).await.unwrap();
    let mut request =
        b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 100000\r\n\r\n".to_vec();
    request.resize(request.len() + 100_000, b' ');
    let error = ask(&mut connection, &request).await.unwrap_err();
    assert!(error.to_string().contains("400 Bad Request"), "{error}");
}

#[tokio::test]
async fn a_key_that_moves_is_an_error() {
    // Eight keys take turns on a connection; after a round of seven, each has moved.
    let target = server(|number| ok(&chat_answer(number / 7 % 2))).await;
    // However slow the machine is, two rounds are played in this; the error ends it.
    let target = Target { window: Duration::from_secs(20), ..target };
    let error = chat(target, Routing::Sticky, 2).await.unwrap_err();
    assert!(error.contains("a conversation went from worker"), "{error}");
    // Without keys, answers that change workers are as they should be.
    let target = server(|number| ok(&chat_answer(number % 2))).await;
    chat(target, Routing::RoundRobin, 2).await.unwrap();
}

#[tokio::test]
async fn wrong_answers_are_errors() {
    let target =
        server(|_| "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nfull".to_owned())
            .await;
    let error = chat(target, Routing::RoundRobin, 1).await.unwrap_err();
    assert!(error.contains("HTTP/1.1 503 Service Unavailable\": full"), "{error}");
    let target = server(|_| ok("{}")).await;
    let error = chat(target, Routing::RoundRobin, 1).await.unwrap_err();
    assert!(error.contains("an answer no worker gave: {}"), "{error}");
}

#[tokio::test]
async fn a_stream_that_ends_early_is_an_error() {
    let target = worker(BURST_EVENTS - 1).await;
    let error = burst(target).await.unwrap_err();
    assert!(error.contains("a stream differs from the worker's after"), "{error}");
    let target = server(|_| ok("")).await;
    let error = burst(target).await.unwrap_err();
    assert!(error.contains("a stream ended after 0 of"), "{error}");
}

/// What a worker answers to a chat in HTTP/2.
async fn asked_in_http2(target: Target, stream: bool) -> Vec<u8> {
    let socket = TcpStream::connect(target.address).await.unwrap();
    let (mut sender, connection) = h2::client::handshake(socket).await.unwrap();
    tokio::spawn(connection);
    let whole = chat_request(stream, None);
    let body = whole.split(|&byte| byte == b'\n').next_back().unwrap().to_vec();
    let request = http::Request::post("http://w/v1/chat/completions").body(()).unwrap();
    let (answer, mut sending) = sender.send_request(request, false).unwrap();
    sending.send_data(body.into(), true).unwrap();
    let mut body = answer.await.unwrap().into_body();
    let mut answer = Vec::new();
    while let Some(piece) = body.data().await {
        answer.extend_from_slice(&piece.unwrap());
    }
    answer
}

#[tokio::test]
async fn a_worker_says_the_same_in_http2() {
    let target = worker(3).await;
    assert_eq!(asked_in_http2(target, false).await, chat_answer(0).as_bytes());
    let script = Script::new(3);
    let streamed = asked_in_http2(target, true).await;
    assert!(script.holds(0, &streamed) && streamed.len() == script.len());
}
