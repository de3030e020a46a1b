//! The choice of a worker: a key's pin, else the policy. Only this module writes pins.

mod affinity;
mod ids;
mod lease;
mod opening;
mod responses;
mod sharing;
mod snapshot;
#[cfg_attr(
    not(feature = "redis"),
    expect(dead_code, reason = "a build without any store makes no use of what is around one")
)]
mod store;
mod turn;

use std::sync::Arc;

use http::{HeaderMap, HeaderName};
use rand::Rng;
use smallvec::SmallVec;
use smg_decide::fleet::{Leg, WorkerId};
use smg_decide::keys::scope::{Hashing, KeyHash, Scope};
use smg_decide::keys::{self, Key, Places, Sight, Treatment};
use smg_decide::mode::{self, Mode};
use smg_decide::pins::table::Table;
use smg_decide::pins::{Outcome, Rules};
use smg_decide::place::{Ask, Assignment, Candidates, Imbalance, Prompt, Sought};
use smg_wire::header::ROUTING_KEY;

use self::affinity::Presented;
use self::ids::Ids;
use self::lease::Flight;
pub(crate) use self::lease::Lease;
pub(crate) use self::responses::Responses;
pub(crate) use self::sharing::share;
pub use self::sharing::try_out as try_store;
pub use self::snapshot::try_out as try_snapshot;
use self::store::Shared;
use self::turn::Turn;

use crate::clock::Clock;
use crate::fleet::{Group, Roster};
use crate::settings::{Affinity, Eviction, Sticky};
use crate::telemetry::StickyMeters;

/// Names a worker outright, for `consistent_hashing`.
const TARGET_WORKER: HeaderName = HeaderName::from_static("x-smg-target-worker");

/// The pins of this replica and how keys are found.
#[derive(Debug)]
pub(crate) struct Session {
    rules: Sticky,
    hashing: Hashing,
    /// The override's pins, by model and leg; also counts keys in flight that a policy hashes.
    pins: Arc<Table>,
    /// The pins of `manual`, by leg: the same table, so that one bound holds for all pins.
    manual: Arc<Table>,
    pub(crate) responses: Arc<Responses>,
    ids: Ids,
    imbalance: Option<Imbalance>,
    /// Where replicas share what session keys are pinned to.
    store: Option<Arc<Shared>>,
    /// The same where it has routing keys too.
    routing_store: Option<Arc<Shared>>,
    clock: Clock,
}

/// What the choice for one request rests on.
#[derive(Debug)]
pub(crate) struct Asking<'a> {
    treatment: Treatment,
    key: Option<Key<'a>>,
    presented: Presented<'a>,
    pub(crate) ask: Ask<'a>,
    pub(crate) way: Way,
}

/// What the body of a request says, as far as it was read.
#[derive(Debug, Default)]
pub(crate) struct Told<'a> {
    pub(crate) rid: Option<&'a str>,
    /// A hash of the messages it opens with ([`Session::opening`]).
    pub(crate) opening: Option<&'a str>,
    pub(crate) prompt: Prompt<'a>,
}

/// What decides where a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The key's pin, else the policy.
    Sticky,
    /// Nothing: any available worker will do.
    Anywhere,
    /// The policy alone, whatever the key: nothing is pinned at a vendor (000, "Self-hosted workers
    /// only").
    Placed,
    /// It is about something that this worker alone has.
    Home(WorkerId),
}

impl Asking<'_> {
    /// Whether it goes on with what is somewhere, so that its answer says where that is.
    const fn goes_on(&self) -> bool {
        matches!(self.way, Way::Sticky | Way::Home(_))
    }
}

/// What earlier attempts of a request leave for the next one.
#[derive(Debug, Default)]
pub(crate) struct Round {
    /// Workers that have failed it.
    pub(crate) excluded: SmallVec<[WorkerId; 4]>,
    /// The last one is busy, not broken: a key pinned there stays pinned there.
    pub(crate) keep_pin: bool,
}

impl Session {
    /// An empty session, or one that remembers what the snapshot file holds.
    pub(crate) fn new(rules: Sticky, fleet: &Roster, clock: Clock) -> Self {
        let pins = Table::new(Rules::of_override(rules.assignment), rules.max_keys);
        let mut session = Self {
            hashing: Hashing::new(rand::random()),
            manual: Arc::new(pins.also(Rules::MANUAL)),
            pins: Arc::new(pins),
            responses: Arc::new(Responses::new(clock)),
            ids: Ids::new(&[], true),
            imbalance: None,
            store: None,
            routing_store: None,
            clock,
            rules,
        };
        if let Some(file) = session.rules.snapshot.clone() {
            snapshot::restore(&mut session, &file, fleet);
        }
        session
    }

