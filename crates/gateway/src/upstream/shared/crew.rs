//! What hyper does for one connection, done by the one task that drives it. hyper hands out a future for
//! the socket and one for every request that waits for its answer's head. As tasks of their own they
//! would wake one another across threads, several times a request; here a wake-up that one of them
//! causes is served within the same turn.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use hyper::rt::Executor;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Where hyper leaves its work: while the handshake is made, and later only while the crew works.
#[derive(Clone, Default)]
pub(super) struct Desk(Arc<Mutex<Vec<Work>>>);

/// Does it.
pub(super) struct Crew {
    desk: Desk,
    /// The socket's, which is at work whenever anything is.
    first: Option<Work>,
    /// The requests', each woken for itself.
    others: FuturesUnordered<Work>,
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk").finish_non_exhaustive()
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Desk {
    fn execute(&self, work: F) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Box::pin(work));
    }
}

impl Desk {
    /// Does what is left here from now on.
    pub(super) fn crew(self) -> Crew {
        let mut left = self.take().into_iter();
        let first = left.next();
        Crew { desk: self, first, others: left.collect() }
    }

    /// A panic under the lock leaves a list, which is whole at any time.
    fn take(&self) -> Vec<Work> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Crew {
    /// Goes on with everything; ready when nothing is left.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.first.as_mut().is_some_and(|first| first.as_mut().poll(cx).is_ready()) {
            self.first = None;
        }
        loop {
            self.others.extend(self.desk.take());
            match self.others.poll_next_unpin(cx) {
                Poll::Ready(Some(())) => {}
                Poll::Ready(None) if self.first.is_none() => return Poll::Ready(()),
                Poll::Ready(None) | Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl Drop for Crew {
    /// Work that is left here may hold the desk.
    fn drop(&mut self) {
        drop(self.desk.take());
    }
}

#[cfg(test)]
mod tests;
