//! Requests let in, waiting and sent away.

use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry};
use smg_decide::admission::Rejection;

use super::keep;

/// Metrics of the door before inference requests.
#[derive(Clone, Debug)]
pub(crate) struct AdmissionMeters {
    /// Requests let in.
    pub(crate) allowed: IntCounter,
    refused: IntCounter,
    /// Permits held.
    pub(crate) inflight: IntGauge,
    /// Requests waiting.
    pub(crate) queue_depth: IntGauge,
    reasons: [IntCounter; Rejection::ALL.len()],
}

impl AdmissionMeters {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let limited =
            Opts::new("smg_http_rate_limit_total", "Requests at the admission door, by result.");
        let inflight = Opts::new("smg_admission_inflight", "Permits held.");
        let depth = Opts::new("smg_admission_queue_depth", "Requests waiting for a permit.");
        let rejected =
            Opts::new("smg_admission_queue_rejected_total", "Requests sent away, by reason.");
        let limited = keep(registry, IntCounterVec::new(limited, &["result"]))?;
        let rejected = keep(registry, IntCounterVec::new(rejected, &["reason"]))?;
        Ok(Self {
            allowed: limited.with_label_values(&["allowed"]),
            refused: limited.with_label_values(&["rejected"]),
            inflight: keep(registry, IntGauge::with_opts(inflight))?,
            queue_depth: keep(registry, IntGauge::with_opts(depth))?,
            reasons: Rejection::ALL.map(|reason| rejected.with_label_values(&[reason.as_str()])),
        })
    }

    /// Counts a request sent away.
    pub(crate) fn rejected(&self, rejection: Rejection) {
        self.refused.inc();
        if let Some(counter) = self.reasons.get(rejection as usize) {
            counter.inc();
        }
    }
}
