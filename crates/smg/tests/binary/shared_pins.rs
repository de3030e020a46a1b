//! `--sticky-store redis`: pins of the override and of `manual` that two replicas share.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::redis::{Redis, burst, ops, until};
use super::rig::{Gateway, Worker, get, post_with};

const BODY: &str = r#"{"model":"m","messages":[]}"#;
const OVERRIDE: [&str; 3] = ["--policy", "round_robin", "--routing-key-override"];
const MANUAL: [&str; 4] = ["--policy", "manual", "--assignment-mode", "random"];

/// A replica before these workers, connected to the store, for which it waits as long as a busy machine
/// may take.
fn replica(workers: &[Worker], redis: &Redis, flags: &[&str]) -> Gateway {
    waiting("5000", workers, redis, flags)
}

fn waiting(ms: &str, workers: &[Worker], redis: &Redis, flags: &[&str]) -> Gateway {
    let urls: Vec<_> = workers.iter().map(|worker| &*worker.url).collect();
    let url = redis.url();
    let shared = ["--sticky-store", "redis", "--redis-url", &url, "--sticky-store-timeout-ms", ms];
    let gateway = Gateway::start(&urls, &[flags, &shared].concat());
    is_used(&gateway);
    gateway
}

fn is_used(gateway: &Gateway) {
    let before = ops(gateway, "claim", "ok");
    until("the store is used", || {
        turn(gateway, &format!("warm-{}-{before}", gateway.port));
        ops(gateway, "claim", "ok") > before
    });
}

fn fleet(count: usize) -> Vec<Worker> {
    (0..count).map(|_| Worker::start()).collect()
}

/// The worker that answered a request of this key.
fn turn(gateway: &Gateway, key: &str) -> String {
    let (status, body) = post_with(gateway.port, &format!("x-smg-routing-key: {key}"), BODY);
    assert_eq!(status, 200, "{body}");
    body
}

fn either(gateways: &[Gateway; 2], n: usize) -> &Gateway {
    let [one, other] = gateways;
    if n.is_multiple_of(2) { one } else { other }
}

/// Who serves each of these keys, asked of both replicas; they must agree.
fn owners(gateways: &[Gateway; 2], keys: usize) -> Vec<String> {
    let owner = |n: usize| {
        // Either may be the first.
        let turns = [n, n + 1].map(|at| turn(either(gateways, at), &format!("run-{n}")));
        let [one, other] = turns;
        assert_eq!(one, other, "two replicas, two workers");
        one
    };
    (0..keys).map(owner).collect()
}

fn branch(gateway: &Gateway, branch: &str) -> u64 {
    let series = format!("smg_manual_policy_branch_total{{branch=\"{branch}\"}} ");
    let text = get(gateway.metrics, "/metrics").1;
    let value = text.lines().find_map(|line| line.strip_prefix(&series).map(str::to_owned));
    value.unwrap().parse().unwrap()
}

fn address(worker: &Worker) -> &str {
    worker.url.trim_start_matches("http://")
}

#[test]
fn a_key_that_is_pinned_through_one_replica_is_found_through_the_other() {
    let (workers, redis) = (fleet(3), Redis::start());
    for flags in [&OVERRIDE[..], &MANUAL] {
        let gateways = [0, 1].map(|_| replica(&workers, &redis, flags));
        let vacant = |at: usize| branch(&gateways[at], "vacant");
        let before = vacant(0) + vacant(1);
        let homes = owners(&gateways, 20);
        assert!(homes.iter().collect::<BTreeSet<_>>().len() > 1, "{homes:?}");
        assert_eq!(vacant(0) + vacant(1), before + 20, "each was new once");
        let names = redis.ask(&["--scan", "--pattern", "*"]);
        assert!(!names.contains("run-") && names.starts_with("smg:pin:"), "{names}");
        // Warm: nobody is asked any more.
        let asked = ops(&gateways[0], "claim", "ok");
        assert_eq!(owners(&gateways, 20), homes);
        assert_eq!(ops(&gateways[0], "claim", "ok"), asked);
        // Who comes later knows them all.
        let third = replica(&workers, &redis, flags);
        for (n, home) in homes.iter().enumerate() {
            assert_eq!(turn(&third, &format!("run-{n}")), *home);
        }
    }
}

