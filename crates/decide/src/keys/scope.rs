//! A scoped key as the pin table stores it: sixteen bytes, however long the key (design, "A pin").

use std::fmt;
use std::hash::Hasher as _;

use siphasher::sip128::{Hash128, Hasher128 as _, SipHasher13};

use crate::fleet::Leg;

/// What a pin belongs to besides its key (000, "Scoping").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope<'a> {
    /// The model, for the override; the `manual` map is not scoped by model.
    pub model: Option<&'a str>,
    /// Prefill and decode pins are independent.
    pub leg: Leg,
}

/// A keyed 128-bit hash of scope and key. The secret keeps clients from aiming at collisions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyHash([u32; 4]);

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d] = self.0;
        write!(f, "{a:08x}{b:08x}{c:08x}{d:08x}")
    }
}

impl KeyHash {
    /// One word, for choosing a shard.
    #[must_use]
    pub const fn low(self) -> u32 {
        let [low, ..] = self.0;
        low
    }

    /// The four words, to be kept.
    #[must_use]
    pub const fn words(self) -> [u32; 4] {
        self.0
    }

    /// A hash that was kept.
    #[must_use]
    pub const fn from_words(words: [u32; 4]) -> Self {
        Self(words)
    }

    /// Two other words, for a place within the shard.
    #[must_use]
    pub const fn high(self) -> u64 {
        let [_, _, a, b] = self.0;
        (a as u64) << 32 | b as u64
    }
}

/// Turns scoped keys into hashes, with a secret drawn once at start.
#[derive(Clone, Debug)]
pub struct Hashing {
    secret: [u8; 16],
}

impl Hashing {
    /// A hashing with this secret; equal secrets give equal hashes.
    #[must_use]
    pub const fn new(secret: [u8; 16]) -> Self {
        Self { secret }
    }

    /// The secret, to be kept beside the hashes.
    #[must_use]
    pub const fn secret(&self) -> [u8; 16] {
        self.secret
    }

    /// The hash of `key` in `scope`.
    #[must_use]
    pub fn hash(&self, scope: Scope<'_>, key: &[u8]) -> KeyHash {
        let mut hasher = SipHasher13::new_with_key(&self.secret);
        // Lengths go in front so that ("ab", "c") and ("a", "bc") differ.
        match scope.model {
            Some(model) => {
                hasher.write_u64(model.len() as u64);
                hasher.write(model.as_bytes());
            }
            None => hasher.write_u64(u64::MAX),
        }
        hasher.write_u8(scope.leg as u8);
        hasher.write(key);
        let Hash128 { h1, h2 } = hasher.finish128();
        KeyHash([low(h1), high(h1), low(h2), high(h2)])
    }
}

const fn low(word: u64) -> u32 {
    (word & 0xffff_ffff) as u32
}

const fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(model: Option<&str>, leg: Leg) -> Scope<'_> {
        Scope { model, leg }
    }

    #[test]
    fn model_leg_and_key_each_matter() {
        let hashing = Hashing::new([7; 16]);
        let all = [
            hashing.hash(scope(Some("ab"), Leg::Regular), b"c"),
            hashing.hash(scope(Some("a"), Leg::Regular), b"bc"),
            hashing.hash(scope(Some("a"), Leg::Prefill), b"bc"),
            hashing.hash(scope(Some("a"), Leg::Decode), b"bc"),
            hashing.hash(scope(None, Leg::Regular), b"bc"),
            Hashing::new([8; 16]).hash(scope(Some("ab"), Leg::Regular), b"c"),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(all.iter().skip(i + 1).all(|b| a != b), "{i}");
        }
        assert_eq!(hashing.hash(scope(Some("ab"), Leg::Regular), b"c"), all[0]);
    }
}
