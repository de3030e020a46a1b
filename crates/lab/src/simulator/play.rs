//! One seed: the core in its shell and the model of the document, side by side.

use std::collections::HashMap;
use std::rc::Rc;

use smg_decide::fleet::WorkerId;
use smg_decide::fleet::breaker::Outcome as Mark;
use smg_decide::keys::Treatment;
use smg_decide::keys::scope::KeyHash;
use smg_decide::pins::Outcome;
use smg_decide::place::Assignment;

use super::fault::Fault;
use super::model::{Check, Decision, Fate, Model, Name, View, ensure};
use super::policies::{Entry, Law};
use super::request::Request;
use super::setting::{Move, Setting};
use super::shell::{BREAKER, Choice, Flight, Open, Shell, Told, millis};
use super::sums::Sums;
use super::trail::Trail;
use crate::dice::Dice;

/// Everything that is so at one moment of a seed.
#[derive(Debug)]
pub(super) struct Play {
    pub(super) setting: Setting,
    pub(super) dice: Dice,
    pub(super) shell: Shell,
    pub(super) model: Model,
    pub(super) held: Vec<Held>,
    pub(super) flying: Vec<Flying>,
    /// What the pins' hashes stand for.
    pub(super) names: HashMap<KeyHash, Name>,
    pub(super) clock: u32,
    pub(super) next_sweep: u32,
    pub(super) trail: Trail,
    pub(super) sums: Sums,
}

/// A request between propose and land.
#[derive(Debug)]
pub(super) struct Held {
    open: Open,
    name: Name,
    view: View,
    outcome: Outcome,
}

/// A request in flight.
#[derive(Debug)]
pub(super) struct Flying {
    flight: Flight,
    name: Option<Name>,
}

/// Pins' clocks start late, so that one from an earlier run can be old.
const START: u32 = 100_000_000;
/// Proposals in the air at once.
const MOST_HELD: usize = 6;
/// Requests in flight at once.
const MOST_FLYING: usize = 24;

impl Play {
    pub(super) fn new(seed: u64, policies: &'static [Entry], fault: Option<Fault>) -> Option<Self> {
        let mut dice = Dice::new(seed);
        let setting = Setting::draw(policies, &mut dice)?;
        let interval = setting.eviction.map_or(u32::MAX, |eviction| eviction.interval);
        let mut play = Self {
            shell: Shell::new(&setting, fault),
            setting,
            dice,
            model: Model::default(),
            held: Vec::new(),
            flying: Vec::new(),
            names: HashMap::new(),
            clock: START,
            next_sweep: START.saturating_add(interval),
            trail: Trail::default(),
            sums: Sums::default(),
        };
        for _ in 0..play.dice.below(8) {
            play.join();
        }
        Some(play)
    }

    /// Something happens, and everything still holds.
    pub(super) fn step(&mut self) -> Check {
        let mut next = self.setting.mix.next(&mut self.dice);
        if self.flying.len() >= MOST_FLYING {
            next = Move::End;
        }
        match next {
            Move::Ask => self.ask()?,
            Move::Land => self.land_one()?,
            Move::End => {
                let failed = self.dice.below(8) == 0;
                self.end_one(if failed { Mark::Failure } else { Mark::Success })?;
            }
            Move::Retry => self.retry()?,
            Move::Pass => self.pass()?,
            fleet => self.change_fleet(fleet)?,
        }
        self.see_breakers(self.clock);
        self.agrees()
    }

    /// What is in the air lands, what is in flight ends, and nothing is left.
    pub(super) fn come_to_rest(&mut self) -> Check {
        while let Some(held) = self.held.pop() {
            self.land(held)?;
            self.see_breakers(self.clock);
            self.agrees()?;
        }
        while self.end_one(Mark::Nothing)?.is_some() {
            self.see_breakers(self.clock);
            self.agrees()?;
        }
        self.is_at_rest()
    }

