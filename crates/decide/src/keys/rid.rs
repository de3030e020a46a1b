//! Lineage of a `rid`: `<base>[_t<digits>][_r<digits>] -> <base>` (000, "Body `rid` Lineage").

use super::MAX_KEY_BYTES;

/// The key a body `rid` gives, or `None` when it is empty or its base exceeds 128 bytes.
#[must_use]
pub fn key(rid: &str) -> Option<&str> {
    let base = strip(rid);
    (!base.is_empty() && base.len() <= MAX_KEY_BYTES).then_some(base)
}

/// Removes one trailing retry suffix, then one trailing turn suffix; the whole text stays when
/// nothing would be left.
#[must_use]
pub fn strip(rid: &str) -> &str {
    let base = without_suffix(without_suffix(rid, b'r'), b't');
    if base.is_empty() { rid } else { base }
}

/// `text` without a final `_<letter><ASCII digits>`.
fn without_suffix(text: &str, letter: u8) -> &str {
    let head = text.trim_end_matches(|c: char| c.is_ascii_digit());
    if head.len() == text.len() {
        return text;
    }
    let mark = [b'_', letter];
    match head.as_bytes().strip_suffix(&mark) {
        Some(base) => text.get(..base.len()).unwrap_or(text),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_table_of_the_document() {
        for (rid, key) in [
            ("conv", "conv"),
            ("conv_t2", "conv"),
            ("conv_t2_r1", "conv"),
            ("conv_r1", "conv"),
            ("conv_t1_t2", "conv_t1"),
            ("conv_r1_t2", "conv_r1"),
            ("conv_t", "conv_t"),
            ("conv_tx1", "conv_tx1"),
            ("conv_T2", "conv_T2"),
            ("under_scored_id", "under_scored_id"),
            ("_t1", "_t1"),
        ] {
            assert_eq!(strip(rid), key, "{rid}");
        }
    }

    #[test]
    fn more_of_the_same_grammar() {
        for (rid, key) in [
            ("b_t0007", "b"),
            ("b_r2_r1", "b_r2"),
            ("b_t1_t2_r3", "b_t1"),
            ("b_t1_r1_t2", "b_t1_r1"),
            ("b_t1_r1_r2", "b_t1_r1"),
            ("b_t1_r", "b_t1_r"),
            ("b-t2", "b-t2"),
            ("b_turn2", "b_turn2"),
            ("b_t2_", "b_t2_"),
            ("b_t1 ", "b_t1 "),
            ("b_t\u{663}", "b_t\u{663}"),
            ("b_t\u{ff12}", "b_t\u{ff12}"),
            ("b__t1", "b_"),
            ("_r9", "_r9"),
            ("_t9_r1", "_t9_r1"),
            ("_r9_t2", "_r9"),
            ("café_t3", "café"),
            ("t5", "t5"),
            ("", ""),
        ] {
            assert_eq!(strip(rid), key, "{rid}");
        }
    }

    #[test]
    fn the_limit_applies_to_the_stripped_key() {
        let base = "a".repeat(128);
        assert_eq!(key(&format!("{base}_t123_r4")), Some(&*base));
        assert_eq!(key(&format!("b{base}_t1")), None);
        assert_eq!(key(""), None);
    }

    proptest! {
        #[test]
        fn every_turn_and_retry_shares_the_key_of_its_base(base in ".{1,40}", turn: u32, retry: u32) {
            let wanted = format!("{base}|");
            for suffix in [format!("_t{turn}"), format!("_r{retry}"), format!("_t{turn}_r{retry}")] {
                let rid = format!("{wanted}{suffix}");
                prop_assert_eq!(strip(&rid), &*wanted);
            }
        }

        #[test]
        fn a_key_is_a_non_empty_prefix(rid in ".{1,60}") {
            prop_assert!(!strip(&rid).is_empty());
            prop_assert!(rid.starts_with(strip(&rid)));
        }
    }
}
