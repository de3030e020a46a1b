//! The beginning of a body, read before a worker is chosen (issue on the body path, "Peek").

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use smg_decide::retry::Fault;
use smg_wire::peek::{Field, Peek, State};
use tokio::time::timeout;

/// A body whose beginning has been looked at.
#[derive(Debug)]
pub(crate) struct Begun {
    /// What was taken of it; nothing when nobody looked.
    pub(crate) start: Bytes,
    /// What it says.
    pub(crate) peek: Peek,
    pub(crate) rest: Incoming,
}

impl Begun {
    /// A body that nobody has looked at.
    pub(crate) fn unread(body: Incoming) -> Self {
        Self { start: Bytes::new(), peek: Peek::default(), rest: body }
    }

    /// What it says, as a body of its own.
    pub(crate) fn known(&self) -> Vec<u8> {
        if self.start.is_empty() { Vec::new() } else { self.peek.known(&self.start) }
    }

    /// The messages that the conversation opens with.
    pub(crate) fn opening_messages(&self) -> Option<&[u8]> {
        self.start.get(self.peek.opening_messages(&self.start)?)
    }

    /// Looks at the first `most` bytes, or at fewer once `wanted` are known. Every wait for the client
    /// lasts `stall` at most, as it does when the body flows.
    ///
    /// # Errors
    /// When the client stalls or gives up.
    pub(crate) async fn look(
        mut body: Incoming,
        most: usize,
        wanted: &[Field],
        stall: Option<Duration>,
    ) -> Result<Self, Fault> {
        let mut peek = Peek::default();
        let mut start = Bytes::new();
        let mut more = BytesMut::new();
        loop {
            let seen = if more.is_empty() { &start[..] } else { &more[..] };
            // What came with it, and is more than may be looked at, stays unread.
            let seen = seen.get(..most).unwrap_or(seen);
            let state = peek.read(seen);
            let known =
                !wanted.is_empty() && wanted.iter().all(|field| peek.span(*field).is_some());
            if state != State::NeedsMore || known || seen.len() >= most {
                break;
            }
            let came = match stall {
                None => body.frame().await,
                Some(stall) => {
                    timeout(stall, body.frame()).await.map_err(|_| Fault::UploadStalled)?
                }
            };
            let Some(came) = came else { break };
            let Ok(data) = came.map_err(|_| Fault::UploadAborted)?.into_data() else { continue };
            if start.is_empty() {
                start = data;
            } else {
                if more.is_empty() {
                    more.extend_from_slice(&start);
                }
                more.extend_from_slice(&data);
            }
        }
        if !more.is_empty() {
            start = more.freeze();
        }
        Ok(Self { start, peek, rest: body })
    }
}
