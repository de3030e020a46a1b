//! What one event of a chat stream holds, every value as it was written.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::lanes::Field;
use crate::json::First;

/// Text fields, in the order in which their texts follow each other when one event has several.
const TEXTS: [&str; 3] = ["reasoning_content", "reasoning", "content"];

/// A JSON object: its fields in order.
#[derive(Default)]
pub(super) struct Members<'a>(pub(super) Vec<(Cow<'a, str>, &'a RawValue)>);

/// One event.
pub(super) struct Event<'a> {
    /// Its top level.
    pub(super) members: Members<'a>,
    /// Its choices.
    pub(super) choices: Choices<'a>,
}

/// The choices of an event.
pub(super) enum Choices<'a> {
    None,
    One(Choice<'a>),
    Many,
}

/// The one choice.
pub(super) struct Choice<'a> {
    /// Its fields, the delta among them.
    pub(super) members: Members<'a>,
    /// Its index, as written.
    pub(super) index: Option<&'a str>,
    /// Its delta; `None` when the event has to stay in one piece.
    pub(super) delta: Option<Delta<'a>>,
}

/// A delta taken apart.
#[derive(Default)]
pub(super) struct Delta<'a> {
    pub(super) role: Option<Cow<'a, str>>,
    /// Whether its content is an empty text, as engines send it with the role.
    pub(super) empty_content: bool,
    texts: [Option<Cow<'a, str>>; TEXTS.len()],
    pub(super) calls: Vec<Call<'a>>,
}

/// One entry of `tool_calls`.
pub(super) struct Call<'a> {
    /// Which call it is, as written.
    pub(super) index: &'a str,
    /// The entry without its arguments, when it says whose they are.
    pub(super) opening: Option<String>,
    pub(super) arguments: Cow<'a, str>,
}

/// Reads the data of an event; `None` when it is none of a chat stream.
pub(super) fn read(data: &str) -> Option<Event<'_>> {
    let members: Members<'_> = serde_json::from_str(data).ok()?;
    let First(choices) =
        serde_json::from_str::<First<&RawValue, 2>>(members.only("choices")?).ok()?;
    let choices = match choices.as_slice() {
        [] => Choices::None,
        [choice] => Choices::One(Choice::read(choice.get())?),
        _ => Choices::Many,
    };
    Some(Event { members, choices })
}

impl<'a> Event<'a> {
    /// Whether it says something that has to follow the text before it (001: `finish_reason` and
    /// `usage`).
    pub(super) fn closes(&self) -> bool {
        let finished = match &self.choices {
            Choices::One(choice) => choice.members.said("finish_reason"),
            _ => false,
        };
        finished || self.members.said("usage")
    }
}

impl<'a> Choice<'a> {
    fn read(raw: &'a str) -> Option<Self> {
        let members: Members<'_> = serde_json::from_str(raw).ok()?;
        let delta: Members<'_> = serde_json::from_str(members.only("delta")?).ok()?;
        let index = members.all("index").next();
        // Log probabilities, or whatever else describes the text.
        let plain = members.0.iter().all(|(name, raw)| {
            matches!(&**name, "delta" | "index" | "finish_reason") || is_null(raw)
        });
        let delta = plain.then(|| Delta::read(&delta)).flatten();
        Some(Self { members, index, delta })
    }

    /// The role of a delta that is not taken apart.
    pub(super) fn role(&self) -> Option<String> {
        let delta: Members<'_> = serde_json::from_str(self.members.only("delta")?).ok()?;
        delta.all("role").last().and_then(text).map(Cow::into_owned)
    }
}

impl<'a> Delta<'a> {
    /// `None` when a field is there that is not joined, or one stands twice.
    fn read(members: &Members<'a>) -> Option<Self> {
        let mut delta = Self::default();
        for (name, raw) in members.0.iter().filter(|(_, raw)| !is_null(raw)) {
            let raw = raw.get();
            if let Some(at) = TEXTS.iter().position(|known| *known == name) {
                let before = delta.texts.get_mut(at)?.replace(text(raw)?);
                before.is_none().then_some(())?;
            } else if name == "role" {
                delta.role.replace(text(raw)?).is_none().then_some(())?;
            } else if name == "tool_calls" && delta.calls.is_empty() {
                let entries: Vec<&RawValue> = serde_json::from_str(raw).ok()?;
                delta.calls =
                    entries.iter().map(|raw| Call::read(raw.get())).collect::<Option<_>>()?;
            } else {
                return None;
            }
        }
        delta.empty_content = delta.texts.last()?.as_ref().is_some_and(|text| text.is_empty());
        Some(delta)
    }

