//! How long a request would wait at a worker: the score of `least_load`, `power_of_two` and the
//! cold prompts of `cache_aware`.
//!
//! What counts is what the engine reported and what was sent there since and is still in flight. A
//! request that has ended weighs nothing any more, and one in flight weighs something at every
//! worker, with or without a report: otherwise the worker that was polled first draws every request
//! until the next poll (facts, "herding of cold prompts").

use std::cmp::Ordering;

use crate::fleet::Worker;
use crate::fleet::load::Queue;

/// What the estimate assumes: `--least-load-…`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpectedWait {
    /// Seconds that a KV cache half full adds: `--least-load-kv-pressure-weight`.
    pub kv_pressure_weight: f64,
    /// Tokens a second of an engine that reports none: `--least-load-default-throughput`.
    pub default_throughput: f64,
    /// Tokens of a prompt whose length is not known: `--least-load-mean-prefill-tokens`.
    pub mean_prefill_tokens: u32,
}

impl ExpectedWait {
    /// An estimate for a choice among these workers: one without a report is taken to be as fast as
    /// the others are on average.
    #[must_use]
    pub fn among<'a>(self, workers: impl Iterator<Item = &'a Worker>) -> Estimate {
        let mut speeds = Speeds::default();
        workers.filter_map(|worker| worker.load().throughput()).for_each(|said| speeds.add(said));
        self.at_speeds(&speeds)
    }

    /// The same when the workers have been looked at already.
    pub(super) fn at_speeds(self, speeds: &Speeds) -> Estimate {
        let Speeds { sum, count } = *speeds;
        let silent_throughput = if count > 0.0 { sum / count } else { self.default_throughput };
        Estimate { rules: self, silent_throughput }
    }

    /// What can be said of a worker before it is known how fast the others are, to which it adds
    /// its own.
    #[inline]
    pub(super) fn part(&self, worker: &Worker, speeds: &mut Speeds) -> Part {
        let in_flight = worker.in_flight();
        match worker.load().queue() {
            Some(queue) => {
                speeds.add(queue.throughput);
                let full = self.kv_pressure_weight * f64::from(queue.pressure);
                Part { seconds: self.reading(&queue) + full, silent: 0.0, in_flight }
            }
            None => {
                let silent = (f64::from(in_flight) * f64::from(self.mean_prefill_tokens)) as f32;
                Part { seconds: 0.0, silent, in_flight }
            }
        }
    }

    /// Seconds until what is queued there has been read: `(queued + credit) / throughput`.
    #[inline]
    fn reading(&self, queue: &Queue) -> f64 {
        // Most workers of an idle fleet have nothing to divide.
        if queue.waiting | queue.waiting_tokens | queue.sent_unsized | queue.sent_tokens == 0 {
            return 0.0;
        }
        let mean = f64::from(self.mean_prefill_tokens);
        let queued = match queue.waiting_tokens {
            0 => f64::from(queue.waiting) * mean,
            known => f64::from(known),
        };
        let credit = f64::from(queue.sent_tokens) + f64::from(queue.sent_unsized) * mean;
        let throughput = match queue.throughput {
            said if said > 0.0 => f64::from(said),
            _ => self.default_throughput,
        };
        (queued + credit) / throughput
    }
}

/// How fast those are that say so.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Speeds {
    sum: f64,
    count: f64,
}

impl Speeds {
    #[inline]
    fn add(&mut self, said: f32) {
        if said > 0.0 {
            self.sum += f64::from(said);
            self.count += 1.0;
        }
    }
}

/// A wait in seconds, and tokens that a worker without a report has to read before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) seconds: f64,
    pub(super) silent: f32,
    pub(super) in_flight: u32,
}

/// The assumptions, and the speed of a worker without a report.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    rules: ExpectedWait,
    silent_throughput: f64,
}

/// An expected wait. Where seconds are equal, the fewer in flight weigh less: an engine that merely
/// runs requests and has none waiting reports no wait at all.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    /// Never negative, never NaN.
    pub seconds: f64,
    in_flight: u32,
}

impl Wait {
    /// Its place among waits. One integer, because a thousand comparisons of two fields each take longer
    /// than all the rest of a choice: the bits of a float that is not negative order as it does.
    #[inline]
    const fn rank(&self) -> u128 {
        ((self.seconds.to_bits() as u128) << 32) | self.in_flight as u128
    }
}

impl Ord for Wait {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl PartialOrd for Wait {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Wait {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl Eq for Wait {}

impl Estimate {
    /// The wait a further request can expect at a worker: its queue, and `w · k / (1 − k)` for a
    /// KV cache in use to a share of `k`.
    #[inline]
    #[must_use]
    pub fn at(&self, worker: &Worker) -> Wait {
        let part = self.rules.part(worker, &mut Speeds::default());
        let Part { seconds, silent, in_flight } = part;
        let silent = if silent > 0.0 { f64::from(silent) / self.silent_throughput } else { 0.0 };
        Wait { seconds: seconds + silent, in_flight }
    }

