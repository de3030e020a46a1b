//! Requests by model and endpoint, attempts by status, body plans.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts, Registry,
};
use smg_decide::body::{Path, Plan, Reason};
use smg_decide::settle::ERROR_TYPES;
use smg_wire::route::Route;

use super::keep;

/// `router_type`, `backend_type`, `connection_mode` of requests to engines.
const ENGINES: [&str; 3] = ["http", "regular", "http"];
/// The same of requests to vendors.
const VENDORS: [&str; 3] = ["openai", "external", "http"];

/// Metrics of the router.
#[derive(Debug)]
pub(crate) struct RouterMeters {
    requests: IntCounterVec,
    duration: HistogramVec,
    errors: IntCounterVec,
    upstream_responses: IntCounterVec,
    attempts: Box<[OnceLock<IntCounter>]>,
    /// One-shot resends after a failure before any answer.
    pub(crate) send_retries: IntCounter,
    plans: [[IntCounter; Reason::ALL.len()]; 2],
    /// For requests whose model no worker serves: the label never echoes a client's word.
    pub(crate) no_model: Arc<ModelMeters>,
    /// For requests whose body streams to the worker, so that nobody reads their model.
    pub(crate) unread_model: Arc<ModelMeters>,
    /// Bytes of request buffers freed at dispatch (001, "Early release").
    pub(crate) released_early: IntCounter,
}

/// Handles of one model, one set for each inference route.
#[derive(Debug)]
pub(crate) struct ModelMeters {
    routes: Vec<Option<RouteMeters>>,
}

#[derive(Debug)]
struct RouteMeters {
    plain: IntCounter,
    streaming: IntCounter,
    duration: Histogram,
    errors: [IntCounter; ERROR_TYPES.len()],
}

impl RouterMeters {
    pub(super) fn new(registry: &Registry, buckets: &[f64]) -> prometheus::Result<Self> {
        let base = ["router_type", "backend_type", "connection_mode", "model", "endpoint"];
        let with = |label| [&base[..], &[label]].concat();
        let requests = Opts::new("smg_router_requests_total", "Requests, after the body plan.");
        let duration = HistogramOpts::new(
            "smg_router_request_duration_seconds",
            "Seconds to the head of an answer that succeeded.",
        );
        let errors = Opts::new("smg_router_request_errors_total", "Failed requests, by class.");
        let upstream = Opts::new("smg_router_upstream_responses_total", "Attempts, by outcome.");
        let retries = Opts::new(
            "smg_router_upstream_send_retries_total",
            "One-shot resends after a failure before any answer.",
        );
        let plans = Opts::new(
            "smg_router_request_body_path_total",
            "Body plans on routes that may stream, with the deciding rule.",
        );
        let released = Opts::new(
            "smg_router_request_buffers_released_early_bytes_total",
            "Bytes of request buffers freed at dispatch instead of at the end of the answer.",
        );
        let released_early = keep(registry, IntCounter::with_opts(released))?;
        let plans = keep(registry, IntCounterVec::new(plans, &["path", "reason"]))?;
        let requests = keep(registry, IntCounterVec::new(requests, &with("streaming")))?;
        let duration =
            keep(registry, HistogramVec::new(duration.buckets(buckets.to_vec()), &base))?;
        let errors = keep(registry, IntCounterVec::new(errors, &with("error_type")))?;
        let upstream_responses = keep(
            registry,
            IntCounterVec::new(upstream, &["router_type", "status_code", "error_code"]),
        )?;
        let send_retries = keep(registry, IntCounterVec::new(retries, &["router_type"]))?;
        let model =
            |name| Arc::new(ModelMeters::new((&requests, &duration, &errors), ENGINES, name));
        let (no_model, unread_model) = (model("other"), model("unknown"));
        Ok(Self {
            requests,
            duration,
            errors,
            upstream_responses,
            attempts: (0..1000).map(|_| OnceLock::new()).collect(),
            send_retries: send_retries.with_label_values(&["http"]),
            plans: [Path::Buffered, Path::Streamed].map(|path| {
                Reason::ALL.map(|reason| plans.with_label_values(&[path.as_str(), reason.as_str()]))
            }),
            no_model,
            unread_model,
            released_early,
        })
    }

    /// Handles for one model that is served.
    pub(crate) fn model(&self, model: &str, external: bool) -> Arc<ModelMeters> {
        let kind = if external { VENDORS } else { ENGINES };
        Arc::new(ModelMeters::new((&self.requests, &self.duration, &self.errors), kind, model))
    }

    /// Counts one attempt; `code` is the gateway's own error code, empty for a worker's answer.
    pub(crate) fn attempt(&self, status: u16, code: &str) {
        let make =
            || self.upstream_responses.with_label_values(&["http", &*status.to_string(), code]);
        match self.attempts.get(usize::from(status)) {
            Some(held) if code.is_empty() => held.get_or_init(make).inc(),
            _ => make().inc(),
        }
    }

    /// Counts a body plan.
    pub(crate) fn plan(&self, plan: Plan) {
        let [buffered, streamed] = &self.plans;
        let row = if plan.path == Path::Buffered { buffered } else { streamed };
        if let Some(counter) = row.get(plan.reason as usize) {
            counter.inc();
        }
    }
}

impl ModelMeters {
    fn new(
        (requests, duration, errors): (&IntCounterVec, &HistogramVec, &IntCounterVec),
        [router, backend, mode]: [&str; 3],
        model: &str,
    ) -> Self {
        let routes = Route::rows().iter().map(|row| {
            let endpoint = row.inference.as_ref()?.endpoint;
            let base = [router, backend, mode, model, endpoint];
            let with = |label| [&base[..], &[label]].concat();
            Some(RouteMeters {
                plain: requests.with_label_values(&with("false")),
                streaming: requests.with_label_values(&with("true")),
                duration: duration.with_label_values(&base),
                errors: ERROR_TYPES.map(|class| errors.with_label_values(&with(class))),
            })
        });
        Self { routes: routes.collect() }
    }

    /// Counts a request.
    pub(crate) fn request(&self, route: Route, streaming: bool) {
        if let Some(meters) = self.route(route) {
            if streaming { meters.streaming.inc() } else { meters.plain.inc() }
        }
    }

    /// Counts how a request ended, at the head of its answer.
    pub(crate) fn head(&self, route: Route, status: u16, elapsed: Duration) {
        let Some(meters) = self.route(route) else { return };
        match smg_decide::settle::error_type(status) {
            None => meters.duration.observe(elapsed.as_secs_f64()),
            Some(class) => {
                let at = ERROR_TYPES.iter().position(|known| *known == class);
                if let Some(counter) = at.and_then(|at| meters.errors.get(at)) {
                    counter.inc();
                }
            }
        }
    }

    fn route(&self, route: Route) -> Option<&RouteMeters> {
        self.routes.get(route.index())?.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_own_counter() {
        let meters = RouterMeters::new(&Registry::new(), &[1.0]).unwrap();
        for (n, reason) in Reason::ALL.into_iter().enumerate() {
            for _ in 0..=n {
                meters.plan(Plan { path: Path::Streamed, reason });
            }
        }
        let [buffered, streamed] = &meters.plans;
        assert!(buffered.iter().all(|counter| counter.get() == 0));
        assert!(streamed.iter().enumerate().all(|(n, counter)| counter.get() == n as u64 + 1));
    }
}
