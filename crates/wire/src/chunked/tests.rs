use proptest::prelude::*;

use super::*;

/// What a body carries, and how much of these bytes it is; `None` when it is malformed or not over.
fn read(pieces: &[&[u8]]) -> Option<(Vec<u8>, usize)> {
    let (mut decoder, mut out, mut taken) = (Decoder::default(), Vec::new(), 0);
    for piece in pieces {
        taken += decoder.feed(piece, &mut out).ok()?;
    }
    decoder.is_over().then_some((out, taken))
}

#[test]
fn chunks_are_written_as_they_are_read() {
    let mut out = Vec::new();
    for data in [&[b'x'; 1][..], &[b'y'; 15], &[b'z'; 16], &[b'a'; 255], &[b'b'; 4096]] {
        out.clear();
        write(data, &mut out);
        let told = [format!("{:x}\r\n", data.len()).as_bytes(), data, b"\r\n"].concat();
        assert_eq!(out, told);
    }
    out.clear();
    write(b"", &mut out);
    assert_eq!(out, b"0\r\n\r\n");
}

#[test]
fn what_is_read_however_it_is_cut() {
    for (body, behind, told) in [
        ("0\r\n\r\n", "", ""),
        ("5\r\nhello\r\n0\r\n\r\n", "HTTP/1.1", "hello"),
        ("5\r\nhello\r\n1\r\n!\r\n0\r\n\r\n", "", "hello!"),
        ("00a\r\n0123456789\r\n0000\r\n\r\n", "0\r\n\r\n", "0123456789"),
        ("A;name=\"value\"\r\n0123456789\r\n0 ;last\r\n\r\n", "", "0123456789"),
        ("3 \t\r\na\r\n\r\n0\r\nx-sum: 1\r\ny: 2\r\n\r\n", "\r\n", "a\r\n"),
    ] {
        let all = [body, behind].concat();
        for cut in 0..=all.len() {
            let (before, after) = all.as_bytes().split_at(cut);
            let seen = read(&[before, after]);
            assert_eq!(seen, Some((told.into(), body.len())), "{all:?} cut at {cut}");
        }
    }
}

#[test]
fn what_is_no_chunk_is_refused() {
    for body in [
        "\r\n",
        "x\r\n",
        "-1\r\n",
        "0x1\r\n",
        " 1\r\na\r\n",
        "1\na\r\n",
        "1\r\nab\r\n",
        "1\r\na\n",
        "1\r\na\rb",
        "1 1\r\n",
        "1;a\nb\r\n",
        "1;a\0\r\n",
        "1\rx",
        "10000000000000000\r\n",
        "0\r\n\n",
        "0\r\n\rx",
        "0\r\na: b\n",
        "0\r\na: b\rc",
    ] {
        let mut out = Vec::new();
        assert_eq!(Decoder::default().feed(body.as_bytes(), &mut out), Err(Malformed), "{body:?}");
    }
    for endless in ["1;", "1 ", "0\r\na"] {
        let body = format!("{endless}{}", endless[endless.len() - 1..].repeat(MAX_IGNORED + 1));
        assert_eq!(Decoder::default().feed(body.as_bytes(), &mut Vec::new()), Err(Malformed));
    }
}

#[test]
fn half_a_body_is_not_over() {
    let whole = "2\r\nab\r\n0\r\na: b\r\n\r\n";
    for end in 0..whole.len() {
        assert_eq!(read(&[&whole.as_bytes()[..end]]), None, "{:?}", &whole[..end]);
    }
}

proptest! {
    /// What was written is read again, wherever it is cut.
    #[test]
    fn read_is_the_inverse_of_write(
        chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..600), 0..8),
        step in 1_usize..700,
        behind in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        let mut body = Vec::new();
        chunks.iter().for_each(|chunk| write(chunk, &mut body));
        write(b"", &mut body);
        let length = body.len();
        body.extend(behind);
        let pieces: Vec<_> = body.chunks(step).collect();
        prop_assert_eq!(read(&pieces), Some((chunks.concat(), length)));
    }

    /// Any bytes mean the same in one piece and in single bytes.
    #[test]
    fn cuts_change_nothing(bytes in "[0-2a;\r\n x]{0,40}") {
        let single: Vec<_> = bytes.as_bytes().chunks(1).collect();
        prop_assert_eq!(read(&single), read(&[bytes.as_bytes()]));
    }
}
