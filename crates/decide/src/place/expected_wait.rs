//! How long a new request would wait on a worker, by what its engine reports and what was sent
//! there since: the score of `least_load`, and of `cache_aware` when no cache decides.

use super::Candidates;
use crate::fleet::Worker;

/// The `--least-load-*` flags that go into the score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weights {
    /// Seconds that a half full KV cache weighs (`--least-load-kv-pressure-weight`).
    pub kv_pressure: f64,
    /// Tokens a second of an engine that does not say (`--least-load-default-throughput`).
    pub default_throughput: f64,
    /// Tokens of a prompt whose length is not known (`--least-load-mean-prefill-tokens`).
    pub mean_tokens: u32,
}

impl Default for Weights {
    fn default() -> Self {
        Self { kv_pressure: 0.15, default_throughput: 2000.0, mean_tokens: 1024 }
    }
}

/// The score, for one choice among one set of candidates.
#[derive(Clone, Copy, Debug)]
pub struct Waits {
    weights: Weights,
    /// For workers without a report: the mean of what the others report, else the default.
    throughput: f64,
}

impl Weights {
    /// Looks at what the available candidates report.
    #[must_use]
    pub fn among(self, candidates: &Candidates<'_>) -> Waits {
        self.over(candidates.available().map(|(_, worker)| worker))
    }

    /// The same for a caller that walks the workers for a purpose of its own.
    pub fn over<'a>(self, workers: impl Iterator<Item = &'a Worker>) -> Waits {
        let reported = workers.filter_map(|worker| worker.load().throughput());
        let add = |(sum, count), throughput| (sum + f64::from(throughput), count + 1.0);
        let (sum, count) = reported.fold((0.0, 0.0), add);
        let throughput = if count > 0.0 { sum / count } else { self.default_throughput };
        Waits { weights: self, throughput }
    }
}

impl Waits {
    /// Expected seconds. Without any report this orders workers by what is in flight there.
    #[must_use]
    pub fn seconds(&self, worker: &Worker) -> f64 {
        let Weights { kv_pressure, default_throughput, mean_tokens } = self.weights;
        let mean = f64::from(mean_tokens);
        let Some(report) = worker.load().report() else {
            return f64::from(worker.in_flight()) * mean / self.throughput;
        };
        let queued = match report.waiting_tokens {
            0 => f64::from(report.waiting) * mean,
            tokens => f64::from(tokens),
        };
        let credit = worker.load().unreported_tokens(u64::from(mean_tokens)) as f64;
        let reported = f64::from(report.throughput);
        let throughput = if reported > 0.0 { reported } else { default_throughput };
        let used = f64::from(report.token_usage).clamp(0.0, 0.999);
        (queued + credit) / throughput + kv_pressure * used / (1.0 - used)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::fleet;
    use super::*;
    use crate::fleet::load::Report;

    fn seconds(worker: &Worker, candidates: &Candidates<'_>) -> f64 {
        Weights::default().among(candidates).seconds(worker)
    }

    #[test]
    fn the_queue_the_credit_and_the_cache_add_up() {
        let workers = fleet(2);
        let candidates = Candidates::new(&workers, &[]);
        let worker = &workers[0];
        let report = Report { waiting: 5, throughput: 100.0, ..Report::default() };
        worker.load().set_report(Some(report));
        assert!((seconds(worker, &candidates) - 51.2).abs() < 1e-9);
        worker.begin(None);
        worker.begin(Some(76));
        assert!((seconds(worker, &candidates) - 62.2).abs() < 1e-9);
        worker.load().set_report(Some(Report { waiting_tokens: 200, ..report }));
        assert!((seconds(worker, &candidates) - 2.0).abs() < 1e-9, "reported, so not credited");
        let full = Report { token_usage: 1.0, ..Report::default() };
        worker.load().set_report(Some(full));
        assert!((seconds(worker, &candidates) - 149.85).abs() < 1e-3);
    }

    #[test]
    fn without_a_report_what_is_in_flight_counts_at_the_others_pace() {
        let workers = fleet(3);
        let candidates = Candidates::new(&workers, &[]);
        workers[0].begin(Some(9));
        assert!((seconds(&workers[0], &candidates) - 0.512).abs() < 1e-9, "at the default pace");
        for (worker, throughput) in workers[1..].iter().zip([100.0, 300.0]) {
            worker.load().set_report(Some(Report { throughput, ..Report::default() }));
        }
        assert!((seconds(&workers[0], &candidates) - 5.12).abs() < 1e-9);
    }
}