#[test]
fn fifty_first_requests_of_a_routing_key_have_one_worker() {
    let (workers, redis) = (fleet(4), Redis::start());
    // Each replica draws by lot, so that they would hardly ever agree by themselves.
    let gateways = [0, 1].map(|_| replica(&workers, &redis, &MANUAL));
    for round in 0..3 {
        let key = format!("burst-{round}");
        let used = burst(|n| turn(&gateways[n % 2], &key));
        assert_eq!(used.len(), 1, "{used:?}");
    }
}

#[test]
fn a_pin_that_names_nobody_here_is_replaced_for_all_replicas_and_keeps_its_place() {
    let (workers, redis) = (fleet(3), Redis::start());
    let gateways = [0, 1].map(|_| replica(&workers, &redis, &OVERRIDE));
    redis.ask(&["FLUSHALL"]);
    turn(&gateways[0], "k");
    let name = redis.ask(&["--scan", "--pattern", "smg:pin:*"]).trim().to_owned();
    // What another replica has done: two workers, first the one that is tried first.
    let two = format!("{} {}", address(&workers[2]), address(&workers[1]));
    redis.ask(&["SET", &name, &two]);
    until("the move is heard of", || turn(&gateways[0], "k").contains(&workers[2].url));
    assert!(turn(&gateways[1], "k").contains(&workers[2].url));
    assert_eq!(redis.ask(&["GET", &name]).trim(), two);

    let missed = |at: usize| branch(&gateways[at], "occupied_miss");
    let before = missed(0);
    redis.ask(&["SET", &name, "gone.example:1"]);
    until("that is heard of too", || {
        turn(&gateways[0], "k");
        missed(0) > before
    });
    let home = turn(&gateways[0], "k");
    assert_eq!(missed(0), before + 1, "once replaced it is a hit again");
    assert_eq!(turn(&gateways[1], "k"), home);
    let pin = redis.ask(&["GET", &name]);
    let (leads, follows) = pin.trim().split_once(' ').unwrap();
    assert!(home.contains(leads) && follows == "gone.example:1", "{pin}");
}

#[test]
fn without_redis_pins_go_on_from_what_is_remembered() {
    let (workers, mut redis) = (fleet(4), Redis::start());
    let gateways = [0, 1].map(|_| waiting("250", &workers, &redis, &OVERRIDE));
    let before = owners(&gateways, 20);
    // Two turns wait for the store at most, the rest is for a busy machine.
    let bound = Duration::from_millis(2 * 250 + 2000);
    let go_on = |what: &str| {
        for (n, home) in before.iter().enumerate() {
            for gateway in &gateways {
                let begun = Instant::now();
                assert_eq!(turn(gateway, &format!("run-{n}")), *home, "{what}");
                turn(gateway, &format!("new-{what}-{n}"));
                assert!(begun.elapsed() < bound, "{what}: {:?}", begun.elapsed());
            }
        }
    };
    redis.signal("STOP");
    go_on("frozen");
    redis.signal("CONT");
    redis.kill();
    go_on("killed");
    // It comes back empty, and has one worker for each key again.
    redis.restart();
    gateways.iter().for_each(is_used);
    assert_eq!(owners(&gateways, 20), before);
    let names = redis.ask(&["--scan", "--pattern", "smg:pin:*"]);
    assert!(names.lines().count() >= 20, "{names}");
    owners(&gateways, 40);
}

#[test]
fn a_conversation_that_outgrows_what_is_held_stays_whichever_replica_it_comes_through() {
    let (workers, redis) = (fleet(4), Redis::start());
    let held = ["--routing-key-peek-bytes", "400", "--max-buffered-request-bytes", "2000"];
    let flags = [&OVERRIDE[..], &held].concat();
    let [one, other] = [0, 1].map(|_| replica(&workers, &redis, &flags));
    let turn = |gateway: &Gateway, name: &str, filler: usize| {
        let said = "x".repeat(filler);
        let body = format!(
            r#"{{"messages":[{{"role":"user","content":"{name}"}},{{"role":"user","content":"{said}"}}],"rid":"{name}"}}"#
        );
        let (status, answer) = post_with(gateway.port, "x-nothing: special", &body);
        assert_eq!(status, 200, "{answer}");
        answer
    };
    for n in 0..5 {
        let (name, told) = (format!("run {n}"), ops(&one, "renew", "ok"));
        let home = turn(&one, &name, 1000);
        until("its opening is told of", || ops(&one, "renew", "ok") > told);
        assert_eq!(turn(&other, &name, 5000), home);
    }
    let text = get(other.metrics, "/metrics").1;
    assert!(text.contains("smg_routing_key_source_total{source=\"opening\"} 5\n"), "{text}");
}
