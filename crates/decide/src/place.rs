//! Placement: which worker takes a request that no pin decides.
//!
//! A policy works in two steps. *Propose* chooses and changes nothing; *commit* is told the worker
//! that was really used, which may be another one when somebody else pinned the key meanwhile.

use std::sync::{Arc, OnceLock};

use rand::{Rng, RngExt as _};

use crate::fleet::{Worker, WorkerId};
use crate::keys::KeyUse;

mod boundaries;
mod branch;
mod bucket;
pub mod cache_aware;
mod consistent_hashing;
mod expected_wait;
mod least_load;
mod manual;
mod passthrough;
mod power_of_two;
mod prefix_hash;
mod random;
mod ring;
mod round_robin;
mod session_affinity;

pub use boundaries::Boundaries;
pub use branch::Branch;
pub use bucket::{Bucket, BucketRules};
pub use cache_aware::CacheAware;
pub use consistent_hashing::ConsistentHashing;
pub use expected_wait::{Estimate, ExpectedWait, Wait};
pub use least_load::LeastLoad;
pub use manual::Manual;
pub use passthrough::Passthrough;
pub use power_of_two::PowerOfTwo;
pub use prefix_hash::{PrefixHash, PrefixRules};
pub use random::Random;
pub use ring::{KeptRing, Ring};
pub use round_robin::RoundRobin;
pub use session_affinity::{Imbalance, SessionAffinity, Sought};

/// What a policy has to read of a request before it can choose. The body plan asks for this and
/// never knows a policy by name (001, rule 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// Its own state, the fleet, the headers.
    Headers,
    /// The prompt as well, and it can do without in a pinch: no reason to hold a body back.
    PromptIfThere,
    /// The prompt, or a tokens hint in its place.
    Prompt,
}

/// What a policy may look at of a request. One ask goes to one policy object.
#[derive(Clone, Debug, Default)]
pub struct Ask<'a> {
    /// The routing key, for policies that hash one themselves.
    pub key: Option<&'a str>,
    /// The value of `X-SMG-Target-Worker`.
    pub target: Option<&'a [u8]>,
    /// What `session_affinity` looks for.
    pub sought: Sought,
    /// What the engine will have to read.
    pub prompt: Prompt<'a>,
    /// Milliseconds on the caller's clock.
    pub now: u64,
    /// Starts empty. `cache_aware` keeps the prompt's hashes here, so that proposing, committing
    /// and a retry read the prompt once.
    pub chain: OnceLock<cache_aware::Chain>,
}

/// A prompt as far as it is known.
#[derive(Clone, Copy, Debug, Default)]
pub enum Prompt<'a> {
    /// Not known: the body was not read, or holds none.
    #[default]
    Unknown,
    /// Its text parts in order, to be thought of as joined by one space. Raw JSON text, escapes
    /// included: policies compare and measure it, nobody reads it.
    Text(&'a [&'a str]),
    /// Token ids, whole or from the front.
    Tokens(&'a [u32]),
}

/// What a policy says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Proposal {
    /// The chosen worker's place in the list; `None` when none will do.
    pub at: Option<usize>,
    /// How the choice came about.
    pub branch: Branch,
    /// The share of the prompt that the chosen worker is believed to hold, from 0 to 1.
    pub matched: Option<f32>,
}

impl Proposal {
    /// A choice that has no story.
    #[must_use]
    pub const fn plain(at: Option<usize>) -> Self {
        Self { at, branch: Branch::Plain, matched: None }
    }

    /// A choice and how it came about.
    #[must_use]
    pub const fn by(branch: Branch, at: Option<usize>) -> Self {
        Self { at, branch, matched: None }
    }
}

/// What one commit changed, so that it can be undone. The default stands for no change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    pub(crate) inserted: cache_aware::Inserted,
    /// Heads that a worker did not hold before, a bit for each.
    pub(crate) heads: u32,
    pub(crate) charged: u32,
}

