//! Leaving without cutting anyone off: a trigger, watchers that count, and a deadline.

use std::time::Duration;

use tokio::sync::watch;

/// The trigger. Everything that must end before the process does holds a [`Watcher`].
#[derive(Debug)]
pub struct Drain {
    draining: watch::Sender<bool>,
}

/// Held by a connection for as long as it lives.
#[derive(Clone, Debug)]
pub struct Watcher {
    draining: watch::Receiver<bool>,
}

impl Default for Drain {
    fn default() -> Self {
        Self { draining: watch::Sender::new(false) }
    }
}

impl Drain {
    /// Whether the gateway is leaving; `/readiness` says so and new requests are refused.
    #[must_use]
    pub fn draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// A watcher to hold.
    #[must_use]
    pub fn watch(&self) -> Watcher {
        Watcher { draining: self.draining.subscribe() }
    }

    /// Starts draining and waits until every watcher is gone or `grace` is over; false if some
    /// were still there.
    pub async fn run(&self, grace: Duration) -> bool {
        self.draining.send_replace(true);
        let connections = self.watchers();
        tracing::info!(connections, ?grace, "draining; a second signal ends it at once");
        tokio::time::timeout(grace, self.draining.closed()).await.is_ok()
    }

    /// How many watchers there are.
    #[must_use]
    pub fn watchers(&self) -> usize {
        self.draining.receiver_count()
    }
}

impl Watcher {
    /// Resolves when draining starts.
    pub async fn begun(&mut self) {
        // An error means the gateway itself is gone, which is as good a reason to leave.
        let _ = self.draining.wait_for(|draining| *draining).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_drain_ends_with_its_last_watcher_or_at_its_deadline() {
        let drain = Drain::default();
        let mut watcher = drain.watch();
        assert!(!drain.draining());
        let stuck = drain.watch();
        assert!(!drain.run(Duration::from_secs(5)).await);
        assert!(drain.draining());
        watcher.begun().await;
        drop((watcher, stuck));
        assert!(drain.run(Duration::from_secs(5)).await);
    }
}
