//! Text deltas of a chat stream, joined and cut anew (001, "Delta Re-Slicing for MiniMax Models").
//!
//! An engine sends a token an event; MiniMax's contract bounds the length of a delta. So text is
//! held back until there is enough of it for a slice, and whatever must not overtake it waits behind
//! it. Only where events begin and end changes: the joined text is the worker's, to the character.
//!
//! The machine is pure. Whoever drives it calls [`Reslicer::flush_idle`] once the worker has been
//! silent for [`IDLE`] while something [is held back](Reslicer::has_pending).

use std::time::Duration;

mod envelope;
mod event;
mod frame;
mod lanes;
mod profile;

pub use profile::selects;

use envelope::Envelope;
use event::{Choices, Delta, Event};
use frame::Frame;
use lanes::Lanes;

/// Silence of the worker after which everything held back goes out.
pub const IDLE: Duration = Duration::from_millis(250);

/// Longest frame that is waited for; a longer one ends the re-slicing.
pub const MAX_FRAME: usize = 1 << 20;

/// Follows one chat stream and writes it anew. What it writes depends on the bytes alone, not on
/// how they are cut into chunks.
#[derive(Debug, Default)]
pub struct Reslicer {
    /// The beginning of a frame whose end has not come yet.
    held: Vec<u8>,
    /// As much of it has been searched for its end.
    searched: usize,
    /// From here on bytes pass as they are.
    verbatim: bool,
    /// The role that the client has seen last.
    role: String,
    /// The index of the stream's one choice, as written.
    index: Option<String>,
    envelope: Envelope,
    lanes: Lanes,
}

impl Reslicer {
    /// Takes the next bytes of the worker and writes what the client shall have now.
    pub fn feed(&mut self, chunk: &[u8], out: &mut Vec<u8>) {
        if self.verbatim {
            out.extend_from_slice(chunk);
            return;
        }
        let mut held = std::mem::take(&mut self.held);
        held.extend_from_slice(chunk);
        let mut rest = held.as_slice();
        while let Some((frame, behind)) = frame::split(rest, self.searched) {
            if self.verbatim || frame.len() > MAX_FRAME {
                break;
            }
            self.searched = 0;
            self.frame(frame, out);
            rest = behind;
        }
        if self.verbatim || rest.len() > MAX_FRAME {
            self.give_up(rest, out);
            return;
        }
        self.searched = rest.len();
        let used = held.len() - rest.len();
        held.drain(..used);
        self.held = held;
    }

    /// Writes all text that is held back, however little: the worker has been silent for [`IDLE`].
    pub fn flush_idle(&mut self, out: &mut Vec<u8>) {
        self.flush(out);
    }

    /// The worker's answer is complete. What never became a frame goes out as it came.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        self.flush(out);
        out.append(&mut self.held);
        self.searched = 0;
    }

    /// The worker's answer broke off: what is held back goes out before the caller's error frame.
    /// Half a frame does not, since the error would become part of it.
    pub fn fail(&mut self, out: &mut Vec<u8>) {
        self.flush(out);
        self.held.clear();
        self.searched = 0;
    }

    /// Whether text is held back, so that silence has to be noticed.
    #[must_use]
    pub fn has_pending(&self) -> bool {
        !self.lanes.is_empty()
    }

    fn frame(&mut self, frame: &[u8], out: &mut Vec<u8>) {
        match frame::read(frame) {
            Frame::Nothing => out.extend_from_slice(frame),
            Frame::Foreign => self.pass(frame, out),
            Frame::Done => {
                self.pass(frame, out);
                self.verbatim = true;
            }
            Frame::Data { comments, data } => match event::read(data) {
                None => self.pass(frame, out),
                Some(event) => self.event((frame, &comments), &event, out),
            },
        }
    }

    fn event(&mut self, from: (&[u8], &str), event: &Event<'_>, out: &mut Vec<u8>) {
        let (frame, comments) = from;
        let choice = match &event.choices {
            Choices::None => {
                self.envelope.around_choices(event);
                return self.pass(frame, out);
            }
            Choices::Many => return self.give_up(frame, out),
            Choices::One(choice) => choice,
        };
        // Choices that come one an event are more than one choice all the same.
        let index = choice.index.unwrap_or("0");
        if self.index.get_or_insert_with(|| index.to_owned()) != index {
            return self.give_up(frame, out);
        }
        self.envelope.around_delta(event, choice);
        let Some(delta) = &choice.delta else {
            // What cannot be taken apart goes whole (001: logprobs stay with their text).
            if let Some(role) = choice.role() {
                role.clone_into(&mut self.role);
            }
            return self.pass(frame, out);
        };
        if delta.is_empty() && (event.closes() || self.lanes.is_empty()) {
            return self.pass(frame, out);
        }
        if !comments.is_empty() {
            out.extend_from_slice(comments.as_bytes());
            out.push(b'\n');
        }
        self.delta(delta, out);
        if event.closes() {
            self.flush(out);
            envelope::rest(event, choice, out);
        }
    }

    /// The role before the text, the text before a tool call opens, that before its arguments.
    fn delta(&mut self, delta: &Delta<'_>, out: &mut Vec<u8>) {
        if let Some(role) = delta.role.as_deref().filter(|role| *role != self.role) {
            role.clone_into(&mut self.role);
            self.flush(out);
            self.envelope.role(role, delta.empty_content, out);
        }
        for (field, text) in delta.texts() {
            self.lanes.push(field, text, |slice| self.envelope.slice(slice, out));
        }
        for call in &delta.calls {
            if let Some(opening) = &call.opening {
                self.flush(out);
                self.envelope.opening(opening, out);
            }
            let field = lanes::Field::Arguments(call.index.into());
            self.lanes.push(field, &call.arguments, |slice| self.envelope.slice(slice, out));
        }
    }

    fn flush(&mut self, out: &mut Vec<u8>) {
        self.lanes.flush(|slice| self.envelope.slice(slice, out));
    }

    /// This frame as it is, behind the text that came before it.
    fn pass(&mut self, frame: &[u8], out: &mut Vec<u8>) {
        self.flush(out);
        out.extend_from_slice(frame);
    }

    /// From here on everything as it is.
    fn give_up(&mut self, from_here: &[u8], out: &mut Vec<u8>) {
        self.pass(from_here, out);
        self.verbatim = true;
    }
}

#[cfg(test)]
mod laws;
#[cfg(test)]
mod tests;
