//! Pins in this replica's memory, and the count of each key's requests in flight.
//!
//! The table is cut in shards, each behind its own lock that is held for one step of one key and
//! never across an await. What a key remembers takes 28 bytes and its share of an index: a 16-byte
//! hash, two worker ids and the second of its last use.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use super::records::{Record, Records};
use super::{Outcome, Pin, Rules, Step, step};
use crate::fleet::WorkerId;
use crate::keys::scope::KeyHash;

/// Most shards of a table.
const SHARDS: usize = 64;
/// A bounded table has a shard for so many pins, so that a small bound is kept exactly enough.
const PINS_A_SHARD: usize = 1024;

/// The pins of one replica, under the rules that hold for some of its keys.
#[derive(Debug)]
pub struct Table {
    rules: Rules,
    kept: Arc<Kept>,
}

/// What is remembered, by whatever rules.
#[derive(Debug)]
struct Kept {
    /// Most pins of a shard; `None` for no bound.
    shard_limit: Option<usize>,
    entries: AtomicUsize,
    shards: Box<[Mutex<Shard>]>,
}

#[derive(Debug, Default)]
struct Shard {
    pins: Records,
    flying: HashMap<KeyHash, Flights, BuildHasherDefault<Words>>,
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
    /// An empty table of at most `limit` pins.
    #[must_use]
    pub fn new(rules: Rules, limit: Option<usize>) -> Self {
        let shards = limit.map_or(SHARDS, |limit| (limit / PINS_A_SHARD).clamp(1, SHARDS));
        let kept = Kept {
            shard_limit: limit.map(|limit| (limit / shards).max(1)),
            entries: AtomicUsize::new(0),
            shards: (0..shards).map(|_| Mutex::default()).collect(),
        };
        Self { rules, kept: Arc::new(kept) }
    }

    /// The same pins for keys that go by other rules: both together keep to the one bound. Scopes
    /// tell their keys apart.
    #[must_use]
    pub fn also(&self, rules: Rules) -> Self {
        Self { rules, kept: Arc::clone(&self.kept) }
    }