    fn ask(&mut self) -> Check {
        let request = Request::draw(&self.setting, &mut self.dice);
        self.attempt(Rc::new(request))
    }

    /// A request or its next attempt is placed, or holds a proposal.
    fn attempt(&mut self, request: Rc<Request>) -> Check {
        self.see_breakers(self.clock);
        let fate = Model::fate(&self.setting, &request);
        let view = self.model.view(&request);
        let asking = self.shell.asking(&request, self.clock).ok_or("no group for the model")?;
        self.trail.say(|| {
            let (model, not) = (request.model, &request.excluded);
            let key = asking.key.as_deref().unwrap_or("-");
            format!("ask model {model} key {key:.24} {:?}, not {not:?}", asking.treatment)
        });
        let (pins, hashes) = match asking.treatment {
            Treatment::Pin | Treatment::PinManual => (true, false),
            Treatment::Hash | Treatment::HashOwn => (false, true),
            Treatment::Ignore | Treatment::Session => (false, false),
        };
        ensure(asking.key.as_ref() == fate.name().map(|name| &name.key), || {
            format!("the key is {:?}, not that of {fate:?}", asking.key)
        })?;
        let alike = match fate {
            Fate::Keyless => true,
            Fate::Hashed(_) => hashes,
            Fate::Pinned(_) => pins,
        };
        ensure(alike, || format!("{:?} is not what {fate:?} asks for", asking.treatment))?;
        self.learn(asking.hash, fate.name())?;
        self.sums.requests += 1;
        let expected = match &fate {
            Fate::Pinned(name) => Some(self.model.decides(name, &view)),
            Fate::Keyless | Fate::Hashed(_) => None,
        };
        let choice = self.shell.choose(&request, &asking, &mut self.dice);
        match (choice.ok_or("a worker was chosen that is not in the group")?, fate, expected) {
            (Choice::Flies(flight, told), Fate::Pinned(name), Some((outcome, _))) => {
                self.expects(outcome, told.outcome.unwrap_or(Outcome::NoRoutingId))?;
                let decision = self.model.lands(&self.setting, &name, &view, (None, self.clock))?;
                self.flew(flight, told, (Some(name), decision))
            }
            (Choice::Holds(open, step), Fate::Pinned(name), Some((outcome, _))) => {
                self.expects(outcome, step.outcome())?;
                self.placement_is_allowed(&view, &name, Some(open.placed))?;
                let held = Held { open, name, view, outcome };
                let stays = self.dice.below(100) < self.setting.mix.overtaken;
                if stays && self.held.len() < MOST_HELD {
                    self.trail.add(|| format!("; {outcome:?} holds {:?}", held.open.placed));
                    self.held.push(held);
                    return Ok(());
                }
                self.land(held)
            }
            (Choice::Nobody(step), Fate::Pinned(name), Some((outcome, _))) => {
                self.expects(outcome, step.outcome())?;
                self.nobody();
                self.placement_is_allowed(&view, &name, None)
            }
            (choice, fate, _) => self.placed(choice, fate, &view, &request),
        }
    }

