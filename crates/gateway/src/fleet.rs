//! The fleet: which workers there are, what they serve, and an immutable snapshot of that for
//! every request. Only this module writes it.

mod discover;
mod health;
mod loads;
mod overload;
mod register;
mod renew;
mod snapshot;
mod spec;
mod strategies;
mod upstream;
mod version;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use http::HeaderValue;
use prometheus::IntCounter;
use smg_decide::fleet::health::Health;
use smg_decide::fleet::{Leg, Worker, WorkerId};
use smg_decide::keys::issued;
use smg_decide::place::{Assignment, Policy, Reads};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use uuid::Uuid;

pub(crate) use self::discover::Card;
pub(crate) use self::register::{Newcomer, change, enlist, remove, tend};
use self::snapshot::{make_policy, reads_whole};
pub(crate) use self::spec::{Spec, Terms, Wrong, ignored};
use self::strategies::{Asked, Variants};
pub(crate) use self::upstream::{Upstream, one_each};

use crate::settings::{Placement, PolicyName};
use crate::telemetry::{BranchMeters, Meters, ModelMeters, Source, TreeMeters};
use crate::upstream::{Origin, Pool};

/// The workers of one model and what places requests among them.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) model: Arc<str>,
    pub(crate) policy: Arc<dyn Policy>,
    /// Counts how the policy comes to its choices.
    pub(crate) branches: Arc<BranchMeters>,
    /// Sorted by id; `upstreams` has the same order.
    pub(crate) workers: Vec<Arc<Worker>>,
    pub(crate) upstreams: Vec<Arc<Upstream>>,
    addresses: HashMap<Box<[u8]>, usize>,
    /// Requests sent to each, in the same order.
    pub(crate) requests: Vec<IntCounter>,
    pub(crate) meters: Arc<ModelMeters>,
    pub(crate) selections: IntCounter,
    /// Whether these are vendors, where no conversation is pinned.
    pub(crate) external: bool,
    asked: Arc<Asked>,
    variants: Variants,
}

/// Everything that is registered, at one moment.
#[derive(Debug, Default)]
pub(crate) struct Fleet {
    /// Sorted by id, which is the order of first registration.
    pub(crate) upstreams: Vec<Arc<Upstream>>,
    pub(crate) models: HashMap<Arc<str>, Arc<Group>>,
    /// Who takes models that nobody lists: vendors that were named without models.
    pub(crate) anything: Option<Arc<Group>>,
    /// Whether some worker wants request bodies edited.
    pub(crate) mutates: bool,
    /// Whether some worker is somebody else's API.
    pub(crate) external: bool,
    /// Whether the default or any model's policy reads the prompt (001, rule 2).
    pub(crate) reads_prompt: bool,
    /// The same where the beginning of a prompt is not enough.
    pub(crate) reads_whole_prompt: bool,
}

/// The current fleet and the way to change it.
#[derive(Debug)]
pub(crate) struct Roster {
    current: ArcSwap<Fleet>,
    placement: Placement,
    assignment: Assignment,
    /// What a model's policy is made after; places nothing itself.
    default: Arc<dyn Policy>,
    /// Whether each policy reads prompts, and to their end, in the order of their names.
    reads: [(bool, bool); PolicyName::ALL.len()],
    changing: Mutex<Changing>,
}

#[derive(Debug, Default)]
struct Changing {
    /// Every address ever seen, so that a worker that comes back finds its pins.
    ids: HashMap<Box<str>, WorkerId>,
    /// Workers that have not registered yet.
    pending: HashMap<Uuid, Pending>,
}

/// A worker that has not registered yet.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) url: Box<str>,
    /// Why not, in words; empty before the first attempt.
    pub(crate) why: String,
    /// Who named it; without one that was named at start the gateway is not whole.
    source: Source,
    task: Option<AbortHandle>,
}

/// Why a worker is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unwanted {
    /// Its address is registered, or about to be.
    Known,
    /// There are [`MAX_WORKERS`] already.
    Full,
}

/// A worker that has proven ready.
pub(crate) struct Arrival {
    pub(crate) id: Uuid,
    pub(crate) pool: Arc<Pool>,
    pub(crate) card: Card,
    pub(crate) terms: Terms,
    /// Ranks that become a worker each.
    pub(crate) ranks: Option<u32>,
}

/// A worker that is known well enough to be one.
struct Proven {
    uuid: Uuid,
    rank: Option<u32>,
    pool: Arc<Pool>,
    card: Arc<Card>,
    terms: Arc<Terms>,
    source: Source,
}

/// Workers that may be registered through the API.
pub(crate) const MAX_WORKERS: usize = 10_000;

