//! What engines report of their load, as polled.

use prometheus::{Gauge, GaugeVec, IntCounterVec, Opts, Registry};
use smg_wire::loads::Rank;

use super::keep;

/// The families; each worker's watcher holds its own handles.
#[derive(Clone, Debug)]
pub(crate) struct EngineMetersRoot {
    gauges: [GaugeVec; 5],
    polls: IntCounterVec,
}

/// One worker's series. They are there while it reports and gone when it does not: the last word of
/// an engine that has fallen silent is no load.
#[derive(Debug)]
pub(crate) struct EngineMeters {
    families: EngineMetersRoot,
    worker: String,
    model: String,
    ranks: Vec<(u32, [Gauge; 5])>,
    /// How its polls ended so far, each once.
    modes: Vec<&'static str>,
}

impl EngineMetersRoot {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let gauge = |name: &str, help: &str| {
            let labels = &["worker", "model", "dp_rank"];
            keep(registry, GaugeVec::new(Opts::new(name, help), labels))
        };
        let polls = Opts::new("smg_engine_load_polls_total", "Load polls, by what answered.");
        let gauges = [
            gauge("smg_engine_running_requests", "Requests running, as the engine reports.")?,
            gauge("smg_engine_waiting_requests", "Requests waiting, as the engine reports.")?,
            gauge("smg_engine_token_usage", "Share of the KV cache in use.")?,
            gauge("smg_engine_gen_throughput", "Tokens generated a second.")?,
            gauge("smg_engine_cache_hit_rate", "Share of prompt tokens found in the cache.")?,
        ];
        let polls = keep(registry, IntCounterVec::new(polls, &["worker", "mode"]))?;
        Ok(Self { gauges, polls })
    }

    /// Handles for a worker, without any series yet.
    pub(crate) fn worker(&self, worker: &str, model: &str) -> EngineMeters {
        EngineMeters {
            families: self.clone(),
            worker: worker.to_owned(),
            model: model.to_owned(),
            ranks: Vec::new(),
            modes: Vec::new(),
        }
    }
}

impl EngineMeters {
    /// Shows another model from now on.
    pub(crate) fn serves(&mut self, model: &str) {
        self.clear();
        model.clone_into(&mut self.model);
    }

    /// Counts a poll: `mode` is what told the load, one of a few names.
    pub(crate) fn polled(&mut self, mode: &'static str) {
        self.families.polls.with_label_values(&[&*self.worker, mode]).inc();
        if !self.modes.contains(&mode) {
            self.modes.push(mode);
        }
    }

    /// Shows a report, or takes the last one away when this one has no rank.
    pub(crate) fn show(&mut self, report: &[Rank]) {
        if !self.ranks.iter().map(|(rank, _)| *rank).eq(report.iter().map(|rank| rank.dp_rank)) {
            self.clear();
        }
        // Looked up anew, as a worker of the same address that left may have taken them along.
        self.ranks = report.iter().map(|rank| (rank.dp_rank, self.gauges(rank))).collect();
        for ((_, gauges), rank) in self.ranks.iter().zip(report) {
            let values = [
                f64::from(rank.running),
                f64::from(rank.waiting),
                f64::from(rank.token_usage),
                f64::from(rank.throughput),
                f64::from(rank.cache_hit_rate),
            ];
            gauges.iter().zip(values).for_each(|(gauge, value)| gauge.set(value));
        }
    }

    fn gauges(&self, rank: &Rank) -> [Gauge; 5] {
        let rank = rank.dp_rank.to_string();
        let labels = [&*self.worker, &*self.model, &*rank];
        self.families.gauges.each_ref().map(|family| family.with_label_values(&labels))
    }

    fn clear(&mut self) {
        for (rank, _) in std::mem::take(&mut self.ranks) {
            let rank = rank.to_string();
            let labels = [&*self.worker, &*self.model, &*rank];
            // A rank named twice has one series, which is gone the second time.
            self.families
                .gauges
                .iter()
                .for_each(|family| drop(family.remove_label_values(&labels)));
        }
    }
}

impl Drop for EngineMeters {
    fn drop(&mut self) {
        self.clear();
        for mode in &self.modes {
            // A worker of the same address may have left, and taken it along, meanwhile.
            drop(self.families.polls.remove_label_values(&[&*self.worker, mode]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(registry: &Registry) -> usize {
        registry.gather().iter().map(|family| family.get_metric().len()).sum()
    }

    #[test]
    fn series_come_and_go_with_the_ranks_that_report() {
        let registry = Registry::new();
        let root = EngineMetersRoot::new(&registry).unwrap();
        let mut meters = root.worker("http://w1", "m");
        assert_eq!(series(&registry), 0);
        let rank = |dp_rank, running| Rank { dp_rank, running, ..Rank::default() };
        meters.show(&[rank(0, 1), rank(1, 2)]);
        assert_eq!(series(&registry), 10);
        let running = |rank| root.gauges[0].with_label_values(&["http://w1", "m", rank]).get();
        assert!(running("0") == 1.0 && running("1") == 2.0);
        meters.show(&[rank(1, 7)]);
        assert_eq!(series(&registry), 5);
        assert!(running("1") == 7.0);
        meters.show(&[]);
        assert_eq!(series(&registry), 0);
        meters.show(&[rank(0, 1), rank(0, 1)]);
        meters.polled("loads");
        meters.polled("none");
        meters.polled("loads");
        let polls = |mode| root.polls.with_label_values(&["http://w1", mode]).get();
        assert_eq!((polls("loads"), polls("none")), (2, 1));
        drop(meters);
        assert_eq!(series(&registry), 0);
    }
}
