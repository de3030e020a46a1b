//! Flags of placement and of load polling.

use clap::{Args, ValueEnum};

use super::{number, whole};

/// Which worker takes a request that no pin decides.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Placement")]
pub(crate) struct PlacementFlags {
    /// How a request that no pin decides gets its worker
    #[arg(long, value_name = "POLICY", default_value = "cache_aware")]
    pub(crate) policy: PolicyChoice,

    /// cache_aware: the share of a prompt above which a match binds, 0 to 1
    /// [alias: --cache-match-threshold]
    #[arg(
        long,
        alias = "cache-match-threshold",
        value_name = "SHARE",
        default_value_t = 0.3,
        allow_negative_numbers = true, value_parser = number)]
    pub(crate) cache_threshold: f64,

    /// cache_aware: how much less a match counts for each length of the prompt that its holder
    /// reports waiting more than the least busy worker, 0 for no less
    #[arg(long, value_name = "FACTOR", default_value_t = 0.0, allow_negative_numbers = true, value_parser = number)]
    pub(crate) overlap_decay: f64,

    /// cache_aware: 0 takes a conversation to its best holder, the higher the nearer to any of them
    #[arg(long, value_name = "N", default_value_t = 0.0, allow_negative_numbers = true, value_parser = number)]
    pub(crate) selection_temperature: f64,

    /// cache_aware: what of prompts is remembered
    #[arg(long, value_name = "KIND", default_value = "tree")]
    pub(crate) cache_index: IndexChoice,

    /// cache_aware with --cache-index hash, prefix_hash: ascending token positions at which engines
    /// keep what they have read, such as 1024,4096; at most 32
    #[arg(long, value_name = "N,...", num_args = 1.., value_delimiter = ',', allow_negative_numbers = true, value_parser = whole)]
    pub(crate) cache_boundaries: Vec<i64>,

    /// cache_aware with --cache-index hash: how long what nobody uses is remembered [default: 180]
    #[arg(long, value_name = "SECS", allow_negative_numbers = true, value_parser = whole)]
    pub(crate) cache_ttl_secs: Option<i64>,

    /// cache_aware: characters, or tokens, of prompts remembered for a model
    #[arg(long, value_name = "N", default_value_t = 67_108_864, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) max_tree_size: i64,

    /// cache_aware: tokens in one block of the engines' KV cache
    #[arg(long, value_name = "N", default_value_t = 16, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) block_size: i64,

    /// cache_aware: drop affinity while the fullest KV cache is above this share, 1 for never
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, allow_negative_numbers = true, value_parser = number)]
    pub(crate) overload_token_usage_threshold: f64,

    /// cache_aware: drop affinity while the fullest and the emptiest KV cache differ by more than
    /// this share, 1 for never
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, allow_negative_numbers = true, value_parser = number)]
    pub(crate) balance_token_usage_threshold: f64,

    /// cache_aware: requests above the mean, and bucket: characters above the least, that make a
    /// worker too busy if the factor below is passed too [alias: --spill-abs-threshold]
    #[arg(
        long,
        alias = "spill-abs-threshold",
        value_name = "N",
        default_value_t = 64,
        allow_negative_numbers = true, value_parser = whole)]
    pub(crate) balance_abs_threshold: i64,

    /// cache_aware, bucket: the factor, 1 or more [alias: --spill-rel-threshold]
    #[arg(
        long,
        alias = "spill-rel-threshold",
        value_name = "FACTOR",
        default_value_t = 1.5,
        allow_negative_numbers = true, value_parser = number)]
    pub(crate) balance_rel_threshold: f64,

    /// bucket: seconds between two cuts of the length ranges, and how long what was sent counts
    #[arg(long, value_name = "SECS", default_value_t = 5, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) bucket_adjust_interval_secs: i64,

    /// prefix_hash: tokens at the beginning of a prompt that are hashed; of a text four characters
    /// count as one
    #[arg(long, value_name = "N", default_value_t = 256, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) prefix_token_count: i64,

    /// prefix_hash: a worker is overloaded above this multiple of the mean load, 1 or more, and …
    #[arg(long, value_name = "FACTOR", default_value_t = 1.25, allow_negative_numbers = true, value_parser = number)]
    pub(crate) prefix_hash_load_factor: f64,

    /// prefix_hash: … above the mean load plus this
    #[arg(long, value_name = "N", default_value_t = 10, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) prefix_hash_balance_abs_threshold: i64,

    /// least_load, power_of_two: seconds of wait that a KV cache half full counts as
    #[arg(long, value_name = "SECS", default_value_t = 0.15, allow_negative_numbers = true, value_parser = number)]
    pub(crate) least_load_kv_pressure_weight: f64,

    /// least_load, power_of_two: tokens a second of an engine that reports none
    #[arg(long, value_name = "N", default_value_t = 2000.0, allow_negative_numbers = true, value_parser = number)]
    pub(crate) least_load_default_throughput: f64,

    /// least_load, power_of_two: tokens of a prompt whose length is not known
    #[arg(long, value_name = "N", default_value_t = 1024, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) least_load_mean_prefill_tokens: i64,

    /// least_load: skip a worker with this many requests waiting, 0 for no bound
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) least_load_max_waiting_requests: i64,
}

/// How engines are asked for their load.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Engine load")]
pub(crate) struct LoadFlags {
    /// Seconds between two polls of a worker's load
    #[arg(long, value_name = "SECS", default_value_t = 10, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) load_monitor_interval: i64,

    /// Poll only workers whose policy or overload protection goes by load
    #[arg(long)]
    pub(crate) disable_load_monitoring: bool,

    /// Send nothing to a worker that reports this many waiting requests or more
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole)]
    pub(crate) worker_overload_waiting_requests: Option<i64>,

    /// Send nothing to a worker that reports this share of its KV cache in use or more
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true, value_parser = number)]
    pub(crate) worker_overload_token_usage: Option<f64>,

    /// Without one of the two above: --worker-overload-token-usage 0.9
    #[arg(long)]
    pub(crate) worker_overload_protection: bool,
}

/// `--cache-index`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum IndexChoice {
    /// All of them, text and tokens
    Tree,
    /// Prompts of tokens up to --cache-boundaries
    Hash,
}

/// `--policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum PolicyChoice {
    /// One worker after the other
    RoundRobin,
    /// Any available worker
    Random,
    /// The first available worker
    Passthrough,
    /// Of two workers drawn by lot the one with the shorter expected wait
    PowerOfTwo,
    /// The shortest expected wait
    LeastLoad,
    /// Prompts that begin alike to one worker, unless it is overloaded
    PrefixHash,
    /// The routing key's place on a hash ring
    ConsistentHashing,
    /// Keys of X-SMG-Routing-Key pinned, the rest by --assignment-mode
    Manual,
    /// Short prompts here, long ones there
    Bucket,
    /// Where most of the prompt is cached already, unless that costs more than it saves
    CacheAware,
    /// Sessions of agents by x-session-id and x-aibrix-session-key, the same on every replica
    SessionAffinity,
}
