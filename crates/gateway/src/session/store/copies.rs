//! Copies of what the store said, kept honest by what it says of changes: a change takes the copy
//! away, and so does an answer that a change may have overtaken.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Name, RENEWAL};

/// Most copies; for one more another one goes.
const MAX_COPIES: usize = 1 << 18;
const SHARDS: usize = 64;

/// The copies of one replica.
#[derive(Debug)]
pub(crate) struct Copies {
    shards: Box<[Mutex<Shard>]>,
    /// How often everything was forgotten.
    era: AtomicU64,
}

#[derive(Debug, Default)]
struct Shard {
    copies: HashMap<Name, Copy>,
    /// How many changes were told of.
    changes: u64,
}

#[derive(Debug)]
struct Copy {
    address: String,
    /// When the store was last told that the key is in use, in milliseconds.
    renewed: u64,
}

/// How things stood when the store was asked.
#[derive(Debug)]
pub(super) struct Asked<'a> {
    name: &'a Name,
    era: u64,
    changes: u64,
}

impl Default for Copies {
    fn default() -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { shards, era: AtomicU64::new(0) }
    }
}

impl Copies {
    /// A use of a key: its address, if there is a copy, and whether the store is to be told of it.
    pub(super) fn used(&self, name: &Name, now: u64) -> Option<(String, bool)> {
        let mut shard = self.shard(name);
        let copy = shard.copies.get_mut(name)?;
        let renew = u128::from(now.saturating_sub(copy.renewed)) >= RENEWAL.as_millis();
        if renew {
            copy.renewed = now;
        }
        Some((copy.address.clone(), renew))
    }

    /// The store is about to be asked.
    pub(super) fn asking<'a>(&self, name: &'a Name) -> Asked<'a> {
        let era = self.era.load(Ordering::Acquire);
        Asked { name, era, changes: self.shard(name).changes }
    }

    /// The store has answered: the answer is kept unless a change may have come after it.
    pub(super) fn keep(&self, asked: Asked<'_>, address: &str, now: u64) {
        let mut shard = self.shard(asked.name);
        if self.holds(&shard, &asked) {
            shard.keep(asked.name, address, now);
        }
    }

    /// The store has made a change of ours, of which it does not tell us: answers from before it are not
    /// kept any more, and none is if there may have been another change.
    pub(super) fn change(&self, asked: Asked<'_>, address: &str, now: u64) {
        let mut shard = self.shard(asked.name);
        if self.holds(&shard, &asked) {
            shard.keep(asked.name, address, now);
        } else {
            shard.copies.remove(asked.name);
        }
        shard.changes += 1;
    }

    fn holds(&self, shard: &Shard, asked: &Asked<'_>) -> bool {
        shard.changes == asked.changes && self.era.load(Ordering::Acquire) == asked.era
    }

    /// The store has something else for a key now, or nothing.
    pub(crate) fn changed(&self, name: &[u8]) {
        if let Some(name) = Name::read(name) {
            self.drop_one(&name);
        }
    }

    /// A copy does not hold any more, nor does an answer that is on its way.
    pub(super) fn drop_one(&self, name: &Name) {
        let mut shard = self.shard(name);
        shard.changes += 1;
        shard.copies.remove(name);
    }

    /// The store was emptied, or does not tell of changes any more.
    pub(crate) fn forget(&self) {
        self.era.fetch_add(1, Ordering::AcqRel);
        for shard in &self.shards {
            lock(shard).copies.clear();
        }
    }

    #[expect(clippy::indexing_slicing, reason = "a byte modulo the number of shards is below it")]
    fn shard(&self, name: &Name) -> MutexGuard<'_, Shard> {
        let [first, ..] = name.0;
        lock(&self.shards[usize::from(first) % SHARDS])
    }
}

impl Shard {
    fn keep(&mut self, name: &Name, address: &str, now: u64) {
        if self.copies.len() >= MAX_COPIES / SHARDS && !self.copies.contains_key(name) {
            let going = self.copies.keys().next().cloned();
            going.and_then(|going| self.copies.remove(&going));
        }
        let copy = Copy { address: address.to_owned(), renewed: now };
        self.copies.insert(name.clone(), copy);
    }
}

/// A panic under the lock leaves at worst a copy that is not there.
fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: Name = Name([7; 16]);

    fn address(copies: &Copies) -> Option<String> {
        copies.used(&NAME, 0).map(|(address, _)| address)
    }

    #[test]
    fn a_copy_holds_until_a_change_is_told() {
        let copies = Copies::default();
        copies.keep(copies.asking(&NAME), "a:1", 0);
        assert_eq!(address(&copies).as_deref(), Some("a:1"));
        copies.changed(b"smg:pin:????");
        copies.changed(b"other");
        assert!(address(&copies).is_some());
        copies.changed(NAME.to_string().as_bytes());
        assert_eq!(address(&copies), None);
    }

    #[test]
    fn an_answer_that_a_change_may_have_overtaken_is_not_kept() {
        let copies = Copies::default();
        let asked = copies.asking(&NAME);
        copies.changed(NAME.to_string().as_bytes());
        copies.keep(asked, "old:1", 0);
        assert_eq!(address(&copies), None);
        let asked = copies.asking(&NAME);
        copies.forget();
        copies.keep(asked, "old:1", 0);
        assert_eq!(address(&copies), None);
    }

    #[test]
    fn of_a_change_of_ours_and_what_was_asked_before_it_the_change_is_kept() {
        for change_first in [true, false] {
            let copies = Copies::default();
            let (asked, moving) = (copies.asking(&NAME), copies.asking(&NAME));
            if change_first {
                copies.change(moving, "new:1", 0);
                copies.keep(asked, "old:1", 0);
            } else {
                copies.keep(asked, "old:1", 0);
                copies.change(moving, "new:1", 0);
            }
            assert_eq!(address(&copies).as_deref(), Some("new:1"), "{change_first}");
        }
        // Which of two came last nobody can tell.
        let copies = Copies::default();
        let (one, other) = (copies.asking(&NAME), copies.asking(&NAME));
        copies.change(one, "a:1", 0);
        copies.change(other, "b:1", 0);
        assert_eq!(address(&copies), None);
    }

    #[test]
    fn everything_is_forgotten_at_once() {
        let copies = Copies::default();
        copies.keep(copies.asking(&NAME), "a:1", 0);
        copies.forget();
        assert_eq!(address(&copies), None);
    }

    #[test]
    fn the_store_is_told_of_use_once_a_minute() {
        let copies = Copies::default();
        copies.keep(copies.asking(&NAME), "a:1", 1_000);
        let told = |now| copies.used(&NAME, now).unwrap().1;
        assert!(!told(1_000) && !told(60_999));
        assert!(told(61_000) && !told(61_001) && !told(120_999));
        assert!(told(121_000));
    }

    #[test]
    fn there_are_so_many_copies_and_no_more() {
        let copies = Copies::default();
        for n in 0..(2 * MAX_COPIES / SHARDS) as u64 {
            let mut hash = [0; 16];
            hash[8..].copy_from_slice(&n.to_be_bytes());
            let name = Name(hash);
            copies.keep(copies.asking(&name), "a:1", 0);
            assert!(copies.used(&name, 0).is_some(), "the newest is kept");
        }
        assert_eq!(copies.shard(&Name([0; 16])).copies.len(), MAX_COPIES / SHARDS);
    }
}
