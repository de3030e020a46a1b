//! What a decision may know of a worker: who it is and how it fares right now.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use breaker::{Breaker, Outcome, State};
use load::{Charge, Load};
use placed::Placed;

pub mod breaker;
pub mod health;
pub mod load;
pub mod overload;
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

/// A breaker after it was told something, and the states it turned from and to.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    /// As it stands now.
    pub breaker: Breaker,
    /// From and to, if it turned.
    pub turned: Option<(State, State)>,
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
    vetoed: AtomicBool,
    rules: breaker::Rules,
    breaker: Mutex<Breaker>,
    /// Whether the breaker has anything to remember; when not, nobody has to lock it.
    troubled: AtomicBool,
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
            vetoed: AtomicBool::new(false),
            rules: breaker::Rules::OFF,
            breaker: Mutex::default(),
            troubled: AtomicBool::new(false),
            in_flight: AtomicU32::new(0),
            keys_in_flight: AtomicU32::new(0),
            processed: AtomicU64::new(0),
            load: Load::default(),
            placed: Placed::default(),
        }
    }

    /// The same with a circuit breaker.
    #[must_use]
    pub fn guarded(self, rules: breaker::Rules) -> Self {
        Self { rules, ..self }
    }

    /// Whether a request may be sent there (000, "Reuse and Failover"): healthy, its breaker not
    /// open, not vetoed by overload protection. `now` is in milliseconds on the caller's clock.
    #[must_use]
    pub fn available(&self, now: u64) -> bool {
        self.healthy()
            && !self.vetoed.load(Ordering::Relaxed)
            && (!self.troubled.load(Ordering::Relaxed) || self.lock().admits(&self.rules, now))
    }

    /// Whether it would be available but for overload protection.
    #[must_use]
    pub fn only_vetoed(&self, now: u64) -> bool {
        self.vetoed()
            && self.healthy()
            && (!self.troubled.load(Ordering::Relaxed) || self.lock().admits(&self.rules, now))
    }

    /// Whether overload protection keeps requests away from it.
    #[must_use]
    pub fn vetoed(&self) -> bool {
        self.vetoed.load(Ordering::Relaxed)
    }

    /// Sets what overload protection says.
    pub fn set_vetoed(&self, vetoed: bool) {
        self.vetoed.store(vetoed, Ordering::Relaxed);
    }

    /// Its breaker as it stands.
    #[must_use]
    pub fn breaker(&self) -> Breaker {
        *self.lock()
    }

    /// Tells the breaker how an attempt ended; `None` when that changed nothing worth showing.
    pub fn record(&self, outcome: Outcome, now: u64) -> Option<Told> {
        let fine = outcome != Outcome::Failure && !self.troubled.load(Ordering::Relaxed);
        if fine {
            return None;
        }
        let mut breaker = self.lock();
        let before = breaker.state;
        breaker.record(outcome, &self.rules, now);
        self.troubled.store(breaker.is_troubled(), Ordering::Relaxed);
        let turned = (before != breaker.state).then_some((before, breaker.state));
        Some(Told { breaker: *breaker, turned })
    }

    fn lock(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// That request passes the breaker; `Some` if it is a probe, to be given back with
    /// [`Self::release`]. An open breaker whose time is over turns half open.
    pub fn pass(&self, now: u64) -> Option<Told> {
        if !self.troubled.load(Ordering::Relaxed) {
            return None;
        }
        let mut breaker = self.lock();
        let before = breaker.state;
        let probe = breaker.pass(&self.rules, now);
        let turned = (before != breaker.state).then_some((before, breaker.state));
        probe.then_some(Told { breaker: *breaker, turned })
    }

    /// A probe ended.
    pub fn release(&self) {
        let mut breaker = self.lock();
        breaker.release();
        self.troubled.store(breaker.is_troubled(), Ordering::Relaxed);
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

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: breaker::Rules =
        breaker::Rules { failures: Some(2), successes: 1, timeout_ms: 100 };

    #[test]
    fn an_open_breaker_a_veto_and_bad_health_each_make_it_unavailable() {
        let worker = Worker::new(WorkerId(1), "http://w", Leg::Regular).guarded(RULES);
        assert!(!worker.available(0));
        worker.set_healthy(true);
        assert!(worker.available(0));
        assert!(!worker.only_vetoed(0));
        worker.set_vetoed(true);
        assert!(!worker.available(0) && worker.only_vetoed(0));
        worker.set_healthy(false);
        assert!(!worker.only_vetoed(0), "it would not be available without the veto");
        worker.set_healthy(true);
        worker.set_vetoed(false);
        assert!(worker.record(Outcome::Failure, 0).unwrap().turned.is_none());
        let told = worker.record(Outcome::Failure, 0).unwrap();
        assert_eq!(told.turned, Some((State::Closed, State::Open)));
        assert!(!worker.available(99) && worker.healthy());
        assert!(worker.available(100));
    }

    #[test]
    fn a_recovered_worker_costs_no_lock_again() {
        let worker = Worker::new(WorkerId(1), "http://w", Leg::Regular).guarded(RULES);
        worker.set_healthy(true);
        let told: Vec<_> = (0..2).filter_map(|_| worker.record(Outcome::Failure, 0)).collect();
        assert_eq!(told.len(), 2);
        let passed = worker.pass(100).unwrap();
        assert_eq!(passed.turned, Some((State::Open, State::HalfOpen)));
        assert!(!worker.available(100), "the one probe is out");
        let told = worker.record(Outcome::Success, 100).unwrap();
        assert_eq!(told.turned, Some((State::HalfOpen, State::Closed)));
        worker.release();
        assert!(worker.pass(100).is_none() && worker.record(Outcome::Success, 100).is_none());
    }
}