    /// The texts that are there.
    pub(super) fn texts(&self) -> impl Iterator<Item = (Field, &str)> {
        let texts = TEXTS.iter().zip(&self.texts);
        texts.filter_map(|(name, text)| Some((Field::Text(name), text.as_deref()?)))
    }

    /// Whether it says nothing at all.
    pub(super) fn is_empty(&self) -> bool {
        self.role.is_none()
            && self.calls.is_empty()
            && self.texts.iter().flatten().all(|text| text.is_empty())
    }
}

impl<'a> Call<'a> {
    fn read(raw: &'a str) -> Option<Self> {
        let members: Members<'a> = serde_json::from_str(raw).ok()?;
        let mut opens = false;
        for (name, value) in members.0.iter().filter(|(_, value)| !is_null(value)) {
            match &**name {
                "index" | "type" | "function" => {}
                "id" => opens |= !text(value.get())?.is_empty(),
                _ => return None,
            }
        }
        let index = members.only("index")?;
        index.bytes().all(|byte| byte.is_ascii_digit()).then_some(())?;
        let function: Members<'a> = match members.said("function") {
            true => serde_json::from_str(members.only("function")?).ok()?,
            false => Members::default(),
        };
        let mut arguments = None;
        for (name, value) in function.0.iter().filter(|(_, value)| !is_null(value)) {
            match &**name {
                "name" => opens |= !text(value.get())?.is_empty(),
                "arguments" if arguments.is_none() => arguments = Some(text(value.get())?),
                _ => return None,
            }
        }
        let opening = opens.then(|| opening(&members, &function));
        Some(Self { index, opening, arguments: arguments.unwrap_or_default() })
    }
}

/// The entry as it was, its arguments empty.
fn opening(members: &Members<'_>, function: &Members<'_>) -> String {
    let mut out = Vec::new();
    write(members, &mut out, |name, raw, out| match name {
        "function" if !is_null(raw) => write(function, out, |name, raw, out| match name {
            "arguments" if !is_null(raw) => out.extend_from_slice(b"\"\""),
            _ => out.extend_from_slice(raw.get().as_bytes()),
        }),
        _ => out.extend_from_slice(raw.get().as_bytes()),
    });
    // Made of text alone.
    String::from_utf8(out).unwrap_or_default()
}

fn write(
    members: &Members<'_>,
    out: &mut Vec<u8>,
    mut value: impl FnMut(&str, &RawValue, &mut Vec<u8>),
) {
    out.push(b'{');
    for (at, (name, raw)) in members.0.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        quote(name, out);
        out.push(b':');
        value(name, raw, out);
    }
    out.push(b'}');
}

/// Writes text as JSON.
pub(super) fn quote(text: &str, out: &mut Vec<u8>) {
    // A vector takes everything, and text can always be written.
    let _ = serde_json::to_writer(out, text);
}

pub(super) fn is_null(raw: &RawValue) -> bool {
    raw.get() == "null"
}

impl<'a> Members<'a> {
    fn all(&self, name: &str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(known, _)| known == name).map(|(_, raw)| raw.get())
    }

    /// The field of this name, if it stands once.
    fn only(&self, name: &str) -> Option<&'a str> {
        let mut all = self.all(name);
        let first = all.next()?;
        all.next().is_none().then_some(first)
    }

    /// Whether a field is there and not null.
    fn said(&self, name: &str) -> bool {
        self.all(name).any(|raw| raw != "null")
    }
}

/// The text of a raw JSON string.
fn text(raw: &str) -> Option<Cow<'_, str>> {
    serde_json::from_str::<Text<'_>>(raw).ok().map(|Text(text)| text)
}

/// Borrowed unless it is written with escapes.
#[derive(serde::Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::with_capacity(8);
        while let Some((Text(name), raw)) = map.next_entry::<Text<'de>, &'de RawValue>()? {
            members.push((name, raw));
        }
        Ok(Members(members))
    }
}
