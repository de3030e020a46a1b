//! What a request holds while it is in flight.

use std::sync::Arc;

use smg_decide::fleet::load::Charge;
use smg_decide::keys::scope::KeyHash;
use smg_decide::pins::table::Table;
use tokio::time::Instant;

use crate::fleet::{Group, Upstream};

/// A worker chosen for a request, counted as in flight there until dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) upstream: Arc<Upstream>,
    charge: Charge,
    flight: Option<Flight>,
}

/// A key's request in flight.
#[derive(Debug)]
pub(super) struct Flight {
    table: Arc<Table>,
    key: KeyHash,
    start: Instant,
    /// Whether it is the key's first one there; `None` when the table has not counted it yet.
    first: Option<bool>,
}

impl Flight {
    /// One that the table has counted in its turn.
    pub(super) const fn counted(
        table: Arc<Table>,
        key: KeyHash,
        start: Instant,
        first: bool,
    ) -> Self {
        Self { table, key, start, first: Some(first) }
    }

    /// One that has yet to be counted.
    pub(super) const fn uncounted(table: Arc<Table>, key: KeyHash, start: Instant) -> Self {
        Self { table, key, start, first: None }
    }
}

impl Lease {
    /// A lease of the worker at this place of the group.
    pub(super) fn new(group: &Group, at: usize) -> Option<Self> {
        let upstream = Arc::clone(group.upstreams.get(at)?);
        group.selections.inc();
        let charge = upstream.worker.begin(None);
        upstream.meters.requests_active.inc();
        Some(Self { upstream, charge, flight: None })
    }

    /// The same for a request of a key.
    pub(super) fn flying(mut self, flight: Option<Flight>) -> Self {
        if let Some(flight) = &flight {
            let worker = &self.upstream.worker;
            let first = flight.first.unwrap_or_else(|| flight.table.enter(flight.key, worker.id));
            if first {
                worker.key_begins();
                self.upstream.meters.keys_active.inc();
            }
        }
        self.flight = flight;
        self
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let worker = &self.upstream.worker;
        worker.end(self.charge);
        self.upstream.meters.requests_active.dec();
        let Some(Flight { table, key, start, .. }) = &self.flight else { return };
        if table.leave(*key, worker.id, super::now(*start)) {
            worker.key_ends();
            self.upstream.meters.keys_active.dec();
        }
    }
}
