//! The HTTP edge.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::Method;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
};
use smg_wire::route::Route;
use tokio::time::Instant;

use super::keep;

/// The `method` label; anything else is `OTHER`.
const METHODS: [&str; 8] = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "OTHER"];
/// Statuses have three digits.
const STATUSES: usize = 1000;

/// Counters of what arrives and what is answered.
#[derive(Debug)]
pub(crate) struct HttpMeters {
    requests: IntCounterVec,
    responses: IntCounterVec,
    duration: HistogramVec,
    in_flight: IntGauge,
    ages: Arc<Ages>,
    age_count: IntGaugeVec,
    arrived: Box<[[Arrival; METHODS.len()]; Route::COUNT]>,
    answered: Box<[Box<[OnceLock<IntCounter>]>]>,
}

#[derive(Debug, Default)]
struct Arrival(OnceLock<(IntCounter, Histogram)>);

impl HttpMeters {
    pub(super) fn new(registry: &Registry, buckets: &[f64]) -> prometheus::Result<Self> {
        let requests = Opts::new("smg_http_requests_total", "Requests that arrived.");
        let responses = Opts::new("smg_http_responses_total", "Answers, counted at their head.");
        let duration = HistogramOpts::new(
            "smg_http_request_duration_seconds",
            "Seconds from arrival to the head of the answer.",
        );
        let in_flight =
            Opts::new("smg_http_connections_active", "Requests in flight, answers included.");
        let age_count = Opts::new(
            "smg_http_inflight_request_age_count",
            "Requests in flight by age in seconds, sampled; ranges do not overlap.",
        );
        let meters = Self {
            requests: keep(registry, IntCounterVec::new(requests, &["method", "path"]))?,
            responses: keep(
                registry,
                IntCounterVec::new(responses, &["path", "status_code", "error_code"]),
            )?,
            duration: keep(
                registry,
                HistogramVec::new(duration.buckets(buckets.to_vec()), &["method", "path"]),
            )?,
            in_flight: keep(registry, IntGauge::with_opts(in_flight))?,
            ages: Arc::new(Ages::new(Instant::now())),
            age_count: keep(registry, IntGaugeVec::new(age_count, &["gt", "le"]))?,
            arrived: Box::default(),
            answered: (0..Route::COUNT)
                .map(|_| (0..STATUSES).map(|_| OnceLock::new()).collect())
                .collect(),
        };
        for row in Route::rows() {
            row.methods.iter().for_each(|method| drop(meters.arrival(row.route, method)));
        }
        Ok(meters)
    }

    /// Counts an arrival; the guard counts the request as in flight until it is dropped.
    pub(crate) fn arrive(&self, route: Route, method: &Method) -> CallGuard {
        let (requests, duration) = self.arrival(route, method);
        requests.inc();
        self.in_flight.inc();
        let arrived = Instant::now();
        CallGuard {
            duration,
            arrived,
            slot: self.ages.begin(arrived),
            in_flight: self.in_flight.clone(),
            ages: Arc::clone(&self.ages),
        }
    }

    /// Counts an answer's head; `code` is an error code of the gateway's own or empty.
    pub(crate) fn answer(&self, route: Route, status: u16, code: &str) {
        let path = Route::rows().get(route.index()).map_or("other", |row| row.path);
        let make = || self.responses.with_label_values(&[path, &*status.to_string(), code]);
        let held = self.answered.get(route.index()).and_then(|row| row.get(usize::from(status)));
        match held {
            Some(held) if code.is_empty() => held.get_or_init(make).inc(),
            _ => make().inc(),
        }
    }

    /// Sets the age gauges.
    pub(crate) fn sample_ages(&self) {
        for (range, count) in AGE_BOUNDS.windows(2).zip(self.ages.count(Instant::now())) {
            if let [above, below] = range {
                self.age_count.with_label_values(&[*above, *below]).set(count);
            }
        }
    }

