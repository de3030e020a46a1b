//! Rendezvous hashing: of the workers that are ready, a key belongs to the one that scores highest
//! for it. Nothing is remembered, so replicas that see the same workers agree without a word, and a
//! worker that comes or goes moves no keys but its own (004, "Staying sticky across gateway plugin
//! replicas").

use std::hash::Hasher as _;

use siphasher::sip::SipHasher13;

/// Not a secret, but part of the contract between replicas and releases: another one moves nearly
/// every key.
const KEY: [u8; 16] = *b"smg rendezvous 1";

/// What a key of a model brings to every score.
#[must_use]
pub fn seed(model: &str, key: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new_with_key(&KEY);
    // The length goes in front so that ("ab", "c") and ("a", "bc") differ.
    hasher.write(&(model.len() as u64).to_le_bytes());
    hasher.write(model.as_bytes());
    hasher.write(key);
    hasher.finish()
}

/// What a worker brings to every score, by its address as registered.
#[must_use]
pub fn mark(url: &str) -> u64 {
    let mut hasher = SipHasher13::new_with_key(&KEY);
    hasher.write(url.as_bytes());
    hasher.finish()
}

/// How well a worker suits a key. Both are well mixed already; what is mixed here once more is their
/// sum, so that the order of workers for one key says nothing about that for another.
#[must_use]
pub const fn score(seed: u64, mark: u64) -> u64 {
    let mut mixed = seed.wrapping_add(mark).wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SEED: u64 = 0x8088_d67e_bbff_65b3;
    const MARK: u64 = 0x8a36_4d00_33d9_b0ec;
    const SCORE: u64 = 0x04e2_d309_95da_6409;

    fn owner<'u>(urls: &'u [String], key: &str) -> &'u str {
        let seed = seed("m", key.as_bytes());
        urls.iter().max_by_key(|url| score(seed, mark(url))).unwrap()
    }

    fn shares(urls: &[String], keys: u32) -> Vec<f64> {
        let mut counts = vec![0_u32; urls.len()];
        for key in 0..keys {
            let owner = owner(urls, &format!("agent-run-{key}"));
            counts[urls.iter().position(|url| url == owner).unwrap()] += 1;
        }
        let mean = f64::from(keys) / urls.len() as f64;
        counts.into_iter().map(|count| f64::from(count) / mean).collect()
    }

    #[test]
    fn scores_are_a_contract_between_replicas_and_releases() {
        assert_eq!(seed("m", b"agent-run-8f3c2a"), SEED);
        assert_eq!(mark("http://10.0.0.1:8000"), MARK);
        assert_eq!(score(SEED, MARK), SCORE);
        assert_ne!(seed("ab", b"c"), seed("a", b"bc"));
    }

    #[test]
    fn addresses_that_differ_in_one_digit_share_alike() {
        for (count, format) in [(4, "http://127.0.0.1:800"), (8, "http://10.0.0."), (2, "http://w")]
        {
            let urls: Vec<_> = (1..=count).map(|n| format!("{format}{n}")).collect();
            for share in shares(&urls, 60_000) {
                assert!((0.95..1.05).contains(&share), "{format}: {share}");
            }
        }
    }

    #[test]
    fn of_sixteen_workers_the_newest_takes_a_sixteenth() {
        let all: Vec<_> = (0..16).map(|n| format!("http://10.0.0.{n}:8000")).collect();
        let (mut moved, keys) = (0, 100_000);
        for key in 0..keys {
            let key = format!("run-{key}");
            let (before, after) = (owner(&all[..15], &key), owner(&all, &key));
            if before != after {
                assert_eq!(after, all[15]);
                moved += 1;
            }
        }
        assert!(f64::from(moved) / f64::from(keys) < 1.0 / 16.0 + 0.01, "{moved}");
    }

    proptest! {
        #[test]
        fn who_goes_moves_only_its_own_and_order_does_not_matter(
            count in 2_usize..9, gone in 0_usize..9, turn in 0_usize..9, keys in prop::collection::vec(".{1,30}", 20),
        ) {
            let all: Vec<_> = (0..count).map(|n| format!("http://w{n}:8000")).collect();
            let mut rest = all.clone();
            let gone = rest.remove(gone % count);
            let mut turned = all.clone();
            turned.rotate_left(turn % count);
            for key in &keys {
                let before = owner(&all, key);
                prop_assert_eq!(before, owner(&turned, key));
                if before != gone {
                    prop_assert_eq!(before, owner(&rest, key));
                }
            }
        }
    }
}
