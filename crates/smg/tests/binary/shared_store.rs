//! Two replicas and a real Redis that is killed, frozen, restarted and emptied under them.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use super::redis::{Redis, burst, ops, until};
use super::rig::{Gateway, Worker, get, launch, post_with};

const BODY: &str = r#"{"model":"m","messages":[]}"#;
const FLAGS: [&str; 4] = ["--policy", "session_affinity", "--health-check-interval-secs", "1"];
/// Two replicas before the same workers, connected to the store.
fn replicas(workers: &[Worker], redis: &Redis) -> [Gateway; 2] {
    let urls: Vec<_> = workers.iter().map(|worker| &*worker.url).collect();
    let url = redis.url();
    [0, 1].map(|_| {
        let flags = [&FLAGS[..], &["--redis-url", &url]].concat();
        let gateway = Gateway::start(&urls, &flags);
        until("the store is used", || {
            turn(&gateway, "warm up");
            ops(&gateway, "claim", "ok") > 0
        });
        gateway
    })
}

/// The worker that answered a request of this key.
fn turn(gateway: &Gateway, key: &str) -> String {
    let (status, body) = post_with(gateway.port, &format!("x-aibrix-session-key: {key}"), BODY);
    assert_eq!(status, 200, "{body}");
    body
}

/// A stream that has begun and does not end.
fn stream(gateway: &Gateway, header: &str) -> TcpStream {
    let mut socket = TcpStream::connect(("127.0.0.1", gateway.port)).unwrap();
    let body = r#"{"model":"m","messages":[],"stream":true}"#;
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: ";
    write!(socket, "{head}{}\r\n{header}\r\n\r\n{body}", body.len()).unwrap();
    let mut begun = BufReader::new(socket.try_clone().unwrap()).lines().map_while(Result::ok);
    assert!(begun.any(|line| line.starts_with("data:")));
    socket
}

/// The header that names the worker of a key.
fn id_of(gateway: &Gateway, key: &str) -> String {
    let mut socket = TcpStream::connect(("127.0.0.1", gateway.port)).unwrap();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n";
    let length = BODY.len();
    write!(socket, "{head}content-length: {length}\r\nx-aibrix-session-key: {key}\r\n\r\n{BODY}")
        .unwrap();
    let mut lines = BufReader::new(socket).lines().map_while(Result::ok);
    lines.find(|line| line.starts_with("x-session-id: ")).unwrap()
}

fn branch(gateway: &Gateway, branch: &str) -> u64 {
    let series = format!("smg_session_affinity_branch_total{{branch=\"{branch}\"");
    let text = get(gateway.metrics, "/metrics").1;
    let value = |line: &str| line.strip_prefix(&series)?.rsplit(' ').next()?.parse::<u64>().ok();
    text.lines().filter_map(value).sum()
}

/// Who serves each of these keys, asked of both replicas; they must agree.
fn owners(gateways: &[Gateway; 2], keys: usize) -> Vec<String> {
    let owner = |n: usize| {
        let [one, other] = gateways.each_ref().map(|gateway| turn(gateway, &format!("run-{n}")));
        assert_eq!(one, other, "two replicas, two workers");
        one
    };
    (0..keys).map(owner).collect()
}

#[test]
fn fifty_first_requests_through_two_replicas_have_one_worker() {
    let workers: Vec<_> = (0..4).map(|_| Worker::start()).collect();
    let redis = Redis::start();
    let gateways = replicas(&workers, &redis);
    for round in 0..4 {
        let key = format!("burst-{round}");
        let used = burst(|n| turn(&gateways[n % 2], &key));
        assert_eq!(used.len(), 1, "{used:?}");
    }
}

