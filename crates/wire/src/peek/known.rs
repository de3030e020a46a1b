//! What a beginning says, put together so that it can be read as a whole body is.

use std::ops::Range;

use super::{FIELDS, MOST_ITEMS, Opening, PROMPTS, Peek, Prompt};

/// Fewer bytes of a message tell too little of whose it is.
const LEAST_BEGUN: usize = 1024;

impl Peek {
    /// A JSON object of all that is whole in the beginning `body`: the fields, and of each prompt
    /// the items that have ended.
    #[must_use]
    pub fn known(&self, body: &[u8]) -> Vec<u8> {
        let mut known = Vec::with_capacity(self.read + 16);
        let fields = FIELDS.iter().zip(&self.fields);
        for (name, span) in fields {
            if let Some(raw) = span.clone().and_then(|span| body.get(span)) {
                field(&mut known, name, &[raw]);
            }
        }
        for (name, opening) in PROMPTS.iter().zip(&self.prompts) {
            let Some(opening) = opening.as_ref().filter(|opening| !opening.whole.is_empty()) else {
                continue;
            };
            let whole = body.get(opening.whole.clone()).unwrap_or_default();
            match opening.list {
                true => field(&mut known, name, &[b"[", whole, b"]"]),
                false => field(&mut known, name, &[whole]),
            }
        }
        known.extend_from_slice(if known.is_empty() { b"{}" } else { b"}" });
        known
    }

    /// Where the messages stand with which a conversation opens, in the beginning `body`: all up to
    /// the first that a user said, which every later turn sends again as they are. `None` when there
    /// are none, or when more of them would have to be known.
    #[must_use]
    pub fn opening_messages(&self, body: &[u8]) -> Option<Range<usize>> {
        let Opening { items, .. } = self.opening(Prompt::Messages)?;
        let first = items.first()?;
        let said = |item: &&Range<usize>| body.get((*item).clone()).is_some_and(is_a_users);
        let users = items.iter().find(said)?;
        Some(first.start..users.end)
    }

    /// The same where the first that a user said is too long to end in this beginning, as one with
    /// images is: so much of it as every later turn shows too, whose beginning is as long. That is
    /// a power of two, for other fields may be longer or shorter from turn to turn.
    #[must_use]
    pub fn opening_begun(&self, body: &[u8]) -> Option<Range<usize>> {
        let Opening { items, begun, list: true, .. } = self.opening(Prompt::Messages)? else {
            return None;
        };
        let begun = (*begun)?;
        let message = body.get(begun..self.read)?;
        let said = |item: &Range<usize>| body.get(item.clone()).is_some_and(is_a_users);
        if items.len() == MOST_ITEMS || items.iter().any(said) || !begins_a_users(message) {
            return None;
        }
        let shown = 1 << message.len().checked_ilog2()?;
        let start = items.first().map_or(begun, |first| first.start);
        (shown >= LEAST_BEGUN).then_some(start..begun + shown)
    }
}

/// Whether a message of which this is the beginning is of a user; unknown is no.
fn begins_a_users(message: &[u8]) -> bool {
    let mut rest = message;
    [&b"{"[..], b"\"role\"", b":", b"\"user\""].iter().all(|token| {
        let left = rest.strip_prefix(*token).map(<[u8]>::trim_ascii_start);
        left.map(|left| rest = left).is_some()
    })
}

/// Writes one field behind those that are there.
fn field(object: &mut Vec<u8>, name: &str, value: &[&[u8]]) {
    object.push(if object.is_empty() { b'{' } else { b',' });
    object.push(b'"');
    object.extend_from_slice(name.as_bytes());
    object.extend_from_slice(b"\":");
    value.iter().for_each(|part| object.extend_from_slice(part));
}

/// Whether a message is of a user.
fn is_a_users(message: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Message<'a> {
        #[serde(borrow)]
        role: std::borrow::Cow<'a, str>,
    }
    serde_json::from_slice::<Message<'_>>(message).is_ok_and(|message| message.role == "user")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peeked(body: &str) -> Peek {
        let mut peek = Peek::default();
        peek.read(body.as_bytes());
        peek
    }

    fn known(body: &str) -> String {
        String::from_utf8(peeked(body).known(body.as_bytes())).unwrap()
    }

    #[test]
    fn what_is_whole_is_known_and_nothing_else() {
        for (body, all) in [
            ("", "{}"),
            (r#"{"x":1"#, "{}"),
            (r#"{"rid":"a","mod"#, r#"{"rid":"a"}"#),
            (r#"{"model":"m","rid":"a","stream":tru"#, r#"{"rid":"a","model":"m"}"#),
            (r#"{"messages":[{"a":1}, {"b":2},{"c"#, r#"{"messages":[{"a":1}, {"b":2}]}"#),
            (r#"{"system":"s","messages":[{"a"#, r#"{"system":"s"}"#),
            (r#"{"prompt":"half"#, "{}"),
            (r#"{"prompt":"whole","rid":"r"}"#, r#"{"rid":"r","prompt":"whole"}"#),
            (r#"{"input_ids":[1,2,3"#, r#"{"input_ids":[1,2]}"#),
            (r#"{"messages":[]}"#, "{}"),
        ] {
            assert_eq!(known(body), all, "{body}");
        }
    }

    #[test]
    fn of_a_long_first_message_the_same_beginning_is_taken_in_every_turn() {
        let body = |before: &str, role: &str| {
            let image = "i".repeat(5000);
            format!(
                r#"{{{before}"messages":[{{"role":"system","content":"s"}},{{ "role": "{role}","content":"u{image}"#
            )
        };
        let opening = |body: &str, seen: usize| {
            let body = &body[..seen];
            let range = peeked(body).opening_begun(body.as_bytes())?;
            Some(body[range].to_owned())
        };
        let first = opening(&body("", "user"), 4000).unwrap();
        assert!(first.starts_with(r#"{"role":"system""#) && first.ends_with("iii"));
        assert_eq!(opening(&body(r#""max_tokens":12345,"#, "user"), 4000), Some(first));
        // Neither what may be anybody's, nor what is little, nor what has ended.
        assert_eq!(opening(&body("", "assistant"), 4000), None);
        assert_eq!(opening(&body("", "user"), 1000), None);
        assert_eq!(opening(&body("", "user"), 50), None);
        let ended = format!(
            "{}\"}},{{\"role\":\"user\",\"content\":\"{}",
            body("", "user"),
            "x".repeat(2000)
        );
        assert_eq!(opening(&ended, ended.len()), None);
        assert_eq!(opening(&format!(r#"{{"messages":"{}"#, "x".repeat(2000)), 2000), None);
    }

    #[test]
    fn a_conversation_opens_with_all_up_to_its_first_user() {
        let turns = [
            r#"{"messages":[{"role":"system","content":"s"},{"role":"user","content":"u"}"#,
            r#"{"messages":[{"role":"system","content":"s"},{"role":"user","content":"u"},{"role":"assistant","content":"#,
        ];
        let openings =
            turns.map(|turn| &turn[peeked(turn).opening_messages(turn.as_bytes()).unwrap()]);
        assert_eq!(openings[0], openings[1]);
        assert!(openings[0].starts_with(r#"{"role":"system""#) && openings[0].ends_with("\"u\"}"));
        for none in [
            r#"{"messages":[{"role":"system","content":"s"},{"role":"user","con"#,
            r#"{"messages":[]}"#,
            r#"{"messages":"hello"}"#,
            r#"{"prompt":"hello"}"#,
        ] {
            assert_eq!(peeked(none).opening_messages(none.as_bytes()), None, "{none}");
        }
    }
}
