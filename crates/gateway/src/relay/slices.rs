//! A chat stream whose text is cut anew on its way (001, "Delta Re-Slicing for MiniMax Models").

use std::task::{Context, Poll};

use bytes::Bytes;
use smg_wire::reslice::{IDLE, Reslicer};

use crate::lull::Lull;

/// The machine and its clock.
#[derive(Debug)]
pub(super) struct Slices {
    machine: Reslicer,
    /// Since the worker's last byte.
    silence: Lull,
}

impl Slices {
    pub(super) fn new() -> Self {
        Self { machine: Reslicer::default(), silence: Lull::of(IDLE) }
    }

    /// What the client gets for the worker's next bytes; maybe nothing yet.
    pub(super) fn feed(&mut self, chunk: &[u8]) -> Bytes {
        self.silence.ends();
        let mut out = Vec::new();
        self.machine.feed(chunk, &mut out);
        out.into()
    }

    /// What was held back, once the worker has been silent for long enough.
    pub(super) fn poll_silence(&mut self, cx: &mut Context<'_>) -> Poll<Bytes> {
        if !self.machine.has_pending() {
            return Poll::Pending;
        }
        self.silence.poll(cx).map(|()| {
            let mut out = Vec::new();
            self.machine.flush_idle(&mut out);
            out.into()
        })
    }

    /// What is left when the worker's answer ends.
    pub(super) fn finish(mut self) -> Bytes {
        let mut out = Vec::new();
        self.machine.finish(&mut out);
        out.into()
    }

    /// What is left of text when it breaks off.
    pub(super) fn fail(mut self) -> Vec<u8> {
        let mut out = Vec::new();
        self.machine.fail(&mut out);
        out
    }
}
