//! What the document (000, sticky sessions) says, as plainly as it says it: lists of at most two
//! workers by key, and counts. It shares no code with the core and is not fast.
//!
//! Where the document leaves something to chance or to a policy, the model takes what the core did,
//! asks whether that was allowed, and goes on from there.

use std::collections::BTreeMap;

use smg_decide::fleet::WorkerId;
use smg_decide::pins::Outcome;
use smg_decide::place::Assignment;

use super::policies::Law;
use super::request::{OWN, Request};
use super::setting::{MODELS, Setting};

/// What was expected and what came instead.
pub(super) type Check = Result<(), String>;

/// Fails with a reason.
pub(super) fn ensure(holds: bool, why: impl FnOnce() -> String) -> Check {
    if holds { Ok(()) } else { Err(why()) }
}

/// A pin's name: the override's are scoped by model, those of `manual` are not (000, "Scoping").
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    pub(super) model: Option<usize>,
    pub(super) key: String,
}

/// What becomes of a request's key (000, "How the Override Composes with Each Policy").
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It has none, or nobody asks.
    Keyless,
    /// A policy hashes it.
    Hashed(Name),
    /// The override pins it, or `manual` does.
    Pinned(Name),
}

impl Fate {
    pub(super) const fn name(&self) -> Option<&Name> {
        match self {
            Self::Keyless => None,
            Self::Hashed(name) | Self::Pinned(name) => Some(name),
        }
    }
}

/// Which workers a request may go to.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) model: usize,
    /// In list order.
    listed: Vec<WorkerId>,
    excluded: Vec<WorkerId>,
}

/// A request's decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Decision {
    pub(super) worker: WorkerId,
    pub(super) outcome: Outcome,
    /// Whether what was proposed was asked for in the end.
    pub(super) proposal_used: bool,
    /// Whether it is its key's first request in flight there.
    pub(super) first: bool,
}

/// A worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) serves: [bool; MODELS],
    pub(super) listed: bool,
    /// One bit for each ailment.
    pub(super) ailing: u32,
    /// Its breaker lets nobody through. When it does is for the breaker's own tests to say.
    pub(super) tripped: bool,
    pub(super) in_flight: u32,
}

impl Seen {
    /// 000, "Reuse and Failover".
    pub(super) const fn is_well(&self) -> bool {
        self.ailing == 0 && !self.tripped
    }
}

/// What is remembered for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Remembered {
    /// The first is tried first; two at most.
    pub(super) workers: Vec<WorkerId>,
    pub(super) used: u32,
}

/// The document, played.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) pins: BTreeMap<Name, Remembered>,
    pub(super) workers: Vec<Seen>,
    flights: BTreeMap<Name, BTreeMap<WorkerId, u32>>,
    /// Used proposals of a policy, for each model.
    turns: [usize; MODELS],
    /// Where a key was hashed to when these workers were available.
    hashed: BTreeMap<(String, Vec<WorkerId>), WorkerId>,
}

/// 000, "In-Flight Threshold".
const THRESHOLD: u32 = 2;
/// 000, "Reuse and Failover".
const REMEMBERED: usize = 2;

impl Model {
    /// 000, "Key Precedence" and the table of compositions.
    pub(super) fn fate(setting: &Setting, request: &Request) -> Fate {
        let rid = request.key_of_rid().filter(|_| setting.key_override);
        let scoped = |key| Name { model: Some(request.model), key };
        let hashed = |key: Option<String>| key.map(|key| Fate::Hashed(scoped(key)));
        let fate = match setting.name {
            "manual" => rid
                .or_else(|| request.key_for_manual())
                .map(|key| Fate::Pinned(Name { model: None, key })),
            "consistent_hashing" => {
                let headers = || request.key_of_headers(setting.listed, false);
                let own = || request.key_of_headers(&[OWN], false);
                hashed(rid.or_else(headers).or_else(own))
            }
            "prefix_hash" if !setting.key_override => {
                hashed(request.key_of_headers(setting.listed, false))
            }
            _ if setting.key_override => rid
                .or_else(|| request.key_of_headers(setting.listed, true))
                .map(|key| Fate::Pinned(scoped(key))),
            _ => None,
        };
        fate.unwrap_or(Fate::Keyless)
    }

    pub(super) fn view(&self, request: &Request) -> View {
        let serving = self.workers.iter().zip(0..).filter(|(worker, _)| {
            worker.listed && worker.serves.get(request.model).is_some_and(|serves| *serves)
        });
        View {
            model: request.model,
            listed: serving.map(|(_, id)| WorkerId(id)).collect(),
            excluded: request.excluded.clone(),
        }
    }

