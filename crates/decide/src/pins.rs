//! Pins as a step function (000, "Reuse and Failover" and "In-Flight Threshold").
//!
//! A pin remembers up to two workers. [`step`] says what to do with a keyed request, [`Pin::moved`]
//! what the pin becomes once a worker has been placed. Both are run against the memory
//! [`table`] under one shard's lock; where replicas share pins, what [`shared`] reads is brought
//! there first.

use crate::fleet::WorkerId;
use crate::place::Assignment;

pub mod records;
pub mod rendezvous;
pub mod saved;
pub mod shared;
pub mod table;

/// How a sticky decision came about; its text is the `branch` label of
/// `smg_manual_policy_branch_total` and the `branch` field of the decision log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The pin was reused.
    OccupiedHit,
    /// None of the remembered workers was available; placed again.
    OccupiedMiss,
    /// A new key was placed.
    Vacant,
    /// The key had its limit in flight on the pinned worker; placed again.
    CapRespill,
    /// A `manual` request without a key.
    NoRoutingId,
    /// No worker was available at all.
    NoHealthyWorkers,
}

impl Outcome {
    /// All outcomes, for metrics that exist at zero.
    pub const ALL: [Self; 6] = [
        Self::OccupiedHit,
        Self::OccupiedMiss,
        Self::Vacant,
        Self::CapRespill,
        Self::NoRoutingId,
        Self::NoHealthyWorkers,
    ];

    /// The metric label and log field.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OccupiedHit => "occupied_hit",
            Self::OccupiedMiss => "occupied_miss",
            Self::Vacant => "vacant",
            Self::CapRespill => "cap_respill",
            Self::NoRoutingId => "no_routing_id",
            Self::NoHealthyWorkers => "no_healthy_workers",
        }
    }
}

/// How a table treats its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Where a replacement goes when no remembered worker is available.
    pub replacement: Replacement,
    /// A key's requests in flight on its pinned worker from which the next one is placed again;
    /// `None` under `manual` (000: the override has 2, `manual` has no threshold).
    pub threshold: Option<u32>,
}

impl Rules {
    /// Those of `manual`, in every mode.
    pub const MANUAL: Self = Self { replacement: Replacement::Follows, threshold: None };

    /// Those of the override; it delegates unless a mode is named.
    #[must_use]
    pub const fn of_override(assignment: Option<Assignment>) -> Self {
        let replacement = match assignment {
            Some(Assignment::Delegate) | None => Replacement::Leads,
            Some(_) => Replacement::Follows,
        };
        Self { replacement, threshold: Some(OVERRIDE_THRESHOLD) }
    }
}

/// The override's in-flight threshold (000, "In-Flight Threshold").
pub const OVERRIDE_THRESHOLD: u32 = 2;

/// What a replacement does to the remembered workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replacement {
    /// It becomes the primary, the previous primary its failover candidate (`delegate` under the
    /// override).
    Leads,
    /// It is added behind, the older one dropped when two are remembered (every other mode).
    Follows,
}

/// What is remembered for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pin {
    primary: WorkerId,
    candidate: WorkerId,
}

/// What a keyed request does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Go to this remembered worker.
    Use(WorkerId),
    /// Place it and pin the key there.
    Place,
    /// Place it; none of the remembered workers is available.
    Replace,
    /// Place it; the key has its limit in flight on this remembered worker.
    Respill(WorkerId),
}

impl Step {
    /// The outcome this step is counted as.
    #[must_use]
    pub const fn outcome(self) -> Outcome {
        match self {
            Self::Use(_) => Outcome::OccupiedHit,
            Self::Place => Outcome::Vacant,
            Self::Replace => Outcome::OccupiedMiss,
            Self::Respill(_) => Outcome::CapRespill,
        }
    }
}

impl Pin {
    /// A pin to one worker.
    #[must_use]
    pub const fn new(primary: WorkerId) -> Self {
        Self { primary, candidate: primary }
    }

    /// Both workers; equal when only one is remembered.
    #[must_use]
    pub const fn workers(self) -> (WorkerId, WorkerId) {
        (self.primary, self.candidate)
    }

    /// The remembered workers, first the one that is tried first.
    pub fn remembered(self) -> impl Iterator<Item = WorkerId> {
        let second = (self.candidate != self.primary).then_some(self.candidate);
        std::iter::once(self.primary).chain(second)
    }

    /// A pin to two workers, the first one tried first.
    #[must_use]
    pub const fn of_two(primary: WorkerId, candidate: WorkerId) -> Self {
        Self { primary, candidate }
    }

    /// The pin after `placed` was chosen in answer to `step`; `flying` counts the key's requests in
    /// flight on a worker, this one not included.
    #[must_use]
    pub fn moved(
        self,
        step: Step,
        placed: WorkerId,
        rules: Rules,
        flying: impl Fn(WorkerId) -> u32,
    ) -> Self {
        match step {
            Step::Use(_) | Step::Place => self,
            Step::Replace => match rules.replacement {
                // A worker that is remembered already may be placed when it falls between propose
                // and land. Nobody is forgotten for it.
                Replacement::Leads if placed == self.primary => self,
                Replacement::Follows if placed == self.primary || placed == self.candidate => self,
                Replacement::Leads => Self::of_two(placed, self.primary),
                Replacement::Follows => Self::of_two(self.candidate, placed),
            },
            // Fleet-wide pressure must not walk a conversation away from its prefix: the pin moves
            // only to another worker that is below the threshold itself.
            Step::Respill(pinned) => {
                let below = rules.threshold.is_none_or(|limit| flying(placed) < limit);
                if placed != pinned && below { Self::of_two(placed, pinned) } else { self }
            }
        }
    }
}

