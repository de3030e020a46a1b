//! Workers coming and going, by who named them.

use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

use super::keep;

/// Who named a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// `--worker-urls`.
    Static,
    /// The workers API.
    Manual,
}

impl Source {
    const ALL: [Self; 2] = [Self::Static, Self::Manual];

    /// The metric label.
    const fn as_str(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::Manual => "manual",
        }
    }
}

/// One source's handles.
#[derive(Debug)]
struct Handles {
    registered: IntCounter,
    failed: IntCounter,
    removed: IntCounter,
    workers: IntGauge,
}

/// The handles of every source.
#[derive(Debug)]
pub(crate) struct DiscoveryMeters([Handles; Source::ALL.len()]);

impl DiscoveryMeters {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let counter = |name, help, labels: &[&str]| {
            keep(registry, IntCounterVec::new(Opts::new(name, help), labels))
        };
        let registrations = counter(
            "smg_discovery_registrations_total",
            "Workers that registered, or never answered.",
            &["source", "result"],
        )?;
        let deregistrations = counter(
            "smg_discovery_deregistrations_total",
            "Workers that were taken out.",
            &["source", "reason"],
        )?;
        let workers = Opts::new("smg_discovery_workers_discovered", "Workers registered now.");
        let workers = keep(registry, IntGaugeVec::new(workers, &["source"]))?;
        Ok(Self(Source::ALL.map(Source::as_str).map(|source| Handles {
            registered: registrations.with_label_values(&[source, "success"]),
            failed: registrations.with_label_values(&[source, "failed"]),
            removed: deregistrations.with_label_values(&[source, "removed"]),
            workers: workers.with_label_values(&[source]),
        })))
    }

    /// A worker has registered.
    pub(crate) fn registered(&self, source: Source) {
        let handles = self.of(source);
        handles.registered.inc();
        handles.workers.inc();
    }

    /// A worker never answered.
    pub(crate) fn failed(&self, source: Source) {
        self.of(source).failed.inc();
    }

    /// A worker was taken out on somebody's word.
    pub(crate) fn removed(&self, source: Source) {
        let handles = self.of(source);
        handles.removed.inc();
        handles.workers.dec();
    }

    const fn of(&self, source: Source) -> &Handles {
        let [named, added] = &self.0;
        match source {
            Source::Static => named,
            Source::Manual => added,
        }
    }
}
