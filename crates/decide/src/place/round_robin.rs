//! `round_robin`: one after the other, in list order.

use std::sync::atomic::{AtomicUsize, Ordering};

use rand::Rng;

use super::{Ask, Candidates, Policy, Proposal, Reads, Receipt};
use crate::fleet::Worker;

/// The policy `round_robin`. The cursor moves only when a proposal is used, so pinned requests do
/// not disturb the cycle (facts: round_robin).
#[derive(Debug, Default)]
pub struct RoundRobin {
    turn: AtomicUsize,
}

impl Policy for RoundRobin {
    fn name(&self) -> &'static str {
        "round_robin"
    }

    fn reads(&self) -> Reads {
        Reads::Headers
    }

    fn propose(&self, _: &Ask<'_>, candidates: &Candidates<'_>, _: &mut dyn Rng) -> Proposal {
        Proposal::plain(candidates.in_turn(self.turn.load(Ordering::Relaxed)))
    }

    fn commit(&self, _: &Ask<'_>, _: &Worker) -> Receipt {
        self.turn.fetch_add(1, Ordering::Relaxed);
        Receipt::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{dice, fleet};
    use super::*;

    fn proposed(policy: &RoundRobin, candidates: &Candidates<'_>) -> Option<usize> {
        policy.propose(&Ask::default(), candidates, &mut dice()).at
    }

    fn next(policy: &RoundRobin, candidates: &Candidates<'_>) -> usize {
        let at = proposed(policy, candidates).unwrap();
        policy.commit(&Ask::default(), &candidates.workers[at]);
        at
    }

    #[test]
    fn a_strict_cycle_that_only_used_proposals_advance() {
        let workers = fleet(3);
        let candidates = Candidates::new(&workers, &[]);
        let policy = RoundRobin::default();
        let mut seen = Vec::new();
        for _ in 0..6 {
            assert_eq!(proposed(&policy, &candidates), proposed(&policy, &candidates));
            seen.push(next(&policy, &candidates));
        }
        assert_eq!(seen, [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn the_cycle_runs_over_the_available_ones() {
        let workers = fleet(3);
        workers[1].set_healthy(false);
        let candidates = Candidates::new(&workers, &[]);
        let policy = RoundRobin::default();
        let seen: Vec<_> = (0..4).map(|_| next(&policy, &candidates)).collect();
        assert_eq!(seen, [0, 2, 0, 2]);
        workers.iter().for_each(|worker| worker.set_healthy(false));
        assert_eq!(proposed(&policy, &candidates), None);
    }
}
