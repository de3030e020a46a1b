//! `manual`: pins every keyed request in a map of its own; this is how it places what no pin decides.

use rand::Rng;

use super::{Ask, Assignment, Candidates, Policy, Proposal, Reads};
use crate::keys::KeyUse;

/// The policy `manual`.
#[derive(Debug)]
pub struct Manual {
    assignment: Assignment,
}

impl Manual {
    /// Places by this mode. There is nothing to delegate to, so `delegate` means `min_load` (000,
    /// "Assignment Modes").
    #[must_use]
    pub const fn new(assignment: Assignment) -> Self {
        let assignment = match assignment {
            Assignment::Delegate => Assignment::MinLoad,
            mode => mode,
        };
        Self { assignment }
    }
}

impl Policy for Manual {
    fn name(&self) -> &'static str {
        "manual"
    }

    fn reads(&self) -> Reads {
        Reads::Headers
    }

    fn keys(&self) -> KeyUse {
        KeyUse::Pins
    }

    fn propose(&self, ask: &Ask<'_>, candidates: &Candidates<'_>, dice: &mut dyn Rng) -> Proposal {
        self.assignment.propose(self, ask, candidates, dice)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{dice, fleet};
    use super::*;

    #[test]
    fn delegate_means_min_load() {
        let workers = fleet(2);
        workers[0].begin(None);
        let candidates = Candidates::new(&workers, &[]);
        for _ in 0..20 {
            let proposal = Manual::new(Assignment::Delegate).propose(
                &Ask::default(),
                &candidates,
                &mut dice(),
            );
            assert_eq!(proposal.at, Some(1));
        }
    }
}
