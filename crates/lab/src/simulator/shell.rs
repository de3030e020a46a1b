//! What the gateway does with the core (its `session.rs`), without sockets and clocks: the same
//! steps, which are the core's own, with a gap between propose and land that others can slip through.
//! What is written here a second time is what the gateway keeps in a lease: a request's counts.

use std::rc::Rc;
use std::sync::Arc;

use smg_decide::fleet::breaker::{self, Outcome as Mark};
use smg_decide::fleet::load::Charge;
use smg_decide::fleet::{Leg, Worker, WorkerId};
use smg_decide::keys::scope::{Hashing, KeyHash, Scope};
use smg_decide::keys::{self, Places, Treatment};
use smg_decide::pins::table::Table;
use smg_decide::pins::{Outcome, Replacement, Rules, Step};
use smg_decide::place::{Ask, Assignment, Candidates, Policy, Prompt, Receipt};
use smg_decide::seat::{Landed, Look, Seat};

use super::fault::Fault;
use super::request::{OWN, Request};
use super::setting::{MODELS, Setting};
use crate::dice::Dice;

/// The workers of one model and what places requests among them.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) policy: Arc<dyn Policy>,
    /// Sorted by id.
    pub(super) workers: Vec<Arc<Worker>>,
}

/// A worker that is or was registered.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) worker: Arc<Worker>,
    pub(super) serves: [bool; MODELS],
    pub(super) listed: bool,
}

/// The core and what surrounds it.
#[derive(Debug)]
pub(super) struct Shell {
    fault: Option<Fault>,
    key_override: bool,
    assignment: Option<Assignment>,
    listed: &'static [&'static str],
    hashing: Hashing,
    pins: Table,
    manual: Table,
    /// By id.
    pub(super) members: Vec<Member>,
    pub(super) groups: Vec<Arc<Group>>,
    ended: u32,
}

/// What became of a request's key.
#[derive(Clone, Debug)]
pub(super) struct Asking {
    pub(super) treatment: Treatment,
    pub(super) key: Option<String>,
    pub(super) hash: Option<KeyHash>,
    /// The key that the policy sees.
    seen: Option<String>,
    now: u32,
}

/// A request that holds a proposal and has yet to land.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) request: Rc<Request>,
    asking: Asking,
    step: Step,
    group: Arc<Group>,
    pub(super) placed: WorkerId,
    pub(super) now: u32,
}

/// A request in flight.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) request: Rc<Request>,
    pub(super) worker: Arc<Worker>,
    asking: Asking,
    group: Arc<Group>,
    charge: Charge,
    /// Whether it is a probe of a half-open breaker.
    probe: bool,
    key: Option<(Whose, KeyHash)>,
    /// What the policy remembered when the choice was committed.
    receipt: Receipt,
}

/// Whose rules hold for a key.
#[derive(Clone, Copy, Debug)]
enum Whose {
    Override,
    Manual,
}

/// How a request came to fly.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    pub(super) outcome: Option<Outcome>,
    pub(super) proposal_used: bool,
    pub(super) first: bool,
}

/// What the first half of a choice comes to.
#[derive(Debug)]
pub(super) enum Choice {
    Flies(Flight, Told),
    Holds(Open, Step),
    Nobody(Step),
}

/// Breakers that trip soon and recover soon.
pub(super) const BREAKER: breaker::Rules =
    breaker::Rules { failures: Some(3), successes: 2, timeout_ms: 2000 };

/// A second of the pins' clock on the clock of breakers and policies.
pub(super) const fn millis(now: u32) -> u64 {
    now as u64 * 1000
}

impl Shell {
    pub(super) fn new(setting: &Setting, fault: Option<Fault>) -> Self {
        let mut pins = Rules::of_override(setting.assignment);
        let mut manual = Rules::MANUAL;
        match fault {
            Some(Fault::Threshold) => pins.threshold = pins.threshold.map(|most| most + 1),
            Some(Fault::ManualThreshold) => manual.threshold = pins.threshold,
            Some(Fault::Replacement) => {
                for rules in [&mut pins, &mut manual] {
                    rules.replacement = match rules.replacement {
                        Replacement::Leads => Replacement::Follows,
                        Replacement::Follows => Replacement::Leads,
                    };
                }
            }
            _ => {}
        }
        let pins = Table::new(pins, setting.max_keys);
        let mode = setting.assignment.unwrap_or(Assignment::Random);
        let group = || Arc::new(Group { policy: (setting.policy.make)(mode), workers: Vec::new() });
        Self {
            fault,
            key_override: setting.key_override,
            assignment: setting.assignment,
            listed: setting.listed,
            hashing: Hashing::new(*b"not much of one."),
            manual: pins.also(manual),
            pins,
            members: Vec::new(),
            groups: (0..MODELS).map(|_| group()).collect(),
            ended: 0,
        }
    }

