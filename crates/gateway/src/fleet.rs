//! The fleet: which workers there are, what they serve, and an immutable snapshot of that for
//! every request. Only this module writes it.

mod discover;
mod health;
mod register;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use http::HeaderValue;
use prometheus::IntCounter;
use smg_decide::fleet::health::{Health, State};
use smg_decide::fleet::{Leg, Worker, WorkerId};
use smg_decide::place::{Assignment, Manual, Policy, Random, Reads, RoundRobin};
use uuid::Uuid;

pub(crate) use self::discover::Card;
pub(crate) use self::register::tend;

use crate::settings::PolicyName;
use crate::telemetry::{Meters, ModelMeters, WorkerMeters};
use crate::upstream::Pool;

/// A worker and the way to it.
#[derive(Debug)]
pub(crate) struct Upstream {
    /// What decisions see of it.
    pub(crate) worker: Arc<Worker>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) meters: WorkerMeters,
    /// The value of `x-smg-routed-worker-id`.
    pub(crate) routed: HeaderValue,
    /// The id in `/workers/{id}`.
    pub(crate) uuid: Uuid,
    /// What it said of itself.
    pub(crate) card: Card,
    health: Mutex<Health>,
}

impl Upstream {
    /// Where its health checks stand.
    pub(crate) fn state(&self) -> State {
        self.lock().state
    }

    fn lock(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The workers of one model and what places requests among them.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) model: Arc<str>,
    pub(crate) policy: Arc<dyn Policy>,
    /// Sorted by id; `upstreams` has the same order.
    pub(crate) workers: Vec<Arc<Worker>>,
    pub(crate) upstreams: Vec<Arc<Upstream>>,
    pub(crate) meters: Arc<ModelMeters>,
    pub(crate) selections: IntCounter,
}

/// Everything that is registered, at one moment.
#[derive(Debug, Default)]
pub(crate) struct Fleet {
    /// Sorted by id, which is the order of first registration.
    pub(crate) upstreams: Vec<Arc<Upstream>>,
    pub(crate) models: HashMap<Arc<str>, Arc<Group>>,
}

/// The current fleet and the way to change it.
#[derive(Debug)]
pub(crate) struct Roster {
    current: ArcSwap<Fleet>,
    policy: PolicyName,
    assignment: Assignment,
    /// What a model's policy is made after; places nothing itself.
    default: Arc<dyn Policy>,
    changing: Mutex<Changing>,
}

#[derive(Debug, Default)]
struct Changing {
    /// Every address ever seen, so that a worker that comes back finds its pins.
    ids: HashMap<Box<str>, WorkerId>,
    /// Configured workers that have not registered yet.
    pending: usize,
}

impl Changing {
    fn intern(&mut self, url: &str) -> WorkerId {
        if let Some(id) = self.ids.get(url) {
            return *id;
        }
        let id = WorkerId(u32::try_from(self.ids.len()).unwrap_or(u32::MAX));
        self.ids.insert(url.into(), id);
        id
    }
}

impl Roster {
    /// An empty fleet. `assignment` is how `manual` places.
    pub(crate) fn new(policy: PolicyName, assignment: Assignment) -> Self {
        Self {
            current: ArcSwap::default(),
            policy,
            assignment,
            default: make_policy(policy, assignment),
            changing: Mutex::default(),
        }
    }

    /// The fleet as it is now.
    pub(crate) fn load(&self) -> Arc<Fleet> {
        self.current.load_full()
    }

    /// Whether the default or any model's policy reads the prompt (001, rule 2).
    pub(crate) fn reads_prompt(&self) -> bool {
        let reads = |policy: &dyn Policy| policy.reads() == Reads::Prompt;
        let fleet = self.current.load();
        reads(&*self.default) || fleet.models.values().any(|group| reads(&*group.policy))
    }

    /// The id of an address.
    pub(crate) fn intern(&self, url: &str) -> WorkerId {
        self.lock().intern(url)
    }

    /// Every address that has an id.
    pub(crate) fn known(&self) -> Vec<(WorkerId, Box<str>)> {
        self.lock().ids.iter().map(|(url, id)| (*id, url.clone())).collect()
    }

    /// Configured workers that have not registered yet.
    pub(crate) fn pending(&self) -> usize {
        self.lock().pending
    }

    fn expect(&self, workers: usize) {
        self.lock().pending += workers;
    }

    fn give_up_one(&self) {
        let mut changing = self.lock();
        changing.pending = changing.pending.saturating_sub(1);
    }

    /// Registers a worker that has proven ready.
    fn add(&self, pool: Arc<Pool>, card: Card, meters: &Meters) -> Arc<Upstream> {
        let mut changing = self.lock();
        let id = changing.intern(pool.origin().url());
        let worker = Worker::new(id, pool.origin().url(), Leg::Regular);
        worker.set_healthy(true);
        let worker = Arc::new(worker);
        let upstream = Arc::new(Upstream {
            meters: meters.workers.worker(&worker),
            // A URL that parsed holds no byte a header may not.
            routed: HeaderValue::from_str(&worker.url)
                .unwrap_or_else(|_| HeaderValue::from_static("unprintable")),
            uuid: Uuid::new_v4(),
            card,
            health: Mutex::new(Health::proven()),
            worker,
            pool,
        });
        upstream.meters.checked(true, true);
        changing.pending = changing.pending.saturating_sub(1);
        let old = self.load();
        let mut upstreams: Vec<_> =
            old.upstreams.iter().chain([&upstream]).map(Arc::clone).collect();
        upstreams.sort_by_key(|upstream| upstream.worker.id);
        self.current.store(Arc::new(self.build(&old, upstreams, meters)));
        upstream
    }

    /// A snapshot over `upstreams`; a model that was there keeps its policy and its counters.
    fn build(&self, old: &Fleet, upstreams: Vec<Arc<Upstream>>, meters: &Meters) -> Fleet {
        let mut members: HashMap<Arc<str>, Vec<Arc<Upstream>>> = HashMap::new();
        for upstream in &upstreams {
            for model in &upstream.card.models {
                members.entry(Arc::clone(model)).or_default().push(Arc::clone(upstream));
            }
        }
        let models = members.into_iter().map(|(model, members)| {
            let group = self.group(old.models.get(&model), &model, members, meters);
            (model, Arc::new(group))
        });
        Fleet { models: models.collect(), upstreams }
    }

    fn group(
        &self,
        old: Option<&Arc<Group>>,
        model: &Arc<str>,
        upstreams: Vec<Arc<Upstream>>,
        meters: &Meters,
    ) -> Group {
        meters.workers.set_pool_size(Leg::Regular, model, upstreams.len());
        let policy = match old {
            Some(old) => Arc::clone(&old.policy),
            None => make_policy(self.policy, self.assignment),
        };
        Group {
            model: Arc::clone(model),
            workers: upstreams.iter().map(|upstream| Arc::clone(&upstream.worker)).collect(),
            upstreams,
            meters: old.map_or_else(|| meters.router.model(model), |old| Arc::clone(&old.meters)),
            selections: meters.workers.selections(Leg::Regular, model, policy.name()),
            policy,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Changing> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn make_policy(name: PolicyName, assignment: Assignment) -> Arc<dyn Policy> {
    match name {
        PolicyName::RoundRobin => Arc::new(RoundRobin::default()),
        PolicyName::Random => Arc::new(Random),
        PolicyName::Manual => Arc::new(Manual::new(assignment)),
    }
}
