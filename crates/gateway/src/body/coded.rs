//! A compressed body, decoded within bounds: a small upload must not become a large one.

use std::io::{self, Read};

use bytes::Bytes;
use flate2::bufread::GzDecoder;
use http::StatusCode;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use smg_wire::coding::Coding;
use smg_wire::error::Refusal;

use super::budget::Charge;
use super::{Bounds, aborted, no_room, too_large};
use crate::tasks::{self, Wanted};

/// How many times as long as it came a body may become, beyond [`FREE_BYTES`]. Text of a chat shrinks
/// to a tenth at best; what shrinks more was made to.
const MAX_RATIO: usize = 100;
/// Decoded bytes that no ratio is asked of: a short body that repeats itself harms nobody.
const FREE_BYTES: usize = 1 << 20;
/// Frames, or members, of one body. Empty ones cost work and give nothing that a bound on size would see.
const MAX_FRAMES: usize = 1024;
/// Largest window of a zstd frame (RFC 9659): so much is decoded before any of it comes out.
const MAX_WINDOW: u64 = 8 << 20;
/// Bodies from this size are decoded off the threads that serve requests.
const LONG: usize = 64 << 10;
/// Decoded at a time, of zstd a block, which has at most twice that (RFC 8878, 3.1.1.2.4).
const STEP: usize = 64 << 10;

/// Decodes a body whole.
///
/// # Errors
/// When it is not what it says, or becomes too large.
pub(super) async fn decoded(
    body: Bytes,
    coding: Coding,
    bounds: &Bounds,
) -> Result<Bytes, Refusal> {
    if body.len() < LONG {
        return decode(&body, coding, bounds, || true);
    }
    let bounds = bounds.clone();
    let decoding = move |wanted: &Wanted| decode(&body, coding, &bounds, || wanted.still());
    tasks::blocking_while_wanted(decoding).await.unwrap_or_else(|| Err(broken()))
}

/// Decodes a body, which consists of frames (RFC 8878, 3) or members (RFC 1952, 2.2), for as long as
/// it is `wanted`.
fn decode(
    body: &[u8],
    coding: Coding,
    bounds: &Bounds,
    wanted: impl Fn() -> bool,
) -> Result<Bytes, Refusal> {
    // What is skipped counts as what came: it was paid for by sending it.
    let most = FREE_BYTES.saturating_add(body.len().saturating_mul(MAX_RATIO)).min(bounds.bytes);
    let charge = Charge::none(bounds.budget.clone());
    let mut out = Growing { bytes: Vec::new(), most, charge, bounds, wanted };
    let mut rest = body;
    for _ in 0..MAX_FRAMES {
        match coding {
            _ if rest.is_empty() => break,
            Coding::Gzip => out.member(&mut rest)?,
            Coding::Zstd => out.frame(&mut rest)?,
        }
    }
    if !rest.is_empty() {
        return Err(broken());
    }
    Ok(out.charge.seal(out.bytes))
}

/// What has been decoded so far.
struct Growing<'a, W> {
    bytes: Vec<u8>,
    most: usize,
    charge: Charge,
    bounds: &'a Bounds,
    wanted: W,
}

impl<W: Fn() -> bool> Growing<'_, W> {
    /// Appends what is in the first gzip member of `rest`, and takes it off.
    fn member(&mut self, rest: &mut &[u8]) -> Result<(), Refusal> {
        let mut member = GzDecoder::new(rest);
        loop {
            let before = self.bytes.len();
            let step = (&mut member).take(STEP as u64).read_to_end(&mut self.bytes);
            step.map_err(|_: io::Error| broken())?;
            self.check()?;
            if self.bytes.len() == before {
                return Ok(());
            }
        }
    }

    /// The same with the first zstd frame, which may be one to skip (RFC 8878, 3.1.2).
    fn frame(&mut self, rest: &mut &[u8]) -> Result<(), Refusal> {
        let mut frame = FrameDecoder::new();
        frame.set_max_window_size(MAX_WINDOW);
        match frame.init(&mut *rest) {
            Ok(()) => {}
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                length,
                ..
            })) => {
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                *rest = rest.get(length..).ok_or_else(broken)?;
                return self.check();
            }
            Err(_) => return Err(broken()),
        }
        let before = self.bytes.len();
        while !frame.is_finished() {
            let step = frame.decode_blocks(&mut *rest, BlockDecodingStrategy::UptoBlocks(1));
            step.map_err(|_| broken())?;
            frame.collect_to_writer(&mut self.bytes).map_err(|_| broken())?;
            self.check()?;
        }
        let said = frame.get_checksum_from_data();
        let sound = said.is_none() || said == frame.get_calculated_checksum();
        // 0 also if it does not say.
        let size = frame.content_size();
        let whole = size == 0 || size == (self.bytes.len() - before) as u64;
        if sound && whole { Ok(()) } else { Err(broken()) }
    }

    /// Whether it may go on.
    fn check(&mut self) -> Result<(), Refusal> {
        if self.bytes.len() > self.most {
            return Err(self.too_much());
        }
        if !self.charge.grow(self.bytes.len()) {
            return Err(no_room());
        }
        // Nobody reads this.
        if (self.wanted)() { Ok(()) } else { Err(aborted()) }
    }

    fn too_much(&self) -> Refusal {
        if self.bytes.len() > self.bounds.bytes {
            return too_large(self.bounds.bytes);
        }
        let what = format!("The request body decodes to more than {MAX_RATIO} times its size.");
        Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "request_body_too_large", what)
    }
}

/// Nobody here can decode it.
pub(super) fn unknown() -> Refusal {
    Refusal::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "unsupported_content_encoding",
        "A request body may be compressed by gzip or by zstd, once.",
    )
}

fn broken() -> Refusal {
    Refusal::new(
        StatusCode::BAD_REQUEST,
        "invalid_content_encoding",
        "The request body is not what its Content-Encoding says.",
    )
}

#[cfg(test)]
mod tests;