    /// Key: what a choice may look at.
    pub(super) fn asking(&self, request: &Request, now: u32) -> Option<Asking> {
        let group = self.groups.get(request.model)?;
        let value = |name: &str| request.header(name).map(|text| text.sent.as_slice());
        let rid = request.rid.as_ref().and_then(|rid| std::str::from_utf8(&rid.sent).ok());
        let listed = self.listed.iter().map(|name| value(name));
        let places = |rid| Places { rid, listed: listed.clone(), own: value(OWN), opening: None };
        let sight = keys::sight(group.policy.keys(), self.key_override, places(rid));
        let treatment = sight.treatment;
        let key = match treatment {
            // One that hashes leaves suffixes where they are.
            Treatment::Pin if self.is(Fault::Unstripped) => {
                keys::derive(Treatment::Hash, places(rid.filter(|_| self.key_override)))
            }
            _ => sight.key,
        };
        let [key, seen] = [key, sight.seen].map(|key| key.map(|key| key.text.to_owned()));
        let model = match treatment {
            Treatment::PinManual => self.is(Fault::ScopedManual),
            _ => !self.is(Fault::Unscoped),
        };
        let model = model.then_some(if request.model == 0 { "llama" } else { "qwen" });
        let scope = Scope { model, leg: Leg::Regular };
        let hash = key.as_ref().map(|key| self.hashing.hash(scope, key.as_bytes()));
        Some(Asking { treatment, key, hash, seen, now })
    }

    /// Choose, up to the point where a proposal is in hand.
    pub(super) fn choose(
        &self,
        request: &Rc<Request>,
        asking: &Asking,
        dice: &mut Dice,
    ) -> Option<Choice> {
        let group = Arc::clone(self.groups.get(request.model)?);
        let available = |id| self.may_go(&group, request, asking, id);
        let pinned = with_ask(request, asking, |ask| {
            let seat = self.seat((request, asking), &group, ask, &available)?;
            Some(match seat.look()? {
                Look::Lands(landed) => Flies::Lands(landed),
                Look::Proposes(step) => Flies::Proposes(step, seat.propose(step, dice).1),
            })
        });
        match pinned {
            None => self.placed(request, asking, group, dice),
            Some(Flies::Lands(landed)) => {
                let (flight, told) = fly_landed((request, asking), &group, landed)?;
                Some(Choice::Flies(flight, told))
            }
            Some(Flies::Proposes(step, None)) => Some(Choice::Nobody(step)),
            Some(Flies::Proposes(step, Some(at))) => {
                let placed = group.workers.get(at)?.id;
                let (request, asking) = (Rc::clone(request), asking.clone());
                let now = asking.now;
                let open = Open { request, asking, step, group, placed, now };
                Some(Choice::Holds(open, step))
            }
        }
    }

    /// The second half: the proposal is brought to the table.
    pub(super) fn land(&self, open: Open) -> Option<(Flight, Told)> {
        let Open { request, asking, step, group, placed, now } = open;
        let available = |id| {
            let overwrites = self.is(Fault::Overwrite) && id != placed;
            self.may_go(&group, &request, &asking, id) && !overwrites
        };
        let landed = with_ask(&request, &asking, |ask| {
            let seat = self.seat((&request, &asking), &group, ask, &available)?;
            let landed = Seat { now, ..seat }.land(step, placed)?;
            let delegates = seat.assignment == Assignment::Delegate;
            if self.is(Fault::FalseCommit) && delegates && !landed.proposal_used {
                group.policy.commit(ask, group.workers.iter().find(|it| it.id == placed)?);
            }
            Some(landed)
        })?;
        fly_landed((&request, &asking), &group, landed)
    }

