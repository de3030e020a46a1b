//! Pins in this replica's memory, and the count of each key's requests in flight.
//!
//! The table is cut in shards, each behind its own lock that is held for one step of one key and
//! never across an await. What a key remembers takes 28 bytes: a 16-byte hash, two worker ids and
//! the second of its last use.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use super::{Outcome, Pin, Rules, Step, step};
use crate::fleet::WorkerId;
use crate::keys::scope::KeyHash;

/// Not a power of two, so that a table of a power of ten fills its shards' buckets well: at a
/// million pins 46 bytes each instead of 61.
const SHARDS: usize = 96;

/// The pins of one replica.
#[derive(Debug)]
pub struct Table {
    rules: Rules,
    entries: AtomicUsize,
    shards: Box<[Mutex<Shard>]>,
}

#[derive(Debug, Default)]
struct Shard {
    pins: HashMap<KeyHash, Record, BuildHasherDefault<Words>>,
    flying: HashMap<KeyHash, Flights, BuildHasherDefault<Words>>,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    pin: Pin,
    /// Seconds on the caller's clock.
    used: u32,
}

/// A key's requests in flight by worker; few keys fly to more than two.
type Flights = SmallVec<[(WorkerId, u32); 2]>;

/// What a keyed request learned from the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It goes to `worker`; its flight is counted until [`Table::leave`].
    Fly {
        /// Where it goes.
        worker: WorkerId,
        /// How that came about.
        outcome: Outcome,
        /// Whether the proposal it brought along was used.
        proposal_used: bool,
        /// Whether it is the key's first request in flight there.
        first: bool,
    },
    /// No pin decides: come again with a proposal.
    Propose(Step),
}

impl Table {
    /// An empty table.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { rules, entries: AtomicUsize::new(0), shards }
    }

    /// Pins held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.load(Ordering::Relaxed)
    }

    /// Whether no pin is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One step of a key. Without a `proposal` it either flies on its pin or is told to propose;
    /// with one it always flies, on the proposal or on the pin that another request of the key set
    /// meanwhile. `now` counts seconds on a clock of the caller's.
    pub fn turn(
        &self,
        key: KeyHash,
        proposal: Option<WorkerId>,
        now: u32,
        available: impl Fn(WorkerId) -> bool,
    ) -> Turn {
        let mut shard = self.shard(key);
        let flights = shard.flying.get(&key);
        let flying = |worker| count(flights, worker);
        let pin = shard.pins.get(&key).map(|record| record.pin);
        let step = step(pin, self.rules, available, flying);
        let (worker, pin) = match (step, proposal) {
            (Step::Use(worker), _) => (worker, pin),
            (step, None) => return Turn::Propose(step),
            (Step::Place, Some(placed)) => (placed, Some(Pin::new(placed))),
            (step, Some(placed)) => {
                (placed, pin.map(|pin| pin.moved(step, placed, self.rules, flying)))
            }
        };
        if let Some(pin) = pin
            && shard.pins.insert(key, Record { pin, used: now }).is_none()
        {
            self.entries.fetch_add(1, Ordering::Relaxed);
        }
        let proposal_used = !matches!(step, Step::Use(_));
        let first = shard.enter(key, worker);
        Turn::Fly { worker, outcome: step.outcome(), proposal_used, first }
    }

    /// Counts a request of a key that is not pinned here; true for its first one in flight there.
    pub fn enter(&self, key: KeyHash, worker: WorkerId) -> bool {
        self.shard(key).enter(key, worker)
    }

    /// A counted request of the key ended; true when it was the key's last one in flight there.
    pub fn leave(&self, key: KeyHash, worker: WorkerId) -> bool {
        self.shard(key).leave(key, worker)
    }

    /// Removes pins unused for `max_idle` seconds or more; returns how many went. A key with
    /// requests in flight is in use.
    pub fn sweep(&self, now: u32, max_idle: u32) -> usize {
        let mut evicted = 0;
        for shard in &self.shards {
            let mut shard = lock(shard);
            let before = shard.pins.len();
            let Shard { pins, flying } = &mut *shard;
            pins.retain(|key, record| {
                now.saturating_sub(record.used) < max_idle || flying.contains_key(key)
            });
            let gone = before - pins.len();
            if gone > 0 && pins.len() < pins.capacity() / 4 {
                pins.shrink_to_fit();
            }
            evicted += gone;
        }
        self.entries.fetch_sub(evicted, Ordering::Relaxed);
        evicted
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "a 32-bit word times SHARDS over 2^32 is below SHARDS"
    )]
    fn shard(&self, key: KeyHash) -> MutexGuard<'_, Shard> {
        let at = (u64::from(key.low()) * SHARDS as u64) >> 32;
        lock(&self.shards[at as usize])
    }
}

impl Shard {
    fn enter(&mut self, key: KeyHash, worker: WorkerId) -> bool {
        let flights = self.flying.entry(key).or_default();
        match flights.iter_mut().find(|(at, _)| *at == worker) {
            Some((_, count)) => {
                *count += 1;
                false
            }
            None => {
                flights.push((worker, 1));
                true
            }
        }
    }

    fn leave(&mut self, key: KeyHash, worker: WorkerId) -> bool {
        let Entry::Occupied(mut flights) = self.flying.entry(key) else {
            return false;
        };
        let Some(at) = flights.get().iter().position(|(at, _)| *at == worker) else {
            return false;
        };
        let last = match flights.get_mut().get_mut(at) {
            Some((_, count)) if *count > 1 => {
                *count -= 1;
                false
            }
            _ => {
                flights.get_mut().swap_remove(at);
                true
            }
        };
        if flights.get().is_empty() {
            flights.remove();
        }
        last
    }
}

