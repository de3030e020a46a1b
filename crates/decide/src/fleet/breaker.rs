//! The circuit breaker of one worker, as a value that is asked and told.
//!
//! Closed, it counts failures in a row. Open, it lets nobody through until its time is over. Half
//! open, it lends out a few probes: enough successes in a row close it, one failure opens it again.

/// `--cb-…`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Failures in a row that open it; `None` under `--disable-circuit-breaker`.
    pub failures: Option<u32>,
    /// Successes in a row that close it when half open, and probes lent out at once.
    pub successes: u32,
    /// Milliseconds from open to half open.
    pub timeout_ms: u64,
}

impl Rules {
    /// No breaker.
    pub const OFF: Self = Self { failures: None, successes: 1, timeout_ms: 0 };
}

/// Where a breaker stands; its text is the label of `smg_worker_cb_transitions_total`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Everything passes.
    #[default]
    Closed,
    /// Nothing passes.
    Open,
    /// Probes pass.
    HalfOpen,
}

impl State {
    /// The metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }

    /// The value of `smg_worker_cb_state`.
    #[must_use]
    pub const fn gauge(self) -> i64 {
        match self {
            Self::Closed => 0,
            Self::Open => 1,
            Self::HalfOpen => 2,
        }
    }
}

/// What an attempt tells of its worker; the text is the label of `smg_worker_cb_outcomes_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It works.
    Success,
    /// It does not.
    Failure,
    /// Nothing either way: backpressure, a client's fault.
    Nothing,
}

/// A worker's breaker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Breaker {
    /// Where it stands.
    pub state: State,
    /// Failures in a row when closed, successes in a row when half open.
    pub run: u32,
    opened_ms: u64,
    /// Probes lent out and not yet given back.
    pub probes: u32,
}

impl Breaker {
    /// Whether a request may pass at `now`, in milliseconds on the caller's clock.
    #[must_use]
    pub const fn admits(&self, rules: &Rules, now: u64) -> bool {
        match self.state {
            State::Closed => true,
            State::Open => now.saturating_sub(self.opened_ms) >= rules.timeout_ms,
            State::HalfOpen => self.probes < rules.successes,
        }
    }

    /// A request passes: an open breaker whose time is over turns half open, and the request is one
    /// of its probes. True if it is to be given back with [`Self::release`].
    pub const fn pass(&mut self, rules: &Rules, now: u64) -> bool {
        if matches!(self.state, State::Open) && self.admits(rules, now) {
            *self = Self { state: State::HalfOpen, run: 0, probes: 0, ..*self };
        }
        let probe = matches!(self.state, State::HalfOpen);
        if probe {
            self.probes += 1;
        }
        probe
    }

    /// A probe ended, whatever it told.
    pub const fn release(&mut self) {
        self.probes = self.probes.saturating_sub(1);
    }

    /// Whether it remembers anything: an untroubled one admits everybody and hears of failures only.
    #[must_use]
    pub const fn is_troubled(&self) -> bool {
        !matches!(self.state, State::Closed) || self.run > 0 || self.probes > 0
    }

    /// Takes note of an outcome. While open, outcomes of requests from before change nothing.
    pub fn record(&mut self, outcome: Outcome, rules: &Rules, now: u64) {
        match (self.state, outcome) {
            (_, Outcome::Nothing) | (State::Open, _) => {}
            (State::Closed, Outcome::Success) => self.run = 0,
            (State::Closed, Outcome::Failure) => {
                self.run = self.run.saturating_add(1);
                if rules.failures.is_some_and(|limit| self.run >= limit) {
                    self.open(now);
                }
            }
            (State::HalfOpen, Outcome::Failure) => self.open(now),
            (State::HalfOpen, Outcome::Success) => {
                self.run += 1;
                if self.run >= rules.successes {
                    *self = Self { state: State::Closed, run: 0, ..*self };
                }
            }
        }
    }

    const fn open(&mut self, now: u64) {
        *self = Self { state: State::Open, run: 0, opened_ms: now, ..*self };
    }
}

