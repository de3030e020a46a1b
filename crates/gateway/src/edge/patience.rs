//! A client's socket that gives up: on a client who stops reading, who never ends a head, or who has
//! nothing more to ask; and that hears a client out whose upload was refused.
//!
//! While a client's socket is full, nobody polls the answer for it, so the answer's own deadline is
//! not looked at. Without a bound here, a client that stops reading would hold its worker for ever.
//! And without a bound on the head of a request, one that never ends would hold its connection, and
//! a drain to the end of its grace.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use super::MAX_HELD_BYTES;
use super::presence::Presence;
use crate::tasks;

/// How long, and for how much, a client is heard out whose upload was refused: closed earlier, its
/// own kernel would throw away the refusal together with the connection.
const LINGER: Duration = Duration::from_secs(10);
const LINGER_BYTES: usize = 256 << 20;

/// How long a client is waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// In a single write.
    pub(super) write: Duration,
    /// For a whole head, from its first byte; until then the connection is idle. For the first byte
    /// of the first head it is as long.
    pub(super) head: Option<Duration>,
    /// For the next request.
    pub(super) idle: Option<Duration>,
}

/// A socket that waits no longer than `patience`.
#[derive(Debug)]
pub(super) struct Patient<S> {
    socket: S,
    patience: Patience,
    presence: Arc<Presence>,
    /// What was read too early, and is read again first.
    early: Bytes,
    /// Runs while a write waits.
    waiting: Option<Pin<Box<Sleep>>>,
    /// Started once and set anew only when it fires too early, so that a busy connection never
    /// touches the timer wheel.
    lull: Option<Pin<Box<Sleep>>>,
    /// Requests begun when last looked.
    seen: u32,
    /// When the head that is being read began.
    head_since: Option<Instant>,
    /// When the connection fell idle.
    idle_since: Option<Instant>,
    linger: Option<Linger>,
}

/// The last words of a client whose upload was refused.
#[derive(Debug)]
struct Linger {
    until: Pin<Box<Sleep>>,
    left: usize,
}

impl<S: AsyncWrite + Unpin> Patient<S> {
    pub(super) fn new(socket: S, patience: Patience, presence: Arc<Presence>) -> Self {
        Self {
            socket,
            patience,
            presence,
            early: Bytes::new(),
            waiting: None,
            lull: None,
            seen: 0,
            head_since: None,
            idle_since: None,
            linger: None,
        }
    }

    /// Leaves it to others to notice silence; only writes are bounded from now on.
    pub(super) fn forget_lulls(&mut self) {
        (self.patience.head, self.patience.idle) = (None, None);
        self.lull = None;
    }

    /// Puts back what was read before its turn.
    pub(super) fn unread(&mut self, early: Bytes) {
        self.early = early;
    }

