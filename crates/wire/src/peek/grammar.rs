//! JSON byte by byte, with nothing kept but where it stands.

use memchr::memchr2;

use crate::json::MAX_DEPTH;

/// What a byte means for who follows the top level of the object.
#[derive(Clone, Copy, Debug)]
pub(super) enum Note {
    /// A key begins here.
    Begins,
    /// It ends with this byte.
    KeyEnds,
    /// A value begins here, whose items come on their own if it is a list.
    ValueBegins { list: bool },
    /// A value ends `end` bytes behind the start of this one.
    ValueEnds { end: usize, list: bool },
    /// An item of a list that is a value begins.
    ItemBegins,
    /// It ends.
    ItemEnds { end: usize },
    /// The object ends.
    Ends,
}

/// A byte can end a number and whatever that stands in.
pub(super) type Notes = [Option<Note>; 2];

/// What may come next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Next {
    /// The object.
    #[default]
    Object,
    /// A key, or the end of its object.
    KeyOrEnd,
    /// A key.
    Key,
    /// What parts key and value.
    Colon,
    /// A value.
    Value,
    /// A value, or the end of its list.
    ValueOrEnd,
    /// A comma, or the end.
    CommaOrEnd,
    /// More of a string, and whether it is a key.
    String { key: bool, escape: Escape },
    /// More of a number.
    Number(Number),
    /// More of `true`, `false` or `null`.
    Word(&'static [u8]),
    /// Space.
    Nothing,
}

/// Where in an escape a string stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    No,
    Begun,
    /// So many hex digits are missing.
    Hex(u8),
}

/// What a number has so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Minus,
    Zero,
    Digits,
    Point,
    Fraction,
    E,
    Sign,
    Exponent,
}

/// Follows one text.
#[derive(Clone, Debug, Default)]
pub(super) struct Grammar {
    next: Next,
    /// One bit for each open bracket, set for lists; the outermost is the highest of those in use.
    lists: u128,
    depth: usize,
}

const _: () = assert!(MAX_DEPTH <= 128, "a bit for each level");

impl Grammar {
    /// Whether the object has begun.
    pub(super) fn has_begun(&self) -> bool {
        self.next != Next::Object
    }

    /// Takes a byte; an error when no JSON can have it here.
    pub(super) fn step(&mut self, byte: u8) -> Result<Notes, ()> {
        let mut notes = Notes::default();
        match self.next {
            Next::String { key, escape } => self.string(byte, key, escape, &mut notes)?,
            Next::Word(rest) => self.word(byte, rest, &mut notes)?,
            Next::Number(so_far) => match so_far.and(byte) {
                Some(number) => self.next = Next::Number(number),
                None if so_far.is_whole() => {
                    self.ended(0, false, &mut notes);
                    self.between(byte, &mut notes)?;
                }
                None => return Err(()),
            },
            _ => self.between(byte, &mut notes)?,
        }
        Ok(notes)
    }

    /// How many of these bytes are plain text of a string, which changes nothing: most of a body.
    pub(super) fn skips(&self, bytes: &[u8]) -> usize {
        let Next::String { escape: Escape::No, .. } = self.next else { return 0 };
        let end = memchr2(b'"', b'\\', bytes).unwrap_or(bytes.len());
        let plain = bytes.get(..end).unwrap_or_default();
        // The whole stretch at once, as a branch for each byte would cost more than the search.
        match plain.iter().fold(false, |any, byte| any | (*byte < 0x20)) {
            true => plain.iter().position(|byte| *byte < 0x20).unwrap_or(end),
            false => end,
        }
    }

