//! What the gateway does with the core (its `session.rs`), without sockets and clocks: the same
//! calls in the same order, with a gap between propose and land that others can slip through.

use std::rc::Rc;
use std::sync::Arc;

use smg_decide::fleet::breaker::{self, Outcome as Mark};
use smg_decide::fleet::load::Charge;
use smg_decide::fleet::{Leg, Worker, WorkerId};
use smg_decide::keys::scope::{Hashing, KeyHash, Scope};
use smg_decide::keys::{self, Places, Treatment};
use smg_decide::pins::table::{Table, Turn};
use smg_decide::pins::{OVERRIDE_THRESHOLD, Outcome, Replacement, Rules, Step};
use smg_decide::place::{Ask, Assignment, Candidates, Policy, Prompt, Receipt};

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
    now: u32,
}

/// A request that holds a proposal and has yet to land.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) request: Rc<Request>,
    asking: Asking,
    hash: KeyHash,
    step: Step,
    group: Arc<Group>,
    at: usize,
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
    key: Option<(Seat, KeyHash)>,
    /// What the policy remembered when the choice was committed.
    receipt: Receipt,
}

/// Which table counts a key.
#[derive(Clone, Copy, Debug)]
enum Seat {
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
        let leads = matches!(setting.assignment, Some(Assignment::Delegate) | None);
        let replacement = |leads| if leads { Replacement::Leads } else { Replacement::Follows };
        let swapped = fault == Some(Fault::Replacement);
        let threshold = OVERRIDE_THRESHOLD + u32::from(fault == Some(Fault::Threshold));
        let manual = (fault == Some(Fault::ManualThreshold)).then_some(OVERRIDE_THRESHOLD);
        let pins = Rules { replacement: replacement(leads != swapped), threshold: Some(threshold) };
        let manual = Rules { replacement: replacement(swapped), threshold: manual };
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
        let treatment = keys::treatment(group.policy.keys(), self.key_override);
        let value = |name: &str| request.header(name).map(|text| text.sent.as_slice());
        let rid = request.rid.as_ref().and_then(|rid| std::str::from_utf8(&rid.sent).ok());
        // One that hashes leaves suffixes where they are.
        let reads = match treatment {
            Treatment::Pin if self.is(Fault::Unstripped) => Treatment::Hash,
            right => right,
        };
        let places = Places {
            rid: rid.filter(|_| self.key_override),
            listed: self.listed.iter().map(|name| value(name)),
            own: value(OWN),
        };
        let key = keys::derive(reads, places).map(|key| key.text.to_owned());
        let model = match treatment {
            Treatment::PinManual => self.is(Fault::ScopedManual),
            _ => !self.is(Fault::Unscoped),
        };
        let model = model.then_some(if request.model == 0 { "llama" } else { "qwen" });
        let scope = Scope { model, leg: Leg::Regular };
        let hash = key.as_ref().map(|key| self.hashing.hash(scope, key.as_bytes()));
        Some(Asking { treatment, key, hash, now })
    }

    /// Choose, up to the point where a proposal is in hand.
    pub(super) fn choose(
        &self,
        request: &Rc<Request>,
        asking: &Asking,
        dice: &mut Dice,
    ) -> Option<Choice> {
        let group = Arc::clone(self.groups.get(request.model)?);
        let (Some(seat), Some(hash)) = (seat(asking.treatment), asking.hash) else {
            return self.placed(request, asking, group, dice);
        };
        let available = |id| self.may_go(&group, request, asking, id);
        match self.table(seat).turn(hash, None, asking.now, available) {
            Turn::Fly { worker, outcome, proposal_used, first } => {
                let told = Told { outcome: Some(outcome), proposal_used, first };
                let at = group.workers.binary_search_by_key(&worker, |worker| worker.id).ok()?;
                let flight = fly((request, asking), &group, at, (Some((seat, hash)), first))?;
                Some(Choice::Flies(flight, told))
            }
            Turn::Propose(step) => {
                let candidates = candidates(&group, request, asking);
                with_ask(request, asking, |ask| {
                    let policy = &*group.policy;
                    let proposal = self.mode(seat).propose(policy, ask, &candidates, dice);
                    let Some(at) = proposal.at else { return Some(Choice::Nobody(step)) };
                    let placed = group.workers.get(at)?.id;
                    let (request, asking) = (Rc::clone(request), asking.clone());
                    let (now, group) = (asking.now, Arc::clone(&group));
                    let open = Open { request, asking, hash, step, group, at, placed, now };
                    Some(Choice::Holds(open, step))
                })
            }
        }
    }

    /// The second half: the proposal is brought to the table.
    pub(super) fn land(&self, open: Open) -> Option<(Flight, Told)> {
        let Open { request, asking, hash, step, group, at, placed, now } = open;
        let seat = seat(asking.treatment)?;
        let available = |id| {
            let overwrites = self.is(Fault::Overwrite) && id != placed;
            self.may_go(&group, &request, &asking, id) && !overwrites
        };
        let table = self.table(seat);
        let turn = if request.keep_pin {
            table.detour(hash, step, placed, now)
        } else {
            table.turn(hash, Some(placed), now, available)
        };
        let Turn::Fly { worker, outcome, proposal_used, first } = turn else {
            return None;
        };
        let mut receipt = Receipt::default();
        let delegates = self.mode(seat) == Assignment::Delegate;
        if delegates && (proposal_used || self.is(Fault::FalseCommit)) {
            let proposal = group.workers.get(at)?;
            receipt = with_ask(&request, &asking, |ask| group.policy.commit(ask, proposal));
        }
        let at = group.workers.binary_search_by_key(&worker, |worker| worker.id).ok()?;
        let flight = fly((&request, &asking), &group, at, (Some((seat, hash)), first))?;
        let flight = Flight { receipt, ..flight };
        Some((flight, Told { outcome: Some(outcome), proposal_used, first }))
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
            let key = asking.hash.map(|hash| (Seat::Override, hash));
            let first = key.is_some_and(|(seat, hash)| self.table(seat).enter(hash, worker.id));
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
        let Some((seat, hash)) = *key else { return Ok(false) };
        if self.is(Fault::LeakedFlight) && now_and_then {
            return Ok(false);
        }
        let last = self.table(seat).leave(hash, worker.id, now);
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

    const fn table(&self, seat: Seat) -> &Table {
        match seat {
            Seat::Override => &self.pins,
            Seat::Manual => &self.manual,
        }
    }

    /// `manual` places by the mode itself.
    fn mode(&self, seat: Seat) -> Assignment {
        match seat {
            Seat::Override => self.assignment.unwrap_or(Assignment::Delegate),
            Seat::Manual => Assignment::Delegate,
        }
    }

    fn is(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }
}

