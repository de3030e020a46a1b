//! The whole binary on loopback: what a shell, an operator and a supervisor see of it.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test says what broke by panicking"
)]

#[path = "binary/children.rs"]
mod children;
#[path = "binary/crowd.rs"]
mod crowd;
#[path = "binary/redis.rs"]
mod redis;
#[path = "binary/redis_tls.rs"]
mod redis_tls;
#[path = "binary/rig.rs"]
mod rig;
#[path = "binary/shared_pins.rs"]
mod shared_pins;
#[path = "binary/shared_store.rs"]
mod shared_store;
#[path = "binary/tls.rs"]
mod tls;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;

use rig::{Gateway, Worker, get, launch, post, post_with};

#[test]
fn what_cannot_be_meant_ends_with_one_line_that_names_the_flag() {
    for (flags, code, word) in [
        ("--policy random --port 0", 1, "--port"),
        ("--policy random --worker-urls w1:8000", 1, "--worker-urls"),
        ("--policy random --routing-key-headers b@d", 1, "--routing-key-headers"),
        ("--worker-urls http://127.0.0.1:9 --eviction-interval 0", 1, "--eviction-interval"),
        ("--policy best", 2, "--policy"),
        ("--policy random --max-idle-secs soon", 2, "--max-idle-secs"),
        ("--policy random --stream-request-bodies-over 5", 1, "--max-buffered-request-bytes"),
        ("--policy random --backend anthropic", 1, "--backend"),
        ("--policy random --enable-mesh", 1, "--enable-mesh"),
        ("--policy random --port", 2, "--port"),
        ("--policy random --port many", 2, "expected a whole number"),
        ("--policy random --max-idle-secs 99999999999999999999", 2, "expected a whole number"),
        ("--policy random --sticky-snapshot /no/such/place", 1, "--sticky-snapshot /no/such/place"),
    ] {
        let done = launch(flags.split(' ')).output().unwrap();
        let said = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(code), "{flags}: {said}");
        assert!(said.contains(word), "{flags}: {said}");
        assert!(code == 2 || said.lines().count() == 1, "{flags}: {said}");
    }
}

#[test]
fn a_port_that_is_taken_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let done =
        launch(["--policy", "random", "--host", "127.0.0.1", "--port", &port]).output().unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(1));
    assert!(said.contains("--port") && said.contains(&port) && said.contains("in use"), "{said}");
}

#[test]
fn a_key_opens_inference_and_open_doors_are_warned_of() {
    let worker = Worker::start();
    let gateway = Gateway::start(&[&worker.url], &["--api-key", "hush", "--log-level", "debug"]);
    let body = "{\"model\":\"m\",\"messages\":[]}";
    assert_eq!(post(gateway.port, body).0, 401);
    assert_eq!(post_with(gateway.port, "x-api-key: hush", body).0, 200);
    assert_eq!(get(gateway.port, "/workers").0, 200, "this machine is the operator's");
    let open = Gateway::start(&[], &["--host", "0.0.0.0"]);
    let warned = open.wait_for_log("no API key is configured");
    assert!(warned.contains("WARN") && warned.contains("--admin-api-key"), "{warned}");
}

#[test]
fn beyond_max_connections_clients_wait_until_one_ends() {
    let gateway = Gateway::start(&[], &["--max-connections", "1"]);
    let ask = "GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let connect = || TcpStream::connect(("127.0.0.1", gateway.port)).unwrap();
    let answered = |socket: &mut TcpStream| {
        socket.write_all(ask.as_bytes()).unwrap();
        let mut status = [0; 12];
        socket.read_exact(&mut status).unwrap();
        assert_eq!(&status, b"HTTP/1.1 200");
    };
    let mut first = connect();
    answered(&mut first);
    let (mut second, mut third) = (connect(), connect());
    second.write_all(ask.as_bytes()).unwrap();
    assert!(gateway.wait_for_log("--max-connections reached").contains("WARN"));
    second.set_nonblocking(true).unwrap();
    assert!(second.read(&mut [0]).is_err(), "nobody has read its request");
    second.set_nonblocking(false).unwrap();
    drop(first);
    answered(&mut second);
    drop(second);
    answered(&mut third);
}

#[test]
fn without_workers_it_lives_but_is_not_ready() {
    let gateway = Gateway::start(&[], &[]);
    assert_eq!(get(gateway.port, "/health").0, 200);
    assert_eq!(get(gateway.port, "/liveness").0, 200);
    let (status, body) = get(gateway.port, "/readiness");
    assert_eq!(status, 503);
    assert!(body.contains("insufficient healthy workers"), "{body}");
    let (status, body) = post(gateway.port, "{\"model\":\"m\",\"messages\":[]}");
    assert_eq!(status, 404, "{body}");
    assert!(body.contains("model_not_found"), "{body}");
}

