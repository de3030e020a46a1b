//! `bucket`: short prompts to one worker, long ones to another, so that a short one never queues
//! behind a long one. Every interval the ranges of lengths are cut anew, so that each holds an equal
//! share of what was sent.
//!
//! Ranges belong to the available workers in list order: what is kept of the past is how lengths are
//! spread, from which any number of ranges can be cut, so a worker that comes or goes resets
//! nothing.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rand::Rng;

use super::{Ask, Candidates, Policy, Prompt, Proposal, Reads, Receipt};
use crate::fleet::{Worker, WorkerId};

mod lengths;
mod tally;

use lengths::{Lengths, Ranges};
use tally::{SLICES, Tally};

/// When ranges are cut, and when a worker has been given too much.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BucketRules {
    /// `--bucket-adjust-interval-secs`, in milliseconds: between two cuts, and how long what was
    /// sent counts.
    pub interval: u64,
    /// `--balance-abs-threshold`: out of balance when the most and the least charged differ by more
    /// characters (tokens where those are known) than this …
    pub abs_threshold: u64,
    /// `--balance-rel-threshold`: … and by more than this factor.
    pub rel_threshold: f64,
}

/// The policy `bucket`.
#[derive(Debug)]
pub struct Bucket {
    rules: BucketRules,
    state: RwLock<State>,
}

/// Held for reading by a proposal and for writing by a commit, both for a few loads and stores.
#[derive(Debug, Default)]
struct State {
    charges: HashMap<WorkerId, Tally>,
    /// Of the time since the last cut.
    lengths: Lengths,
    cut: Option<u64>,
    ranges: Ranges,
    /// What had been sent when the ranges were cut.
    cut_total: u64,
}

impl Bucket {
    /// By these rules.
    #[must_use]
    pub fn new(rules: BucketRules) -> Self {
        Self { rules, state: RwLock::default() }
    }

    fn slice(&self, now: u64) -> u64 {
        now / (self.rules.interval / SLICES as u64).max(1)
    }

    /// Whether the most charged worker has so much more than the least charged that lengths do not
    /// matter.
    fn out_of_balance(&self, least: u64, most: u64) -> bool {
        most.saturating_sub(least) > self.rules.abs_threshold
            && float(most) > float(least) * self.rules.rel_threshold
    }

    /// A panic under the lock leaves sums that are off by one request at most.
    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn charge(&self, id: WorkerId, slice: u64) -> u64 {
        self.charges.get(&id).map_or(0, |tally| tally.sum(slice))
    }

    /// Cuts the ranges anew when the interval is over, unless about as much was sent as before the
    /// last cut: ranges that move with every ripple would scatter what caches hold.
    fn cut_if_due(&mut self, now: u64, interval: u64) {
        let cut = *self.cut.get_or_insert(now);
        if now.saturating_sub(cut) < interval {
            return;
        }
        let total = self.lengths.total();
        let doubled = total >= self.cut_total.saturating_mul(2);
        let halved = total.saturating_mul(2) <= self.cut_total;
        if total > 0 && (doubled || halved) {
            self.ranges = self.lengths.ranges();
            self.cut_total = total;
        }
        self.lengths = Lengths::default();
        self.cut = Some(now);
    }
}