    /// The workers of the view that are available now.
    pub(super) fn available(&self, view: &View) -> Vec<WorkerId> {
        let may = |id: &WorkerId| self.is_available(view, *id);
        view.listed.iter().copied().filter(may).collect()
    }

    fn is_available(&self, view: &View, id: WorkerId) -> bool {
        let well = self.workers.get(id.0 as usize).is_some_and(Seen::is_well);
        well && view.listed.contains(&id) && !view.excluded.contains(&id)
    }

    /// The worker at this place of the list, if it is well; whoever names it means it.
    pub(super) fn target(&self, view: &View, at: usize) -> Option<WorkerId> {
        let id = *view.listed.get(at)?;
        self.workers.get(id.0 as usize)?.is_well().then_some(id)
    }

    /// Requests of the key in flight on a worker.
    pub(super) fn flying(&self, name: &Name, id: WorkerId) -> u32 {
        self.flights.get(name).and_then(|by| by.get(&id)).copied().unwrap_or(0)
    }

    /// Whether the key has requests in flight anywhere.
    pub(super) fn busy(&self, name: &Name) -> bool {
        self.flights.contains_key(name)
    }

    /// Distinct keys with requests in flight on a worker.
    pub(super) fn keys_in_flight(&self, id: WorkerId) -> u32 {
        let on = self.flights.values().filter(|by| by.contains_key(&id));
        u32::try_from(on.count()).unwrap_or(u32::MAX)
    }

    /// How a keyed request is decided, and the remembered worker that matters.
    ///
    /// 000, "Reuse and Failover": the first remembered worker that is available. "In-Flight
    /// Threshold": unless the key has two in flight there; `manual` has no such threshold.
    pub(super) fn decides(&self, name: &Name, view: &View) -> (Outcome, Option<WorkerId>) {
        let Some(pin) = self.pins.get(name) else { return (Outcome::Vacant, None) };
        let first = pin.workers.iter().copied().find(|id| self.is_available(view, *id));
        let is_override = name.model.is_some();
        match first {
            None => (Outcome::OccupiedMiss, None),
            Some(id) if is_override && self.flying(name, id) >= THRESHOLD => {
                (Outcome::CapRespill, Some(id))
            }
            Some(id) => (Outcome::OccupiedHit, Some(id)),
        }
    }

    /// A keyed request goes out; `placed` was proposed for it, perhaps some time ago.
    pub(super) fn lands(
        &mut self,
        setting: &Setting,
        name: &Name,
        view: &View,
        (placed, now): (Option<WorkerId>, u32),
    ) -> Result<Decision, String> {
        let (outcome, pinned) = self.decides(name, view);
        let mut workers = self.pins.get(name).map_or_else(Vec::new, |pin| pin.workers.clone());
        let proposed = || placed.ok_or_else(|| format!("{} without a placement", outcome.as_str()));
        let worker = match (outcome, pinned) {
            (Outcome::OccupiedHit, Some(pinned)) => pinned,
            (Outcome::CapRespill, Some(pinned)) => {
                let placed = proposed()?;
                // "The pin moves only if the placement picks a different worker that has fewer than
                // 2 of the key's requests in flight."
                if placed != pinned && self.flying(name, placed) < THRESHOLD {
                    workers = vec![placed, pinned];
                }
                placed
            }
            (Outcome::OccupiedMiss, _) => {
                let placed = proposed()?;
                replace(&mut workers, placed, leads(setting, name));
                placed
            }
            _ => {
                let placed = proposed()?;
                workers = vec![placed];
                placed
            }
        };
        // "Each request that reuses a pin refreshes it."
        let used = self.pins.get(name).map_or(now, |pin| pin.used.max(now));
        self.pins.insert(name.clone(), Remembered { workers, used });
        let first = self.flies(Some(name), worker);
        Ok(Decision { worker, outcome, proposal_used: outcome != Outcome::OccupiedHit, first })
    }

    /// A request goes round its busy pinned worker to what was placed, and nothing is pinned (ours:
    /// an answer of 429 does not walk a conversation away).
    pub(super) fn detours(
        &mut self,
        (name, outcome): (&Name, Outcome),
        placed: WorkerId,
        now: u32,
    ) -> Decision {
        if let Some(pin) = self.pins.get_mut(name) {
            pin.used = pin.used.max(now);
        }
        let first = self.flies(Some(name), placed);
        Decision { worker: placed, outcome, proposal_used: true, first }
    }