    /// Pins held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.kept.entries.load(Ordering::Relaxed)
    }

    /// Whether no pin is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// As [`Self::turn`] with a proposal, in answer to `step`, that leaves the pin where it is: the
    /// pinned worker is busy, not broken, and the next request goes there again.
    pub fn detour(&self, key: KeyHash, step: Step, proposal: WorkerId, now: u32) -> Turn {
        let mut shard = self.kept.shard(key);
        if let Some(record) = shard.pins.get_mut(key) {
            record.used = record.used.max(now);
        }
        let first = shard.enter(key, proposal);
        Turn::Fly { worker: proposal, outcome: step.outcome(), proposal_used: true, first }
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
        let mut shard = self.kept.shard(key);
        let flights = shard.flying.get(&key);
        let flying = |worker| count(flights, worker);
        let record = shard.pins.get(key);
        // Another request of the key may have been here with a later second meanwhile.
        let used = record.map_or(now, |record| record.used.max(now));
        let pin = record.map(|record| record.pin);
        let step = step(pin, self.rules, available, flying);
        let (worker, pin) = match (step, proposal) {
            (Step::Use(worker), _) => (worker, pin),
            (step, None) => return Turn::Propose(step),
            (Step::Place, Some(placed)) => (placed, Some(Pin::new(placed))),
            (step, Some(placed)) => {
                (placed, pin.map(|pin| pin.moved(step, placed, self.rules, flying)))
            }
        };
        if let Some(pin) = pin {
            self.kept.set(&mut shard, Record { key, pin, used });
        }
        let proposal_used = !matches!(step, Step::Use(_));
        let first = shard.enter(key, worker);
        Turn::Fly { worker, outcome: step.outcome(), proposal_used, first }
    }

    /// Pins a key to a worker, whatever was pinned before.
    pub fn pin(&self, key: KeyHash, worker: WorkerId, now: u32) {
        self.kept.set(&mut self.kept.shard(key), Record { key, pin: Pin::new(worker), used: now });
    }

    /// What is remembered for a key. Asking is no use of it.
    #[must_use]
    pub fn pinned(&self, key: KeyHash) -> Option<Pin> {
        self.kept.shard(key).pins.get(key).map(|record| record.pin)
    }

    /// Remembers what a shared store has for a key.
    pub fn adopt(&self, key: KeyHash, pin: Pin, now: u32) {
        let mut shard = self.kept.shard(key);
        match shard.pins.get_mut(key) {
            Some(record) if record.pin == pin => record.used = record.used.max(now),
            _ => self.kept.set(&mut shard, Record { key, pin, used: now }),
        }
    }

    /// What a shared pin becomes once `placed` was chosen in answer to `step`; its requests in flight
    /// are those of this replica. Nothing is changed here.
    #[must_use]
    pub fn moved(&self, key: KeyHash, pin: Pin, step: Step, placed: WorkerId) -> Pin {
        let shard = self.kept.shard(key);
        let flights = shard.flying.get(&key);
        pin.moved(step, placed, self.rules, |worker| count(flights, worker))
    }

    /// The worker that a key is pinned to first. Asking is a use of the key.
    pub fn home(&self, key: KeyHash, now: u32) -> Option<WorkerId> {
        let mut shard = self.kept.shard(key);
        let record = shard.pins.get_mut(key)?;
        record.used = record.used.max(now);
        record.pin.remembered().next()
    }

    /// Whether a key has a request in flight anywhere.
    pub fn is_flying(&self, key: KeyHash) -> bool {
        self.kept.shard(key).flying.contains_key(&key)
    }

    /// Counts a request of a key that is not pinned here; true for its first one in flight there.
    pub fn enter(&self, key: KeyHash, worker: WorkerId) -> bool {
        self.kept.shard(key).enter(key, worker)
    }

    /// A counted request of the key ended at `now`; true when it was the key's last one in flight
    /// there. A key is in use until its last request ends.
    pub fn leave(&self, key: KeyHash, worker: WorkerId, now: u32) -> bool {
        let mut shard = self.kept.shard(key);
        if let Some(record) = shard.pins.get_mut(key) {
            record.used = record.used.max(now);
        }
        shard.leave(key, worker)
    }

    /// Removes pins unused for `max_idle` seconds or more; returns how many went. A key with
    /// requests in flight is in use.
    pub fn sweep(&self, now: u32, max_idle: u32) -> usize {
        let mut evicted = 0;
        for shard in &self.kept.shards {
            let mut shard = lock(shard);
            let Shard { pins, flying } = &mut *shard;
            evicted += pins.retain(|record| {
                now.saturating_sub(record.used) < max_idle || flying.contains_key(&record.key)
            });
        }
        self.kept.entries.fetch_sub(evicted, Ordering::Relaxed);
        evicted
    }

    /// Every record, shard by shard, each shard copied under its lock.
    pub fn records(&self) -> impl Iterator<Item = Vec<Record>> {
        self.kept.shards.iter().map(|shard| lock(shard).pins.iter().copied().collect())
    }

    /// Takes a record of an earlier run; what is pinned already stays as it is.
    pub fn restore(&self, record: Record) {
        let mut shard = self.kept.shard(record.key);
        if shard.pins.get(record.key).is_none() {
            self.kept.set(&mut shard, record);
        }
    }
}

impl Kept {
    /// Sets a pin. At the bound the idlest of a sample goes, so that a flood of keys displaces keys
    /// nobody uses and is never refused.
    fn set(&self, shard: &mut Shard, record: Record) {
        if !shard.pins.set(record) {
            return;
        }
        self.entries.fetch_add(1, Ordering::Relaxed);
        if self.shard_limit.is_some_and(|limit| shard.pins.len() > limit) {
            let Shard { pins, flying } = shard;
            let other = |one: &Record| one.key != record.key;
            let idle = |one: &Record| other(one) && !flying.contains_key(&one.key);
            let seed = record.key.high();
            // When all of the sample is in flight, somebody has to go all the same.
            let going = pins.idlest(seed, idle).or_else(|| pins.idlest(seed, other));
            if going.is_some_and(|key| pins.remove(key)) {
                self.entries.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "a 32-bit word times a count over 2^32 is below it"
    )]
    fn shard(&self, key: KeyHash) -> MutexGuard<'_, Shard> {
        let at = (u64::from(key.low()) * self.shards.len() as u64) >> 32;
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
mod tests;