/// Two views of the fleet: the second replica knows a worker more, and would send some keys there.
#[test]
fn replicas_that_see_different_workers_agree_on_those_that_both_see() {
    let workers: Vec<_> = (0..4).map(|_| Worker::start()).collect();
    let redis = Redis::start();
    let urls: Vec<_> = workers.iter().map(|worker| &*worker.url).collect();
    let url = redis.url();
    // On a busy machine an answer may take a while, without which each view has its own.
    let flags = [&FLAGS[..], &["--redis-url", &url, "--sticky-store-timeout-ms", "5000"]].concat();
    let gateways = [&urls[..3], &urls].map(|view| Gateway::start(view, &flags));
    for gateway in &gateways {
        gateway.has_logged("sticky store is connected");
    }
    // Where keys hash to by themselves in the wide view.
    let plain = Gateway::start(&urls, &FLAGS);
    let differs = |key: &String| turn(&plain, key).contains(&workers[3].url);
    let keys = |what: &str| {
        let names = (0..).map(|n| format!("{what}-{n}"));
        names.filter(differs).take(4).collect::<Vec<_>>()
    };
    for key in keys("view") {
        // The narrow view cannot follow the wide one's pick, so it speaks first.
        let first = turn(&gateways[0], &key);
        let used = burst(|n| turn(&gateways[n % 2], &key));
        assert_eq!(used, BTreeSet::from([first]), "{key}");
    }
    assert!(branch(&gateways[1], "key_adopted") >= 4);
    // At once, with nobody first: after the burst the key has one worker.
    for key in keys("race") {
        std::thread::scope(|scope| {
            for n in 0..50 {
                let (gateway, key) = (&gateways[n % 2], &key);
                scope.spawn(move || turn(gateway, key));
            }
        });
        until("both views agree", || turn(&gateways[0], &key) == turn(&gateways[1], &key));
    }
}

#[test]
fn a_key_leaves_a_hot_worker_for_all_replicas_once_it_has_nothing_in_flight() {
    let workers: Vec<_> = (0..2).map(|_| Worker::start()).collect();
    let redis = Redis::start();
    let urls: Vec<_> = workers.iter().map(|worker| &*worker.url).collect();
    let url = redis.url();
    let gate = ["--affinity-imbalance-factor", "1", "--affinity-imbalance-min-gap", "3"];
    let patient = ["--redis-url", &url, "--sticky-store-timeout-ms", "5000"];
    let flags = [&FLAGS[..], &patient, &gate].concat();
    let gateways = [0, 1].map(|_| Gateway::start(&urls, &flags));
    for gateway in &gateways {
        gateway.has_logged("sticky store is connected");
    }
    let home = turn(&gateways[0], "k");
    let hot = workers.iter().find(|worker| home.contains(&worker.url)).unwrap();
    let id = id_of(&gateways[0], "k");
    let busy: Vec<_> = (0..3).map(|_| stream(&gateways[0], &id)).collect();
    let left = turn(&gateways[0], "k");
    assert_ne!(left, home);
    assert_eq!(branch(&gateways[0], "gate_left"), 1);
    // Where it went it stays, also through the replica that sees nobody hot.
    until("the move is heard of", || turn(&gateways[1], "k") == left);
    assert_eq!((branch(&gateways[0], "gate_left"), branch(&gateways[1], "gate_left")), (1, 0));
    for _ in busy {
        hot.finish_stream();
    }
}

#[test]
fn a_pin_has_no_key_in_it_lives_an_hour_and_outlives_more_workers() {
    let workers: Vec<_> = (0..3).map(|_| Worker::start()).collect();
    let redis = Redis::start();
    let gateways = replicas(&workers[..2], &redis);
    let before = owners(&gateways, 20);
    let names = redis.ask(&["--scan", "--pattern", "*"]);
    assert!(names.lines().count() == 21 && !names.contains("run-"), "{names}");
    let first = names.lines().next().unwrap();
    let life: u64 = redis.ask(&["PTTL", first]).trim().parse().unwrap();
    assert!((3_500_000..=3_600_000).contains(&life), "{life}");
    let url = redis.url();
    let urls: Vec<_> = workers.iter().map(|worker| &*worker.url).collect();
    let third = Gateway::start(&urls, &[&FLAGS[..], &["--redis-url", &url]].concat());
    for (n, home) in before.iter().enumerate() {
        assert_eq!(turn(&third, &format!("run-{n}")), *home, "no pinned key moves");
    }
}

