//! A silence that is measured while somebody waits for it to end, and only then.

use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

/// A timer that begins anew with every wait.
#[derive(Debug)]
pub(crate) struct Lull {
    length: Duration,
    timer: Pin<Box<Sleep>>,
    /// Whether somebody waits.
    waiting: bool,
}

impl Lull {
    /// One that counts as too long after `length`.
    pub(crate) fn of(length: Duration) -> Self {
        Self { length, timer: Box::pin(sleep(length)), waiting: false }
    }

    /// The wait is over.
    pub(crate) const fn ends(&mut self) {
        self.waiting = false;
    }

    /// Ready once the wait has lasted too long, which begins the next one.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !std::mem::replace(&mut self.waiting, true) {
            self.timer.as_mut().reset(Instant::now() + self.length);
        }
        ready!(self.timer.as_mut().poll(cx));
        self.waiting = false;
        Poll::Ready(())
    }
}