    fn bound<T>(
        &mut self,
        cx: &mut Context<'_>,
        wrote: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if wrote.is_ready() {
            if self.waiting.take().is_some() {
                // The connection may be idle from here on: look at that again.
                cx.waker().wake_by_ref();
            }
            return wrote;
        }
        let patience = self.patience.write;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(patience)));
        waiting.as_mut().poll(cx).map(|()| {
            Err(io::Error::new(io::ErrorKind::TimedOut, "the client stopped reading its answer"))
        })
    }

    /// Forgets what was before the last request.
    fn catch_up(&mut self) {
        let begun = self.presence.begun();
        if begun != self.seen {
            self.seen = begun;
            (self.head_since, self.idle_since) = (None, None);
        }
    }

    /// Ready when the client has been waited for long enough.
    fn poll_lull(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.presence.busy() || self.waiting.is_some() {
            return Poll::Pending;
        }
        let deadline = match (self.head_since, self.patience) {
            (Some(since), Patience { head: Some(head), .. }) => since + head,
            // Who connects and never asks anything is worth no more than half a head: the socket is
            // one less for workers.
            (None, Patience { head: Some(head), .. }) if self.seen == 0 => {
                *self.idle_since.get_or_insert_with(Instant::now) + head
            }
            (None, Patience { idle: Some(idle), .. }) => {
                *self.idle_since.get_or_insert_with(Instant::now) + idle
            }
            _ => return Poll::Pending,
        };
        let lull = self.lull.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if lull.deadline() > deadline {
            lull.as_mut().reset(deadline);
        }
        loop {
            ready!(lull.as_mut().poll(cx));
            if lull.deadline() >= deadline {
                return Poll::Ready(());
            }
            lull.as_mut().reset(deadline);
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Patient<S> {
    fn poll_socket(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.early.is_empty() {
            let most = if self.presence.flowing() { usize::MAX } else { MAX_HELD_BYTES };
            return Pin::new(&mut (&mut self.socket).take(most as u64)).poll_read(cx, buf);
        }
        let take = self.early.len().min(buf.remaining());
        buf.put_slice(&self.early.split_to(take));
        Poll::Ready(Ok(()))
    }

    /// Ends our side, then reads and forgets what the client still says.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            let shut = Pin::new(&mut self.socket).poll_shutdown(cx);
            ready!(self.bound(cx, shut))?;
        }
        let begin = || Linger { until: Box::pin(sleep(LINGER)), left: LINGER_BYTES };
        let linger = self.linger.get_or_insert_with(begin);
        let mut room = [0; 8192];
        while linger.left > 0 && linger.until.as_mut().poll(cx).is_pending() {
            let mut said = ReadBuf::new(&mut room);
            let read = ready!(Pin::new(&mut self.socket).poll_read(cx, &mut said));
            tasks::spend(cx, said.filled().len());
            if read.is_err() || said.filled().is_empty() {
                break;
            }
            linger.left = linger.left.saturating_sub(said.filled().len());
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = self.poll_socket(cx, buf);
        tasks::spend(cx, buf.filled().len() - before);
        if self.patience.head.is_none() && self.patience.idle.is_none() {
            return read;
        }
        self.catch_up();
        if read.is_ready() {
            if buf.filled().len() > before && !self.presence.busy() {
                self.head_since.get_or_insert_with(Instant::now);
            }
            return read;
        }
        ready!(self.poll_lull(cx));
        Poll::Ready(match self.head_since {
            Some(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the head took too long")),
            // As if the client had closed: hyper then closes in peace.
            None => Ok(()),
        })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.presence.owe(true);
        let wrote = Pin::new(&mut self.socket).poll_write(cx, bytes);
        self.bound(cx, wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.presence.owe(true);
        let wrote = Pin::new(&mut self.socket).poll_write_vectored(cx, slices);
        self.bound(cx, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Of TLS a record may be left over here that the client does not take.
        let flushed = Pin::new(&mut self.socket).poll_flush(cx);
        if flushed.is_ready() {
            self.presence.owe(false);
        }
        self.bound(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.presence.unread() {
            return self.poll_linger(cx);
        }
        let shut = Pin::new(&mut self.socket).poll_shutdown(cx);
        self.bound(cx, shut)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, join, repeat, sink};

    use super::*;

    const PATIENCE: Patience = Patience { write: Duration::from_secs(1), head: None, idle: None };

    #[tokio::test(start_paused = true)]
    async fn a_client_that_sends_much_leaves_turns_to_others() {
        let presence = Arc::new(Presence::default());
        presence.flow();
        let mut socket = Patient::new(join(repeat(b'x'), sink()), PATIENCE, presence);
        let mut room = vec![0; 256 << 10];
        let mut longest = 0;
        for _ in 0..10 {
            let other = tokio::spawn(async {});
            let mut turn = 0;
            while !other.is_finished() {
                turn += socket.read(&mut room).await.unwrap();
            }
            longest = longest.max(turn);
        }
        assert!(
            (1 << 20..=(1 << 20) + (256 << 10)).contains(&longest),
            "{longest} bytes in a turn"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_flows_is_read_in_large_pieces() {
        let presence = Arc::new(Presence::default());
        let mut socket = Patient::new(join(repeat(b'x'), sink()), PATIENCE, Arc::clone(&presence));
        let mut room = vec![0; 256 << 10];
        let mut read = async || socket.read(&mut room).await.unwrap();
        assert_eq!(read().await, MAX_HELD_BYTES);
        presence.flow();
        assert_eq!(read().await, 256 << 10);
        let _next = presence.begin();
        assert_eq!(read().await, MAX_HELD_BYTES);
    }
}
