//! Flags of what bounds requests and their clients.

use clap::Args;

use super::whole;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Limits")]
pub(crate) struct LimitFlags {
    /// Inference requests at once, streams to their last byte; 0 and less for no bound
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) max_concurrent_requests: i64,

    /// Requests that may wait for their turn
    #[arg(long, value_name = "N", default_value_t = 100, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) queue_size: i64,

    /// Longest wait
    #[arg(long, value_name = "SECS", default_value_t = 60, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) queue_timeout_secs: i64,

    /// Requests let in a second, over time; --max-concurrent-requests in one burst. 0 for no bound
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole)]
    pub(crate) rate_limit_tokens_per_second: Option<i64>,

    /// Bytes that all buffered request bodies together may hold, 0 for no bound [default: a quarter
    /// of the memory]
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true, value_parser = whole)]
    pub(crate) max_buffered_total_bytes: Option<i64>,

    /// How long a buffered request body may take to arrive [default: --request-timeout-secs]
    #[arg(long, value_name = "SECS", allow_negative_numbers = true, value_parser = whole)]
    pub(crate) buffered_body_timeout_secs: Option<i64>,

    /// Longest head of a request, at least 8192
    #[arg(long, value_name = "BYTES", default_value_t = 65536, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) max_header_bytes: i64,

    /// How long a head may take to arrive, and the first byte of a connection; 0 for no bound
    #[arg(long, value_name = "SECS", default_value_t = 30, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) header_read_timeout_secs: i64,

    /// Close connections of clients that have been idle this long, 0 never
    #[arg(long, value_name = "SECS", default_value_t = 0, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) idle_connection_timeout_secs: i64,

    /// Connections of clients at once; beyond them none is accepted. 0 for half of the open files the
    /// process may have
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) max_connections: i64,
}
