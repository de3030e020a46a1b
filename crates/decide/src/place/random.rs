//! `random`: uniform over the available workers.

use rand::Rng;

use super::{Ask, Candidates, Policy, Proposal, Reads};

/// The policy `random`.
#[derive(Debug, Default)]
pub struct Random;

impl Policy for Random {
    fn name(&self) -> &'static str {
        "random"
    }

    fn reads(&self) -> Reads {
        Reads::Headers
    }

    fn propose(&self, _: &Ask<'_>, candidates: &Candidates<'_>, dice: &mut dyn Rng) -> Proposal {
        Proposal::plain(candidates.any(dice))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{dice, fleet};
    use super::*;

    #[test]
    fn every_available_worker_gets_its_share() {
        let workers = fleet(4);
        workers[2].set_healthy(false);
        let candidates = Candidates::new(&workers, &[]);
        let mut seen = [0; 4];
        let mut dice = dice();
        for _ in 0..3000 {
            seen[Random.propose(&Ask::default(), &candidates, &mut dice).at.unwrap()] += 1;
        }
        assert_eq!(seen[2], 0);
        assert!([0, 1, 3].iter().all(|at| (850..1150).contains(&seen[*at])), "{seen:?}");
    }
}
