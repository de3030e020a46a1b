//! What happened in all: a run that never respilled has not tested the threshold.

use std::fmt;

use smg_decide::pins::Outcome;

/// Counts over one seed or many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Steps played.
    pub steps: usize,
    /// Requests, each attempt counted.
    pub requests: usize,
    /// Sticky decisions, in the order of [`Outcome::ALL`].
    pub outcomes: [usize; Outcome::ALL.len()],
    /// Proposals that another request of the key made needless.
    pub overtaken: usize,
    /// Pins that were idle too long.
    pub swept: usize,
    /// Pins that went because the table was full.
    pub displaced: usize,
}

impl Sums {
    pub(super) fn decided(&mut self, outcome: Outcome) {
        for (count, one) in self.outcomes.iter_mut().zip(Outcome::ALL) {
            *count += usize::from(one == outcome);
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.requests += other.requests;
        for (count, more) in self.outcomes.iter_mut().zip(other.outcomes) {
            *count += more;
        }
        self.overtaken += other.overtaken;
        self.swept += other.swept;
        self.displaced += other.displaced;
    }
}

impl fmt::Display for Sums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { steps, requests, outcomes, overtaken, swept, displaced } = self;
        write!(f, "{steps} steps, {requests} requests")?;
        for (count, outcome) in outcomes.iter().zip(Outcome::ALL) {
            write!(f, ", {count} {}", outcome.as_str())?;
        }
        write!(f, ", {overtaken} overtaken, {swept} swept, {displaced} displaced")
    }
}
