//! What keys are pinned to, shared by replicas (004, "Staying sticky across gateway plugin
//! replicas"): one address for a session's key, one or two for a routing key. A claim and a move are atomic in the store and awaited, so that one key has one worker
//! however many replicas meet it at once. A copy of what the store said is kept here for as long as
//! the store keeps it honest, so that a warm key costs no round trip. Nothing a store does or fails
//! to do makes a request fail, or wait longer than the deadline.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use smg_decide::fleet::breaker::{Breaker, Outcome, Rules};
use smg_decide::keys::scope::Scope;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use self::copies::Copies;
use crate::clock::Clock;
use crate::telemetry::{StoreMeters, StoreOp, StoreResult};

mod copies;
#[cfg(feature = "redis")]
pub(crate) mod redis;

/// What names of pins begin with, so that an operator knows whose they are.
const PREFIX: &str = "smg:pin:";
/// Without `--sticky-store-secret`: names then show no key, but who knows a key can tell its name.
const OPEN_SECRET: &[u8] = b"smg sticky store";
/// How long a pin lives from its last use (004).
pub(super) const TTL: Duration = Duration::from_secs(3600);
/// How often that life is renewed at most.
pub(super) const RENEWAL: Duration = Duration::from_secs(60);
/// Renewals that may wait; one more is dropped, and comes again with the key's next use.
const MAX_RENEWALS: usize = 1024;
/// Operations in a row without an answer after which nobody waits for the store for a while, and how
/// long that is in milliseconds.
const BREAKER: Rules = Rules { failures: Some(3), successes: 1, timeout_ms: 1000 };

/// A pin's name in the store: a keyed hash of model and key, so that the store holds no key.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Name([u8; 16]);

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl Name {
    fn read(text: &[u8]) -> Option<Self> {
        let hash = URL_SAFE_NO_PAD.decode(text.strip_prefix(PREFIX.as_bytes())?).ok()?;
        hash.try_into().ok().map(Self)
    }
}

/// What the store has for a key once it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Met {
    /// The address that the key is pinned to.
    pub(crate) address: String,
    /// Whether this very operation pinned it there.
    pub(crate) ours: bool,
}

/// Why a store gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is not connected.
    Away,
    /// It answered with an error.
    Error,
}

type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Fault>> + Send + 'a>>;

/// A place where pins can be shared. Each operation is one round trip, and atomic.
pub(crate) trait Store: Send + Sync + fmt::Debug {
    /// Pins a key to this address unless it is pinned, and renews it: always when `used`, else only
    /// if it is pinned to this very address.
    fn claim<'a>(&'a self, name: &'a Name, address: &'a str, used: bool) -> Answer<'a, Met>;

    /// Pins a key to another address if it is still pinned to this one, or to none.
    fn shift<'a>(&'a self, name: &'a Name, from: &'a str, to: &'a str) -> Answer<'a, Met>;

    /// The address that a key is pinned to.
    fn look<'a>(&'a self, name: &'a Name) -> Answer<'a, Option<String>>;
}

/// A store as requests see it: behind a deadline, a breaker and the copies.
#[derive(Debug)]
pub(crate) struct Shared {
    store: Arc<dyn Store>,
    pub(crate) copies: Arc<Copies>,
    secret: hmac::Key,
    deadline: Duration,
    breaker: Mutex<Breaker>,
    renewals: mpsc::Sender<(Name, String)>,
    meters: StoreMeters,
    clock: Clock,
}

/// What a [`Shared`] is made of.
pub(crate) struct Parts {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) copies: Arc<Copies>,
    /// `--sticky-store-secret`
    pub(crate) secret: Option<Box<[u8]>>,
    /// `--sticky-store-timeout-ms`
    pub(crate) deadline: Duration,
    pub(crate) meters: StoreMeters,
    pub(crate) clock: Clock,
}

/// Renewals that wait to be made.
pub(crate) type Renewals = mpsc::Receiver<(Name, String)>;

impl Shared {
    pub(crate) fn new(parts: Parts) -> (Arc<Self>, Renewals) {
        let Parts { store, copies, secret, deadline, meters, clock } = parts;
        let secret = hmac::Key::new(hmac::HMAC_SHA256, secret.as_deref().unwrap_or(OPEN_SECRET));
        let (renewals, waiting) = mpsc::channel(MAX_RENEWALS);
        let breaker = Mutex::default();
        let shared = Self { store, copies, secret, deadline, breaker, renewals, meters, clock };
        (Arc::new(shared), waiting)
    }

    /// The name of a model's session key.
    pub(super) fn name(&self, model: &str, key: &[u8]) -> Name {
        // The length goes in front so that ("ab", "c") and ("a", "bc") differ.
        self.hash(&[&(model.len() as u64).to_be_bytes(), model.as_bytes(), key])
    }

