//! Rust text told apart into code, comments and string literals, line by line.
//!
//! No parser: the checks ask about words and lines, and a parser would be this crate's largest dependency. The scanner
//! knows what it must not fall for: nested comments, raw strings, escapes, and quotes that start a lifetime.

/// One line of a file. String contents are `~` in `code`, so that a word in a string is no word of the code.
#[derive(Debug, Default, Clone)]
pub(crate) struct Line {
    pub(crate) code: String,
    pub(crate) comment: String,
}

/// A string literal: the line it starts on (from 1) and what is between its quotes, escapes as written.
#[derive(Debug)]
pub(crate) struct Literal {
    pub(crate) line: usize,
    pub(crate) text: String,
}

#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) path: String,
    pub(crate) lines: Vec<Line>,
    pub(crate) literals: Vec<Literal>,
}

impl Source {
    pub(crate) fn scan(path: &str, text: &str) -> Self {
        let mut scanner = Scanner {
            chars: text.chars().collect(),
            at: 0,
            lines: vec![Line::default()],
            literals: vec![],
        };
        while scanner.step() {}
        Self { path: path.to_owned(), lines: scanner.lines, literals: scanner.literals }
    }

    /// Lines with their numbers, from 1.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = (usize, &Line)> {
        self.lines.iter().enumerate().map(|(index, line)| (index + 1, line))
    }

    /// For each line: is it test code? A file under `tests/` or named `tests.rs` is; so is any item under `cfg(test)`.
    pub(crate) fn test_lines(&self) -> Vec<bool> {
        let whole = self.path.split('/').any(|part| part == "tests" || part == "tests.rs");
        let mut marks = vec![whole; self.lines.len()];
        let mut item: Option<Item> = None;
        for (mark, line) in marks.iter_mut().zip(&self.lines) {
            let starts = line.code.contains("#[cfg(")
                && has_word(&line.code, "test")
                && !line.code.contains("not(test");
            if item.is_none() && starts {
                item = Some(Item::default());
            }
            if let Some(open) = &mut item {
                *mark = true;
                // The attribute itself holds brackets and parentheses only, so it never opens or ends the item.
                if open.ends_in(&line.code) {
                    item = None;
                }
            }
        }
        marks
    }
}

/// How far an item has been read: it ends at its closing brace, or at a semicolon before any brace.
#[derive(Default)]
struct Item {
    depth: usize,
}

impl Item {
    fn ends_in(&mut self, code: &str) -> bool {
        for c in code.chars() {
            match c {
                '{' => self.depth += 1,
                '}' if self.depth <= 1 => return true,
                '}' => self.depth -= 1,
                ';' if self.depth == 0 => return true,
                _ => {}
            }
        }
        false
    }
}

/// Is `word` in `code` as a whole word?
pub(crate) fn has_word(code: &str, word: &str) -> bool {
    words(code).any(|found| found == word)
}

/// The identifiers and numbers of a line, in order.
pub(crate) fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !is_word(c)).filter(|word| !word.is_empty())
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

struct Scanner {
    chars: Vec<char>,
    at: usize,
    lines: Vec<Line>,
    literals: Vec<Literal>,
}

impl Scanner {
    /// Takes the next token or character; false at the end of the text.
    fn step(&mut self) -> bool {
        let Some(c) = self.peek(0) else { return false };
        match (c, self.peek(1)) {
            ('/', Some('/')) => self.line_comment(),
            ('/', Some('*')) => self.block_comment(),
            ('"', _) => self.string(None),
            ('r', Some('#' | '"')) => self.raw_string(),
            ('\'', _) => self.quote(),
            _ => self.take_code(),
        }
        true
    }

    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    /// Takes one character, which goes where `put` says unless it ends the line.
    fn take(&mut self, put: fn(&mut Line, char)) -> Option<char> {
        let c = self.peek(0)?;
        self.at += 1;
        if c == '\n' {
            self.lines.push(Line::default());
        } else if let Some(line) = self.lines.last_mut() {
            put(line, c);
        }
        Some(c)
    }

    fn take_code(&mut self) {
        self.take(|line, c| line.code.push(c));
    }

    fn line_comment(&mut self) {
        while self.peek(0).is_some_and(|c| c != '\n') {
            self.take(|line, c| line.comment.push(c));
        }
    }

    fn block_comment(&mut self) {
        let mut depth = 0_usize;
        loop {
            let step = match (self.peek(0), self.peek(1)) {
                (None, _) => return,
                (Some('/'), Some('*')) => {
                    depth += 1;
                    2
                }
                (Some('*'), Some('/')) => {
                    depth -= 1;
                    2
                }
                _ => 1,
            };
            for _ in 0..step {
                self.take(|line, c| line.comment.push(c));
            }
            if depth == 0 {
                return;
            }
        }
    }

