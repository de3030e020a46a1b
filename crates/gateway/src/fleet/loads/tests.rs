use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::runtime::Handle;

use super::*;
use crate::settings::testing::placement;
use crate::settings::{Bodies, Connections, PolicyName, Settings, Startup, Sticky};
use crate::tasks;
use crate::upstream::{Dial, Dialled, Offer, Origin, Socket};

/// A worker in memory: what it answers at which path, and what it was asked. Paths it does not know
/// are not found.
#[derive(Debug, Default)]
struct Fake {
    answers: Mutex<HashMap<String, (u16, String)>>,
    asked: Mutex<Vec<String>>,
}

impl Fake {
    fn answers(&self, path: &str, status: u16, body: &str) {
        let answer = (status, body.to_owned());
        self.answers.lock().unwrap().insert(path.to_owned(), answer);
    }

    /// What it was asked since the last call, of load only.
    fn asked(&self) -> Vec<String> {
        let mut asked = std::mem::take(&mut *self.asked.lock().unwrap());
        asked.retain(|path| !path.starts_with("/health") && !path.contains("info"));
        asked.retain(|path| path != "/v1/models");
        asked
    }

    fn pool(self: &Arc<Self>) -> Pool {
        let origin = Origin::parse("http://w1").unwrap();
        let open = prometheus::IntGauge::new("open", "open").unwrap();
        Pool::new(origin, CONNECTIONS, Arc::new(Way(Arc::clone(self))), open)
    }
}

#[derive(Debug)]
struct Way(Arc<Fake>);

impl Dial for Way {
    fn dial<'a>(
        &'a self,
        _: &'a Origin,
        _: Offer,
    ) -> Pin<Box<dyn Future<Output = io::Result<Dialled>> + Send + 'a>> {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        tasks::spawn("fake", converse(Arc::clone(&self.0), theirs));
        Box::pin(async { Ok(Dialled::from(Box::new(ours) as Socket)) })
    }
}

async fn converse(fake: Arc<Fake>, mut socket: DuplexStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = socket.read_u8().await else { return };
        head.push(byte);
    }
    let head = String::from_utf8(head).unwrap();
    let path = head.split(' ').nth(1).unwrap().to_owned();
    let answer = fake.answers.lock().unwrap_or_else(PoisonError::into_inner).get(&path).cloned();
    fake.asked.lock().unwrap().push(path);
    let (status, body) = answer.unwrap_or((404, String::new()));
    if status == 0 {
        // Hangs until the asker gives up.
        let _ = socket.read_u8().await;
        return;
    }
    let length = body.len();
    let reply = format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n\r\n{body}");
    let _ = socket.write_all(reply.as_bytes()).await;
}

const CONNECTIONS: Connections =
    Connections { idle_timeout: None, max_idle: 1, connect_timeout: Duration::from_secs(10) };

fn bodies() -> Bodies {
    Bodies {
        max_payload: 1 << 20,
        max_buffered: 1 << 20,
        max_buffered_total: None,
        timeout: Duration::from_secs(60),
        stall: None,
        peek: 0,
        model_selection: true,
    }
}