    /// Seconds for one token at a worker without a report.
    pub(super) const fn silent_token(&self) -> f64 {
        1.0 / self.silent_throughput
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{fleet, send};
    use super::*;
    use crate::fleet::load::Report;
    use proptest::prelude::*;

    const RULES: ExpectedWait = ExpectedWait {
        kv_pressure_weight: 0.15,
        default_throughput: 2000.0,
        mean_prefill_tokens: 1024,
    };

    fn report(waiting: u32, waiting_tokens: u32, throughput: f32, token_usage: f32) -> Report {
        Report { running: 0, waiting, waiting_tokens, throughput, token_usage }
    }

    /// The wait at a worker with this report (if any) and so many requests sent after it.
    fn wait(said: Option<Report>, sent: u32) -> f64 {
        let workers = fleet(1);
        workers[0].load().set_report(said);
        send(&workers[0], sent);
        RULES.among(workers.iter().map(AsRef::as_ref)).at(&workers[0]).seconds
    }

    #[test]
    fn the_formula_case_by_case() {
        for (said, sent, seconds) in [
            (None, 0, 0.0),
            (None, 3, 3.0 * 1024.0 / 2000.0),
            (Some(report(0, 0, 0.0, 0.0)), 0, 0.0),
            (Some(report(0, 0, 0.0, 0.0)), 3, 3.0 * 1024.0 / 2000.0),
            (Some(report(5, 0, 100.0, 0.0)), 0, 51.2),
            (Some(report(5, 0, 100.0, 0.0)), 1, 61.44),
            (Some(report(5, 700, 100.0, 0.0)), 0, 7.0),
            (Some(report(0, 0, 100.0, 0.9)), 0, 1.35),
            (Some(report(0, 0, 100.0, 1.0)), 0, 0.15 * 999.0),
            (Some(report(0, 0, f32::NAN, f32::NAN)), 0, 0.0),
        ] {
            assert!(
                (wait(said, sent) - seconds).abs() < 1e-2,
                "{said:?} {sent}: {}",
                wait(said, sent)
            );
        }
    }

    #[test]
    fn a_worker_without_a_report_is_as_fast_as_the_others_on_average() {
        let workers = fleet(4);
        workers[0].load().set_report(Some(report(0, 0, 100.0, 0.0)));
        workers[1].load().set_report(Some(report(0, 0, 300.0, 0.0)));
        workers[2].load().set_report(Some(report(0, 0, 0.0, 0.0)));
        workers[3].begin(None);
        let estimate = RULES.among(workers.iter().map(AsRef::as_ref));
        assert!((estimate.at(&workers[3]).seconds - 1024.0 / 200.0).abs() < 1e-9);
    }

    #[test]
    fn what_was_in_flight_before_the_report_is_in_it_and_what_ended_is_gone() {
        let workers = fleet(1);
        let before = workers[0].begin(None);
        workers[0].load().set_report(Some(report(0, 0, 1000.0, 0.0)));
        let estimate = RULES.among(workers.iter().map(AsRef::as_ref));
        assert!(estimate.at(&workers[0]).seconds == 0.0);
        let after = workers[0].begin(Some(2000));
        assert!((estimate.at(&workers[0]).seconds - 2.0).abs() < 1e-9);
        workers[0].end(after);
        assert!(estimate.at(&workers[0]).seconds == 0.0);
        workers[0].end(before);
        assert!(estimate.at(&workers[0]).seconds == 0.0);
    }

    #[test]
    fn equal_waits_are_told_apart_by_what_runs() {
        let workers = fleet(2);
        workers[0].begin(None);
        for worker in &workers {
            worker.load().set_report(Some(report(0, 0, 0.0, 0.0)));
        }
        let estimate = RULES.among(workers.iter().map(AsRef::as_ref));
        assert!(estimate.at(&workers[1]) < estimate.at(&workers[0]));
    }

    proptest! {
        #[test]
        fn a_further_request_never_shortens_the_wait(
            waiting in 0_u32..100,
            throughput in 0.0_f32..1e5,
            usage in -1.0_f32..2.0,
            sent in 0_u32..20,
            silent in any::<bool>(),
        ) {
            let said = (!silent).then(|| report(waiting, 0, throughput, usage));
            let (less, more) = (wait(said, sent), wait(said, sent + 1));
            prop_assert!(less.is_finite() && less >= 0.0 && more > less, "{less} {more}");
        }
    }
}
