//! What a request body says, read in one pass over its bytes without building a tree.
//!
//! The whole text is validated, so that nothing broken reaches a worker, and of a key that stands
//! twice the last one counts, as it does in the engines' parsers.

use std::borrow::Cow;
use std::fmt;

use memchr::memchr2_iter;
use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::route::Rid;

pub mod compact;
mod first;
mod scan;
pub mod seek;
pub mod splice;

pub(crate) use first::First;

/// Deepest nesting of objects and arrays that is accepted; engines' parsers recurse.
pub const MAX_DEPTH: usize = 128;

/// The top-level fields that routing looks at, as raw JSON text.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fields<'a> {
    model: Option<&'a str>,
    rid: Option<&'a str>,
    stream: Option<&'a str>,
    previous_response: Option<&'a str>,
    /// Raw text of `system` and of the fields that may hold the prompt, by [`PROMPT_FIELDS`].
    prompt: [Option<&'a str>; PROMPT_FIELDS.len()],
}

/// Fields that hold what an engine reads, on one route or another.
const PROMPT_FIELDS: [&str; 8] =
    ["messages", "system", "prompt", "text", "input_ids", "input_embeds", "input", "query"];

/// Why a body is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bad {
    /// Not UTF-8.
    Encoding,
    /// Nested deeper than [`MAX_DEPTH`].
    TooDeep,
    /// Not JSON; the parser's own words, with line and column.
    Syntax(String),
    /// JSON, but no object.
    NotAnObject,
    /// A field the route needs is missing or null; where one of several would do, the first.
    Missing(&'static str),
    /// `model` is there, but no string.
    ModelNotText,
    /// Not a whole multipart form.
    NotAForm,
}

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Encoding => f.write_str("The request body is not valid UTF-8."),
            Self::TooDeep => {
                write!(f, "The request body is nested deeper than {MAX_DEPTH} levels.")
            }
            Self::Syntax(why) => write!(f, "The request body is not valid JSON: {why}."),
            Self::NotAnObject => f.write_str("The request body must be a JSON object."),
            Self::Missing(field) => write!(f, "The field '{field}' is required."),
            Self::ModelNotText => f.write_str("The field 'model' must be a string."),
            Self::NotAForm => {
                f.write_str("The request body must be a whole multipart/form-data form.")
            }
        }
    }
}

impl Bad {
    /// The `X-SMG-Error-Code`.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Encoding | Self::TooDeep | Self::Syntax(_) => "invalid_json",
            Self::NotAnObject | Self::ModelNotText => "invalid_type",
            Self::Missing(_) => "missing_required_parameter",
            Self::NotAForm => "invalid_form",
        }
    }

    /// The field at fault, for the error's `param`.
    #[must_use]
    pub const fn param(&self) -> Option<&'static str> {
        match self {
            Self::Missing(field) => Some(field),
            Self::ModelNotText => Some("model"),
            _ => None,
        }
    }
}

impl<'a> Fields<'a> {
    /// Reads a body. Of the fields named by `required`, one must be there and not null.
    ///
    /// # Errors
    /// When the body is not one whole JSON object of sane depth, or lacks the field.
    pub fn read(body: &'a [u8], required: &[&'static str]) -> Result<Self, Bad> {
        let text = std::str::from_utf8(body).map_err(|_| Bad::Encoding)?;
        let mut fields = Self::default();
        let scanned = scan::object(text, |name, raw| {
            if let Some(slot) = fields.slot(name) {
                *slot = Some(raw);
            }
        });
        if scanned.is_none() {
            fields = Self::parse(text)?;
        }
        match required.first() {
            Some(first) if !required.iter().any(|name| fields.prompt_field(name).is_some()) => {
                Err(Bad::Missing(first))
            }
            _ => Ok(fields),
        }
    }

    /// Has the parser judge it.
    fn parse(text: &'a str) -> Result<Self, Bad> {
        if too_deep(text.as_bytes()) {
            return Err(Bad::TooDeep);
        }
        let mut parser = serde_json::Deserializer::from_str(text);
        let fields = parser.deserialize_any(Reader).map_err(|e| refused(&e, text))?;
        parser.end().map_err(|e| Bad::Syntax(e.to_string()))?;
        Ok(fields)
    }

    /// Where a field of this name is kept, if it is one that routing looks at.
    fn slot(&mut self, name: &str) -> Option<&mut Option<&'a str>> {
        match name {
            "model" => Some(&mut self.model),
            "rid" => Some(&mut self.rid),
            "stream" => Some(&mut self.stream),
            "previous_response_id" => Some(&mut self.previous_response),
            name => {
                let at = PROMPT_FIELDS.iter().position(|known| *known == name)?;
                self.prompt.get_mut(at)
            }
        }
    }

    /// The raw JSON of one of the fields that may hold a prompt; `None` when absent or null.
    pub(crate) fn prompt_field(&self, name: &str) -> Option<&'a str> {
        let at = PROMPT_FIELDS.iter().position(|known| *known == name)?;
        self.prompt.get(at).copied().flatten().filter(|raw| *raw != "null")
    }

    /// The model, if one is named.
    ///
    /// # Errors
    /// When the field is neither a string nor null.
    pub fn model(&self) -> Result<Option<Cow<'a, str>>, Bad> {
        match self.model.filter(|raw| *raw != "null") {
            None => Ok(None),
            Some(raw) => text(raw).map(Some).ok_or(Bad::ModelNotText),
        }
    }

    /// The `rid` where the route has one, if it is a string; any other type is no key and the
    /// worker's to judge.
    #[must_use]
    pub fn rid(&self, at: Rid) -> Option<Cow<'a, str>> {
        let raw = self.rid?;
        match at {
            Rid::None => None,
            Rid::First if raw.starts_with('[') => first_text(raw),
            Rid::Text | Rid::First => text(raw),
        }
    }

    /// The response that this one goes on from (`/v1/responses`).
    #[must_use]
    pub fn previous_response(&self) -> Option<Cow<'a, str>> {
        self.previous_response.and_then(text)
    }

    /// Whether the client asks for a stream.
    #[must_use]
    pub fn stream(&self) -> bool {
        self.stream == Some("true")
    }
}

