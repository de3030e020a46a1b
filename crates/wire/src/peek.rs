//! What a request body says before it is there: top-level fields and the opening of its prompt, out
//! of a beginning that grows.
//!
//! It is read as [`crate::json::Fields`] reads a whole body – the last of equal keys counts, nested
//! ones never do, and the same texts are refused – but each byte once, whenever it comes, and
//! without keeping any of them: only places are noted, and the caller has the bytes.

use std::borrow::Cow;
use std::ops::Range;

mod grammar;
mod known;

use grammar::{Grammar, Note};

/// Items of a list whose places are noted one by one.
pub const MOST_ITEMS: usize = 16;

/// How far a body has been understood.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// More of it has to come.
    #[default]
    NeedsMore,
    /// The object is whole. Nothing but space may follow.
    Complete,
    /// It is no JSON object.
    NotAnObject,
    /// It is no JSON, no UTF-8, or nested too deep: a whole body that begins so is refused.
    Broken,
}

/// A top-level field that can name a conversation, or says how to go about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// `rid`
    Rid,
    /// `model`
    Model,
    /// `session_id`
    SessionId,
    /// `stream`
    Stream,
}

/// All of them, by their names.
const FIELDS: [&str; 4] = ["rid", "model", "session_id", "stream"];

/// A top-level field that can hold what an engine reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// `system`
    System,
    /// `messages`
    Messages,
    /// `prompt`
    Prompt,
    /// `input`
    Input,
    /// `text`
    Text,
    /// `input_ids`
    InputIds,
    /// `query`
    Query,
}

/// All of them, by their names.
const PROMPTS: [&str; 7] = ["system", "messages", "prompt", "input", "text", "input_ids", "query"];

/// Where the beginning of a prompt stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opening {
    /// The first items that are whole: of a list its own, else the value itself. At most
    /// [`MOST_ITEMS`].
    pub items: Vec<Range<usize>>,
    /// From the first item to the end of the last one that is whole, noted or not.
    pub whole: Range<usize>,
    /// Where an item begins that is not whole yet.
    pub begun: Option<usize>,
    /// Whether nothing of it can follow.
    pub complete: bool,
    /// Whether it is a list.
    pub list: bool,
}

/// Reads a body as it grows.
#[derive(Clone, Debug, Default)]
pub struct Peek {
    grammar: Grammar,
    state: State,
    /// Bytes that were read.
    read: usize,
    /// Bytes that are known to be UTF-8; less than what was read by a character cut in two.
    text: usize,
    fields: [Option<Range<usize>>; FIELDS.len()],
    prompts: [Option<Opening>; PROMPTS.len()],
    key: Key,
    /// Where the top-level key or value begins that is being read, or the item within it.
    begins: usize,
    item_begins: usize,
}

/// Whose value is being read.
#[derive(Clone, Copy, Debug, Default)]
enum Key {
    #[default]
    Other,
    Field(usize),
    Prompt(usize),
}

impl Peek {
    /// Reads on. `body` is all that has come so far; what was read before is not looked at again.
    pub fn read(&mut self, body: &[u8]) -> State {
        while let Some((byte, behind)) = body.get(self.read..).and_then(<[u8]>::split_first) {
            if matches!(self.state, State::Broken | State::NotAnObject) {
                break;
            }
            let at = self.read;
            self.read += 1;
            match self.grammar.step(*byte) {
                Err(()) => self.refuse(),
                Ok(notes) => notes.into_iter().flatten().for_each(|note| self.note(note, at, body)),
            }
            self.read += self.grammar.skips(behind);
        }
        self.check_text(body);
        self.state
    }

    /// How far the body has been understood.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// Where the value of a field stands; the last of several, among those that are whole.
    #[must_use]
    pub fn span(&self, field: Field) -> Option<Range<usize>> {
        self.fields.get(field as usize)?.clone()
    }

