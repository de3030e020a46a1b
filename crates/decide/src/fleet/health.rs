//! From probe results to ready or not (facts: health checks, states of `GET /workers`).

/// How many probes in a row change a worker's state.
#[derive(Clone, Copy, Debug)]
pub struct Thresholds {
    /// `--health-failure-threshold`: failures in a row that take a ready worker out.
    pub failure: u32,
    /// `--health-success-threshold`: successes in a row that bring it back.
    pub success: u32,
}

/// Where a worker stands; its text is the `status` field of `GET /workers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Registered, not proven yet.
    Pending,
    /// Passes its checks; the only state that gets traffic.
    Ready,
    /// Failed its checks lately.
    NotReady,
    /// Has failed for long; it is still probed and may return.
    Failed,
}

impl State {
    /// The name in `GET /workers`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Ready => "ready",
            Self::NotReady => "not_ready",
            Self::Failed => "failed",
        }
    }
}

/// A worker's health: its state and the current run of equal results.
#[derive(Clone, Copy, Debug)]
pub struct Health {
    /// Where it stands.
    pub state: State,
    successes: u32,
    failures: u32,
}

impl Default for Health {
    fn default() -> Self {
        Self { state: State::Pending, successes: 0, failures: 0 }
    }
}

/// A not-ready worker that fails this many thresholds more is failed.
const FAILED_AFTER: u32 = 3;
/// A worker that was never ready is failed after this many thresholds.
const NEVER_READY_AFTER: u32 = 10;

impl Health {
    /// A worker whose registration passed its probes.
    #[must_use]
    pub const fn proven() -> Self {
        Self { state: State::Ready, successes: 0, failures: 0 }
    }

    /// The health after one more probe.
    #[must_use]
    pub fn after(self, passed: bool, thresholds: Thresholds) -> Self {
        let Self { state, successes, failures } = self;
        if passed {
            let successes = successes.saturating_add(1);
            let ready = state == State::Ready || successes >= thresholds.success;
            let state = if ready { State::Ready } else { state };
            return Self { state, successes, failures: 0 };
        }
        let failures = failures.saturating_add(1);
        let reached = |times: u32| failures >= thresholds.failure.saturating_mul(times);
        let state = match state {
            State::Ready | State::NotReady if reached(1 + FAILED_AFTER) => State::Failed,
            State::Ready if reached(1) => State::NotReady,
            State::Pending if reached(NEVER_READY_AFTER) => State::Failed,
            same => same,
        };
        Self { state, successes: 0, failures }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH_TWO: Thresholds = Thresholds { failure: 2, success: 2 };

    fn play(start: Health, probes: &str) -> Health {
        probes.chars().fold(start, |health, c| health.after(c == '+', BOTH_TWO))
    }

    #[test]
    fn states_follow_runs_of_probes() {
        let new = Health::default();
        for (probes, state) in [
            ("", State::Pending),
            ("+", State::Pending),
            ("+-+", State::Pending),
            ("++", State::Ready),
            ("++-", State::Ready),
            ("++-+-", State::Ready),
            ("++--", State::NotReady),
            ("++--+", State::NotReady),
            ("++--++", State::Ready),
            ("++-------", State::NotReady),
            ("++--------", State::Failed),
            ("++--------++", State::Ready),
            ("-------------------", State::Pending),
            ("--------------------", State::Failed),
        ] {
            assert_eq!(play(new, probes).state, state, "{probes}");
        }
    }
}
