//! What a request holds while it is in flight.

use std::sync::Arc;

use http::HeaderValue;

use crate::clock::Clock;
use crate::fleet::{Group, Upstream};
use smg_decide::fleet::breaker::State;
use smg_decide::fleet::load::Charge;
use smg_decide::keys::scope::KeyHash;
use smg_decide::pins::Outcome;
use smg_decide::pins::table::Table;
use smg_decide::place::Receipt;
use smg_decide::settle::{self, End};

/// A worker chosen for a request, counted as in flight there until dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) upstream: Arc<Upstream>,
    /// What the policy remembers of this choice, if it was asked.
    pub(crate) receipt: Receipt,
    /// What pins had to do with it.
    pub(crate) outcome: Outcome,
    /// The id that the answer is to carry, for a request of a session (004).
    pub(crate) session: Option<HeaderValue>,
    charge: Charge,
    /// Whether it is a probe of a half-open breaker.
    probe: bool,
    clock: Clock,
    flight: Option<Flight>,
}

/// A key's request in flight.
#[derive(Debug)]
pub(super) struct Flight {
    table: Arc<Table>,
    key: KeyHash,
    /// Whether it is the key's first one there; `None` when the table has not counted it yet.
    first: Option<bool>,
}

impl Flight {
    /// One that the table has counted in its turn.
    pub(super) const fn counted(table: Arc<Table>, key: KeyHash, first: bool) -> Self {
        Self { table, key, first: Some(first) }
    }

    /// One that has yet to be counted.
    pub(super) const fn uncounted(table: Arc<Table>, key: KeyHash) -> Self {
        Self { table, key, first: None }
    }
}

impl Lease {
    /// A lease of the worker at this place of the group.
    pub(super) fn new(group: &Group, at: usize, clock: Clock) -> Option<Self> {
        let upstream = Arc::clone(group.upstreams.get(at)?);
        group.selections.inc();
        let charge = upstream.worker.begin(None);
        upstream.meters.requests_active.inc();
        if let Some(requests) = group.requests.get(at) {
            requests.inc();
        }
        let passed = upstream.worker.pass(clock.millis());
        if let Some(told) = &passed {
            upstream.meters.breaker.show(told);
        }
        let (receipt, probe) = (Receipt::default(), passed.is_some());
        let outcome = Outcome::NoRoutingId;
        Some(Self { upstream, receipt, outcome, session: None, charge, probe, clock, flight: None })
    }

    /// The same as pins had it.
    pub(super) const fn by(mut self, outcome: Outcome) -> Self {
        self.outcome = outcome;
        self
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

    /// Tells the worker's breaker how the exchange ended.
    pub(crate) fn record(&self, end: End, status: u16, retry_after: bool) {
        let worker = &self.upstream.worker;
        // Half open or not makes a difference for refusals only.
        let state = if self.probe { State::HalfOpen } else { State::Closed };
        let outcome = settle::outcome(end, status, retry_after, state);
        self.upstream.meters.breaker.count(outcome);
        if let Some(told) = worker.record(outcome, self.clock.millis()) {
            self.upstream.meters.breaker.show(&told);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let worker = &self.upstream.worker;
        self.upstream.meters.requests_active.dec();
        if self.probe {
            worker.release();
        }
        if let Some(Flight { table, key, .. }) = &self.flight
            && table.leave(*key, worker.id, self.clock.secs())
        {
            worker.key_ends();
            self.upstream.meters.keys_active.dec();
        }
        // Last, as the worker's series may go now.
        if worker.end(self.charge) {
            self.upstream.drained.notify_one();
        }
    }
}
