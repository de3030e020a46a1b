//! `power_of_two`: of two workers drawn by lot the one with the shorter expected wait. Two looks
//! avoid the worst without everybody running to the best.

use rand::Rng;

use super::{Ask, Candidates, ExpectedWait, Policy, Proposal, Reads, least_among};

/// The policy `power_of_two`.
#[derive(Debug)]
pub struct PowerOfTwo {
    wait: ExpectedWait,
}

impl PowerOfTwo {
    /// By these assumptions.
    #[must_use]
    pub const fn new(wait: ExpectedWait) -> Self {
        Self { wait }
    }
}

impl Policy for PowerOfTwo {
    fn name(&self) -> &'static str {
        "power_of_two"
    }

    fn reads(&self) -> Reads {
        Reads::Headers
    }

    fn reads_loads(&self) -> bool {
        true
    }

    fn propose(&self, _: &Ask<'_>, candidates: &Candidates<'_>, dice: &mut dyn Rng) -> Proposal {
        let (first, second) = candidates.any_two(dice);
        let drawn = || {
            let at = [first, second].into_iter().flatten();
            at.filter_map(|at| Some((at, candidates.all().get(at)?.as_ref())))
        };
        let estimate = self.wait.among(drawn().map(|(_, worker)| worker));
        Proposal::plain(least_among(drawn(), |worker| estimate.at(worker), dice))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{dice, fleet};
    use super::*;
    use crate::fleet::load::Report;

    const POLICY: PowerOfTwo = PowerOfTwo::new(ExpectedWait {
        kv_pressure_weight: 0.15,
        default_throughput: 2000.0,
        mean_prefill_tokens: 1024,
    });

    fn seen<const N: usize>(candidates: &Candidates<'_>, rounds: usize) -> [usize; N] {
        let mut seen = [0; N];
        let mut dice = dice();
        for _ in 0..rounds {
            seen[POLICY.propose(&Ask::default(), candidates, &mut dice).at.unwrap()] += 1;
        }
        seen
    }

    #[test]
    fn the_most_loaded_of_all_is_never_taken_and_the_least_loaded_most_often() {
        let workers = fleet(3);
        for (worker, waiting) in workers.iter().zip([9, 1, 5]) {
            worker.load().set_report(Some(Report { waiting, ..Report::default() }));
        }
        let seen: [usize; 3] = seen(&Candidates::new(&workers, &[]), 3000);
        // Worker 1 is among the two drawn in two of three cases, worker 2 beats 0 in the third.
        assert!(seen[0] == 0 && (1850..2150).contains(&seen[1]), "{seen:?}");
    }

    #[test]
    fn every_pair_is_as_likely_and_ties_are_drawn_by_lot() {
        let workers = fleet(4);
        let candidates = Candidates::new(&workers, &[]);
        let seen: [usize; 4] = seen(&candidates, 4000);
        assert!(seen.iter().all(|count| (850..1150).contains(count)), "{seen:?}");
        let mut dice = dice();
        let mut pairs = std::collections::BTreeMap::new();
        for _ in 0..6000 {
            *pairs.entry(candidates.any_two(&mut dice)).or_insert(0) += 1;
        }
        assert_eq!(pairs.len(), 6);
        assert!(
            pairs.iter().all(|((a, b), count)| a < b && (850..1150).contains(count)),
            "{pairs:?}"
        );
    }

    #[test]
    fn the_only_available_one_takes_it_and_nobody_is_nobody() {
        let workers = fleet(3);
        workers[0].set_healthy(false);
        workers[2].set_healthy(false);
        let candidates = Candidates::new(&workers, &[]);
        assert_eq!(seen::<3>(&candidates, 20), [0, 20, 0]);
        workers[1].set_healthy(false);
        let proposal = POLICY.propose(&Ask::default(), &candidates, &mut dice());
        assert_eq!(proposal, Proposal::plain(None));
    }
}
