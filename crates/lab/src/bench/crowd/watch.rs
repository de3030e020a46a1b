//! Who asks `/liveness` over and over, from a thread of its own so that no crowd delays the question.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::bench::load::once;
use crate::bench::payload::get_request;
use crate::bench::runtime;

/// Between two questions.
const PAUSE: Duration = Duration::from_millis(20);

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// What was seen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Watched {
    asked: usize,
    pub(super) failed: usize,
    pub(super) worst: Duration,
}

impl Watched {
    /// Both times together.
    pub(super) fn with(self, other: Self) -> Self {
        Self {
            asked: self.asked + other.asked,
            failed: self.failed + other.failed,
            worst: self.worst.max(other.worst),
        }
    }

    fn note(&mut self, answered: bool, took: Duration) {
        self.asked += 1;
        self.failed += usize::from(!answered);
        self.worst = self.worst.max(took);
    }
}

impl fmt::Display for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asked, failed, worst } = self;
        write!(f, "/liveness {asked} times, {failed} failed, within {worst:.1?}")
    }
}

/// A watch that goes on until it is ended.
pub(super) struct Watch {
    over: Arc<AtomicBool>,
    watching: JoinHandle<Watched>,
}

impl Watch {
    pub(super) fn start(address: SocketAddr) -> Result<Self, String> {
        let runtime = runtime()?;
        let over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&over);
        let watching = thread::spawn(move || runtime.block_on(watch(address, &told)));
        Ok(Self { over, watching })
    }

    /// Returns once no question is open any more.
    pub(super) fn end(self) -> Result<Watched, String> {
        self.over.store(true, Ordering::Relaxed);
        self.watching.join().map_err(|_| "the watch fell over".to_owned())
    }
}

async fn watch(address: SocketAddr, over: &AtomicBool) -> Watched {
    // Each on a connection of its own, as who decides about a restart asks.
    let request = get_request("/liveness");
    let mut seen = Watched::default();
    while !over.load(Ordering::Relaxed) {
        let began = Instant::now();
        let answer = tokio::time::timeout(PATIENCE, once(address, &request)).await;
        seen.note(matches!(answer, Ok(Ok(_))), began.elapsed());
        tokio::time::sleep(PAUSE).await;
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_of_all_counts() {
        let mut first = Watched::default();
        first.note(true, Duration::from_millis(5));
        first.note(true, Duration::from_millis(3));
        let mut second = Watched::default();
        second.note(false, Duration::from_millis(4));
        let told = first.with(second).to_string();
        assert_eq!(told, "/liveness 3 times, 1 failed, within 5.0ms");
    }
}
