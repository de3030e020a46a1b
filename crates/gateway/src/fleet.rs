//! The fleet: which workers there are, what they serve, and an immutable snapshot of that for
//! every request. Only this module writes it.

mod discover;
mod health;
mod loads;
mod overload;
mod register;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use http::HeaderValue;
use prometheus::IntCounter;
use smg_decide::fleet::health::{Health, State};
use smg_decide::fleet::{Leg, Worker, WorkerId};
use smg_decide::place::{
    Assignment, Bucket, ConsistentHashing, LeastLoad, Manual, Passthrough, Policy, PowerOfTwo,
    PrefixHash, Random, Reads, RoundRobin,
};
use uuid::Uuid;

pub(crate) use self::discover::Card;
pub(crate) use self::register::tend;

use crate::settings::{BreakerRules, Placement, PolicyName};
use crate::telemetry::{BranchMeters, Meters, ModelMeters, WorkerMeters};
use crate::upstream::{Origin, Pool};

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
    /// Counts how the policy comes to its choices.
    pub(crate) branches: Arc<BranchMeters>,
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
    /// Whether the default or any model's policy reads the prompt (001, rule 2).
    pub(crate) reads_prompt: bool,
}

/// The current fleet and the way to change it.
#[derive(Debug)]
pub(crate) struct Roster {
    current: ArcSwap<Fleet>,
    placement: Placement,
    assignment: Assignment,
    breaker: BreakerRules,
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
    pub(crate) fn new(placement: Placement, assignment: Assignment, breaker: BreakerRules) -> Self {
        let default = make_policy(placement.policy, &placement, assignment);
        Self {
            breaker,
            current: ArcSwap::new(Arc::new(Fleet {
                reads_prompt: default.reads() == Reads::Prompt,
                ..Fleet::default()
            })),
            placement,
            assignment,
            default,
            changing: Mutex::default(),
        }
    }