    /// A request is in flight; true if it is its key's first there.
    pub(super) fn flies(&mut self, name: Option<&Name>, id: WorkerId) -> bool {
        if let Some(worker) = self.workers.get_mut(id.0 as usize) {
            worker.in_flight += 1;
        }
        let Some(name) = name else { return false };
        let count = self.flights.entry(name.clone()).or_default().entry(id).or_default();
        *count += 1;
        *count == 1
    }

    /// It ended; true if it was its key's last there. A key is in use until its last request ends.
    pub(super) fn ends(&mut self, name: Option<&Name>, id: WorkerId, now: u32) -> bool {
        if let Some(worker) = self.workers.get_mut(id.0 as usize) {
            worker.in_flight -= 1;
        }
        let Some(name) = name else { return false };
        if let Some(pin) = self.pins.get_mut(name) {
            pin.used = pin.used.max(now);
        }
        let Some(by) = self.flights.get_mut(name) else { return false };
        let Some(count) = by.get_mut(&id) else { return false };
        *count -= 1;
        let last = *count == 0;
        if last {
            by.remove(&id);
        }
        if by.is_empty() {
            self.flights.remove(name);
        }
        last
    }

    /// 000, "Idle Eviction": what has not been used for so long goes. Returns how many went.
    pub(super) fn sweep(&mut self, now: u32, max_idle: u32) -> usize {
        let before = self.pins.len();
        let flights = &self.flights;
        self.pins.retain(|name, pin| now - pin.used < max_idle || flights.contains_key(name));
        before - self.pins.len()
    }

    /// A policy's proposal was used.
    pub(super) fn commits(&mut self, model: usize) {
        if let Some(turn) = self.turns.get_mut(model) {
            *turn += 1;
        }
    }

    /// Whether a placement is one the rule allows (000, "Assignment Modes").
    pub(super) fn allows(
        &mut self,
        (mode, law): (Assignment, Law),
        view: &View,
        key: Option<&str>,
        placed: Option<WorkerId>,
    ) -> Check {
        let available = self.available(view);
        let Some(placed) = placed else {
            return ensure(available.is_empty(), || format!("none of {available:?} was placed on"));
        };
        ensure(available.contains(&placed), || format!("{placed:?} is none of {available:?}"))?;
        let in_flight = |id: &WorkerId| self.workers.get(id.0 as usize).map(|seen| seen.in_flight);
        let allowed: Vec<_> = match (mode, law) {
            (Assignment::MinLoad, _) => least(&available, in_flight),
            (Assignment::MinGroup, _) => least(&available, |id| Some(self.keys_in_flight(*id))),
            (Assignment::Delegate, Law::Cycle) => {
                let turn = self.turns.get(view.model).copied().unwrap_or(0);
                available.iter().copied().cycle().nth(turn % available.len()).into_iter().collect()
            }
            (Assignment::Delegate, Law::First) => available.first().copied().into_iter().collect(),
            (Assignment::Delegate, Law::Ring) => match key {
                Some(key) => {
                    let same = (key.to_owned(), available);
                    vec![*self.hashed.entry(same).or_insert(placed)]
                }
                None => available,
            },
            (Assignment::Random, _) | (Assignment::Delegate, Law::Any | Law::Mode) => available,
        };
        ensure(allowed.contains(&placed), || {
            format!("{mode:?} under {law:?} placed on {placed:?}, not on one of {allowed:?}")
        })
    }
}

/// Under the override in `delegate` mode the replacement becomes the primary; "in the other modes,
/// and in every mode under `--policy manual`" it is added behind.
fn leads(setting: &Setting, name: &Name) -> bool {
    name.model.is_some() && matches!(setting.assignment, None | Some(Assignment::Delegate))
}

fn replace(workers: &mut Vec<WorkerId>, placed: WorkerId, leads: bool) {
    if leads {
        // "The new primary; the previous primary is kept as the failover candidate."
        workers.retain(|id| *id != placed);
        workers.insert(0, placed);
        workers.truncate(REMEMBERED);
    } else if !workers.contains(&placed) {
        // "Behind the existing candidate, dropping the older one when two are already remembered."
        workers.push(placed);
        if workers.len() > REMEMBERED {
            workers.remove(0);
        }
    }
}

fn least(of: &[WorkerId], by: impl Fn(&WorkerId) -> Option<u32>) -> Vec<WorkerId> {
    let least = of.iter().map(&by).min();
    of.iter().copied().filter(|id| Some(by(id)) == least).collect()
}
