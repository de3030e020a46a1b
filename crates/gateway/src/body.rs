//! Taking a request body.

use bytes::Bytes;
use http::StatusCode;
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use smg_wire::error::Refusal;

/// Room made at once for a body that claims to be large; the rest comes as it arrives, so that a
/// claim costs nothing.
const FIRST_ROOM: u64 = 1 << 20;

/// Reads a body whole, at most `limit` bytes of it.
///
/// # Errors
/// When it is too large or the client gives up on it.
pub(crate) async fn take(mut body: Incoming, limit: usize) -> Result<Bytes, Refusal> {
    let claimed = body.size_hint().lower();
    let mut first = Bytes::new();
    let mut rest = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| aborted())?.into_data() else { continue };
        if first.len() + rest.len() + data.len() > limit {
            return Err(too_large(limit));
        }
        // A small body arrives in one piece and is never copied.
        if first.is_empty() && rest.is_empty() {
            first = data;
            continue;
        }
        if rest.is_empty() {
            rest.reserve(usize::try_from(claimed.min(FIRST_ROOM)).unwrap_or_default());
            rest.extend_from_slice(&std::mem::take(&mut first));
        }
        rest.extend_from_slice(&data);
    }
    Ok(if rest.is_empty() { first } else { rest.into() })
}

fn too_large(limit: usize) -> Refusal {
    Refusal::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "request_body_too_large",
        format!("The request body is larger than {limit} bytes (--max-payload-size)."),
    )
}

fn aborted() -> Refusal {
    Refusal::new(
        StatusCode::BAD_REQUEST,
        "request_body_aborted",
        "The upload ended before the whole request body had arrived.",
    )
}
