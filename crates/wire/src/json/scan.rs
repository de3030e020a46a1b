//! One JSON object, checked and taken apart at memory speed: what is long in a body is long strings, and
//! those are searched for their end, not read.
//!
//! It only ever says yes. Whatever is not plainly right is left to the parser, which may see it
//! differently and has the words for what is wrong.

use memchr::{Memchr2, memchr2_iter};

use super::MAX_DEPTH;

/// Looked through at a time for control characters.
const STRIDE: usize = 4096;

/// Shows each top-level field, name and raw value, in order. `None` when the parser has to judge: also
/// when a name is written with escapes.
pub(super) fn object<'a>(text: &'a str, mut field: impl FnMut(&'a str, &'a str)) -> Option<()> {
    let mut scanner = Scanner {
        text,
        at: 0,
        stops: memchr2_iter(b'"', b'\\', text.as_bytes()),
        clean: is_clean(text.as_bytes()),
    };
    scanner.expect(b'{')?;
    if scanner.peek()? == b'}' {
        scanner.at += 1;
        return scanner.end();
    }
    loop {
        scanner.expect(b'"')?;
        let name = scanner.text.get(scanner.at..)?;
        scanner.string()?;
        let name = name.get(..name.len() - scanner.rest().len() - 1)?;
        if name.contains('\\') {
            return None;
        }
        scanner.expect(b':')?;
        scanner.peek()?;
        let value = scanner.text.get(scanner.at..)?;
        scanner.value()?;
        field(name, value.get(..value.len() - scanner.rest().len())?);
        match scanner.next()? {
            b',' => {}
            b'}' => return scanner.end(),
            _ => return None,
        }
    }
}

/// Whether there is no control character at all, so that no string has to be searched for one.
fn is_clean(bytes: &[u8]) -> bool {
    // Each stride is looked at whole, which a machine does sixteen and more bytes at once.
    let dirty = |stride: &[u8]| stride.iter().fold(false, |dirty, &byte| dirty | (byte < b' '));
    !bytes.chunks(STRIDE).any(dirty)
}

struct Scanner<'a> {
    text: &'a str,
    at: usize,
    /// Where quotes and backslashes stand, as far as they were not passed.
    stops: Memchr2<'a>,
    clean: bool,
}

/// The objects and lists around a place inside a top-level field, innermost in the lowest bit: one for
/// an object.
#[derive(Default)]
struct Around {
    objects: u128,
    depth: usize,
}

impl Around {
    /// `None` when it becomes too deep; the top-level object counts.
    fn push(&mut self, object: bool) -> Option<()> {
        self.depth += 1;
        self.objects = self.objects << 1 | u128::from(object);
        (self.depth < MAX_DEPTH).then_some(())
    }

    fn pop(&mut self) {
        self.depth -= 1;
        self.objects >>= 1;
    }

    fn in_object(&self) -> bool {
        self.objects & 1 == 1
    }
}

