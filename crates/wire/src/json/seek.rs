//! One text out of JSON, read no further than it stands, so that what is cut off behind it, or long,
//! costs nothing.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::Name;

/// The text at this path of fields; the first one, if a field stands twice.
#[must_use]
pub fn text_at(json: &[u8], path: &[&str]) -> Option<String> {
    let mut found = None;
    let mut parser = serde_json::Deserializer::from_slice(json);
    // Finding it ends the reading, which the parser calls an error; so does a text that is cut off.
    let _ = Seek { path, found: &mut found }.deserialize(&mut parser);
    found
}

struct Seek<'s> {
    path: &'s [&'s str],
    found: &'s mut Option<String>,
}

impl<'de> DeserializeSeed<'de> for Seek<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, parser: D) -> Result<(), D::Error> {
        parser.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seek<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(Name(name)) = map.next_key()? {
            match self.path {
                [next, rest @ ..] if *next == name => {
                    map.next_value_seed(Seek { path: rest, found: self.found })?;
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        if !self.path.is_empty() {
            return Ok(());
        }
        *self.found = Some(text.to_owned());
        Err(E::custom("found"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E: serde::de::Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: serde::de::Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: serde::de::Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: serde::de::Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_found_by_its_path_and_nothing_else_is() {
        let at = |json: &str, path: &[&str]| text_at(json.as_bytes(), path);
        let event = r#"{"type":"response.created","n":[1,{"id":"no"}],"o":{"id":"no"},
            "response":{"conversation":{"id":"no"},"x":-1.5e3,"y":null,"z":true,"id":"r\u00e9"}}"#;
        assert_eq!(at(event, &["response", "id"]).as_deref(), Some("ré"));
        assert_eq!(at(event, &["id"]), None);
        assert_eq!(at(event, &["type", "id"]), None);
        for (json, found) in [
            (r#"{"id":"a","id":"b"}"#, Some("a")),
            (r#"{"id":"a","rest":"is cut o"#, Some("a")),
            (r#"{"id":"a"#, None),
            (r#"{"id":7}"#, None),
            (r#"{"id":null}"#, None),
            (r#"{"id":["a"]}"#, None),
            (r#"["id"]"#, None),
            ("", None),
            ("nonsense", None),
        ] {
            assert_eq!(at(json, &["id"]).as_deref(), found, "{json}");
        }
    }
}
