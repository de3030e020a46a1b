//! A prompt as a chain of hashes: one for each whole block, two at most for what is left over.
//!
//! Each hash covers everything before it, so whoever holds a link holds all the links above it and
//! the deepest one known is found by bisection. What is left over after the last whole block
//! hangs below it in two levels, whole pieces and then whole steps, so that a prompt is known by
//! its exact end and a longer one that begins with it finds that end again. There are at most 31
//! places on either level, which is what lets a parent name those in use in one word.

use smallvec::SmallVec;
use twox_hash::XxHash3_64;

use super::super::Prompt;

/// Pieces in a block, and the most steps in a piece.
const FAN_OUT: usize = 32;

/// The lengths at which prompts are cut, in units: bytes of text, or tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ruler {
    pub(super) block: usize,
    pub(super) piece: usize,
    pub(super) step: usize,
}

impl Ruler {
    /// Blocks of about `block` bytes; ends are exact to the byte.
    pub(super) fn text(block: usize) -> Self {
        Self::pieces((block / FAN_OUT).max(1))
    }

    /// Pieces of whole pages, not too short to be worth an entry.
    pub(super) fn tokens(page: usize) -> Self {
        const PIECE: usize = 16;
        let page = page.max(1);
        Self::pieces(page * PIECE.div_ceil(page))
    }

    const fn pieces(piece: usize) -> Self {
        Self { block: piece * FAN_OUT, piece, step: piece.div_ceil(FAN_OUT) }
    }
}

/// Which level of the chain a hash belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Block,
    Piece,
    Step,
}

/// The chain's start, before the first byte.
pub(super) const ROOT: u64 = 0;

/// Keyed hashing: a client cannot make prompts collide.
#[derive(Debug)]
pub(super) struct Hashing {
    secret: [u8; 192],
    twist: [u64; 3],
}

impl Hashing {
    pub(super) fn new(seed: u64) -> Self {
        let mut state = seed;
        let mut next = || {
            // SplitMix64: a seed becomes as many well mixed words as are asked for.
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        };
        let mut secret = [0; 192];
        for word in secret.chunks_exact_mut(8) {
            word.copy_from_slice(&next().to_le_bytes());
        }
        Self { secret, twist: [next(), next(), next()] }
    }

    /// The hash of `bytes` below the link `above`.
    pub(super) fn link(&self, above: u64, level: Level, bytes: &[u8]) -> u64 {
        // The secret is longer than the 136 bytes asked for, so this never fails.
        let hash = XxHash3_64::oneshot_with_secret(&self.secret, bytes).unwrap_or_default();
        let [block, piece, step] = self.twist;
        let twist = match level {
            Level::Block => block,
            Level::Piece => piece,
            Level::Step => step,
        };
        // A folded multiplication: both halves of both words reach every bit of the result.
        let wide = u128::from(above ^ twist) * u128::from(hash ^ twist.rotate_left(32));
        (wide as u64) ^ ((wide >> 64) as u64)
    }
}

/// One link below the last whole block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tail {
    pub(super) key: u64,
    pub(super) level: Level,
    /// Its place among its parent's children: how many pieces or steps it spans.
    pub(super) place: u32,
    /// Units from the prompt's start to its end.
    pub(super) end: usize,
}

/// A prompt's links, in order.
#[derive(Clone, Debug)]
pub struct Chain {
    pub(super) units: usize,
    pub(super) blocks: SmallVec<[u64; 16]>,
    pub(super) tails: SmallVec<[Tail; 2]>,
}

impl Chain {
    pub(super) fn of(prompt: Prompt<'_>, ruler: Ruler, hashing: &Hashing) -> Self {
        let mut reader = Reader::new(prompt);
        let units = reader.units();
        let whole = units - units % ruler.block;
        let mut above = ROOT;
        let mut blocks = SmallVec::with_capacity(whole / ruler.block);
        for from in (0..whole).step_by(ruler.block) {
            above = hashing.link(above, Level::Block, reader.bytes(from, from + ruler.block));
            blocks.push(above);
        }
        let mut tails = SmallVec::new();
        let mut from = whole;
        for (level, length) in [(Level::Piece, ruler.piece), (Level::Step, ruler.step)] {
            let count = (units - from) / length;
            if count > 0 {
                let end = from + count * length;
                above = hashing.link(above, level, reader.bytes(from, end));
                tails.push(Tail { key: above, level, place: count as u32, end });
                from = end;
            }
        }
        Self { units, blocks, tails }
    }

    /// A link for each of these lengths, which ascend and lie within the prompt.
    pub(super) fn at(prompt: Prompt<'_>, lengths: &[u32], hashing: &Hashing) -> Self {
        let mut reader = Reader::new(prompt);
        let (mut above, mut from) = (ROOT, 0);
        let link = |to: &u32| {
            let to = *to as usize;
            above = hashing.link(above, Level::Block, reader.bytes(from, to));
            from = to;
            above
        };
        let blocks = lengths.iter().map(link).collect();
        Self { units: Reader::new(prompt).units(), blocks, tails: SmallVec::new() }
    }

