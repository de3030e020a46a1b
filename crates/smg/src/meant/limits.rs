//! What the flags of limits come to.

use smg_gateway::settings::{AdmissionRules, Bodies, Clients};

use super::{Complaint, Meant, positive, positive_secs, secs, small, unless_zero, unsigned};
use crate::flags::{LimitFlags, RequestFlags};
use crate::{memory, open_files};

/// How many requests run, wait and come in a second; `None` for any number.
pub(super) fn admission(flags: &LimitFlags) -> Meant<Option<AdmissionRules>> {
    // Checked whether or not there is a limit: a typing error is one either way.
    let queue = small("--queue-size", flags.queue_size)?;
    let wait = if queue > 0 {
        positive_secs("--queue-timeout-secs", flags.queue_timeout_secs)?
    } else {
        secs("--queue-timeout-secs", flags.queue_timeout_secs)?
    };
    let rate = flags.rate_limit_tokens_per_second;
    let rate = rate.map(|rate| small("--rate-limit-tokens-per-second", rate)).transpose()?;
    if flags.max_concurrent_requests <= 0 {
        if let Some(rate) = rate.filter(|rate| *rate > 0) {
            let why = "needs --max-concurrent-requests, the burst that the rate allows";
            return Err(Complaint::about("--rate-limit-tokens-per-second", rate, why));
        }
        return Ok(None);
    }
    Ok(Some(AdmissionRules {
        limit: u32::try_from(flags.max_concurrent_requests).unwrap_or(u32::MAX),
        queue,
        wait_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
        rate: rate.filter(|rate| *rate > 0),
    }))
}

/// Most that may be read of a body before it streams: what each such request may hold.
const MAX_PEEK: u64 = 1 << 20;

/// How large request bodies may be, alone and together, and how long they may take to arrive.
pub(super) fn bodies(requests: &RequestFlags, limits: &LimitFlags) -> Meant<Bodies> {
    let max_payload = positive("--max-payload-size", requests.max_payload_size)?;
    let total = match limits.max_buffered_total_bytes {
        Some(typed) => Some(unsigned("--max-buffered-total-bytes", typed)?),
        None => memory::total().map(|all| all / 4),
    };
    let timeout = match limits.buffered_body_timeout_secs {
        Some(typed) => positive_secs("--buffered-body-timeout-secs", typed)?,
        None => positive_secs("--request-timeout-secs", requests.request_timeout_secs)?,
    };
    let typed = requests.routing_key_peek_bytes;
    let peek = unsigned("--routing-key-peek-bytes", typed)?;
    if peek > MAX_PEEK {
        let why = format!("expected at most {MAX_PEEK}: whoever needs more reads all of it");
        return Err(Complaint::about("--routing-key-peek-bytes", typed, why));
    }
    let stall = secs("--stream-body-stall-timeout-secs", requests.stream_body_stall_timeout_secs)?;
    Ok(Bodies {
        max_payload: usize::try_from(max_payload).unwrap_or(usize::MAX),
        max_buffered: unsigned(
            "--max-buffered-request-bytes",
            requests.max_buffered_request_bytes,
        )?,
        max_buffered_total: total.filter(|total| *total > 0),
        timeout,
        stall: unless_zero(stall),
        peek: usize::try_from(peek).unwrap_or(usize::MAX),
        model_selection: requests.enable_igw,
    })
}

/// What bounds a client's connection.
pub(super) fn clients(flags: &LimitFlags) -> Meant<Clients> {
    let max_header_bytes = usize::try_from(flags.max_header_bytes).ok();
    let max_header_bytes = max_header_bytes.filter(|bytes| (8192..=1 << 30).contains(bytes));
    let header = secs("--header-read-timeout-secs", flags.header_read_timeout_secs)?;
    let idle = secs("--idle-connection-timeout-secs", flags.idle_connection_timeout_secs)?;
    let most = small("--max-connections", flags.max_connections)? as usize;
    Ok(Clients {
        max_connections: if most == 0 { open_files::for_clients() } else { most },
        max_header_bytes: max_header_bytes.ok_or_else(|| {
            let why = "expected 8192 to 1073741824";
            Complaint::about("--max-header-bytes", flags.max_header_bytes, why)
        })?,
        header_timeout: unless_zero(header),
        idle_timeout: unless_zero(idle),
    })
}
