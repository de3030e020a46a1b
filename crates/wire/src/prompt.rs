//! The prompt of a request, as policies see it: its text parts in order, as raw JSON text that is
//! borrowed from the body, or its token ids. Of a prompt in ever so many pieces only the beginning
//! counts: they take more memory than the bytes they came from.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::json::{Fields, First};
use crate::route::Prompt as Place;

/// Text parts that count.
const MAX_PARTS: usize = 1 << 16;
/// Token ids that count.
const MAX_IDS: usize = 1 << 20;
/// How deep text is looked for in a content. A tool's result among blocks takes five lists and objects;
/// each level reads what is below it once more, so that the depth of the body must not count.
const MAX_NESTED: usize = 8;

/// What an engine will have to read, as far as the body says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Prompt<'a> {
    /// No text and no ids.
    #[default]
    Unknown,
    /// Text parts in order, escapes as written.
    Text(Vec<&'a str>),
    /// Token ids.
    Tokens(Vec<u32>),
}

/// The prompt of a body.
#[must_use]
pub fn of<'a>(place: Place, fields: &Fields<'a>) -> Prompt<'a> {
    match place {
        Place::Messages => messages(fields),
        Place::Field(name) => fields.prompt_field(name).map_or(Prompt::Unknown, field),
        Place::TextOrIds => {
            let raw = fields.prompt_field("text").or_else(|| fields.prompt_field("input_ids"));
            raw.map_or(Prompt::Unknown, field)
        }
    }
}

/// `system` first, then each message's text parts; images and whatever else is there are skipped.
fn messages<'a>(fields: &Fields<'a>) -> Prompt<'a> {
    let mut parts = Vec::new();
    if let Some(system) = fields.prompt_field("system") {
        texts(system, MAX_NESTED, &mut parts);
    }
    let messages = fields.prompt_field("messages").unwrap_or("[]");
    // A list of something else than messages is the worker's to refuse.
    let messages = serde_json::from_str::<First<Message<'_>, MAX_PARTS>>(messages);
    let messages = messages.map_or_else(|_| Vec::new(), |First(messages)| messages);
    for content in messages.iter().filter_map(|message| message.content) {
        texts(content.get(), MAX_NESTED, &mut parts);
    }
    text_or_unknown(parts)
}

/// Text, a list of texts, or token ids.
fn field(raw: &str) -> Prompt<'_> {
    if let Ok(First(ids)) = serde_json::from_str::<First<u32, MAX_IDS>>(raw)
        && !ids.is_empty()
    {
        return Prompt::Tokens(ids);
    }
    let mut parts = Vec::new();
    texts(raw, MAX_NESTED, &mut parts);
    text_or_unknown(parts)
}

fn text_or_unknown(parts: Vec<&str>) -> Prompt<'_> {
    if parts.is_empty() { Prompt::Unknown } else { Prompt::Text(parts) }
}