#[test]
fn a_stream_that_runs_when_it_is_told_to_leave_is_finished_first() {
    let worker = Worker::start();
    let gateway = Gateway::start(&[&worker.url], &[]);
    let mut client = TcpStream::connect(("127.0.0.1", gateway.port)).unwrap();
    let body = "{\"model\":\"m\",\"stream\":true,\"messages\":[]}";
    write!(
        client,
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = BufReader::new(client);
    let mut line = String::new();
    while !line.contains("data: first") {
        line.clear();
        assert!(answer.read_line(&mut line).unwrap() > 0, "the stream ended early");
    }
    gateway.signal("TERM");
    gateway.wait_for_log("draining");
    let (status, body) = get(gateway.port, "/readiness");
    assert_eq!(status, 503);
    assert!(body.contains("draining"), "{body}");
    assert!(post(gateway.port, "{\"model\":\"m\",\"messages\":[]}").1.contains("gateway_draining"));
    worker.finish_stream();
    let mut rest = String::new();
    answer.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("data: last") && rest.ends_with("0\r\n\r\n"), "{rest}");
    assert!(gateway.ended().success());
}

#[test]
fn pins_outlive_a_restart_in_the_snapshot() {
    let (one, two) = (Worker::start(), Worker::start());
    let file = std::env::temp_dir().join(format!("smg-binary-{}.pins", std::process::id()));
    let flags = ["--routing-key-override", "--sticky-snapshot", file.to_str().unwrap()];
    let turn = |gateway: &Gateway, n: usize| {
        let body = format!("{{\"model\":\"m\",\"rid\":\"conv{n}_t1\",\"messages\":[]}}");
        let (status, body) = post(gateway.port, &body);
        assert_eq!(status, 200, "{body}");
        body
    };
    let first = Gateway::start(&[&one.url, &two.url], &flags);
    let before: Vec<_> = (0..8).map(|n| turn(&first, n)).collect();
    first.signal("TERM");
    assert!(first.ended().success());
    // The workers change places on the command line, the pins do not.
    let second = Gateway::start(&[&two.url, &one.url], &flags);
    let after: Vec<_> = (0..8).map(|n| turn(&second, n)).collect();
    assert_eq!(before, after);
    let _ = std::fs::remove_file(file);
}

#[test]
fn decisions_are_logged_at_debug_one_json_object_a_line() {
    let worker = Worker::start();
    let flags = ["--routing-key-override", "--log-level", "debug", "--log-json"];
    let gateway = Gateway::start(&[&worker.url], &flags);
    post(gateway.port, "{\"model\":\"m\",\"rid\":\"conv_t1\",\"messages\":[]}");
    let line = gateway.wait_for_log("Sticky routing decision");
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    for (field, value) in [
        ("message", "Sticky routing decision"),
        ("level", "DEBUG"),
        ("source", "rid"),
        ("key", "1:m:s:conv"),
        ("branch", "vacant"),
        ("worker", &worker.url),
        ("model_id", "m"),
    ] {
        assert_eq!(line[field], value, "{line}");
    }
}

