//! Who holds a link: one worker in four bytes, or a list kept elsewhere.

use smallvec::SmallVec;

use crate::fleet::WorkerId;

/// Workers, in order of their ids.
pub type Holders = SmallVec<[WorkerId; 4]>;

/// Marks a number that names a list instead of a worker.
const LIST: u32 = 1 << 31;

/// The holders of one link, packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packed(u32);

/// The lists of one shard.
#[derive(Debug, Default)]
pub(super) struct Lists {
    lists: Vec<Vec<WorkerId>>,
    free: Vec<u32>,
}

impl Packed {
    /// Held by one. A worker with a number that cannot be packed is not remembered; numbers are
    /// dealt from 0, so it takes two thousand million registrations to meet one.
    pub(super) const fn one(worker: WorkerId) -> Option<Self> {
        if worker.0 & LIST == 0 { Some(Self(worker.0)) } else { None }
    }

    const fn list(self) -> Option<usize> {
        if self.0 & LIST == 0 { None } else { Some((self.0 & !LIST) as usize) }
    }
}

impl Lists {
    pub(super) fn count(&self, held: Packed) -> usize {
        self.listed(held).map_or(1, Vec::len)
    }

    pub(super) fn holds(&self, held: Packed, worker: WorkerId) -> bool {
        self.listed(held).map_or(held.0 == worker.0, |list| list.binary_search(&worker).is_ok())
    }

    pub(super) fn all(&self, held: Packed) -> Holders {
        self.listed(held).map_or_else(
            || SmallVec::from_slice(&[WorkerId(held.0)]),
            |list| SmallVec::from_slice(list),
        )
    }

    /// Adds a holder; true if it was none yet.
    pub(super) fn add(&mut self, held: &mut Packed, worker: WorkerId) -> bool {
        if self.holds(*held, worker) || Packed::one(worker).is_none() {
            return false;
        }
        if let Some(list) = held.list().and_then(|at| self.lists.get_mut(at)) {
            let at = list.partition_point(|holder| *holder < worker);
            list.insert(at, worker);
            return true;
        }
        let mut list = vec![WorkerId(held.0), worker];
        list.sort_unstable();
        let at = match self.free.pop() {
            Some(at) => at,
            None => {
                self.lists.push(Vec::new());
                (self.lists.len() - 1) as u32
            }
        };
        if let Some(place) = self.lists.get_mut(at as usize) {
            *place = list;
            *held = Packed(at | LIST);
        }
        true
    }

    /// Removes a holder; `Some(true)` when it was the last one, `None` when it was none.
    pub(super) fn remove(&mut self, held: &mut Packed, worker: WorkerId) -> Option<bool> {
        if !self.holds(*held, worker) {
            return None;
        }
        let Some(list) = held.list().and_then(|at| self.lists.get_mut(at)) else {
            return Some(true);
        };
        list.retain(|holder| *holder != worker);
        if let [left] = list.as_slice() {
            let left = Packed(left.0);
            self.drop(*held);
            *held = left;
        }
        Some(false)
    }

    /// The link is gone.
    pub(super) fn drop(&mut self, held: Packed) {
        if let Some(at) = held.list()
            && let Some(list) = self.lists.get_mut(at)
        {
            *list = Vec::new();
            self.free.push(held.0 & !LIST);
        }
    }

    /// Memory taken, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let listed: usize = self.lists.iter().map(Vec::capacity).sum();
        self.lists.capacity() * size_of::<Vec<WorkerId>>()
            + listed * size_of::<WorkerId>()
            + self.free.capacity() * size_of::<u32>()
    }

    fn listed(&self, held: Packed) -> Option<&Vec<WorkerId>> {
        self.lists.get(held.list()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_is_a_set(steps in prop::collection::vec((any::<bool>(), 0..6_u32), 1..60)) {
            let mut lists = Lists::default();
            let mut held = Packed::one(WorkerId(9)).unwrap();
            let mut wanted = BTreeSet::from([WorkerId(9)]);
            for (add, id) in steps {
                let worker = WorkerId(id);
                if add {
                    prop_assert_eq!(lists.add(&mut held, worker), wanted.insert(worker));
                } else if wanted.len() > 1 || !wanted.contains(&worker) {
                    let removed = wanted.remove(&worker).then_some(false);
                    prop_assert_eq!(lists.remove(&mut held, worker), removed);
                }
                prop_assert_eq!(lists.all(held).to_vec(), wanted.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(lists.count(held), wanted.len());
            }
            prop_assert!(lists.lists.len() <= 1, "lists are used again");
            lists.drop(held);
        }
    }
}
