//! Taking a request body.

mod budget;
mod coded;
mod flow;
mod peeked;
mod room;

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use smg_wire::coding;
use smg_wire::error::Refusal;
use tokio::time::timeout;

pub(crate) use self::budget::Budget;
pub(crate) use self::flow::{Banks, Flow, Stopped, Upload};
pub(crate) use self::peeked::{Begun, Look, Unseen};

use self::budget::Charge;
use self::room::Room;
use crate::admission::RETRY_AFTER_SECS;
use crate::edge::Arriving;

/// How much of a body is read before others have a turn: whoever uploads faster than it can be copied
/// would hold its thread, and small requests on it, for as long as it can.
const TURN: usize = 256 << 10;

/// What bounds the taking of one body.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    /// `--max-payload-size`.
    pub(crate) bytes: usize,
    /// `--buffered-body-timeout-secs`.
    pub(crate) time: Duration,
    /// `--max-buffered-total-bytes`; `None` for no bound.
    pub(crate) budget: Option<Budget>,
}

impl Bounds {
    /// A body that was written anew counts beside the one it came from. It is never refused: the
    /// request has been let in, and whoever comes next makes room.
    pub(crate) fn rewritten(&self, body: Vec<u8>) -> Bytes {
        let mut charge = Charge::none(self.budget.clone());
        let _fits = charge.grow(body.len());
        charge.seal(body)
    }
}

/// Reads a body whole.
///
/// # Errors
/// When it is too large, too slow or one too many, or the client gives up on it.
pub(crate) async fn take(body: Arriving, bounds: &Bounds) -> Result<Bytes, Refusal> {
    take_rest(Bytes::new(), body, bounds).await
}

async fn take_rest(start: Bytes, body: Arriving, bounds: &Bounds) -> Result<Bytes, Refusal> {
    // A body that is there already never starts the timer.
    let read = timeout(bounds.time, read(start, body, bounds)).await;
    read.unwrap_or_else(|_| Err(too_slow(bounds.time)))
}

/// Reads a body whole that may have come compressed.
///
/// # Errors
/// As [`take`], and when it cannot be decoded.
pub(crate) async fn take_decoded(
    body: Begun,
    headers: &HeaderMap,
    bounds: &Bounds,
) -> Result<Bytes, Refusal> {
    let coding = coding::of(headers).map_err(|_| coded::unknown())?;
    let body = take_rest(body.start, body.rest, bounds).await?;
    match coding {
        Some(coding) => coded::decoded(body, coding, bounds).await,
        None => Ok(body),
    }
}

async fn read(start: Bytes, mut body: Arriving, bounds: &Bounds) -> Result<Bytes, Refusal> {
    let limit = bounds.bytes;
    let mut charge = Charge::none(bounds.budget.clone());
    let claimed = usize::try_from(body.size_hint().lower()).unwrap_or(limit);
    let claimed = claimed.saturating_add(start.len()).min(limit);
    let mut first = start;
    let mut room: Option<Room> = None;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| aborted())?.into_data() else { continue };
        let before = room.as_ref().map_or(first.len(), Room::len);
        let len = before + data.len();
        if len > limit {
            return Err(too_large(limit));
        }
        if !charge.grow(len) {
            return Err(no_room());
        }
        // A small body arrives in one piece and is never copied.
        if before == 0 {
            first = data;
            continue;
        }
        let room = room.get_or_insert_with(|| {
            let mut room = Room::claimed(claimed);
            room.push(&std::mem::take(&mut first));
            room
        });
        room.push(&data);
        if len / TURN > before / TURN {
            tokio::task::yield_now().await;
        }
    }
    Ok(match room {
        Some(room) => room.seal(charge),
        None => first,
    })
}

/// Whether nobody reads the rest of an upload that is refused like this.
pub(crate) fn is_unread(refusal: &Refusal) -> bool {
    matches!(
        refusal.code,
        "invalid_routing_strategy"
            | "request_body_too_large"
            | "request_body_timeout"
            | "request_body_stalled"
            | "buffer_budget_exhausted"
            | "unsupported_content_encoding"
    )
}

fn too_large(limit: usize) -> Refusal {
    Refusal::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "request_body_too_large",
        format!("The request body is larger than {limit} bytes (--max-payload-size)."),
    )
}

fn too_slow(time: Duration) -> Refusal {
    let secs = time.as_secs();
    Refusal::new(
        StatusCode::REQUEST_TIMEOUT,
        "request_body_timeout",
        format!("The request body did not arrive within {secs} s (--buffered-body-timeout-secs)."),
    )
}

fn no_room() -> Refusal {
    let refusal = Refusal::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "buffer_budget_exhausted",
        "Other request bodies hold the memory there is for them (--max-buffered-total-bytes).",
    );
    Refusal { retry_after: Some(RETRY_AFTER_SECS), ..refusal }
}

fn aborted() -> Refusal {
    Refusal::new(
        StatusCode::BAD_REQUEST,
        "request_body_aborted",
        "The upload ended before the whole request body had arrived.",
    )
}
