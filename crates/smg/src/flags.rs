//! Flags as typed: names, defaults and help, in one place. Numbers are signed here so that a value
//! out of range is refused by name and reason (`meant.rs`), not as a parser's riddle.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

mod access;
mod affinity;
mod limits;
mod others;
mod placement;
mod tls;

pub(crate) use access::AccessFlags;
pub(crate) use affinity::{AffinityFlags, StoreChoice};
pub(crate) use limits::LimitFlags;
pub(crate) use others::OtherFlags;
pub(crate) use placement::{IndexChoice, LoadFlags, PlacementFlags, PolicyChoice};
pub(crate) use tls::TlsFlags;

/// A sticky model gateway: every request of a conversation lands where its KV cache already is.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Route requests to a fleet of engines.
    #[command(after_help = "Example: smg launch --worker-urls http://w1:8000 http://w2:8000 \
                            --policy round_robin --routing-key-override")]
    Launch(Box<Flags>),
    /// Show what stickiness is worth on a simulated fleet, then keep it running to try.
    Demo(DemoFlags),
}

/// `smg demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoFlags {
    /// Where the sticky gateway of the demo listens; the other one listens a port above, metrics of
    /// both a thousand below
    #[arg(long, value_name = "PORT", default_value_t = 30000, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) port: i64,

    /// Exit after the tables instead of serving on
    #[arg(long)]
    pub(crate) once: bool,
}

/// `smg launch`.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Listening")]
pub(crate) struct Flags {
    /// Address to listen on
    #[arg(long, value_name = "IP", default_value = "0.0.0.0")]
    pub(crate) host: String,

    /// Port to listen on
    #[arg(long, value_name = "PORT", default_value_t = 30000, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) port: i64,

    /// Address of the metrics listener
    #[arg(long, value_name = "IP", default_value = "0.0.0.0")]
    pub(crate) prometheus_host: String,

    /// Port of the metrics listener (GET /metrics)
    #[arg(long, value_name = "PORT", default_value_t = 29000, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) prometheus_port: i64,

    /// Upper bounds, in seconds and ascending, of every duration histogram
    #[arg(long, value_name = "SECONDS", num_args = 1.., default_values_t = BUCKETS, value_parser = number)]
    pub(crate) prometheus_duration_buckets: Vec<f64>,

    /// Headers searched, in order, for a client's request id; naming them replaces the list
    #[arg(long, value_name = "NAME", num_args = 1.., default_values = REQUEST_ID_HEADERS)]
    pub(crate) request_id_headers: Vec<String>,

    /// URLs of the engines, such as http://w1:8000 or https://w1; unreachable ones join when they answer
    #[arg(long, value_name = "URL", num_args = 1.., help_heading = "Workers")]
    pub(crate) worker_urls: Vec<String>,

    /// Give up on registering a worker after this long
    #[arg(
        long,
        value_name = "SECS",
        default_value_t = 1800,
        allow_negative_numbers = true,
        help_heading = "Workers", value_parser = whole)]
    pub(crate) worker_startup_timeout_secs: i64,

    /// Longest pause between two attempts to register a worker; the first pauses are shorter
    #[arg(
        long,
        value_name = "SECS",
        default_value_t = 30,
        allow_negative_numbers = true,
        help_heading = "Workers", value_parser = whole)]
    pub(crate) worker_startup_check_interval: i64,

    /// Wait this long before the first attempt to register workers
    #[arg(
        long,
        value_name = "SECS",
        default_value_t = 0,
        allow_negative_numbers = true,
        help_heading = "Workers", value_parser = whole)]
    pub(crate) worker_startup_delay: i64,

    /// Make each data-parallel rank of an engine a worker, URL@0, URL@1 and so on, and tell the
    /// engine the rank in the body
    #[arg(long, help_heading = "Workers")]
    pub(crate) dp_aware: bool,

    /// What the workers are: engines, which are found out about either way, or an OpenAI-compatible
    /// vendor, whose models are not, and where nothing is pinned
    #[arg(long, value_name = "KIND", default_value = "sglang", help_heading = "Workers")]
    pub(crate) backend: BackendChoice,

    /// Another name by which clients may call a model; repeatable
    #[arg(long, value_name = "ALIAS=MODEL", num_args = 1.., help_heading = "Workers")]
    pub(crate) model_alias: Vec<String>,

    #[command(flatten)]
    pub(crate) access: AccessFlags,

    #[command(flatten)]
    pub(crate) tls: TlsFlags,

    #[command(flatten)]
    pub(crate) placement: PlacementFlags,

    #[command(flatten)]
    pub(crate) sticky: StickyFlags,

    #[command(flatten)]
    pub(crate) affinity: AffinityFlags,

    #[command(flatten)]
    pub(crate) requests: RequestFlags,

    #[command(flatten)]
    pub(crate) limits: LimitFlags,

    #[command(flatten)]
    pub(crate) retry: RetryFlags,

    #[command(flatten)]
    pub(crate) health: HealthFlags,

    #[command(flatten)]
    pub(crate) loads: LoadFlags,

    #[command(flatten)]
    pub(crate) process: ProcessFlags,

    #[command(flatten)]
    pub(crate) others: OtherFlags,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Stickiness")]
