//! Server-sent events, as far as a relay has to know them: where one frame ends.

use bytes::Bytes;

use crate::route::Dialect;

/// A frame that says nothing, for a client that waits: a comment, or what Anthropic's clients know.
#[must_use]
pub const fn keepalive(dialect: Dialect) -> Bytes {
    match dialect {
        Dialect::OpenAi | Dialect::Responses => Bytes::from_static(b": keep-alive\n\n"),
        Dialect::Anthropic => Bytes::from_static(b"event: ping\ndata: {\"type\": \"ping\"}\n\n"),
    }
}

/// Follows a stream and knows whether it stands between two events.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tail {
    /// The last four bytes; zeros before the first.
    last: [u8; 4],
}

impl Tail {
    /// Takes note of what was relayed.
    pub fn feed(&mut self, chunk: &[u8]) {
        for byte in chunk.iter().skip(chunk.len().saturating_sub(4)) {
            let [_, a, b, c] = self.last;
            self.last = [a, b, c, *byte];
        }
    }

    /// Whether an event may follow here: at the start, or after a blank line in any of the three
    /// line endings.
    #[must_use]
    pub const fn between_events(&self) -> bool {
        matches!(
            self.last,
            [0, 0, 0, 0] | [_, _, b'\n', b'\n'] | [_, _, b'\r', b'\r'] | [_, b'\n', b'\r', b'\n']
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blank_lines_end_an_event_however_the_bytes_are_cut() {
        for (stream, between) in [
            ("", true),
            ("data: a\n\n", true),
            ("data: a\r\n\r\n", true),
            ("data: a\r\r", true),
            ("data: a\n", false),
            ("data: a\r\n", false),
            ("data: a\n\ndata: b", false),
            (": note\n\n", true),
        ] {
            for cut in 0..=stream.len() {
                let mut tail = Tail::default();
                tail.feed(&stream.as_bytes()[..cut]);
                tail.feed(&stream.as_bytes()[cut..]);
                assert_eq!(tail.between_events(), between, "{stream:?} cut at {cut}");
            }
        }
    }
}
