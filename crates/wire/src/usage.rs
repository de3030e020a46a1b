//! What an answer says of its prompt: how many tokens it had, and how many came from the cache.
//!
//! Read from the numbers behind a few known keys, wherever they stand, so that one search for what
//! all of them end in is all that an event costs. The last number of each counts, as in a stream
//! whose usage grows. Text cannot be taken for a key: a quote in a JSON text has a backslash.

use std::sync::LazyLock;

use memchr::memmem::Finder;

/// Tokens of the prompt of one answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// All of them.
    pub prompt: u64,
    /// Those that the engine had in its cache.
    pub cached: u64,
}

/// What every key of interest ends in.
const ENDING: &[u8] = b"_tokens\"";
/// As many bytes as a key and its number can take, so that one which is cut in two is found.
const SEAM: usize = 64;

static FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(ENDING));

/// Reads an answer as it passes by.
#[derive(Clone, Debug)]
pub struct Reader {
    said: Said,
    /// The end of what has passed.
    seam: [u8; SEAM],
    held: usize,
}

/// The last number of each kind.
#[derive(Clone, Copy, Debug, Default)]
struct Said {
    prompt: Option<u64>,
    cached: Option<u64>,
    /// Anthropic's parts of a prompt that `input_tokens` leaves out.
    read: Option<u64>,
    created: Option<u64>,
}

impl Default for Reader {
    fn default() -> Self {
        Self { said: Said::default(), seam: [0; SEAM], held: 0 }
    }
}

impl Reader {
    /// Takes the next bytes.
    pub fn feed(&mut self, chunk: &[u8]) {
        let mut joined = [0; SEAM * 2];
        let begins = chunk.len().min(SEAM);
        let length = self.held + begins;
        if let (Some(room), Some(held), Some(begin)) =
            (joined.get_mut(..length), self.seam.get(..self.held), chunk.get(..begins))
        {
            let (first, second) = room.split_at_mut(self.held);
            first.copy_from_slice(held);
            second.copy_from_slice(begin);
        }
        let joined = joined.get(..length).unwrap_or_default();
        self.said.scan(joined);
        if chunk.len() > SEAM {
            self.said.scan(chunk);
        }
        let last = if chunk.len() >= SEAM { chunk } else { joined };
        let last = last.get(last.len().saturating_sub(SEAM)..).unwrap_or_default();
        if let Some(seam) = self.seam.get_mut(..last.len()) {
            seam.copy_from_slice(last);
            self.held = last.len();
        }
    }

    /// What was said so far; `None` when nothing was.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        self.said.usage()
    }
}

/// What a whole answer says. Of a list of answers, as `/generate` gives for a list of prompts, it is
/// the sum.
#[must_use]
pub fn of(answer: &[u8]) -> Option<Usage> {
    if answer.trim_ascii_start().first() == Some(&b'[') {
        return sum(answer);
    }
    let mut said = Said::default();
    said.scan(answer);
    said.usage()
}

fn sum(answers: &[u8]) -> Option<Usage> {
    let mut sum: Option<Usage> = None;
    for (kind, number) in numbers(answers) {
        let sum = sum.get_or_insert_default();
        match kind {
            Kind::Prompt => sum.prompt = sum.prompt.saturating_add(number),
            Kind::Cached => sum.cached = sum.cached.saturating_add(number),
            Kind::Read | Kind::Created => {}
        }
    }
    sum
}

impl Said {
    fn scan(&mut self, bytes: &[u8]) {
        for (kind, number) in numbers(bytes) {
            let slot = match kind {
                Kind::Prompt => &mut self.prompt,
                Kind::Cached => &mut self.cached,
                Kind::Read => &mut self.read,
                Kind::Created => &mut self.created,
            };
            *slot = Some(number);
        }
    }

