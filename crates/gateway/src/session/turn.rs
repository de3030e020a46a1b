//! A keyed request's turn at its pin, under the override or `manual` (000): in this replica's memory, or
//! where replicas share it (`--sticky-store redis`). What the store says is brought to the memory before
//! anything is decided, so one step function decides for both, requests in flight are counted here, and
//! a store that says nothing in time leaves what is remembered.

use std::sync::Arc;

use smg_decide::fleet::WorkerId;
use smg_decide::keys::scope::KeyHash;
use smg_decide::pins::shared::{SharedPin, written};
use smg_decide::pins::table::Table;
use smg_decide::pins::{Pin, Step};
use smg_decide::place::{Ask, Assignment, Candidates};
use smg_decide::seat::{Landed, Look, Seat};

use super::store::{Met, Name, Shared};
use crate::fleet::Group;

/// What a keyed request brings to its pin.
#[derive(Clone, Copy)]
pub(super) struct Turn<'a> {
    pub(super) group: &'a Group,
    pub(super) table: &'a Arc<Table>,
    pub(super) key: KeyHash,
    pub(super) assignment: Assignment,
    /// The pinned worker is busy, not broken.
    pub(super) keep_pin: bool,
    pub(super) now: u32,
    pub(super) candidates: Candidates<'a>,
    pub(super) ask: &'a Ask<'a>,
}

/// A worker that is to take the request, in answer to a step.
#[derive(Clone, Copy)]
struct Proposed {
    step: Step,
    worker: WorkerId,
}

impl Turn<'_> {
    /// In this replica's memory.
    pub(super) fn alone(&self) -> Option<Landed> {
        match self.look()? {
            Look::Lands(landed) => Some(landed),
            Look::Proposes(step) => {
                let Proposed { step, worker } = self.propose(step)?;
                self.seated(|seat| seat.land(step, worker))
            }
        }
    }

    /// Where replicas share the pin under this name.
    pub(super) async fn shared(&self, store: &Shared, name: &Name) -> Option<Landed> {
        if let Some(text) = store.remembered(name) {
            return self.follow(store, name, text).await;
        }
        let remembered = self.table.pinned(self.key);
        // It is remembered from before the store was lost, or new.
        let (mine, new) = match remembered.and_then(|pin| written(pin, |id| self.address(id))) {
            Some(text) => (text, None),
            None => {
                let placed = self.propose(Step::Place)?;
                (self.address(placed.worker)?.to_owned(), Some(placed))
            }
        };
        match (store.claim(name, &mine).await, new) {
            (None, Some(placed)) => self.land(placed),
            (None, None) => self.alone(),
            (Some(Met { ours: true, .. }), Some(Proposed { step, worker })) => {
                self.table.adopt(self.key, Pin::new(worker), self.now);
                self.seated(|seat| seat.detour(step, worker))
            }
            (Some(met), _) => self.follow(store, name, met.address).await,
        }
    }

    /// By the pin that the store has.
    async fn follow(&self, store: &Shared, name: &Name, text: String) -> Option<Landed> {
        let Some(pin) = SharedPin::read(&text, |address| self.id(address)) else {
            return self.alone();
        };
        let step = match self.adopted(&pin)? {
            Look::Lands(landed) => return Some(landed),
            Look::Proposes(step) => step,
        };
        let placed = self.propose(step)?;
        let moved = self.table.moved(self.key, pin.pin, step, placed.worker);
        let to = pin.moved(moved, |id| self.address(id)).filter(|_| moved != pin.pin);
        let Some(to) = to.filter(|_| !self.keep_pin) else {
            return self.seated(|seat| seat.detour(step, placed.worker));
        };
        let Some(met) = store.shift(name, &text, &to).await else {
            store.doubt(name);
            return self.land(placed);
        };
        let Some(pin) = SharedPin::read(&met.address, |address| self.id(address)) else {
            return self.land(placed);
        };
        if met.ours {
            pin.known().into_iter().for_each(|pin| self.table.adopt(self.key, pin, self.now));
        } else if let Look::Lands(landed) = self.adopted(&pin)? {
            return Some(landed);
        }
        self.seated(|seat| seat.detour(step, placed.worker))
    }

    /// The step by this pin, which is remembered from now on.
    fn adopted(&self, pin: &SharedPin<'_>) -> Option<Look> {
        let Some(known) = pin.known() else { return Some(Look::Proposes(Step::Replace)) };
        self.table.adopt(self.key, known, self.now);
        self.look()
    }

    fn look(&self) -> Option<Look> {
        self.seated(|seat| seat.look())
    }

    fn propose(&self, step: Step) -> Option<Proposed> {
        let (proposal, at) = self.seated(|seat| seat.propose(step, &mut rand::rng()));
        self.group.branches.decided(&proposal);
        Some(Proposed { step, worker: self.group.workers.get(at?)?.id })
    }

    fn land(&self, Proposed { step, worker }: Proposed) -> Option<Landed> {
        self.seated(|seat| seat.land(step, worker))
    }

    /// A seat for as long as nothing is waited for.
    fn seated<T>(&self, act: impl FnOnce(&Seat<'_>) -> T) -> T {
        let Self { group, table, key, assignment, keep_pin, now, candidates, ask } = *self;
        let available = |id| candidates.find(id).is_some();
        act(&Seat {
            table,
            key,
            assignment,
            keep_pin,
            now,
            candidates,
            available: &available,
            policy: &*group.policy,
            ask,
        })
    }

    fn id(&self, address: &str) -> Option<WorkerId> {
        let at = self.group.at(address.as_bytes())?;
        self.group.workers.get(at).map(|worker| worker.id)
    }

    fn address(&self, id: WorkerId) -> Option<&str> {
        let at = self.group.workers.binary_search_by_key(&id, |worker| worker.id).ok()?;
        self.group.upstreams.get(at).map(|upstream| &*upstream.address)
    }
}