    /// The value of a field as it is written.
    #[must_use]
    pub fn raw<'b>(&self, field: Field, body: &'b [u8]) -> Option<&'b str> {
        std::str::from_utf8(body.get(self.span(field)?)?).ok()
    }

    /// The value of a field, if it is a text.
    #[must_use]
    pub fn text<'b>(&self, field: Field, body: &'b [u8]) -> Option<Cow<'b, str>> {
        serde_json::from_str::<Text<'b>>(self.raw(field, body)?).ok().map(|Text(text)| text)
    }

    /// Where the beginning of a prompt stands; of the last field of that name.
    #[must_use]
    pub fn opening(&self, prompt: Prompt) -> Option<&Opening> {
        self.prompts.get(prompt as usize)?.as_ref()
    }

    fn refuse(&mut self) {
        let begun = self.grammar.has_begun();
        self.state = if begun { State::Broken } else { State::NotAnObject };
    }

    fn note(&mut self, note: Note, at: usize, body: &[u8]) {
        match note {
            Note::Begins => self.begins = at,
            Note::KeyEnds => match body.get(self.begins..=at).map(key) {
                Some(Some(key)) => self.key = key,
                _ => self.state = State::Broken,
            },
            Note::ValueBegins { list } => {
                self.begins = at;
                if let Some(opening) = self.prompt() {
                    *opening = Some(Opening { whole: at..at, list, ..Opening::default() });
                }
                if !list {
                    self.item_begins(at);
                }
            }
            Note::ValueEnds { end, list } => self.value_ends(at + end, list),
            Note::ItemBegins => self.item_begins(at),
            Note::ItemEnds { end } => self.item_ends(at + end),
            Note::Ends => self.state = State::Complete,
        }
    }

    fn value_ends(&mut self, end: usize, list: bool) {
        if let Key::Field(at) = self.key
            && let Some(span) = self.fields.get_mut(at)
        {
            *span = Some(self.begins..end);
        }
        if !list {
            self.item_ends(end);
        }
        if let Some(Some(opening)) = self.prompt() {
            opening.complete = true;
        }
    }

    fn item_begins(&mut self, at: usize) {
        self.item_begins = at;
        if let Some(Some(opening)) = self.prompt() {
            opening.begun = Some(at);
        }
    }

    fn item_ends(&mut self, end: usize) {
        let item = self.item_begins..end;
        if let Some(Some(opening)) = self.prompt() {
            opening.begun = None;
            if opening.whole.is_empty() {
                opening.whole.start = item.start;
            }
            opening.whole.end = end;
            if opening.items.len() < MOST_ITEMS {
                opening.items.push(item);
            }
        }
    }

    fn prompt(&mut self) -> Option<&mut Option<Opening>> {
        match self.key {
            Key::Prompt(at) => self.prompts.get_mut(at),
            Key::Other | Key::Field(_) => None,
        }
    }

    /// What is new has to be UTF-8; a character may be cut in two as long as more can come.
    fn check_text(&mut self, body: &[u8]) {
        let new = body.get(self.text..self.read).unwrap_or_default();
        match std::str::from_utf8(new) {
            Ok(_) => self.text = self.read,
            Err(cut) if cut.error_len().is_none() => self.text += cut.valid_up_to(),
            Err(_) => self.state = State::Broken,
        }
    }
}

/// What a key is; `None` when it is no text.
fn key(raw: &[u8]) -> Option<Key> {
    let escaped;
    let mut name = raw.get(1..raw.len().checked_sub(1)?)?;
    if name.contains(&b'\\') {
        let Text(text) = serde_json::from_slice(raw).ok()?;
        escaped = text;
        name = escaped.as_bytes();
    }
    let among = |names: &[&str]| names.iter().position(|known| known.as_bytes() == name);
    let field = among(&FIELDS).map(Key::Field);
    Some(field.or_else(|| among(&PROMPTS).map(Key::Prompt)).unwrap_or_default())
}

/// Borrowed unless it is written with escapes.
#[derive(serde::Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests;
