//! Edits of a request body without a JSON tree (001, "Edits without a JSON tree"): everything but
//! the edited fields stays byte for byte as the client wrote it.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::Name;

/// A top-level field and the value it shall have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edit<'a> {
    /// The field's name, unescaped.
    pub name: &'a str,
    /// The value as JSON text.
    pub value: &'a str,
}

/// The body with these fields set: a field that is there gets its new value where it stands, the
/// last one of several (which is the one that engines read); a missing one is appended. `None` when
/// the body is no JSON object, which [`super::Fields::read`] would have refused.
#[must_use]
pub fn set(body: &[u8], edits: &[Edit<'_>]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(body).ok()?;
    let mut parser = serde_json::Deserializer::from_str(text);
    let Found { spans, empty } = parser.deserialize_any(Finder { text, edits }).ok()?;
    parser.end().ok()?;
    let end = text.rfind('}')?;
    let mut pieces: Vec<(Range<usize>, Cow<'_, str>)> = Vec::with_capacity(edits.len());
    let mut comma = if empty { "" } else { "," };
    for (edit, span) in edits.iter().zip(spans) {
        if let Some(span) = span {
            pieces.push((span, edit.value.into()));
        } else {
            let name = serde_json::to_string(edit.name).ok()?;
            pieces.push((end..end, format!("{comma}{name}:{}", edit.value).into()));
            comma = ",";
        }
    }
    // Stable: what is appended stays in the order of the edits.
    pieces.sort_by_key(|(span, _)| span.start);
    let grown: usize = pieces.iter().map(|(_, new)| new.len()).sum();
    let mut out = Vec::with_capacity(text.len() + grown);
    let mut from = 0;
    for (span, new) in pieces {
        out.extend_from_slice(text.get(from..span.start)?.as_bytes());
        out.extend_from_slice(new.as_bytes());
        from = span.end;
    }
    out.extend_from_slice(text.get(from..)?.as_bytes());
    Some(out)
}

/// Text as JSON.
#[must_use]
pub fn quoted(text: &str) -> String {
    // A string of Unicode text can always be written.
    serde_json::to_string(text).unwrap_or_default()
}

/// Where the values stand, in the order of the edits.
struct Found {
    spans: Vec<Option<Range<usize>>>,
    empty: bool,
}

struct Finder<'a, 'e> {
    text: &'a str,
    edits: &'e [Edit<'e>],
}

impl<'de> Visitor<'de> for Finder<'de, '_> {
    type Value = Found;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Found, A::Error> {
        let mut found = Found { spans: vec![None; self.edits.len()], empty: true };
        while let Some(Name(name)) = map.next_key()? {
            found.empty = false;
            let at = self.edits.iter().position(|edit| edit.name == name);
            match at.and_then(|at| found.spans.get_mut(at)) {
                Some(span) => {
                    let raw = map.next_value::<&RawValue>()?.get();
                    // A raw value borrows from the text, so that the difference of addresses is its
                    // place there.
                    let start = raw.as_ptr().addr().wrapping_sub(self.text.as_ptr().addr());
                    *span = Some(start..start + raw.len());
                }
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Map, Value};

    fn spliced(body: &str, edits: &[(&str, &str)]) -> String {
        let edits: Vec<_> = edits.iter().map(|(name, value)| Edit { name, value }).collect();
        String::from_utf8(set(body.as_bytes(), &edits).unwrap()).unwrap()
    }

    #[test]
    fn a_field_is_replaced_where_it_stands_and_appended_where_it_is_missing() {
        for (body, edits, wanted) in [
            (r#"{"model":"a","x":1.10}"#, &[("model", "\"b\"")][..], r#"{"model":"b","x":1.10}"#),
            (" {\"x\" : [1 , 2] } \n", &[("r", "3")], " {\"x\" : [1 , 2] ,\"r\":3} \n"),
            ("{ }", &[("r", "3"), ("s", "4")], "{ \"r\":3,\"s\":4}"),
            (r#"{"x":{"r":1}}"#, &[("r", "3")], r#"{"x":{"r":1},"r":3}"#),
            (r#"{"s":0,"r":{"a":[]},"t":0}"#, &[("r", "3"), ("s", "4")], r#"{"s":4,"r":3,"t":0}"#),
            (r#"{"m\u006fdel" : "a" }"#, &[("model", "\"b\"")], r#"{"m\u006fdel" : "b" }"#),
            (r#"{"x":1}"#, &[], r#"{"x":1}"#),
        ] {
            assert_eq!(spliced(body, edits), wanted);
        }
    }

    #[test]
    fn of_a_repeated_field_the_last_one_is_replaced() {
        let body = r#"{"r":1,"r":2,"x":"}"}"#;
        assert_eq!(spliced(body, &[("r", "3")]), r#"{"r":1,"r":3,"x":"}"}"#);
    }

    #[test]
    fn what_is_no_object_stays_what_it_is() {
        for body in [&b"[]"[..], b"1", b"", b"{", b"{}}", b"{\"a\":\xff}"] {
            assert_eq!(set(body, &[Edit { name: "r", value: "3" }]), None);
        }
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[ -~é\"\\\\]{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::hash_map("[a-c}\"]{0,2}", inner, 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn agrees_with_the_full_parser(
            fields in prop::collection::vec(("[a-c}\"]{0,2}", json()), 0..5),
            edits in prop::collection::hash_map("[a-c}\"]{0,2}", json(), 0..3),
            space in "[ \n]{0,2}",
        ) {
            // Fields as they stand, duplicates among them.
            let written: Vec<_> =
                fields.iter().map(|(name, value)| format!("{space}{}{space}:{value}", quoted(name))).collect();
            let body = format!("{space}{{{}{space}}}{space}", written.join(","));
            let mut wanted: Map<String, Value> = fields.into_iter().collect();
            let texts: Vec<_> =
                edits.iter().map(|(name, value)| (name.as_str(), value.to_string())).collect();
            let edited: Vec<_> = texts.iter().map(|(name, value)| Edit { name, value }).collect();
            wanted.extend(edits.clone());
            let out = set(body.as_bytes(), &edited).unwrap();
            prop_assert_eq!(serde_json::from_slice::<Map<String, Value>>(&out).unwrap(), wanted);
        }

        #[test]
        fn any_bytes_are_an_answer(body in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = set(&body, &[Edit { name: "a", value: "1" }]);
        }
    }
}
