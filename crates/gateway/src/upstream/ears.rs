//! A worker's socket as hyper sees it: it notes whether the worker said anything, and lets hyper
//! read no further than the head of an answer until somebody has decided who reads the rest.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use prometheus::IntGauge;
use smg_wire::head::HeadEnd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Socket;
use crate::tasks;

/// What the holder of a connection and its socket tell each other.
#[derive(Debug, Default)]
pub(super) struct Hearing {
    /// Something came back: a request that no byte came back for may be sent again.
    heard: AtomicBool,
    /// What follows a head is held back.
    holding: AtomicBool,
    /// The head has been read.
    headed: AtomicBool,
    /// Bytes were written that may not all have gone out.
    owing: AtomicBool,
}

impl Hearing {
    /// Before a request: nothing is heard yet.
    pub(super) fn listen_anew(&self) {
        self.heard.store(false, Ordering::Relaxed);
        self.headed.store(false, Ordering::Relaxed);
    }

    /// Holds back what will follow the head of the answer, if none of it has come.
    pub(super) fn hold(&self) {
        if !self.heard() {
            self.holding.store(true, Ordering::Relaxed);
        }
    }

    /// Lets everything through.
    pub(super) fn release(&self) {
        self.holding.store(false, Ordering::Relaxed);
    }

    /// Whether any byte came back.
    pub(super) fn heard(&self) -> bool {
        self.heard.load(Ordering::Relaxed)
    }

    /// Whether hyper has the head of an answer, nothing of its body and nothing left to write.
    pub(super) fn between(&self) -> bool {
        let said = |it: &AtomicBool| it.load(Ordering::Relaxed);
        said(&self.holding) && said(&self.headed) && !said(&self.owing)
    }
}

/// The socket.
pub(super) struct Ears {
    socket: Socket,
    hearing: Arc<Hearing>,
    head: HeadEnd,
    /// What came with the head.
    behind: Bytes,
    _open: Counted,
}

impl Ears {
    /// `open` counts it until it is dropped.
    pub(super) fn new(socket: Socket, open: &IntGauge) -> Self {
        Self {
            socket,
            hearing: Arc::default(),
            head: HeadEnd::default(),
            behind: Bytes::new(),
            _open: Counted::new(open),
        }
    }

    pub(super) fn hearing(&self) -> Arc<Hearing> {
        Arc::clone(&self.hearing)
    }
}

impl fmt::Debug for Ears {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ears").field("hearing", &self.hearing).finish_non_exhaustive()
    }
}

/// Counts a connection until it is dropped.
struct Counted(IntGauge);

impl Counted {
    fn new(open: &IntGauge) -> Self {
        open.inc();
        Self(open.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl AsyncRead for Ears {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.hearing.owing.load(Ordering::Relaxed) {
            // A worker that answers before it has read the request may close at once, and what hyper
            // has not read by the time it fails to write is lost.
            this.hearing.release();
            this.head = HeadEnd::default();
        }
        let holding = this.hearing.holding.load(Ordering::Relaxed);
        if holding && this.hearing.headed.load(Ordering::Relaxed) {
            // Whoever has the head decides before anybody waits here.
            return Poll::Pending;
        }
        if !this.behind.is_empty() {
            let take = this.behind.len().min(buf.remaining());
            buf.put_slice(&this.behind.split_to(take));
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.socket).poll_read(cx, buf))?;
        let said = buf.filled().get(before..).unwrap_or_default();
        if said.is_empty() {
            return Poll::Ready(Ok(()));
        }
        tasks::spend(cx, said.len());
        this.hearing.heard.store(true, Ordering::Relaxed);
        if holding && let Some(end) = this.head.find(said) {
            this.behind = Bytes::copy_from_slice(said.get(end..).unwrap_or_default());
            this.hearing.headed.store(true, Ordering::Relaxed);
            buf.set_filled(before + end);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Ears {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.hearing.owing.store(true, Ordering::Relaxed);
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.hearing.owing.store(true, Ordering::Relaxed);
        Pin::new(&mut self.socket).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.socket).poll_flush(cx);
        if matches!(flushed, Poll::Ready(Ok(()))) {
            self.hearing.owing.store(false, Ordering::Relaxed);
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