/// What to do with a request of a key: `pin` is what is remembered, `available` who may take a
/// request, `flying` the key's requests in flight on a worker.
#[must_use]
pub fn step(
    pin: Option<Pin>,
    rules: Rules,
    available: impl Fn(WorkerId) -> bool,
    flying: impl Fn(WorkerId) -> u32,
) -> Step {
    let Some(pin) = pin else { return Step::Place };
    match pin.remembered().find(|worker| available(*worker)) {
        None => Step::Replace,
        Some(worker) if rules.threshold.is_some_and(|limit| flying(worker) >= limit) => {
            Step::Respill(worker)
        }
        Some(worker) => Step::Use(worker),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: WorkerId = WorkerId(1);
    const B: WorkerId = WorkerId(2);
    const C: WorkerId = WorkerId(3);
    const DELEGATE: Rules =
        Rules { replacement: Replacement::Leads, threshold: Some(OVERRIDE_THRESHOLD) };
    const OTHER_MODES: Rules =
        Rules { replacement: Replacement::Follows, threshold: Some(OVERRIDE_THRESHOLD) };
    const MANUAL: Rules = Rules { replacement: Replacement::Follows, threshold: None };

    fn remembered(pin: Pin) -> Vec<WorkerId> {
        pin.remembered().collect()
    }

    fn up(up: &[WorkerId]) -> impl Fn(WorkerId) -> bool {
        move |worker| up.contains(&worker)
    }

    #[test]
    fn the_first_available_remembered_worker_serves() {
        let pin = Pin::of_two(A, B);
        for (alive, wanted) in [
            (&[A, B, C][..], Step::Use(A)),
            (&[B, C], Step::Use(B)),
            (&[C], Step::Replace),
            (&[], Step::Replace),
        ] {
            assert_eq!(step(Some(pin), DELEGATE, up(alive), |_| 0), wanted, "{alive:?}");
        }
        assert_eq!(step(None, DELEGATE, up(&[A]), |_| 0), Step::Place);
    }

    #[test]
    fn under_delegate_a_replacement_leads_and_the_primary_becomes_candidate() {
        let one = Pin::new(A).moved(Step::Replace, B, DELEGATE, |_| 0);
        assert_eq!(remembered(one), [B, A]);
        assert_eq!(remembered(one.moved(Step::Replace, C, DELEGATE, |_| 0)), [C, B]);
    }

    #[test]
    fn in_other_modes_a_replacement_follows_and_the_oldest_is_dropped() {
        for rules in [OTHER_MODES, MANUAL] {
            let one = Pin::new(A).moved(Step::Replace, B, rules, |_| 0);
            assert_eq!(remembered(one), [A, B]);
            assert_eq!(remembered(one.moved(Step::Replace, C, rules, |_| 0)), [B, C]);
        }
    }

    #[test]
    fn a_replacement_that_is_remembered_already_drops_nobody() {
        let pin = Pin::of_two(A, B);
        for (placed, leads) in [(A, [A, B]), (B, [B, A])] {
            assert_eq!(remembered(pin.moved(Step::Replace, placed, DELEGATE, |_| 0)), leads);
            assert_eq!(remembered(pin.moved(Step::Replace, placed, OTHER_MODES, |_| 0)), [A, B]);
        }
    }

    #[test]
    fn the_threshold_is_two_of_the_keys_own_requests_and_manual_has_none() {
        let pin = Some(Pin::new(A));
        for (flying, wanted) in
            [(0, Step::Use(A)), (1, Step::Use(A)), (2, Step::Respill(A)), (9, Step::Respill(A))]
        {
            assert_eq!(step(pin, DELEGATE, up(&[A, B]), |_| flying), wanted, "{flying}");
            assert_eq!(step(pin, MANUAL, up(&[A, B]), |_| flying), Step::Use(A), "{flying}");
        }
    }

    #[test]
    fn a_respill_moves_the_pin_only_to_another_worker_below_the_threshold() {
        let pin = Pin::new(A);
        let respill = |placed, there| {
            remembered(pin.moved(Step::Respill(A), placed, DELEGATE, move |_| there))
        };
        assert_eq!(respill(B, 0), [B, A]);
        assert_eq!(respill(B, 1), [B, A]);
        assert_eq!(respill(B, 2), [A]);
        assert_eq!(respill(A, 0), [A]);
    }

    #[test]
    fn at_most_two_workers_and_never_one_twice() {
        let mut pin = Pin::new(A);
        for (n, rules) in [DELEGATE, OTHER_MODES, MANUAL].into_iter().cycle().take(30).enumerate() {
            let placed = WorkerId(u32::try_from(n % 5).unwrap());
            pin = pin.moved(Step::Replace, placed, rules, |_| 0);
            let workers = remembered(pin);
            assert!(workers.len() <= 2 && workers.contains(&placed));
            assert!(workers.first() != workers.get(1));
        }
    }
}