/// What a policy remembers of prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remembered {
    /// Units, each holder counted: bytes of text, or tokens.
    pub size: usize,
    /// Workers that hold anything.
    pub workers: usize,
}

/// The workers of one model and leg, less those this request has already failed on.
#[derive(Clone, Copy, Debug)]
pub struct Candidates<'a> {
    workers: &'a [Arc<Worker>],
    excluded: &'a [WorkerId],
    now: u64,
}

impl<'a> Candidates<'a> {
    /// All of `workers`, sorted by id, but the `excluded`.
    #[must_use]
    pub const fn new(workers: &'a [Arc<Worker>], excluded: &'a [WorkerId]) -> Self {
        Self { workers, excluded, now: 0 }
    }

    /// The same at this moment, in milliseconds on the caller's clock: breakers look at it.
    #[must_use]
    pub const fn at(self, now: u64) -> Self {
        Self { now, ..self }
    }

    /// Whether the worker at this place is available, excluded or not.
    #[must_use]
    pub fn is_available(&self, at: usize) -> bool {
        self.workers.get(at).is_some_and(|worker| worker.available(self.now))
    }

    /// All workers of the model and leg in list order, unavailable and excluded ones among them.
    #[must_use]
    pub const fn all(&self) -> &'a [Arc<Worker>] {
        self.workers
    }

    /// Whether the worker at this place may take the request now.
    #[must_use]
    pub fn takes(&self, at: usize) -> bool {
        self.workers
            .get(at)
            .is_some_and(|worker| worker.available(self.now) && !self.excluded.contains(&worker.id))
    }

    /// Those that may take a request now, with their place in the model's list, in list order.
    pub fn available(&self) -> impl Iterator<Item = (usize, &'a Worker)> {
        let Self { excluded, now, .. } = *self;
        self.workers
            .iter()
            .map(Arc::as_ref)
            .enumerate()
            .filter(move |(_, worker)| worker.available(now) && !excluded.contains(&worker.id))
    }

    /// The place of an available worker in the list.
    #[must_use]
    pub fn find(&self, id: WorkerId) -> Option<usize> {
        let at = self.workers.binary_search_by_key(&id, |worker| worker.id).ok()?;
        let available = self.workers.get(at)?.available(self.now) && !self.excluded.contains(&id);
        available.then_some(at)
    }

    /// The `turn`-th available one, counted round and round.
    #[must_use]
    pub fn in_turn(&self, turn: usize) -> Option<usize> {
        let count = self.available().count();
        let wanted = turn.checked_rem(count)?;
        // Health may change between the two walks; then the first one left is as good.
        self.available().nth(wanted).or_else(|| self.available().next()).map(|(at, _)| at)
    }

    /// Any available one.
    #[must_use]
    pub fn any(&self, dice: &mut dyn Rng) -> Option<usize> {
        self.in_turn(dice.random_range(0..=usize::MAX))
    }

    /// The worker at a place in the list, available or not.
    #[must_use]
    pub fn worker(&self, at: usize) -> Option<&'a Worker> {
        self.workers.get(at).map(Arc::as_ref)
    }

    /// Two different available ones, any two; the second is `None` when there is but one.
    #[must_use]
    pub fn any_two(&self, dice: &mut dyn Rng) -> (Option<usize>, Option<usize>) {
        let count = self.available().count();
        if count < 2 {
            return (self.any(dice), None);
        }
        let first = dice.random_range(0..count);
        // One of the others, counted as if the first were not there.
        let other = dice.random_range(0..count - 1);
        let second = if other >= first { other + 1 } else { other };
        let mut walk = self.available();
        let low = walk.nth(first.min(second)).map(|(at, _)| at);
        let high = walk.nth(first.abs_diff(second) - 1).map(|(at, _)| at);
        // Health may change between the two walks; then whoever is left is as good.
        (low.or_else(|| self.any(dice)), high)
    }

    /// One with the least `weight`; equals are drawn by lot.
    pub fn least<W: Ord>(
        &self,
        weight: impl FnMut(&'a Worker) -> W,
        dice: &mut dyn Rng,
    ) -> Option<usize> {
        least_among(self.available(), weight, dice)
    }
}

