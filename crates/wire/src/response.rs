//! Ids of responses: which may stand in a path, and where an answer of `/v1/responses` tells its own.

use crate::json::seek::text_at;

/// Longest id that is asked for.
const MAX_ID: usize = 256;
/// A stream tells its id at once; nobody looks for it any further.
const MAX_SEARCHED: usize = 64 * 1024;

/// Whether this can be the id of a response. Anything else would lead elsewhere in a worker's paths.
#[must_use]
pub fn is_id(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:~".contains(&byte);
    !text.is_empty()
        && text.len() <= MAX_ID
        && text.bytes().all(plain)
        && text.bytes().any(|byte| byte != b'.')
}

/// The id in a whole answer.
#[must_use]
pub fn id_of(answer: &[u8]) -> Option<String> {
    text_at(answer, &["id"]).filter(|id| is_id(id))
}

/// Looks for the id in a stream, which the first event that shows the response tells.
#[derive(Debug, Default)]
pub struct Search {
    /// What came so far without an id in it.
    held: Vec<u8>,
    over: bool,
}

impl Search {
    /// Takes the next bytes; the id when it is among them.
    pub fn feed(&mut self, chunk: &[u8]) -> Option<String> {
        if self.over {
            return None;
        }
        let found = if self.held.is_empty() {
            id_in(chunk)
        } else {
            self.held.extend_from_slice(chunk);
            id_in(&self.held)
        };
        if found.is_some() || self.held.len().max(chunk.len()) > MAX_SEARCHED {
            self.over = true;
            self.held = Vec::new();
        } else if self.held.is_empty() {
            self.held.extend_from_slice(chunk);
        }
        found.filter(|id| is_id(id))
    }
}

fn id_in(events: &[u8]) -> Option<String> {
    let lines = events.split(|byte| matches!(byte, b'\n' | b'\r'));
    let mut data = lines.filter_map(|line| line.strip_prefix(b"data:"));
    data.find_map(|json| text_at(json, &["response", "id"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_lead_nowhere_else() {
        for id in ["resp_0aF-9", "a", "r.1:2~3", &"x".repeat(MAX_ID)] {
            assert!(is_id(id), "{id}");
        }
        for id in ["", ".", "..", "a/b", "a?b", "a#b", "a%2f", "ä", "a b", &"x".repeat(257)] {
            assert!(!is_id(id), "{id}");
        }
    }

    #[test]
    fn an_answer_tells_its_id_however_its_stream_is_cut() {
        assert_eq!(id_of(br#"{"object":"response","id":"resp_1"}"#).as_deref(), Some("resp_1"));
        assert_eq!(id_of(br#"{"id":"a/b"}"#), None);
        let stream = concat!(
            ": hello\n\n",
            "event: response.created\r\n",
            "data: {\"type\":\"response.created\",\"response\":{\"object\":\"response\",\"id\":\"resp_1\",\"tools\":[]}}\r\n\r\n",
            "data: {\"type\":\"response.in_progress\",\"response\":{\"id\":\"resp_1\"}}\n\n",
        );
        for cut in 0..=stream.len() {
            let mut search = Search::default();
            let (before, after) = stream.as_bytes().split_at(cut);
            let found: Vec<_> = [before, after].iter().filter_map(|c| search.feed(c)).collect();
            assert_eq!(found, ["resp_1"], "cut at {cut}");
        }
    }

    #[test]
    fn a_stream_without_an_id_is_not_kept() {
        let mut search = Search::default();
        for _ in 0..100 {
            assert_eq!(search.feed(&[b'x'; 1000]), None);
            assert!(search.held.len() <= MAX_SEARCHED);
        }
        assert!(search.over && search.held.capacity() == 0);
    }
}
