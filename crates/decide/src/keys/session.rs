//! What agents say of their sessions (004): `x-aibrix-session-key`, and two headers of ours that
//! nobody else has, `x-smg-parent-key` and `x-smg-spread`.

/// Longest session key in bytes; a longer one is as good as not sent (004, the note on its length).
pub const MAX_BYTES: usize = 256;
/// Most workers that one key may be spread over.
pub const MAX_SPREAD: usize = 64;

/// A key that may be used: opaque bytes, 1 to 256 of them.
#[must_use]
pub const fn key(value: &[u8]) -> Option<&[u8]> {
    if value.is_empty() || value.len() > MAX_BYTES { None } else { Some(value) }
}

/// Over how many workers a key is to be spread: 2 to 64, anything else is as good as not sent.
#[must_use]
pub fn spread(value: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(value).ok()?;
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let count = text.parse().ok().filter(|_| digits)?;
    (2..=MAX_SPREAD).contains(&count).then_some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_is_counted_in_bytes() {
        for (bytes, used) in [(0, false), (1, true), (255, true), (256, true), (257, false)] {
            assert_eq!(key(&vec![b'k'; bytes]).is_some(), used, "{bytes}");
        }
        assert!(key("é".repeat(128).as_bytes()).is_some());
        assert!(key("é".repeat(129).as_bytes()).is_none());
    }

    #[test]
    fn any_bytes_will_do() {
        for odd in [&b" "[..], b"\xff\xfe", b"a:b:c", b"../../etc/passwd", b"%00"] {
            assert_eq!(key(odd), Some(odd));
        }
    }

    #[test]
    fn a_spread_is_a_small_whole_number_above_one() {
        for (value, count) in [("2", Some(2)), ("64", Some(64)), ("08", Some(8))] {
            assert_eq!(spread(value.as_bytes()), count, "{value}");
        }
        for wrong in ["", "0", "1", "65", "-2", "+2", "2.0", " 2", "two", "99999999999999999999"] {
            assert_eq!(spread(wrong.as_bytes()), None, "{wrong}");
        }
        assert_eq!(spread(b"\xff"), None);
    }
}
