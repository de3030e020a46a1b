//! One frame of the stream: where it ends, and what kind it is.

use std::borrow::Cow;

use memchr::memchr2_iter;

/// What a frame is.
pub(super) enum Frame<'a> {
    /// Comments and blank lines only: nobody's event, so in nobody's order.
    Nothing,
    /// The end of the events.
    Done,
    /// One line of data, and the comments beside it.
    Data {
        /// Whole lines; empty when there are none.
        comments: Cow<'a, str>,
        /// The line without its field name.
        data: &'a str,
    },
    /// Anything else: no UTF-8, other fields, data of several lines.
    Foreign,
}

/// The first frame, its blank line included, and what follows; `None` when it does not end here.
/// `searched` bytes are known not to end it. Line endings as in [`crate::sse`].
pub(super) fn split(bytes: &[u8], searched: usize) -> Option<(&[u8], &[u8])> {
    let new = bytes.get(searched..)?;
    let ends = memchr2_iter(b'\n', b'\r', new).map(|at| searched + at + 1);
    ends.filter_map(|end| bytes.split_at_checked(end)).find(|(frame, _)| is_whole(frame))
}

fn is_whole(frame: &[u8]) -> bool {
    frame.ends_with(b"\n\n") || frame.ends_with(b"\r\r") || frame.ends_with(b"\n\r\n")
}

/// Tells the kinds apart.
pub(super) fn read(frame: &[u8]) -> Frame<'_> {
    let Ok(text) = std::str::from_utf8(frame) else { return Frame::Foreign };
    let mut comments = Cow::Borrowed("");
    let mut found = None;
    for line in text.split(['\n', '\r']).filter(|line| !line.is_empty()) {
        if line.starts_with(':') {
            let comments = comments.to_mut();
            comments.push_str(line);
            comments.push('\n');
            continue;
        }
        match line.strip_prefix("data:") {
            Some(data) if found.is_none() => found = Some(data.strip_prefix(' ').unwrap_or(data)),
            _ => return Frame::Foreign,
        }
    }
    match found {
        None => Frame::Nothing,
        Some(data) if data.trim() == "[DONE]" => Frame::Done,
        Some(data) => Frame::Data { comments, data },
    }
}
