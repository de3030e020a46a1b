//! The choice itself, given what an index knows of a prompt.
//!
//! A conversation's next prompt goes to the worker that holds the deepest match, unless the match
//! is too small a share (`--cache-threshold`) or that worker carries far more than its share (the
//! spill gate). Any other prompt begins a conversation somewhere, and where that is will cost in
//! all its turns: it goes where the expected wait, the part of the prompt that is not cached, and
//! the conversations that were placed there lately come to the least. So a shared prefix attracts
//! as long as reading it again would take longer than the work its holder is ahead of the others,
//! and is copied as soon as it would not.

use rand::Rng;
use smallvec::SmallVec;

use super::Holders;
use super::costs::Costs;
use super::score::{Prompt, Scoring};
use crate::fleet::Worker;
use crate::place::{Branch, Candidates, ExpectedWait, Proposal, least_among};

/// A new conversation is expected to bring this many prompts of mean length.
const PROMPTS_A_CONVERSATION: u32 = 4;

/// The thresholds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// `--cache-threshold`: the share of a prompt above which a match binds.
    pub threshold: f32,
    /// `--balance-abs-threshold`: requests above the mean that a holder may have in flight.
    pub abs: u32,
    /// `--balance-rel-threshold`: how many times the mean it may have.
    pub rel: f32,
    /// `--overload-token-usage-threshold`: the use of a KV cache above which affinity is dropped;
    /// 1 is never.
    pub overload_usage: f32,
    /// `--balance-token-usage-threshold`: the same for the fullest less the emptiest.
    pub balance_usage: f32,
    /// What waiting is measured by.
    pub wait: ExpectedWait,
    /// What else than the longest match counts among holders.
    pub scoring: Scoring,
}

impl Rules {
    /// The defaults of the flags.
    pub const DEFAULT: Self = Self {
        threshold: 0.3,
        abs: 64,
        rel: 1.5,
        overload_usage: 1.0,
        balance_usage: 1.0,
        wait: ExpectedWait {
            kv_pressure_weight: 0.15,
            default_throughput: 2000.0,
            mean_prefill_tokens: 1024,
        },
        scoring: Scoring::OFF,
    };
}

impl Default for Rules {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Lengths of a prompt in units, the longest first, and who holds that much.
pub type Shared = SmallVec<[(usize, Holders); 4]>;

/// What an index knows of a prompt.
pub struct Known<'a> {
    /// The prompt's length in units, bytes or tokens.
    pub units: usize,
    /// How many of them make a token.
    pub units_a_token: f64,
    /// Units that somebody holds.
    pub matched: usize,
    /// Whether what is matched is the prompt's own conversation, not a beginning that many share.
    pub own: bool,
    /// Who holds all that is matched.
    pub deepest: &'a dyn Fn() -> Holders,
    /// Who holds how much.
    pub shared: &'a dyn Fn() -> Shared,
    /// Milliseconds on the caller's clock.
    pub now: u64,
}

impl std::fmt::Debug for Known<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Known")
            .field("units", &self.units)
            .field("matched", &self.matched)
            .field("own", &self.own)
            .finish_non_exhaustive()
    }
}

impl Known<'_> {
    fn share(&self, units: usize) -> f32 {
        if self.units == 0 { 0.0 } else { units as f32 / self.units as f32 }
    }

    fn prompt(&self) -> Prompt {
        Prompt { units: self.units, tokens: self.units as f64 / self.units_a_token }
    }
}

impl Rules {
    /// Tokens of work that a new conversation is expected to bring.
    #[must_use]
    pub const fn conversation_tokens(&self) -> u32 {
        self.wait.mean_prefill_tokens.saturating_mul(PROMPTS_A_CONVERSATION)
    }

    /// Chooses among the available candidates.
    pub fn choose(
        &self,
        known: &Known<'_>,
        candidates: &Candidates<'_>,
        dice: &mut dyn Rng,
    ) -> Proposal {
        if let Some(at) = self.under_pressure(candidates, dice) {
            return Proposal { matched: Some(0.0), ..Proposal::by(Branch::Spill, Some(at)) };
        }
        let bound = known.own && known.share(known.matched) > self.threshold;
        if bound && let Some((at, share)) = self.home(known, candidates, dice) {
            return self.unless_too_busy(at, share, candidates, dice);
        }
        let shared = (known.shared)();
        let Some(at) = Costs::new(self, known, &shared, candidates).least(dice) else {
            return Proposal::by(Branch::NoHealthyWorkers, None);
        };
        let share = candidates.worker(at).map_or(0.0, |worker| {
            let held = shared.iter().find(|(_, holders)| holders.binary_search(&worker.id).is_ok());
            known.share(held.map_or(0, |(units, _)| *units))
        });
        if share > self.threshold {
            return self.unless_too_busy(at, share, candidates, dice);
        }
        let branch = if bound { Branch::Spill } else { Branch::ExpectedWaitFallback };
        Proposal { matched: Some(share), ..Proposal::by(branch, Some(at)) }
    }

