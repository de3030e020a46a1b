//! Circuit breakers and retries.

use std::sync::Arc;
use std::time::Duration;

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
};
use smg_decide::fleet::breaker::{Outcome, State};
use smg_decide::fleet::{Leg, Told};
use smg_wire::route::Route;

use super::keep;

/// The breaker families; each worker holds its own handles.
#[derive(Debug)]
pub(crate) struct BreakerMetersRoot {
    state: IntGaugeVec,
    failures: IntGaugeVec,
    successes: IntGaugeVec,
    outcomes: IntCounterVec,
    transitions: IntCounterVec,
}

/// One worker's breaker.
#[derive(Debug)]
pub(crate) struct BreakerMeters {
    worker: Box<str>,
    state: IntGauge,
    failures: IntGauge,
    successes: IntGauge,
    succeeded: IntCounter,
    failed: IntCounter,
    transitions: IntCounterVec,
}

impl BreakerMetersRoot {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let gauge =
            |name, help| keep(registry, IntGaugeVec::new(Opts::new(name, help), &["worker"]));
        let outcomes =
            Opts::new("smg_worker_cb_outcomes_total", "Attempts that a circuit breaker counts.");
        let transitions =
            Opts::new("smg_worker_cb_transitions_total", "Circuit breakers changing state.");
        Ok(Self {
            state: gauge("smg_worker_cb_state", "Circuit breaker: 0 closed, 1 open, 2 half open.")?,
            failures: gauge("smg_worker_cb_consecutive_failures", "Failures in a row.")?,
            successes: gauge(
                "smg_worker_cb_consecutive_successes",
                "Successes in a row while half open.",
            )?,
            outcomes: keep(registry, IntCounterVec::new(outcomes, &["worker", "outcome"]))?,
            transitions: keep(
                registry,
                IntCounterVec::new(transitions, &["worker", "from", "to"]),
            )?,
        })
    }

    /// Handles for a worker, its breaker closed.
    pub(super) fn worker(&self, url: &str) -> BreakerMeters {
        BreakerMeters {
            worker: url.into(),
            state: self.state.with_label_values(&[url]),
            failures: self.failures.with_label_values(&[url]),
            successes: self.successes.with_label_values(&[url]),
            succeeded: self.outcomes.with_label_values(&[url, "success"]),
            failed: self.outcomes.with_label_values(&[url, "failure"]),
            transitions: self.transitions.clone(),
        }
    }
}

impl BreakerMetersRoot {
    /// Takes away the series of a worker.
    pub(super) fn retire(&self, url: &str) {
        // Which of them were ever made does not matter.
        for family in [&self.state, &self.failures, &self.successes] {
            let _ = family.remove_label_values(&[url]);
        }
        for outcome in ["success", "failure"] {
            let _ = self.outcomes.remove_label_values(&[url, outcome]);
        }
        let states = [State::Closed, State::Open, State::HalfOpen].map(State::as_str);
        for (from, to) in states.iter().flat_map(|from| states.iter().map(move |to| (from, to))) {
            let _ = self.transitions.remove_label_values(&[url, from, to]);
        }
    }
}

impl BreakerMeters {
    /// Counts an outcome.
    pub(crate) fn count(&self, outcome: Outcome) {
        match outcome {
            Outcome::Success => self.succeeded.inc(),
            Outcome::Failure => self.failed.inc(),
            Outcome::Nothing => {}
        }
    }

    /// Shows a breaker that was told something.
    pub(crate) fn show(&self, told: &Told) {
        let run = i64::from(told.breaker.run);
        let half_open = told.breaker.state == State::HalfOpen;
        self.state.set(told.breaker.state.gauge());
        self.failures.set(if half_open { 0 } else { run });
        self.successes.set(if half_open { run } else { 0 });
        if let Some((from, to)) = told.turned {
            let (worker, from, to) = (&*self.worker, from.as_str(), to.as_str());
            self.transitions.with_label_values(&[worker, from, to]).inc();
            tracing::warn!(worker, from, to, "circuit breaker");
        }
    }
}

/// Attempts after the first that have a histogram of their own; later ones share the last.
const ATTEMPTS: usize = 16;

/// Retries, by route.
#[derive(Debug)]
pub(crate) struct RetryMeters {
    routes: Vec<Option<(IntCounter, IntCounter)>>,
    backoff: [Arc<Histogram>; ATTEMPTS],
}

impl RetryMeters {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let labels = ["worker_type", "endpoint"];
        let retries = Opts::new("smg_worker_retries_total", "Attempts after the first.");
        let exhausted = Opts::new(
            "smg_worker_retries_exhausted_total",
            "Requests that failed because no attempt was left.",
        );
        let backoff = HistogramOpts::new(
            "smg_worker_retry_backoff_seconds",
            "Wait before an attempt, by its number.",
        )
        .buckets(vec![0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0]);
        let retries = keep(registry, IntCounterVec::new(retries, &labels))?;
        let exhausted = keep(registry, IntCounterVec::new(exhausted, &labels))?;
        let backoff = keep(registry, HistogramVec::new(backoff, &["attempt"]))?;
        let leg = Leg::Regular.as_str();
        let routes = Route::rows().iter().map(|row| {
            let labels = [leg, row.inference.as_ref()?.endpoint];
            Some((retries.with_label_values(&labels), exhausted.with_label_values(&labels)))
        });
        Ok(Self {
            routes: routes.collect(),
            backoff: std::array::from_fn(|n| {
                Arc::new(backoff.with_label_values(&[&*(n + 1).to_string()]))
            }),
        })
    }

    /// Counts one more attempt; `made` attempts came before it.
    pub(crate) fn retried(&self, route: Route, made: usize, wait: Duration) {
        if let Some((retries, _)) = self.route(route) {
            retries.inc();
        }
        let at = made.saturating_sub(1).min(ATTEMPTS - 1);
        if let Some(histogram) = self.backoff.get(at) {
            histogram.observe(wait.as_secs_f64());
        }
    }

    /// Counts a request that ran out of attempts.
    pub(crate) fn exhausted(&self, route: Route) {
        if let Some((_, exhausted)) = self.route(route) {
            exhausted.inc();
        }
    }

    fn route(&self, route: Route) -> Option<&(IntCounter, IntCounter)> {
        self.routes.get(route.index())?.as_ref()
    }
}
