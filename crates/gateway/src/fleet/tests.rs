use super::*;

use crate::settings::testing::placement;
use crate::settings::{BreakerRules, Connections};
use crate::upstream::TcpDial;

const PLACEMENT: Placement = placement(PolicyName::RoundRobin);

fn join(roster: &Roster, meters: &Meters, url: &str, card: Card) {
    let connections = Connections {
        idle_timeout: None,
        max_idle: 1,
        connect_timeout: std::time::Duration::from_secs(1),
    };
    let origin = Origin::parse(url).unwrap();
    let known = roster.lock().pending.iter().find(|(_, p)| *p.url == *url).map(|(id, _)| *id);
    let id = known.unwrap_or_else(|| roster.accept(&origin).unwrap());
    let terms = Terms {
        labels: card.labels.clone(),
        spec: Spec::default(),
        checks: None,
        timeout: None,
        breaker: BreakerRules::OFF,
        overload: crate::settings::OverloadRules::OFF,
        connections,
    };
    let pool = Arc::new(Pool::new(
        origin,
        connections,
        Arc::new(TcpDial::default()),
        meters.workers.connections.clone(),
    ));
    roster.add(Arrival { id, pool, card, terms, ranks: None }, meters);
}

fn card(model: &str, policy: Option<&str>) -> Card {
    let label = policy.map(|policy| ("policy".to_owned(), policy.to_owned()));
    Card { models: vec![model.into()], runtime: "sglang", labels: label.into_iter().collect() }
}

#[test]
fn workers_stand_in_the_order_in_which_they_were_named_not_in_which_they_answered() {
    let roster = Roster::new(PLACEMENT, Assignment::Random);
    let meters = Meters::new(&[1.0]).unwrap();
    let urls = ["http://w1", "http://w2", "http://w3"];
    roster.expect(&urls.map(|url| Origin::parse(url).unwrap()));
    for url in ["http://w4", "http://w3", "http://w1", "http://w2"] {
        join(&roster, &meters, url, card("m", None));
    }
    let order: Vec<_> = roster.load().models["m"].workers.iter().map(|w| w.url.clone()).collect();
    assert_eq!(order.iter().map(|url| &**url).collect::<Vec<_>>()[..3], urls);
    assert_eq!(roster.pending(), 0);
}

#[test]
fn there_are_so_many_workers_and_no_more() {
    let roster = Roster::new(PLACEMENT, Assignment::Random);
    let origin = |n: usize| Origin::parse(&format!("http://w{n}")).unwrap();
    let first = roster.accept(&origin(0)).unwrap();
    assert_eq!(roster.accept(&origin(0)), Err(Unwanted::Known));
    let mut changing = roster.lock();
    for n in 1..MAX_WORKERS {
        changing.await_one(&origin(n), Source::Manual);
    }
    drop(changing);
    assert_eq!(roster.accept(&origin(MAX_WORKERS)), Err(Unwanted::Full));
    roster.give_up(first);
    assert!(roster.accept(&origin(MAX_WORKERS)).is_ok());
}

#[test]
fn every_policy_goes_by_its_own_name() {
    for name in PolicyName::ALL {
        assert_eq!(make_policy(name, &PLACEMENT, Assignment::Random).name(), name.as_str());
        assert_eq!(PolicyName::named(name.as_str()), Some(name));
    }
}

#[test]
fn the_first_valid_label_of_a_model_decides_its_policy() {
    let (roster, meters) =
        (Roster::new(PLACEMENT, Assignment::Random), Meters::new(&[1.0]).unwrap());
    let policy = |model: &str| Arc::clone(&roster.load().models[model].policy);
    for (url, model, label, expected) in [
        ("http://w1", "a", None, "round_robin"),
        ("http://w2", "a", Some("no_such_policy"), "round_robin"),
        ("http://w3", "a", Some("least_load"), "least_load"),
        ("http://w4", "a", Some("bucket"), "least_load"),
        ("http://w5", "b", None, "round_robin"),
    ] {
        join(&roster, &meters, url, card(model, label));
        assert_eq!(policy(model).name(), expected, "{url}");
    }
    let before = policy("a");
    join(&roster, &meters, "http://w6", card("a", None));
    assert!(Arc::ptr_eq(&before, &policy("a")), "a join resets no policy");
}