impl Changing {
    fn intern(&mut self, url: &str) -> WorkerId {
        if let Some(id) = self.ids.get(url) {
            return *id;
        }
        let id = WorkerId(u32::try_from(self.ids.len()).unwrap_or(u32::MAX));
        self.ids.insert(url.into(), id);
        id
    }

    /// A worker, counted and healthy, that is in no snapshot yet.
    fn upstream(&mut self, proven: Proven, meters: &Meters) -> Arc<Upstream> {
        let Proven { uuid, rank, pool, card, terms, source } = proven;
        let origin = pool.origin();
        let url = origin.url();
        let url = rank.map_or_else(|| url.to_owned(), |at| format!("{url}@{at}"));
        let address = issued::address(origin.host(), origin.port(), rank);
        let worker = Worker::new(self.intern(&url), url, Leg::Regular);
        let worker = Arc::new(worker.guarded(terms.breaker));
        worker.set_healthy(true);
        let upstream = Upstream {
            meters: meters.workers.worker(&worker, pool.is_http2()),
            // A URL that parsed holds no byte a header may not.
            routed: HeaderValue::from_str(&worker.url)
                .unwrap_or_else(|_| HeaderValue::from_static("unprintable")),
            session: HeaderValue::from_str(&issued::id(&address))
                .unwrap_or_else(|_| HeaderValue::from_static("unprintable")),
            address: address.into(),
            uuid,
            card: ArcSwap::new(card),
            source,
            rank,
            terms: ArcSwap::new(terms),
            drained: Notify::new(),
            health: Mutex::new(Health::proven()),
            tasks: Mutex::default(),
            worker,
            pool,
        };
        upstream.meters.checked(true, true);
        meters.discovery.registered(source);
        Arc::new(upstream)
    }

    fn await_one(&mut self, origin: &Origin, source: Source) -> Uuid {
        let id = Uuid::new_v4();
        let (url, why) = (origin.url().into(), String::new());
        self.pending.insert(id, Pending { url, why, source, task: None });
        id
    }
}

/// What becomes a worker each: the engine, or its ranks.
fn ranked(ranks: Option<u32>) -> impl Iterator<Item = Option<u32>> {
    (0..ranks.unwrap_or(1)).map(move |at| ranks.map(|_| at))
}

