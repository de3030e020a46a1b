//! A client's socket that gives up on a client who stops reading, or who never ends what it began
//! to ask.
//!
//! While a client's socket is full, nobody polls the answer for it, so the answer's own deadline is
//! not looked at. Without a bound here, a client that stops reading would hold its worker for ever.
//! And without a bound on the head of a request, one that never ends would hold its connection, and
//! a drain to the end of its grace.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// Longest time from the first byte of a request to the last one of its head.
pub(super) const HEAD_WITHIN: Duration = Duration::from_secs(30);

/// A socket whose single write may take no longer than `patience`, and a head no longer than
/// [`HEAD_WITHIN`].
#[derive(Debug)]
pub(super) struct Patient<S> {
    socket: S,
    patience: Duration,
    /// Runs while a write waits.
    waiting: Option<Pin<Box<Sleep>>>,
    heads: Heads,
    /// Runs while the rest of a head is waited for.
    head: Option<Pin<Box<Sleep>>>,
}

/// How far a connection is with its requests; shared with whoever answers them.
#[derive(Clone, Debug, Default)]
pub(super) struct Heads(Arc<Progress>);

#[derive(Debug, Default)]
struct Progress {
    /// Bytes came that belong to no request yet.
    begun: AtomicBool,
    /// A request is being answered.
    in_hand: AtomicBool,
}

impl Heads {
    /// A head has come whole; what comes now is its body, until the guard is dropped.
    pub(super) fn arrived(&self) -> InHand {
        self.0.begun.store(false, Ordering::Relaxed);
        self.0.in_hand.store(true, Ordering::Relaxed);
        InHand(self.clone())
    }

    pub(super) fn is_in_hand(&self) -> bool {
        self.0.in_hand.load(Ordering::Relaxed)
    }

    /// Takes note of what was read; whether the rest of a head is being waited for.
    fn heard(&self, read: Poll<usize>) -> bool {
        if self.is_in_hand() {
            return false;
        }
        match read {
            Poll::Ready(bytes) => {
                self.0.begun.fetch_or(bytes > 0, Ordering::Relaxed);
                false
            }
            Poll::Pending => self.0.begun.load(Ordering::Relaxed),
        }
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub(crate) struct InHand(Heads);

impl Drop for InHand {
    fn drop(&mut self) {
        self.0.0.in_hand.store(false, Ordering::Relaxed);
    }
}

impl<S> Patient<S> {
    pub(super) const fn new(socket: S, patience: Duration, heads: Heads) -> Self {
        Self { socket, patience, waiting: None, heads, head: None }
    }

    /// Follows the bytes of a head. The clock is started only when its rest is waited for, which a
    /// head that comes in one piece never is.
    fn heard(&mut self, cx: &mut Context<'_>, read: Poll<usize>) -> Poll<io::Result<()>> {
        if self.heads.heard(read) {
            let sleep = || Box::pin(tokio::time::sleep(HEAD_WITHIN));
            return self.head.get_or_insert_with(sleep).as_mut().poll(cx).map(|()| {
                let what = "the client did not finish the head of its request";
                Err(io::Error::new(io::ErrorKind::TimedOut, what))
            });
        }
        // Between two pieces of one head the clock runs on.
        if read.is_pending() || self.heads.is_in_hand() {
            self.head = None;
        }
        read.map(|_| Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> Patient<S> {
    fn bound<T>(
        &mut self,
        cx: &mut Context<'_>,
        wrote: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if wrote.is_ready() {
            self.waiting = None;
            return wrote;
        }
        let patience = self.patience;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        waiting.as_mut().poll(cx).map(|()| {
            Err(io::Error::new(io::ErrorKind::TimedOut, "the client stopped reading its answer"))
        })
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.socket).poll_read(cx, buf)?;
        let bytes = buf.filled().len() - before;
        self.heard(cx, read.map(|()| bytes))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.socket).poll_write(cx, bytes);
        self.bound(cx, wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.socket).poll_write_vectored(cx, slices);
        self.bound(cx, wrote)
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