impl Scanner<'_> {
    fn rest(&self) -> &[u8] {
        self.text.as_bytes().get(self.at..).unwrap_or_default()
    }

    /// The next byte that is no white space, which is left where it is.
    fn peek(&mut self) -> Option<u8> {
        let white = |byte: &u8| matches!(byte, b' ' | b'\n' | b'\t' | b'\r');
        loop {
            let byte = *self.text.as_bytes().get(self.at)?;
            if !white(&byte) {
                return Some(byte);
            }
            self.at += 1;
        }
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.next()? == byte).then_some(())
    }

    /// Nothing but white space is left.
    fn end(&mut self) -> Option<()> {
        self.peek().is_none().then_some(())
    }

    /// Passes over one value, however much is in it.
    fn value(&mut self) -> Option<()> {
        let mut around = Around::default();
        loop {
            if self.begins(&mut around)? && self.ended(&mut around)? {
                return Some(());
            }
        }
    }

    /// Passes over what a value begins with; true when that was all of it.
    fn begins(&mut self, around: &mut Around) -> Option<bool> {
        match self.next()? {
            b'"' => self.string()?,
            b'{' => {
                around.push(true)?;
                if self.peek()? != b'}' {
                    self.name()?;
                    return Some(false);
                }
                self.at += 1;
                around.pop();
            }
            b'[' => {
                around.push(false)?;
                if self.peek()? != b']' {
                    return Some(false);
                }
                self.at += 1;
                around.pop();
            }
            b't' => self.word(b"rue")?,
            b'f' => self.word(b"alse")?,
            b'n' => self.word(b"ull")?,
            first => self.number(first)?,
        }
        Some(true)
    }

    /// Goes on behind a value to where the next begins; true when none does.
    fn ended(&mut self, around: &mut Around) -> Option<bool> {
        while around.depth > 0 {
            match (self.next()?, around.in_object()) {
                (b',', true) => {
                    self.name()?;
                    return Some(false);
                }
                (b',', false) => return Some(false),
                (b'}', true) | (b']', false) => around.pop(),
                _ => return None,
            }
        }
        Some(true)
    }

    /// Passes over a name and its colon.
    fn name(&mut self) -> Option<()> {
        self.expect(b'"')?;
        self.string()?;
        self.expect(b':')
    }

    /// Passes over the rest of a string whose quote was taken.
    fn string(&mut self) -> Option<()> {
        loop {
            let begin = self.at;
            let stop = self.stops.find(|stop| *stop >= begin)?;
            let bytes = self.text.as_bytes();
            if !self.clean && !is_clean(bytes.get(begin..stop)?) {
                return None;
            }
            if bytes.get(stop) == Some(&b'"') {
                self.at = stop + 1;
                return Some(());
            }
            self.at = match bytes.get(stop + 1)? {
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => stop + 2,
                b'u' if bytes.get(stop + 2..stop + 6)?.iter().all(u8::is_ascii_hexdigit) => {
                    stop + 6
                }
                _ => return None,
            };
        }
    }

    fn word(&mut self, rest: &[u8]) -> Option<()> {
        let is = self.rest().starts_with(rest);
        self.at += rest.len();
        is.then_some(())
    }

    /// Passes over the rest of a number.
    fn number(&mut self, first: u8) -> Option<()> {
        let mut digit = first;
        if first == b'-' {
            digit = *self.rest().first()?;
            self.at += 1;
        }
        match digit {
            b'0' if self.rest().first().is_some_and(u8::is_ascii_digit) => return None,
            b'0' => {}
            b'1'..=b'9' => {
                self.digits();
            }
            _ => return None,
        }
        if self.rest().first() == Some(&b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.rest().first(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.rest().first(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Some(())
    }

    /// Passes over digits; `None` if there is none.
    fn digits(&mut self) -> Option<()> {
        let digits = self.rest().iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += digits;
        (digits > 0).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;
    use serde_json::value::RawValue;
    use std::collections::BTreeMap;

    use super::*;

    /// The last value of each field.
    fn scanned(text: &str) -> Option<BTreeMap<&str, &str>> {
        let mut fields = BTreeMap::new();
        object(text, |name, value| {
            fields.insert(name, value);
        })?;
        Some(fields)
    }

    fn parsed(text: &str) -> Option<BTreeMap<String, &RawValue>> {
        serde_json::from_str(text).ok()
    }

    /// Whether both agree, as far as the scanner says anything.
    fn agrees(text: &str) -> bool {
        let Some(scanned) = scanned(text) else { return true };
        let Some(parsed) = parsed(text) else { return false };
        let parsed: Vec<_> = parsed.iter().map(|(name, raw)| (&**name, raw.get())).collect();
        parsed == scanned.into_iter().collect::<Vec<_>>()
    }

    #[test]
    fn what_is_plainly_right_needs_no_parser() {
        for text in [
            "{}",
            " { } ",
            r#"{"a":"","b":[],"c":{},"d":[[],{}],"e":{"f":[1,-0,0.5,1e9,-1.5E-3,10]}}"#,
            r#"{"a" : true , "b" : [ false , null ] , "é" : "\"\\\/\b\f\n\r\t\u00e9\ud800" }"#,
            "{\n  \"a\": \"text\",\r\n\t\"b\": {\n \"c\" : [\n1\n,\n2\n]\n}\n}\n",
        ] {
            assert!(scanned(text).is_some() && agrees(text), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_or_odd_is_left_to_the_parser() {
        for text in [
            "",
            " ",
            "{",
            "[]",
            "1",
            "{}x",
            "{},",
            r#"{"a"}"#,
            r#"{"a":}"#,
            r#"{"a":1,}"#,
            r#"{,}"#,
            r#"{"a":1 "b":2}"#,
            r#"{"a":[1,]}"#,
            r#"{"a":[,1]}"#,
            r#"{"a":[1}}"#,
            r#"{"a":{"b":1]}"#,
            r#"{"a":{"b"}}"#,
            r#"{"a":{"b":1,}}"#,
            r#"{"a":{1:1}}"#,
            r#"{"a":"}"#,
            r#"{"a":"\x"}"#,
            r#"{"a":"\u12g4"}"#,
            r#"{"a":"\u12"}"#,
            r#"{"a":"\"}"#,
            "{\"a\":\"\n\"}",
            "{\"\t\":1}",
            "{\n\"a\":\"\u{1f}\"}",
            r#"{"a":01}"#,
            r#"{"a":-}"#,
            r#"{"a":1.}"#,
            r#"{"a":.5}"#,
            r#"{"a":1e}"#,
            r#"{"a":1e+}"#,
            r#"{"a":+1}"#,
            r#"{"a":tru}"#,
            r#"{"a":nul"#,
            r#"{"a":NaN}"#,
            r#"{"\u0061":1}"#,
        ] {
            assert!(scanned(text).is_none() && agrees(text), "{text}");
        }
    }

    #[test]
    fn too_deep_is_left_to_the_parser() {
        for (depth, sane) in [(MAX_DEPTH - 1, true), (MAX_DEPTH, false), (10 * MAX_DEPTH, false)] {
            let lists = format!(r#"{{"a":{}{}}}"#, "[".repeat(depth), "]".repeat(depth));
            assert_eq!(scanned(&lists).is_some(), sane, "{depth}");
            let objects = format!(r#"{{"a":{}1{}}}"#, r#"{"b":"#.repeat(depth), "}".repeat(depth));
            assert_eq!(scanned(&objects).is_some(), sane, "{depth}");
        }
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".{0,12}".prop_map(Value::from),
        ];
        leaf.prop_recursive(6, 40, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::btree_map("[a-zé ]{0,4}", inner, 0..5)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn it_agrees_with_the_parser(text in r#"\{"[a-c]":[{}\[\]",:a-e0-9\\ unltrfs.\-+\n]{0,40}\}"#) {
            prop_assert!(agrees(&text));
        }

        #[test]
        fn any_object_is_read_without_the_parser(
            map in prop::collection::btree_map("[a-zé ]{0,4}", json(), 0..5), pretty: bool,
        ) {
            let text = if pretty { serde_json::to_string_pretty(&map) } else { serde_json::to_string(&map) };
            let text = text.unwrap();
            prop_assert!(scanned(&text).is_some() && agrees(&text), "{}", text);
        }

        #[test]
        fn one_broken_byte_is_noticed(
            map in prop::collection::btree_map("[a-z]{0,4}", json(), 1..5), at: prop::sample::Index, to in r#"[{}\[\]",:0e\\\- \n]"#,
        ) {
            let mut text = serde_json::to_string(&map).unwrap();
            let starts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
            let at = starts[at.index(starts.len())];
            let end = at + text[at..].chars().next().unwrap().len_utf8();
            text.replace_range(at..end, &to);
            prop_assert!(agrees(&text), "{}", text);
        }
    }
}
