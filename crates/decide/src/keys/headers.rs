//! Routing-key headers: the first configured name whose value is usable (000, "Routing-Key Headers").

use super::MAX_KEY_BYTES;

/// The first value that is non-empty, UTF-8 and at most 128 bytes; any other is skipped silently.
pub fn first_valid<'a>(mut values: impl Iterator<Item = Option<&'a [u8]>>) -> Option<&'a str> {
    values.find_map(|value| valid(value?))
}

/// A non-empty ASCII value of any length: what `manual` reads (000, the warning on its headers).
#[must_use]
pub fn ascii(value: &[u8]) -> Option<&str> {
    let ascii = !value.is_empty() && value.is_ascii();
    std::str::from_utf8(value).ok().filter(|_| ascii)
}

fn valid(value: &[u8]) -> Option<&str> {
    if value.is_empty() || value.len() > MAX_KEY_BYTES {
        return None;
    }
    std::str::from_utf8(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first<'a>(values: &[&'a [u8]]) -> Option<&'a str> {
        first_valid(values.iter().map(|v| Some(*v)))
    }

    #[test]
    fn a_bad_value_yields_to_the_next_name() {
        let long = [b'x'; 129];
        for bad in [&b""[..], b"\xc3\x28", b"\xff\xfe", b"ok\x80", &long] {
            assert_eq!(first(&[bad, b"good"]), Some("good"), "{bad:?}");
            assert_eq!(first(&[bad]), None, "{bad:?}");
        }
    }

    #[test]
    fn length_is_counted_in_bytes() {
        assert!(first(&["é".repeat(64).as_bytes()]).is_some());
        assert!(first(&["é".repeat(65).as_bytes()]).is_none());
        assert!(first(&[&[b'a'; 128]]).is_some());
    }

    #[test]
    fn an_absent_name_is_passed_over() {
        assert_eq!(first_valid([None, Some(&b"b"[..])].into_iter()), Some("b"));
    }
}