/// The place of one with the least `weight` among these; equals are drawn by lot.
pub fn least_among<'a, W: Ord>(
    among: impl Iterator<Item = (usize, &'a Worker)>,
    mut weight: impl FnMut(&'a Worker) -> W,
    dice: &mut dyn Rng,
) -> Option<usize> {
    least_of(among.map(|(at, worker)| (at, weight(worker))), dice)
}

/// The place of one with the least weight of these places and weights; equals are drawn by lot.
pub(crate) fn least_of<W: Ord>(
    among: impl Iterator<Item = (usize, W)>,
    dice: &mut dyn Rng,
) -> Option<usize> {
    let mut best: Option<(W, usize)> = None;
    let (mut equals, mut next) = (0_u32, 0_u32);
    for (at, weight) in among {
        match &best {
            Some((least, _)) if weight > *least => {}
            Some((least, _)) if weight == *least => {
                // Reservoir of one: the n-th equal replaces the chosen one with chance 1/n.
                if equals == 1 {
                    next = next_to_replace(1, dice);
                }
                equals += 1;
                if equals == next {
                    best = Some((weight, at));
                    next = next_to_replace(equals, dice);
                }
            }
            _ => {
                equals = 1;
                best = Some((weight, at));
            }
        }
    }
    best.map(|(_, at)| at)
}

/// Which of the equals after the n-th is the next to replace the chosen one. All of n + 1 to m fail
/// to with chance n/m, so one draw stands for them all: a thousand equals take about seven draws.
fn next_to_replace(n: u32, dice: &mut dyn Rng) -> u32 {
    let lot: f64 = 1.0 - dice.random::<f64>();
    ((f64::from(n) / lot) as u32).saturating_add(1)
}

/// A way to choose a worker.
pub trait Policy: Send + Sync + std::fmt::Debug {
    /// The name that `--policy` takes and metrics show.
    fn name(&self) -> &'static str;

    /// What it must read of a request.
    fn reads(&self) -> Reads;

    /// Whether the beginning of a prompt tells it what it wants to know of the prompt.
    fn goes_by_beginnings(&self) -> bool {
        false
    }

    /// Whether it looks at what engines report of their load, so that they have to be asked.
    fn reads_loads(&self) -> bool {
        false
    }

    /// What it makes of routing keys by itself.
    fn keys(&self) -> KeyUse {
        KeyUse::None
    }

    /// Chooses among the available candidates and changes nothing.
    fn propose(&self, ask: &Ask<'_>, candidates: &Candidates<'_>, dice: &mut dyn Rng) -> Proposal;

    /// The proposal was used: the request goes to `used`. Keep the receipt for [`Self::undo`].
    fn commit(&self, ask: &Ask<'_>, used: &Worker) -> Receipt {
        let _ = (ask, used);
        Receipt::default()
    }

    /// A pin or an assignment mode chose `used`, whatever the policy thinks of it: takes note of what
    /// that worker will hold now, and moves no cursor. Keep the receipt for [`Self::undo`].
    fn learn(&self, ask: &Ask<'_>, used: &Worker) -> Receipt {
        let _ = (ask, used);
        Receipt::default()
    }

    /// The request never reached `used` after all, or that worker failed it before any output:
    /// takes back what whatever gave this receipt added, and nothing else.
    fn undo(&self, ask: &Ask<'_>, used: &Worker, receipt: Receipt) {
        let _ = (ask, used, receipt);
    }

    /// A worker was removed from the fleet, or its cache was emptied.
    fn forget(&self, gone: WorkerId) {
        let _ = gone;
    }

    /// What it remembers of texts and of tokens, if it remembers prompts; takes a while to find out.
    fn remembered(&self) -> Option<[Remembered; 2]> {
        None
    }

    /// Called every `--eviction-interval`, with milliseconds on the caller's clock.
    fn sweep(&self, now: u64) {
        let _ = now;
    }
}

/// `--assignment-mode`: where a new key goes (000, "Assignment Modes").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assignment {
    /// Any available worker.
    Random,
    /// The one with the fewest requests in flight.
    MinLoad,
    /// The one with the fewest distinct keys in flight.
    MinGroup,
    /// The one the configured policy selects.
    Delegate,
}