    /// The same for agents' sessions too, with what replicas share.
    pub(crate) fn sharing(self, affinity: &Affinity, store: Option<Arc<Shared>>) -> Self {
        let ids = Ids::new(&affinity.id_secrets, affinity.accept_bare);
        let routing_keys = affinity.store.as_ref().is_some_and(|store| store.routing_keys);
        let routing_store = store.clone().filter(|_| routing_keys);
        Self { ids, imbalance: affinity.imbalance, store, routing_store, ..self }
    }

    /// Whether the override is on, so that every body is read for its `rid`.
    pub(crate) const fn reads_rid(&self) -> bool {
        self.rules.key_override
    }

    /// What stands for the messages a conversation opens with: nothing of them can be told from it.
    pub(crate) fn opening(&self, messages: &[u8]) -> String {
        let scope = Scope { model: None, leg: Leg::Regular };
        match &self.routing_store {
            // All replicas have to call it the same.
            Some(store) => store.routing_name(scope, messages).to_string(),
            None => format!("{:?}", self.hashing.hash(scope, messages)),
        }
    }

    /// Key: what the choice may look at under the group's policy.
    pub(crate) fn asking<'a>(
        &self,
        group: &Group,
        headers: &'a HeaderMap,
        told: Told<'a>,
    ) -> Asking<'a> {
        let Told { rid, opening, prompt } = told;
        let uses = group.policy.keys();
        let value = |name: &HeaderName| headers.get(name).map(|value| value.as_bytes());
        let listed = self.rules.headers.iter().map(value);
        let places = Places { rid, listed, own: value(&ROUTING_KEY), opening };
        let Sight { treatment, key, seen } = keys::sight(uses, self.rules.key_override, places);
        let (presented, sought) = match mode::of(false, uses) {
            Mode::Affinity => self.presented(&group.model, key.map(|key| key.text), headers),
            Mode::Keys | Mode::Providers => (Presented::default(), Sought::default()),
        };
        let ask = Ask {
            sought,
            key: seen.map(|key| key.text),
            target: value(&TARGET_WORKER).filter(|_| treatment == Treatment::HashOwn),
            prompt,
            now: self.clock.millis(),
            ..Ask::default()
        };
        Asking { treatment, key, presented, ask, way: Way::Sticky }
    }

    /// Choose: a worker for the request, counted as in flight there; `None` when none is available.
    pub(crate) async fn choose(
        &self,
        group: &Group,
        asking: &Asking<'_>,
        round: &Round,
        meters: &StickyMeters,
    ) -> Option<Lease> {
        let mut lease = self.chosen(group, asking, round, meters).await?;
        lease.session = self.id(asking, &group.model, &lease.upstream);
        Some(lease)
    }

    async fn chosen(
        &self,
        group: &Group,
        asking: &Asking<'_>,
        round: &Round,
        meters: &StickyMeters,
    ) -> Option<Lease> {
        let now = self.clock.millis();
        match asking.way {
            Way::Sticky if asking.treatment == Treatment::Session => {
                self.affine(group, asking, round).await
            }
            Way::Sticky => self.sticky(group, asking, round, meters).await,
            Way::Anywhere => {
                let candidates = Candidates::new(&group.workers, &round.excluded).at(now);
                Lease::new(group, candidates.any(&mut rand::rng())?, self.clock)
            }
            Way::Placed => {
                let candidates = Candidates::new(&group.workers, &round.excluded).at(now);
                self.placed(group, asking, &candidates, &mut rand::rng())
            }
            // Nobody else has it, so it is asked again after a failure too.
            Way::Home(worker) => {
                let at = Candidates::new(&group.workers, &[]).at(now).find(worker)?;
                Some(Lease::new(group, at, self.clock)?.by(Outcome::OccupiedHit))
            }
        }
    }

    async fn sticky(
        &self,
        group: &Group,
        asking: &Asking<'_>,
        round: &Round,
        meters: &StickyMeters,
    ) -> Option<Lease> {
        let candidates = Candidates::new(&group.workers, &round.excluded).at(self.clock.millis());
        let turn = |table, key, assignment| Turn {
            group,
            table,
            key,
            assignment,
            keep_pin: round.keep_pin,
            now: self.now(),
            candidates,
            ask: &asking.ask,
        };
        match (asking.treatment, asking.key) {
            (Treatment::Pin, Some(key)) => {
                let scope = Scope { model: Some(&group.model), leg: Leg::Regular };
                let assignment = self.rules.assignment.unwrap_or(Assignment::Delegate);
                let hash = self.hashing.hash(scope, key.text.as_bytes());
                let lease = self.pinned(turn(&self.pins, hash, assignment), scope, key).await;
                let outcome = lease.as_ref().map_or(Outcome::NoHealthyWorkers, |it| it.outcome);
                meters.decided(outcome, Some(key.source), self.entries());
                log(group, key, outcome, lease.as_ref());
                lease
            }
            (Treatment::PinManual, Some(key)) => {
                let scope = Scope { model: None, leg: Leg::Regular };
                let hash = self.hashing.hash(scope, key.text.as_bytes());
                // The policy places by the assignment mode itself.
                let turn = turn(&self.manual, hash, Assignment::Delegate);
                let lease = self.pinned(turn, scope, key).await;
                let outcome = lease.as_ref().map_or(Outcome::NoHealthyWorkers, |it| it.outcome);
                meters.decided(outcome, None, self.entries());
                lease
            }
            (treatment, key) => {
                let lease = self.placed(group, asking, &candidates, &mut rand::rng());
                if treatment == Treatment::PinManual {
                    let outcome = match lease {
                        Some(_) => Outcome::NoRoutingId,
                        None => Outcome::NoHealthyWorkers,
                    };
                    meters.decided(outcome, None, self.entries());
                }
                let key = key.map(|key| self.hash_bytes(Some(&group.model), key.text.as_bytes()));
                lease.map(|lease| lease.flying(key.map(|key| self.hashed(key))))
            }
        }
    }

    /// The policy alone decides.
    fn placed(
        &self,
        group: &Group,
        asking: &Asking<'_>,
        candidates: &Candidates<'_>,
        dice: &mut dyn Rng,
    ) -> Option<Lease> {
        let proposal = group.policy.propose(&asking.ask, candidates, dice);
        group.branches.decided(&proposal);
        let at = proposal.at?;
        let receipt = group.policy.commit(&asking.ask, group.workers.get(at)?);
        let mut lease = Lease::new(group, at, self.clock)?;
        lease.receipt = receipt;
        Some(lease)
    }

    /// A keyed request's turn at its pin.
    async fn pinned(&self, turn: Turn<'_>, scope: Scope<'_>, key: Key<'_>) -> Option<Lease> {
        let landed = match &self.routing_store {
            None => turn.alone()?,
            Some(store) => {
                let name = store.routing_name(scope, key.text.as_bytes());
                turn.shared(store, &name).await?
            }
        };
        let Turn { group, table, key, .. } = turn;
        let flight = Flight::counted(Arc::clone(table), key, landed.first);
        let at = group.workers.binary_search_by_key(&landed.worker, |worker| worker.id).ok()?;
        let mut lease = Lease::new(group, at, self.clock)?.by(landed.outcome).flying(Some(flight));
        lease.receipt = landed.receipt;
        Some(lease)
    }

    /// A key that a policy hashes: not pinned, but its requests in flight are counted.
    fn hashed(&self, key: KeyHash) -> Flight {
        Flight::uncounted(Arc::clone(&self.pins), key)
    }

    fn hash_bytes(&self, model: Option<&str>, key: &[u8]) -> KeyHash {
        self.hashing.hash(Scope { model, leg: Leg::Regular }, key)
    }

    fn entries(&self) -> usize {
        self.pins.len()
    }

    /// Evicts idle pins for ever; returns at once when nothing is ever evicted.
    pub(crate) async fn sweep(&self, meters: &StickyMeters) {
        let Some(Eviction { max_idle_secs, interval }) = self.rules.eviction else { return };
        loop {
            tokio::time::sleep(interval).await;
            let now = self.now();
            let evicted = self.pins.sweep(now, max_idle_secs);
            let remaining = self.entries();
            meters.set_entries(remaining);
            if evicted > 0 {
                tracing::info!(
                    "ManualPolicy TTL eviction: evicted {evicted} entries, remaining {remaining} \
                     (max_idle: {max_idle_secs}s)"
                );
            }
        }
    }

    /// Writes the snapshot file, if there is to be one.
    pub(crate) fn save(&self, fleet: &Roster) {
        let Some(file) = &self.rules.snapshot else { return };
        match snapshot::save(self, file, fleet) {
            Ok(pins) => tracing::debug!(pins, file = %file.display(), "sticky snapshot written"),
            Err(error) => {
                tracing::warn!(%error, file = %file.display(), "sticky snapshot not written");
            }
        }
    }

    /// Whether pins are to outlive this process.
    pub(crate) const fn is_saved(&self) -> bool {
        self.rules.snapshot.is_some()
    }

    fn now(&self) -> u32 {
        self.clock.secs()
    }
}

/// One line for each decision of the override (000, "Debug Logs").
fn log(group: &Group, key: Key<'_>, outcome: Outcome, lease: Option<&Lease>) {
    let model = &*group.model;
    tracing::debug!(
        source = key.source.as_str(),
        // As text, which is quoted: a `rid` may hold a line break.
        key = format!("{}:{model}:{}:{}", model.len(), Leg::Regular.letter(), key.text),
        branch = outcome.as_str(),
        worker = lease.map_or("none", |lease| &lease.upstream.worker.url),
        model_id = model,
        "Sticky routing decision"
    );
}
