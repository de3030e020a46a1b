//! Settings as meant: what the flags come to, checked, with units. Defaults live with the flags.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::HeaderName;
pub use smg_decide::admission::Rules as AdmissionRules;
pub use smg_decide::fleet::breaker::Rules as BreakerRules;
pub use smg_decide::fleet::health::Thresholds;
pub use smg_decide::fleet::overload::Rules as OverloadRules;
pub use smg_decide::place::cache_aware::{
    Kind as CacheIndex, Params as CacheParams, Rules as CacheRules, Scoring,
};
pub use smg_decide::place::{
    Assignment, Boundaries, BucketRules, ExpectedWait, Imbalance, PrefixRules,
};
pub use smg_decide::retry::Rules as RetryRules;
pub use smg_wire::cors::{Cors, origin};

pub use crate::access::Secret;
pub use crate::edge::ServerTls;
pub use crate::session::{try_snapshot, try_store};

use crate::upstream::{Origin, WorkerTls};

/// Everything one gateway process needs to know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `--host` and `--port`.
    pub listen: SocketAddr,
    /// `--prometheus-host` and `--prometheus-port`.
    pub metrics: SocketAddr,
    /// `--prometheus-duration-buckets`, in seconds, strictly ascending.
    pub duration_buckets: Vec<f64>,
    /// `--tls-cert-path` and `--tls-key-path`; `None` for plain HTTP.
    pub tls: Option<ServerTls>,
    /// Keys, and pages of other origins.
    pub access: Access,
    /// `--worker-urls`.
    pub workers: Vec<Origin>,
    /// `--model-alias`: what else clients may call a model, and the model.
    pub aliases: BTreeMap<String, String>,
    /// How workers register.
    pub startup: Startup,
    /// Health checks; `None` under `--disable-health-check`.
    pub health: Option<HealthChecks>,
    /// Which worker takes a request that no pin decides.
    pub placement: Placement,
    /// How engines are asked for their load.
    pub loads: LoadPolling,
    /// `--eviction-interval`: between two sweeps of the policies' indexes; `None` when 0.
    pub index_sweep: Option<Duration>,
    /// Keys and pins.
    pub sticky: Sticky,
    /// Agents' sessions, and what clients may ask for.
    pub affinity: Affinity,
    /// `--max-concurrent-requests` and what belongs to it; `None` for no bound.
    pub admission: Option<AdmissionRules>,
    /// Request and answer sizes.
    pub bodies: Bodies,
    /// Connections of clients.
    pub clients: Clients,
    /// Connections to workers.
    pub connections: Connections,
    /// `--ca-cert-paths`, `--client-cert-path` and `--client-key-path`: for workers at `https`.
    pub worker_tls: WorkerTls,
    /// `--retry-…`.
    pub retry: RetryRules,
    /// `--cb-…`.
    pub breaker: BreakerRules,
    /// `--request-timeout-secs`: the whole exchange, a streamed answer included.
    pub request_timeout: Duration,
    /// `--sse-keepalive-secs`: how long a stream's client may hear nothing; `None` when 0.
    pub sse_keepalive: Option<Duration>,
    /// `--request-id-headers`: where a client's request id is looked for, in order.
    pub request_id_headers: Vec<HeaderName>,
    /// `--shutdown-grace-period-secs`: how long running requests may take after SIGTERM.
    pub shutdown_grace: Duration,
}

/// Who may ask.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// `--api-key`: opens inference, and is what workers without a key of their own are sent.
    pub api_key: Option<Secret>,
    /// `--tenant-api-key`: names and keys that open inference and never go to a worker.
    pub tenants: Vec<(String, Secret)>,
    /// `--admin-api-key`.
    pub admin_key: Option<Secret>,
    /// `--cors-allowed-origins`.
    pub cors: Cors,
}