    /// Where a conversation goes on: the holder of the deepest match with the least in flight,
    /// unless something else counts too.
    fn home(
        &self,
        known: &Known<'_>,
        candidates: &Candidates<'_>,
        dice: &mut dyn Rng,
    ) -> Option<(usize, f32)> {
        if !self.scoring.counts() {
            let at = least_busy(&(known.deepest)(), candidates, dice)?;
            return Some((at, known.share(known.matched)));
        }
        let scored = self.scoring.choose(&(known.shared)(), &known.prompt(), candidates, dice)?;
        (scored.score > f64::from(self.threshold)).then_some((scored.at, scored.share))
    }

    /// Chooses by heads alone: a holder of the longest one that has an available holder, however
    /// much of the prompt that is; else the shortest expected wait.
    pub(super) fn choose_head(
        &self,
        known: &Known<'_>,
        candidates: &Candidates<'_>,
        dice: &mut dyn Rng,
    ) -> Proposal {
        if let Some(at) = self.under_pressure(candidates, dice) {
            return Proposal { matched: Some(0.0), ..Proposal::by(Branch::Spill, Some(at)) };
        }
        let shared = (known.shared)();
        if let Some(scored) = self.scoring.choose(&shared, &known.prompt(), candidates, dice) {
            return self.unless_too_busy(scored.at, scored.share, candidates, dice);
        }
        let waits = self.wait.among(candidates.available().map(|(_, worker)| worker));
        let branch = if shared.is_empty() { Branch::ExpectedWaitFallback } else { Branch::Spill };
        match candidates.least(|worker| waits.at(worker), dice) {
            Some(at) => Proposal { matched: Some(0.0), ..Proposal::by(branch, Some(at)) },
            None => Proposal::by(Branch::NoHealthyWorkers, None),
        }
    }

    /// When caches are too full, or too unevenly full, no match counts: the least loaded of those
    /// that are not too full themselves.
    fn under_pressure(&self, candidates: &Candidates<'_>, dice: &mut dyn Rng) -> Option<usize> {
        if self.overload_usage >= 1.0 && self.balance_usage >= 1.0 {
            return None;
        }
        let usage = |worker: &Worker| worker.load().report().map(|report| report.token_usage);
        let used = || candidates.available().filter_map(|(_, worker)| usage(worker));
        let (fullest, emptiest) = (used().fold(0.0, f32::max), used().fold(1.0, f32::min));
        let most = self.overload_usage.min(emptiest + self.balance_usage);
        if fullest <= most {
            return None;
        }
        let cool = candidates.available().filter(|(_, it)| usage(it).is_none_or(|it| it <= most));
        let load = |it: &Worker| (it.in_flight(), it.processed(), it.id);
        least_among(cool, load, dice).or_else(|| candidates.least(load, dice))
    }

    /// The holder, or the least loaded one when the holder carries too much.
    fn unless_too_busy(
        &self,
        at: usize,
        share: f32,
        candidates: &Candidates<'_>,
        dice: &mut dyn Rng,
    ) -> Proposal {
        let busy = candidates.worker(at).is_some_and(|holder| self.too_busy(holder, candidates));
        if busy && let Some(other) = candidates.least(Worker::in_flight, dice) {
            return Proposal { matched: Some(0.0), ..Proposal::by(Branch::Spill, Some(other)) };
        }
        Proposal { matched: Some(share), ..Proposal::by(Branch::TreeMatch, Some(at)) }
    }

    /// The spill gate: load above the mean by both measures.
    fn too_busy(&self, holder: &Worker, candidates: &Candidates<'_>) -> bool {
        let load = holder.in_flight();
        if load <= self.abs {
            return false;
        }
        let add = |(sum, count): (f64, f64), (_, worker): (usize, &Worker)| {
            (sum + f64::from(worker.in_flight()), count + 1.0)
        };
        let (sum, count) = candidates.available().fold((0.0, 0.0), add);
        let (load, mean) = (f64::from(load), sum / f64::max(count, 1.0));
        load > mean * f64::from(self.rel) && load > mean + f64::from(self.abs)
    }
}

/// The available holder with the least in flight.
fn least_busy(holders: &Holders, candidates: &Candidates<'_>, dice: &mut dyn Rng) -> Option<usize> {
    let available = holders.iter().filter_map(|holder| {
        let at = candidates.find(*holder)?;
        Some((at, candidates.worker(at)?))
    });
    least_among(available, Worker::in_flight, dice)
}
