//! A client that speaks HTTP/2: by prior knowledge on a plain connection, by ALPN under TLS. Either
//! way its first bytes say so, and one look at them decides, whatever the listener.
//!
//! Every request is a task of its own, started by hyper; what is bounded for HTTP/1.1 by the socket
//! it has to itself is bounded here for each stream ([`Paced`]) and for the connection ([`lull`]).

use std::future::{Future, pending, poll_fn};
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Request, Response, header};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use smg_wire::header::is_well_formed;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::patience::{Patience, Patient};
use super::presence::Presence;
use super::{Arriving, MAX_HELD_BYTES, Unread, begun, greet};
use crate::drain::Watcher;
use crate::gateway::Gateway;
use crate::relay::{Broken, ReplyBody};
use crate::tasks;

/// What an HTTP/2 client says first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Most that is read to find out.
const ROOM: usize = 1024;

/// Streams of one connection at once.
const MAX_STREAMS: u32 = 200;
/// Streams that a client may have opened and reset before anybody looked at them; beyond them its
/// connection ends.
const MAX_PENDING_RESETS: usize = 20;
/// Streams that may end for the client's mistakes before its connection does.
const MAX_WRONG_STREAMS: usize = 100;
/// What a client may send ahead: on one stream, on all of them. So many uploads to workers that do not
/// read leave no window to the connection's other bodies as fit into it.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 64 * STREAM_WINDOW;
/// Between two PINGs, and how long an answer to one may take: a client whose machine is gone closes
/// nothing.
const PING_EVERY: Duration = Duration::from_secs(30);
const PONG_WITHIN: Duration = Duration::from_secs(20);

/// Reads until it is clear whether the client speaks HTTP/2; returns what was read, which is to be
/// read again. An end or an error is left to whoever reads next, who sees it too.
pub(super) async fn is_spoken(socket: &mut (impl AsyncRead + Unpin), early: &mut BytesMut) -> bool {
    poll_fn(|cx| {
        while early.len() < PREFACE.len() && PREFACE.starts_with(early) {
            let mut room = [0; ROOM];
            let mut read = ReadBuf::new(&mut room);
            match ready!(Pin::new(&mut *socket).poll_read(cx, &mut read)) {
                Ok(()) if !read.filled().is_empty() => early.extend_from_slice(read.filled()),
                _ => return Poll::Ready(false),
            }
        }
        Poll::Ready(early.starts_with(PREFACE))
    })
    .await
}

/// Serves such a connection to its end.
pub(super) async fn converse<S>(
    gw: Arc<Gateway>,
    mut socket: Patient<S>,
    peer: IpAddr,
    (presence, mut patience): (Arc<Presence>, Patience),
    mut drain: Option<Watcher>,
) where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    // Frames of no request come at any time: silence is told by requests alone.
    socket.forget_lulls();
    if drain.is_none() {
        // Who comes while the gateway leaves gets what it asks at once, and no more.
        patience.idle = Some(Duration::ZERO);
    }
    let readers = Arc::new(Readers::default());
    let header_bytes = gw.settings.clients.max_header_bytes;
    let service = service_fn({
        let (presence, readers) = (Arc::clone(&presence), Arc::clone(&readers));
        move |request| {
            let (gw, presence) = (Arc::clone(&gw), Arc::clone(&presence));
            let readers = Arc::clone(&readers);
            async move { attend(&gw, request, peer, (&presence, &readers)).await }
        }
    });
    let connection = http2::Builder::new(Streams)
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
        .max_local_error_reset_streams(MAX_WRONG_STREAMS)
        .max_header_list_size(u32::try_from(header_bytes).unwrap_or(u32::MAX))
        .max_send_buf_size(MAX_HELD_BYTES)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PONG_WITHIN)
        .serve_connection(TokioIo::new(socket), service);
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        // First what has already arrived: a request that came before the signal is answered.
        biased;
        ended = &mut connection => Some(ended),
        () = begun(&mut drain) => None,
        () = lull(&presence, patience) => None,
        never = readers.watch(patience.write) => match never {},
    };
    let ended = match ended {
        Some(ended) => ended,
        None if presence.begun() == 0 => return,
        None => {
            connection.as_mut().graceful_shutdown();
            let Some(ended) = busy(&mut connection, &presence, &readers, patience).await else {
                return;
            };
            ended
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "client connection ended early");
    }
}

/// Drives a connection that takes no more streams to its end, or until it has nothing to answer and
/// its client does not close.
async fn busy<T>(
    connection: &mut (impl Future<Output = T> + Unpin),
    presence: &Presence,
    readers: &Readers,
    patience: Patience,
) -> Option<T> {
    loop {
        let ended = timeout(patience.head.unwrap_or(Duration::MAX), &mut *connection);
        tokio::select! {
            ended = ended => match ended {
                Ok(ended) => return Some(ended),
                Err(_) if presence.busy() => {}
                Err(_) => return None,
            },
            never = readers.watch(patience.write) => match never {},
        }
    }
}