const fn seat(treatment: Treatment) -> Option<Seat> {
    match treatment {
        Treatment::Pin => Some(Seat::Override),
        Treatment::PinManual => Some(Seat::Manual),
        Treatment::Ignore | Treatment::Hash | Treatment::HashOwn => None,
    }
}

fn stranger(id: WorkerId) -> Arc<Worker> {
    let worker = Worker::new(id, format!("http://w{}", id.0), Leg::Regular).guarded(BREAKER);
    worker.set_healthy(true);
    Arc::new(worker)
}

/// Counts a request in, as its key's `first` there or not.
fn fly(
    (request, asking): (&Rc<Request>, &Asking),
    group: &Arc<Group>,
    at: usize,
    (key, first): (Option<(Seat, KeyHash)>, bool),
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
    let hashed = matches!(asking.treatment, Treatment::Hash | Treatment::HashOwn);
    let target = request.target.map(|at| at.to_string());
    let prompt = [request.prompt.as_str()];
    let now = millis(asking.now);
    let mut ask = Ask { prompt: Prompt::Text(&prompt), now, ..Ask::default() };
    ask.key = asking.key.as_deref().filter(|_| hashed);
    ask.target = target.as_ref().map(|text| text.as_bytes());
    ask.target = ask.target.filter(|_| asking.treatment == Treatment::HashOwn);
    then(&ask)
}
