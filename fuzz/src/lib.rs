//! Hostile bytes for whatever reads bytes of strangers (docs/fuzzing.md).
//!
//! Inputs are made out of a target's corpus by a few random changes, so that they get past the first
//! check, and one in ten is noise. The dice have a fixed seed: a run that fails, fails again.

use std::path::Path;
use std::{env, fs};

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any};
use proptest::prop_oneof;
use proptest::sample::Index;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

/// Longest input that is made.
const LONGEST: usize = 1 << 16;

/// Runs a target on its corpus, `corpus/NAME`, and on so many inputs made from it. `FUZZ_TIMES`
/// multiplies their number, `FUZZ_SEED` is another seed than 0.
///
/// # Errors
/// The smallest input found on which the target panics, and what it said; or why the corpus cannot
/// be read.
pub fn run(name: &str, cases: u32, target: impl Fn(&[u8])) -> Result<(), String> {
    let seeds = corpus(name).map_err(|why| format!("the corpus of {name}: {why}"))?;
    seeds.iter().for_each(|seed| target(seed));
    let config = Config {
        cases: cases.saturating_mul(number("FUZZ_TIMES")?.unwrap_or(1)),
        failure_persistence: None,
        ..Config::default()
    };
    let mut seed = [0; 32];
    for (byte, of_seed) in seed.iter_mut().zip(number("FUZZ_SEED")?.unwrap_or(0).to_le_bytes()) {
        *byte = of_seed;
    }
    let dice = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let ran = TestRunner::new_with_rng(config, dice).run(&inputs(seeds), |input| {
        target(&input);
        Ok(())
    });
    ran.map_err(|error| match error {
        TestError::Fail(why, input) => {
            format!("{name}: {why}; on b\"{}\", which belongs in its corpus", input.escape_ascii())
        }
        TestError::Abort(why) => format!("{name}: {why}"),
    })
}

/// The files of a corpus, in the order of their names.
fn corpus(name: &str) -> std::io::Result<Vec<Vec<u8>>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let entries = fs::read_dir(folder)?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    paths.sort();
    paths.into_iter().map(fs::read).collect()
}

fn number(name: &str) -> Result<Option<u32>, String> {
    let Ok(typed) = env::var(name) else { return Ok(None) };
    typed.parse().map(Some).map_err(|_| format!("{name} {typed}: expected a whole number"))
}

/// One change of an input.
#[derive(Clone, Debug)]
enum Change {
    /// One byte becomes another.
    Byte(Index, u8),
    /// Bytes come in.
    Insert(Index, Vec<u8>),
    /// Bytes go.
    Remove(Index, usize),
    /// A piece of another seed comes in.
    Borrow { to: Index, seed: Index, from: Index, length: usize },
    /// A piece comes again, as often.
    Repeat { at: Index, length: usize, times: usize },
    /// The rest goes.
    Cut(Index),
}

fn inputs(seeds: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let place = any::<Index>;
    let telling = proptest::sample::select(b"{}[]\":,\\\n\r -=\0\xff".to_vec());
    let change = prop_oneof![
        (place(), prop_oneof![telling, any::<u8>()]).prop_map(|(at, byte)| Change::Byte(at, byte)),
        (place(), vec(any::<u8>(), 1..6)).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        (place(), 1..40_usize).prop_map(|(at, length)| Change::Remove(at, length)),
        (place(), place(), place(), 1..60_usize)
            .prop_map(|(to, seed, from, length)| { Change::Borrow { to, seed, from, length } }),
        (place(), 1..20_usize, 1..200_usize)
            .prop_map(|(at, length, times)| { Change::Repeat { at, length, times } }),
        place().prop_map(Change::Cut),
    ];
    let changed = (place(), vec(change, 1..8), Just(seeds)).prop_map(|(seed, changes, seeds)| {
        let mut input = one_of(&seeds, seed).to_vec();
        changes.iter().for_each(|change| change.apply(&mut input, &seeds));
        input.truncate(LONGEST);
        input
    });
    prop_oneof![9 => changed, 1 => vec(any::<u8>(), 0..300)]
}

fn one_of(seeds: &[Vec<u8>], which: Index) -> &[u8] {
    seeds.get(which.index(seeds.len().max(1))).map_or(&[], Vec::as_slice)
}

/// A piece of these bytes; shorter at their end.
fn piece(bytes: &[u8], at: Index, length: usize) -> &[u8] {
    let rest = bytes.get(at.index(bytes.len() + 1)..).unwrap_or_default();
    rest.get(..length).unwrap_or(rest)
}

impl Change {
    fn apply(&self, input: &mut Vec<u8>, seeds: &[Vec<u8>]) {
        let insert = |input: &mut Vec<u8>, at: Index, bytes: &[u8]| {
            let at = at.index(input.len() + 1);
            input.splice(at..at, bytes.iter().copied());
        };
        match self {
            Self::Byte(at, new) => {
                let at = at.index(input.len().max(1));
                input.get_mut(at).into_iter().for_each(|byte| *byte = *new);
            }
            Self::Insert(at, bytes) => insert(input, *at, bytes),
            Self::Remove(at, length) => {
                let at = at.index(input.len() + 1);
                input.drain(at..input.len().min(at + length));
            }
            Self::Borrow { to, seed, from, length } => {
                insert(input, *to, piece(one_of(seeds, *seed), *from, *length));
            }
            Self::Repeat { at, length, times } => {
                let again = piece(input, *at, *length).repeat(*times);
                insert(input, *at, &again);
            }
            Self::Cut(at) => input.truncate(at.index(input.len() + 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_panics_is_found_made_small_and_found_again() {
        let fails =
            || run("keys", 2000, |input| assert!(!input.contains(&b'{'), "a brace")).unwrap_err();
        let said = fails();
        assert!(said.contains("a brace") && said.contains("keys"), "{said}");
        assert_eq!(said, fails());
    }

    #[test]
    fn a_target_without_a_corpus_is_no_target() {
        assert!(run("nothing", 1, |_| {}).unwrap_err().contains("the corpus of nothing"));
    }
}
