use super::super::testing::{dice, fleet, send};
use super::*;
use crate::pins::rendezvous::seed;
use proptest::prelude::*;

fn keyed(key: &str) -> Sought {
    Sought { key: Some(seed("m", key.as_bytes())), ..Sought::default() }
}

fn pick(policy: &SessionAffinity, sought: Sought, workers: &[Arc<Worker>]) -> Proposal {
    let ask = Ask { sought, ..Ask::default() };
    policy.propose(&ask, &Candidates::new(workers, &[]), &mut dice())
}

fn owner(policy: &SessionAffinity, sought: Sought, workers: &[Arc<Worker>]) -> Option<WorkerId> {
    pick(policy, sought, workers).at.map(|at| workers[at].id)
}

#[test]
fn the_branches_without_a_store() {
    let (policy, workers) = (SessionAffinity::default(), fleet(3));
    assert_eq!(pick(&policy, keyed("k"), &workers).branch, Branch::Rendezvous);
    assert_eq!(pick(&policy, Sought::default(), &workers).branch, Branch::Random);
    for sought in [keyed("k"), Sought::default(), Sought { spread: 2, ..keyed("k") }] {
        let nobody = pick(&policy, sought, &[]);
        assert_eq!((nobody.at, nobody.branch), (None, Branch::NoHealthyWorkers));
    }
}

#[test]
fn it_reads_headers_only_and_remembers_nothing() {
    let policy = SessionAffinity::default();
    assert_eq!((policy.reads(), policy.keys()), (Reads::Headers, KeyUse::Sessions));
    assert_eq!(policy.remembered(), None);
}

#[test]
fn without_a_key_every_worker_has_its_turn() {
    let (policy, workers) = (SessionAffinity::default(), fleet(4));
    let (mut dice, candidates) = (dice(), Candidates::new(&workers, &[]));
    let mut seen = [0; 4];
    for _ in 0..400 {
        seen[policy.propose(&Ask::default(), &candidates, &mut dice).at.unwrap()] += 1;
    }
    assert!(seen.iter().all(|count| *count > 60), "{seen:?}");
}

#[test]
fn a_child_starts_where_its_parent_is() {
    let (policy, workers) = (SessionAffinity::default(), fleet(8));
    let parent = owner(&policy, keyed("parent"), &workers);
    for n in 0..16 {
        let child = keyed(&format!("child-{n}"));
        let child = Sought { parent: keyed("parent").key, ..child };
        assert_eq!(owner(&policy, child, &workers), parent);
    }
}

#[test]
fn a_spread_key_has_its_workers_and_goes_to_the_least_loaded_of_them() {
    let (policy, workers) = (SessionAffinity::default(), fleet(8));
    let spread = Sought { spread: 3, ..keyed("k") };
    let mut seen = Vec::new();
    for _ in 0..30 {
        let at = pick(&policy, spread, &workers).at.unwrap();
        send(&workers[at], 1);
        seen.push(at);
    }
    seen.sort_unstable();
    let each: Vec<_> = seen.chunk_by(|a, b| a == b).map(<[usize]>::len).collect();
    assert_eq!(each, [10, 10, 10]);
    let first = pick(&policy, keyed("k"), &workers).at.unwrap();
    assert!(seen.contains(&first), "the key's own worker is among them");
    // A fleet smaller than the spread is all there is.
    assert!(pick(&policy, Sought { spread: 64, ..keyed("k") }, &workers).at.is_some());
}

#[test]
fn the_gate_wants_a_gap_and_a_factor() {
    let rules = Imbalance { factor: 2.0, min_gap: 8 };
    for (loads, hot) in [
        (&[0, 0, 0][..], false),
        (&[7, 0, 0], false),
        (&[8, 0, 0], true),
        (&[30, 22, 22], false),
        (&[20, 20, 0], false),
        (&[21, 20, 0], true),
        (&[8, 0], true),
        (&[7, 0], false),
        (&[50], false),
    ] {
        let workers = fleet(u32::try_from(loads.len()).unwrap());
        workers.iter().zip(loads).for_each(|(worker, load)| send(worker, *load));
        let candidates = Candidates::new(&workers, &[]);
        assert_eq!(rules.is_hot(0, &candidates), hot, "{loads:?}");
        if hot {
            let cooler = rules.cooler(&candidates, &mut dice()).unwrap();
            let least = loads.iter().min().unwrap();
            assert_eq!(loads[cooler], *least, "{loads:?}");
        }
    }
    assert!(!rules.is_hot(9, &Candidates::new(&fleet(2), &[])));
}

#[test]
fn the_marks_follow_the_list() {
    let (policy, all) = (SessionAffinity::default(), fleet(4));
    for workers in [&all[..], &all[..2], &all[1..], &all[..1]] {
        for n in 0..50 {
            let sought = keyed(&n.to_string());
            let fresh = owner(&SessionAffinity::default(), sought, workers);
            assert_eq!(owner(&policy, sought, workers), fresh);
        }
    }
}

proptest! {
    #[test]
    fn down_is_the_same_as_gone_and_the_order_of_registration_is_nothing(
        count in 2_u32..8, gone in 0_usize..8, turn in 0_usize..8, key in ".{1,20}",
    ) {
        let all = fleet(count);
        let gone = gone % all.len();
        let policy = SessionAffinity::default();
        let before = owner(&policy, keyed(&key), &all);
        let mut turned = all.clone();
        turned.rotate_left(turn % all.len());
        prop_assert_eq!(owner(&policy, keyed(&key), &turned), before);
        let mut rest = all.clone();
        let removed = rest.remove(gone);
        all[gone].set_healthy(false);
        let down = owner(&policy, keyed(&key), &all);
        prop_assert_eq!(owner(&policy, keyed(&key), &rest), down);
        if before != Some(removed.id) {
            prop_assert_eq!(down, before);
        }
    }

    #[test]
    fn losing_a_worker_replaces_only_it_in_a_spread(count in 3_u32..9, k in 2_usize..4, key in ".{1,20}") {
        let all = fleet(count);
        let policy = SessionAffinity::default();
        let places = |workers: &[Arc<Worker>]| {
            let best = policy.best(seed("m", key.as_bytes()), k, &Candidates::new(workers, &[]));
            best.into_iter().map(|(_, worker)| worker.id).collect::<Vec<_>>()
        };
        let before = places(&all);
        let at = all.iter().position(|worker| worker.id == before[0]).unwrap();
        all[at].set_healthy(false);
        let after = places(&all);
        prop_assert_eq!(&after[..k - 1], &before[1..]);
        prop_assert!(!after.contains(&before[0]));
    }
}
