use super::super::{OVERRIDE_THRESHOLD, Replacement};
use super::*;
use crate::fleet::Leg;
use crate::keys::scope::{Hashing, Scope};
use proptest::prelude::*;

const A: WorkerId = WorkerId(1);
const B: WorkerId = WorkerId(2);
const RULES: Rules = Rules { replacement: Replacement::Leads, threshold: Some(OVERRIDE_THRESHOLD) };

fn key(text: &str) -> KeyHash {
    Hashing::new([1; 16]).hash(Scope { model: Some("m"), leg: Leg::Regular }, text.as_bytes())
}

fn fly(table: &Table, key: KeyHash, proposal: WorkerId) -> (WorkerId, Outcome, bool) {
    match table.turn(key, Some(proposal), 0, |_| true) {
        Turn::Fly { worker, outcome, proposal_used, .. } => (worker, outcome, proposal_used),
        Turn::Propose(step) => panic!("{step:?} with a proposal"),
    }
}

#[test]
fn a_new_key_proposes_then_sticks() {
    let table = Table::new(RULES, None);
    assert_eq!(table.turn(key("k"), None, 0, |_| true), Turn::Propose(Step::Place));
    assert_eq!(fly(&table, key("k"), A), (A, Outcome::Vacant, true));
    let again = table.turn(key("k"), None, 0, |_| true);
    assert!(matches!(again, Turn::Fly { worker: A, outcome: Outcome::OccupiedHit, .. }));
    assert_eq!(table.len(), 1);
}

#[test]
fn a_pin_may_be_set_and_looked_up_without_a_request() {
    let table = Table::new(RULES, Some(1));
    assert_eq!(table.home(key("k"), 0), None);
    table.pin(key("k"), A, 1);
    assert_eq!(table.home(key("k"), 2), Some(A));
    table.pin(key("k"), B, 3);
    assert_eq!((table.home(key("k"), 4), table.len()), (Some(B), 1));
    table.pin(key("other"), A, 5);
    assert_eq!((table.home(key("k"), 6), table.len()), (None, 1));
    // Nothing is in flight for it.
    assert_eq!(table.sweep(100, 10), 1);
}

#[test]
fn keys_by_other_rules_count_towards_the_same_bound() {
    let table = Table::new(RULES, Some(2));
    let manual = Rules { replacement: Replacement::Follows, threshold: None };
    let other = table.also(manual);
    for (now, (of, name)) in (0..).zip([(&table, "a"), (&other, "b"), (&other, "c")]) {
        of.turn(key(name), Some(A), now, |_| true);
        of.leave(key(name), A, now);
    }
    assert_eq!((table.len(), other.len()), (2, 2));
    assert_eq!(other.turn(key("a"), None, 3, |_| true), Turn::Propose(Step::Place));
    // Its own rules hold for each: only the override places the third in flight again.
    let third = |of: &Table| [(); 3].map(|()| of.turn(key("c"), None, 4, |_| true))[2];
    assert_eq!(third(&table), Turn::Propose(Step::Respill(A)));
    (0..2).for_each(|_| _ = other.leave(key("c"), A, 4));
    assert!(matches!(third(&other), Turn::Fly { worker: A, .. }));
    (0..3).for_each(|_| _ = table.leave(key("c"), A, 4));
    assert_eq!((table.sweep(1000, 10), other.len()), (2, 0));
}

#[test]
fn the_loser_of_a_race_for_a_new_key_adopts_the_winners_worker() {
    let table = Table::new(RULES, None);
    assert_eq!(fly(&table, key("k"), A), (A, Outcome::Vacant, true));
    assert_eq!(fly(&table, key("k"), B), (A, Outcome::OccupiedHit, false));
}

#[test]
fn the_third_in_flight_is_placed_again_and_the_pin_follows_once() {
    let table = Table::new(RULES, None);
    let k = key("k");
    for wanted in [
        (A, Outcome::Vacant, true),
        (A, Outcome::OccupiedHit, false),
        (B, Outcome::CapRespill, true),
        (B, Outcome::OccupiedHit, false),
        (B, Outcome::CapRespill, true),
    ] {
        let proposal = if wanted.1 == Outcome::Vacant { A } else { B };
        assert_eq!(fly(&table, k, proposal), wanted);
    }
    for worker in [A, A, B, B, B] {
        table.leave(k, worker, 0);
    }
    assert_eq!(fly(&table, k, A), (B, Outcome::OccupiedHit, false));
}

#[test]
fn an_outage_keeps_the_pin() {
    let table = Table::new(RULES, None);
    fly(&table, key("k"), A);
    assert_eq!(table.turn(key("k"), None, 0, |_| false), Turn::Propose(Step::Replace));
    let back = table.turn(key("k"), None, 0, |_| true);
    assert!(matches!(back, Turn::Fly { worker: A, outcome: Outcome::OccupiedHit, .. }));
}