    /// The fleet as it is now.
    pub(crate) fn load(&self) -> Arc<Fleet> {
        self.current.load_full()
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

    /// Announces configured workers. They get their ids here, in the order in which they were
    /// named: whoever answers first would otherwise be worker 0 of `X-SMG-Target-Worker`.
    pub(crate) fn expect(&self, workers: &[Origin]) {
        let mut changing = self.lock();
        changing.pending += workers.len();
        for origin in workers {
            changing.intern(origin.url());
        }
    }

    fn give_up_one(&self) {
        let mut changing = self.lock();
        changing.pending = changing.pending.saturating_sub(1);
    }

    /// Registers a worker that has proven ready.
    fn add(&self, pool: Arc<Pool>, card: Card, meters: &Meters) -> Arc<Upstream> {
        let mut changing = self.lock();
        let id = changing.intern(pool.origin().url());
        let worker = Worker::new(id, pool.origin().url(), Leg::Regular).guarded(self.breaker);
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
        let models: HashMap<_, Arc<Group>> = models.collect();
        let reads = |policy: &dyn Policy| policy.reads() == Reads::Prompt;
        let reads_prompt =
            reads(&*self.default) || models.values().any(|group| reads(&*group.policy));
        Fleet { models, reads_prompt, upstreams }
    }

    fn group(
        &self,
        old: Option<&Arc<Group>>,
        model: &Arc<str>,
        upstreams: Vec<Arc<Upstream>>,
        meters: &Meters,
    ) -> Group {
        meters.workers.set_pool_size(Leg::Regular, model, upstreams.len());
        let vetoed = upstreams.iter().filter(|upstream| upstream.worker.vetoed()).count();
        meters.overload.set_vetoed(model, vetoed);
        let name = policy_of(&upstreams).unwrap_or(self.placement.policy);
        let policy = match old {
            Some(old) if old.policy.name() == name.as_str() => Arc::clone(&old.policy),
            _ => make_policy(name, &self.placement, self.assignment),
        };
        let first_of_two = old.is_none_or(|old| old.workers.len() < 2) && upstreams.len() > 1;
        if name == PolicyName::Passthrough && first_of_two {
            tracing::warn!(model = &**model, "passthrough uses the first of several workers only");
        }
        Group {
            model: Arc::clone(model),
            workers: upstreams.iter().map(|upstream| Arc::clone(&upstream.worker)).collect(),
            upstreams,
            meters: old.map_or_else(|| meters.router.model(model), |old| Arc::clone(&old.meters)),
            selections: meters.workers.selections(Leg::Regular, model, policy.name()),
            branches: meters.policies.of(policy.name()),
            policy,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Changing> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The policy that the workers of a model ask for: the first valid label `policy` decides.
fn policy_of(upstreams: &[Arc<Upstream>]) -> Option<PolicyName> {
    upstreams.iter().find_map(|upstream| PolicyName::named(upstream.card.labels.get("policy")?))
}

fn make_policy(name: PolicyName, placement: &Placement, assignment: Assignment) -> Arc<dyn Policy> {
    match name {
        PolicyName::RoundRobin => Arc::new(RoundRobin::default()),
        PolicyName::Random => Arc::new(Random),
        PolicyName::Passthrough => Arc::new(Passthrough),
        PolicyName::PowerOfTwo => Arc::new(PowerOfTwo::new(placement.wait)),
        PolicyName::LeastLoad => Arc::new(LeastLoad::new(placement.wait, placement.max_waiting)),
        PolicyName::PrefixHash => Arc::new(PrefixHash::new(placement.prefix)),
        PolicyName::ConsistentHashing => Arc::new(ConsistentHashing::default()),
        PolicyName::Manual => Arc::new(Manual::new(assignment)),
        PolicyName::Bucket => Arc::new(Bucket::new(placement.bucket)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::settings::Connections;
    use crate::settings::testing::placement;
    use crate::upstream::TcpDial;

    const PLACEMENT: Placement = placement(PolicyName::RoundRobin);

    fn join(roster: &Roster, meters: &Meters, url: &str, card: Card) {
        let connections = Connections {
            idle_timeout: None,
            max_idle: 1,
            connect_timeout: std::time::Duration::from_secs(1),
        };
        let pool = Pool::new(Origin::parse(url).unwrap(), connections, Arc::new(TcpDial));
        roster.add(Arc::new(pool), card, meters);
    }

    fn card(model: &str, policy: Option<&str>) -> Card {
        let label = policy.map(|policy| ("policy".to_owned(), policy.to_owned()));
        Card { models: vec![model.into()], runtime: "sglang", labels: label.into_iter().collect() }
    }

    #[test]
    fn workers_stand_in_the_order_in_which_they_were_named_not_in_which_they_answered() {
        let roster = Roster::new(PLACEMENT, Assignment::Random, BreakerRules::OFF);
        let meters = Meters::new(&[1.0]).unwrap();
        let urls = ["http://w1", "http://w2", "http://w3"];
        roster.expect(&urls.map(|url| Origin::parse(url).unwrap()));
        for url in ["http://w4", "http://w3", "http://w1", "http://w2"] {
            join(&roster, &meters, url, card("m", None));
        }
        let order: Vec<_> =
            roster.load().models["m"].workers.iter().map(|w| w.url.clone()).collect();
        assert_eq!(order.iter().map(|url| &**url).collect::<Vec<_>>()[..3], urls);
        assert_eq!(roster.pending(), 0);
    }

    #[test]
    fn every_policy_goes_by_its_own_name() {
        for name in PolicyName::ALL {
            assert_eq!(make_policy(name, &PLACEMENT, Assignment::Random).name(), name.as_str());
            assert_eq!(PolicyName::named(name.as_str()), Some(name));
        }
    }

    #[test]
    fn the_first_valid_label_of_a_model_decides_its_policy() {
        let (roster, meters) = (
            Roster::new(PLACEMENT, Assignment::Random, BreakerRules::OFF),
            Meters::new(&[1.0]).unwrap(),
        );
        let policy = |model: &str| Arc::clone(&roster.load().models[model].policy);
        for (url, model, label, expected) in [
            ("http://w1", "a", None, "round_robin"),
            ("http://w2", "a", Some("no_such_policy"), "round_robin"),
            ("http://w3", "a", Some("least_load"), "least_load"),
            ("http://w4", "a", Some("bucket"), "least_load"),
            ("http://w5", "b", None, "round_robin"),
        ] {
            join(&roster, &meters, url, card(model, label));
            assert_eq!(policy(model).name(), expected, "{url}");
        }
        let before = policy("a");
        join(&roster, &meters, "http://w6", card("a", None));
        assert!(Arc::ptr_eq(&before, &policy("a")), "a join resets no policy");
    }
}
