use super::*;
use crate::fleet::WorkerId;
use crate::fleet::load::Report;
use crate::place::testing::{dice, fleet};
use proptest::prelude::*;
use std::sync::Arc;

const PROMPT: Prompt = Prompt { units: 1000, tokens: 1000.0 };

fn waits(worker: &Arc<Worker>, waiting_tokens: u32) {
    worker.load().set_report(Some(Report { waiting_tokens, ..Report::default() }));
}

/// Worker 0 holds 900 of 1,000, workers 0 and 1 hold 450.
fn shared() -> Shared {
    let holders = |ids: &[u32]| ids.iter().map(|id| WorkerId(*id)).collect();
    Shared::from_iter([(900, holders(&[0])), (450, holders(&[0, 1]))])
}

fn score(decay: f64, workers: &[Arc<Worker>]) -> Scored {
    let scoring = Scoring { decay, ..Scoring::OFF };
    scoring.choose(&shared(), &PROMPT, &Candidates::new(workers, &[]), &mut dice()).unwrap()
}

#[test]
fn a_backlog_takes_off_what_it_is_longer_than_the_shortest_in_prompts() {
    let workers = fleet(3);
    waits(&workers[0], 3000);
    waits(&workers[1], 1000);
    waits(&workers[2], 500);
    // 2,500 tokens more than the least, which nobody who holds anything has: 900 / (1 + 2.5 d).
    for (decay, at, score_of) in
        [(0.0, 0, 0.9), (0.2, 0, 0.6), (0.4, 0, 0.45), (0.8, 1, 0.45 / 1.4)]
    {
        let scored = score(decay, &workers);
        assert!(scored.at == at && (scored.score - score_of).abs() < 1e-9, "{decay}: {scored:?}");
    }
    assert!((score(0.8, &workers).share - 0.45).abs() < 1e-6, "what it holds is what it holds");
}

#[test]
fn who_reports_nothing_is_not_discounted() {
    let workers = fleet(3);
    waits(&workers[1], 5000);
    waits(&workers[2], 0);
    assert_eq!(score(1.0, &workers).at, 0);
    assert!((score(1.0, &workers).score - 0.9).abs() < 1e-9);
}

#[test]
fn unavailable_holders_do_not_count_and_equals_go_to_the_idler() {
    let workers = fleet(3);
    workers[0].set_healthy(false);
    assert_eq!(score(0.0, &workers).at, 1);
    let equal = Shared::from_iter([(900, [0, 1].map(WorkerId).into_iter().collect())]);
    workers[0].set_healthy(true);
    workers[0].begin(None);
    let candidates = Candidates::new(&workers, &[]);
    let choose = |shared| Scoring::OFF.choose(shared, &PROMPT, &candidates, &mut dice());
    assert_eq!(choose(&equal).unwrap().at, 1);
    assert!(choose(&Shared::new()).is_none());
}

/// Weights are `exp((score / best − 1) / t)`: here 1 and `exp(−1 / 2t)`.
#[test]
fn a_temperature_draws_by_weight() {
    let workers = fleet(2);
    let candidates = Candidates::new(&workers, &[]);
    let mut dice = dice();
    for temperature in [1e-9_f64, 0.25, 1.0, 1e9] {
        let scoring = Scoring { temperature, ..Scoring::OFF };
        let second = (0..4000)
            .filter(|_| scoring.choose(&shared(), &PROMPT, &candidates, &mut dice).unwrap().at == 1)
            .count() as f64
            / 4000.0;
        let weight = (-0.5 / temperature).exp();
        let expected = weight / (1.0 + weight);
        assert!((second - expected).abs() < 0.03, "{temperature}: {second}, not {expected}");
    }
}

proptest! {
    #[test]
    fn whoever_is_chosen_holds_something_and_is_available(
        loads in prop::collection::vec((0_u32..10_000, any::<bool>()), 2),
        decay in 0.0_f64..10.0,
        temperature in 0.0_f64..3.0,
    ) {
        let workers = fleet(3);
        for (worker, (waiting, up)) in workers.iter().zip(&loads) {
            waits(worker, *waiting);
            worker.set_healthy(*up);
        }
        let candidates = Candidates::new(&workers, &[]);
        let scoring = Scoring { decay, temperature };
        let chosen = scoring.choose(&shared(), &PROMPT, &candidates, &mut dice());
        prop_assert_eq!(chosen.is_some(), loads.iter().any(|(_, up)| *up));
        if let Some(chosen) = chosen {
            prop_assert!(chosen.at < 2 && loads[chosen.at].1);
            prop_assert!(chosen.score > 0.0 && chosen.score <= f64::from(chosen.share) + 1e-6);
        }
    }
}
