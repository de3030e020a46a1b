//! The mock worker in HTTP/2, begun with prior knowledge. A stream's events are DATA frames of their own, and the
//! connection has its turn after each: what leaves in one write are events of different streams, as from an engine
//! that gives each of its requests one token a step.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Error, RecvStream};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response};
use tokio::net::TcpStream;

use super::{Answers, Asked, Pace};

/// How a client begins that knows.
const PREFACE: &[u8] = b"PRI";

/// Streams at once on a connection: enough for all of the bench, so that each worker has one.
const STREAMS: u32 = 2000;

/// Sent ahead on one stream, and on all.
const WINDOWS: (u32, u32) = (1 << 20, 16 << 20);

/// Whether a connection begins with HTTP/2. Whoever writes less than that at first is taken for HTTP/1.1.
pub(super) async fn is_spoken(stream: &TcpStream) -> io::Result<bool> {
    let mut first = [0; PREFACE.len()];
    Ok(stream.peek(&mut first).await? == PREFACE.len() && first == PREFACE)
}

pub(super) async fn converse(stream: TcpStream, answers: Arc<Answers>) -> Result<(), Error> {
    // If it fails the paced figures show it.
    let _ = stream.set_nodelay(true);
    let (one, all) = WINDOWS;
    let mut connection = h2::server::Builder::new()
        .max_concurrent_streams(STREAMS)
        .initial_window_size(one)
        .initial_connection_window_size(all)
        .handshake(stream)
        .await?;
    while let Some(asked) = connection.accept().await {
        let (request, respond) = asked?;
        let answers = Arc::clone(&answers);
        // What a gateway resets is no loss; if it hurts an answer, the load sees it.
        tokio::spawn(async move { answer(request, respond, &answers).await });
    }
    Ok(())
}

async fn answer(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    answers: &Answers,
) -> Result<(), Error> {
    let (head, mut body) = request.into_parts();
    let mut asked = Asked::default();
    while let Some(piece) = body.data().await {
        let piece = piece?;
        asked.take(&piece);
        body.flow_control().release_capacity(piece.len())?;
    }
    if head.method == Method::POST && asked.wants_stream() {
        let mut reply = Response::new(());
        reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        let mut out = respond.send_response(reply, false)?;
        let mut pace = Pace::of(answers.every);
        let mut left = answers.events.len();
        for event in &answers.events {
            pace.next().await;
            left -= 1;
            out.send_data(event.clone(), left == 0)?;
            tokio::task::yield_now().await;
        }
        return Ok(());
    }
    let answer = if asked.is_torn() { &answers.torn } else { answers.plain(head.uri.path()) };
    let mut reply = Response::new(());
    *reply.status_mut() = answer.status;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    reply.headers_mut().insert(CONTENT_LENGTH, answer.body.len().into());
    respond.send_response(reply, false)?.send_data(answer.body.clone(), true)
}
