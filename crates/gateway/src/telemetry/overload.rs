//! Overload protection.

use prometheus::{IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry};

use super::keep;

/// Metrics of overload protection.
#[derive(Debug)]
pub(crate) struct OverloadMeters {
    vetoed: IntGaugeVec,
    /// Requests refused because every worker that could take them was vetoed.
    pub(crate) shed_selection: IntCounter,
    /// Requests refused because the chosen worker was vetoed before they were sent.
    pub(crate) shed_dispatch: IntCounter,
}

impl OverloadMeters {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let vetoed = Opts::new("smg_workers_overloaded", "Workers that get no requests.");
        let shed = Opts::new("smg_worker_overload_shed_total", "Requests refused, by stage.");
        let shed = keep(registry, IntCounterVec::new(shed, &["stage"]))?;
        Ok(Self {
            vetoed: keep(registry, IntGaugeVec::new(vetoed, &["model"]))?,
            shed_selection: shed.with_label_values(&["selection"]),
            shed_dispatch: shed.with_label_values(&["dispatch"]),
        })
    }

    /// The last worker of a model is gone.
    pub(crate) fn drop_model(&self, model: &str) {
        let _ = self.vetoed.remove_label_values(&[model]);
    }

    /// Sets how many workers of a model are vetoed.
    pub(crate) fn set_vetoed(&self, model: &str, count: usize) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.vetoed.with_label_values(&[model]).set(count);
    }
}
