//! How holders of a conversation compare when more counts than how much they hold:
//! `--overlap-decay` takes the backlog of an engine off what it holds, and
//! `--selection-temperature` lets the second best have its share.

use rand::{Rng, RngExt as _};
use smallvec::SmallVec;

use super::choose::Shared;
use crate::fleet::Worker;
use crate::place::{Candidates, least_among};

/// The two knobs, both off at 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scoring {
    /// `--overlap-decay`: how much a share counts less for each length of this prompt that an engine
    /// has more to read than the least busy one.
    pub decay: f64,
    /// `--selection-temperature`: 0 takes the best, the higher the nearer to by lot.
    pub temperature: f64,
}

impl Scoring {
    /// The holder of the longest match, whatever waits there.
    pub const OFF: Self = Self { decay: 0.0, temperature: 0.0 };

    /// Whether either counts.
    pub(super) fn counts(&self) -> bool {
        self.decay > 0.0 || self.temperature > 0.0
    }

    /// The chosen holder: by its score, which is the share it holds, discounted by its backlog.
    /// Equals go to the least in flight.
    pub(super) fn choose(
        &self,
        shared: &Shared,
        prompt: &Prompt,
        candidates: &Candidates<'_>,
        dice: &mut dyn Rng,
    ) -> Option<Scored> {
        let discount = Discount::new(self.decay, prompt.tokens, candidates);
        let mut scored = SmallVec::<[Scored; 8]>::new();
        for (longer, (units, holders)) in shared.iter().enumerate() {
            let seen = |id| shared.iter().take(longer).any(|(_, of)| of.binary_search(&id).is_ok());
            for id in holders.iter().filter(|id| !seen(**id)) {
                let Some(at) = candidates.find(*id) else { continue };
                let Some(worker) = candidates.worker(at) else { continue };
                let share = *units as f64 / prompt.units.max(1) as f64;
                scored.push(Scored { at, share: share as f32, score: share * discount.of(worker) });
            }
        }
        let best = scored.iter().map(|one| one.score).fold(0.0, f64::max);
        let chosen = if self.temperature > 0.0 {
            draw(&scored, |one| ((one.score / best - 1.0) / self.temperature).exp(), dice)
        } else {
            let equals = scored.iter().filter(|one| one.score >= best);
            let workers = equals.filter_map(|one| Some((one.at, candidates.worker(one.at)?)));
            let at = least_among(workers, Worker::in_flight, dice)?;
            scored.iter().find(|one| one.at == at)
        };
        chosen.copied()
    }
}

/// A prompt's length in the units of its matches, and in tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prompt {
    pub(super) units: usize,
    pub(super) tokens: f64,
}

/// A holder, the share of the prompt that it holds, and what that counts as.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scored {
    pub(super) at: usize,
    pub(super) share: f32,
    pub(super) score: f64,
}

/// One of these, drawn by weight.
fn draw<'a>(
    among: &'a [Scored],
    weight: impl Fn(&Scored) -> f64,
    dice: &mut dyn Rng,
) -> Option<&'a Scored> {
    let total: f64 = among.iter().map(&weight).sum();
    let mut left = dice.random::<f64>() * total;
    let drawn = among.iter().find(|one| {
        left -= weight(one);
        left < 0.0
    });
    // Rounding may leave a rest behind the last one.
    drawn.or_else(|| among.last())
}

/// What the backlogs of engines take off the shares they hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Discount {
    /// The decay for one token of backlog.
    a_token: f64,
    least: u32,
}

impl Discount {
    /// For a prompt of so many tokens.
    pub(super) fn new(decay: f64, tokens: f64, candidates: &Candidates<'_>) -> Self {
        if decay <= 0.0 {
            return Self { a_token: 0.0, least: 0 };
        }
        let backlogs = candidates.available().filter_map(|(_, worker)| backlog(worker));
        Self { a_token: decay / tokens.max(1.0), least: backlogs.min().unwrap_or(0) }
    }

    /// Above 0, up to 1. An engine that reports nothing is not discounted.
    #[inline]
    pub(super) fn of(&self, worker: &Worker) -> f64 {
        if self.a_token <= 0.0 {
            return 1.0;
        }
        let more = backlog(worker).map_or(0, |backlog| backlog.saturating_sub(self.least));
        1.0 / (1.0 + self.a_token * f64::from(more))
    }
}

/// Tokens that wait there to be read, as the engine says.
fn backlog(worker: &Worker) -> Option<u32> {
    worker.load().report().map(|report| report.waiting_tokens)
}

#[cfg(test)]
mod tests;
