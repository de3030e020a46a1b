//! What a client's socket is told of the requests that come through it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// One connection's requests, which come one after the other.
#[derive(Debug, Default)]
pub(super) struct Presence {
    begun: AtomicU32,
    busy: AtomicBool,
    unread: AtomicBool,
    owing: AtomicBool,
}

/// Held by a request until its answer has ended.
#[derive(Debug)]
pub(crate) struct Attending(Arc<Presence>);

impl Presence {
    /// A request's head has been read.
    pub(super) fn begin(self: &Arc<Self>) -> Attending {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.busy.store(true, Ordering::Relaxed);
        Attending(Arc::clone(self))
    }

    /// Requests begun so far.
    pub(super) fn begun(&self) -> u32 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Whether one is being answered.
    pub(super) fn busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed)
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
        self.0.busy.store(false, Ordering::Relaxed);
    }
}
