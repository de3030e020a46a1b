//! Workers: what is in flight, how they fare, who was chosen.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};
use smg_decide::fleet::{Leg, Worker};

use super::{BreakerMeters, BreakerMetersRoot, UsageMeters, keep};

/// The families; each worker holds its own handles.
#[derive(Debug)]
pub(crate) struct WorkerMetersRoot {
    pool_size: IntGaugeVec,
    requests_active: IntGaugeVec,
    keys_active: IntGaugeVec,
    health: IntGaugeVec,
    http2: IntGaugeVec,
    health_checks: IntCounterVec,
    selections: IntCounterVec,
    errors: IntCounterVec,
    requests: IntCounterVec,
    /// Connections open to workers.
    pub(crate) connections: IntGauge,
    breaker: BreakerMetersRoot,
    usage: Arc<UsageMeters>,
    /// How many workers show under an address: one that left and has yet to drain, and the one that
    /// came back in its place, share their series.
    shown: Mutex<HashMap<Box<str>, Shown>>,
}

/// What shows under an address.
#[derive(Debug, Default)]
struct Shown {
    count: u32,
    models: BTreeSet<Arc<str>>,
}

/// One worker's handles.
#[derive(Debug)]
pub(crate) struct WorkerMeters {
    /// Requests in flight.
    pub(crate) requests_active: IntGauge,
    /// Distinct routing keys in flight.
    pub(crate) keys_active: IntGauge,
    pub(crate) breaker: BreakerMeters,
    /// Tokens of the prompts it answered.
    pub(crate) usage: Arc<UsageMeters>,
    health: IntGauge,
    checks_passed: IntCounter,
    checks_failed: IntCounter,
    backend_errors: IntCounter,
    timeouts: IntCounter,
}

impl WorkerMetersRoot {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let gauge = |name, help, labels: &[&str]| {
            keep(registry, IntGaugeVec::new(Opts::new(name, help), labels))
        };
        let counter = |name, help, labels: &[&str]| {
            keep(registry, IntCounterVec::new(Opts::new(name, help), labels))
        };
        let kind = ["worker_type", "connection_mode"];
        let connections = gauge(
            "smg_worker_connections_active",
            "Connections open to workers, idle ones and those of probes among them.",
            &kind,
        )?;
        Ok(Self {
            connections: connections.with_label_values(&[Leg::Regular.as_str(), "http"]),
            requests: counter(
                "smg_worker_requests_total",
                "Requests sent to a worker, each attempt counted.",
                &["worker", "model"],
            )?,
            breaker: BreakerMetersRoot::new(registry)?,
            usage: Arc::new(UsageMeters::new(registry)?),
            shown: Mutex::default(),
            pool_size: gauge(
                "smg_worker_pool_size",
                "Registered workers.",
                &[&kind[..], &["model"]].concat(),
            )?,
            requests_active: gauge(
                "smg_worker_requests_active",
                "Requests in flight, streams included.",
                &["worker"],
            )?,
            keys_active: gauge(
                "smg_worker_routing_keys_active",
                "Distinct routing keys with requests in flight.",
                &["worker"],
            )?,
            health: gauge("smg_worker_health", "1 when ready, else 0.", &["worker"])?,
            http2: gauge("smg_worker_http2", "1 when HTTP/2 was chosen, else 0.", &["worker"])?,
            health_checks: counter(
                "smg_worker_health_checks_total",
                "Health checks.",
                &["worker_type", "result"],
            )?,
            selections: counter(
                "smg_worker_selection_total",
                "Placements, one for each attempt.",
                &[&kind[..], &["model", "policy"]].concat(),
            )?,
            errors: counter(
                "smg_worker_errors_total",
                "Attempts that failed at a worker.",
                &[&kind[..], &["error_type"]].concat(),
            )?,
        })
    }

    /// Handles for a worker, its gauges at zero but the one of its version.
    pub(crate) fn worker(&self, worker: &Worker, http2: bool) -> WorkerMeters {
        let (url, leg) = (&*worker.url, worker.leg.as_str());
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        shown.entry(url.into()).or_default().count += 1;
        self.http2.with_label_values(&[url]).set(i64::from(http2));
        WorkerMeters {
            requests_active: self.requests_active.with_label_values(&[url]),
            keys_active: self.keys_active.with_label_values(&[url]),
            breaker: self.breaker.worker(url),
            usage: Arc::clone(&self.usage),
            health: self.health.with_label_values(&[url]),
            checks_passed: self.health_checks.with_label_values(&[leg, "success"]),
            checks_failed: self.health_checks.with_label_values(&[leg, "failure"]),
            backend_errors: self.errors.with_label_values(&[leg, "http", "backend_error"]),
            timeouts: self.errors.with_label_values(&[leg, "http", "timeout"]),
        }
    }

    /// Takes away the series of a worker that has left and drained.
    pub(crate) fn retire(&self, url: &str) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(here) = shown.get_mut(url) else { return };
        here.count -= 1;
        if here.count > 0 {
            return;
        }
        let models = shown.remove(url).map_or_else(BTreeSet::new, |here| here.models);
        for family in [&self.requests_active, &self.keys_active, &self.health, &self.http2] {
            let _ = family.remove_label_values(&[url]);
        }
        for model in models {
            let _ = self.requests.remove_label_values(&[url, &model]);
        }
        self.breaker.retire(url);
    }

    /// Counts requests for a model that are sent to a worker.
    pub(crate) fn requests(&self, url: &str, model: &Arc<str>) -> IntCounter {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(here) = shown.get_mut(url) {
            here.models.insert(Arc::clone(model));
        }
        self.requests.with_label_values(&[url, model])
    }

    /// Takes away the series of a model that a worker serves no more: it may come to serve ever so
    /// many.
    pub(crate) fn serves_no_more(&self, url: &str, model: &str) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if shown.get_mut(url).is_some_and(|here| here.models.remove(model)) {
            let _ = self.requests.remove_label_values(&[url, model]);
        }
    }

    /// Takes away the size of a model that no worker serves any more.
    pub(crate) fn drop_pool(&self, leg: Leg, model: &str) {
        let _ = self.pool_size.remove_label_values(&[leg.as_str(), "http", model]);
    }

    /// The placement counter of a model's policy.
    pub(crate) fn selections(&self, leg: Leg, model: &str, policy: &str) -> IntCounter {
        self.selections.with_label_values(&[leg.as_str(), "http", model, policy])
    }

    /// Sets the number of registered workers of a model.
    pub(crate) fn set_pool_size(&self, leg: Leg, model: &str, size: usize) {
        let size = i64::try_from(size).unwrap_or(i64::MAX);
        self.pool_size.with_label_values(&[leg.as_str(), "http", model]).set(size);
    }
}

impl WorkerMeters {
    /// Counts a check and shows its verdict.
    pub(crate) fn checked(&self, passed: bool, healthy: bool) {
        if passed {
            self.checks_passed.inc()
        } else {
            self.checks_failed.inc()
        }
        self.health.set(i64::from(healthy));
    }

    /// Shows a worker that nobody checks.
    pub(crate) fn trusted(&self) {
        self.health.set(1);
    }

    /// Counts a failed attempt; `status` is the worker's or the gateway's in its place.
    pub(crate) fn attempt_failed(&self, status: u16) {
        match smg_decide::settle::worker_error(status) {
            Some("timeout") => self.timeouts.inc(),
            Some(_) => self.backend_errors.inc(),
            None => {}
        }
    }
}