    /// From the opening quote to the closing one; `hashes` is how many `#` close a raw string.
    fn string(&mut self, hashes: Option<usize>) {
        let line = self.lines.len();
        self.take_code();
        let mut text = String::new();
        while let Some(c) = self.peek(0) {
            let closes =
                c == '"' && (1..=hashes.unwrap_or(0)).all(|ahead| self.peek(ahead) == Some('#'));
            if closes {
                self.take_code();
                break;
            }
            // In a plain string a backslash takes the next character with it, a quote above all.
            let step = if c == '\\' && hashes.is_none() { 2 } else { 1 };
            for _ in 0..step {
                text.extend(
                    self.take(|line, c| line.code.push(if c.is_whitespace() { c } else { '~' })),
                );
            }
        }
        self.literals.push(Literal { line, text });
    }

    /// `r"…"`, `r#"…"#`, and the same after `b` or `c`; `r#type` and a name ending in r are plain code.
    fn raw_string(&mut self) {
        let hashes = (1..).take_while(|&ahead| self.peek(ahead) == Some('#')).count();
        let before = self.lines.last().map_or("", |line| line.code.as_str());
        let word = before.rsplit(|c: char| !is_word(c)).next().unwrap_or("");
        let raw = matches!(word, "" | "b" | "c") && self.peek(hashes + 1) == Some('"');
        let prefix = if raw { hashes + 1 } else { 1 };
        for _ in 0..prefix {
            self.take_code();
        }
        if raw {
            self.string(Some(hashes));
        }
    }

    /// A character literal, taken whole so that `'"'` opens no string; or the tick of a lifetime.
    fn quote(&mut self) {
        let length = match (self.peek(1), self.peek(2)) {
            (Some('\\'), _) => {
                (3..).find(|&ahead| matches!(self.peek(ahead), Some('\'') | None)).unwrap_or(0) + 1
            }
            (Some(_), Some('\'')) => 3,
            _ => 1,
        };
        let literal = length > 1;
        for nth in 0..length {
            let edge = !literal || nth == 0 || nth + 1 == length;
            self.take(if edge {
                |line, c| line.code.push(c)
            } else {
                |line, _| line.code.push('~')
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Source;

    fn code(text: &str) -> Vec<String> {
        Source::scan("a.rs", text).lines.into_iter().map(|line| line.code).collect()
    }

    fn literals(text: &str) -> Vec<(usize, String)> {
        Source::scan("a.rs", text).literals.into_iter().map(|l| (l.line, l.text)).collect()
    }

    #[test]
    fn comments_are_no_code() {
        assert_eq!(code("a // b\nc /* d /* e */\nf */ g"), ["a ", "c ", " g"]);
        let source = Source::scan("a.rs", "a // b");
        assert_eq!(source.lines[0].comment, "// b");
    }

    #[test]
    fn strings_are_masked_and_collected() {
        assert_eq!(
            code(r#"f("a // b", 'x', '"', '\'', "\"")"#),
            [r#"f("~ ~~ ~", '~', '~', '~~', "~~")"#]
        );
        assert_eq!(literals("a\n\"b\nc\" \"d\""), [(2, "b\nc".to_owned()), (3, "d".to_owned())]);
    }

    #[test]
    fn raw_strings_end_at_their_own_hashes() {
        assert_eq!(code("r#\"a\"b\"# + br\"\\\" + x"), ["r#\"~~~\"# + br\"~\" + x"]);
        assert_eq!(code("r#type"), ["r#type"]);
        assert_eq!(literals("for\"x\""), [(1, "x".to_owned())]);
    }

    #[test]
    fn lifetimes_open_nothing() {
        assert_eq!(code("fn f<'a>(x: &'a str) // '"), ["fn f<'a>(x: &'a str) "]);
    }

    #[test]
    fn an_unfinished_string_or_comment_ends_with_the_text() {
        assert_eq!(code("\"abc").len(), 1);
        assert_eq!(code("/* abc").len(), 1);
        assert_eq!(code("'\\").len(), 1);
    }

    #[test]
    fn test_items_are_marked_to_their_closing_brace() {
        let source =
            Source::scan("a.rs", "fn a() {}\n#[cfg(test)]\nmod t {\n fn b() {}\n}\nfn c() {}");
        assert_eq!(source.test_lines(), [false, true, true, true, true, false]);
        let source = Source::scan("a.rs", "#[cfg(test)]\nmod tests;\nfn a() {}");
        assert_eq!(source.test_lines(), [true, true, false]);
        let source = Source::scan("a.rs", "#[cfg(not(test))]\nfn a() {}");
        assert_eq!(source.test_lines(), [false, false]);
        assert_eq!(Source::scan("x/tests/a.rs", "fn a() {}").test_lines(), [true]);
        assert_eq!(Source::scan("x/src/a/tests.rs", "fn a() {}").test_lines(), [true]);
    }
}