    /// How many links there are.
    pub(super) fn len(&self) -> usize {
        self.blocks.len() + self.tails.len()
    }
}

/// Reads a prompt by unit positions, best in order.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    prompt: Prompt<'a>,
    /// The segment last read from and where it begins.
    segment: usize,
    begins: usize,
    scratch: Vec<u8>,
}

impl<'a> Reader<'a> {
    pub(super) const fn new(prompt: Prompt<'a>) -> Self {
        Self { prompt, segment: 0, begins: 0, scratch: Vec::new() }
    }

    /// Length of the whole prompt.
    pub(super) fn units(&self) -> usize {
        match self.prompt {
            Prompt::Unknown => 0,
            Prompt::Tokens(tokens) => tokens.len(),
            Prompt::Text(segments) => {
                let letters: usize = segments.iter().map(|segment| segment.len()).sum();
                letters + segments.len().saturating_sub(1)
            }
        }
    }

    /// The bytes of the units from `from` to `to`.
    pub(super) fn bytes(&mut self, from: usize, to: usize) -> &[u8] {
        match self.prompt {
            Prompt::Unknown => &[],
            Prompt::Tokens(tokens) => {
                self.scratch.clear();
                let wanted = tokens.get(from..to).unwrap_or_default();
                self.scratch.extend(wanted.iter().flat_map(|token| token.to_le_bytes()));
                &self.scratch
            }
            Prompt::Text(segments) => self.text(segments, from, to),
        }
    }

    fn text(&mut self, segments: &'a [&'a str], from: usize, to: usize) -> &[u8] {
        if from < self.begins {
            (self.segment, self.begins) = (0, 0);
        }
        while let Some(segment) = segments.get(self.segment)
            && from > self.begins + segment.len()
        {
            // One more for the space between two segments.
            self.begins += segment.len() + 1;
            self.segment += 1;
        }
        let here = segments.get(self.segment).map_or(&[][..], |segment| segment.as_bytes());
        if let Some(bytes) = here.get(from - self.begins..to - self.begins) {
            return bytes;
        }
        self.scratch.clear();
        let mut rest = here.get(from - self.begins..).unwrap_or_default();
        let mut later = segments.iter().skip(self.segment + 1);
        loop {
            let room = (to - from) - self.scratch.len();
            self.scratch.extend_from_slice(rest.get(..room).unwrap_or(rest));
            match later.next() {
                Some(next) if self.scratch.len() < to - from => {
                    self.scratch.push(b' ');
                    rest = next.as_bytes();
                }
                _ => return &self.scratch,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rulers_reach_every_place() {
        assert_eq!(Ruler::text(1024), Ruler { block: 1024, piece: 32, step: 1 });
        assert_eq!(Ruler::tokens(16), Ruler { block: 512, piece: 16, step: 1 });
        assert_eq!(Ruler::tokens(1).piece, 16);
        assert_eq!(Ruler::tokens(5).piece, 20);
        assert_eq!(Ruler::tokens(1000), Ruler { block: 32_000, piece: 1000, step: 32 });
        for page in 1..3000 {
            let ruler = Ruler::tokens(page);
            assert!((ruler.piece - 1) / ruler.step < FAN_OUT && ruler.piece.is_multiple_of(page));
        }
    }

    #[test]
    fn a_secret_makes_other_hashes() {
        let link = |seed, level| Hashing::new(seed).link(ROOT, level, b"hello");
        assert_ne!(link(1, Level::Block), link(2, Level::Block));
        assert_ne!(link(1, Level::Piece), link(1, Level::Step));
    }

    proptest! {
        /// However the text is cut into segments, it is the joined text that is hashed.
        #[test]
        fn segments_are_joined_by_one_space(parts in prop::collection::vec("[a-c]{0,40}", 0..12)) {
            let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
            let joined = parts.join(" ");
            let (ruler, hashing) = (Ruler::text(32), Hashing::new(3));
            let cut = Chain::of(Prompt::Text(&parts), ruler, &hashing);
            let whole = Chain::of(Prompt::Text(&[&joined]), ruler, &hashing);
            prop_assert_eq!(cut.units, joined.len());
            prop_assert_eq!(&cut.blocks, &whole.blocks);
            prop_assert_eq!(&cut.tails, &whole.tails);
            let mut reader = Reader::new(Prompt::Text(&parts));
            for (from, to) in [(0, joined.len()), (joined.len() / 2, joined.len()), (0, joined.len() / 3)] {
                prop_assert_eq!(reader.bytes(from, to), &joined.as_bytes()[from..to]);
            }
        }
    }
}
