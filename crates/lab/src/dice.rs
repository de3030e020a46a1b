//! A small seeded number source: one seed always gives the same text and the same order of play.

use std::convert::Infallible;

use rand::TryRng;

/// Deals numbers that depend on the seed alone (the `SplitMix64` step).
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// Dice that always fall the same way for one seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, or 0 if there is none. The slight bias of a remainder is harmless here.
    pub fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.roll() % bound).unwrap_or(0)
    }

    /// One of `choices`.
    pub fn pick<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        let at = self.below(choices.len());
        choices.get(at).copied().unwrap_or_default()
    }

    /// Puts `items` in an order that only the seed decides.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

/// The same numbers for whoever asks for dice of the `rand` crate, such as a policy.
impl TryRng for Dice {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        // The upper half is the better mixed one.
        Ok(u32::try_from(self.roll() >> 32).unwrap_or_default())
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(self.roll())
    }

    fn try_fill_bytes(&mut self, to: &mut [u8]) -> Result<(), Infallible> {
        for chunk in to.chunks_mut(8) {
            for (byte, rolled) in chunk.iter_mut().zip(self.roll().to_le_bytes()) {
                *byte = rolled;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_one_order_and_nothing_lost() {
        let deal = |seed| {
            let mut items: Vec<u32> = (0..50).collect();
            Dice::new(seed).shuffle(&mut items);
            items
        };
        assert_eq!(deal(7), deal(7));
        assert_ne!(deal(7), deal(8));
        let mut sorted = deal(7);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..50).collect::<Vec<_>>());
    }

    #[test]
    fn nothing_to_choose_from_is_not_a_crash() {
        assert_eq!(Dice::new(1).below(0), 0);
        assert_eq!(Dice::new(1).pick(&[]), "");
    }
}
