//! Where the head of an answer ends.

use memchr::memchr;

/// Looks for the end of the head of an answer, interim ones (1xx) passed over, however it is cut.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeadEnd {
    /// Bytes of the current line so far, its end not counted.
    column: usize,
    /// Whether the status line has come.
    begun: bool,
    interim: bool,
}

/// Where a status line has the first digit of its status.
const STATUS: usize = "HTTP/1.1 ".len();

impl HeadEnd {
    /// Looks at the next bytes; where the head ended if it did in these, and then looks for the
    /// next one.
    pub fn find(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while let Some(rest) = bytes.get(at..) {
            let Some(length) = memchr(b'\n', rest) else {
                self.read(rest);
                return None;
            };
            self.read(rest.get(..length).unwrap_or_default());
            at += length + 1;
            let blank = std::mem::take(&mut self.column) == 0;
            if !blank {
                self.begun = true;
            } else if self.begun {
                let interim = self.interim;
                *self = Self::default();
                if !interim {
                    return Some(at);
                }
            }
        }
        None
    }

    /// A piece of a line without its end.
    fn read(&mut self, piece: &[u8]) {
        if !self.begun
            && let Some(digit) = STATUS.checked_sub(self.column).and_then(|at| piece.get(at))
        {
            self.interim = *digit == b'1';
        }
        self.column += piece.strip_suffix(b"\r").unwrap_or(piece).len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_found_however_it_is_cut() {
        for (head, rest) in [
            ("HTTP/1.1 200 OK\r\n\r\n", "5\r\nhello"),
            ("HTTP/1.1 200 OK\r\na: b\r\n\r\n", ""),
            ("\r\nHTTP/1.1 204 \r\na: b\r\n\r\n", "\r\n\r\n"),
            ("HTTP/1.1 200 OK\na: b\n\n", "x\n\n"),
            (
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 \r\na: b\r\n\r\nHTTP/1.1 500 \r\n\r\n",
                "x",
            ),
        ] {
            let all = [head, rest].concat();
            for cut in 0..=all.len() {
                let mut end = HeadEnd::default();
                let (before, after) = all.as_bytes().split_at(cut);
                let found = end.find(before).or_else(|| Some(cut + end.find(after)?));
                assert_eq!(found, Some(head.len()), "{all:?} cut at {cut}");
            }
        }
    }

    #[test]
    fn half_a_head_has_no_end() {
        for half in ["", "\r\n\r\n", "HTTP/1.1 200 OK\r\na: b\r\n", "HTTP/1.1 100 Continue\r\n\r\n"]
        {
            assert_eq!(HeadEnd::default().find(half.as_bytes()), None, "{half:?}");
        }
    }
}