/// Which worker takes a request that no pin decides.
#[derive(Clone, Copy, Debug)]
pub struct Placement {
    /// `--policy`, for models whose workers name none.
    pub policy: PolicyName,
    /// `--least-load-…`: what an expected wait assumes.
    pub wait: ExpectedWait,
    /// `--least-load-max-waiting-requests`; `None` when 0.
    pub max_waiting: Option<u32>,
    /// `--prefix-…` and `--cache-boundaries`.
    pub prefix: PrefixRules,
    /// `--bucket-adjust-interval-secs` and `--balance-…-threshold`.
    pub bucket: BucketRules,
    /// `--cache-…`, `--balance-…`, `--max-tree-size`, `--block-size`, `--overlap-decay`,
    /// `--selection-temperature`. The seed of its hashes is drawn at start.
    pub cache: CacheParams,
}

/// `--policy`, and the worker label `policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PolicyName {
    /// One after the other.
    RoundRobin,
    /// By lot.
    Random,
    /// The first available.
    Passthrough,
    /// The shorter expected wait of two drawn by lot.
    PowerOfTwo,
    /// The shortest expected wait.
    LeastLoad,
    /// By the beginning of the prompt.
    PrefixHash,
    /// By the routing key.
    ConsistentHashing,
    /// Pinned keys, and `--assignment-mode` for the rest.
    Manual,
    /// By the length of the prompt.
    Bucket,
    /// Where most of the prompt is cached already.
    CacheAware,
    /// By an agent's session.
    SessionAffinity,
}

impl PolicyName {
    /// Every policy.
    pub const ALL: [Self; 11] = [
        Self::RoundRobin,
        Self::Random,
        Self::Passthrough,
        Self::PowerOfTwo,
        Self::LeastLoad,
        Self::PrefixHash,
        Self::ConsistentHashing,
        Self::Manual,
        Self::Bucket,
        Self::CacheAware,
        Self::SessionAffinity,
    ];

    /// The name in flags, labels and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RoundRobin => "round_robin",
            Self::Random => "random",
            Self::Passthrough => "passthrough",
            Self::PowerOfTwo => "power_of_two",
            Self::LeastLoad => "least_load",
            Self::PrefixHash => "prefix_hash",
            Self::ConsistentHashing => "consistent_hashing",
            Self::Manual => "manual",
            Self::Bucket => "bucket",
            Self::CacheAware => "cache_aware",
            Self::SessionAffinity => "session_affinity",
        }
    }

    /// The policy of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.as_str() == name)
    }
}

/// Asking engines for their load.
#[derive(Clone, Copy, Debug)]
pub struct LoadPolling {
    /// `--load-monitor-interval`: between two polls of a worker.
    pub interval: Duration,
    /// Off under `--disable-load-monitoring`: then only workers are asked whose policy needs it.
    pub always: bool,
    /// `--worker-overload-…`: which reports keep requests away.
    pub overload: OverloadRules,
}

/// Keys and pins, for the override and for `manual`.
#[derive(Clone, Debug)]
pub struct Sticky {
    /// `--routing-key-override`.
    pub key_override: bool,
    /// `--routing-key-headers`, in order.
    pub headers: Vec<HeaderName>,
    /// `--assignment-mode`; `None` when not typed.
    pub assignment: Option<Assignment>,
    /// `--max-idle-secs` and `--eviction-interval`; `None` when either is 0.
    pub eviction: Option<Eviction>,
    /// `--max-sticky-keys`: pins kept; `None` for no bound.
    pub max_keys: Option<usize>,
    /// `--sticky-snapshot`: where pins outlive a restart.
    pub snapshot: Option<PathBuf>,
}

/// Agents' sessions (004), and what clients may ask for.
#[derive(Clone, Debug, Default)]
pub struct Affinity {
    /// `--lock-policy`: the header `routing-strategy` is not heard.
    pub lock_policy: bool,
    /// `--session-id-secret`: ids are encrypted under the first, and read under each; without one they
    /// show the worker's address.
    pub id_secrets: Vec<Secret>,
    /// `--session-id-accept-bare`: beside encrypted ids those are read that show an address.
    pub accept_bare: bool,
    /// `--forward-session-headers`: engines get the session headers too.
    pub forward_headers: bool,
    /// `--affinity-imbalance-…`: when a key leaves a hot worker.
    pub imbalance: Option<Imbalance>,
    /// `--redis-url` and what belongs to it: where replicas share what keys are pinned to.
    pub store: Option<SharedStore>,
}

