//! HTTP/2 connections to one worker: many exchanges share one, and a task of its own drives it.
//!
//! The task runs where the connection was opened, so only requests open connections that are shared:
//! what the gateway asks on its own account joins one that is there, or opens one for itself, and
//! never drives a client's stream on the runtime of its own tasks.

mod crew;

use std::fmt;
use std::future::{Future as _, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, ready};
use std::time::Duration;

use http::uri::{Authority, Scheme};
use http::{Request, Uri, Version, header};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::time::Instant;

use self::crew::Desk;
use super::ears::Ears;
use super::{Origin, Outgoing};
use crate::edge::MAX_HELD_BYTES;
use crate::tasks;

/// Between two PINGs, and how long an answer to one may take (001, "Connection tuning").
const PING_EVERY: Duration = Duration::from_secs(30);
const PONG_WITHIN: Duration = Duration::from_secs(20);
/// What a worker may send ahead: on one stream as much as on a connection of its own, on all of them
/// without a bound but that one. With a bound, streams whose clients do not read would leave no window to
/// the others; and h2 ends a connection on which more small frames are unread than its window is worth,
/// which an engine's tokens are, one by one. So the windows do not adapt (docs/conformance.md).
const STREAM_WINDOW: u32 = MAX_HELD_BYTES as u32;
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
/// Longest head of an answer, header by header.
const MAX_HEADERS: u32 = 64 * 1024;

type Driven = http2::Connection<TokioIo<Ears>, Outgoing, Desk>;

/// A connection.
pub(super) struct Shared {
    sender: http2::SendRequest<Outgoing>,
    /// Driven by its task; looked at for what the worker allows.
    driven: Arc<Mutex<Option<Driven>>>,
    streams: AtomicUsize,
    /// When the last of its streams ended.
    idle_since: Mutex<Instant>,
}

/// A stream's place on a connection.
#[derive(Debug)]
pub(super) struct Place(Arc<Shared>);

impl fmt::Debug for Shared {
    /// Without what was sent.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let streams = self.streams.load(Ordering::Relaxed);
        f.debug_struct("Shared").field("streams", &streams).finish_non_exhaustive()
    }
}

impl Shared {
    /// The first place on hyper over this socket, driven by a task on the current runtime until nobody
    /// holds it.
    pub(super) async fn over(ears: Ears) -> io::Result<Place> {
        let desk = Desk::default();
        let (sender, connection) = http2::Builder::new(desk.clone())
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PONG_WITHIN)
            .keep_alive_while_idle(true)
            .max_header_list_size(MAX_HEADERS)
            .max_send_buf_size(MAX_HELD_BYTES)
            .handshake(TokioIo::new(ears))
            .await
            .map_err(io::Error::other)?;
        let driven = Arc::new(Mutex::new(Some(connection)));
        let driving = Arc::clone(&driven);
        let mut crew = desk.crew();
        tasks::spawn("http2", async move {
            poll_fn(|cx| {
                let over = {
                    let mut driven = lock(&driving);
                    // Why it ended is told by the exchanges.
                    if driven.as_mut().is_some_and(|it| Pin::new(it).poll(cx).is_ready()) {
                        *driven = None;
                    }
                    driven.is_none()
                };
                // What has begun is brought to its end.
                ready!(crew.poll(cx));
                if over { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        });
        let (streams, idle_since) = (AtomicUsize::new(1), Mutex::new(Instant::now()));
        Ok(Place(Arc::new(Self { sender, driven, streams, idle_since })))
    }

    /// A place for one more stream, if the worker allows one.
    pub(super) fn place(self: &Arc<Self>) -> Option<Place> {
        let most = lock(&self.driven).as_ref()?.current_max_send_streams();
        let taken = self.streams.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |streams| {
            (streams < most).then_some(streams + 1)
        });
        taken.ok().map(|_| Place(Arc::clone(self)))
    }

    /// Whether it takes no more requests.
    pub(super) fn is_over(&self) -> bool {
        self.sender.is_closed()
    }

    /// For how long it has carried nothing; `None` while it does.
    pub(super) fn idle(&self) -> Option<Duration> {
        let idle = self.streams.load(Ordering::Relaxed) == 0;
        idle.then(|| lock(&self.idle_since).elapsed())
    }
}

impl Place {
    /// The right to send on this connection.
    pub(super) fn sender(&self) -> http2::SendRequest<Outgoing> {
        self.0.sender.clone()
    }

    /// Its connection.
    pub(super) const fn shared(&self) -> &Arc<Shared> {
        &self.0
    }

    /// Whether it is a place on this connection.
    pub(super) fn is_on(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.0, shared)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.0.streams.fetch_sub(1, Ordering::Relaxed) == 1 {
            *lock(&self.0.idle_since) = Instant::now();
        }
    }
}

/// A panic under one of these locks leaves a connection that is over, which shows by itself.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request as HTTP/2 has it: where it goes stands in its target, and of the connection it says
/// nothing.
pub(super) fn framed(mut request: Request<Outgoing>, origin: &Origin) -> Request<Outgoing> {
    let authority = Authority::try_from(origin.authority().as_bytes());
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = Some(if origin.is_secure() { Scheme::HTTPS } else { Scheme::HTTP });
    parts.authority = authority.ok();
    // All three were parsed before.
    *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
    *request.version_mut() = Version::HTTP_2;
    for name in [header::HOST, header::CONNECTION] {
        request.headers_mut().remove(name);
    }
    request
}

/// The same as HTTP/1.1 has it.
pub(super) fn unframed(mut request: Request<Outgoing>, origin: &Origin) -> Request<Outgoing> {
    let path = request.uri().path_and_query().cloned();
    *request.uri_mut() = path.map_or_else(Uri::default, Uri::from);
    *request.version_mut() = Version::HTTP_11;
    request.headers_mut().insert(header::HOST, origin.authority().clone());
    request
}

/// Whether a failed send was heard by the worker: it ended the stream itself, and not as one that it
/// never began (RFC 9113, 8.7). A connection that ends says nothing of its streams, as with HTTP/1.1.
pub(super) fn was_heard(error: &hyper::Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            let refused = error.reason() == Some(h2::Reason::REFUSED_STREAM);
            return error.is_reset() && error.is_remote() && !refused;
        }
        cause = error.source();
    }
    false
}