/// The text of a raw JSON string; `None` for any other value, and for text that is no Unicode.
fn text(raw: &str) -> Option<Cow<'_, str>> {
    let inner = raw.strip_prefix('"')?.strip_suffix('"')?;
    if memchr::memchr(b'\\', inner.as_bytes()).is_none() {
        return Some(Cow::Borrowed(inner));
    }
    serde_json::from_str(raw).ok().map(Cow::Owned)
}

/// The first item of a raw JSON list, if that is a string.
fn first_text(raw: &str) -> Option<Cow<'_, str>> {
    let First(items) = serde_json::from_str::<First<&RawValue, 1>>(raw).ok()?;
    text(items.first()?.get())
}

/// Whether brackets outside strings nest deeper than [`MAX_DEPTH`]. Strings are skipped at memory
/// speed, so a body of few long strings costs next to nothing.
fn too_deep(body: &[u8]) -> bool {
    let mut depth = 0_usize;
    let mut rest = body;
    while let Some((quote, outside)) = split_at_quote(rest) {
        if !track(outside, &mut depth) {
            return true;
        }
        let Some(quote) = quote else { return false };
        rest = after_string(quote);
    }
    false
}

/// The bytes before the next quote, and those behind it if there is one.
fn split_at_quote(rest: &[u8]) -> Option<(Option<&[u8]>, &[u8])> {
    if rest.is_empty() {
        return None;
    }
    match memchr::memchr(b'"', rest).and_then(|at| rest.split_at_checked(at)) {
        Some((outside, quoted)) => Some((quoted.get(1..), outside)),
        None => Some((None, rest)),
    }
}

/// Follows the nesting; false once it is too deep.
fn track(outside: &[u8], depth: &mut usize) -> bool {
    for byte in outside {
        match byte {
            b'{' | b'[' => *depth += 1,
            b'}' | b']' => *depth = depth.saturating_sub(1),
            _ => {}
        }
        if *depth > MAX_DEPTH {
            return false;
        }
    }
    true
}

/// What follows the string whose inside starts here.
fn after_string(inside: &[u8]) -> &[u8] {
    let mut escaped_at = None;
    for at in memchr2_iter(b'"', b'\\', inside) {
        if escaped_at == Some(at) {
            continue;
        }
        if inside.get(at) == Some(&b'"') {
            return inside.get(at + 1..).unwrap_or_default();
        }
        escaped_at = Some(at + 1);
    }
    &[]
}