/// Resolves when a client has asked nothing for as long as it may.
async fn lull(presence: &Presence, patience: Patience) {
    loop {
        if presence.busy() {
            presence.quiet().await;
            continue;
        }
        // As with HTTP/1.1, who never asks anything is waited for no longer than for half a head.
        let patience = if presence.begun() == 0 { patience.head } else { patience.idle };
        let quiet = presence.quiet();
        match patience {
            None => quiet.await,
            Some(patience) => match timeout(patience, quiet).await {
                Ok(()) => {}
                Err(_) if presence.busy() => {}
                Err(_) => return,
            },
        }
    }
}

/// Answers one request. One that breaks the rules of HTTP/2 in what its parser leaves to others ends as one that
/// breaks them there (RFC 9113, 8.1.1): its stream is reset.
async fn attend(
    gw: &Arc<Gateway>,
    mut request: Request<Incoming>,
    peer: IpAddr,
    (presence, readers): (&Arc<Presence>, &Readers),
) -> Result<Response<Paced>, h2::Error> {
    if !is_well_formed(request.method(), request.uri(), request.headers()) {
        return Err(h2::Reason::PROTOCOL_ERROR.into());
    }
    // Who is called stands in the target here, whatever a header says (RFC 9113, 8.3.1).
    let called = request.uri().authority().map(|called| HeaderValue::from_str(called.as_str()));
    if let Some(Ok(called)) = called {
        request.headers_mut().insert(header::HOST, called);
    }
    let attending = presence.begin();
    let mut reply = Box::pin(greet(gw, request.map(Arriving::over_http2), peer))
        .await
        .map(|body| body.attended(attending));
    // A refused upload ends with its stream here, and the connection goes on.
    reply.headers_mut().remove(header::CONNECTION);
    reply.extensions_mut().remove::<Unread>();
    Ok(reply.map(|body| readers.paced(body)))
}

tokio::task_local! {
    /// Ends the stream whose task this is.
    static CUT: Arc<Notify>;
}

/// Starts the streams of a connection, each as a task that can be cut off: hyper holds what it could not send yet and
/// asks for no more until it can, so that nothing said through the body would end it. A stream whose task is gone is
/// reset.
#[derive(Clone, Copy, Debug)]
struct Streams;

impl<F> Executor<F> for Streams
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, stream: F) {
        tasks::spawn("stream", async move {
            let cut = Arc::new(Notify::new());
            tokio::select! {
                biased;
                () = cut.notified() => tracing::debug!("the client stopped reading its answer"),
                _ended = CUT.scope(Arc::clone(&cut), stream) => {}
            }
        });
    }
}

/// A body whose client may stop reading. Nobody polls it then, so that its own deadline is not looked
/// at; [`Readers`] cut it off. It goes out in pieces, so that no more than one of them waits elsewhere.
#[derive(Debug)]
pub(super) struct Paced {
    body: ReplyBody,
    /// Of a frame that is longer than a piece.
    rest: Bytes,
    reader: Arc<Reader>,
}

/// Who reads it.
#[derive(Debug)]
struct Reader {
    /// Since when there has been something to read.
    since: Mutex<Option<Instant>>,
    cut: Option<Arc<Notify>>,
}

/// Those of one connection.
#[derive(Debug, Default)]
struct Readers(Mutex<Vec<Weak<Reader>>>);

/// Nothing.
enum Never {}

impl Readers {
    fn paced(&self, body: ReplyBody) -> Paced {
        let cut = CUT.try_with(Arc::clone).ok();
        let reader = Arc::new(Reader { since: Mutex::new(Some(Instant::now())), cut });
        let mut all = lock(&self.0);
        if all.len() > 2 * MAX_STREAMS as usize {
            all.retain(|reader| reader.strong_count() > 0);
        }
        all.push(Arc::downgrade(&reader));
        Paced { body, rest: Bytes::new(), reader }
    }

    /// Cuts off what has not been read for `patience`, now and then.
    async fn watch(&self, patience: Duration) -> Never {
        if patience.is_zero() {
            return pending().await;
        }
        loop {
            sleep(patience / 8).await;
            for reader in lock(&self.0).iter().filter_map(Weak::upgrade) {
                let late = lock(&reader.since).is_some_and(|since| since.elapsed() >= patience);
                if let Some(cut) = reader.cut.as_ref().filter(|_| late) {
                    cut.notify_one();
                }
            }
        }
    }
}

/// A panic under one of these locks leaves what is whole at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Body for Paced {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        if self.rest.is_empty() {
            let polled = Pin::new(&mut self.body).poll_frame(cx);
            *lock(&self.reader.since) = polled.is_ready().then(Instant::now);
            match ready!(polled).map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => self.rest = data,
                Some(Ok(Err(other))) => return Poll::Ready(Some(Ok(other))),
                Some(Err(broken)) => return Poll::Ready(Some(Err(broken))),
                None => return Poll::Ready(None),
            }
        } else {
            *lock(&self.reader.since) = Some(Instant::now());
        }
        let most = self.rest.len().min(MAX_HELD_BYTES);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(most)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (mut hint, rest) = (self.body.size_hint(), self.rest.len() as u64);
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + rest);
        }
        hint.set_lower(hint.lower() + rest);
        hint
    }
}