/// Collects the text of a content: a string, or a list of strings and of blocks, whose own `text`
/// and `content` count, `levels` of lists and objects deep.
fn texts<'a>(raw: &'a str, levels: usize, parts: &mut Vec<&'a str>) {
    match raw.as_bytes().first() {
        _ if parts.len() >= MAX_PARTS => {}
        Some(b'"') => parts.extend(raw.get(1..raw.len().saturating_sub(1))),
        _ if levels == 0 => {}
        Some(b'[') => {
            let items = serde_json::from_str::<First<&RawValue, MAX_PARTS>>(raw);
            let items = items.map_or_else(|_| Vec::new(), |First(items)| items);
            items.iter().for_each(|item| texts(item.get(), levels - 1, parts));
        }
        Some(b'{') => {
            let Ok(block) = serde_json::from_str::<Block<'_>>(raw) else { return };
            for raw in [block.text, block.content].into_iter().flatten() {
                texts(raw.get(), levels - 1, parts);
            }
        }
        _ => {}
    }
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Block<'a> {
    #[serde(borrow, default)]
    text: Option<&'a RawValue>,
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn prompt(place: Place, body: &str) -> Prompt<'_> {
        of(place, &Fields::read(body.as_bytes(), &[]).unwrap())
    }

    #[test]
    fn text_parts_are_collected_in_order_and_images_skipped() {
        let body = r#"{"messages":[
            {"role":"system","content":"a"},
            {"role":"user","content":[{"type":"text","text":"b\n"},{"type":"image_url","image_url":{"url":"x"}},"c"]},
            {"role":"assistant","content":null,"tool_calls":[{"function":{"arguments":"{}"}}]},
            {"role":"user","content":[{"type":"tool_result","content":[{"type":"text","text":"d"}]}]}],
            "system":[{"type":"text","text":"s","cache_control":{"type":"ephemeral"}}]}"#;
        assert_eq!(prompt(Place::Messages, body), Prompt::Text(vec!["s", "a", r"b\n", "c", "d"]));
    }

    #[test]
    fn plain_fields_hold_text_texts_or_ids() {
        let place = Place::Field("prompt");
        for (raw, wanted) in [
            (r#""a""#, Prompt::Text(vec!["a"])),
            (r#"["a","b"]"#, Prompt::Text(vec!["a", "b"])),
            ("[1,2]", Prompt::Tokens(vec![1, 2])),
            ("[]", Prompt::Unknown),
            ("5", Prompt::Unknown),
            ("[-1]", Prompt::Unknown),
            ("[1,\"a\"]", Prompt::Text(vec!["a"])),
        ] {
            assert_eq!(prompt(place, &format!(r#"{{"prompt":{raw}}}"#)), wanted, "{raw}");
        }
        let ids = r#"{"input_ids":[7],"text":null}"#;
        assert_eq!(prompt(Place::TextOrIds, ids), Prompt::Tokens(vec![7]));
    }

    #[test]
    fn of_ever_so_many_pieces_the_first_count() {
        let many = |item: &str| format!("[{}{item}]", format!("{item},").repeat(1 << 20));
        let message = many(r#"{"content":["a",{"text":"b"}]}"#);
        for (place, field, raw) in [
            (Place::Messages, "messages", &message),
            (Place::Messages, "system", &many(r#"["a","b"]"#)),
            (Place::Field("prompt"), "prompt", &many(r#""a""#)),
        ] {
            let body = format!(r#"{{"{field}":{raw}}}"#);
            let Prompt::Text(parts) = prompt(place, &body) else { panic!("no text") };
            assert_eq!(parts.len(), MAX_PARTS, "{field}");
        }
        let body = format!(r#"{{"input_ids":{}}}"#, many("7"));
        assert_eq!(prompt(Place::TextOrIds, &body), Prompt::Tokens(vec![7; MAX_IDS]));
    }

    #[test]
    fn text_is_found_as_deep_as_anybody_writes_it_and_no_deeper() {
        let at = |levels: usize| {
            let (open, close) = (r#"{"content":["#.repeat(levels / 2), "]}".repeat(levels / 2));
            let (open, close) = match levels % 2 {
                0 => (open, close),
                _ => (format!("[{open}"), format!("{close}]")),
            };
            let body = format!(r#"{{"messages":[{{"content":{open}"a"{close}}}]}}"#);
            prompt(Place::Messages, &body) == Prompt::Text(vec!["a"])
        };
        assert!((0..=MAX_NESTED).all(at));
        assert!(!(MAX_NESTED + 1..120).any(at));
    }

    #[test]
    fn messages_of_any_shape_are_no_trouble() {
        for messages in ["5", "{}", "[5]", "[[]]", r#"[{"content":5}]"#, r#"[{"content":{}}]"#] {
            let body = format!(r#"{{"messages":{messages}}}"#);
            assert_eq!(prompt(Place::Messages, &body), Prompt::Unknown, "{messages}");
        }
    }

    proptest! {
        #[test]
        fn a_further_turn_extends_the_prompt(turns in prop::collection::vec("[^\\x00]{1,20}", 2..6)) {
            let body = |turns: &[String]| {
                let messages: Vec<_> =
                    turns.iter().map(|text| serde_json::json!({"role": "user", "content": text})).collect();
                serde_json::json!({"messages": messages}).to_string()
            };
            let (short, long) = (body(&turns[..turns.len() - 1]), body(&turns));
            let (Prompt::Text(short), Prompt::Text(long)) =
                (prompt(Place::Messages, &short), prompt(Place::Messages, &long))
            else { panic!("no text") };
            prop_assert_eq!(&long[..short.len()], &short[..]);
        }
    }
}