fn refused(error: &serde_json::Error, text: &str) -> Bad {
    if error.is_data() && !text.trim_start().starts_with('{') {
        return Bad::NotAnObject;
    }
    Bad::Syntax(error.to_string())
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Fields<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
        let mut fields = Fields::default();
        while let Some(Name(name)) = map.next_key()? {
            match fields.slot(&name) {
                Some(slot) => *slot = Some(map.next_value::<&RawValue>()?.get()),
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(fields)
    }
}

/// A field name, borrowed unless it is written with escapes.
#[derive(serde::Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(body: &str) -> Result<Fields<'_>, Bad> {
        Fields::read(body.as_bytes(), &["messages"])
    }

    #[test]
    fn fields_are_found_wherever_they_stand() {
        let body = r#" {"messages":[{"rid":"no","model":"no"}], "x":{"rid":1},"rid":"a\u0062c","model":"m","stream":true} "#;
        let fields = read(body).unwrap();
        assert_eq!(fields.model().unwrap().as_deref(), Some("m"));
        assert_eq!(fields.rid(Rid::Text).as_deref(), Some("abc"));
        assert!(fields.stream());
    }

    #[test]
    fn of_a_repeated_key_the_last_one_counts() {
        let body = r#"{"rid":"first","messages":[],"model":"a","rid":"last","m\u006fdel":"b"}"#;
        let fields = read(body).unwrap();
        assert_eq!(fields.rid(Rid::Text).as_deref(), Some("last"));
        assert_eq!(fields.model().unwrap().as_deref(), Some("b"));
    }

    #[test]
    fn a_rid_of_another_type_is_no_key() {
        for rid in ["null", "5", "true", "[\"a\"]", "{\"a\":1}", r#""\ud800""#] {
            let body = format!(r#"{{"messages":[],"rid":{rid}}}"#);
            assert_eq!(read(&body).unwrap().rid(Rid::Text), None, "{rid}");
        }
    }

    #[test]
    fn where_a_route_lists_its_rids_the_first_one_counts() {
        for (rid, first) in [
            (r#"["a","b"]"#, Some("a")),
            (r#""c""#, Some("c")),
            ("[]", None),
            ("[1]", None),
            ("[null,\"a\"]", None),
            ("7", None),
        ] {
            let body = format!(r#"{{"messages":[],"rid":{rid}}}"#);
            let fields = read(&body).unwrap();
            assert_eq!(fields.rid(Rid::First).as_deref(), first, "{rid}");
            assert_eq!(fields.rid(Rid::None), None);
        }
    }

    #[test]
    fn one_of_several_fields_may_be_enough() {
        let either = |body: &str| Fields::read(body.as_bytes(), &["text", "input_ids"]).err();
        assert_eq!(either(r#"{"input_ids":[1]}"#), None);
        assert_eq!(either(r#"{"messages":[]}"#), Some(Bad::Missing("text")));
        assert!(Fields::read(b"{}", &[]).is_ok());
    }

    #[test]
    fn broken_bodies_are_refused() {
        for body in [
            "",
            "{",
            r#"{"messages":[]"#,
            r#"{"messages":[]}}"#,
            r#"{"messages":[]} x"#,
            r#"{"messages":[],}"#,
            r#"{"messages":[1,]}"#,
            r#"{messages:[]}"#,
            r#"{'messages':[]}"#,
            r#"{"messages":[NaN]}"#,
            r#"{"messages":[01]}"#,
            r#"{"messages":["\x"]}"#,
            "{\"messages\":[\"a\nb\"]}",
            r#"{"messages":[]"rid":"a"}"#,
        ] {
            assert!(matches!(read(body), Err(Bad::Syntax(_))), "{body}: {:?}", read(body));
        }
        assert_eq!(
            Fields::read(b"{\"messages\":\"\xff\"}", &["messages"]).unwrap_err(),
            Bad::Encoding
        );
        for body in ["[]", "1", "\"x\"", "null", "  true"] {
            assert_eq!(read(body).unwrap_err(), Bad::NotAnObject, "{body}");
        }
    }

    #[test]
    fn a_missing_field_is_named() {
        for body in ["{}", r#"{"messages":null}"#, r#"{"messages":[],"messages":null}"#] {
            assert_eq!(read(body).unwrap_err(), Bad::Missing("messages"), "{body}");
        }
        assert_eq!(read(r#"{"messages":[],"model":5}"#).unwrap().model(), Err(Bad::ModelNotText));
        assert_eq!(read(r#"{"messages":[],"model":null}"#).unwrap().model(), Ok(None));
    }

    #[test]
    fn depth_is_bounded_outside_strings_only() {
        let nested = |depth: usize| {
            format!(r#"{{"messages":{}{}}}"#, "[".repeat(depth - 1), "]".repeat(depth - 1))
        };
        assert!(read(&nested(MAX_DEPTH)).is_ok());
        assert_eq!(read(&nested(MAX_DEPTH + 1)).unwrap_err(), Bad::TooDeep);
        assert_eq!(read(&"[".repeat(1_000_000)).unwrap_err(), Bad::TooDeep);
        let quoted = format!(r#"{{"messages":["\"{}\\","{}"]}}"#, "[".repeat(500), "{".repeat(500));
        assert!(read(&quoted).is_ok());
    }

    proptest! {
        #[test]
        fn agrees_with_the_full_parser(body in r#"[{}\[\]",:a-e0-9\\ unltrfs.\-+]{0,40}"#) {
            let whole = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&body);
            let ours = Fields::read(body.as_bytes(), &["messages"]);
            // The full parser also refuses numbers it cannot hold and lone surrogates.
            if whole.is_ok() {
                prop_assert!(matches!(ours, Ok(_) | Err(Bad::Missing(_))), "{ours:?}");
            }
        }

        #[test]
        fn any_bytes_are_an_answer(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Fields::read(&body, &["messages"]);
        }

        #[test]
        fn a_rid_round_trips(rid in ".{0,20}", model in ".{0,20}") {
            let body = serde_json::json!({"messages": [], "rid": rid, "model": model}).to_string();
            let fields = read(&body).unwrap();
            prop_assert_eq!(fields.rid(Rid::Text).unwrap(), rid);
            prop_assert_eq!(fields.model().unwrap().unwrap(), model);
        }
    }
}