#[test]
fn only_the_overrides_decisions_are_logged() {
    let worker = Worker::start();
    for (flags, lines) in [
        (&["--routing-key-override", "--log-level", "debug"][..], 2),
        (&["--routing-key-override", "--log-level", "info"], 0),
        (&["--log-level", "debug"], 0),
        (&["--routing-key-override", "--log-level", "debug", "--policy", "manual"], 0),
    ] {
        let gateway = Gateway::start(&[&worker.url], flags);
        for body in [r#"{"rid":"k_t1","messages":[]}"#, r#"{"messages":[]}"#] {
            assert_eq!(post_with(gateway.port, "x-nothing: special", body).0, 200);
        }
        assert_eq!(post_with(gateway.port, "x-smg-routing-key: k", r#"{"messages":[]}"#).0, 200);
        gateway.signal("TERM");
        let log = gateway.whole_log();
        assert_eq!(log.matches("Sticky routing decision").count(), lines, "{flags:?}: {log}");
    }
}

#[test]
fn a_sweep_that_evicts_is_logged_at_info() {
    let worker = Worker::start();
    let flags = ["--sticky-sessions", "--max-idle-secs", "1", "--eviction-interval", "1"];
    let gateway = Gateway::start(&[&worker.url], &flags);
    post(gateway.port, r#"{"model":"m","rid":"k","messages":[]}"#);
    let line = gateway.wait_for_log("ManualPolicy TTL eviction");
    assert!(line.contains("INFO") && line.contains("evicted 1 entries, remaining 0"), "{line}");
}

#[test]
fn nobody_writes_log_lines_of_his_own() {
    let worker = Worker::start();
    let gateway =
        Gateway::start(&[&worker.url], &["--routing-key-override", "--log-level", "debug"]);
    for field in ["rid", "model"] {
        let sly = r"x\n2026 FAKE\r\u001b[31m\u009b";
        let model = if field == "rid" { r#""model":"m","# } else { "" };
        post(gateway.port, &format!(r#"{{{model}"messages":[],"{field}":"{sly}"}}"#));
        let line = gateway.wait_for_log("FAKE");
        assert!(line.starts_with("20") && line.contains("DEBUG"), "{line}");
        assert!(!line.contains(char::is_control), "{line:?}");
    }
}

#[test]
fn secrets_are_never_logged() {
    let worker = Worker::start();
    let mut command = launch(["--host", "127.0.0.1"]);
    command.env("RUST_LOG", "trace");
    let gateway = Gateway::of(command, &[&worker.url], &["--log-level", "debug"]);
    for header in [
        "authorization: Bearer hush-1",
        "x-api-key: hush-2",
        "cookie: session=hush-3",
        "anthropic-api-key: hush-4",
    ] {
        let body = r#"{"model":"m","messages":[{"role":"user","content":"hush-5"}]}"#;
        assert_eq!(post_with(gateway.port, header, body).0, 200);
    }
    post_with(gateway.port, "authorization: Bearer hush-6", "{");
    gateway.signal("TERM");
    let log = gateway.whole_log();
    assert!(log.contains("DEBUG") && !log.contains("hush"), "{log}");
}

#[test]
fn a_log_that_nobody_reads_any_more_does_not_stop_it() {
    let worker = Worker::start();
    let gateway =
        Gateway::start_deaf(&[&worker.url], &["--routing-key-override", "--log-level", "debug"]);
    for _ in 0..3 {
        assert_eq!(post(gateway.port, r#"{"model":"m","rid":"k","messages":[]}"#).0, 200);
    }
}

#[test]
fn metrics_have_a_listener_of_their_own() {
    let gateway = Gateway::start(&[], &[]);
    let (status, body) = get(gateway.metrics, "/metrics");
    assert_eq!(status, 200);
    for line in [
        "# TYPE smg_manual_policy_branch_total counter",
        "smg_manual_policy_branch_total{branch=\"occupied_hit\"} 0",
        "smg_routing_key_source_total{source=\"rid\"} 0",
    ] {
        assert!(body.lines().any(|found| found == line), "no {line} in {body}");
    }
    assert_eq!(get(gateway.metrics, "/other").0, 404);
    assert_eq!(get(gateway.port, "/metrics").0, 404);
}

#[test]
fn a_key_or_a_named_worker_decides_under_consistent_hashing() {
    let (one, two) = (Worker::start(), Worker::start());
    let urls = [&*one.url, &*two.url];
    let flags = ["--policy", "consistent_hashing"];
    let (first, second) = (Gateway::start(&urls, &flags), Gateway::start(&urls, &flags));
    let body = "{\"model\":\"m\",\"messages\":[]}";
    for n in 0..8 {
        let key = format!("x-smg-routing-key: conversation-{n}");
        let here = post_with(first.port, &key, body);
        assert_eq!(here.0, 200);
        assert_eq!(here, post_with(second.port, &key, body), "replicas agree");
    }
    for (n, url) in urls.iter().enumerate() {
        let (status, body) = post_with(first.port, &format!("x-smg-target-worker: {n}"), body);
        assert!(status == 200 && body.contains(url), "{n}: {body}");
    }
    let (status, missed) = post_with(first.port, "x-smg-target-worker: 2", body);
    assert!(status == 503 && missed.contains("no_available_workers"), "{missed}");
    assert_eq!(post(first.port, body).0, 200);
    let metrics = get(first.metrics, "/metrics").1;
    for (branch, count) in [
        ("routing_key_hit", 8),
        ("target_worker_hit", 2),
        ("target_worker_miss", 1),
        ("random_fallback", 1),
        ("no_healthy_workers", 0),
    ] {
        let name = "smg_consistent_hashing_policy_branch_total";
        let line = format!("{name}{{branch=\"{branch}\"}} {count}");
        assert!(metrics.lines().any(|found| found == line), "no {line} in {metrics}");
    }
}

#[test]
fn prompts_that_begin_alike_meet_under_prefix_hash() {
    let workers: Vec<_> = (0..3).map(|_| Worker::start()).collect();
    let urls: Vec<_> = workers.iter().map(|worker| &*worker.url).collect();
    let gateway = Gateway::start(&urls, &["--policy", "prefix_hash", "--prefix-token-count", "4"]);
    let ask = |text: &str| {
        let message = format!("{{\"role\":\"user\",\"content\":\"{text}\"}}");
        post(gateway.port, &format!("{{\"model\":\"m\",\"messages\":[{message}]}}")).1
    };
    let mut seen = std::collections::BTreeSet::new();
    for n in 0..24 {
        let first = ask(&format!("a beginning {n:04} and one end"));
        assert_eq!(first, ask(&format!("a beginning {n:04} and quite another")));
        seen.insert(first);
    }
    assert_eq!(seen.len(), 3, "different beginnings spread");
    let metrics = get(gateway.metrics, "/metrics").1;
    let line = "smg_prefix_hash_policy_branch_total{branch=\"ring_hit\"} 48";
    assert!(metrics.lines().any(|found| found == line), "{metrics}");
}
