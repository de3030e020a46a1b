//! The work that conversations placed on a worker lately are expected to bring.
//!
//! Turns of a conversation come one by one, so what is in flight says little about how many
//! conversations live where: four engines may each look idle while one of them owns them all.

use std::sync::atomic::{AtomicU64, Ordering};

/// Every count halves when a step of this many milliseconds (17 minutes) begins: a conversation
/// that has been silent for an hour is hardly one any more.
const STEP_BITS: u32 = 20;

/// Expected tokens, fading. The step of the last change stands in the upper half, the tokens in
/// the lower.
#[derive(Debug, Default)]
pub struct Placed(AtomicU64);

impl Placed {
    /// Tokens expected at `now`, in milliseconds on the caller's clock.
    #[inline]
    #[must_use]
    pub fn tokens(&self, now: u64) -> u32 {
        match self.0.load(Ordering::Relaxed) {
            was if was >> 32 == step(now) => was as u32,
            was => at(was, step(now)) as u32,
        }
    }

    /// A conversation was placed here.
    pub fn add(&self, tokens: u32, now: u64) {
        self.change(now, |have| have.saturating_add(tokens));
    }

    /// It was not placed here after all.
    pub fn take(&self, tokens: u32, now: u64) {
        self.change(now, |have| have.saturating_sub(tokens));
    }

    fn change(&self, now: u64, to: impl Fn(u32) -> u32) {
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |was| {
            let have = at(was, step(now));
            Some((have & !u64::from(u32::MAX)) | u64::from(to(have as u32)))
        });
    }
}

const fn step(now: u64) -> u64 {
    now >> STEP_BITS
}

/// What `was` has become in step `now`. A clock read a little earlier never turns it back.
fn at(was: u64, now: u64) -> u64 {
    let then = was >> 32;
    let steps = now.saturating_sub(then).min(32);
    let tokens = (was & u64::from(u32::MAX)) >> steps;
    (then.max(now) << 32) | tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_halves_with_every_step_and_a_late_clock_changes_nothing() {
        const STEP: u64 = 1 << STEP_BITS;
        let placed = Placed::default();
        placed.add(1000, 5 * STEP);
        placed.add(24, 5 * STEP + 9);
        assert_eq!(placed.tokens(5 * STEP), 1024);
        assert_eq!(placed.tokens(7 * STEP + 1), 256);
        placed.take(56, 7 * STEP);
        assert_eq!((placed.tokens(7 * STEP), placed.tokens(6 * STEP)), (200, 200));
        placed.take(500, 6 * STEP);
        assert_eq!((placed.tokens(7 * STEP), placed.tokens(90 * STEP)), (0, 0));
    }
}
