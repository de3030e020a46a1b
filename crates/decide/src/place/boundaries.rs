//! `--cache-boundaries`: token positions at which engines keep the state of what they have read.

/// Ascending positions, counted from 1. As plain as a number, so that rules that hold some stay so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boundaries {
    at: [u32; Self::MOST],
    count: usize,
}

impl Boundaries {
    /// How many there may be.
    pub const MOST: usize = 32;

    /// None at all.
    pub const NONE: Self = Self { at: [0; Self::MOST], count: 0 };

    /// These positions; `None` unless they ascend from 1 or more and are at most [`Self::MOST`].
    #[must_use]
    pub fn new(positions: &[u32]) -> Option<Self> {
        let ascend = positions.first().is_none_or(|first| *first > 0)
            && positions.is_sorted_by(|a, b| a < b);
        let mut all = Self::NONE;
        all.at.get_mut(..positions.len()).filter(|_| ascend)?.copy_from_slice(positions);
        all.count = positions.len();
        Some(all)
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> &[u32] {
        self.at.get(..self.count).unwrap_or_default()
    }

    /// Those that a prompt of so many tokens reaches.
    #[must_use]
    pub fn reached(&self, tokens: usize) -> &[u32] {
        let all = self.all();
        let count = all.partition_point(|at| *at as usize <= tokens);
        all.get(..count).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_ascend_from_one_and_are_few() {
        for bad in [&[0][..], &[0, 5], &[5, 5], &[5, 4], &[1; 33]] {
            assert_eq!(Boundaries::new(bad), None, "{bad:?}");
        }
        let many: Vec<u32> = (1..34).collect();
        assert!(Boundaries::new(&many).is_none() && Boundaries::new(&many[..32]).is_some());
        assert_eq!(Boundaries::new(&[]), Some(Boundaries::NONE));
    }

    #[test]
    fn a_prompt_reaches_those_up_to_its_length() {
        let boundaries = Boundaries::new(&[4, 8, 100]).unwrap();
        for (tokens, reached) in
            [(0, &[][..]), (3, &[]), (4, &[4]), (99, &[4, 8]), (100, &[4, 8, 100])]
        {
            assert_eq!(boundaries.reached(tokens), reached, "{tokens}");
        }
    }
}
