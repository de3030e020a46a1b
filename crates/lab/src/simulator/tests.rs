use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use clap::ValueEnum as _;
use rand::Rng;
use smg_decide::keys::KeyUse;
use smg_decide::place::{Ask, Candidates, Policy, Proposal, Reads};

use super::policies::Law;
use super::*;

/// What `./test` plays.
const SEEDS: u64 = 256;

fn first_failure(plan: Plan) -> Option<Box<Failure>> {
    (0..SEEDS).find_map(|seed| plan.play(seed).err())
}

#[test]
fn every_seed_does_what_the_document_says() {
    let plan = Plan::new(STEPS, None);
    let mut sums = Sums::default();
    for seed in 0..SEEDS {
        match plan.play(seed) {
            Ok(more) => sums.add(&more),
            Err(failure) => panic!("{failure}"),
        }
    }
    // What never happened was not tested.
    let rare = [sums.overtaken, sums.swept, sums.displaced];
    assert!(sums.outcomes.iter().chain(&rare).all(|count| *count > 300), "{sums}");
}

#[test]
fn every_rule_that_is_broken_on_purpose_is_noticed() {
    for fault in Fault::value_variants() {
        let failure = first_failure(Plan::new(STEPS, Some(*fault)));
        assert!(failure.is_some(), "{fault:?} went unnoticed");
    }
}

#[test]
fn a_failure_tells_the_rule_the_way_and_the_seed() {
    let failure = first_failure(Plan::new(STEPS, Some(Fault::Threshold))).unwrap();
    assert_eq!(failure.trail.len(), 20);
    let text = failure.to_string();
    for wanted in ["the document", "key_override: true", "ask model", "--fault threshold"] {
        assert!(text.contains(wanted), "no {wanted}: {text}");
    }
    let again = failure.plan.play(failure.seed).unwrap_err();
    assert_eq!(again.to_string(), text);
}

#[test]
fn seeds_differ_and_one_seed_plays_alike() {
    let plan = Plan::new(STEPS, None);
    let sums: Vec<_> = (0..20).map(|seed| plan.play(seed).unwrap()).collect();
    assert!(sums.iter().map(|sums| sums.requests).collect::<BTreeSet<_>>().len() > 10);
    assert!((0..20).map(|seed| plan.play(seed).unwrap()).eq(sums));
}

/// Hashes keys, or panics.
#[derive(Debug)]
enum Stand {
    /// The available worker whose hash with the key is highest: what consistent hashing promises.
    Rendezvous,
    /// The hash modulo the number of available ones: moves nearly all keys with every change.
    Modulo,
    /// By lot.
    Lot,
    Panics,
}

fn hash(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

impl Policy for Stand {
    fn name(&self) -> &'static str {
        "consistent_hashing"
    }

    fn reads(&self) -> Reads {
        Reads::Headers
    }

    fn keys(&self) -> KeyUse {
        KeyUse::Hashes
    }

    fn propose(&self, ask: &Ask<'_>, candidates: &Candidates<'_>, dice: &mut dyn Rng) -> Proposal {
        if let Some(target) = ask.target {
            let at: usize = std::str::from_utf8(target).unwrap().parse().unwrap();
            return Proposal::plain(candidates.available().map(|(at, _)| at).find(|is| *is == at));
        }
        let Some(key) = ask.key else { return Proposal::plain(candidates.any(dice)) };
        let at = match self {
            Self::Rendezvous => {
                let best = candidates.available().max_by_key(|(_, w)| hash((key, w.id)));
                best.map(|(at, _)| at)
            }
            Self::Modulo => candidates.in_turn((hash(key) >> 8) as usize),
            Self::Lot => candidates.any(dice),
            Self::Panics => panic!("no way"),
        };
        Proposal::plain(at)
    }
}

fn ring(policies: &'static [Entry]) -> Option<Box<Failure>> {
    let plan = Plan { steps: STEPS, fault: None, policies };
    (0..32).find_map(|seed| plan.play(seed).err())
}

#[test]
fn hashing_that_moves_only_the_lost_workers_keys_passes() {
    let stand = &[Entry { make: |_| Arc::new(Stand::Rendezvous), law: Law::Ring }];
    let failure = ring(stand);
    assert!(failure.is_none(), "{}", failure.unwrap());
}

#[test]
fn hashing_that_moves_other_keys_is_noticed() {
    let failure = ring(&[Entry { make: |_| Arc::new(Stand::Modulo), law: Law::Ring }]).unwrap();
    assert!(failure.why.starts_with("a key moved from"), "{failure}");
    let failure = ring(&[Entry { make: |_| Arc::new(Stand::Lot), law: Law::Ring }]).unwrap();
    assert!(failure.why.contains("not on one of") || failure.why.contains("moved"), "{failure}");
}

#[test]
fn a_panic_of_the_core_is_a_failure_with_a_seed() {
    let failure = ring(&[Entry { make: |_| Arc::new(Stand::Panics), law: Law::Any }]).unwrap();
    assert_eq!(failure.why, "the core panicked: no way");
}
