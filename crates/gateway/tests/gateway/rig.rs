//! A gateway between raw clients and scripted workers. Nothing here waits for the clock: time is
//! paused, and a wait that nothing ends fails after [`PATIENCE`] of it.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use smg_gateway::Gateway;
use smg_gateway::settings::{
    Access, Bodies, Boundaries, BreakerRules, BucketRules, CacheParams, Clients, Connections,
    Eviction, ExpectedWait, HealthChecks, LoadPolling, OverloadRules, Placement, PolicyName,
    PrefixRules, RetryRules, Settings, Startup, Sticky, Thresholds,
};
use smg_gateway::upstream::WorkerTls;
use tokio::runtime::Handle;
use tokio::time::Instant;

mod client;
mod http2;
mod line;
mod net;
mod script;
mod tls;
mod worker;

pub(crate) use client::{Client, Ended, Reply, post};
pub(crate) use http2::{Frame, H2Client, Tongue, frame, read};
pub(crate) use script::{Script, answer, chunked, events, events_head, json, script};
pub(crate) use tls::Authority;
pub(crate) use worker::{Door, Worker};

/// The longest any wait of a test may last on the paused clock.
pub(crate) const PATIENCE: Duration = Duration::from_secs(24 * 3600);
/// The model that workers serve unless told otherwise.
/// The rig's `--request-timeout-secs`.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(1800);
pub(crate) const MODEL: &str = "m";
/// A whole chat request body.
pub(crate) const CHAT: &str = r#"{"model":"m","messages":[]}"#;
/// The same, asking for a stream.
pub(crate) const CHAT_STREAM: &str = r#"{"model":"m","messages":[],"stream":true}"#;

/// A running gateway.
pub(crate) struct Rig {
    pub(crate) gw: Arc<Gateway>,
}

impl Rig {
    /// A gateway whose workers have all registered.
    pub(crate) async fn start(workers: &[&Worker], change: impl FnOnce(&mut Settings)) -> Self {
        let rig = Self::unready(workers, change);
        let ready = (workers.len(), workers.len());
        rig.until("every worker is ready", |gw| gw.workers() == ready).await;
        rig
    }

    /// A gateway that has just started.
    pub(crate) fn unready(workers: &[&Worker], change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = settings(workers);
        change(&mut settings);
        let net = Arc::new(net::Net::of(workers, settings.worker_tls.clone()));
        let gw = Gateway::start(settings, net, Handle::current()).expect("settings that start");
        Self { gw }
    }

    /// A new client connection.
    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.gw, 64 << 10)
    }

    /// A new connection of a client at this address.
    pub(crate) fn client_at(&self, address: &str) -> Client {
        Client::connect_from(&self.gw, 64 << 10, address.parse().expect("an address"))
    }

    /// A client whose socket holds no more than `bytes` that it has not read.
    pub(crate) fn narrow_client(&self, bytes: usize) -> Client {
        Client::connect(&self.gw, bytes)
    }

    /// The answer to one chat request on a connection of its own.
    pub(crate) async fn chat(&self, body: &str) -> Reply {
        self.client().post("/v1/chat/completions", &[], body).await
    }

    /// The same with headers.
    pub(crate) async fn chat_with(&self, headers: &[(&str, &str)], body: &str) -> Reply {
        self.client().post("/v1/chat/completions", headers, body).await
    }

    /// The answer to a GET on a connection of its own.
    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.client().get(path).await
    }

    /// The answer to any request on a connection of its own.
    pub(crate) async fn ask(&self, method: &str, path: &str, body: &str) -> Reply {
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n"
        );
        self.client().send(head + body).await.reply().await
    }

    /// Waits, on the paused clock, until something is so.
    pub(crate) async fn until(&self, what: &str, so: impl Fn(&Gateway) -> bool) {
        settle().await;
        let begun = Instant::now();
        while !so(&self.gw) {
            assert!(begun.elapsed() < PATIENCE, "never: {what}");
            later(if begun.elapsed().as_secs() < 2 { 0.05 } else { 1.0 }).await;
        }
    }

    /// The sum of a metric's series that carry all of `labels`; `None` when there is none.
    pub(crate) fn metric(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let text = self.gw.metrics_text();
        let values = text.lines().filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let (found, pairs) = series.split_once('{').unwrap_or((series, ""));
            let wanted = |(k, v): &(&str, &str)| pairs.contains(&format!("{k}=\"{v}\""));
            (found == name && labels.iter().all(wanted)).then(|| value.parse::<f64>().ok())?
        });
        values.fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
    }

    /// The same as a whole number, 0 when there is no such series.
    pub(crate) fn count(&self, name: &str, labels: &[(&str, &str)]) -> i64 {
        self.metric(name, labels).unwrap_or(0.0) as i64
    }

    /// Sticky decisions of one outcome.
    pub(crate) fn branch(&self, branch: &str) -> i64 {
        self.count("smg_manual_policy_branch_total", &[("branch", branch)])
    }

    /// Nothing is in flight any more, and it took no time to get there.
    pub(crate) async fn is_at_rest(&self) {
        settle().await;
        for gauge in [
            "smg_worker_requests_active",
            "smg_worker_routing_keys_active",
            "smg_http_connections_active",
        ] {
            assert_eq!(self.count(gauge, &[]), 0, "{gauge}\n{}", self.gw.metrics_text());
        }
    }
}

