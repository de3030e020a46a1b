//! Rules broken on purpose. A simulator that cannot fail proves nothing, so each of these has to be
//! noticed; the tests ask for that, and `--fault` shows it.

use clap::ValueEnum;

/// What is wrong with the shell that runs the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Fault {
    /// The override places a key again from its fourth request in flight, not its third.
    Threshold,
    /// `manual` has a threshold too.
    ManualThreshold,
    /// A replacement follows where it should lead, and leads where it should follow.
    Replacement,
    /// A sweep keeps what has been idle too long for one interval more.
    LateSweep,
    /// Some requests that ended stay counted as in flight for their key.
    LeakedFlight,
    /// Some requests that ended stay counted as in flight on their worker.
    LeakedRequest,
    /// A remembered worker serves though it is not available.
    Blind,
    /// The override's pins are shared by all models.
    Unscoped,
    /// `manual` pins a key for each model.
    ScopedManual,
    /// A policy is told that its proposal was used though another request was faster.
    FalseCommit,
    /// A proposal is pinned though another request of the key was faster.
    Overwrite,
    /// The turn and retry suffixes of a header stay on under the override.
    Unstripped,
    /// A worker that comes back under its id counts from zero.
    Stranger,
}

impl Fault {
    /// What `--fault` takes.
    pub(super) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}
