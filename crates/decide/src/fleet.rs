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
///
/// What a choice among a thousand workers reads of each stands first and fits one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Worker {
    load: Load,
    /// Interned identity.
    pub id: WorkerId,
    placed: Placed,
    /// With [`LEAVING`] beside the count, so that whoever ends the last request of a worker that
    /// leaves is told so exactly then.
    in_flight: AtomicU32,
    healthy: AtomicBool,
    vetoed: AtomicBool,
    /// Whether the breaker has anything to remember; when not, nobody has to lock it.
    troubled: AtomicBool,
    /// The address as registered; metrics, logs and `x-smg-routed-worker-id` show it.
    pub url: Box<str>,
    /// What it serves.
    pub leg: Leg,
    breaker: Mutex<Guard>,
    keys_in_flight: AtomicU32,
    processed: AtomicU64,
}

/// The cache line that [`Worker`] promises.
const _: () = assert!(std::mem::offset_of!(Worker, troubled) < 64);

/// A breaker and what it goes by.
#[derive(Debug)]
struct Guard {
    rules: breaker::Rules,
    breaker: Breaker,
}

/// The bit of [`Worker::in_flight`] that is set once the worker is to take no more.
const LEAVING: u32 = 1 << 31;

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
            breaker: Mutex::new(Guard { rules: breaker::Rules::OFF, breaker: Breaker::default() }),
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
        self.set_rules(rules);
        self
    }

    /// Gives its breaker other rules; one that is turned off closes, which is told.
    pub fn set_rules(&self, rules: breaker::Rules) -> Option<Told> {
        let mut guard = self.lock();
        guard.rules = rules;
        let before = guard.breaker.state;
        if rules.failures.is_none() {
            (guard.breaker.state, guard.breaker.run) = (State::Closed, 0);
        }
        self.troubled.store(guard.breaker.is_troubled(), Ordering::Relaxed);
        let breaker = guard.breaker;
        (before != breaker.state).then_some(Told { breaker, turned: Some((before, breaker.state)) })
    }

    /// Whether a request may be sent there (000, "Reuse and Failover"): healthy, its breaker not
    /// open, not vetoed by overload protection. `now` is in milliseconds on the caller's clock.
    #[inline]
    #[must_use]
    pub fn available(&self, now: u64) -> bool {
        self.healthy()
            && !self.vetoed.load(Ordering::Relaxed)
            && (!self.troubled.load(Ordering::Relaxed) || self.admits(now))
    }

    /// Out of line, because a choice asks every worker and hardly any is in trouble.
    #[cold]
    fn admits(&self, now: u64) -> bool {
        self.lock().admits(now)
    }

    /// Whether it would be available but for overload protection.
    #[must_use]
    pub fn only_vetoed(&self, now: u64) -> bool {
        self.vetoed()
            && self.healthy()
            && (!self.troubled.load(Ordering::Relaxed) || self.admits(now))
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
        self.lock().breaker
    }

    /// Tells the breaker how an attempt ended; `None` when that changed nothing worth showing.
    pub fn record(&self, outcome: Outcome, now: u64) -> Option<Told> {
        let fine = outcome != Outcome::Failure && !self.troubled.load(Ordering::Relaxed);
        if fine {
            return None;
        }
        let mut guard = self.lock();
        let Guard { rules, breaker } = &mut *guard;
        let before = breaker.state;
        breaker.record(outcome, rules, now);
        self.troubled.store(breaker.is_troubled(), Ordering::Relaxed);
        let turned = (before != breaker.state).then_some((before, breaker.state));
        Some(Told { breaker: *breaker, turned })
    }

    fn lock(&self) -> MutexGuard<'_, Guard> {
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
        self.in_flight.load(Ordering::Relaxed) & !LEAVING
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
        let mut guard = self.lock();
        let Guard { rules, breaker } = &mut *guard;
        let before = breaker.state;
        let probe = breaker.pass(rules, now);
        let turned = (before != breaker.state).then_some((before, breaker.state));
        probe.then_some(Told { breaker: *breaker, turned })
    }

    /// A probe ended.
    pub fn release(&self) {
        let mut guard = self.lock();
        guard.breaker.release();
        self.troubled.store(guard.breaker.is_troubled(), Ordering::Relaxed);
    }

    /// That request ended. Pairs with exactly one [`Self::begin`]. True if it was the last one of a
    /// worker that leaves.
    pub fn end(&self, charge: Charge) -> bool {
        self.load.discharge(charge);
        self.in_flight.fetch_sub(1, Ordering::AcqRel) == LEAVING | 1
    }

    /// It was removed from the fleet. True if nothing is in flight there; if not, [`Self::end`]
    /// tells when.
    pub fn leave(&self) -> bool {
        self.in_flight.fetch_or(LEAVING, Ordering::AcqRel) & !LEAVING == 0
    }

    /// A key has its first request in flight there.
    pub fn key_begins(&self) -> u32 {
        self.keys_in_flight.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// A key has no request in flight there any more.
    ///
    /// A worker that left and came back under its old id has not seen a key begin whose first request
    /// is still in flight at its former self: the count stops at 0.
    pub fn key_ends(&self) -> u32 {
        let less = |count: u32| count.checked_sub(1);
        let before = self.keys_in_flight.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        before.map_or(0, |before| before - 1)
    }
}

impl Guard {
    const fn admits(&self, now: u64) -> bool {
        self.breaker.admits(&self.rules, now)
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
    fn who_ends_the_last_request_of_a_worker_that_leaves_is_told() {
        let worker = Worker::new(WorkerId(1), "http://w", Leg::Regular);
        let (first, second) = (worker.begin(None), worker.begin(None));
        assert!(!worker.leave());
        assert_eq!(worker.in_flight(), 2);
        assert!(!worker.end(first) && worker.end(second));
        assert!(worker.leave() && worker.in_flight() == 0);
        let idle = Worker::new(WorkerId(1), "http://w", Leg::Regular);
        let charge = idle.begin(None);
        assert!(!idle.end(charge) && idle.leave());
        assert_eq!(idle.key_ends(), 0, "a key of its former self");
    }

    #[test]
    fn a_breaker_that_is_turned_off_closes() {
        let worker = Worker::new(WorkerId(1), "http://w", Leg::Regular).guarded(RULES);
        worker.set_healthy(true);
        for _ in 0..2 {
            worker.record(Outcome::Failure, 0);
        }
        assert!(worker.set_rules(breaker::Rules { timeout_ms: 10, ..RULES }).is_none());
        assert!(!worker.available(9) && worker.available(10));
        let told = worker.set_rules(breaker::Rules::OFF).unwrap();
        assert_eq!(told.turned, Some((State::Open, State::Closed)));
        assert!(worker.available(0));
        assert_eq!(worker.breaker().state, State::Closed);
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
