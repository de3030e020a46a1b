//! A compressed body, decoded within bounds: a small upload must not become a large one.

use std::io::{self, Read};

use bytes::Bytes;
use flate2::bufread::GzDecoder;
use http::StatusCode;
use ruzstd::decoding::StreamingDecoder;
use smg_wire::coding::Coding;
use smg_wire::error::Refusal;

use super::budget::Charge;
use super::{Bounds, no_room, too_large};
use crate::tasks;

/// How many times as long as it came a body may become, beyond [`FREE_BYTES`]. Text of a chat shrinks
/// to a tenth at best; what shrinks more was made to.
const MAX_RATIO: usize = 100;
/// Decoded bytes that no ratio is asked of: a short body that repeats itself harms nobody.
const FREE_BYTES: usize = 1 << 20;
/// Frames, or members, of one body. Empty ones cost work and give nothing that a bound on size would see.
const MAX_FRAMES: usize = 1024;
/// Bodies from this size are decoded off the threads that serve requests.
const LONG: usize = 64 << 10;
/// Decoded at a time.
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
        return decode(&body, coding, bounds);
    }
    let bounds = bounds.clone();
    let decoding = move || decode(&body, coding, &bounds);
    tasks::blocking(decoding).await.unwrap_or_else(|| Err(broken()))
}

fn decode(body: &[u8], coding: Coding, bounds: &Bounds) -> Result<Bytes, Refusal> {
    let most = FREE_BYTES.saturating_add(body.len().saturating_mul(MAX_RATIO)).min(bounds.bytes);
    let mut out = Growing { most, ..Growing::new(bounds) };
    let mut rest = body;
    for _ in 0..MAX_FRAMES {
        // A decoder reads one frame, and there may be several.
        match coding {
            _ if rest.is_empty() => break,
            Coding::Gzip => out.fill(GzDecoder::new(&mut rest))?,
            Coding::Zstd => out.fill(StreamingDecoder::new(&mut rest).map_err(|_| broken())?)?,
        }
    }
    if !rest.is_empty() {
        return Err(broken());
    }
    Ok(out.charge.seal(out.bytes))
}

/// What has been decoded so far.
struct Growing<'a> {
    bytes: Vec<u8>,
    most: usize,
    charge: Charge,
    bounds: &'a Bounds,
}

impl<'a> Growing<'a> {
    fn new(bounds: &'a Bounds) -> Self {
        let charge = Charge::none(bounds.budget.clone());
        Self { bytes: Vec::new(), most: bounds.bytes, charge, bounds }
    }

    /// Appends all that comes of `source`.
    fn fill(&mut self, mut source: impl Read) -> Result<(), Refusal> {
        loop {
            let step = (&mut source).take(STEP as u64).read_to_end(&mut self.bytes);
            let read = step.map_err(|_: io::Error| broken())?;
            if self.bytes.len() > self.most {
                return Err(self.too_much());
            }
            if !self.charge.grow(self.bytes.len()) {
                return Err(no_room());
            }
            if read == 0 {
                return Ok(());
            }
        }
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
mod tests {
    use std::io::Write as _;
    use std::time::Duration;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::super::Budget;
    use super::*;

    fn bounds(bytes: usize, budget: Option<Budget>) -> Bounds {
        Bounds { bytes, time: Duration::from_secs(1), budget }
    }

    fn packed(plain: &[u8], coding: Coding) -> Vec<u8> {
        match coding {
            Coding::Gzip => {
                let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
                encoder.write_all(plain).unwrap();
                encoder.finish().unwrap()
            }
            Coding::Zstd => compress_to_vec(plain, CompressionLevel::Fastest),
        }
    }

    fn code(coded: &[u8], coding: Coding, bytes: usize) -> Result<usize, &'static str> {
        decode(coded, coding, &bounds(bytes, None)).map(|out| out.len()).map_err(|no| no.code)
    }

    #[test]
    fn what_was_packed_is_unpacked_frame_by_frame() {
        let plain: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
        for coding in [Coding::Gzip, Coding::Zstd] {
            let coded = packed(&plain, coding);
            let out = decode(&coded, coding, &bounds(1 << 30, None)).unwrap();
            assert!(out == plain, "{coding:?}");
            let twice = [&*coded, &*coded].concat();
            assert_eq!(code(&twice, coding, 1 << 30), Ok(2 * plain.len()), "{coding:?}");
        }
    }

    #[test]
    fn a_bomb_does_not_go_off() {
        let plain = vec![b'x'; 30 << 20];
        for coding in [Coding::Gzip, Coding::Zstd] {
            let bomb = packed(&plain, coding);
            assert_eq!(code(&bomb, coding, 1 << 30), Err("request_body_too_large"), "{coding:?}");
            let small = packed(&plain[..FREE_BYTES], coding);
            assert_eq!(code(&small, coding, 1 << 30), Ok(FREE_BYTES), "{coding:?}");
            assert_eq!(code(&small, coding, 1 << 19), Err("request_body_too_large"), "{coding:?}");
        }
    }

    #[test]
    fn what_is_cut_off_or_broken_is_refused() {
        for coding in [Coding::Gzip, Coding::Zstd] {
            let coded = packed(b"{\"messages\":[]}", coding);
            for cut in 1..coded.len() {
                let cut = code(&coded[..cut], coding, 1 << 20);
                assert_eq!(cut, Err("invalid_content_encoding"), "{coding:?}");
            }
            assert_eq!(code(b"not packed", coding, 99), Err("invalid_content_encoding"));
        }
    }

    #[test]
    fn frames_without_end_are_refused() {
        for coding in [Coding::Gzip, Coding::Zstd] {
            let empty = packed(b"", coding);
            assert_eq!(code(&empty.repeat(MAX_FRAMES), coding, 99), Ok(0), "{coding:?}");
            let more = code(&empty.repeat(MAX_FRAMES + 1), coding, 99);
            assert_eq!(more, Err("invalid_content_encoding"), "{coding:?}");
        }
    }

    #[test]
    fn what_it_decodes_to_is_charged() {
        let plain: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
        let coded = packed(&plain, Coding::Zstd);
        let budget = Budget::new(1 << 20);
        let out = decode(&coded, Coding::Zstd, &bounds(1 << 30, Some(budget.clone()))).unwrap();
        assert_eq!(budget.held(), out.len() as u64 - (64 << 10));
        drop(out);
        assert_eq!(budget.held(), 0);
        let none = decode(&coded, Coding::Zstd, &bounds(1 << 30, Some(Budget::new(1000))));
        assert_eq!(none.unwrap_err().code, "buffer_budget_exhausted");
    }
}
