//! Idle HTTP/1.1 connections to one worker, newest first.
//!
//! A connection has no task of its own: whoever holds the [`Link`] drives it. An idle one is not
//! driven at all; whether the worker has closed it meanwhile shows when it is taken out again.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::{Dial, Origin, Socket};
use crate::edge::MAX_HELD_BYTES;
use crate::settings::Connections;

/// A request body on its way to a worker.
pub(crate) type Outgoing = Full<Bytes>;

/// The connections of one worker.
#[derive(Debug)]
pub(crate) struct Pool {
    origin: Origin,
    rules: Connections,
    dial: Arc<dyn Dial>,
    /// The `Authorization` of everything sent here.
    credential: Option<HeaderValue>,
    /// Oldest first; never more than `rules.max_idle`.
    idle: Mutex<Vec<Idle>>,
}

#[derive(Debug)]
struct Idle {
    link: Box<Link>,
    since: Instant,
}

/// One connection and the right to send on it.
#[derive(Debug)]
pub(crate) struct Link {
    pub(super) sender: http1::SendRequest<Outgoing>,
    connection: http1::Connection<TokioIo<Ears>, Outgoing>,
    heard: Arc<AtomicBool>,
    over: bool,
}

impl Pool {
    pub(crate) fn new(origin: Origin, rules: Connections, dial: Arc<dyn Dial>) -> Self {
        Self { origin, rules, dial, credential: None, idle: Mutex::default() }
    }

    /// The same, for a worker that is sent this as `Authorization`.
    pub(crate) fn bearing(self, credential: Option<HeaderValue>) -> Self {
        Self { credential, ..self }
    }

    /// What this worker is sent as `Authorization`, if the operator gave a key for it.
    pub(crate) const fn credential(&self) -> Option<&HeaderValue> {
        self.credential.as_ref()
    }

    pub(crate) const fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The connection used last that is still open and young enough.
    pub(super) fn take_idle(&self, cx: &mut Context<'_>) -> Option<Box<Link>> {
        loop {
            let Idle { mut link, since } = self.lock().pop()?;
            if self.expired(since) {
                // What lies below is older still.
                self.lock().clear();
                return None;
            }
            // One look notices a close that arrived while it lay idle.
            if link.poll_drive(cx).is_pending() && link.sender.is_ready() {
                return Some(link);
            }
        }
    }

    /// Puts a connection back whose exchange is over.
    pub(super) fn put(&self, link: Box<Link>) {
        if !link.sender.is_ready() || self.rules.max_idle == 0 {
            return;
        }
        let mut idle = self.lock();
        if idle.len() >= self.rules.max_idle {
            idle.remove(0);
        }
        idle.push(Idle { link, since: Instant::now() });
    }

    /// Opens a connection.
    pub(super) async fn open(&self) -> io::Result<Box<Link>> {
        let dialled = self.dial.dial(&self.origin);
        let timeout = self.rules.connect_timeout;
        let socket = tokio::time::timeout(timeout, dialled).await.map_err(|_| {
            io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {timeout:?}"))
        })??;
        let heard = Arc::new(AtomicBool::new(false));
        let ears = Ears { socket, heard: Arc::clone(&heard) };
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(MAX_HELD_BYTES)
            .handshake(TokioIo::new(ears))
            .await
            .map_err(io::Error::other)?;
        Ok(Box::new(Link { sender, connection, heard, over: false }))
    }

    /// Closes connections that have been idle for too long.
    pub(crate) fn reap(&self) {
        let mut idle = self.lock();
        let expired = idle.iter().take_while(|idle| self.expired(idle.since)).count();
        idle.drain(..expired);
    }

    /// How long a connection may lie idle, if there is a bound.
    pub(crate) const fn idle_timeout(&self) -> Option<Duration> {
        self.rules.idle_timeout
    }

    fn expired(&self, since: Instant) -> bool {
        self.rules.idle_timeout.is_some_and(|timeout| since.elapsed() >= timeout)
    }

    /// A panic under the lock leaves a list of connections, which is whole at any time.
    fn lock(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Link {
    /// Moves bytes; ready when the connection is over.
    pub(super) fn poll_drive(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // Why a connection ended is told by the response future or the body.
        self.over = self.over || Pin::new(&mut self.connection).poll(cx).is_ready();
        if self.over { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Forgets what was heard so far, before a new request.
    pub(super) fn listen_anew(&self) {
        self.heard.store(false, Ordering::Relaxed);
    }

    /// Whether any byte came back since [`Self::listen_anew`].
    pub(super) fn heard(&self) -> bool {
        self.heard.load(Ordering::Relaxed)
    }
}

/// A socket that notes whether the worker said anything: a request that no byte came back for may
/// be sent again.
struct Ears {
    socket: Socket,
    heard: Arc<AtomicBool>,
}

impl std::fmt::Debug for Ears {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ears").field("heard", &self.heard).finish_non_exhaustive()
    }
}

impl AsyncRead for Ears {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.socket).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.heard.store(true, Ordering::Relaxed);
        }
        polled
    }
}

impl AsyncWrite for Ears {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