    /// The name of a routing key, under the override or `manual`. It is never that of a session: no
    /// model's name is so long.
    pub(super) fn routing_name(&self, scope: Scope<'_>, key: &[u8]) -> Name {
        let Scope { model, leg } = scope;
        let kind = [leg as u8, u8::from(model.is_some())];
        let model = model.unwrap_or_default();
        let length = (model.len() as u64).to_be_bytes();
        self.hash(&[&[u8::MAX; 8], &kind, &length, model.as_bytes(), key])
    }

    fn hash(&self, parts: &[&[u8]]) -> Name {
        let mut context = hmac::Context::with_key(&self.secret);
        parts.iter().for_each(|part| context.update(part));
        let tag = context.sign();
        Name(tag.as_ref().first_chunk().copied().unwrap_or_default())
    }

    /// The copy of a key goes: the store could not be told of what became of it since.
    pub(super) fn doubt(&self, name: &Name) {
        self.copies.drop_one(name);
    }

    /// What the store said of a key, if that still holds. A use.
    pub(super) fn remembered(&self, name: &Name) -> Option<String> {
        let (address, renew) = self.copies.used(name, self.clock.millis())?;
        if renew {
            self.claim_later(name.clone(), &address);
        }
        Some(address)
    }

    /// As [`Self::claim`], for what no request waits for: it is made with the renewals.
    pub(super) fn claim_later(&self, name: Name, address: &str) {
        if self.renewals.try_send((name, address.to_owned())).is_err() {
            self.meters.count(StoreOp::Renew, StoreResult::Dropped);
        }
    }

    /// Pins a key to this address unless it is pinned; `None` if the store does not say in time.
    pub(super) async fn claim(&self, name: &Name, address: &str) -> Option<Met> {
        let asked = self.copies.asking(name);
        let met = self.ask(StoreOp::Claim, self.store.claim(name, address, true)).await?;
        self.copies.keep(asked, &met.address, self.clock.millis());
        Some(met)
    }

    /// Pins a key to another address if it is still pinned to this one.
    pub(super) async fn shift(&self, name: &Name, from: &str, to: &str) -> Option<Met> {
        let asked = self.copies.asking(name);
        let met = self.ask(StoreOp::Move, self.store.shift(name, from, to)).await?;
        let now = self.clock.millis();
        if met.ours {
            self.copies.change(asked, &met.address, now);
        } else {
            self.copies.keep(asked, &met.address, now);
        }
        Some(met)
    }

    /// The address that a key is pinned to, as far as the store says in time.
    pub(super) async fn look(&self, name: &Name) -> Option<String> {
        if let Some((address, _)) = self.copies.used(name, 0) {
            return Some(address);
        }
        self.ask(StoreOp::Look, self.store.look(name)).await?
    }

    /// Makes renewals for ever.
    pub(crate) async fn renew(&self, mut waiting: Renewals) {
        while let Some((name, address)) = waiting.recv().await {
            let asked = self.copies.asking(&name);
            let claim = self.store.claim(&name, &address, false);
            if let Some(met) = self.ask(StoreOp::Renew, claim).await {
                self.copies.keep(asked, &met.address, self.clock.millis());
            }
        }
    }

    async fn ask<T>(&self, op: StoreOp, answer: Answer<'_, T>) -> Option<T> {
        let Some(probe) = self.pass() else {
            self.meters.count(op, StoreResult::Unavailable);
            return None;
        };
        let begun = Instant::now();
        let answered = timeout(self.deadline, answer).await;
        drop(probe);
        let (result, answer) = match answered {
            Ok(Ok(answer)) => (StoreResult::Ok, Some(answer)),
            Ok(Err(Fault::Error)) => (StoreResult::Error, None),
            Ok(Err(Fault::Away)) => (StoreResult::Unavailable, None),
            Err(_) => (StoreResult::Timeout, None),
        };
        self.meters.count(op, result);
        if result != StoreResult::Unavailable {
            self.meters.seconds.observe(begun.elapsed().as_secs_f64());
        }
        self.record(result);
        answer
    }

    /// Only waiting costs anything: who is refused at once may ask again at once.
    fn record(&self, result: StoreResult) {
        let late = result == StoreResult::Timeout;
        let outcome = if late { Outcome::Failure } else { Outcome::Success };
        let (now, mut breaker) = (self.clock.millis(), self.breaker());
        let before = breaker.state;
        breaker.record(outcome, &BREAKER, now);
        if breaker.state != before {
            let (from, to) = (before.as_str(), breaker.state.as_str());
            tracing::warn!(from, to, "the breaker of the sticky store turned");
        }
    }

    /// Whether the breaker lets an operation through, and as what.
    fn pass(&self) -> Option<Option<Probe<'_>>> {
        let (now, mut breaker) = (self.clock.millis(), self.breaker());
        let admits = breaker.admits(&BREAKER, now);
        // Not before it is known to be one: dropping it takes the lock.
        admits.then(|| breaker.pass(&BREAKER, now).then(|| Probe(self)))
    }

    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A probe of the half-open breaker; it is given back however the operation ends.
struct Probe<'a>(&'a Shared);

impl Drop for Probe<'_> {
    fn drop(&mut self) {
        self.0.breaker().release();
    }
}

#[cfg(test)]
mod tests;
