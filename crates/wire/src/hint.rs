//! `x-smg-routing-tokens`: the prompt's token ids, whole or from the front, so that a policy can place
//! a request whose body it never sees.

/// Most ids of a hint.
const MAX_IDS: usize = 512;
/// Longest hint in bytes.
const MAX_BYTES: usize = 4096;

/// The header's name.
pub const ROUTING_TOKENS: &str = "x-smg-routing-tokens";

/// The ids, or `None` when the value is no hint: that is never an error.
#[must_use]
pub fn tokens(value: &[u8]) -> Option<Vec<u32>> {
    if value.len() > MAX_BYTES {
        return None;
    }
    let ids: Vec<u32> = value.split(|byte| *byte == b',').map(id).collect::<Option<_>>()?;
    (ids.len() <= MAX_IDS).then_some(ids)
}

/// Whether a value is a hint, without keeping it.
#[must_use]
pub fn is_valid(value: &[u8]) -> bool {
    tokens(value).is_some()
}

/// Digits only: no sign, no space, nothing empty.
fn id(digits: &[u8]) -> Option<u32> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comma_list_of_u32_is_a_hint() {
        assert_eq!(tokens(b"1,2,3"), Some(vec![1, 2, 3]));
        assert_eq!(tokens(b"007,4294967295"), Some(vec![7, u32::MAX]));
        assert_eq!(tokens(vec!["1"; 512].join(",").as_bytes()).map(|ids| ids.len()), Some(512));
    }

    #[test]
    fn anything_else_is_none() {
        let many = vec!["1"; 513].join(",");
        let long = format!("{},{}", "0".repeat(4090), "1234567");
        for value in [
            "",
            "abc",
            "1,x",
            "1.5",
            "-1",
            "+1",
            "1, 2",
            "1,",
            ",1",
            "1,,2",
            "4294967296",
            &many,
            &long,
        ] {
            assert!(!is_valid(value.as_bytes()), "{value}");
        }
    }
}
