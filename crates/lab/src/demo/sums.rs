//! What the turns of one play add up to.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::player::{Landing, Turn};

/// The sums of one play. Later turns are those from the second on: a first turn has no worker to
/// come back to and no history to find in a cache.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sums {
    /// Turns played.
    pub turns: usize,
    /// Turns that failed; they count in nothing below.
    pub errors: usize,
    /// Prompt tokens.
    pub prompt_tokens: usize,
    /// Those of them that came from a cache.
    pub cached_tokens: usize,
    /// Later turns.
    pub later: usize,
    /// Prompt tokens of later turns, and those of them that came from a cache.
    pub later_tokens: (usize, usize),
    /// Later turns on the worker of the turn before.
    pub same_worker: usize,
    /// Mean time to the first token of later turns.
    pub first_token: Option<Duration>,
}

impl Sums {
    /// Adds up `turns`.
    #[must_use]
    pub fn of(turns: &[Turn]) -> Self {
        let mut sums = Self { turns: turns.len(), ..Self::default() };
        let mut waits = Vec::new();
        for turn in turns {
            if turn.error.is_some() {
                sums.errors += 1;
                continue;
            }
            sums.prompt_tokens += turn.prompt_tokens;
            sums.cached_tokens += turn.cached_tokens;
            if turn.number > 1 {
                sums.later += 1;
                sums.later_tokens.0 += turn.prompt_tokens;
                sums.later_tokens.1 += turn.cached_tokens;
                sums.same_worker += usize::from(turn.landing == Landing::Pinned);
                waits.extend(turn.first_token);
            }
        }
        let count = u32::try_from(waits.len()).unwrap_or(u32::MAX);
        sums.first_token = waits.iter().sum::<Duration>().checked_div(count);
        sums
    }

    /// Prompt tokens the engines had to read.
    #[must_use]
    pub fn read_tokens(&self) -> usize {
        self.prompt_tokens.saturating_sub(self.cached_tokens)
    }
}

/// How many turns each worker answered.
#[must_use]
pub fn by_worker(turns: &[Turn]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for worker in turns.iter().filter_map(|turn| turn.worker.as_deref()) {
        *counts.entry(worker).or_insert(0) += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(number: usize, landing: Landing, millis: u64) -> Turn {
        Turn {
            conversation: 0,
            number,
            key: None,
            worker: None,
            landing,
            prompt_tokens: 100,
            cached_tokens: 40,
            first_token: Some(Duration::from_millis(millis)),
            error: None,
        }
    }

    #[test]
    fn first_turns_and_failures_count_only_where_they_should() {
        let failed = Turn { error: Some("status 503".to_owned()), ..turn(4, Landing::Unknown, 1) };
        let sums = Sums::of(&[
            turn(1, Landing::New, 900),
            turn(2, Landing::Pinned, 100),
            turn(3, Landing::Moved, 300),
            failed,
        ]);
        assert_eq!((sums.turns, sums.errors, sums.later, sums.same_worker), (4, 1, 2, 1));
        assert_eq!((sums.prompt_tokens, sums.cached_tokens), (300, 120));
        assert_eq!(sums.later_tokens, (200, 80));
        assert_eq!(sums.first_token, Some(Duration::from_millis(200)));
        assert_eq!(Sums::of(&[]).first_token, None);
    }

    #[test]
    fn turns_are_counted_by_worker() {
        let by = |worker: Option<&str>| Turn {
            worker: worker.map(str::to_owned),
            ..turn(1, Landing::New, 1)
        };
        let turns = [by(Some("b")), by(Some("a")), by(None), by(Some("b"))];
        assert_eq!(by_worker(&turns).into_iter().collect::<Vec<_>>(), [("a", 1), ("b", 2)]);
    }
}
