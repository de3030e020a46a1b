//! A sum over the recent past in fixed room: it is kept in slices of time, and the oldest slice is
//! overwritten.

/// Slices that make up the window.
pub(super) const SLICES: usize = 8;

/// What was added in the last [`SLICES`] slices.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally([Slice; SLICES]);

#[derive(Clone, Copy, Debug, Default)]
struct Slice {
    number: u64,
    sum: u64,
}

impl Tally {
    /// Adds to a slice. One that is older than the window lands in the slice that took its place:
    /// a clock read a moment earlier is no reason to lose a charge.
    pub(super) fn add(&mut self, number: u64, amount: u64) {
        let slice = self.slot(number);
        if slice.number < number {
            *slice = Slice { number, sum: 0 };
        }
        slice.sum = slice.sum.saturating_add(amount);
    }

    /// Takes back what was added to a slice, if it is still there.
    pub(super) fn take(&mut self, number: u64, amount: u64) {
        let slice = self.slot(number);
        if slice.number == number {
            slice.sum = slice.sum.saturating_sub(amount);
        }
    }

    /// The sum over the window that ends with this slice.
    pub(super) fn sum(&self, number: u64) -> u64 {
        let recent = |slice: &&Slice| number.saturating_sub(slice.number) < SLICES as u64;
        self.0.iter().filter(recent).fold(0, |sum, slice| slice.sum.saturating_add(sum))
    }

    fn slot(&mut self, number: u64) -> &mut Slice {
        let [first, rest @ ..] = &mut self.0;
        match (number % SLICES as u64) as usize {
            0 => first,
            at => rest.get_mut(at - 1).unwrap_or(first),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_the_sum_of_the_last_slices(
            steps in proptest::collection::vec((0_u64..5, 0_u64..100), 0..60),
        ) {
            let (mut tally, mut all, mut now) = (Tally::default(), Vec::new(), 0);
            for (step, amount) in steps {
                now += step;
                tally.add(now, amount);
                all.push((now, amount));
                let recent = all.iter().filter(|(then, _)| now - then < SLICES as u64);
                prop_assert_eq!(tally.sum(now), recent.map(|(_, amount)| amount).sum::<u64>());
            }
            for (then, amount) in all {
                tally.take(then, amount);
            }
            prop_assert_eq!(tally.sum(now), 0);
        }
    }
}
