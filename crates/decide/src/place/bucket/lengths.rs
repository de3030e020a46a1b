//! How prompt lengths are spread, and ranges cut from that.
//!
//! Lengths are counted in bins of three per cent: ranges end between bins, and a bin belongs to the
//! range that its middle lies in.

/// Each doubling of the length has two to this many bins.
const BITS: u32 = 5;
const PER_OCTAVE: usize = 1 << BITS;
/// Lengths up to `u32::MAX`; those below [`PER_OCTAVE`] have a bin each.
const BINS: usize = (u32::BITS - BITS + 1) as usize * PER_OCTAVE;
/// Before anything is known, ranges are cut evenly from 0 to here and the last is open.
const FIRST_GUESS: u64 = 4096;

/// Units (characters or tokens) sent, by length of the prompt they belonged to.
#[derive(Debug)]
pub(super) struct Lengths(Box<[u64; BINS]>);

/// The share of all units that prompts shorter than a bin's middle hold; `None` before the first
/// cut.
#[derive(Debug, Default)]
pub(super) struct Ranges(Option<Box<[f64; BINS]>>);

impl Default for Lengths {
    fn default() -> Self {
        Self(Box::new([0; BINS]))
    }
}

const fn bin(length: u32) -> usize {
    let Some(exponent) = length.checked_ilog2() else { return 0 };
    let Some(shift) = exponent.checked_sub(BITS) else { return length as usize };
    // The leading bit and the five after it.
    let mantissa = (length >> shift) as usize;
    shift as usize * PER_OCTAVE + mantissa
}

impl Lengths {
    pub(super) fn add(&mut self, length: u32) {
        if let Some(units) = self.0.get_mut(bin(length)) {
            *units = units.saturating_add(u64::from(length));
        }
    }

    pub(super) fn take(&mut self, length: u32) {
        if let Some(units) = self.0.get_mut(bin(length)) {
            *units = units.saturating_sub(u64::from(length));
        }
    }

    pub(super) fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum, units| units.saturating_add(sum))
    }

    /// Ranges that hold equal shares of what was counted.
    pub(super) fn ranges(&self) -> Ranges {
        let total = self.total().max(1) as f64;
        let mut below = 0.0;
        let mut middles = Box::new([0.0; BINS]);
        for (middle, units) in middles.iter_mut().zip(self.0.iter()) {
            let share = *units as f64 / total;
            *middle = below + share / 2.0;
            below += share;
        }
        Ranges(Some(middles))
    }
}

impl Ranges {
    /// The range a length belongs to when there are `count`.
    pub(super) fn range(&self, length: u32, count: usize) -> usize {
        let range = match &self.0 {
            None => (u64::from(length) * count as u64 / FIRST_GUESS) as usize,
            Some(middles) => {
                let share = middles.get(bin(length)).copied().unwrap_or(1.0);
                (share * count as f64) as usize
            }
        };
        range.min(count.saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bins_are_in_order_without_gaps_and_three_per_cent_wide() {
        let mut last = 0;
        for length in 0..100_000 {
            let this = bin(length);
            assert!(this == last || this == last + 1, "{length}: {last} {this}");
            last = this;
        }
        for length in [64, 1000, 1 << 20, u32::MAX / 2] {
            assert!(bin(length) < bin(length + length / 30 + 1), "{length}");
        }
        assert_eq!(bin(u32::MAX), BINS - 1);
    }

    #[test]
    fn the_first_guess_is_even_and_open_at_the_end() {
        let ranges = Ranges::default();
        for (length, range) in [(1, 0), (1023, 0), (1024, 1), (4095, 3), (4096, 3), (u32::MAX, 3)] {
            assert_eq!(ranges.range(length, 4), range, "{length}");
        }
        assert_eq!(ranges.range(9, 0), 0);
    }

    proptest! {
        #[test]
        fn shares_are_equal_but_for_one_bin_and_longer_is_never_lower(
            lengths in proptest::collection::vec(1_u32..20_000, 1..200),
            count in 1_usize..9,
        ) {
            let mut seen = Lengths::default();
            lengths.iter().for_each(|length| seen.add(*length));
            let ranges = seen.ranges();
            let mut shares = vec![0_u64; count];
            for length in &lengths {
                shares[ranges.range(*length, count)] += u64::from(*length);
            }
            let heaviest = *seen.0.iter().max().unwrap();
            let mean = seen.total() / count as u64 + 1;
            prop_assert!(shares.iter().all(|share| *share <= mean + heaviest), "{shares:?}");
            let mut sorted = lengths.clone();
            sorted.sort_unstable();
            let order: Vec<_> = sorted.iter().map(|length| ranges.range(*length, count)).collect();
            prop_assert!(order.is_sorted() && order.iter().all(|range| *range < count));
        }
    }
}