    fn usage(&self) -> Option<Usage> {
        let Self { prompt, cached, read, created } = *self;
        let left_out = read.unwrap_or(0).saturating_add(created.unwrap_or(0));
        let prompt = prompt?.saturating_add(left_out);
        // An engine may say the same in both ways.
        let cached = cached.unwrap_or(0).max(read.unwrap_or(0)).min(prompt);
        Some(Usage { prompt, cached })
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Prompt,
    Cached,
    Read,
    Created,
}

/// The numbers behind the keys of interest, in the order in which they stand.
fn numbers(bytes: &[u8]) -> impl Iterator<Item = (Kind, u64)> {
    FINDER.find_iter(bytes).filter_map(|at| {
        let (before, rest) = bytes.split_at_checked(at)?;
        let kind = kind(before)?;
        Some((kind, number(rest.get(ENDING.len()..)?)?))
    })
}

/// Which key it is that ends here.
fn kind(before: &[u8]) -> Option<Kind> {
    const KEYS: [(&[u8], Kind); 5] = [
        (b"prompt", Kind::Prompt),
        (b"input", Kind::Prompt),
        (b"cached", Kind::Cached),
        (b"cache_read_input", Kind::Read),
        (b"cache_creation_input", Kind::Created),
    ];
    let opened = before.len().checked_sub(1 + before.iter().rev().position(|b| *b == b'"')?)?;
    let key = before.get(opened + 1..)?;
    // A quote within a text.
    if opened > 0 && before.get(opened - 1) == Some(&b'\\') {
        return None;
    }
    KEYS.iter().find(|(name, _)| *name == key).map(|(_, kind)| *kind)
}

/// The whole number behind a key, if it ends here: the rest of one that is cut off comes later.
fn number(rest: &[u8]) -> Option<u64> {
    let digits = rest.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
    let end = digits.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(digits.get(..end)?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPENAI: &str = r#"data: {"choices":[{"delta":{"content":"\"prompt_tokens\": 9"}}],"usage":null}

data: {"choices":[],"usage":{"prompt_tokens":1200,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens": 1100 }}}

data: [DONE]

"#;
    const ANTHROPIC: &str = r#"event: message_start
data: {"type":"message_start","message":{"usage":{"input_tokens":30,"cache_creation_input_tokens":100,"cache_read_input_tokens":1000,"output_tokens":1}}}

event: message_delta
data: {"type":"message_delta","usage":{"output_tokens":15}}

"#;
    const RESPONSES: &str = r#"data: {"type":"response.completed","response":{"max_output_tokens":5,"usage":{"input_tokens":40,"input_tokens_details":{"cached_tokens":32},"output_tokens":2}}}

"#;
    const GENERATE: &str = r#"data: {"text":"a","meta_info":{"prompt_tokens":64,"cached_tokens":0,"completion_tokens":1}}

data: {"text":"ab","meta_info":{"prompt_tokens":64,"cached_tokens":48,"completion_tokens":2}}

"#;

    #[test]
    fn every_dialect_is_read_however_its_stream_is_cut() {
        for (stream, prompt, cached) in
            [(OPENAI, 1200, 1100), (ANTHROPIC, 1130, 1000), (RESPONSES, 40, 32), (GENERATE, 64, 48)]
        {
            let wanted = Some(Usage { prompt, cached });
            assert_eq!(of(stream.as_bytes()), wanted);
            for cut in 0..=stream.len() {
                let mut reader = Reader::default();
                let (before, after) = stream.as_bytes().split_at(cut);
                [before, after].iter().for_each(|chunk| reader.feed(chunk));
                assert_eq!(reader.usage(), wanted, "{stream:?} cut at {cut}");
            }
            for size in 1..SEAM * 2 {
                let mut reader = Reader::default();
                stream.as_bytes().chunks(size).for_each(|chunk| reader.feed(chunk));
                assert_eq!(reader.usage(), wanted, "{stream:?} in pieces of {size}");
            }
        }
    }

    #[test]
    fn text_is_no_usage() {
        for answer in [
            r#"{"content":"\"prompt_tokens\":5,"}"#,
            r#"{"content":"\"prompt_tokens"}"#,
            r#"{"max_tokens":5,"completion_tokens":5}"#,
            r#"{"prompt_tokens":null}"#,
            r#"{"prompt_tokens":-5}"#,
            r#"{"prompt_tokens":99999999999999999999999}"#,
            "",
        ] {
            assert_eq!(of(answer.as_bytes()), None, "{answer}");
        }
    }

    #[test]
    fn a_list_of_answers_is_summed() {
        let answer = br#" [{"meta_info":{"prompt_tokens":10,"cached_tokens":4}},
            {"meta_info":{"prompt_tokens":20,"cached_tokens":16}}]"#;
        assert_eq!(of(answer), Some(Usage { prompt: 30, cached: 20 }));
        assert_eq!(of(b"[]"), None);
    }

    #[test]
    fn no_more_is_cached_than_there_is() {
        let answer = br#"{"usage":{"prompt_tokens":10,"cached_tokens":40}}"#;
        assert_eq!(of(answer), Some(Usage { prompt: 10, cached: 10 }));
    }
}