    /// The seat of a request that is pinned.
    fn seat<'a>(
        &'a self,
        (request, asking): (&'a Request, &'a Asking),
        group: &'a Group,
        ask: &'a Ask<'a>,
        available: &'a dyn Fn(WorkerId) -> bool,
    ) -> Option<Seat<'a>> {
        let whose = whose(asking.treatment)?;
        Some(Seat {
            table: self.table(whose),
            key: asking.hash?,
            assignment: match whose {
                Whose::Override => self.assignment.unwrap_or(Assignment::Delegate),
                // `manual` places by the mode itself.
                Whose::Manual => Assignment::Delegate,
            },
            keep_pin: request.keep_pin,
            now: asking.now,
            candidates: candidates(group, request, asking),
            available,
            policy: &*group.policy,
            ask,
        })
    }

    /// The policy alone decides.
    fn placed(
        &self,
        request: &Rc<Request>,
        asking: &Asking,
        group: Arc<Group>,
        dice: &mut Dice,
    ) -> Option<Choice> {
        let candidates = candidates(&group, request, asking);
        with_ask(request, asking, |ask| {
            let Some(at) = group.policy.propose(ask, &candidates, dice).at else {
                return Some(Choice::Nobody(Step::Place));
            };
            let worker = group.workers.get(at)?;
            let receipt = group.policy.commit(ask, worker);
            let key = asking.hash.map(|hash| (Whose::Override, hash));
            let first = key.is_some_and(|(whose, hash)| self.table(whose).enter(hash, worker.id));
            let outcome =
                (asking.treatment == Treatment::PinManual).then_some(Outcome::NoRoutingId);
            let told = Told { outcome, proposal_used: true, first };
            let flight = fly((request, asking), &group, at, (key, first))?;
            Some(Choice::Flies(Flight { receipt, ..flight }, told))
        })
    }

    /// A request ended like that; true if it was its key's last there. Fails where a count would
    /// fall below zero.
    pub(super) fn end(&mut self, flight: &Flight, mark: Mark, now: u32) -> Result<bool, String> {
        let Flight { request, worker, asking, group, charge, probe, key, receipt } = flight;
        worker.record(mark, millis(now));
        if mark == Mark::Failure {
            with_ask(request, asking, |ask| group.policy.undo(ask, worker, *receipt));
        }
        if *probe {
            worker.release();
        }
        self.ended += 1;
        let now_and_then = self.ended.is_multiple_of(8);
        if worker.in_flight() == 0 {
            return Err(format!("{:?} would have -1 requests in flight", worker.id));
        }
        if !(self.is(Fault::LeakedRequest) && now_and_then) {
            worker.end(*charge);
        }
        let Some((whose, hash)) = *key else { return Ok(false) };
        if self.is(Fault::LeakedFlight) && now_and_then {
            return Ok(false);
        }
        let last = self.table(whose).leave(hash, worker.id, now);
        if last && worker.keys_in_flight() == 0 {
            return Err(format!("{:?} would have -1 keys in flight", worker.id));
        }
        if last {
            worker.key_ends();
        }
        Ok(last)
    }

    /// Sweeps pins and policies; returns how many pins went.
    pub(super) fn sweep(&self, now: u32, max_idle: u32, interval: u32) -> usize {
        let late = if self.is(Fault::LateSweep) { interval } else { 0 };
        for group in &self.groups {
            group.policy.sweep(millis(now));
        }
        let max_idle = max_idle + late;
        self.pins.sweep(now, max_idle)
    }

    /// A worker joins that nobody knew.
    pub(super) fn add(&mut self, serves: [bool; MODELS]) {
        let id = WorkerId(u32::try_from(self.members.len()).unwrap_or(u32::MAX));
        self.members.push(Member { worker: stranger(id), serves, listed: true });
        self.regroup();
    }

    /// A worker leaves the lists. Its pins stay: it may come back.
    pub(super) fn remove(&mut self, id: WorkerId) {
        if let Some(member) = self.members.get_mut(id.0 as usize) {
            member.listed = false;
        }
        self.regroup();
        self.groups.iter().for_each(|group| group.policy.forget(id));
    }

    /// A worker that was removed registers again: under its id, as the counts of its requests that
    /// are still in flight are kept by id as well.
    pub(super) fn put_back(&mut self, id: WorkerId) {
        let anew = self.is(Fault::Stranger);
        if let Some(member) = self.members.get_mut(id.0 as usize) {
            member.listed = true;
            if anew {
                member.worker = stranger(id);
            }
        }
        self.regroup();
    }

    fn regroup(&mut self) {
        let members = &self.members;
        for (model, group) in self.groups.iter_mut().enumerate() {
            let serves = |member: &&Member| {
                member.listed && member.serves.get(model).is_some_and(|serves| *serves)
            };
            let workers = members.iter().filter(serves).map(|member| Arc::clone(&member.worker));
            let policy = Arc::clone(&group.policy);
            *group = Arc::new(Group { policy, workers: workers.collect() });
        }
    }

    /// All pins, those of `manual` among them.
    pub(super) const fn table_of_all(&self) -> &Table {
        &self.pins
    }

    fn may_go(&self, group: &Group, request: &Request, asking: &Asking, id: WorkerId) -> bool {
        let candidates = candidates(group, request, asking);
        let blind = self.is(Fault::Blind) && group.workers.iter().any(|worker| worker.id == id);
        candidates.find(id).is_some() || blind
    }

    const fn table(&self, whose: Whose) -> &Table {
        match whose {
            Whose::Override => &self.pins,
            Whose::Manual => &self.manual,
        }
    }

    fn is(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }
}