pub(crate) struct StickyFlags {
    /// Pin every keyed request to a worker, on any policy [alias: --sticky-sessions]
    #[arg(long, alias = "sticky-sessions")]
    pub(crate) routing_key_override: bool,

    /// Headers searched, in order, for a routing key
    #[arg(long, value_name = "NAME", num_args = 0.., default_value = "x-smg-routing-key")]
    pub(crate) routing_key_headers: Vec<String>,

    /// Where a new key goes [default: delegate; random for --policy manual]
    #[arg(long, value_name = "MODE")]
    pub(crate) assignment_mode: Option<AssignmentChoice>,

    /// Seconds a pin may go unused, 0 for ever [alias: --sticky-key-idle-secs]
    #[arg(
        long,
        alias = "sticky-key-idle-secs",
        value_name = "SECS",
        default_value_t = 14400,
        allow_negative_numbers = true, value_parser = whole)]
    pub(crate) max_idle_secs: i64,

    /// Seconds between two sweeps of idle pins, 0 for none [alias: --eviction-interval-secs]
    #[arg(
        long,
        alias = "eviction-interval-secs",
        value_name = "SECS",
        default_value_t = 120,
        allow_negative_numbers = true, value_parser = whole)]
    pub(crate) eviction_interval: i64,

    /// Most pins kept, 0 for no bound; at the bound an idle one gives way
    #[arg(long, value_name = "N", default_value_t = 8_000_000, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) max_sticky_keys: i64,

    /// Keep pins in this file, so that they outlive a restart
    #[arg(long, value_name = "FILE")]
    pub(crate) sticky_snapshot: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Requests and connections")]
pub(crate) struct RequestFlags {
    /// Largest request body, and largest non-streaming answer of a worker
    #[arg(long, value_name = "BYTES", default_value_t = 512 << 20, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) max_payload_size: i64,

    /// Largest request body kept whole only so that it can be sent again; a larger one streams to its
    /// worker and is sent once
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) max_buffered_request_bytes: i64,

    /// Longest wait for the next byte of a request body that streams, 0 for no bound
    #[arg(long, value_name = "SECS", default_value_t = 300, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) stream_body_stall_timeout_secs: i64,

    /// Read up to so many bytes of a body that could stream if nobody had to look for its key or its
    /// model, and stream the rest; 0 reads such bodies whole
    #[arg(long, value_name = "BYTES", default_value_t = 0, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) routing_key_peek_bytes: i64,

    /// Read the model from every request body, for several models behind one gateway
    #[arg(long)]
    pub(crate) enable_igw: bool,

    /// Send a client that waits for an event a frame that says nothing after so long, before the
    /// worker's first word too; 0 never
    #[arg(long, value_name = "SECS", default_value_t = 0, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) sse_keepalive_secs: i64,

    /// Bound on the whole exchange with a worker, a streamed answer included
    #[arg(long, value_name = "SECS", default_value_t = 1800, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) request_timeout_secs: i64,

    /// Close connections to workers that have been idle this long, 0 never; keep it below the
    /// engine's own keep-alive timeout
    #[arg(long, value_name = "SECS", default_value_t = 3, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) upstream_pool_idle_timeout_secs: i64,

    /// Ask each http:// worker at registration whether it speaks HTTP/2, offer it in TLS to those at
    /// https://, and speak it to those that do
    #[arg(long)]
    pub(crate) upstream_http2: bool,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Retries and circuit breakers")]
pub(crate) struct RetryFlags {
    /// Attempts for a request in all, the first included
    #[arg(long, value_name = "N", default_value_t = 5, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) retry_max_retries: i64,

    /// Wait before the second attempt
    #[arg(long, value_name = "MS", default_value_t = 50, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) retry_initial_backoff_ms: i64,

    /// Longest wait between two attempts, and longest Retry-After that is waited for
    #[arg(long, value_name = "MS", default_value_t = 30_000, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) retry_max_backoff_ms: i64,

    /// Growth of the wait from one attempt to the next
    #[arg(long, value_name = "FACTOR", default_value_t = 1.5, allow_negative_numbers = true, value_parser = number)]
    pub(crate) retry_backoff_multiplier: f64,

    /// Share by which a wait is drawn longer or shorter
    #[arg(long, value_name = "SHARE", default_value_t = 0.2, allow_negative_numbers = true, value_parser = number)]
    pub(crate) retry_jitter_factor: f64,

