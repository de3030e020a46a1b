//! The beginning of a body, read before a worker is chosen (issue on the body path, "Peek").

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body as _, Frame};
use http_body_util::BodyExt as _;
use smg_decide::retry::Fault;
use smg_wire::error::Refusal;
use smg_wire::peek::{Field, Peek, State};
use tokio::time::timeout;

use super::budget::Charge;
use super::{Bounds, no_room, too_slow};
use crate::edge::Arriving;

/// How far a beginning is looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look<'a> {
    /// `--routing-key-peek-bytes`.
    pub(crate) most: usize,
    /// What it is enough to know; all there is if that is nothing.
    pub(crate) wanted: &'a [Field],
    /// `--stream-body-stall-timeout-secs`.
    pub(crate) stall: Option<Duration>,
}

/// Why a beginning was not seen.
#[derive(Debug)]
pub(crate) enum Unseen {
    /// The client broke it off.
    Broken(Fault),
    /// It took too long, or too much memory with all others.
    Refused(Refusal),
}

/// A body whose beginning has been looked at.
#[derive(Debug)]
pub(crate) struct Begun {
    /// What was taken of it; nothing when nobody looked.
    pub(crate) start: Bytes,
    /// What it says.
    pub(crate) peek: Peek,
    pub(crate) rest: Arriving,
    /// Whether as much of it was seen as may be.
    full: bool,
}

impl Begun {
    /// A body that nobody has looked at.
    pub(crate) fn unread(body: Arriving) -> Self {
        Self { start: Bytes::new(), peek: Peek::default(), rest: body, full: false }
    }

    /// What it says, as a body of its own.
    pub(crate) fn known(&self) -> Vec<u8> {
        if self.start.is_empty() { Vec::new() } else { self.peek.known(&self.start) }
    }

    /// The messages that the conversation opens with.
    pub(crate) fn opening_messages(&self) -> Option<&[u8]> {
        let whole = self.peek.opening_messages(&self.start);
        let begun = || self.peek.opening_begun(&self.start).filter(|_| self.full);
        self.start.get(whole.or_else(begun)?)
    }

    /// Whether some of it has still to be read.
    pub(crate) fn is_coming(&self) -> bool {
        !self.rest.is_end_stream()
    }

    /// Looks at the first bytes, no more than there may be and no more than it takes. Every wait for the
    /// client is as long as when the body flows, and all of them together are as long as those for a
    /// body that is read whole; what is held meanwhile counts as that does, too.
    ///
    /// # Errors
    /// When the client stalls or gives up, or is one too many.
    pub(crate) async fn look(
        body: Arriving,
        look: Look<'_>,
        bounds: &Bounds,
    ) -> Result<Self, Unseen> {
        let looked = timeout(bounds.time, look.at(body, bounds)).await;
        looked.unwrap_or_else(|_| Err(Unseen::Refused(too_slow(bounds.time))))
    }
}

impl Look<'_> {
    async fn at(self, mut body: Arriving, bounds: &Bounds) -> Result<Begun, Unseen> {
        let mut peek = Peek::default();
        let mut start = Bytes::new();
        let mut more = BytesMut::new();
        let mut charge = Charge::none(bounds.budget.clone());
        let full = loop {
            let seen = if more.is_empty() { &start[..] } else { &more[..] };
            // What came with it, and is more than may be looked at, stays unread.
            let seen = seen.get(..self.most).unwrap_or(seen);
            let state = peek.read(seen);
            let full = seen.len() >= self.most;
            if state != State::NeedsMore || self.knows(&peek) || full {
                break full;
            }
            let Some(came) = self.next(&mut body).await? else { break false };
            let Ok(data) = came.into_data() else { continue };
            if start.is_empty() {
                start = data;
                continue;
            }
            if more.is_empty() {
                more.extend_from_slice(&start);
            }
            more.extend_from_slice(&data);
            if !charge.grow(more.len()) {
                return Err(Unseen::Refused(no_room()));
            }
        };
        if !more.is_empty() {
            start = charge.keep(more.freeze());
        }
        Ok(Begun { start, peek, rest: body, full })
    }

    fn knows(&self, peek: &Peek) -> bool {
        !self.wanted.is_empty() && self.wanted.iter().all(|field| peek.span(*field).is_some())
    }

    async fn next(&self, body: &mut Arriving) -> Result<Option<Frame<Bytes>>, Unseen> {
        let came = match self.stall {
            None => body.frame().await,
            Some(stall) => timeout(stall, body.frame())
                .await
                .map_err(|_| Unseen::Broken(Fault::UploadStalled))?,
        };
        came.transpose().map_err(|_| Unseen::Broken(Fault::UploadAborted))
    }
}
