//! The records of one shard: a dense list and an index over it.
//!
//! A map that keeps its entries in its buckets leaves half of them empty at the worst moment. Here a
//! record takes its 28 bytes once, the index five bytes a slot, and any record can be drawn by
//! number, which is how the idlest of a sample is found.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::Pin;
use crate::keys::scope::KeyHash;

/// What is kept for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Whose it is.
    pub key: KeyHash,
    /// Where it goes.
    pub pin: Pin,
    /// Second of the last use, on the caller's clock.
    pub used: u32,
}

/// Records drawn to find one to evict.
const SAMPLE: u64 = 16;

#[derive(Debug, Default)]
pub(super) struct Records {
    list: Vec<Record>,
    index: HashTable<u32>,
}

impl Records {
    pub(super) const fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Record> {
        self.list.iter()
    }

    pub(super) fn get(&self, key: KeyHash) -> Option<&Record> {
        self.list.get(self.find(key)?)
    }

    pub(super) fn get_mut(&mut self, key: KeyHash) -> Option<&mut Record> {
        let at = self.find(key)?;
        self.list.get_mut(at)
    }

    fn find(&self, key: KeyHash) -> Option<usize> {
        let found = self.index.find(key.high(), |at| key_at(&self.list, *at) == Some(key));
        found.map(|at| *at as usize)
    }

    /// Sets a key's record; true if the key is new.
    pub(super) fn set(&mut self, record: Record) -> bool {
        let Self { list, index } = self;
        let same = |at: &u32| key_at(list, *at) == Some(record.key);
        match index.entry(record.key.high(), same, |at| hash_at(list, *at)) {
            Entry::Occupied(at) => {
                let at = *at.get() as usize;
                if let Some(old) = list.get_mut(at) {
                    *old = record;
                }
                false
            }
            Entry::Vacant(slot) => {
                // A shard holds far fewer records than 2^32.
                slot.insert(u32::try_from(list.len()).unwrap_or(u32::MAX));
                // Doubling would leave half the list empty at the worst moment.
                if list.len() == list.capacity() {
                    list.reserve_exact(list.len() / 8 + 16);
                }
                list.push(record);
                true
            }
        }
    }

    pub(super) fn remove(&mut self, key: KeyHash) -> bool {
        let Self { list, index } = self;
        let found = index.find_entry(key.high(), |at| key_at(list, *at) == Some(key));
        let Ok(found) = found else { return false };
        let (at, _) = found.remove();
        let last = u32::try_from(list.len() - 1).unwrap_or(u32::MAX);
        list.swap_remove(at as usize);
        if let Some(moved) = list.get(at as usize)
            && let Some(slot) = index.find_mut(moved.key.high(), |slot| *slot == last)
        {
            *slot = at;
        }
        true
    }

    /// Keeps the records that `keep` says; returns how many went.
    pub(super) fn retain(&mut self, keep: impl Fn(&Record) -> bool) -> usize {
        let before = self.list.len();
        self.list.retain(keep);
        let gone = before - self.list.len();
        if gone > 0 {
            self.reindex();
        }
        gone
    }

    /// The idlest that `may_go` of a sample drawn from `seed`.
    pub(super) fn idlest(&self, seed: u64, may_go: impl Fn(&Record) -> bool) -> Option<KeyHash> {
        let len = self.list.len() as u64;
        // Steps of an odd constant spread the sample over the list.
        let drawn = (0..SAMPLE).filter_map(|n| {
            let at = seed.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).checked_rem(len)?;
            self.list.get(usize::try_from(at).ok()?)
        });
        drawn.filter(|record| may_go(record)).min_by_key(|record| record.used).map(|r| r.key)
    }

    fn reindex(&mut self) {
        let Self { list, index } = self;
        if list.len() < list.capacity() / 2 {
            list.shrink_to_fit();
        }
        index.clear();
        index.shrink_to(list.len(), |at| hash_at(list, *at));
        for at in 0..u32::try_from(list.len()).unwrap_or(u32::MAX) {
            index.insert_unique(hash_at(list, at), at, |at| hash_at(list, *at));
        }
    }
}

fn key_at(list: &[Record], at: u32) -> Option<KeyHash> {
    list.get(at as usize).map(|record| record.key)
}

fn hash_at(list: &[Record], at: u32) -> u64 {
    list.get(at as usize).map_or(0, |record| record.key.high())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{Leg, WorkerId};
    use crate::keys::scope::{Hashing, Scope};
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn key(n: u32) -> KeyHash {
        let scope = Scope { model: None, leg: Leg::Regular };
        Hashing::new([3; 16]).hash(scope, &n.to_le_bytes())
    }

    fn record(n: u32, used: u32) -> Record {
        Record { key: key(n), pin: Pin::new(WorkerId(n)), used }
    }

    #[test]
    fn a_record_takes_28_bytes() {
        assert_eq!(size_of::<Record>(), 28);
    }

    #[test]
    fn the_idlest_of_a_sample_goes_first() {
        let mut records = Records::default();
        records.set(record(7, 5));
        assert_eq!(records.idlest(5, |_| true), Some(key(7)));
        assert_eq!(records.idlest(5, |record| record.key != key(7)), None);
        for n in 0..1000 {
            records.set(record(n, n));
        }
        // The idlest of sixteen lies in the first fifth but for chance.
        let early = (0..100).filter(|seed| {
            let key = records.idlest(seed * 7919, |_| true).unwrap();
            records.get(key).unwrap().used < 200
        });
        assert!(early.count() > 85);
        assert_eq!(Records::default().idlest(5, |_| true), None);
    }

    proptest! {
        /// It behaves as a map, whatever is set, removed and swept in whatever order.
        #[test]
        fn agrees_with_a_map(moves in prop::collection::vec((0..4_u8, 0..40_u32, 0..9_u32), 1..300)) {
            let (mut ours, mut map) = (Records::default(), HashMap::new());
            for (what, n, used) in moves {
                match what {
                    0 | 1 => prop_assert_eq!(ours.set(record(n, used)), map.insert(n, used).is_none()),
                    2 => prop_assert_eq!(ours.remove(key(n)), map.remove(&n).is_some()),
                    _ => {
                        let gone = ours.retain(|record| record.used >= used);
                        let before = map.len();
                        map.retain(|_, at| *at >= used);
                        prop_assert_eq!(gone, before - map.len());
                    }
                }
                prop_assert_eq!(ours.len(), map.len());
                for n in 0..40 {
                    prop_assert_eq!(ours.get(key(n)).map(|record| record.used), map.get(&n).copied());
                }
            }
        }
    }
}