/// Lets everything run that can, without letting time pass.
pub(crate) async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// Lets time pass while everything runs.
pub(crate) async fn later(secs: f64) {
    // sleeps because that is how a paused clock is told to go on: it takes no time
    tokio::time::sleep(Duration::from_secs_f64(secs)).await;
}

/// Awaits something that must come.
pub(crate) async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(PATIENCE, work).await;
    waited.unwrap_or_else(|_| panic!("waited for ever: {what}"))
}

/// Stickiness with the defaults of the flags.
pub(crate) fn sticky() -> Sticky {
    Sticky {
        headers: vec![http::HeaderName::from_static("x-smg-routing-key")],
        assignment: None,
        key_override: true,
        max_keys: None,
        snapshot: None,
        eviction: Some(Eviction { max_idle_secs: 14_400, interval: Duration::from_secs(120) }),
    }
}

/// Round robin; the rest as the flags have it.
fn placement() -> Placement {
    Placement {
        policy: PolicyName::RoundRobin,
        wait: ExpectedWait {
            kv_pressure_weight: 0.15,
            default_throughput: 2000.0,
            mean_prefill_tokens: 1024,
        },
        max_waiting: None,
        prefix: PrefixRules {
            tokens: 256,
            boundaries: Boundaries::NONE,
            load_factor: 1.25,
            abs_threshold: 10,
        },
        bucket: BucketRules { interval: 5000, abs_threshold: 64, rel_threshold: 1.5 },
        cache: CacheParams::DEFAULT,
    }
}

fn health() -> HealthChecks {
    HealthChecks {
        interval: Duration::from_secs(60),
        timeout: Duration::from_secs(5),
        thresholds: Thresholds { failure: 3, success: 2 },
        endpoint: "/health".to_owned(),
    }
}

/// Every body is read, as it is for the sake of its model; tests of streaming say otherwise.
fn bodies() -> Bodies {
    Bodies {
        max_payload: 1 << 20,
        max_buffered: 1 << 20,
        max_buffered_total: None,
        timeout: TIMEOUT,
        stall: None,
        peek: 0,
        model_selection: true,
    }
}

fn settings(workers: &[&Worker]) -> Settings {
    let anywhere = "127.0.0.1:0".parse().expect("an address");
    Settings {
        listen: anywhere,
        metrics: anywhere,
        duration_buckets: vec![1.0],
        tls: None,
        access: Access::default(),
        workers: workers.iter().map(|worker| worker.origin()).collect(),
        aliases: std::collections::BTreeMap::new(),
        startup: Startup {
            timeout: Duration::from_secs(1800),
            interval: Duration::from_secs(30),
            delay: Duration::ZERO,
            dp_aware: false,
            external: false,
            http2: false,
        },
        health: Some(health()),
        placement: placement(),
        index_sweep: None,
        loads: LoadPolling {
            interval: Duration::from_secs(10),
            always: false,
            overload: OverloadRules::OFF,
        },
        sticky: Sticky { key_override: false, ..sticky() },
        affinity: Default::default(),
        admission: None,
        bodies: bodies(),
        clients: Clients {
            max_connections: 1024,
            max_header_bytes: 64 << 10,
            header_timeout: Some(Duration::from_secs(30)),
            idle_timeout: None,
        },
        connections: Connections {
            idle_timeout: Some(Duration::from_secs(3)),
            max_idle: 500,
            connect_timeout: Duration::from_secs(10),
        },
        worker_tls: WorkerTls::default(),
        retry: RetryRules {
            attempts: 1,
            initial_ms: 50,
            max_ms: 30_000,
            multiplier: 1.5,
            jitter: 0.2,
        },
        breaker: BreakerRules::OFF,
        request_timeout: TIMEOUT,
        sse_keepalive: None,
        request_id_headers: ["x-request-id", "x-correlation-id"]
            .map(http::HeaderName::from_static)
            .to_vec(),
        shutdown_grace: Duration::from_secs(30),
    }
}
