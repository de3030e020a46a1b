//! `session_affinity`: agents' sessions by rendezvous hashing (004). What a shared store makes of
//! the proposal, and what an id says instead of it, is the caller's: here nothing is remembered.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rand::Rng;
use smallvec::SmallVec;

use super::{Ask, Branch, Candidates, Policy, Proposal, Reads, least_among};
use crate::fleet::{Worker, WorkerId};
use crate::keys::KeyUse;
use crate::pins::rendezvous::{mark, score};

/// What a request of a session looks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sought {
    /// The seed of its key ([`crate::pins::rendezvous::seed`]).
    pub key: Option<u64>,
    /// The seed of the key that it descends from.
    pub parent: Option<u64>,
    /// Over how many workers the key is spread; 0 and 1 are one.
    pub spread: usize,
}

/// The policy.
#[derive(Debug, Default)]
pub struct SessionAffinity {
    kept: ArcSwap<Marks>,
}

/// The marks of the list seen last, so that a choice hashes no address.
#[derive(Debug, Default)]
struct Marks {
    ids: Box<[WorkerId]>,
    marks: Box<[u64]>,
}

impl Marks {
    fn of(workers: &[Arc<Worker>]) -> Self {
        Self {
            ids: workers.iter().map(|worker| worker.id).collect(),
            marks: workers.iter().map(|worker| mark(&worker.url)).collect(),
        }
    }

    /// Whether they are those of exactly these workers.
    fn are_of(&self, workers: &[Arc<Worker>]) -> bool {
        self.ids.len() == workers.len()
            && self.ids.iter().zip(workers).all(|(id, worker)| *id == worker.id)
    }

    fn score(&self, seed: u64, at: usize) -> u64 {
        self.marks.get(at).map_or(0, |mark| score(seed, *mark))
    }
}

impl SessionAffinity {
    fn marks(&self, workers: &[Arc<Worker>]) -> Arc<Marks> {
        let kept = self.kept.load();
        if kept.are_of(workers) {
            return Arc::clone(&kept);
        }
        let marks = Arc::new(Marks::of(workers));
        self.kept.store(Arc::clone(&marks));
        marks
    }

    /// The ready workers by how well they suit the key, best first, as many as it is spread over.
    /// Where scores are equal the address decides, as the order of registration differs between
    /// replicas.
    fn best<'a>(
        &self,
        seed: u64,
        count: usize,
        candidates: &Candidates<'a>,
    ) -> SmallVec<[(usize, &'a Worker); 4]> {
        let marks = self.marks(candidates.all());
        let rank = |at: usize, worker: &'a Worker| {
            (std::cmp::Reverse(marks.score(seed, at)), &*worker.url)
        };
        let mut best: SmallVec<[(usize, &Worker); 4]> = SmallVec::new();
        for (at, worker) in candidates.available() {
            let place = best.partition_point(|(other, it)| rank(*other, it) < rank(at, worker));
            if place < count {
                best.truncate(count - 1);
                best.insert(place, (at, worker));
            }
        }
        best
    }
}

impl Policy for SessionAffinity {
    fn name(&self) -> &'static str {
        "session_affinity"
    }

    fn reads(&self) -> Reads {
        Reads::Headers
    }

    fn keys(&self) -> KeyUse {
        KeyUse::Sessions
    }

    /// A new key starts where its parent's is. Where a key is spread, the one of its workers with the
    /// fewest requests in flight takes it.
    fn propose(&self, ask: &Ask<'_>, candidates: &Candidates<'_>, dice: &mut dyn Rng) -> Proposal {
        let Sought { key, parent, spread } = ask.sought;
        let (at, branch) = match key {
            Some(seed) if spread > 1 => {
                let best = self.best(seed, spread, candidates).into_iter();
                (least_among(best, Worker::in_flight, dice), Branch::Rendezvous)
            }
            Some(seed) => {
                let best = self.best(parent.unwrap_or(seed), 1, candidates);
                (best.first().map(|(at, _)| *at), Branch::Rendezvous)
            }
            None => (candidates.any(dice), Branch::Random),
        };
        Proposal::by(if at.is_some() { branch } else { Branch::NoHealthyWorkers }, at)
    }
}

/// When a key leaves a hot worker (`--affinity-imbalance-…`): it has at least `min_gap` requests more
/// in flight than the least loaded one, and more than `factor` times the mean of the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Imbalance {
    /// `--affinity-imbalance-factor`
    pub factor: f64,
    /// `--affinity-imbalance-min-gap`
    pub min_gap: u32,
}

impl Imbalance {
    /// Whether a worker has too much to do, beside all that are ready. The caller asks only for keys
    /// that have nothing in flight, so that a key's own requests never drive it away.
    #[must_use]
    pub fn is_hot(&self, at: usize, candidates: &Candidates<'_>) -> bool {
        let Some(load) = candidates.worker(at).map(Worker::in_flight) else { return false };
        let (mut sum, mut count, mut least) = (0_u64, 0_u32, u32::MAX);
        for (_, worker) in candidates.available().filter(|(other, _)| *other != at) {
            let load = worker.in_flight();
            (sum, count, least) = (sum + u64::from(load), count + 1, least.min(load));
        }
        if count == 0 {
            return false;
        }
        let mean = sum as f64 / f64::from(count);
        load.saturating_sub(least) >= self.min_gap && f64::from(load) > self.factor * mean
    }

    /// Where a key goes that leaves: to one of the least loaded, drawn by lot, as the keys that leave
    /// a hot worker together must not heat up the next one.
    pub fn cooler(&self, candidates: &Candidates<'_>, dice: &mut dyn Rng) -> Option<usize> {
        candidates.least(Worker::in_flight, dice)
    }
}

#[cfg(test)]
mod tests;
