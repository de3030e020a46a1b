//! Changes of the fleet, and what must not move with them.

use smg_decide::fleet::load::Report;
use smg_decide::fleet::{Worker, WorkerId};
use smg_decide::place::{Ask, Candidates};

use super::model::{Check, Seen, ensure};
use super::play::Play;
use super::policies::Law;
use super::setting::{MODELS, Move};
use super::shell::millis;

/// A way in which a worker is unavailable, and the way out of it (000: "healthy, with its circuit
/// breaker not open, and not vetoed by overload protection"). A new one is a line.
type Ailment = (&'static str, fn(&Worker, bool));
const AILMENTS: &[Ailment] =
    &[("healthy", Worker::set_healthy), ("not vetoed", |worker, well| worker.set_vetoed(!well))];

/// Workers there ever are.
const MOST_WORKERS: usize = 10;
/// Keys whose places on a ring are watched.
const WATCHED: usize = 24;

/// What a change does to the workers that can be chosen.
enum Change {
    Lost(WorkerId),
    Won(WorkerId),
}

/// Where keys are hashed to, by model and key.
type Places = Vec<Option<WorkerId>>;

impl Play {
    pub(super) fn change_fleet(&mut self, what: Move) -> Check {
        let ring = self.law() == Law::Ring;
        let before = if ring { self.places() } else { Places::new() };
        let change = match what {
            Move::Fall | Move::Rise => self.turn(what == Move::Rise),
            Move::Add => self.add()?,
            Move::Remove | Move::Return => self.list(what == Move::Return),
            _ => {
                self.report();
                None
            }
        };
        let Some(change) = change.filter(|_| ring) else { return Ok(()) };
        before
            .iter()
            .zip(self.places())
            .try_for_each(|(before, after)| stays(&change, *before, after))
    }

    /// A worker that nobody knew joins, at the start.
    pub(super) fn join(&mut self) -> Option<WorkerId> {
        if self.model.workers.len() >= MOST_WORKERS {
            return None;
        }
        let serves = match self.dice.below(4) {
            0 => [true, false],
            1 => [false, true],
            _ => [true; MODELS],
        };
        let id = WorkerId(u32::try_from(self.model.workers.len()).ok()?);
        self.trail.say(|| format!("add {id:?} for {serves:?}"));
        self.model.workers.push(Seen {
            serves,
            listed: true,
            ailing: 0,
            tripped: false,
            in_flight: 0,
        });
        self.shell.add(serves);
        Some(id)
    }

    fn add(&mut self) -> Result<Option<Change>, String> {
        let before = self.homes();
        let Some(id) = self.join() else { return Ok(None) };
        let after = self.homes();
        ensure(before == after, || {
            format!("keys moved as {id:?} was added: {before:?}, {after:?}")
        })?;
        Ok(Some(Change::Won(id)))
    }

    /// One ailment begins or ends.
    fn turn(&mut self, well: bool) -> Option<Change> {
        let at = self.dice.below(self.model.workers.len());
        let which = self.dice.below(AILMENTS.len());
        let (name, set) = AILMENTS.get(which)?;
        let (worker, seen) = (&self.shell.members.get(at)?.worker, self.model.workers.get_mut(at)?);
        set(worker, well);
        let was = seen.ailing;
        let bit = 1 << which;
        seen.ailing = if well { was & !bit } else { was | bit };
        let id = worker.id;
        self.trail.say(|| format!("{name} {id:?}: {well}"));
        match (was, seen.ailing) {
            (0, 0) => None,
            (0, _) => Some(Change::Lost(id)),
            (_, 0) => Some(Change::Won(id)),
            _ => None,
        }
    }

    /// A worker is removed from the lists, or comes back.
    fn list(&mut self, listed: bool) -> Option<Change> {
        let at = self.dice.below(self.model.workers.len());
        let seen = self.model.workers.get_mut(at).filter(|seen| seen.listed != listed)?;
        seen.listed = listed;
        let id = WorkerId(u32::try_from(at).ok()?);
        self.trail.say(|| format!("{} {id:?}", if listed { "return" } else { "remove" }));
        if listed {
            // Whoever registers has proven well.
            seen.ailing = 0;
            self.shell.put_back(id);
            let worker = &self.shell.members.get(at)?.worker;
            AILMENTS.iter().for_each(|(_, set)| set(worker, true));
            return Some(Change::Won(id));
        }
        self.shell.remove(id);
        Some(Change::Lost(id))
    }

    /// Engines say how they fare, or one does not answer.
    fn report(&mut self) {
        self.trail.say(|| "reports".into());
        for member in &self.shell.members {
            let mut below = |most| u32::try_from(self.dice.below(most)).unwrap_or(0);
            let report = Report {
                running: below(20),
                waiting: below(8),
                waiting_tokens: below(20_000),
                throughput: if below(3) == 0 { 0.0 } else { 800.0 },
                token_usage: 0.5,
            };
            member.worker.load().set_report((below(4) > 0).then_some(report));
        }
    }

    fn places(&mut self) -> Places {
        let now = millis(self.clock);
        let mut places = Places::new();
        for group in &self.shell.groups {
            let candidates = Candidates::new(&group.workers, &[]).at(now);
            for n in 0..WATCHED {
                let key = format!("watched {n}");
                let ask = Ask { key: Some(&key), ..Ask::default() };
                let at = group.policy.propose(&ask, &candidates, &mut self.dice).at;
                places.push(at.and_then(|at| group.workers.get(at)).map(|worker| worker.id));
            }
        }
        places
    }
}

/// A worker that is lost moves its own keys and no others; one that is won takes keys to itself
/// only. Both hold for one that the model does not list: nothing moves.
fn stays(change: &Change, before: Option<WorkerId>, after: Option<WorkerId>) -> Check {
    let holds = match *change {
        Change::Lost(id) => after != Some(id) && (before == Some(id) || after == before),
        Change::Won(id) => after == before || after == Some(id),
    };
    ensure(holds, || match change {
        Change::Lost(id) => format!("a key moved from {before:?} to {after:?} as {id:?} was lost"),
        Change::Won(id) => format!("a key moved from {before:?} to {after:?} as {id:?} was won"),
    })
}
