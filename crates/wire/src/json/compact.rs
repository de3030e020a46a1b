//! A body without what stands between its tokens (001, "What Changes for a Streamed Request": a
//! buffered body reaches its worker serialized anew). Tokens stay byte for byte.

use super::{after_string, split_at_quote};

/// The valid JSON text without whitespace between tokens; `None` if there is none.
#[must_use]
pub fn compact(json: &[u8]) -> Option<Vec<u8>> {
    let mut out: Option<Vec<u8>> = None;
    let mut rest = json;
    while let Some((inside, outside)) = split_at_quote(rest) {
        let at = json.len() - rest.len();
        if out.is_none() && outside.iter().any(is_space) {
            let mut fresh = Vec::with_capacity(json.len());
            fresh.extend_from_slice(json.get(..at).unwrap_or_default());
            out = Some(fresh);
        }
        let next = inside.map_or(&[][..], after_string);
        if let Some(out) = &mut out {
            out.extend(outside.iter().filter(|byte| !is_space(byte)));
            let string = rest.get(outside.len()..rest.len() - next.len()).unwrap_or_default();
            out.extend_from_slice(string);
        }
        rest = next;
    }
    out
}

/// What JSON knows as whitespace.
const fn is_space(byte: &u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(json: &str) -> Option<String> {
        compact(json.as_bytes()).map(|out| String::from_utf8(out).unwrap())
    }

    #[test]
    fn only_what_stands_between_tokens_goes() {
        for (json, out) in [
            (r#"{"a":1}"#, None),
            (r#"{"a b":"c \" d\\"}"#, None),
            (
                r#" {"a" : "b  c" , "d":[1.50, 2e+3 ,"\" , "] }  "#,
                Some(r#"{"a":"b  c","d":[1.50,2e+3,"\" , "]}"#),
            ),
            ("{\n\t\"a\":\r\n null}", Some(r#"{"a":null}"#)),
            ("", None),
        ] {
            assert_eq!(text(json).as_deref(), out, "{json}");
        }
    }

    proptest! {
        #[test]
        fn it_means_the_same_and_is_done_once(keys in prop::collection::vec((".{0,8}", ".{0,8}"), 0..6)) {
            let value = serde_json::json!({"list": keys, "n": 1.5, "deep": {"x": [null, true]}});
            let pretty = serde_json::to_string_pretty(&value).unwrap();
            let out = text(&pretty).unwrap();
            prop_assert_eq!(&out, &serde_json::to_string(&value).unwrap());
            prop_assert_eq!(text(&out), None);
        }
    }
}