impl Pending {
    /// Ends the attempts to register it.
    fn end(&self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl Fleet {
    /// Who serves this model.
    pub(crate) fn group(&self, model: &str) -> Option<&Arc<Group>> {
        self.models.get(model).or(self.anything.as_ref())
    }

    /// The worker of this id.
    pub(crate) fn find(&self, id: Uuid) -> Option<&Arc<Upstream>> {
        self.upstreams.iter().find(|upstream| upstream.uuid == id)
    }

    /// The policies of this snapshot learn that a worker is in none any more.
    fn lose(&self, gone: &Upstream, meters: &Meters) {
        meters.discovery.removed(gone.source);
        gone.card.load().models.iter().for_each(|model| self.forget(model, gone.worker.id));
    }

    /// The policies of a model learn that a worker does not serve it any more.
    fn forget(&self, model: &str, gone: WorkerId) {
        if let Some(group) = self.models.get(model) {
            group.forget(gone);
        }
    }
}

impl Roster {
    /// An empty fleet. `assignment` is how `manual` places.
    pub(crate) fn new(mut placement: Placement, assignment: Assignment) -> Self {
        // Clients must not be able to make prompts that collide.
        placement.cache.seed = rand::random();
        let default = make_policy(placement.policy, &placement, assignment);
        Self {
            current: ArcSwap::new(Arc::new(Fleet {
                reads_prompt: default.reads() == Reads::Prompt,
                reads_whole_prompt: reads_whole(&*default),
                ..Fleet::default()
            })),
            placement,
            assignment,
            default,
            reads: PolicyName::ALL.map(|name| {
                let policy = make_policy(name, &placement, assignment);
                (policy.reads() == Reads::Prompt, reads_whole(&*policy))
            }),
            changing: Mutex::default(),
        }
    }

    /// The fleet as it is now.
    pub(crate) fn load(&self) -> Arc<Fleet> {
        self.current.load_full()
    }

    /// Sweeps every policy's index and shows what is left; `now` in milliseconds.
    pub(crate) fn sweep(&self, now: u64, meters: &TreeMeters) {
        for (model, group) in &self.load().models {
            meters.show(model, group.sweep(now));
        }
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
        self.lock().pending.values().filter(|pending| pending.source == Source::Static).count()
    }

    /// The worker of this id that has not registered yet.
    pub(crate) fn find_pending(&self, id: Uuid) -> Option<Pending> {
        self.lock().pending.get(&id).cloned()
    }

    /// Announces configured workers. They get their ids here, in the order in which they were
    /// named: whoever answers first would otherwise be worker 0 of `X-SMG-Target-Worker`.
    pub(crate) fn expect(&self, workers: &[Origin]) -> Vec<Uuid> {
        let mut changing = self.lock();
        let expected = workers.iter().map(|origin| {
            changing.intern(origin.url());
            changing.await_one(origin, Source::Static)
        });
        expected.collect()
    }

    /// Takes a worker in that will register.
    fn accept(&self, origin: &Origin) -> Result<Uuid, Unwanted> {
        let mut changing = self.lock();
        let fleet = self.current.load();
        let mut pending = changing.pending.values();
        let mut registered = fleet.upstreams.iter();
        if pending.any(|pending| *pending.url == *origin.url())
            || registered.any(|upstream| upstream.pool.origin().url() == origin.url())
        {
            return Err(Unwanted::Known);
        }
        if changing.pending.len() + fleet.upstreams.len() >= MAX_WORKERS {
            return Err(Unwanted::Full);
        }
        Ok(changing.await_one(origin, Source::Manual))
    }

    /// Says which task registers a worker, so that its removal ends it.
    fn registered_by(&self, id: Uuid, task: AbortHandle) {
        match self.lock().pending.get_mut(&id) {
            Some(pending) => pending.task = Some(task),
            // Removed before this was said; a task that has just registered it is over either way.
            None => task.abort(),
        }
    }

    /// Notes why a worker has not registered yet.
    fn not_yet(&self, id: Uuid, why: &str) {
        if let Some(pending) = self.lock().pending.get_mut(&id) {
            why.clone_into(&mut pending.why);
        }
    }

    fn give_up(&self, id: Uuid) -> Option<Pending> {
        self.lock().pending.remove(&id)
    }

    /// Registers a worker that has proven ready, or each of its ranks; none if it was removed
    /// meanwhile.
    fn add(&self, arrival: Arrival, meters: &Meters) -> Vec<Arc<Upstream>> {
        let mut changing = self.lock();
        let Some(Pending { source, .. }) = changing.pending.remove(&arrival.id) else {
            return Vec::new();
        };
        let Arrival { id, pool, card, terms, ranks } = arrival;
        let (card, terms) = (Arc::new(card), Arc::new(terms));
        let added: Vec<_> = ranked(ranks)
            .map(|rank| {
                let uuid = if rank.is_none_or(|at| at == 0) { id } else { Uuid::new_v4() };
                let (pool, card) = (Arc::clone(&pool), Arc::clone(&card));
                let proven = Proven { uuid, rank, pool, card, terms: Arc::clone(&terms), source };
                changing.upstream(proven, meters)
            })
            .collect();
        let old = self.load();
        self.store(&old, old.upstreams.iter().chain(&added).map(Arc::clone).collect(), meters);
        added
    }

    /// Takes a registered worker out: no request chooses it from now on.
    fn take_out(&self, id: Uuid, meters: &Meters) -> Option<Arc<Upstream>> {
        let _changing = self.lock();
        let old = self.load();
        let gone = Arc::clone(old.find(id)?);
        let rest = old.upstreams.iter().filter(|upstream| upstream.uuid != id);
        self.store(&old, rest.map(Arc::clone).collect(), meters);
        old.lose(&gone, meters);
        Some(gone)
    }

    /// Gives a registered worker other terms; `None` when it is not registered any more.
    fn amend(
        &self,
        id: Uuid,
        meters: &Meters,
        change: impl FnOnce(&Upstream) -> Result<Terms, Wrong>,
    ) -> Option<Result<Arc<Upstream>, Wrong>> {
        let _changing = self.lock();
        let old = self.load();
        let upstream = Arc::clone(old.find(id)?);
        let terms = match change(&upstream) {
            Ok(terms) => Arc::new(terms),
            Err(wrong) => return Some(Err(wrong)),
        };
        if let Some(told) = upstream.worker.set_rules(terms.breaker) {
            upstream.meters.breaker.show(&told);
        }
        upstream.pool.set_rules(terms.connections);
        upstream.terms.store(terms);
        // Its label may ask for another policy.
        self.store(&old, old.upstreams.clone(), meters);
        Some(Ok(upstream))
    }

    fn store(&self, old: &Fleet, mut upstreams: Vec<Arc<Upstream>>, meters: &Meters) {
        upstreams.sort_by_key(|upstream| upstream.worker.id);
        let new = self.build(old, upstreams, meters);
        for model in old.models.keys().filter(|model| !new.models.contains_key(*model)) {
            meters.workers.drop_pool(Leg::Regular, model);
            meters.trees.drop_model(model);
            meters.overload.drop_model(model);
        }
        self.current.store(Arc::new(new));
    }

    fn lock(&self) -> MutexGuard<'_, Changing> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
