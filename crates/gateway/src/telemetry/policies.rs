//! How policies came to their choices.

use std::sync::Arc;

use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts, Registry};
use smg_decide::place::{Branch, Proposal};

use super::keep;

/// Handles of every policy that has a story to tell.
#[derive(Debug)]
pub(crate) struct PolicyMeters {
    consistent_hashing: Arc<BranchMeters>,
    prefix_hash: Arc<BranchMeters>,
    cache_aware: Arc<BranchMeters>,
    session_affinity: Arc<BranchMeters>,
    /// For the policies that have one way only.
    plain: Arc<BranchMeters>,
}

/// One policy's handles.
#[derive(Debug, Default)]
pub(crate) struct BranchMeters {
    counters: Vec<(Branch, IntCounter)>,
    matched: Option<Histogram>,
}

impl PolicyMeters {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let counters = |name: &str, branches: &[Branch]| {
            let opts = Opts::new(name, "Placements, by how they came about.");
            let family = keep(registry, IntCounterVec::new(opts, &["branch"]))?;
            let counter = |branch: &Branch| (*branch, family.with_label_values(&[branch.as_str()]));
            Ok::<_, prometheus::Error>(branches.iter().map(counter).collect())
        };
        let matched = HistogramOpts::new(
            "smg_cache_aware_match_ratio",
            "Share of the prompt that the chosen worker is believed to hold.",
        );
        let tenths = (0..=10).map(|tenth| f64::from(tenth) / 10.0).collect();
        let matched = keep(registry, Histogram::with_opts(matched.buckets(tenths)))?;
        Ok(Self {
            consistent_hashing: Arc::new(BranchMeters {
                counters: counters(
                    "smg_consistent_hashing_policy_branch_total",
                    &Branch::CONSISTENT_HASHING,
                )?,
                matched: None,
            }),
            prefix_hash: Arc::new(BranchMeters {
                counters: counters("smg_prefix_hash_policy_branch_total", &Branch::PREFIX_HASH)?,
                matched: None,
            }),
            cache_aware: Arc::new(BranchMeters {
                counters: counters("smg_cache_aware_policy_branch_total", &Branch::CACHE_AWARE)?,
                matched: Some(matched),
            }),
            session_affinity: Arc::new(BranchMeters {
                counters: counters("smg_session_affinity_branch_total", &Branch::SESSION_AFFINITY)?,
                matched: None,
            }),
            plain: Arc::default(),
        })
    }

    /// The handles of a policy.
    pub(crate) fn of(&self, policy: &str) -> Arc<BranchMeters> {
        let meters = match policy {
            "consistent_hashing" => &self.consistent_hashing,
            "prefix_hash" => &self.prefix_hash,
            "cache_aware" => &self.cache_aware,
            "session_affinity" => &self.session_affinity,
            _ => &self.plain,
        };
        Arc::clone(meters)
    }
}

impl BranchMeters {
    /// Counts a proposal, whether it found a worker or not.
    pub(crate) fn decided(&self, proposal: &Proposal) {
        if let Some((_, counter)) = self.counters.iter().find(|(of, _)| *of == proposal.branch) {
            counter.inc();
        }
        if let Some((histogram, share)) = self.matched.as_ref().zip(proposal.matched) {
            histogram.observe(f64::from(share));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::{Encoder as _, TextEncoder};

    #[test]
    fn each_policy_counts_its_own_branches_from_zero_on() {
        let registry = Registry::new();
        let meters = PolicyMeters::new(&registry).unwrap();
        let nobody = Proposal::by(Branch::NoHealthyWorkers, None);
        meters.of("prefix_hash").decided(&nobody);
        meters.of("consistent_hashing").decided(&Proposal::by(Branch::RoutingKeyHit, Some(0)));
        meters.of("consistent_hashing").decided(&Proposal::by(Branch::TreeMatch, Some(0)));
        meters.of("round_robin").decided(&Proposal::plain(Some(0)));
        let matched = Proposal { matched: Some(0.55), ..Proposal::by(Branch::TreeMatch, Some(0)) };
        meters.of("cache_aware").decided(&matched);
        let mut text = Vec::new();
        TextEncoder::new().encode(&registry.gather(), &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        for line in [
            "smg_prefix_hash_policy_branch_total{branch=\"no_healthy_workers\"} 1",
            "smg_prefix_hash_policy_branch_total{branch=\"ring_hit\"} 0",
            "smg_consistent_hashing_policy_branch_total{branch=\"routing_key_hit\"} 1",
            "smg_consistent_hashing_policy_branch_total{branch=\"no_healthy_workers\"} 0",
            "smg_cache_aware_policy_branch_total{branch=\"tree_match\"} 1",
            "smg_cache_aware_match_ratio_bucket{le=\"0.5\"} 0",
            "smg_cache_aware_match_ratio_bucket{le=\"0.6\"} 1",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("plain") && text.matches("_total{").count() == 21, "{text}");
    }
}