    fn arrival(&self, route: Route, method: &Method) -> (IntCounter, Histogram) {
        let name = METHODS.iter().position(|name| *name == method.as_str());
        let at = name.unwrap_or(METHODS.len() - 1);
        let row = Route::rows().get(route.index());
        let labels = [METHODS.get(at).copied().unwrap_or("OTHER"), row.map_or("other", |r| r.path)];
        let make =
            || (self.requests.with_label_values(&labels), self.duration.with_label_values(&labels));
        match self.arrived.get(route.index()).and_then(|row| row.get(at)) {
            Some(held) => held.0.get_or_init(make).clone(),
            None => make(),
        }
    }
}

/// One request in flight.
#[derive(Debug)]
pub(crate) struct CallGuard {
    duration: Histogram,
    arrived: Instant,
    slot: usize,
    in_flight: IntGauge,
    ages: Arc<Ages>,
}

impl CallGuard {
    /// The head of the answer is ready.
    pub(crate) fn head_ready(&self) -> Duration {
        let elapsed = self.arrived.elapsed();
        self.duration.observe(elapsed.as_secs_f64());
        elapsed
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        self.in_flight.dec();
        self.ages.end(self.slot);
    }
}

/// Bounds of the age gauges, in seconds.
const AGE_BOUNDS: [&str; 13] = [
    "0", "30", "60", "180", "300", "600", "1200", "3600", "7200", "14400", "28800", "86400", "+Inf",
];
/// Seconds between two samples, and the width of a slot.
pub(crate) const AGE_SAMPLE: Duration = Duration::from_secs(20);
/// Slots of one sample each: about 45 hours. A request older than that shows as young again, which
/// no request with a deadline reaches.
const SLOTS: usize = 8192;

/// Requests in flight by the time they arrived: a ring of counters without a lock.
#[derive(Debug)]
struct Ages {
    start: Instant,
    slots: Box<[AtomicI64]>,
}

impl Ages {
    fn new(start: Instant) -> Self {
        Self { start, slots: (0..SLOTS).map(|_| AtomicI64::new(0)).collect() }
    }

    fn tick(&self, now: Instant) -> u64 {
        now.duration_since(self.start).as_secs() / AGE_SAMPLE.as_secs()
    }

    fn begin(&self, now: Instant) -> usize {
        let slot = self.tick(now) as usize % SLOTS;
        if let Some(count) = self.slots.get(slot) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        slot
    }

    fn end(&self, slot: usize) {
        if let Some(count) = self.slots.get(slot) {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Counts for each range between two [`AGE_BOUNDS`].
    fn count(&self, now: Instant) -> [i64; AGE_BOUNDS.len() - 1] {
        let bounds = AGE_BOUNDS.map(|bound| bound.parse().unwrap_or(u64::MAX));
        let tick = self.tick(now);
        let mut counts = [0; AGE_BOUNDS.len() - 1];
        for back in 0..(SLOTS as u64).min(tick + 1) {
            let slot = ((tick - back) as usize) % SLOTS;
            let count = self.slots.get(slot).map_or(0, |slot| slot.load(Ordering::Relaxed));
            let age = back * AGE_SAMPLE.as_secs();
            let range = bounds.iter().rposition(|bound| *bound <= age).unwrap_or(0);
            if let Some(counted) = counts.get_mut(range) {
                *counted += count;
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn requests_grow_old_range_by_range() {
        let ages = Ages::new(Instant::now());
        let slot = ages.begin(Instant::now());
        for (wait, range) in [(0, 0), (20, 0), (20, 1), (140, 3), (86_400, 11)] {
            tokio::time::advance(Duration::from_secs(wait)).await;
            let counts = ages.count(Instant::now());
            assert_eq!(counts.iter().position(|count| *count == 1), Some(range), "after {wait} s");
            assert_eq!(counts.iter().sum::<i64>(), 1);
        }
        ages.end(slot);
        assert_eq!(ages.count(Instant::now()), [0; 12]);
    }
}
