//! Sticky decisions.

use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry};
use smg_decide::keys::Source;
use smg_decide::pins::Outcome;

use super::keep;

/// Metrics of the pin table (000, "Metrics").
#[derive(Debug)]
pub(crate) struct StickyMeters {
    branches: [IntCounter; Outcome::ALL.len()],
    sources: [IntCounter; Source::ALL.len()],
    /// Pins held.
    pub(crate) entries: IntGauge,
}

impl StickyMeters {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let branch = Opts::new("smg_manual_policy_branch_total", "Sticky decisions, by outcome.");
        let entries = Opts::new("smg_manual_policy_cache_entries", "Entries in the sticky map.");
        let source = Opts::new("smg_routing_key_source_total", "Where routing keys came from.");
        let branch = keep(registry, IntCounterVec::new(branch, &["branch"]))?;
        let source = keep(registry, IntCounterVec::new(source, &["source"]))?;
        Ok(Self {
            branches: Outcome::ALL.map(|outcome| branch.with_label_values(&[outcome.as_str()])),
            sources: Source::ALL.map(|of| source.with_label_values(&[of.as_str()])),
            entries: keep(registry, IntGauge::with_opts(entries))?,
        })
    }

    /// Counts one decision; `source` for a key that the override routes.
    pub(crate) fn decided(&self, outcome: Outcome, source: Option<Source>, entries: usize) {
        if let Some(counter) = self.branches.get(outcome as usize) {
            counter.inc();
        }
        if let Some(counter) = source.and_then(|source| self.sources.get(source as usize)) {
            counter.inc();
        }
        self.set_entries(entries);
    }

    /// Sets the number of pins held.
    pub(crate) fn set_entries(&self, entries: usize) {
        self.entries.set(i64::try_from(entries).unwrap_or(i64::MAX));
    }
}