#[test]
fn a_warm_key_asks_redis_nothing_and_hears_of_changes() {
    let workers: Vec<_> = (0..2).map(|_| Worker::start()).collect();
    let redis = Redis::start();
    let gateways = replicas(&workers, &redis);
    let home = turn(&gateways[0], "k");
    let claims = ops(&gateways[0], "claim", "ok");
    for _ in 0..20 {
        assert_eq!(turn(&gateways[0], "k"), home);
    }
    assert_eq!(ops(&gateways[0], "claim", "ok"), claims);
    // Somebody moves every key to the other worker.
    let other = workers.iter().find(|worker| !home.contains(&worker.url)).unwrap();
    for name in redis.ask(&["--scan", "--pattern", "smg:pin:*"]).lines() {
        redis.ask(&["SET", name, other.url.trim_start_matches("http://")]);
    }
    until("the move is heard of", || turn(&gateways[0], "k").contains(&other.url));
}

#[test]
fn redis_may_be_away_at_start_and_come_later() {
    let workers: Vec<_> = (0..2).map(|_| Worker::start()).collect();
    let mut redis = Redis::start();
    redis.kill();
    let mut command = launch([""; 0]);
    command.env("REDIS_HOST", "127.0.0.1").env("REDIS_PORT", redis.port.to_string());
    let urls: Vec<_> = workers.iter().map(|worker| &*worker.url).collect();
    let gateway = Gateway::of(command, &urls, &FLAGS);
    let home = turn(&gateway, "k");
    redis.restart();
    until("the store is used", || {
        assert_eq!(turn(&gateway, "k"), home);
        ops(&gateway, "claim", "ok") > 0
    });
    assert_eq!(redis.ask(&["DBSIZE"]).trim(), "1");
}

#[test]
fn whatever_becomes_of_redis_no_request_fails_and_replicas_agree_again() {
    let workers: Vec<_> = (0..4).map(|_| Worker::start()).collect();
    let mut redis = Redis::start();
    let gateways = replicas(&workers, &redis);
    let before = owners(&gateways, 30);
    let (over, served, slowest) =
        (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for n in 0..4_usize {
            let (gateways, over, served, slowest) = (&gateways, &over, &served, &slowest);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let count = served.fetch_add(1, Ordering::Relaxed);
                    // A few warm keys, and one that is new each time.
                    let new = format!("new-{n}-{count}");
                    let key = if count % 2 == 0 { format!("run-{}", count % 30) } else { new };
                    let begun = Instant::now();
                    turn(&gateways[n % 2], &key);
                    let took = usize::try_from(begun.elapsed().as_millis()).unwrap();
                    slowest.fetch_max(took, Ordering::Relaxed);
                }
            });
        }
        let some = || {
            let goal = served.load(Ordering::Relaxed) + 200;
            until("requests go on", || served.load(Ordering::Relaxed) >= goal);
        };
        some();
        redis.kill();
        some();
        redis.restart();
        some();
        redis.signal("STOP");
        some();
        redis.signal("CONT");
        some();
        redis.ask(&["FLUSHALL"]);
        some();
        over.store(true, Ordering::Relaxed);
    });
    let slowest = slowest.into_inner();
    assert!(slowest < 3000, "one took {slowest} ms");
    assert_eq!(owners(&gateways, 30), before, "nobody moved: keys hash to where they were");
    until("the store is used again", || {
        let asked = ops(&gateways[0], "claim", "ok");
        turn(&gateways[0], &format!("after-{asked}"));
        ops(&gateways[0], "claim", "ok") > asked
    });
}

#[test]
fn children_start_where_their_parent_is_pinned() {
    let workers: Vec<_> = (0..4).map(|_| Worker::start()).collect();
    let redis = Redis::start();
    let gateways = replicas(&workers, &redis);
    let home = turn(&gateways[0], "parent");
    // Not where the parent hashes to, but where it was moved.
    let other = workers.iter().find(|worker| !home.contains(&worker.url)).unwrap();
    for name in redis.ask(&["--scan", "--pattern", "smg:pin:*"]).lines() {
        redis.ask(&["SET", name, other.url.trim_start_matches("http://")]);
    }
    until("the move is heard of", || turn(&gateways[0], "parent").contains(&other.url));
    for n in 0..16 {
        let born = format!("child-{n}\r\nx-smg-parent-key: parent");
        assert!(turn(&gateways[n % 2], &born).contains(&other.url));
        // Once it is born it needs nobody.
        assert!(turn(&gateways[(n + 1) % 2], &format!("child-{n}")).contains(&other.url));
    }
}