    fn string(&mut self, byte: u8, key: bool, escape: Escape, notes: &mut Notes) -> Result<(), ()> {
        let escape = match (escape, byte) {
            (Escape::No, b'"') => {
                if key {
                    self.next = Next::Colon;
                    if self.depth == 1 {
                        add(notes, Note::KeyEnds);
                    }
                } else {
                    self.ended(1, false, notes);
                }
                return Ok(());
            }
            (Escape::No, b'\\') => Escape::Begun,
            (Escape::No, 0..=0x1f) => return Err(()),
            (Escape::No, _) => Escape::No,
            (Escape::Begun, b'u') => Escape::Hex(4),
            (Escape::Begun, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Escape::No,
            (Escape::Hex(1), b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => Escape::No,
            (Escape::Hex(left), b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => Escape::Hex(left - 1),
            _ => return Err(()),
        };
        self.next = Next::String { key, escape };
        Ok(())
    }

    fn word(&mut self, byte: u8, rest: &'static [u8], notes: &mut Notes) -> Result<(), ()> {
        match rest.split_first() {
            Some((first, [])) if *first == byte => self.ended(1, false, notes),
            Some((first, rest)) if *first == byte => self.next = Next::Word(rest),
            _ => return Err(()),
        }
        Ok(())
    }

    /// A byte between strings, numbers and words.
    fn between(&mut self, byte: u8, notes: &mut Notes) -> Result<(), ()> {
        match (self.next, byte) {
            (_, b' ' | b'\n' | b'\r' | b'\t') => {}
            (Next::Object, b'{') => self.open(false)?,
            (Next::KeyOrEnd | Next::Key, b'"') => {
                self.next = Next::String { key: true, escape: Escape::No };
                if self.depth == 1 {
                    add(notes, Note::Begins);
                }
            }
            (Next::Colon, b':') => self.next = Next::Value,
            (Next::CommaOrEnd, b',') => {
                self.next = if self.in_list() { Next::Value } else { Next::Key };
            }
            (Next::KeyOrEnd, b'}') => self.close(notes),
            (Next::ValueOrEnd, b']') => self.close(notes),
            (Next::CommaOrEnd, b'}') if !self.in_list() => self.close(notes),
            (Next::CommaOrEnd, b']') if self.in_list() => self.close(notes),
            (Next::Value | Next::ValueOrEnd, _) => self.value(byte, notes)?,
            _ => return Err(()),
        }
        Ok(())
    }

    fn value(&mut self, byte: u8, notes: &mut Notes) -> Result<(), ()> {
        match self.depth {
            1 => add(notes, Note::ValueBegins { list: byte == b'[' }),
            2 if self.in_list() => add(notes, Note::ItemBegins),
            _ => {}
        }
        self.next = match byte {
            b'{' | b'[' => return self.open(byte == b'['),
            b'"' => Next::String { key: false, escape: Escape::No },
            b't' => Next::Word(b"rue"),
            b'f' => Next::Word(b"alse"),
            b'n' => Next::Word(b"ull"),
            b'-' => Next::Number(Number::Minus),
            b'0' => Next::Number(Number::Zero),
            b'1'..=b'9' => Next::Number(Number::Digits),
            _ => return Err(()),
        };
        Ok(())
    }

    fn open(&mut self, list: bool) -> Result<(), ()> {
        if self.depth == MAX_DEPTH {
            return Err(());
        }
        self.depth += 1;
        self.lists = self.lists << 1 | u128::from(list);
        self.next = if list { Next::ValueOrEnd } else { Next::KeyOrEnd };
        Ok(())
    }

    fn close(&mut self, notes: &mut Notes) {
        let list = self.in_list();
        self.depth -= 1;
        self.lists >>= 1;
        if self.depth == 0 {
            self.next = Next::Nothing;
            add(notes, Note::Ends);
        } else {
            self.ended(1, list, notes);
        }
    }

    /// A value ended, `end` bytes behind the start of this one.
    fn ended(&mut self, end: usize, list: bool, notes: &mut Notes) {
        self.next = Next::CommaOrEnd;
        match self.depth {
            1 => add(notes, Note::ValueEnds { end, list }),
            2 if self.in_list() => add(notes, Note::ItemEnds { end }),
            _ => {}
        }
    }

    fn in_list(&self) -> bool {
        self.lists & 1 == 1
    }
}

impl Number {
    /// With one byte more, if that can be.
    fn and(self, byte: u8) -> Option<Self> {
        match (self, byte) {
            (Self::Minus, b'0') => Some(Self::Zero),
            (Self::Minus, b'1'..=b'9') | (Self::Digits, b'0'..=b'9') => Some(Self::Digits),
            (Self::Zero | Self::Digits, b'.') => Some(Self::Point),
            (Self::Point | Self::Fraction, b'0'..=b'9') => Some(Self::Fraction),
            (Self::Zero | Self::Digits | Self::Fraction, b'e' | b'E') => Some(Self::E),
            (Self::E, b'+' | b'-') => Some(Self::Sign),
            (Self::E | Self::Sign | Self::Exponent, b'0'..=b'9') => Some(Self::Exponent),
            _ => None,
        }
    }

    fn is_whole(self) -> bool {
        matches!(self, Self::Zero | Self::Digits | Self::Fraction | Self::Exponent)
    }
}

/// No byte has more to note than there is room for.
fn add(notes: &mut Notes, note: Note) {
    if let Some(free) = notes.iter_mut().find(|slot| slot.is_none()) {
        *free = Some(note);
    }
}
