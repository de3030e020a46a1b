//! The seeded simulator: the decision core in random interleavings, beside a model of the document.
//!
//! A seed draws flags, a fleet and a mix of events: requests of hot and rare conversations for two
//! models, ends, retries, proposals that others overtake, workers that fall, rise, come, go and come
//! back, time that passes. The real core decides (`decide`: keys, tables, policies, worker counts),
//! called as the gateway's session calls it ([`shell`]). A plain [`model`] of 000's sentences says what
//! was allowed, and after every step counts and pins must be the model's ([`laws`]).
//!
//! One seed always plays alike, so a failure names the command that plays it again. That the
//! simulator can fail is tested with rules broken on purpose ([`Fault`]).

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use command::{Args, main};
pub use fault::Fault;
pub use sums::Sums;

use model::Check;
use play::Play;
use policies::{Entry, POLICIES};

mod changes;
mod command;
mod fault;
mod laws;
mod model;
mod play;
mod policies;
mod request;
mod setting;
mod shell;
mod sums;
mod trail;

#[cfg(test)]
mod tests;

/// Steps of a seed, unless told otherwise.
pub const STEPS: usize = 500;

/// What is played.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Steps of the seed.
    pub steps: usize,
    /// A rule that is broken on purpose.
    pub fault: Option<Fault>,
    policies: &'static [Entry],
}

impl Plan {
    /// All policies.
    #[must_use]
    pub fn new(steps: usize, fault: Option<Fault>) -> Self {
        Self { steps, fault, policies: POLICIES }
    }

    /// Plays a seed to its end.
    ///
    /// # Errors
    /// When the core does other than the document says, with the way there.
    pub fn play(&self, seed: u64) -> Result<Sums, Box<Failure>> {
        let failure = |play: Option<Play>, why| {
            let setting = play.as_ref().map(|play| format!("{:?}", play.setting));
            let trail = play.map(|play| play.trail).unwrap_or_default();
            Box::new(Failure {
                seed,
                plan: *self,
                step: trail.step(),
                why,
                setting: setting.unwrap_or_default(),
                trail: trail.into_lines(),
            })
        };
        let Some(mut play) = Play::new(seed, self.policies, self.fault) else {
            return Err(failure(None, "there is no policy to play".into()));
        };
        for step in 1..=self.steps {
            play.trail.begin(step);
            // Nothing is used after a panic but the trail, which only grows.
            if let Err(why) = caught(AssertUnwindSafe(|| play.step())) {
                return Err(failure(Some(play), why));
            }
        }
        if let Err(why) = caught(AssertUnwindSafe(|| play.come_to_rest())) {
            return Err(failure(Some(play), why));
        }
        play.sums.steps = self.steps;
        Ok(play.sums)
    }
}

/// A panic of the core is a failure like any other: it has a seed too.
fn caught(step: AssertUnwindSafe<impl FnOnce() -> Check>) -> Check {
    catch_unwind(step).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("the core panicked: {}", text.unwrap_or("without a word")))
    })
}

/// Where the core and the document part, and how they came there.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Plays alike every time.
    pub seed: u64,
    /// The step that failed.
    pub step: usize,
    /// What was expected and what came.
    pub why: String,
    plan: Plan,
    setting: String,
    trail: Vec<String>,
}

impl std::error::Error for Failure {}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, step, why, plan, setting, trail } = self;
        writeln!(f, "seed {seed} fails in step {step}: {why}")?;
        writeln!(f, "under {setting}")?;
        writeln!(f, "the last steps:")?;
        for line in trail {
            writeln!(f, "{line}")?;
        }
        write!(f, "again: cargo run -p smg-lab --release -- simulate --seed {seed}")?;
        if plan.steps != STEPS {
            write!(f, " --steps {}", plan.steps)?;
        }
        match plan.fault {
            Some(fault) => write!(f, " --fault {}", fault.name()),
            None => Ok(()),
        }
    }
}
