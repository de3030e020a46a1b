//! What a decision may know of a worker: who it is and how it fares right now.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use load::{Charge, Load};
use placed::Placed;

pub mod health;
pub mod load;
pub mod placed;

/// A worker's interned identity. Ids are never reused within a process, so a pin to a worker that
/// is gone can never be taken for a pin to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId(pub u32);

/// The part of a request a worker serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Leg {
    /// Prefill and decode in one worker.
    Regular,
    /// Prefill only.
    Prefill,
    /// Decode only.
    Decode,
}

impl Leg {
    /// The `worker_type` label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Regular => "regular",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }

    /// The letter that names the leg inside a logged key: `s`ingle, `p`refill, `d`ecode.
    #[must_use]
    pub const fn letter(self) -> char {
        match self {
            Self::Regular => 's',
            Self::Prefill => 'p',
            Self::Decode => 'd',
        }
    }
}

/// One worker as decisions see it. Counts and states are live: a snapshot of the fleet shares them
/// with every other snapshot.
#[derive(Debug)]
pub struct Worker {
    /// Interned identity.
    pub id: WorkerId,
    /// The address as registered; metrics, logs and `x-smg-routed-worker-id` show it.
    pub url: Box<str>,
    /// What it serves.
    pub leg: Leg,
    healthy: AtomicBool,
    in_flight: AtomicU32,
    keys_in_flight: AtomicU32,
    processed: AtomicU64,
    load: Load,
    placed: Placed,
}

impl Worker {
    /// A worker that has not passed a health check yet.
    #[must_use]
    pub fn new(id: WorkerId, url: impl Into<Box<str>>, leg: Leg) -> Self {
        Self {
            id,
            url: url.into(),
            leg,
            healthy: AtomicBool::new(false),
            in_flight: AtomicU32::new(0),
            keys_in_flight: AtomicU32::new(0),
            processed: AtomicU64::new(0),
            load: Load::default(),
            placed: Placed::default(),
        }
    }

    /// Whether a request may be sent there (000, "Reuse and Failover": available).
    #[must_use]
    pub fn available(&self) -> bool {
        self.healthy()
    }

    /// Whether health checks pass.
    #[must_use]
    pub fn healthy(&self) -> bool {
        self.healthy.load(Ordering::Relaxed)
    }

    /// Sets what the health checks say.
    pub fn set_healthy(&self, healthy: bool) {
        self.healthy.store(healthy, Ordering::Relaxed);
    }

    /// Requests of this gateway in flight there, from choice to the last byte of the answer.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Distinct routing keys with requests in flight there; what `min_group` balances.
    #[must_use]
    pub fn keys_in_flight(&self) -> u32 {
        self.keys_in_flight.load(Ordering::Relaxed)
    }

    /// Requests ever given to it; breaks ties.
    #[must_use]
    pub fn processed(&self) -> u64 {
        self.processed.load(Ordering::Relaxed)
    }

    /// What its engine reported, and what was sent there since.
    #[must_use]
    pub const fn load(&self) -> &Load {
        &self.load
    }

    /// What conversations placed there lately are expected to bring.
    #[must_use]
    pub const fn placed(&self) -> &Placed {
        &self.placed
    }

    /// A request was given to it; `tokens` is the length of its prompt if that is known.
    pub fn begin(&self, tokens: Option<u32>) -> Charge {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        self.processed.fetch_add(1, Ordering::Relaxed);
        self.load.charge(tokens)
    }

    /// That request ended. Pairs with exactly one [`Self::begin`].
    pub fn end(&self, charge: Charge) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.load.discharge(charge);
    }

    /// A key has its first request in flight there.
    pub fn key_begins(&self) -> u32 {
        self.keys_in_flight.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// A key has no request in flight there any more.
    pub fn key_ends(&self) -> u32 {
        self.keys_in_flight.fetch_sub(1, Ordering::Relaxed) - 1
    }
}
