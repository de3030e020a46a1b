//! The policies that are played. A new one is a line in [`POLICIES`].

use std::fmt;
use std::sync::Arc;

use smg_decide::place::{Assignment, Manual, Policy, Random, RoundRobin};

/// A policy, and what its choices can be held to.
pub(super) struct Entry {
    /// Makes it for one model; `manual` places by the mode.
    pub(super) make: fn(Assignment) -> Arc<dyn Policy>,
    pub(super) law: Law,
}

impl fmt::Debug for Entry {
    /// Without the function's address, which differs from run to run.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.law.fmt(f)
    }
}

/// What can be said of a choice beyond that the worker is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Law {
    /// Nothing.
    Any,
    /// One after the other over the available ones in list order; only used proposals count.
    Cycle,
    /// By the assignment mode.
    Mode,
    /// A key goes where it went when the same workers were available. One that is lost moves its
    /// own keys only, one that comes takes keys to itself only (000, "Scoping": the same placement
    /// on every replica that sees the same workers as available).
    Ring,
}

/// All there are.
pub(super) const POLICIES: &[Entry] = &[
    Entry { make: |_| Arc::new(RoundRobin::default()), law: Law::Cycle },
    Entry { make: |_| Arc::new(Random), law: Law::Any },
    Entry { make: |mode| Arc::new(Manual::new(mode)), law: Law::Mode },
];
