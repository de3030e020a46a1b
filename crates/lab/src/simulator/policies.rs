//! The policies that are played. A new one is a line in [`POLICIES`].

use std::fmt;
use std::sync::Arc;

use smg_decide::place::cache_aware::{Kind, Params};
use smg_decide::place::{
    Assignment, Boundaries, Bucket, BucketRules, CacheAware, ConsistentHashing, ExpectedWait,
    LeastLoad, Manual, Passthrough, Policy, PowerOfTwo, PrefixHash, PrefixRules, Random,
    RoundRobin,
};

/// A policy, and what its choices can be held to.
pub(super) struct Entry {
    /// Makes it for one model; `manual` places by the mode.
    pub(super) make: fn(Assignment) -> Arc<dyn Policy>,
    pub(super) law: Law,
}

impl fmt::Debug for Entry {
    /// Without the function's address, which differs from run to run.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.law.fmt(f)
    }
}

/// What can be said of a choice beyond that the worker is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Law {
    /// Nothing.
    Any,
    /// One after the other over the available ones in list order; only used proposals count.
    Cycle,
    /// The first available one in list order.
    First,
    /// By the assignment mode.
    Mode,
    /// A key goes where it went when the same workers were available. One that is lost moves its
    /// own keys only, one that comes takes keys to itself only (000, "Scoping": the same placement
    /// on every replica that sees the same workers as available).
    Ring,
}

/// All there are.
pub(super) const POLICIES: &[Entry] = &[
    Entry { make: |_| Arc::new(RoundRobin::default()), law: Law::Cycle },
    Entry { make: |_| Arc::new(Random), law: Law::Any },
    Entry { make: |_| Arc::new(Passthrough), law: Law::First },
    Entry { make: |_| Arc::new(PowerOfTwo::new(WAIT)), law: Law::Any },
    // A bound on waiting requests would let it refuse where workers are available.
    Entry { make: |_| Arc::new(LeastLoad::new(WAIT, None)), law: Law::Any },
    Entry { make: |_| Arc::new(PrefixHash::new(PREFIX)), law: Law::Any },
    Entry { make: |_| Arc::new(ConsistentHashing::default()), law: Law::Ring },
    Entry { make: |_| Arc::new(Bucket::new(BUCKET)), law: Law::Any },
    Entry { make: |_| Arc::new(CacheAware::new(Params::default())), law: Law::Any },
    Entry { make: |_| Arc::new(CacheAware::new(by_heads())), law: Law::Any },
    Entry { make: |mode| Arc::new(Manual::new(mode)), law: Law::Mode },
];

/// `--cache-index hash`.
fn by_heads() -> Params {
    let boundaries = Boundaries::new(&[8, 16, 32]).unwrap_or(Boundaries::NONE);
    Params { kind: Kind::Hash { boundaries, ttl_secs: 30 }, ..Params::default() }
}

const WAIT: ExpectedWait =
    ExpectedWait { kv_pressure_weight: 0.5, default_throughput: 1000.0, mean_prefill_tokens: 1000 };
const PREFIX: PrefixRules =
    PrefixRules { tokens: 20, boundaries: Boundaries::NONE, load_factor: 1.25, abs_threshold: 2 };
const BUCKET: BucketRules = BucketRules { interval: 5000, abs_threshold: 64, rel_threshold: 1.5 };