/// Where replicas share what keys are pinned to.
#[derive(Clone, Debug)]
pub struct SharedStore {
    /// `--redis-url`, or what `REDIS_HOST` and its kin come to; it may hold a password.
    pub url: Secret,
    /// `--sticky-store-timeout-ms`: the longest a request waits for it.
    pub timeout: Duration,
    /// `--sticky-store-secret`: what keys are hashed with before they go there.
    pub secret: Option<Secret>,
    /// `--sticky-store redis`: routing keys' pins are there too, of the override and of `manual`.
    pub routing_keys: bool,
}

/// When idle pins go.
#[derive(Clone, Copy, Debug)]
pub struct Eviction {
    /// Seconds a pin may go unused.
    pub max_idle_secs: u32,
    /// Between sweeps.
    pub interval: Duration,
}

/// Sizes in bytes, and how long they may take.
#[derive(Clone, Copy, Debug)]
pub struct Bodies {
    /// `--max-payload-size`: largest request body, and largest buffered answer of a worker.
    pub max_payload: usize,
    /// `--max-buffered-request-bytes`: largest body kept only for a retry.
    pub max_buffered: u64,
    /// `--max-buffered-total-bytes`: all buffered request bodies together; `None` for no bound.
    pub max_buffered_total: Option<u64>,
    /// `--buffered-body-timeout-secs`: how long a buffered body may take to arrive.
    pub timeout: Duration,
    /// `--stream-body-stall-timeout-secs`: how long a streamed body may keep its worker waiting;
    /// `None` when 0.
    pub stall: Option<Duration>,
    /// `--routing-key-peek-bytes`: how much of a body may be read before it streams; 0 for nothing.
    pub peek: usize,
    /// `--enable-igw`: the model in the body picks the policy, so that every body is read.
    pub model_selection: bool,
}

/// Connections of clients.
#[derive(Clone, Copy, Debug)]
pub struct Clients {
    /// `--max-connections`: how many there may be; more are accepted as others end.
    pub max_connections: usize,
    /// `--max-header-bytes`: longest head.
    pub max_header_bytes: usize,
    /// `--header-read-timeout-secs`: how long a head may take; `None` for no bound.
    pub header_timeout: Option<Duration>,
    /// `--idle-connection-timeout-secs`: how long a client may wait between two requests.
    pub idle_timeout: Option<Duration>,
}

/// Connections to one worker.
#[derive(Clone, Copy, Debug)]
pub struct Connections {
    /// `--upstream-pool-idle-timeout-secs`, from check-in; `None` keeps idle connections.
    pub idle_timeout: Option<Duration>,
    /// Idle connections kept for one worker.
    pub max_idle: usize,
    /// Bound on TCP connect.
    pub connect_timeout: Duration,
}

/// Registration of static workers.
#[derive(Clone, Copy, Debug)]
pub struct Startup {
    /// `--worker-startup-timeout-secs`: give up after this.
    pub timeout: Duration,
    /// `--worker-startup-check-interval`: longest pause between attempts.
    pub interval: Duration,
    /// `--worker-startup-delay`: wait before the first attempt.
    pub delay: Duration,
    /// `--dp-aware`: each data-parallel rank is a worker.
    pub dp_aware: bool,
    /// `--backend openai`: workers named at start are somebody else's API.
    pub external: bool,
    /// `--upstream-http2`: workers that speak HTTP/2 are spoken to in it.
    pub http2: bool,
}

/// `--health-check-…`.
#[derive(Clone, Debug)]
pub struct HealthChecks {
    /// Between two checks of a worker.
    pub interval: Duration,
    /// Bound on one check.
    pub timeout: Duration,
    /// Runs that change a worker's state.
    pub thresholds: Thresholds,
    /// Path asked.
    pub endpoint: String,
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// A policy with the defaults of its flags.
    pub(crate) const fn placement(policy: PolicyName) -> Placement {
        Placement {
            policy,
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
}