    /// The policy alone decided.
    fn placed(&mut self, choice: Choice, fate: Fate, view: &View, request: &Request) -> Check {
        let (flown, placed) = match choice {
            Choice::Flies(flight, told) => {
                let id = flight.worker.id;
                (Some((flight, told)), Some(id))
            }
            Choice::Nobody(_) => (None, None),
            Choice::Holds(..) => return Err("an unpinned request holds a proposal".into()),
        };
        let key = fate.name().map(|name| name.key.as_str());
        match request.target.filter(|_| self.setting.name == "consistent_hashing") {
            // 000, the composition table: "`X-SMG-Target-Worker` still wins".
            Some(at) => {
                let target = self.model.target(view, at);
                // It does not say whether a retry may name the worker it has failed on.
                let again = target.is_some_and(|id| request.excluded.contains(&id));
                let wins = placed == target || again && placed.is_none();
                ensure(wins, || format!("{placed:?}, but {target:?} was named"))?;
            }
            None => self.model.allows((self.policy_mode(), self.law()), view, key, placed)?,
        }
        let Some((flight, told)) = flown else {
            self.nobody();
            return Ok(());
        };
        let worker = flight.worker.id;
        self.model.commits(view.model);
        let name = fate.name().cloned();
        let first = self.model.flies(name.as_ref(), worker);
        // 000, "Metrics": `no_routing_id` is a `manual` request without a key.
        let outcome = (self.setting.name == "manual").then_some(Outcome::NoRoutingId);
        let told_so = (told.outcome, told.first) == (outcome, first);
        ensure(told_so, || format!("{told:?}, but {outcome:?}, first {first}"))?;
        outcome.into_iter().for_each(|outcome| self.sums.decided(outcome));
        self.trail.add(|| format!("; the policy takes {worker:?}"));
        self.flying.push(Flying { flight, name });
        Ok(())
    }

    /// What was proposed is brought to the table.
    fn land(&mut self, held: Held) -> Check {
        let Held { open, name, view, outcome } = held;
        let (placed, now) = (open.placed, open.now);
        self.see_breakers(now);
        let decision = if open.request.keep_pin {
            self.model.detours((&name, outcome), placed, now)
        } else {
            self.model.lands(&self.setting, &name, &view, (Some(placed), now))?
        };
        let (flight, told) = self.shell.land(open).ok_or("a proposal did not land")?;
        if !decision.proposal_used {
            self.sums.overtaken += 1;
        } else if self.mode(&name) == Assignment::Delegate {
            self.model.commits(view.model);
        }
        self.flew(flight, told, (Some(name), decision))
    }

    /// A pinned request flies as the document says.
    fn flew(&mut self, flight: Flight, told: Told, by: (Option<Name>, Decision)) -> Check {
        let (name, wanted) = by;
        let Told { outcome, proposal_used, first } = told;
        let worker = flight.worker.id;
        let got = outcome.map(|outcome| Decision { worker, outcome, proposal_used, first });
        ensure(got == Some(wanted), || format!("the core says {got:?}, the document {wanted:?}"))?;
        self.sums.decided(wanted.outcome);
        self.trail.add(|| format!("; {} to {worker:?}", wanted.outcome.as_str()));
        if let Some(name) = &name {
            self.bound_holds(name)?;
        }
        self.flying.push(Flying { flight, name });
        Ok(())
    }

    fn land_one(&mut self) -> Check {
        if self.held.is_empty() {
            return Ok(());
        }
        let held = self.held.swap_remove(self.dice.below(self.held.len()));
        self.trail.say(|| format!("land {:?} of {:.24}", held.open.placed, held.name.key));
        self.land(held)
    }

    /// Ends a request in flight, if there is one.
    fn end_one(&mut self, mark: Mark) -> Result<Option<Flight>, String> {
        if self.flying.is_empty() {
            return Ok(None);
        }
        let Flying { flight, name } = self.flying.swap_remove(self.dice.below(self.flying.len()));
        let worker = flight.worker.id;
        let key = || name.as_ref().map_or("-", |name| &name.key);
        self.trail.say(|| format!("end {worker:?} key {:.24} {mark:?}", key()));
        let last = self.model.ends(name.as_ref(), worker, self.clock);
        let told = self.shell.end(&flight, mark, self.clock)?;
        ensure(told == last, || format!("the key's last request there: {told}, not {last}"))?;
        Ok(Some(flight))
    }

    /// A request fails on its worker and is tried again elsewhere.
    fn retry(&mut self) -> Check {
        // A worker that says it has enough is not broken.
        let busy = self.dice.below(3) == 0;
        let mark = if busy { Mark::Nothing } else { Mark::Failure };
        let Some(flight) = self.end_one(mark)? else { return Ok(()) };
        let mut again = Request::clone(&flight.request);
        again.excluded.push(flight.worker.id);
        again.keep_pin = busy;
        // It may wait before it tries again.
        if self.dice.below(3) == 0 {
            self.pass()?;
        }
        // Where nobody else is left, those it has failed on get another chance.
        if self.model.available(&self.model.view(&again)).is_empty() {
            again.excluded.clear();
        }
        self.attempt(Rc::new(again))
    }

