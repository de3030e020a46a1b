//! One registered worker: the way to it, what it said, and the tasks that look after it.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use http::HeaderValue;
use smg_decide::fleet::Worker;
use smg_decide::fleet::health::{Health, State};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use uuid::Uuid;

use super::{Card, Terms};
use crate::telemetry::{Source, WorkerMeters};
use crate::upstream::Pool;

/// The first of these workers of each engine: its ranks share a door and answer alike there.
pub(crate) fn one_each<'a>(
    workers: impl Iterator<Item = &'a Arc<Upstream>>,
) -> impl Iterator<Item = &'a Arc<Upstream>> {
    let mut doors = HashSet::new();
    workers.filter(move |upstream| doors.insert(Arc::as_ptr(&upstream.pool)))
}

/// A worker and the way to it.
#[derive(Debug)]
pub(crate) struct Upstream {
    /// What decisions see of it.
    pub(crate) worker: Arc<Worker>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) meters: WorkerMeters,
    /// The value of `x-smg-routed-worker-id`.
    pub(crate) routed: HeaderValue,
    /// Its address as ids and shared pins have it.
    pub(crate) address: Box<str>,
    /// The id that names it openly (`x-session-id`, 004).
    pub(crate) session: HeaderValue,
    /// The id in `/workers/{id}`.
    pub(crate) uuid: Uuid,
    /// What it said of itself, last when it came back from an outage.
    pub(crate) card: ArcSwap<Card>,
    /// Who named it.
    pub(super) source: Source,
    /// Which of its engine's data-parallel ranks it is, when each is a worker.
    pub(crate) rank: Option<u32>,
    /// What the operator said of it, and what that comes to.
    pub(crate) terms: ArcSwap<Terms>,
    /// Told when the last request of a worker that leaves has ended.
    pub(crate) drained: Notify,
    pub(super) health: Mutex<Health>,
    pub(super) tasks: Mutex<Tending>,
}

/// The tasks that go on for as long as a worker is registered.
#[derive(Debug, Default)]
pub(super) struct Tending {
    /// Those that go by its terms.
    held: Vec<AbortHandle>,
    /// Those that no change concerns.
    kept: Vec<AbortHandle>,
    /// It has drained: whoever comes with tasks now is too late.
    over: bool,
}

impl Upstream {
    /// Where its health checks stand.
    pub(crate) fn state(&self) -> State {
        self.lock_health().state
    }

    /// Counts it as healthy, as nobody checks any more.
    pub(super) fn trust(&self) {
        *self.lock_health() = Health::proven();
        self.worker.set_healthy(true);
        self.meters.trusted();
    }

    /// Puts these tasks in the place of those that went by its terms.
    pub(super) fn tended_by(&self, tasks: Vec<AbortHandle>) {
        let mut tending = self.lock_tasks();
        let ended = if tending.over { tasks } else { std::mem::replace(&mut tending.held, tasks) };
        ended.iter().for_each(AbortHandle::abort);
    }

    /// Adds a task that goes on whatever its terms.
    pub(super) fn tended_for_good_by(&self, task: AbortHandle) {
        let mut tending = self.lock_tasks();
        if tending.over {
            task.abort();
        } else {
            tending.kept.push(task);
        }
    }

    /// Ends its tasks for good.
    pub(super) fn tended_no_more(&self) {
        let mut tending = self.lock_tasks();
        tending.over = true;
        let Tending { held, kept, .. } = &mut *tending;
        held.drain(..).chain(kept.drain(..)).for_each(|task| task.abort());
    }

    fn lock_tasks(&self) -> MutexGuard<'_, Tending> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lock_health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
