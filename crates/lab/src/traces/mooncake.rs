//! The public Mooncake format: one JSON object a line with `timestamp`, `input_length`,
//! `output_length` and `hash_ids`, one for each 512 tokens of the prompt. Equal ids stand for
//! equal blocks after equal prefixes; what the tokens were is not told, so they are made up here.

use std::collections::HashMap;
use std::io::{self, BufRead};

use serde::{Deserialize, Serialize};

use super::{Body, Request, Trace, between};
use crate::dice::Dice;

const BLOCK: usize = 512;

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Milliseconds.
    pub timestamp: u64,
    /// Tokens of the prompt.
    pub input_length: usize,
    /// Tokens of the answer.
    pub output_length: usize,
    /// The blocks of the prompt.
    pub hash_ids: Vec<u64>,
}

/// Reads a file of the format.
///
/// # Errors
/// When reading fails or a line is none of the format, which the error names.
pub fn read(name: &str, lines: impl BufRead) -> io::Result<Trace> {
    let mut read = Vec::new();
    for (number, line) in lines.lines().enumerate() {
        let line = line?;
        if line.trim().is_empty() {
            continue;
        }
        let why = |error| {
            io::Error::new(io::ErrorKind::InvalidData, format!("line {}: {error}", number + 1))
        };
        read.push(serde_json::from_str(&line).map_err(why)?);
    }
    Ok(trace(name, &read))
}

/// The requests that the lines stand for.
#[must_use]
pub fn trace(name: &str, lines: &[Line]) -> Trace {
    let mut heads: HashMap<&[u64], usize> = HashMap::new();
    let mut conversations = 0;
    let mut requests = Vec::new();
    for line in lines {
        let ids = line.hash_ids.as_slice();
        // The last block is seldom full, so the next turn gives it another id.
        let head = |len: usize| ids.get(..len).unwrap_or_default();
        let known = (1..=ids.len()).rev().find_map(|len| heads.get(head(len)).copied());
        let conversation = known.unwrap_or_else(|| {
            conversations += 1;
            conversations - 1
        });
        heads.insert(head(ids.len().saturating_sub(1).max(1)), conversation);
        requests.push(Request {
            at: line.timestamp,
            conversation,
            opens: known.is_none(),
            prompt: Body::Tokens(tokens(line)),
            answer: "".into(),
            answer_tokens: line.output_length,
        });
    }
    Trace::new(name.to_owned(), requests)
}

fn tokens(line: &Line) -> Vec<u32> {
    let block = |id: &u64| {
        let mut dice = Dice::new(*id);
        std::iter::repeat_with(move || dice.below(1 << 17) as u32).take(BLOCK)
    };
    line.hash_ids.iter().flat_map(block).take(line.input_length).collect()
}

/// A sample in the format: conversations over a few shared beginnings, and documents asked about.
#[must_use]
pub fn sample(conversations: usize, turns: usize, seed: u64) -> Vec<Line> {
    let mut dice = Dice::new(seed);
    let mut next = 0;
    let mut fresh = |count: usize| {
        let ids: Vec<u64> = (next..next + count as u64).collect();
        next += count as u64;
        ids
    };
    let beginnings: Vec<Vec<u64>> = [1, 2, 4, 12].into_iter().map(&mut fresh).collect();
    let mut lines = Vec::new();
    for conversation in 0..conversations {
        let mut ids = beginnings.get(dice.below(beginnings.len())).cloned().unwrap_or_default();
        let mut timestamp = conversation as u64 * 700;
        for _ in 0..between(&mut dice, 1, turns) {
            ids.extend(fresh(between(&mut dice, 1, 6)));
            let output_length = between(&mut dice, 20, 600);
            let last = fresh(1);
            let mut hash_ids = ids.clone();
            hash_ids.extend(last);
            let input_length = ids.len() * BLOCK + between(&mut dice, 1, BLOCK - 1);
            lines.push(Line { timestamp, input_length, output_length, hash_ids });
            timestamp += between(&mut dice, 3_000, 40_000) as u64;
        }
    }
    lines.sort_by_key(|line| line.timestamp);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let lines = sample(10, 4, 1);
        let file: String =
            lines.iter().map(|line| serde_json::to_string(line).unwrap() + "\n").collect();
        let read = read("sample", file.as_bytes()).unwrap();
        assert_eq!(read.requests.len(), lines.len());
        for (request, line) in read.requests.iter().zip(&lines) {
            let Body::Tokens(tokens) = &request.prompt else { panic!("no tokens") };
            assert_eq!((tokens.len(), request.at), (line.input_length, line.timestamp));
        }
        assert_eq!(read.requests.iter().filter(|request| request.opens).count(), 10);
    }

    #[test]
    fn equal_blocks_are_equal_tokens_and_a_bad_line_is_named() {
        let line = |ids: &[u64], len| Line {
            timestamp: 0,
            input_length: len,
            output_length: 1,
            hash_ids: ids.to_vec(),
        };
        let (one, other) = (tokens(&line(&[1, 2], 1000)), tokens(&line(&[1, 3], 600)));
        assert_eq!((one.len(), other.len()), (1000, 600));
        assert_eq!(one[..512], other[..512]);
        assert_ne!(one[512..600], other[512..]);
        let bad = read("bad", "\n{\"timestamp\":1}\n".as_bytes()).unwrap_err();
        assert!(bad.to_string().starts_with("line 2: missing field"), "{bad}");
    }
}
