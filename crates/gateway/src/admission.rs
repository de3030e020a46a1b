//! The permits of `--max-concurrent-requests`, and the queue before them.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::StatusCode;
use smg_decide::admission::{Arrival, Bucket, Rejection, Rules};
use smg_wire::error::Refusal;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::clock::Clock;
use crate::telemetry::AdmissionMeters;

/// What a refused client is told to wait, in seconds.
pub(crate) const RETRY_AFTER_SECS: u32 = 2;

/// The door that inference requests pass once their body is in hand.
#[derive(Debug)]
pub(crate) struct Admission {
    rules: Rules,
    /// Fair: who waits gets a permit before anyone who comes later.
    permits: Arc<Semaphore>,
    waiting: AtomicU32,
    bucket: Option<Mutex<Bucket>>,
    clock: Clock,
    meters: AdmissionMeters,
}

/// Held by a request until its answer has ended.
#[derive(Debug)]
pub(crate) struct Permit {
    meters: AdmissionMeters,
    /// Returns to the door when dropped.
    _permit: OwnedSemaphorePermit,
}

/// A place in the queue, free again when dropped.
struct Place<'a>(&'a Admission);

/// A token that is given back unless it is used.
struct Token<'a>(Option<&'a Mutex<Bucket>>);

/// Lets a request in through the door, if there is one.
///
/// # Errors
/// When nobody may wait any more, or it has waited long enough.
pub(crate) async fn enter(door: Option<&Admission>) -> Result<Option<Permit>, Refusal> {
    match door {
        Some(door) => door.enter().await.map(Some),
        None => Ok(None),
    }
}

impl Admission {
    pub(crate) fn new(rules: Rules, clock: Clock, meters: AdmissionMeters) -> Self {
        let bucket = |rate| Mutex::new(Bucket::new(rules.limit, rate, clock.millis()));
        Self {
            permits: Arc::new(Semaphore::new(usize::try_from(rules.limit).unwrap_or(usize::MAX))),
            waiting: AtomicU32::new(0),
            bucket: rules.rate.map(bucket),
            rules,
            clock,
            meters,
        }
    }

    /// At once, or when its turn comes.
    async fn enter(&self) -> Result<Permit, Refusal> {
        let entered = match self.at_once() {
            Some(permit) => Ok(permit),
            None => self.wait().await,
        };
        match entered {
            Ok(permit) => {
                self.meters.allowed.inc();
                self.meters.inflight.inc();
                Ok(Permit { meters: self.meters.clone(), _permit: permit })
            }
            Err(rejection) => {
                self.meters.rejected(rejection);
                Err(refusal(rejection))
            }
        }
    }

    fn at_once(&self) -> Option<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.permits).try_acquire_owned().ok()?;
        let Some(bucket) = &self.bucket else { return Some(permit) };
        lock(bucket).take(self.clock.millis()).then_some(permit)
    }

    async fn wait(&self) -> Result<OwnedSemaphorePermit, Rejection> {
        let _place = self.place().ok_or(Rejection::Full)?;
        let turn = tokio::time::timeout(Duration::from_millis(self.rules.wait_ms), self.turn());
        turn.await.ok().flatten().ok_or(Rejection::Timeout)
    }

    fn place(&self) -> Option<Place<'_>> {
        let one_more =
            |waiting| (self.rules.arrive(false, waiting) == Arrival::Queued).then_some(waiting + 1);
        self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        self.meters.queue_depth.inc();
        Some(Place(self))
    }

    /// A permit, then a token: in this order, so that tokens go by the queue's order too.
    async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        // An error means that the door was closed, which nobody does.
        let permit = Arc::clone(&self.permits).acquire_owned().await.ok()?;
        if let Some(bucket) = &self.bucket {
            let wait_ms = lock(bucket).reserve(self.clock.millis());
            let mut token = Token(Some(bucket));
            if wait_ms > 0 {
                tokio::time::sleep(Duration::from_millis(wait_ms)).await;
            }
            token.0 = None;
        }
        Some(permit)
    }
}

fn lock(bucket: &Mutex<Bucket>) -> MutexGuard<'_, Bucket> {
    bucket.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refusal(rejection: Rejection) -> Refusal {
    let refusal = match rejection {
        Rejection::Full => Refusal::new(
            StatusCode::TOO_MANY_REQUESTS,
            "admission_queue_full",
            "The gateway serves as many requests as it may, and no more may wait \
             (--max-concurrent-requests, --queue-size).",
        ),
        Rejection::Timeout => Refusal::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "admission_queue_timeout",
            "The request waited for its turn longer than --queue-timeout-secs.",
        ),
    };
    Refusal { retry_after: Some(RETRY_AFTER_SECS), ..refusal }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.meters.inflight.dec();
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
        self.0.meters.queue_depth.dec();
    }
}

impl Drop for Token<'_> {
    fn drop(&mut self) {
        if let Some(bucket) = self.0 {
            lock(bucket).give_back();
        }
    }
}
