//! `--cache-index hash`: which workers were given prompts that agree up to a boundary.
//!
//! Engines that keep their state at given positions only (`--cache-boundaries`) cannot go on from
//! anywhere else, so this index knows prompts by their heads: a hash of all tokens up to a boundary,
//! with the last few workers that were given it and when. An entry nobody used for a while is
//! taken for gone from the engine too.

use std::collections::{BTreeSet, HashMap};
use std::hash::BuildHasherDefault;
use std::sync::{Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use super::chain::{Chain, Hashing};
use super::choose::Shared;
use super::shard::AsIs;
use super::{Held, Holders};
use crate::fleet::WorkerId;
use crate::place::{Boundaries, Prompt, Remembered};

/// Workers remembered for a head.
const MOST_HOLDERS: usize = 3;

/// Heads in all, however short they are.
const MOST_HEADS: usize = 1 << 20;

const SHARDS: usize = 16;

/// The heads of prompts, in shards that are each locked for one head.
#[derive(Debug)]
pub(super) struct Heads {
    boundaries: Boundaries,
    ttl: u32,
    hashing: Hashing,
    /// What one generation of a shard may remember: tokens, each holder counted.
    room: usize,
    shards: Box<[Mutex<Shard>]>,
}

/// Two generations: what is used moves to the young one, and when that is full the old one goes. So a
/// flood of prompts displaces what nobody uses, and making room takes no search.
#[derive(Debug, Default)]
struct Shard {
    young: Generation,
    old: Generation,
}

#[derive(Debug, Default)]
struct Generation {
    heads: HashMap<u64, Head, BuildHasherDefault<AsIs>>,
    /// Tokens, each holder counted.
    size: usize,
}

/// What is remembered of one head.
#[derive(Debug)]
struct Head {
    /// Tokens since the boundary before.
    span: u32,
    /// Who was given it, and the second of the last time.
    holders: SmallVec<[(WorkerId, u32); MOST_HOLDERS]>,
}

impl Head {
    fn size(&self) -> usize {
        self.holders.len() * self.span as usize
    }
}

impl Heads {
    /// At these boundaries, for so many seconds, and for so many tokens in all.
    pub(super) fn new(boundaries: Boundaries, ttl: u32, seed: u64, bound: usize) -> Self {
        Self {
            boundaries,
            ttl,
            hashing: Hashing::new(seed),
            room: (bound / (2 * SHARDS)).max(1),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }

    /// The heads of a prompt; text has none.
    pub(super) fn chain(&self, prompt: Prompt<'_>) -> Chain {
        let reached = match prompt {
            Prompt::Tokens(tokens) => self.boundaries.reached(tokens.len()),
            Prompt::Text(_) | Prompt::Unknown => &[],
        };
        Chain::at(prompt, reached, &self.hashing)
    }

    /// Who holds which head at this second, the longest first.
    pub(super) fn shared(&self, chain: &Chain, now: u32) -> Shared {
        let heads = chain.blocks.iter().zip(self.boundaries.all()).rev();
        let held = heads.filter_map(|(key, units)| {
            let holders = self.shard(*key).holders(*key, |used| self.is_live(used, now));
            (!holders.is_empty()).then_some((*units as usize, holders))
        });
        held.collect()
    }

    /// The worker was given the prompt; tells which heads it did not hold before, a bit for each.
    pub(super) fn insert(&self, chain: &Chain, worker: WorkerId, now: u32) -> u32 {
        let mut new = 0;
        let mut before = 0;
        for (nth, (key, at)) in chain.blocks.iter().zip(self.boundaries.all()).enumerate() {
            let mut shard = self.shard(*key);
            if shard.insert((*key, at - before), (worker, now)) {
                new |= 1 << nth;
            }
            shard.make_room(self.room);
            before = *at;
        }
        new
    }

    /// Takes back what an insert added.
    pub(super) fn remove(&self, chain: &Chain, worker: WorkerId, new: u32) {
        for (nth, key) in chain.blocks.iter().enumerate() {
            if new & (1 << nth) != 0 {
                self.shard(*key).keep(Some(*key), |holder, _| holder != worker);
            }
        }
    }

    /// The worker is gone.
    pub(super) fn forget(&self, gone: WorkerId) {
        for shard in &self.shards {
            lock(shard).keep(None, |holder, _| holder != gone);
        }
    }

    /// Drops what nobody used for too long.
    pub(super) fn sweep(&self, now: u32) {
        for shard in &self.shards {
            lock(shard).keep(None, |_, used| self.is_live(used, now));
        }
    }

    /// Tokens, and by how many workers.
    pub(super) fn remembered(&self) -> Remembered {
        let mut workers = BTreeSet::new();
        for shard in &self.shards {
            let shard = lock(shard);
            for head in shard.generations().into_iter().flat_map(|one| one.heads.values()) {
                workers.extend(head.holders.iter().map(|(holder, _)| *holder));
            }
        }
        Remembered { size: self.held().size, workers: workers.len() }
    }

    pub(super) fn held(&self) -> Held {
        let mut held = Held::default();
        for shard in &self.shards {
            for one in lock(shard).generations() {
                held.size += one.size;
                held.links += one.heads.len();
                held.bytes += one.heads.capacity() * size_of::<(u64, Head)>();
            }
        }
        held
    }

    const fn is_live(&self, used: u32, now: u32) -> bool {
        now.saturating_sub(used) < self.ttl
    }

    #[expect(clippy::indexing_slicing, reason = "a remainder is below what it is divided by")]
    fn shard(&self, key: u64) -> MutexGuard<'_, Shard> {
        // The low bits find the place within a shard.
        lock(&self.shards[(key >> 40) as usize % self.shards.len()])
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shard {
    const fn generations(&self) -> [&Generation; 2] {
        [&self.young, &self.old]
    }

    fn holders(&self, key: u64, live: impl Fn(u32) -> bool) -> Holders {
        let head = self.generations().into_iter().find_map(|one| one.heads.get(&key));
        let all = head.into_iter().flat_map(|head| &head.holders);
        let mut holders: Holders =
            all.filter(|(_, used)| live(*used)).map(|(holder, _)| *holder).collect();
        holders.sort_unstable();
        holders
    }

    /// True if the worker is a new holder. The one that was given it longest ago makes room.
    fn insert(&mut self, (key, span): (u64, u32), (worker, now): (WorkerId, u32)) -> bool {
        let Self { young, old } = self;
        let head = young.heads.entry(key).or_insert_with(|| {
            let head = old.heads.remove(&key).unwrap_or(Head { span, holders: SmallVec::new() });
            old.size -= head.size();
            young.size += head.size();
            head
        });
        if let Some((_, used)) = head.holders.iter_mut().find(|(holder, _)| *holder == worker) {
            *used = now.max(*used);
            return false;
        }
        young.size -= head.size();
        if head.holders.len() == MOST_HOLDERS {
            let oldest = head.holders.iter().enumerate().min_by_key(|(_, (_, used))| *used);
            if let Some(at) = oldest.map(|(at, _)| at) {
                head.holders.swap_remove(at);
            }
        }
        head.holders.push((worker, now));
        young.size += head.size();
        true
    }

    fn make_room(&mut self, room: usize) {
        let full = self.young.size > room || self.young.heads.len() > MOST_HEADS / (2 * SHARDS);
        if full {
            self.old = std::mem::take(&mut self.young);
        }
    }

    /// Drops holders, of one head or of all.
    fn keep(&mut self, of: Option<u64>, holds: impl Fn(WorkerId, u32) -> bool) {
        for Generation { heads, size } in [&mut self.young, &mut self.old] {
            let mut thin = |head: &mut Head| {
                let before = head.size();
                head.holders.retain(|(holder, used)| holds(*holder, *used));
                *size -= before - head.size();
                !head.holders.is_empty()
            };
            match of {
                None => heads.retain(|_, head| thin(head)),
                Some(key) => {
                    if heads.get_mut(&key).is_some_and(|head| !thin(head)) {
                        heads.remove(&key);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
