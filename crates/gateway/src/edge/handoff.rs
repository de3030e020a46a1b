//! An event stream takes its client's connection over. hyper reads requests and writes heads and
//! ordinary answers; but for every event it would walk through its whole dispatcher and hold its
//! buffers for as long as a stream lasts. So it writes the head of a stream, and from there this
//! relays, one chunk a turn, until hyper goes on with the next request.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::{HeaderName, Method, Request, StatusCode, Version, header};
use hyper::body::Body as _;
use smg_wire::chunked;
use smg_wire::header::nominated;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Reply;
use crate::relay::ReplyBody;

/// Events that are ready together leave together, up to about this much.
const TURN: usize = 16 * 1024;
/// Most that is read of a next request before the stream has ended. Further bytes stay in the
/// kernel, and with them the news that the client has left, until a write tells.
const EARLY: usize = 1024;

/// Where a stream waits for its connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Slot(Arc<Mutex<Option<Handed>>>);

/// The body of a stream whose head hyper has been given.
#[derive(Debug)]
pub(super) struct Handed {
    body: ReplyBody,
    /// Whether the client asks for the connection to go on.
    pub(super) goes_on: bool,
}

/// What a request says of the connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// Whether its answer's body, if it has one without a length, comes in chunks that need not be hyper's.
    chunks: bool,
    goes_on: bool,
}

impl Terms {
    pub(super) fn of<B>(request: &Request<B>) -> Self {
        // hyper alone knows of a length that stood beside chunks, and ends the connection after it.
        let sized = !request.headers().contains_key(header::TRANSFER_ENCODING);
        let chunks =
            sized && request.version() == Version::HTTP_11 && request.method() != Method::HEAD;
        let close = HeaderName::from_static("close");
        Self { chunks, goes_on: !nominated(request.headers(), &close) }
    }
}

impl Slot {
    /// Keeps the body of a stream back from hyper, to which it looks like one that never goes on.
    pub(super) fn keep(&self, reply: Reply, terms: Terms) -> Reply {
        if !terms.chunks || !reply.body().streams() || reply.status() == StatusCode::NO_CONTENT {
            return reply;
        }
        reply.map(|body| {
            let handed = Handed { body, goes_on: terms.goes_on };
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(handed);
            ReplyBody::elsewhere()
        })
    }

    /// The stream that waits here.
    pub(super) fn take(&self) -> Option<Handed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// How a stream left its connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// Its last chunk is written; this came of the next request meanwhile.
    Whole(Bytes),
    /// It broke, or the client is gone.
    Broken,
}

/// Relays a stream to its end. `early` is what was read behind its request.
pub(super) async fn relay(
    socket: &mut (impl AsyncRead + AsyncWrite + Unpin),
    early: Bytes,
    handed: Handed,
) -> Left {
    let mut flow = Flow {
        body: Some(handed.body),
        out: Vec::new(),
        sent: 0,
        whole: false,
        // Copied, as it would keep hyper's buffer.
        early: BytesMut::from(&*early),
    };
    drop(early);
    poll_fn(|cx| flow.poll(cx, socket)).await
}

/// A stream under way.
struct Flow {
    /// Gone once it has ended.
    body: Option<ReplyBody>,
    /// Chunks on their way to the socket.
    out: Vec<u8>,
    /// How much of them has left.
    sent: usize,
    /// Whether it has ended well.
    whole: bool,
    early: BytesMut,
}

impl Flow {
    fn poll<S: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        socket: &mut S,
    ) -> Poll<Left> {
        if self.poll_gone(cx, socket).is_ready() {
            return Poll::Ready(Left::Broken);
        }
        loop {
            if !self.out.is_empty() && !ready!(self.poll_send(cx, socket)) {
                return Poll::Ready(Left::Broken);
            }
            let Some(body) = &mut self.body else {
                let early = std::mem::take(&mut self.early).freeze();
                return Poll::Ready(if self.whole { Left::Whole(early) } else { Left::Broken });
            };
            match gather(body, cx, &mut self.out) {
                Poll::Ready(whole) => (self.body, self.whole) = (None, whole),
                Poll::Pending if self.out.is_empty() => return Poll::Pending,
                Poll::Pending => {}
            }
        }
    }

    /// Ready when the client has left, which a FIN tells as well.
    fn poll_gone<S: AsyncRead + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        socket: &mut S,
    ) -> Poll<()> {
        while self.early.is_empty() {
            let mut room = [0; EARLY];
            let mut read = ReadBuf::new(&mut room);
            match ready!(Pin::new(&mut *socket).poll_read(cx, &mut read)) {
                Ok(()) if !read.filled().is_empty() => self.early.extend_from_slice(read.filled()),
                _ => return Poll::Ready(()),
            }
        }
        Poll::Pending
    }

    /// Ready when all has left, or with false when it cannot.
    fn poll_send<S: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        socket: &mut S,
    ) -> Poll<bool> {
        while let Some(rest) = self.out.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match ready!(Pin::new(&mut *socket).poll_write(cx, rest)) {
                Ok(sent) if sent > 0 => self.sent += sent,
                _ => return Poll::Ready(false),
            }
        }
        let flushed = ready!(Pin::new(socket).poll_flush(cx)).is_ok();
        // Given back, as it may be long until the next event.
        (self.out, self.sent) = (Vec::new(), 0);
        Poll::Ready(flushed)
    }
}

/// Puts what is ready into chunks: pending when more may come, true when the stream is whole, false
/// when it broke.
fn gather(body: &mut ReplyBody, cx: &mut Context<'_>, out: &mut Vec<u8>) -> Poll<bool> {
    while out.len() < TURN {
        match ready!(Pin::new(&mut *body).poll_frame(cx)) {
            // A worker's trailers end here.
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    chunked::write(data, out);
                }
            }
            Some(Err(_)) => return Poll::Ready(false),
            None => {
                chunked::write(b"", out);
                return Poll::Ready(true);
            }
        }
    }
    Poll::Pending
}