fn settings(policy: PolicyName, always: bool) -> Settings {
    Settings {
        listen: "127.0.0.1:1".parse().unwrap(),
        metrics: "127.0.0.1:2".parse().unwrap(),
        duration_buckets: vec![1.0],
        tls: None,
        access: crate::settings::Access::default(),
        workers: vec![Origin::parse("http://w1").unwrap()],
        aliases: std::collections::BTreeMap::new(),
        startup: Startup {
            timeout: Duration::from_secs(30),
            interval: Duration::from_secs(1),
            delay: Duration::ZERO,
            dp_aware: false,
            external: false,
            http2: false,
        },
        health: None,
        placement: placement(policy),
        affinity: crate::settings::Affinity::default(),
        index_sweep: None,
        loads: LoadPolling {
            interval: Duration::from_secs(10),
            always,
            overload: crate::settings::OverloadRules::OFF,
        },
        sticky: Sticky {
            key_override: false,
            headers: Vec::new(),
            assignment: None,
            eviction: None,
            max_keys: None,
            snapshot: None,
        },
        admission: None,
        bodies: bodies(),
        clients: crate::settings::Clients {
            max_connections: 1024,
            max_header_bytes: 64 << 10,
            header_timeout: None,
            idle_timeout: None,
        },
        connections: CONNECTIONS,
        worker_tls: crate::upstream::WorkerTls::default(),
        request_timeout: Duration::from_secs(60),
        retry: crate::settings::RetryRules {
            attempts: 1,
            initial_ms: 1,
            max_ms: 1,
            multiplier: 1.0,
            jitter: 0.0,
        },
        breaker: crate::settings::BreakerRules::OFF,
        sse_keepalive: None,
        request_id_headers: Vec::new(),
        shutdown_grace: Duration::ZERO,
    }
}

const LOADS: &str = "/loads?model=org%2Fm";
const V1_LOADS: &str = "/v1/loads?include=core,disagg,queues,memory";

