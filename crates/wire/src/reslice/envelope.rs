//! What stands around a delta: the id, model and so on of the latest event.

use serde_json::value::RawValue;

use super::event::{Choice, Event, Members, is_null, quote};
use super::lanes::{Field, Slice};

/// The bytes around a delta, kept from the latest event.
#[derive(Debug, Default)]
pub(super) struct Envelope {
    /// Fields before and after the choices.
    top: Around,
    /// Fields of the choice before and after its delta.
    choice: Around,
}

/// Fields around one, each with its comma.
#[derive(Debug, Default)]
struct Around {
    before: Vec<u8>,
    after: Vec<u8>,
}

impl Envelope {
    /// From an event without a choice.
    pub(super) fn around_choices(&mut self, event: &Event<'_>) {
        self.top.take(&event.members, "choices", |name, raw| {
            (name != "usage" || is_null(raw)).then_some(raw.get())
        });
    }

    /// From an event with one. Why it ended and what describes its text is of that event alone.
    pub(super) fn around_delta(&mut self, event: &Event<'_>, choice: &Choice<'_>) {
        self.around_choices(event);
        self.choice.take(&choice.members, "delta", |name, raw| match name {
            "finish_reason" => Some("null"),
            _ => (name == "index" || is_null(raw)).then_some(raw.get()),
        });
    }

    /// An event of one slice of text.
    pub(super) fn slice(&self, Slice { field, text }: Slice<'_>, out: &mut Vec<u8>) {
        self.wrap(out, |out| match field {
            Field::Text(name) => {
                quote(name, out);
                out.push(b':');
                quote(text, out);
            }
            Field::Arguments(index) => {
                out.extend_from_slice(b"\"tool_calls\":[{\"index\":");
                out.extend_from_slice(index.as_bytes());
                out.extend_from_slice(b",\"function\":{\"arguments\":");
                quote(text, out);
                out.extend_from_slice(b"}}]");
            }
        });
    }

    /// An event that says who speaks.
    pub(super) fn role(&self, role: &str, empty_content: bool, out: &mut Vec<u8>) {
        self.wrap(out, |out| {
            out.extend_from_slice(b"\"role\":");
            quote(role, out);
            if empty_content {
                out.extend_from_slice(b",\"content\":\"\"");
            }
        });
    }

    /// An event that opens a tool call.
    pub(super) fn opening(&self, entry: &str, out: &mut Vec<u8>) {
        self.wrap(out, |out| {
            out.extend_from_slice(b"\"tool_calls\":[");
            out.extend_from_slice(entry.as_bytes());
            out.push(b']');
        });
    }

    fn wrap(&self, out: &mut Vec<u8>, delta: impl FnOnce(&mut Vec<u8>)) {
        let Self { top, choice } = self;
        out.extend_from_slice(b"data: {");
        out.extend_from_slice(&top.before);
        out.extend_from_slice(b"\"choices\":[{");
        out.extend_from_slice(&choice.before);
        out.extend_from_slice(b"\"delta\":{");
        delta(out);
        out.push(b'}');
        out.extend_from_slice(&choice.after);
        out.extend_from_slice(b"}]");
        out.extend_from_slice(&top.after);
        out.extend_from_slice(b"}\n\n");
    }
}

/// The event itself, after its delta has gone ahead in pieces.
pub(super) fn rest(event: &Event<'_>, choice: &Choice<'_>, out: &mut Vec<u8>) {
    let mut own = Envelope::default();
    own.top.take(&event.members, "choices", |_, raw| Some(raw.get()));
    own.choice.take(&choice.members, "delta", |_, raw| Some(raw.get()));
    own.wrap(out, |_| {});
}

impl Around {
    /// The fields around the one in the middle, each with the value it `shall` have, if any.
    fn take<'m>(
        &mut self,
        members: &'m Members<'_>,
        middle: &str,
        shall: impl Fn(&str, &'m RawValue) -> Option<&'m str>,
    ) {
        self.before.clear();
        self.after.clear();
        let mut behind = false;
        for (name, raw) in &members.0 {
            if name == middle {
                behind = true;
                continue;
            }
            let Some(value) = shall(name, raw) else { continue };
            let out = if behind { &mut self.after } else { &mut self.before };
            if behind {
                out.push(b',');
            }
            quote(name, out);
            out.push(b':');
            out.extend_from_slice(value.as_bytes());
            if !behind {
                out.push(b',');
            }
        }
    }
}
