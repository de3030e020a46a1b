//! What a client's socket is told of the requests that come through it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tokio::sync::Notify;

/// One connection's requests, which come one after the other with HTTP/1.1, and together with HTTP/2.
#[derive(Debug, Default)]
pub(super) struct Presence {
    begun: AtomicU32,
    busy: AtomicU32,
    quiet: Notify,
    unread: AtomicBool,
    owing: AtomicBool,
    flowing: AtomicBool,
}

/// Held by a request until its answer has ended.
#[derive(Debug)]
pub(crate) struct Attending(Arc<Presence>);

impl Presence {
    /// A request's head has been read.
    pub(super) fn begin(self: &Arc<Self>) -> Attending {
        self.flowing.store(false, Ordering::Relaxed);
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.busy.fetch_add(1, Ordering::Relaxed);
        Attending(Arc::clone(self))
    }

    /// Requests begun so far.
    pub(super) fn begun(&self) -> u32 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Whether one is being answered.
    pub(super) fn busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed) > 0
    }

    /// Resolves when none is any more, or has been since this was last awaited.
    pub(super) async fn quiet(&self) {
        self.quiet.notified().await;
    }

    /// The body of the request that began last goes on as it comes.
    pub(super) fn flow(&self) {
        self.flowing.store(true, Ordering::Relaxed);
    }

    /// Whether that is so.
    pub(super) fn flowing(&self) -> bool {
        self.flowing.load(Ordering::Relaxed)
    }

    /// An upload was refused that its client may still be sending.
    pub(super) fn leave_unread(&self) {
        self.unread.store(true, Ordering::Relaxed);
    }

    /// Whether bytes were written that may not all have gone out.
    pub(super) fn owe(&self, owing: bool) {
        self.owing.store(owing, Ordering::Relaxed);
    }

    /// Whether that is so: whoever writes still holds the rest.
    pub(super) fn owing(&self) -> bool {
        self.owing.load(Ordering::Relaxed)
    }

    /// Whether that is so.
    pub(super) fn unread(&self) -> bool {
        self.unread.load(Ordering::Relaxed)
    }
}

impl Drop for Attending {
    fn drop(&mut self) {
        if self.0.busy.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.quiet.notify_one();
        }
    }
}
