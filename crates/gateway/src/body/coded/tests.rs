use std::cell::Cell;
use std::io::Write as _;
use std::time::Duration;

use flate2::{Compression, GzBuilder};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use super::super::Budget;
use super::*;

fn bounds(bytes: usize, budget: Option<Budget>) -> Bounds {
    Bounds { bytes, time: Duration::from_secs(1), budget }
}

fn packed(plain: &[u8], coding: Coding) -> Vec<u8> {
    match coding {
        Coding::Gzip => {
            let mut encoder = GzBuilder::new().write(Vec::new(), Compression::default());
            encoder.write_all(plain).unwrap();
            encoder.finish().unwrap()
        }
        Coding::Zstd => compress_to_vec(plain, CompressionLevel::Fastest),
    }
}

fn code(coded: &[u8], coding: Coding, bytes: usize) -> Result<usize, &'static str> {
    decode(coded, coding, &bounds(bytes, None), || true).map(|out| out.len()).map_err(|no| no.code)
}

#[test]
fn what_was_packed_is_unpacked_frame_by_frame() {
    let plain: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
    for coding in [Coding::Gzip, Coding::Zstd] {
        let coded = packed(&plain, coding);
        let out = decode(&coded, coding, &bounds(1 << 30, None), || true).unwrap();
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
    let out =
        decode(&coded, Coding::Zstd, &bounds(1 << 30, Some(budget.clone())), || true).unwrap();
    assert_eq!(budget.held(), out.len() as u64 - (64 << 10));
    drop(out);
    assert_eq!(budget.held(), 0);
    let none = decode(&coded, Coding::Zstd, &bounds(1 << 30, Some(Budget::new(1000))), || true);
    assert_eq!(none.unwrap_err().code, "buffer_budget_exhausted");
}

/// A frame to skip (RFC 8878, 3.1.2) with so much in it; there are sixteen numbers for such.
fn skipped(kind: u8, length: u32) -> Vec<u8> {
    let head = [0x50 | kind, 0x2a, 0x4d, 0x18];
    [&head[..], &length.to_le_bytes(), &vec![0x28; length as usize]].concat()
}

#[test]
fn frames_to_skip_are_skipped_wherever_they_stand() {
    let (plain, coding) = (b"{\"messages\":[]}", Coding::Zstd);
    let frame = packed(plain, coding);
    for kind in 0..16 {
        for length in [0, 1, 4, 70_000] {
            let skip = skipped(kind, length);
            for parts in [
                [&*skip, &*frame, b"", b""],
                [&*frame, &*skip, b"", b""],
                [&*skip, &*frame, &*skip, &*skip],
                [&*skip, &*skip, &*frame, b""],
            ] {
                assert_eq!(code(&parts.concat(), coding, 1 << 20), Ok(plain.len()));
            }
            let between = [&*frame, &*skip, &*frame].concat();
            assert_eq!(code(&between, coding, 1 << 20), Ok(2 * plain.len()));
            assert_eq!(code(&skip, coding, 1 << 20), Ok(0), "there is nothing in it");
            let cut = &skip[..skip.len() - 1];
            assert_eq!(code(cut, coding, 1 << 20), Err("invalid_content_encoding"));
            assert_eq!(code(&skip, Coding::Gzip, 1 << 20), Err("invalid_content_encoding"));
        }
    }
    let claimed = [&skipped(0, 0)[..4], &u32::MAX.to_le_bytes(), &frame].concat();
    assert_eq!(code(&claimed, coding, 1 << 20), Err("invalid_content_encoding"));
}

#[test]
fn members_may_have_names_and_extras() {
    let member = |text: &str| {
        let named = GzBuilder::new().filename("name").comment("comment").extra(vec![7; 300]);
        let mut encoder = named.write(Vec::new(), Compression::best());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    let coded = [member("{\"messages\""), packed(b"", Coding::Gzip), member(":[]}")].concat();
    let out = decode(&coded, Coding::Gzip, &bounds(1 << 20, None), || true).unwrap();
    assert_eq!(out, &b"{\"messages\":[]}"[..]);
    for more in [&b"\0"[..], b"{}"] {
        let trailing = [&*coded, more].concat();
        assert_eq!(code(&trailing, Coding::Gzip, 1 << 20), Err("invalid_content_encoding"));
    }
}

/// A frame of blocks with a window of 2^`log` bytes.
fn frame(log: u8, blocks: &[(u32, u32, &[u8])]) -> Vec<u8> {
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, (log - 10) << 3];
    for (at, (kind, size, content)) in blocks.iter().enumerate() {
        let header = size << 3 | kind << 1 | u32::from(at + 1 == blocks.len());
        frame.extend(&header.to_le_bytes()[..3]);
        frame.extend(*content);
    }
    frame
}

#[test]
fn a_window_holds_no_bomb() {
    const RAW: u32 = 0;
    const ONE_BYTE: u32 = 1;
    const COMPRESSED: u32 = 2;
    let coding = Coding::Zstd;
    let block = (ONE_BYTE, 128 << 10, &b"x"[..]);
    assert_eq!(code(&frame(23, &[block; 3]), coding, 1 << 30), Ok(3 * (128 << 10)));
    assert_eq!(code(&frame(23, &[block; 300]), coding, 1 << 30), Err("request_body_too_large"));
    // Nothing comes out of a window before it is full.
    for log in [24, 27, 30, 40, 41] {
        let bomb = frame(log, &[block; 300]);
        assert_eq!(code(&bomb, coding, 1 << 30), Err("invalid_content_encoding"), "{log}");
    }
    // A block may not become larger than 128 KiB; this one repeats 65,539 bytes at a time.
    for (repeats, code_of) in [(1_u8, Ok(16 + 65_539)), (2, Err("invalid_content_encoding"))] {
        let mut content = vec![0, repeats, 0x54, 0, 0, 52];
        content.extend(vec![0; 2 * usize::from(repeats)]);
        content.push(1);
        let size = u32::try_from(content.len()).unwrap();
        let bomb = frame(23, &[(RAW, 16, &[b'x'; 16]), (COMPRESSED, size, &content)]);
        assert_eq!(code(&bomb, coding, 1 << 30), code_of, "{repeats}");
    }
}

#[test]
fn what_does_not_add_up_is_refused() {
    let plain = b"{\"messages\":[]}";
    let sound = packed(plain, Coding::Zstd);
    assert_eq!(sound[4] & 4, 4, "it has a checksum");
    for at in sound.len() - 4 - plain.len()..sound.len() {
        let mut broken = sound.clone();
        broken[at] ^= 1;
        assert_eq!(code(&broken, Coding::Zstd, 1 << 20), Err("invalid_content_encoding"), "{at}");
    }
    // One segment, of a size that is said.
    let said = |size: u8| {
        let block = [&[0x28, 0xb5, 0x2f, 0xfd, 0x20, size, 3 << 3 | 1, 0, 0][..], b"abc"].concat();
        code(&block, Coding::Zstd, 1 << 20)
    };
    assert_eq!(said(3), Ok(3));
    assert_eq!(said(4), Err("invalid_content_encoding"));
}

#[test]
fn it_stops_with_the_next_piece_when_nobody_wants_it_any_more() {
    let plain: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
    for coding in [Coding::Gzip, Coding::Zstd] {
        let coded = [packed(&plain, coding), packed(&plain, coding)].concat();
        let asked = Cell::new(0);
        let budget = Budget::new(1 << 30);
        let at_most = |pieces: usize| {
            let (asked, budget) = (&asked, &budget);
            move || {
                assert!(budget.held() <= (asked.get() as u64 + 1) * 2 * STEP as u64);
                asked.set(asked.get() + 1);
                asked.get() < pieces
            }
        };
        let bounds = bounds(1 << 30, Some(budget.clone()));
        let all = decode(&coded, coding, &bounds, at_most(usize::MAX)).unwrap();
        assert_eq!(all.len(), 2 * plain.len());
        drop(all);
        let pieces = asked.replace(0);
        assert!(pieces >= 2 * plain.len() / (2 * STEP), "{coding:?}: {pieces}");
        for stop in [1, 2, pieces / 2, pieces] {
            let stopped = decode(&coded, coding, &bounds, at_most(stop)).unwrap_err();
            assert_eq!((stopped.code, asked.replace(0)), ("request_body_aborted", stop));
            assert_eq!(budget.held(), 0, "what was decoded is gone");
        }
    }
    let skips = skipped(0, 0).repeat(10);
    let none = decode(&skips, Coding::Zstd, &bounds(99, None), || false);
    assert_eq!(none.unwrap_err().code, "request_body_aborted");
}

#[test]
fn whatever_comes_decodes_within_bounds_or_is_refused() {
    const MOST: usize = 1 << 16;
    let nothing = [packed(b"", Coding::Gzip), skipped(7, 3)];
    let far = Cell::new(0);
    let target = |input: &[u8]| {
        for (coding, nothing) in [Coding::Gzip, Coding::Zstd].into_iter().zip(&nothing) {
            let decode = |coded: &[u8]| decode(coded, coding, &bounds(MOST, None), || true);
            let Ok(out) = decode(input) else { continue };
            far.set(far.get() + 1);
            assert!(out.len() <= MOST);
            for around in [[nothing, input].concat(), [input, nothing].concat()] {
                assert_eq!(decode(&around).unwrap(), out, "nothing more changes nothing");
            }
            let twice = decode(&[input, input].concat()).map_err(|no| no.code);
            if 2 * out.len() <= MOST {
                assert_eq!(twice.unwrap(), out.repeat(2));
            } else {
                assert_eq!(twice.unwrap_err(), "request_body_too_large");
            }
        }
    };
    fuzz::run("coded", 2000, target).unwrap();
    // The corpus, which others have packed, and some of what comes of it.
    assert!(far.get() > 10, "{far:?}");
}