const fn whose(treatment: Treatment) -> Option<Whose> {
    match treatment {
        Treatment::Pin => Some(Whose::Override),
        Treatment::PinManual => Some(Whose::Manual),
        Treatment::Ignore | Treatment::Session | Treatment::Hash | Treatment::HashOwn => None,
    }
}

fn stranger(id: WorkerId) -> Arc<Worker> {
    let worker = Worker::new(id, format!("http://w{}", id.0), Leg::Regular).guarded(BREAKER);
    worker.set_healthy(true);
    Arc::new(worker)
}

/// What a pinned request's first steps come to.
enum Flies {
    Lands(Landed),
    Proposes(Step, Option<usize>),
}

/// Counts in a request that landed.
fn fly_landed(
    (request, asking): (&Rc<Request>, &Asking),
    group: &Arc<Group>,
    landed: Landed,
) -> Option<(Flight, Told)> {
    let Landed { worker, outcome, proposal_used, first, receipt } = landed;
    let at = group.workers.binary_search_by_key(&worker, |worker| worker.id).ok()?;
    let key = Some((whose(asking.treatment)?, asking.hash?));
    let flight = fly((request, asking), group, at, (key, first))?;
    let told = Told { outcome: Some(outcome), proposal_used, first };
    Some((Flight { receipt, ..flight }, told))
}

/// Counts a request in, as its key's `first` there or not.
fn fly(
    (request, asking): (&Rc<Request>, &Asking),
    group: &Arc<Group>,
    at: usize,
    (key, first): (Option<(Whose, KeyHash)>, bool),
) -> Option<Flight> {
    let worker = Arc::clone(group.workers.get(at)?);
    let charge = worker.begin(request.tokens);
    let probe = worker.pass(millis(asking.now)).is_some();
    if first {
        worker.key_begins();
    }
    let (request, asking) = (Rc::clone(request), asking.clone());
    let (group, receipt) = (Arc::clone(group), Receipt::default());
    Some(Flight { request, worker, asking, group, charge, probe, key, receipt })
}

/// Who may take the request, at the moment its choice began.
fn candidates<'a>(group: &'a Group, request: &'a Request, asking: &Asking) -> Candidates<'a> {
    Candidates::new(&group.workers, &request.excluded).at(millis(asking.now))
}

/// The request as policies see it.
fn with_ask<T>(request: &Request, asking: &Asking, then: impl FnOnce(&Ask<'_>) -> T) -> T {
    let target = request.target.map(|at| at.to_string());
    let prompt = [request.prompt.as_str()];
    let now = millis(asking.now);
    let mut ask = Ask { prompt: Prompt::Text(&prompt), now, ..Ask::default() };
    ask.key = asking.seen.as_deref();
    ask.target = target.as_ref().map(|text| text.as_bytes());
    ask.target = ask.target.filter(|_| asking.treatment == Treatment::HashOwn);
    then(&ask)
}