/// What a worker's answer tells, from its status and whether it says when to come back.
#[must_use]
pub const fn of_status(status: u16, retry_after: bool, state: State) -> Outcome {
    match status {
        // A full queue is no broken engine.
        429 => Outcome::Nothing,
        503 if retry_after => Outcome::Nothing,
        500 | 502 | 503 | 504 => Outcome::Failure,
        // A request the engine refuses says little of an engine on probation.
        400..500 if matches!(state, State::HalfOpen) => Outcome::Nothing,
        _ => Outcome::Success,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RULES: Rules = Rules { failures: Some(3), successes: 2, timeout_ms: 1000 };

    fn told(mut breaker: Breaker, outcomes: &str, now: u64) -> Breaker {
        for outcome in outcomes.chars() {
            let outcome = match outcome {
                '+' => Outcome::Success,
                '-' => Outcome::Failure,
                _ => Outcome::Nothing,
            };
            breaker.record(outcome, &RULES, now);
        }
        breaker
    }

    #[test]
    fn only_failures_in_a_row_open_it() {
        for (outcomes, state) in [
            ("--", State::Closed),
            ("--+--", State::Closed),
            ("--.--", State::Open),
            ("---", State::Open),
            ("---+++", State::Open),
        ] {
            assert_eq!(told(Breaker::default(), outcomes, 0).state, state, "{outcomes}");
        }
        let never = Rules { failures: None, ..RULES };
        let mut breaker = Breaker::default();
        (0..99).for_each(|_| breaker.record(Outcome::Failure, &never, 0));
        assert_eq!(breaker.state, State::Closed);
    }

    #[test]
    fn after_its_time_it_lends_out_probes_and_no_more() {
        let mut breaker = told(Breaker::default(), "---", 500);
        assert!(!breaker.admits(&RULES, 1499));
        assert!(breaker.admits(&RULES, 1500) && breaker.pass(&RULES, 1500));
        assert_eq!(breaker.state, State::HalfOpen);
        assert!(breaker.admits(&RULES, 1500) && breaker.pass(&RULES, 1500));
        assert!(!breaker.admits(&RULES, 1500), "two probes are out");
        breaker.release();
        assert!(breaker.admits(&RULES, 1500));
    }

    #[test]
    fn probes_decide() {
        let mut open = told(Breaker::default(), "---", 0);
        open.pass(&RULES, 1000);
        assert_eq!(told(open, "+", 1000).state, State::HalfOpen);
        assert_eq!(told(open, "+.+", 1000).state, State::Closed);
        let again = told(open, "+-", 1200);
        assert_eq!(again.state, State::Open);
        assert!(!again.admits(&RULES, 2199) && again.admits(&RULES, 2200), "the time starts anew");
    }

    #[test]
    fn backpressure_and_client_faults_are_no_failures() {
        for (status, retry_after, outcome) in [
            (200, false, Outcome::Success),
            (400, false, Outcome::Success),
            (404, false, Outcome::Success),
            (408, false, Outcome::Success),
            (429, false, Outcome::Nothing),
            (429, true, Outcome::Nothing),
            (500, false, Outcome::Failure),
            (501, false, Outcome::Success),
            (502, false, Outcome::Failure),
            (503, false, Outcome::Failure),
            (503, true, Outcome::Nothing),
            (504, false, Outcome::Failure),
            (529, false, Outcome::Success),
        ] {
            assert_eq!(of_status(status, retry_after, State::Closed), outcome, "{status}");
        }
        assert_eq!(of_status(400, false, State::HalfOpen), Outcome::Nothing);
        assert_eq!(of_status(200, false, State::HalfOpen), Outcome::Success);
    }

    proptest! {
        /// Whatever happens, it admits somebody again once its time is over and probes are back.
        #[test]
        fn nobody_is_shut_out_for_ever(moves in prop::collection::vec(0..4_u8, 0..100)) {
            let (mut breaker, mut now, mut out) = (Breaker::default(), 0, 0);
            for what in moves {
                now += 300;
                match what {
                    0 if breaker.admits(&RULES, now) => out += u32::from(breaker.pass(&RULES, now)),
                    1 if out > 0 => { out -= 1; breaker.release(); }
                    2 => breaker.record(Outcome::Failure, &RULES, now),
                    _ => breaker.record(Outcome::Success, &RULES, now),
                }
                prop_assert!(breaker.probes <= out.max(RULES.successes));
            }
            (0..out).for_each(|_| breaker.release());
            prop_assert!(breaker.admits(&RULES, now + RULES.timeout_ms));
        }
    }
}