impl Policy for Bucket {
    fn name(&self) -> &'static str {
        "bucket"
    }

    fn reads(&self) -> Reads {
        Reads::Prompt
    }

    fn propose(&self, ask: &Ask<'_>, candidates: &Candidates<'_>, dice: &mut dyn Rng) -> Proposal {
        let Some(length) = length(ask.prompt) else {
            return Proposal::plain(candidates.any(dice));
        };
        let slice = self.slice(ask.now);
        let state = self.read();
        let charge = |worker: &Worker| state.charge(worker.id, slice);
        let (mut count, mut least, mut most) = (0, u64::MAX, 0);
        for (_, worker) in candidates.available() {
            let charge = charge(worker);
            (count, least, most) = (count + 1, least.min(charge), most.max(charge));
        }
        if self.out_of_balance(least, most) {
            return Proposal::plain(candidates.least(charge, dice));
        }
        Proposal::plain(candidates.in_turn(state.ranges.range(length, count)))
    }

    fn commit(&self, ask: &Ask<'_>, used: &Worker) -> Receipt {
        let Some(length) = length(ask.prompt) else { return Receipt::default() };
        let slice = self.slice(ask.now);
        let mut state = self.write();
        state.cut_if_due(ask.now, self.rules.interval);
        state.lengths.add(length);
        state.charges.entry(used.id).or_default().add(slice, u64::from(length));
        Receipt { charged: length, ..Receipt::default() }
    }

    fn undo(&self, ask: &Ask<'_>, used: &Worker, receipt: Receipt) {
        let length = receipt.charged;
        if length == 0 {
            return;
        }
        let slice = self.slice(ask.now);
        let mut state = self.write();
        state.lengths.take(length);
        if let Some(tally) = state.charges.get_mut(&used.id) {
            tally.take(slice, u64::from(length));
        }
    }

    fn forget(&self, gone: WorkerId) {
        self.write().charges.remove(&gone);
    }
}

/// Tokens if they are known, else characters of the joined text; `None` when there is nothing to
/// go on.
fn length(prompt: Prompt<'_>) -> Option<u32> {
    let length = match prompt {
        Prompt::Unknown => 0,
        Prompt::Tokens(tokens) => tokens.len(),
        Prompt::Text(segments) => {
            let spaces = segments.len().saturating_sub(1);
            segments.iter().map(|segment| segment.chars().count()).sum::<usize>() + spaces
        }
    };
    (length > 0).then(|| u32::try_from(length).unwrap_or(u32::MAX))
}

const fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::testing::{dice, fleet};
    use super::*;
    use proptest::prelude::*;

    const RULES: BucketRules =
        BucketRules { interval: 5000, abs_threshold: 64, rel_threshold: 1.5 };

    fn place(policy: &Bucket, workers: &[Arc<Worker>], chars: usize, now: u64) -> Option<usize> {
        let text = "x".repeat(chars);
        let segments = [text.as_str()];
        let ask = Ask { prompt: Prompt::Text(&segments), now, ..Ask::default() };
        let at = policy.propose(&ask, &Candidates::new(workers, &[]), &mut dice()).at?;
        policy.commit(&ask, &workers[at]);
        Some(at)
    }

    #[test]
    fn ranges_first_and_balance_before_ranges() {
        // Observed on the peer: four short ones to one, a long one to the other, the next long one
        // back to the first, which has the smaller charge.
        let (workers, policy) = (fleet(2), Bucket::new(RULES));
        let placed: Vec<_> = [10, 10, 10, 10, 3000, 3000]
            .map(|chars| place(&policy, &workers, chars, 0).unwrap())
            .into();
        assert_eq!(placed, [0, 0, 0, 0, 1, 0]);
    }

    #[test]
    fn only_available_workers_have_ranges() {
        let (workers, policy) = (fleet(3), Bucket::new(RULES));
        workers[1].set_healthy(false);
        assert_eq!(place(&policy, &workers, 2047, 0), Some(0));
        let policy = Bucket::new(RULES);
        assert_eq!(place(&policy, &workers, 2048, 0), Some(2));
        assert_eq!(
            place(&policy, &workers, 1_000_000, 0),
            Some(0),
            "least charged, not the dead one"
        );
        workers.iter().for_each(|worker| worker.set_healthy(false));
        assert_eq!(place(&policy, &workers, 10, 0), None);
    }

    #[test]
    fn charges_fade_after_the_interval() {
        let (workers, policy) = (fleet(2), Bucket::new(RULES));
        assert_eq!(place(&policy, &workers, 100, 0), Some(0));
        assert_eq!(place(&policy, &workers, 100, 4000), Some(1), "out of balance: 100 to nothing");
        assert_eq!(place(&policy, &workers, 100, 20_000), Some(0), "all forgotten");
    }

    #[test]
    fn ranges_are_cut_anew_where_half_of_the_characters_lie() {
        // No balance rule here, to see the ranges alone.
        let rules = BucketRules { abs_threshold: u64::MAX, ..RULES };
        let (workers, policy) = (fleet(2), Bucket::new(rules));
        for n in 0..100 {
            assert_eq!(place(&policy, &workers, 100 + n, 0), Some(0));
        }
        assert_eq!(place(&policy, &workers, 1, 4999), Some(0), "not due yet");
        assert_eq!(place(&policy, &workers, 199, 4999), Some(0));
        assert_eq!(place(&policy, &workers, 199, 5000), Some(0), "cuts with its commit");
        assert_eq!(place(&policy, &workers, 199, 5001), Some(1));
        assert_eq!(place(&policy, &workers, 120, 5001), Some(0));
        let joined = fleet(4);
        assert_eq!(place(&policy, &joined, 199, 5001), Some(3), "a join re-uses what is known");
        // About as much as before the last cut: the ranges stay, although all are long now.
        assert!((0..4).all(|_| place(&policy, &workers, 5000, 6000).is_some()));
        assert_eq!(place(&policy, &workers, 199, 10_000), Some(1));
        assert_eq!(place(&policy, &workers, 199, 10_001), Some(1));
        // Five times as much: cut anew.
        assert!((0..16).all(|_| place(&policy, &workers, 5000, 11_000).is_some()));
        assert_eq!(place(&policy, &workers, 199, 15_000), Some(1));
        assert_eq!(place(&policy, &workers, 199, 15_001), Some(0));
    }

    #[test]
    fn what_never_arrived_is_not_charged() {
        let (workers, policy) = (fleet(2), Bucket::new(RULES));
        let ask = Ask { prompt: Prompt::Tokens(&[1; 300]), ..Ask::default() };
        let receipt = policy.commit(&ask, &workers[0]);
        policy.undo(&ask, &workers[0], receipt);
        policy.undo(&ask, &workers[0], Receipt::default());
        assert_eq!((policy.read().charge(workers[0].id, 0), policy.read().lengths.total()), (0, 0));
        policy.commit(&ask, &workers[0]);
        policy.forget(workers[0].id);
        assert!(policy.read().charges.is_empty());
    }

    #[test]
    fn nothing_to_go_on_is_anywhere_and_free() {
        let (workers, policy) = (fleet(2), Bucket::new(RULES));
        let mut seen = [0; 2];
        let mut dice = dice();
        for _ in 0..100 {
            let candidates = Candidates::new(&workers, &[]);
            let at = policy.propose(&Ask::default(), &candidates, &mut dice).at.unwrap();
            policy.commit(&Ask::default(), &workers[at]);
            seen[at] += 1;
        }
        assert!(seen[0] > 20 && seen[1] > 20, "{seen:?}");
        assert!(policy.read().charges.is_empty());
        assert_eq!(length(Prompt::Text(&["ä", "ö"])), Some(3));
        assert_eq!(length(Prompt::Text(&[""])), None);
    }

    proptest! {
        #[test]
        fn charges_never_drift_apart_by_more_than_the_gate_and_one_prompt(
            prompts in proptest::collection::vec((1_usize..500, 0_u64..800), 1..80),
        ) {
            let (workers, policy) = (fleet(3), Bucket::new(RULES));
            for (chars, _) in &prompts {
                prop_assert!(place(&policy, &workers, *chars, 0).is_some());
                let charges = workers.iter().map(|worker| policy.read().charge(worker.id, 0));
                let charges: Vec<_> = charges.collect();
                let (least, most) = (charges.iter().min().unwrap(), charges.iter().max().unwrap());
                // Whoever is most charged was within the gate before its last prompt (at most 500).
                let gate = (least + 64).max(least + least / 2);
                prop_assert!(*most <= gate + 500, "{charges:?}");
            }
        }
    }
}