fn count(flights: Option<&Flights>, worker: WorkerId) -> u32 {
    let flights = flights.map_or(&[][..], |flights| flights.as_slice());
    flights.iter().find(|(at, _)| *at == worker).map_or(0, |(_, count)| *count)
}

/// A panic under the lock leaves counts that are at worst stale, so the table stays in use.
fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The hash of a key hash is one of its own words: it is keyed and well mixed already.
#[derive(Debug, Default)]
struct Words(u64);

impl Hasher for Words {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Hash for KeyHash {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.high());
    }
}

#[cfg(test)]
mod tests {
    use super::super::{OVERRIDE_THRESHOLD, Replacement};
    use super::*;
    use crate::fleet::Leg;
    use crate::keys::scope::{Hashing, Scope};
    use proptest::prelude::*;

    const A: WorkerId = WorkerId(1);
    const B: WorkerId = WorkerId(2);
    const RULES: Rules =
        Rules { replacement: Replacement::Leads, threshold: Some(OVERRIDE_THRESHOLD) };

    fn key(text: &str) -> KeyHash {
        Hashing::new([1; 16]).hash(Scope { model: Some("m"), leg: Leg::Regular }, text.as_bytes())
    }

    fn fly(table: &Table, key: KeyHash, proposal: WorkerId) -> (WorkerId, Outcome, bool) {
        match table.turn(key, Some(proposal), 0, |_| true) {
            Turn::Fly { worker, outcome, proposal_used, .. } => (worker, outcome, proposal_used),
            Turn::Propose(step) => panic!("{step:?} with a proposal"),
        }
    }

    #[test]
    fn a_new_key_proposes_then_sticks() {
        let table = Table::new(RULES);
        assert_eq!(table.turn(key("k"), None, 0, |_| true), Turn::Propose(Step::Place));
        assert_eq!(fly(&table, key("k"), A), (A, Outcome::Vacant, true));
        let again = table.turn(key("k"), None, 0, |_| true);
        assert!(matches!(again, Turn::Fly { worker: A, outcome: Outcome::OccupiedHit, .. }));
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn the_loser_of_a_race_for_a_new_key_adopts_the_winners_worker() {
        let table = Table::new(RULES);
        assert_eq!(fly(&table, key("k"), A), (A, Outcome::Vacant, true));
        assert_eq!(fly(&table, key("k"), B), (A, Outcome::OccupiedHit, false));
    }

    #[test]
    fn the_third_in_flight_is_placed_again_and_the_pin_follows_once() {
        let table = Table::new(RULES);
        let k = key("k");
        for wanted in [
            (A, Outcome::Vacant, true),
            (A, Outcome::OccupiedHit, false),
            (B, Outcome::CapRespill, true),
            (B, Outcome::OccupiedHit, false),
            (B, Outcome::CapRespill, true),
        ] {
            let proposal = if wanted.1 == Outcome::Vacant { A } else { B };
            assert_eq!(fly(&table, k, proposal), wanted);
        }
        for worker in [A, A, B, B, B] {
            table.leave(k, worker);
        }
        assert_eq!(fly(&table, k, A), (B, Outcome::OccupiedHit, false));
    }

    #[test]
    fn an_outage_keeps_the_pin() {
        let table = Table::new(RULES);
        fly(&table, key("k"), A);
        assert_eq!(table.turn(key("k"), None, 0, |_| false), Turn::Propose(Step::Replace));
        let back = table.turn(key("k"), None, 0, |_| true);
        assert!(matches!(back, Turn::Fly { worker: A, outcome: Outcome::OccupiedHit, .. }));
    }

    #[test]
    fn the_sweep_takes_idle_pins_but_none_in_flight() {
        let table = Table::new(RULES);
        for (name, used) in [("old", 0), ("young", 50), ("busy", 0)] {
            assert!(matches!(table.turn(key(name), Some(A), used, |_| true), Turn::Fly { .. }));
        }
        table.leave(key("old"), A);
        table.leave(key("young"), A);
        assert_eq!(table.sweep(100, 100), 1);
        assert_eq!(table.len(), 2);
        assert_eq!(table.turn(key("old"), None, 100, |_| true), Turn::Propose(Step::Place));
        table.leave(key("busy"), A);
        assert_eq!(table.sweep(150, 100), 2);
        assert!(table.is_empty());
    }

    #[test]
    fn first_and_last_flight_of_a_key_are_told_apart() {
        let table = Table::new(RULES);
        let k = key("k");
        assert!(table.enter(k, A) && !table.enter(k, A) && table.enter(k, B));
        assert!(!table.leave(k, A) && table.leave(k, A) && table.leave(k, B));
        assert!(!table.leave(k, B), "nothing left to leave");
    }

    #[test]
    fn a_record_takes_28_bytes() {
        assert_eq!(size_of::<(KeyHash, Record)>(), 28);
    }

    proptest! {
        /// Whatever is flown and landed in whatever order, at rest nothing is in flight.
        #[test]
        fn counts_return_to_zero(moves in prop::collection::vec((0..4_u8, 0..3_u32), 1..200)) {
            let table = Table::new(RULES);
            let mut flights = Vec::new();
            for (name, proposal) in moves {
                let k = key(&name.to_string());
                flights.push((k, fly(&table, k, WorkerId(proposal)).0));
                if flights.len() > 5 {
                    let (k, worker) = flights.swap_remove(0);
                    table.leave(k, worker);
                }
            }
            for (k, worker) in flights {
                table.leave(k, worker);
            }
            prop_assert!(table.shards.iter().all(|shard| lock(shard).flying.is_empty()));
        }
    }
}
