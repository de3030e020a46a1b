//! Agents' sessions, what clients may ask for, and what replicas share.

use clap::{Args, ValueEnum};
use smg_gateway::settings::Secret;

use super::{number, whole};

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sessions of agents")]
pub(crate) struct AffinityFlags {
    /// Do not hear the header routing-strategy, by which clients may ask for another policy
    #[arg(long)]
    pub(crate) lock_policy: bool,

    /// session_affinity: encrypt x-session-id under this secret, so that it shows no address; of two
    /// the first one encrypts and both are read
    #[arg(long, value_name = "SECRET", num_args = 1..=2)]
    pub(crate) session_id_secret: Vec<Secret>,

    /// session_affinity: beside encrypted ids read those that show an address
    #[arg(long)]
    pub(crate) session_id_accept_bare: bool,

    /// Pass the headers that name a session on to the engines
    #[arg(long)]
    pub(crate) forward_session_headers: bool,

    /// session_affinity: a key leaves its worker when that has more than this multiple of the other
    /// workers' mean in flight, 1 or more, and …
    #[arg(long, value_name = "FACTOR", allow_negative_numbers = true, value_parser = number)]
    pub(crate) affinity_imbalance_factor: Option<f64>,

    /// session_affinity: … this many requests more than the least loaded one
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole)]
    pub(crate) affinity_imbalance_min_gap: Option<i64>,

    /// session_affinity: share keys' workers between replicas in this Redis (7.0 or later) or Valkey
    /// [default: REDIS_HOST, REDIS_PORT and REDIS_PASSWORD of the environment, if the first is set]
    #[arg(long, value_name = "URL")]
    pub(crate) redis_url: Option<Secret>,

    /// Where pins of --routing-key-override and of manual are
    #[arg(long, value_name = "STORE", default_value = "memory")]
    pub(crate) sticky_store: StoreChoice,

    /// Longest wait of a request for the shared store
    #[arg(long, value_name = "MS", default_value_t = 50, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) sticky_store_timeout_ms: i64,

    /// What keys are hashed with before they go to the shared store; the same for all replicas
    #[arg(long, value_name = "SECRET")]
    pub(crate) sticky_store_secret: Option<Secret>,
}

/// `--sticky-store`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum StoreChoice {
    /// Of each replica
    Memory,
    /// Where --redis-url leads, shared by replicas
    Redis,
}