    /// Send each request once
    #[arg(long)]
    pub(crate) disable_retries: bool,

    /// Failures in a row that open a worker's circuit breaker
    #[arg(long, value_name = "N", default_value_t = 10, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) cb_failure_threshold: i64,

    /// Successes in a row that close it again, and probes let through at once
    #[arg(long, value_name = "N", default_value_t = 3, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) cb_success_threshold: i64,

    /// How long it stays open before probes are let through
    #[arg(long, value_name = "SECS", default_value_t = 60, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) cb_timeout_duration_secs: i64,

    /// Checked, without effect: failures are counted in a row, not in a window
    #[arg(long, value_name = "SECS", default_value_t = 120, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) cb_window_duration_secs: i64,

    /// Never keep requests from a worker because of failures
    #[arg(long)]
    pub(crate) disable_circuit_breaker: bool,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Health checks")]
pub(crate) struct HealthFlags {
    /// Seconds between two checks of a worker
    #[arg(long, value_name = "SECS", default_value_t = 60, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) health_check_interval_secs: i64,

    /// Bound on one check
    #[arg(long, value_name = "SECS", default_value_t = 5, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) health_check_timeout_secs: i64,

    /// Failures in a row that take a worker out
    #[arg(long, value_name = "N", default_value_t = 3, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) health_failure_threshold: i64,

    /// Successes in a row that bring it back
    #[arg(long, value_name = "N", default_value_t = 2, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) health_success_threshold: i64,

    /// Path that is asked
    #[arg(long, value_name = "PATH", default_value = "/health")]
    pub(crate) health_check_endpoint: String,

    /// Count every registered worker as healthy
    #[arg(long)]
    pub(crate) disable_health_check: bool,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Process")]
pub(crate) struct ProcessFlags {
    /// How much is logged; RUST_LOG adds filters by target
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub(crate) log_level: LevelChoice,

    /// Log one JSON object a line
    #[arg(long)]
    pub(crate) log_json: bool,

    /// How long running requests may take to end after SIGTERM or SIGINT
    #[arg(long, value_name = "SECS", default_value_t = 180, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) shutdown_grace_period_secs: i64,

    /// How requests share the cores: one pool of threads, or one thread and listener for each core
    #[arg(long, value_name = "LAYOUT", default_value = "shared")]
    pub(crate) runtime: RuntimeChoice,
}

/// `--assignment-mode`.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum AssignmentChoice {
    /// Any available worker
    Random,
    /// The one with the fewest requests in flight
    MinLoad,
    /// The one with the fewest distinct keys in flight
    MinGroup,
    /// The one the policy selects
    Delegate,
}

/// `--log-level`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum LevelChoice {
    /// Every decision
    Debug,
    /// Workers coming and going
    Info,
    /// What needs a look
    Warn,
    /// What failed
    Error,
}

/// `--backend`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackendChoice {
    /// Engines
    Sglang,
    /// Engines
    Vllm,
    /// An OpenAI-compatible vendor
    Openai,
    #[value(hide = true)]
    Anthropic,
    #[value(hide = true)]
    Tokenspeed,
}

/// `--runtime`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum RuntimeChoice {
    /// Threads take work from each other
    Shared,
    /// Each thread keeps its clients
    PerCore,
}

/// A parser's own words ("invalid digit found in string") help nobody.
fn whole(typed: &str) -> Result<i64, &'static str> {
    typed.parse().map_err(|_| "expected a whole number below 2^63")
}

fn number(typed: &str) -> Result<f64, &'static str> {
    typed.parse().map_err(|_| "expected a number")
}

const BUCKETS: [f64; 29] = [
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 30.0, 45.0, 60.0,
    90.0, 120.0, 180.0, 240.0, 300.0, 480.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0, 5400.0, 7200.0,
];
const REQUEST_ID_HEADERS: [&str; 4] =
    ["x-request-id", "x-correlation-id", "x-trace-id", "request-id"];

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn whatever_cannot_be_read_is_refused_by_the_name_of_its_flag_with_what_would_do() {
        for command in Cli::command().get_subcommands() {
            for flag in command.get_arguments().filter(|flag| flag.get_action().takes_values()) {
                let name = format!("--{}", flag.get_id().as_str().replace('_', "-"));
                let takes = |typed: &str| {
                    Cli::try_parse_from(["smg", command.get_name(), &name, typed]).err()
                };
                // Names, URLs and paths are judged as meant (`meant.rs`).
                let Some(error) = takes("?") else { continue };
                let said = error.to_string();
                assert!(said.contains(&name), "{name}: {said}");
                assert!(said.contains("expected ") || said.contains("possible values"), "{said}");
            }
        }
    }
}