impl Assignment {
    /// Chooses by the mode alone; `Delegate` leaves it to the policy.
    pub fn propose(
        self,
        policy: &dyn Policy,
        ask: &Ask<'_>,
        candidates: &Candidates<'_>,
        dice: &mut dyn Rng,
    ) -> Proposal {
        match self {
            Self::Random => Proposal::plain(candidates.any(dice)),
            Self::MinLoad => Proposal::plain(candidates.least(Worker::in_flight, dice)),
            Self::MinGroup => Proposal::plain(candidates.least(Worker::keys_in_flight, dice)),
            Self::Delegate => policy.propose(ask, candidates, dice),
        }
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use crate::fleet::Leg;
    use rand::SeedableRng as _;

    pub(crate) fn fleet(count: u32) -> Vec<Arc<Worker>> {
        (0..count)
            .map(|n| {
                let worker = Worker::new(WorkerId(n), format!("http://w{n}"), Leg::Regular);
                worker.set_healthy(true);
                Arc::new(worker)
            })
            .collect()
    }

    /// Requests that never end.
    pub(crate) fn send(worker: &Worker, count: u32) {
        for _ in 0..count {
            worker.begin(None);
        }
    }

    pub(crate) fn dice() -> rand::rngs::SmallRng {
        rand::rngs::SmallRng::seed_from_u64(7)
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{dice, fleet};
    use super::*;

    #[test]
    fn unavailable_and_excluded_workers_are_no_candidates() {
        let workers = fleet(3);
        workers[0].set_healthy(false);
        let excluded = [WorkerId(2)];
        let candidates = Candidates::new(&workers, &excluded);
        assert_eq!(candidates.available().map(|(at, _)| at).collect::<Vec<_>>(), [1]);
        assert_eq!((candidates.find(WorkerId(1)), candidates.find(WorkerId(2))), (Some(1), None));
        let mut dice = dice();
        for mode in [Assignment::Random, Assignment::MinLoad, Assignment::MinGroup] {
            let proposal = mode.propose(&Random, &Ask::default(), &candidates, &mut dice);
            assert_eq!(proposal.at, Some(1), "{mode:?}");
        }
        let nobody = Candidates::new(&[], &[]);
        for mode in [Assignment::Random, Assignment::MinLoad, Assignment::Delegate] {
            let proposal = mode.propose(&Random, &Ask::default(), &nobody, &mut dice);
            assert_eq!(proposal.at, None, "{mode:?}");
        }
    }

    #[test]
    fn min_load_takes_the_fewest_in_flight_and_draws_ties_by_lot() {
        let workers = fleet(3);
        workers[0].begin(None);
        let candidates = Candidates::new(&workers, &[]);
        let mut dice = dice();
        let mut seen = [0; 3];
        for _ in 0..200 {
            let proposal =
                Assignment::MinLoad.propose(&Random, &Ask::default(), &candidates, &mut dice);
            seen[proposal.at.unwrap()] += 1;
        }
        assert!(seen[0] == 0 && seen[1] > 60 && seen[2] > 60, "{seen:?}");
    }

    #[test]
    fn min_group_counts_keys_not_requests() {
        let workers = fleet(2);
        workers[0].key_begins();
        for _ in 0..9 {
            workers[1].begin(None);
        }
        let candidates = Candidates::new(&workers, &[]);
        let proposal =
            Assignment::MinGroup.propose(&Random, &Ask::default(), &candidates, &mut dice());
        assert_eq!(proposal.at, Some(1));
    }
}