#[test]
fn a_detour_leaves_the_pin_where_it_is() {
    let table = Table::new(RULES, None);
    fly(&table, key("k"), A);
    let detour = table.detour(key("k"), Step::Replace, B, 0);
    assert!(matches!(detour, Turn::Fly { worker: B, outcome: Outcome::OccupiedMiss, .. }));
    assert!(table.leave(key("k"), B, 0));
    assert_eq!(fly(&table, key("k"), B), (A, Outcome::OccupiedHit, false));
}

#[test]
fn the_sweep_takes_idle_pins_but_none_in_flight() {
    let table = Table::new(RULES, None);
    for (name, used) in [("old", 0), ("young", 50), ("busy", 0)] {
        assert!(matches!(table.turn(key(name), Some(A), used, |_| true), Turn::Fly { .. }));
    }
    table.leave(key("old"), A, 0);
    table.leave(key("young"), A, 0);
    assert_eq!(table.sweep(100, 100), 1);
    assert_eq!(table.len(), 2);
    assert_eq!(table.turn(key("old"), None, 100, |_| true), Turn::Propose(Step::Place));
    table.leave(key("busy"), A, 0);
    assert_eq!(table.sweep(150, 100), 2);
    assert!(table.is_empty());
}

#[test]
fn the_last_use_never_goes_back() {
    let table = Table::new(RULES, None);
    for second in [50, 49] {
        assert!(matches!(table.turn(key("k"), Some(A), second, |_| true), Turn::Fly { .. }));
    }
    table.leave(key("k"), A, 0);
    table.leave(key("k"), A, 0);
    table.detour(key("k"), Step::Replace, B, 48);
    table.leave(key("k"), B, 0);
    assert_eq!((table.sweep(149, 100), table.sweep(150, 100)), (0, 1));
}

#[test]
fn first_and_last_flight_of_a_key_are_told_apart() {
    let table = Table::new(RULES, None);
    let k = key("k");
    assert!(table.enter(k, A) && !table.enter(k, A) && table.enter(k, B));
    assert!(!table.leave(k, A, 0) && table.leave(k, A, 0) && table.leave(k, B, 0));
    assert!(!table.leave(k, B, 0), "nothing left to leave");
}

#[test]
fn at_the_bound_the_idlest_goes_and_nobody_is_refused() {
    let table = Table::new(RULES, Some(1));
    for n in 0..9 {
        let name = n.to_string();
        assert!(matches!(table.turn(key(&name), Some(A), 10 + n, |_| true), Turn::Fly { .. }));
        table.leave(key(&name), A, 10 + n);
        assert_eq!(table.len(), 1);
    }
    assert_eq!(table.turn(key("0"), None, 0, |_| true), Turn::Propose(Step::Place));
    assert!(matches!(table.turn(key("8"), None, 0, |_| true), Turn::Fly { .. }));
}

#[test]
fn a_flood_of_keys_cannot_displace_one_in_flight() {
    let table = Table::new(RULES, Some(50));
    assert_eq!(fly(&table, key("busy"), B), (B, Outcome::Vacant, true));
    for n in 0..1000 {
        let name = format!("flood {n}");
        assert!(matches!(table.turn(key(&name), Some(A), 100, |_| true), Turn::Fly { .. }));
        table.leave(key(&name), A, 100);
    }
    assert_eq!(table.len(), 50);
    assert_eq!(fly(&table, key("busy"), A), (B, Outcome::OccupiedHit, false));
}

#[test]
fn records_survive_a_restart_and_never_overrule_the_living() {
    let (old, new) = (Table::new(RULES, None), Table::new(RULES, None));
    fly(&old, key("a"), A);
    fly(&old, key("b"), A);
    fly(&new, key("b"), B);
    old.records().flatten().for_each(|record| new.restore(record));
    assert_eq!(new.len(), 2);
    assert_eq!(fly(&new, key("a"), B), (A, Outcome::OccupiedHit, false));
    assert_eq!(fly(&new, key("b"), A), (B, Outcome::OccupiedHit, false));
}

proptest! {
    /// Whatever is flown and landed in whatever order, at rest nothing is in flight.
    #[test]
    fn counts_return_to_zero(moves in prop::collection::vec((0..4_u8, 0..3_u32), 1..200)) {
        let table = Table::new(RULES, None);
        let mut flights = Vec::new();
        for (name, proposal) in moves {
            let k = key(&name.to_string());
            flights.push((k, fly(&table, k, WorkerId(proposal)).0));
            if flights.len() > 5 {
                let (k, worker) = flights.swap_remove(0);
                table.leave(k, worker, 0);
            }
        }
        for (k, worker) in flights {
            table.leave(k, worker, 0);
        }
        prop_assert!(table.kept.shards.iter().all(|shard| lock(shard).flying.is_empty()));
    }
}
