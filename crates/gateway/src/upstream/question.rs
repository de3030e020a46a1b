//! What the gateway asks of a worker on its own account.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use super::pool::Line;
use super::shared::framed;
use super::{Outgoing, Pool};

/// Largest answer to a question of the gateway's own (discovery, health).
const MAX_FETCH_BYTES: usize = 1 << 20;

/// A question of the gateway's own.
#[derive(Clone, Debug)]
pub(crate) struct Question<'a> {
    pub(crate) method: Method,
    pub(crate) path: &'a str,
    /// Whether more than the status is of interest.
    pub(crate) whole: bool,
}

impl<'a> Question<'a> {
    /// What is there.
    pub(crate) const fn what(path: &'a str) -> Self {
        Self { method: Method::GET, path, whole: true }
    }

    /// Whether anything is there.
    pub(crate) const fn whether(path: &'a str) -> Self {
        Self { method: Method::GET, path, whole: false }
    }
}

/// Asks a worker what is at a path.
pub(crate) async fn fetch(
    pool: &Pool,
    path: &str,
    timeout: Duration,
) -> Result<(StatusCode, Bytes), String> {
    ask(pool, Question::what(path), timeout).await
}

/// Asks a worker something: on an HTTP/2 connection that is there already, else on one of its own.
pub(crate) async fn ask(
    pool: &Pool,
    question: Question<'_>,
    timeout: Duration,
) -> Result<(StatusCode, Bytes), String> {
    let asked = converse(pool, question);
    tokio::time::timeout(timeout, asked)
        .await
        .map_err(|_| format!("no answer within {timeout:?}"))?
}

async fn converse(pool: &Pool, question: Question<'_>) -> Result<(StatusCode, Bytes), String> {
    if let Some(place) = pool.join(None) {
        let answered = asked(pool, Line::Shared(place), &question).await;
        // It may have ended since it was last used, which says nothing of the worker.
        if answered.is_ok() {
            return answered;
        }
    }
    let line = pool.open_own().await.map_err(|error| error.to_string())?;
    asked(pool, line, &question).await
}

async fn asked(
    pool: &Pool,
    line: Line,
    question: &Question<'_>,
) -> Result<(StatusCode, Bytes), String> {
    let Question { method, path, whole } = question;
    let mut request = Request::builder()
        .method(method)
        .uri(pool.origin().target(&path.parse().map_err(|_| format!("bad path {path}"))?))
        .header(header::HOST, pool.origin().authority())
        .header(header::ACCEPT, HeaderValue::from_static("*/*"))
        .header(header::CONNECTION, HeaderValue::from_static("close"))
        .body(Outgoing::default())
        .map_err(|error| error.to_string())?;
    if let Some(credential) = pool.credential() {
        request.headers_mut().insert(header::AUTHORIZATION, credential.clone());
    }
    match line {
        Line::Shared(place) => {
            let answer = place.sender().send_request(framed(request, pool.origin()));
            understood(answer, *whole).await
        }
        Line::Own(mut link) => {
            let answer = link.sender.send_request(request);
            let mut answered = pin!(understood(answer, *whole));
            poll_fn(|cx| {
                let over = link.poll_drive(cx).is_ready();
                match answered.as_mut().poll(cx) {
                    Poll::Pending if over => Poll::Ready(Err("connection closed".to_owned())),
                    polled => polled,
                }
            })
            .await
        }
    }
}

async fn understood(
    answer: impl Future<Output = hyper::Result<Response<Incoming>>>,
    whole: bool,
) -> Result<(StatusCode, Bytes), String> {
    let response = answer.await.map_err(|error| in_words(&error))?;
    let (parts, body) = response.into_parts();
    // Never followed: a worker could send the gateway, and its key, anywhere.
    if parts.status.is_redirection() {
        return Err(format!("{}: a worker may not redirect", parts.status));
    }
    if !whole {
        return Ok((parts.status, Bytes::new()));
    }
    let body = http_body_util::Limited::new(body, MAX_FETCH_BYTES);
    let body = body.collect().await.map_err(|error| in_words(&*error))?.to_bytes();
    Ok((parts.status, body))
}

/// An error with its cause: hyper's own words leave that out, and with it what a worker's TLS says of us.
fn in_words(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}
