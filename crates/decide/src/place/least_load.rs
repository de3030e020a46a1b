//! `least_load`: the shortest expected wait.

use rand::Rng;

use super::{Ask, Candidates, ExpectedWait, Policy, Proposal, Reads, least_among};
use crate::fleet::Worker;

/// The policy `least_load`.
#[derive(Debug)]
pub struct LeastLoad {
    wait: ExpectedWait,
    max_waiting: Option<u32>,
}

impl LeastLoad {
    /// By these assumptions. A worker with `max_waiting` requests waiting is skipped:
    /// `--least-load-max-waiting-requests`.
    #[must_use]
    pub const fn new(wait: ExpectedWait, max_waiting: Option<u32>) -> Self {
        Self { wait, max_waiting }
    }

    /// Whether so many wait there, by its report and by what was sent since, that it is skipped. A
    /// worker without a report never is.
    fn full(&self, worker: &Worker) -> bool {
        let Some((max, report)) = self.max_waiting.zip(worker.load().report()) else {
            return false;
        };
        u64::from(report.waiting).saturating_add(worker.load().unreported_requests())
            >= u64::from(max)
    }
}

impl Policy for LeastLoad {
    fn name(&self) -> &'static str {
        "least_load"
    }

    fn reads(&self) -> Reads {
        Reads::Headers
    }

    fn reads_loads(&self) -> bool {
        true
    }

    fn propose(&self, _: &Ask<'_>, candidates: &Candidates<'_>, dice: &mut dyn Rng) -> Proposal {
        let estimate = self.wait.among(candidates.available().map(|(_, worker)| worker));
        let roomy = candidates.available().filter(|(_, worker)| !self.full(worker));
        Proposal::plain(least_among(roomy, |worker| estimate.at(worker), dice))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::testing::{dice, fleet, send};
    use super::*;
    use crate::fleet::load::Report;
    use proptest::prelude::*;

    const WAIT: ExpectedWait = ExpectedWait {
        kv_pressure_weight: 0.15,
        default_throughput: 2000.0,
        mean_prefill_tokens: 1024,
    };

    /// Places `count` requests that never end; how many each worker got.
    fn spread(policy: &LeastLoad, workers: &[Arc<Worker>], count: usize) -> Vec<usize> {
        let mut got = vec![0; workers.len()];
        let mut dice = dice();
        for _ in 0..count {
            let candidates = Candidates::new(workers, &[]);
            let Some(at) = policy.propose(&Ask::default(), &candidates, &mut dice).at else {
                break;
            };
            workers[at].begin(None);
            got[at] += 1;
        }
        got
    }

    #[test]
    fn without_any_report_the_fewest_in_flight() {
        assert_eq!(spread(&LeastLoad::new(WAIT, None), &fleet(3), 30), [10, 10, 10]);
    }

    #[test]
    fn a_report_of_the_first_worker_alone_herds_nobody() {
        let workers = fleet(2);
        workers[0].load().set_report(Some(Report::default()));
        assert_eq!(spread(&LeastLoad::new(WAIT, None), &workers, 10), [5, 5]);
    }

    #[test]
    fn a_queue_of_five_is_worth_five_requests() {
        let workers = fleet(2);
        for (worker, waiting) in workers.iter().zip([5, 0]) {
            let report = Report { waiting, throughput: 100.0, ..Report::default() };
            worker.load().set_report(Some(report));
        }
        let got = spread(&LeastLoad::new(WAIT, None), &workers, 12);
        // Observed on the peer: three of twelve, or four by the lot at the tie.
        assert!(got[0] == 3 || got[0] == 4, "{got:?}");
    }

    #[test]
    fn a_full_worker_is_skipped_and_a_silent_one_is_not() {
        let workers = fleet(2);
        workers[0].load().set_report(Some(Report { waiting: 3, ..Report::default() }));
        let policy = LeastLoad::new(WAIT, Some(4));
        assert!(!policy.full(&workers[0]));
        workers[0].begin(Some(1));
        assert!(policy.full(&workers[0]), "three reported and one sent since");
        assert_eq!(spread(&policy, &workers, 5), [0, 5]);
        workers[1].load().set_report(Some(Report { waiting: 4, ..Report::default() }));
        assert_eq!(spread(&policy, &workers, 1), [0, 0], "all are full");
        assert_eq!(spread(&LeastLoad::new(WAIT, None), &workers, 1).iter().sum::<usize>(), 1);
    }

    proptest! {
        #[test]
        fn nobody_available_waits_less_than_the_chosen_one(
            fleet_of in proptest::collection::vec(
                (any::<bool>(), proptest::option::of((0_u32..9, 0.0_f32..500.0, 0.0_f32..1.0)), 0_u32..9),
                1..8,
            ),
        ) {
            let workers = fleet(fleet_of.len() as u32);
            for (worker, (healthy, said, sent)) in workers.iter().zip(&fleet_of) {
                worker.set_healthy(*healthy);
                worker.load().set_report(said.map(|(waiting, throughput, token_usage)| Report {
                    waiting, throughput, token_usage, ..Report::default()
                }));
                send(worker, *sent);
            }
            let candidates = Candidates::new(&workers, &[]);
            let at = LeastLoad::new(WAIT, None).propose(&Ask::default(), &candidates, &mut dice()).at;
            let estimate = WAIT.among(candidates.available().map(|(_, worker)| worker));
            match at {
                None => prop_assert_eq!(candidates.available().count(), 0),
                Some(at) => {
                    prop_assert!(candidates.takes(at));
                    let chosen = estimate.at(&workers[at]);
                    prop_assert!(candidates.available().all(|(_, other)| estimate.at(other) >= chosen));
                }
            }
        }
    }
}