    /// Time passes, and whenever a sweep is due there is one.
    fn pass(&mut self) -> Check {
        let eviction = self.setting.eviction;
        let (idle, interval) =
            eviction.map_or((9000, 120), |eviction| (eviction.max_idle, eviction.interval));
        let upto = match self.dice.below(4) {
            0 => 2,
            1 => interval,
            2 => idle,
            _ => idle + 2 * interval,
        };
        let until = self.clock + u32::try_from(self.dice.below(upto as usize + 1)).unwrap_or(0);
        self.trail.say(|| format!("pass to {until}"));
        while let Some(eviction) = eviction.filter(|_| self.next_sweep <= until) {
            self.clock = self.next_sweep;
            self.next_sweep += eviction.interval;
            let told = self.shell.sweep(self.clock, eviction.max_idle, eviction.interval);
            let swept = self.model.sweep(self.clock, eviction.max_idle);
            self.trail.add(|| format!("; {told} swept at {}", self.clock));
            ensure(told == swept, || format!("{told} pins swept, not {swept}"))?;
            self.sums.swept += swept;
        }
        self.clock = until;
        Ok(())
    }

    /// Which breakers let nobody through at `now`.
    pub(super) fn see_breakers(&mut self, now: u32) {
        for (seen, member) in self.model.workers.iter_mut().zip(&self.shell.members) {
            seen.tripped = !member.worker.breaker().admits(&BREAKER, millis(now));
        }
    }

    /// One hash stands for one name, and one name for one hash.
    fn learn(&mut self, hash: Option<KeyHash>, name: Option<&Name>) -> Check {
        let (Some(hash), Some(name)) = (hash, name) else { return Ok(()) };
        let known = self.names.entry(hash).or_insert_with(|| name.clone());
        let same = *known == *name;
        ensure(same, || format!("{name:?} is pinned as {known:?} is"))?;
        let hashes = self.names.iter().filter(|(_, known)| *known == name).count();
        ensure(hashes == 1, || format!("{name:?} is pinned in {hashes} places"))
    }

    /// Nothing is pinned when nobody is available, and nothing flies.
    fn nobody(&mut self) {
        self.sums.decided(Outcome::NoHealthyWorkers);
        self.trail.add(|| "; nobody".into());
    }

    fn expects(&self, wanted: Outcome, told: Outcome) -> Check {
        ensure(told == wanted, || {
            format!("the core says {}, the document {}", told.as_str(), wanted.as_str())
        })
    }

    fn placement_is_allowed(
        &mut self,
        view: &View,
        name: &Name,
        placed: Option<WorkerId>,
    ) -> Check {
        let (mode, law) = (self.mode(name), self.law());
        self.model.allows((mode, law), view, None, placed)
    }

    /// How a pinned key is placed (000, "Assignment Modes").
    fn mode(&self, name: &Name) -> Assignment {
        match name.model {
            Some(_) => self.setting.assignment.unwrap_or(Assignment::Delegate),
            None => self.policy_mode(),
        }
    }

    /// How the policy places: "`--policy manual` has nothing to delegate to", and is `random` unless
    /// told otherwise.
    fn policy_mode(&self) -> Assignment {
        match (self.law(), self.setting.assignment) {
            (Law::Mode, None) => Assignment::Random,
            (Law::Mode, Some(Assignment::Delegate)) => Assignment::MinLoad,
            (Law::Mode, Some(mode)) => mode,
            _ => Assignment::Delegate,
        }
    }

    pub(super) fn law(&self) -> Law {
        self.setting.policy.law
    }
}