/// A gateway before one worker that serves `org/m`.
fn gateway(policy: PolicyName, always: bool, fake: &Arc<Fake>) -> Arc<Gateway> {
    fake.answers("/v1/models", 200, r#"{"data":[{"id":"org/m","owned_by":"sglang"}]}"#);
    let way = Arc::new(Way(Arc::clone(fake)));
    Gateway::start(settings(policy, always), way, Handle::current()).unwrap()
}

/// Lets paused time go by.
async fn pass(secs: u64) {
    // sleeps because paused time only moves when everybody waits
    tokio::time::sleep(Duration::from_secs(secs)).await;
}

fn scrape(gw: &Gateway) -> String {
    String::from_utf8(gw.meters.render().unwrap()).unwrap()
}

#[tokio::test]
async fn path_after_path_until_one_tells_and_absent_ones_only_once() {
    let fake = Arc::new(Fake::default());
    let mut sources = Sources::new("org/m");
    fake.answers(V1_LOADS, 500, "");
    fake.answers("/get_load", 200, r#"[{"num_reqs":3,"num_waiting_reqs":1}]"#);
    let (ranks, mode) = sources.poll(&fake.pool()).await;
    assert_eq!((ranks[0].running, ranks[0].waiting, mode), (2, 1, "get_load"));
    assert_eq!(fake.asked(), [LOADS, V1_LOADS, "/metrics", "/get_load"]);

    fake.answers(LOADS, 200, r#"{"loads":[{}]}"#);
    fake.answers(V1_LOADS, 200, r#"{"loads":[{"num_waiting_reqs":5}]}"#);
    assert_eq!(sources.poll(&fake.pool()).await.0[0].waiting, 5);
    assert_eq!(fake.asked(), [V1_LOADS], "what was not found is not asked again");

    fake.answers(V1_LOADS, 200, "<html>");
    assert_eq!(sources.poll(&fake.pool()).await.0.len(), 1);
    assert_eq!(fake.asked(), [V1_LOADS, "/get_load"]);
    fake.answers("/get_load", 405, "");
    assert!(sources.poll(&fake.pool()).await.0.is_empty());
    assert!(sources.poll(&fake.pool()).await.0.is_empty());
    assert_eq!(fake.asked(), ["/get_load"], "nobody left to ask");
}

#[tokio::test]
async fn a_metrics_text_may_fill_later() {
    let fake = Arc::new(Fake::default());
    let mut sources = Sources::new("m");
    fake.answers("/metrics", 200, "# no gauge yet\n");
    fake.answers("/get_load", 200, "[]");
    assert!(sources.poll(&fake.pool()).await.0.is_empty());
    fake.answers("/metrics", 200, "vllm:kv_cache_usage_perc 0.5\nvllm:num_requests_waiting 4\n");
    assert_eq!(sources.poll(&fake.pool()).await.0[0].waiting, 4);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_does_not_answer_is_given_five_seconds() {
    let fake = Arc::new(Fake::default());
    fake.answers(LOADS, 0, "");
    let begun = tokio::time::Instant::now();
    let mut sources = Sources::new("org/m");
    assert!(sources.poll(&fake.pool()).await.0.is_empty());
    assert_eq!(begun.elapsed(), ANSWER_WITHIN);
    assert_eq!(fake.asked(), [LOADS], "the other paths are on the same worker");
    fake.answers(LOADS, 200, r#"{"loads":[{"num_running_reqs":1}]}"#);
    assert_eq!(sources.poll(&fake.pool()).await.0[0].running, 1, "asked again");
}

#[tokio::test(start_paused = true)]
async fn the_first_poll_is_at_registration_and_a_failed_one_drops_the_report() {
    let fake = Arc::new(Fake::default());
    let report = r#"{"loads":[{"num_waiting_reqs":2,"token_usage":0.5},
        {"dp_rank":1,"num_waiting_reqs":1,"token_usage":0.25}]}"#;
    fake.answers(LOADS, 200, report);
    let gw = gateway(PolicyName::RoundRobin, true, &fake);
    pass(1).await;
    let worker = Arc::clone(&gw.fleet.load().upstreams[0].worker);
    let seen = worker.load().report().unwrap();
    assert_eq!((seen.waiting, seen.token_usage), (3, 0.375));
    let line = "smg_engine_waiting_requests{dp_rank=\"1\",model=\"org/m\",worker=\"http://w1\"} 1";
    assert!(scrape(&gw).contains(line), "{}", scrape(&gw));

    fake.answers(LOADS, 500, "");
    pass(8).await;
    assert_eq!(fake.asked(), [LOADS]);
    assert!(worker.load().report().is_some(), "ten seconds are not over");
    let polls =
        |mode| format!("smg_engine_load_polls_total{{mode=\"{mode}\",worker=\"http://w1\"}} 1");
    assert!(scrape(&gw).contains(&polls("loads")) && !scrape(&gw).contains(&polls("none")));
    pass(2).await;
    assert!(scrape(&gw).contains(&polls("none")), "{}", scrape(&gw));
    assert_eq!(worker.load().report(), None);
    assert!(!scrape(&gw).contains("smg_engine_waiting_requests{"));

    fake.answers(LOADS, 200, report);
    worker.set_healthy(false);
    fake.asked();
    pass(10).await;
    assert_eq!(fake.asked(), [""; 0], "a worker that is not ready is left alone");
    worker.set_healthy(true);
    pass(10).await;
    assert!(worker.load().report().is_some());
}

#[tokio::test(start_paused = true)]
async fn without_monitoring_only_load_aware_policies_have_it_asked() {
    for (policy, asked) in [
        (PolicyName::RoundRobin, false),
        (PolicyName::PrefixHash, false),
        (PolicyName::LeastLoad, true),
        (PolicyName::PowerOfTwo, true),
    ] {
        let fake = Arc::new(Fake::default());
        let _gw = gateway(policy, false, &fake);
        pass(15).await;
        assert_eq!(!fake.asked().is_empty(), asked, "{policy:?}");
    }
}

#[test]
fn ranks_add_up_to_one_worker() {
    assert_eq!(sum(&[]), None);
    let rank = |waiting, token_usage| Rank {
        running: u32::MAX,
        waiting,
        waiting_tokens: 7,
        throughput: 10.0,
        token_usage,
        ..Rank::default()
    };
    let report = Report {
        running: u32::MAX,
        waiting: 3,
        waiting_tokens: 14,
        throughput: 20.0,
        token_usage: 0.5,
    };
    assert_eq!(sum(&[rank(1, 0.25), rank(2, 0.75)]), Some(report));
}
