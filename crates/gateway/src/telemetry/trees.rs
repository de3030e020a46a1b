//! How much policies remember of prompts, as of the last sweep.

use prometheus::{IntGaugeVec, Opts, Registry};
use smg_decide::place::Remembered;

use super::keep;

/// The `tree` label: what kind of prompt is remembered.
const TREES: [&str; 2] = ["string", "token"];

/// The families, by model.
#[derive(Debug)]
pub(crate) struct TreeMeters {
    sizes: [IntGaugeVec; 2],
    tenants: IntGaugeVec,
}

impl TreeMeters {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let gauge = |name, help, labels: &[&str]| {
            keep(registry, IntGaugeVec::new(Opts::new(name, help), labels))
        };
        Ok(Self {
            sizes: [
                gauge("smg_cache_tree_chars", "Text that is remembered, in bytes.", &["model"])?,
                gauge("smg_cache_tree_tokens", "Tokens that are remembered.", &["model"])?,
            ],
            tenants: gauge(
                "smg_cache_tree_tenants",
                "Workers that something is remembered of.",
                &["model", "tree"],
            )?,
        })
    }

    /// Shows what a model's policy remembers, texts first; nothing when it remembers no prompts.
    pub(crate) fn show(&self, model: &str, remembered: Option<[Remembered; 2]>) {
        let Some(remembered) = remembered else { return self.drop_model(model) };
        for ((of, family), tree) in remembered.iter().zip(&self.sizes).zip(TREES) {
            let count = |count| i64::try_from(count).unwrap_or(i64::MAX);
            family.with_label_values(&[model]).set(count(of.size));
            self.tenants.with_label_values(&[model, tree]).set(count(of.workers));
        }
    }

    /// Takes away the series of a model that no worker serves any more.
    pub(crate) fn drop_model(&self, model: &str) {
        // Whether they were ever there does not matter.
        for (family, tree) in self.sizes.iter().zip(TREES) {
            let _ = family.remove_label_values(&[model]);
            let _ = self.tenants.remove_label_values(&[model, tree]);
        }
    }
}
