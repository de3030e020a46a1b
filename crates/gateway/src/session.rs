//! The choice of a worker: a key's pin, else the policy. Only this module writes pins.

use std::sync::Arc;

use http::HeaderMap;
use rand::Rng;
use smg_decide::fleet::load::Charge;
use smg_decide::fleet::{Leg, WorkerId};
use smg_decide::keys::scope::{Hashing, KeyHash, Scope};
use smg_decide::keys::{self, Key};
use smg_decide::pins::table::{Table, Turn};
use smg_decide::pins::{OVERRIDE_THRESHOLD, Outcome, Replacement, Rules};
use smg_decide::place::{Ask, Assignment, Candidates};
use tokio::time::Instant;

use crate::fleet::{Group, Upstream};
use crate::settings::{Eviction, Sticky};
use crate::telemetry::StickyMeters;

/// The pins of this replica and how keys are found.
#[derive(Debug)]
pub(crate) struct Session {
    sticky: Option<Sticky>,
    hashing: Hashing,
    table: Arc<Table>,
    /// Pins count seconds from here.
    start: Instant,
}

impl Session {
    pub(crate) fn new(sticky: Option<Sticky>) -> Self {
        let mode = sticky.as_ref().map(|sticky| sticky.assignment);
        let replacement = match mode {
            Some(Assignment::Delegate) | None => Replacement::Leads,
            Some(_) => Replacement::Follows,
        };
        let rules = Rules { replacement, threshold: Some(OVERRIDE_THRESHOLD) };
        Self {
            sticky,
            hashing: Hashing::new(rand::random()),
            table: Arc::new(Table::new(rules)),
            start: Instant::now(),
        }
    }

    /// Whether the override is on, so that every body is read for its `rid`.
    pub(crate) const fn reads_rid(&self) -> bool {
        self.sticky.is_some()
    }

    /// The key of a request.
    pub(crate) fn key<'a>(&self, rid: Option<&'a str>, headers: &'a HeaderMap) -> Option<Key<'a>> {
        let names = &self.sticky.as_ref()?.headers;
        keys::derive(rid, names.iter().map(|name| headers.get(name).map(|v| v.as_bytes())))
    }

    /// Chooses a worker and counts the request as in flight there; `None` when none is available.
    pub(crate) fn choose(
        &self,
        group: &Group,
        key: Option<Key<'_>>,
        excluded: &[WorkerId],
        meters: &StickyMeters,
    ) -> Option<Lease> {
        let candidates = Candidates::new(&group.workers, excluded);
        let dice = &mut rand::rng();
        let Some((sticky, key)) = self.sticky.as_ref().zip(key) else {
            let ask = Ask::default();
            let proposal = group.policy.propose(&ask, &candidates, dice);
            group.branches.decided(&proposal);
            let at = proposal.at?;
            group.policy.commit(&ask, group.workers.get(at)?);
            return Lease::new(group, at, None);
        };
        let scope = Scope { model: Some(&group.model), leg: Leg::Regular };
        let hash = self.hashing.hash(scope, key.text.as_bytes());
        let decided = self.pinned(group, hash, (sticky.assignment, &candidates), dice);
        let outcome = decided.map_or(Outcome::NoHealthyWorkers, |(outcome, ..)| outcome);
        meters.decided(outcome, key.source, self.table.len());
        let worker = decided.and_then(|(_, at, _)| group.workers.get(at));
        tracing::debug!(
            source = key.source.as_str(),
            key = format_args!(
                "{}:{}:{}:{}",
                group.model.len(),
                group.model,
                scope.leg.letter(),
                key.text
            ),
            branch = outcome.as_str(),
            worker = worker.map_or("none", |worker| &worker.url),
            model_id = &*group.model,
            "Sticky routing decision"
        );
        let (_, at, first) = decided?;
        Lease::new(group, at, Some(Flight { table: Arc::clone(&self.table), key: hash, first }))
    }

    /// A keyed request's turn at the pin table: outcome, place in the group, first of its key there.
    fn pinned(
        &self,
        group: &Group,
        key: KeyHash,
        (assignment, candidates): (Assignment, &Candidates<'_>),
        dice: &mut dyn Rng,
    ) -> Option<(Outcome, usize, bool)> {
        let available = |id| candidates.find(id).is_some();
        let now = self.now();
        let mut turn = self.table.turn(key, None, now, available);
        if let Turn::Propose(_) = turn {
            let ask = Ask::default();
            let proposal = assignment.propose(&*group.policy, &ask, candidates, dice);
            group.branches.decided(&proposal);
            let proposal = group.workers.get(proposal.at?)?;
            turn = self.table.turn(key, Some(proposal.id), now, available);
            if assignment == Assignment::Delegate
                && matches!(turn, Turn::Fly { proposal_used: true, .. })
            {
                group.policy.commit(&ask, proposal);
            }
        }
        let Turn::Fly { worker, outcome, first, .. } = turn else { return None };
        let at = group.workers.binary_search_by_key(&worker, |worker| worker.id).ok()?;
        Some((outcome, at, first))
    }

    /// Evicts idle pins for ever; returns at once when nothing is ever evicted.
    pub(crate) async fn sweep(&self, meters: &StickyMeters) {
        let Some(Eviction { max_idle_secs, interval }) =
            self.sticky.as_ref().and_then(|sticky| sticky.eviction)
        else {
            return;
        };
        loop {
            tokio::time::sleep(interval).await;
            let evicted = self.table.sweep(self.now(), max_idle_secs);
            let remaining = self.table.len();
            meters.set_entries(remaining);
            if evicted > 0 {
                tracing::info!(
                    "ManualPolicy TTL eviction: evicted {evicted} entries, remaining {remaining} \
                     (max_idle: {max_idle_secs}s)"
                );
            }
        }
    }

    fn now(&self) -> u32 {
        u32::try_from(self.start.elapsed().as_secs()).unwrap_or(u32::MAX)
    }
}

/// A worker chosen for a request, counted as in flight there until dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) upstream: Arc<Upstream>,
    charge: Charge,
    flight: Option<Flight>,
}

/// A key's request in flight.
#[derive(Debug)]
struct Flight {
    table: Arc<Table>,
    key: KeyHash,
    first: bool,
}

impl Lease {
    fn new(group: &Group, at: usize, flight: Option<Flight>) -> Option<Self> {
        let upstream = Arc::clone(group.upstreams.get(at)?);
        group.selections.inc();
        let charge = upstream.worker.begin(None);
        upstream.meters.requests_active.inc();
        if flight.as_ref().is_some_and(|flight| flight.first) {
            upstream.worker.key_begins();
            upstream.meters.keys_active.inc();
        }
        Some(Self { upstream, charge, flight })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let worker = &self.upstream.worker;
        worker.end(self.charge);
        self.upstream.meters.requests_active.dec();
        if self.flight.as_ref().is_some_and(|flight| flight.table.leave(flight.key, worker.id)) {
            worker.key_ends();
            self.upstream.meters.keys_active.dec();
        }
    }
}
