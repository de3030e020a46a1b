//! How a policy came to its choice.

/// The story of a choice; its text is the `branch` label of the policy's own counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Branch {
    /// Nothing to tell: the policy has one way only.
    Plain,
    /// `consistent_hashing`: `X-SMG-Target-Worker` named an available worker.
    TargetWorkerHit,
    /// `consistent_hashing`: it named none.
    TargetWorkerMiss,
    /// `consistent_hashing`: the key was hashed onto the ring.
    RoutingKeyHit,
    /// `consistent_hashing`: no key, so any worker.
    RandomFallback,
    /// `prefix_hash`: the ring's worker took it.
    RingHit,
    /// `prefix_hash`: the ring's worker was overloaded.
    LoadBalanceWalk,
    /// `prefix_hash`: neither key nor prompt.
    NoRoutingKey,
    /// `cache_aware`: a worker holds enough of the prompt.
    TreeMatch,
    /// `cache_aware`: no worker does; the shortest expected wait decides.
    ExpectedWaitFallback,
    /// `cache_aware`: the holder is too busy, or gone.
    Spill,
    /// `session_affinity`: the id names an available worker.
    IdHit,
    /// `session_affinity`: the id names none. Counted beside the branch that then decides.
    IdStale,
    /// `session_affinity`: the key's worker is known, and available.
    KeyHit,
    /// `session_affinity`: the shared store had no worker for the key, and has this one now.
    KeyClaimed,
    /// `session_affinity`: the shared store has another worker for the key than this replica meant.
    KeyAdopted,
    /// `session_affinity`: the key's worker is not available, and the key moved for all replicas.
    KeyMoved,
    /// `session_affinity`: the key was hashed onto the ready workers.
    Rendezvous,
    /// `session_affinity`: neither id nor key, so any worker.
    Random,
    /// `session_affinity`: the key's worker had too much to do, and the key moved for all replicas.
    GateLeft,
    /// No candidate was available.
    NoHealthyWorkers,
}

impl Branch {
    /// How `consistent_hashing` may come to its choice.
    pub const CONSISTENT_HASHING: [Self; 5] = [
        Self::TargetWorkerHit,
        Self::TargetWorkerMiss,
        Self::RoutingKeyHit,
        Self::RandomFallback,
        Self::NoHealthyWorkers,
    ];
    /// How `prefix_hash` may.
    pub const PREFIX_HASH: [Self; 4] =
        [Self::RingHit, Self::LoadBalanceWalk, Self::NoRoutingKey, Self::NoHealthyWorkers];
    /// How `cache_aware` may.
    pub const CACHE_AWARE: [Self; 3] = [Self::TreeMatch, Self::ExpectedWaitFallback, Self::Spill];
    /// How `session_affinity` may.
    pub const SESSION_AFFINITY: [Self; 9] = [
        Self::IdHit,
        Self::IdStale,
        Self::KeyHit,
        Self::KeyClaimed,
        Self::KeyAdopted,
        Self::KeyMoved,
        Self::Rendezvous,
        Self::Random,
        Self::GateLeft,
    ];

    /// The metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::TargetWorkerHit => "target_worker_hit",
            Self::TargetWorkerMiss => "target_worker_miss",
            Self::RoutingKeyHit => "routing_key_hit",
            Self::RandomFallback => "random_fallback",
            Self::RingHit => "ring_hit",
            Self::LoadBalanceWalk => "load_balance_walk",
            Self::NoRoutingKey => "no_routing_key",
            Self::TreeMatch => "tree_match",
            Self::ExpectedWaitFallback => "expected_wait_fallback",
            Self::Spill => "spill",
            Self::IdHit => "id_hit",
            Self::IdStale => "id_stale",
            Self::KeyHit => "key_hit",
            Self::KeyClaimed => "key_claimed",
            Self::KeyAdopted => "key_adopted",
            Self::KeyMoved => "key_moved",
            Self::Rendezvous => "rendezvous",
            Self::Random => "random",
            Self::GateLeft => "gate_left",
            Self::NoHealthyWorkers => "no_healthy_workers",
        }
    }
}
