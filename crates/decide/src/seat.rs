//! A keyed request's seat at a pin table: the steps from its first look at the pin to the worker it
//! goes to. The gateway takes them in one go, the simulator with the steps of others in between.

use rand::Rng;

use crate::fleet::WorkerId;
use crate::keys::scope::KeyHash;
use crate::pins::table::{Table, Turn};
use crate::pins::{Outcome, Step};
use crate::place::{Ask, Assignment, Candidates, Policy, Proposal, Receipt};

/// What the steps of one request go by.
#[derive(Clone, Copy)]
pub struct Seat<'a> {
    /// Where its key is pinned.
    pub table: &'a Table,
    /// The key.
    pub key: KeyHash,
    /// How a worker is placed when no pin decides; `manual` places by its mode itself.
    pub assignment: Assignment,
    /// The pinned worker is busy, not broken: whoever takes the request, the pin stays.
    pub keep_pin: bool,
    /// Seconds on the pins' clock.
    pub now: u32,
    /// The workers of its model and leg.
    pub candidates: Candidates<'a>,
    /// Whether a remembered worker may take it.
    pub available: &'a dyn Fn(WorkerId) -> bool,
    /// What places it under `delegate`, and learns where it went.
    pub policy: &'a dyn Policy,
    /// What that may look at.
    pub ask: &'a Ask<'a>,
}

/// A request that has its worker and is counted as its key's in flight there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Landed {
    /// The worker.
    pub worker: WorkerId,
    /// How that came about.
    pub outcome: Outcome,
    /// Whether what was proposed was asked for in the end.
    pub proposal_used: bool,
    /// Whether it is its key's first request in flight there.
    pub first: bool,
    /// What the policy remembers of it.
    pub receipt: Receipt,
}

/// What the first look at the pin comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// The pin decides.
    Lands(Landed),
    /// A worker has to be proposed.
    Proposes(Step),
}

impl std::fmt::Debug for Seat<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seat").field("key", &self.key).finish_non_exhaustive()
    }
}

impl Seat<'_> {
    /// The first step. `None` when the pin names a worker that is not in the list.
    pub fn look(&self) -> Option<Look> {
        match self.table.turn(self.key, None, self.now, self.available) {
            Turn::Propose(step) => Some(Look::Proposes(step)),
            turn => self.landed(turn).map(Look::Lands),
        }
    }

    /// The second: what is proposed, and whose place in the list that comes to. The threshold is no
    /// hard limit (000, "In-Flight Threshold"): where nobody is found, the pinned worker stays.
    pub fn propose(&self, step: Step, dice: &mut dyn Rng) -> (Proposal, Option<usize>) {
        let Self { assignment, policy, ask, candidates, .. } = self;
        let proposal = assignment.propose(*policy, ask, candidates, dice);
        let stays = || match step {
            Step::Respill(pinned) => candidates.find(pinned),
            _ => None,
        };
        (proposal, proposal.at.or_else(stays))
    }

    /// The third: the proposal is brought to the table, where another request of the key may have
    /// been meanwhile.
    pub fn land(&self, step: Step, placed: WorkerId) -> Option<Landed> {
        if self.keep_pin {
            return self.detour(step, placed);
        }
        self.landed(self.table.turn(self.key, Some(placed), self.now, self.available))
    }

    /// The third, where the pin is not to change, or has changed already: in a store that replicas
    /// share.
    pub fn detour(&self, step: Step, placed: WorkerId) -> Option<Landed> {
        self.landed(self.table.detour(self.key, step, placed, self.now))
    }

    /// Tells the policy: what it proposed was used, or somebody else decided.
    fn landed(&self, turn: Turn) -> Option<Landed> {
        let Turn::Fly { worker: id, outcome, proposal_used, first } = turn else { return None };
        let all = self.candidates.all();
        let worker = all.get(all.binary_search_by_key(&id, |worker| worker.id).ok()?)?;
        let receipt = if proposal_used && self.assignment == Assignment::Delegate {
            self.policy.commit(self.ask, worker)
        } else {
            self.policy.learn(self.ask, worker)
        };
        Some(Landed { worker: id, outcome, proposal_used, first, receipt })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::Worker;
    use crate::keys::scope::{Hashing, Scope};
    use crate::pins::{Replacement, Rules};
    use crate::place::Reads;
    use crate::place::testing::{dice, fleet};
    use std::sync::Mutex;

    /// Proposes who it is told to, if anybody, and writes down what it hears.
    #[derive(Debug, Default)]
    struct Scribe {
        proposes: Option<usize>,
        heard: Mutex<Vec<(&'static str, u32)>>,
    }

    impl Policy for Scribe {
        fn name(&self) -> &'static str {
            "scribe"
        }

        fn reads(&self) -> Reads {
            Reads::Headers
        }

        fn propose(&self, _: &Ask<'_>, _: &Candidates<'_>, _: &mut dyn Rng) -> Proposal {
            Proposal::plain(self.proposes)
        }

        fn commit(&self, _: &Ask<'_>, used: &Worker) -> Receipt {
            self.heard.lock().unwrap().push(("commit", used.id.0));
            Receipt::default()
        }

        fn learn(&self, _: &Ask<'_>, used: &Worker) -> Receipt {
            self.heard.lock().unwrap().push(("learn", used.id.0));
            Receipt::default()
        }
    }

    /// One request of the one key, by a mode, with a policy that proposes this worker: where it goes
    /// and what the policy hears.
    fn one(
        table: &Table,
        assignment: Assignment,
        proposes: Option<usize>,
        keep_pin: bool,
    ) -> (Option<u32>, Vec<(&'static str, u32)>) {
        let workers = fleet(3);
        let candidates = Candidates::new(&workers, &[]);
        let available = |id| !keep_pin && candidates.find(id).is_some();
        let scribe = Scribe { proposes, ..Scribe::default() };
        let scope = Scope { model: None, leg: crate::fleet::Leg::Regular };
        let seat = Seat {
            table,
            key: Hashing::new([1; 16]).hash(scope, b"k"),
            assignment,
            keep_pin,
            now: 0,
            candidates,
            available: &available,
            policy: &scribe,
            ask: &Ask::default(),
        };
        let landed = match seat.look().unwrap() {
            Look::Lands(landed) => Some(landed),
            Look::Proposes(step) => {
                let (_, at) = seat.propose(step, &mut dice());
                at.and_then(|at| seat.land(step, workers[at].id))
            }
        };
        let heard = scribe.heard.lock().unwrap().clone();
        (landed.map(|landed| landed.worker.0), heard)
    }

    #[test]
    fn a_policy_hears_of_every_request_what_it_chose_apart_from_what_a_pin_did() {
        let rules = Rules { replacement: Replacement::Leads, threshold: Some(2) };
        let table = Table::new(rules, None);
        let delegate = Assignment::Delegate;
        assert_eq!(one(&table, delegate, None, false), (None, vec![]));
        assert_eq!(one(&table, delegate, Some(1), false), (Some(1), vec![("commit", 1)]));
        assert_eq!(one(&table, delegate, Some(2), false), (Some(1), vec![("learn", 1)]));
        // Two are in flight: the third is placed again, and stays where nobody else is found.
        assert_eq!(one(&table, delegate, None, false), (Some(1), vec![("commit", 1)]));
        assert_eq!(one(&table, delegate, Some(2), true), (Some(2), vec![("commit", 2)]));
        let modes = Table::new(rules, None);
        let (chosen, heard) = one(&modes, Assignment::MinLoad, None, false);
        assert_eq!(heard, [("learn", chosen.unwrap())]);
    }
}
