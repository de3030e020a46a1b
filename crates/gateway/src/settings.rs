//! Settings as meant: what the flags come to, checked, with units. Defaults live with the flags.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::HeaderName;
pub use smg_decide::fleet::health::Thresholds;
pub use smg_decide::place::Assignment;

use crate::upstream::Origin;

/// Everything one gateway process needs to know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `--host` and `--port`.
    pub listen: SocketAddr,
    /// `--prometheus-host` and `--prometheus-port`.
    pub metrics: SocketAddr,
    /// `--prometheus-duration-buckets`, in seconds, strictly ascending.
    pub duration_buckets: Vec<f64>,
    /// `--worker-urls`.
    pub workers: Vec<Origin>,
    /// How workers register.
    pub startup: Startup,
    /// Health checks; `None` under `--disable-health-check`.
    pub health: Option<HealthChecks>,
    /// Which worker takes a request that no pin decides.
    pub policy: PolicyName,
    /// Keys and pins.
    pub sticky: Sticky,
    /// Request and answer sizes.
    pub bodies: Bodies,
    /// Connections to workers.
    pub connections: Connections,
    /// `--request-timeout-secs`: the whole exchange, a streamed answer included.
    pub request_timeout: Duration,
    /// `--request-id-headers`: where a client's request id is looked for, in order.
    pub request_id_headers: Vec<HeaderName>,
    /// `--shutdown-grace-period-secs`: how long running requests may take after SIGTERM.
    pub shutdown_grace: Duration,
}

/// `--policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyName {
    /// One after the other.
    RoundRobin,
    /// By lot.
    Random,
    /// Pinned keys, and `--assignment-mode` for the rest.
    Manual,
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

/// When idle pins go.
#[derive(Clone, Copy, Debug)]
pub struct Eviction {
    /// Seconds a pin may go unused.
    pub max_idle_secs: u32,
    /// Between sweeps.
    pub interval: Duration,
}

/// Sizes in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Bodies {
    /// `--max-payload-size`: largest request body, and largest buffered answer of a worker.
    pub max_payload: usize,
    /// `--max-buffered-request-bytes`: largest body kept only for a retry.
    pub max_buffered: u64,
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
