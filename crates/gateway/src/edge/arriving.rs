//! A request body as its client sends it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::presence::Presence;

/// hyper's, and who is told that it flows.
#[derive(Debug)]
pub(crate) struct Arriving {
    body: Incoming,
    /// None of HTTP/2, where windows say how much is sent ahead.
    presence: Option<Arc<Presence>>,
}

impl Arriving {
    /// Of a connection that has its requests one after the other.
    pub(super) fn over_http1(body: Incoming, presence: &Arc<Presence>) -> Self {
        Self { body, presence: Some(Arc::clone(presence)) }
    }

    /// Of one stream of many.
    pub(super) const fn over_http2(body: Incoming) -> Self {
        Self { body, presence: None }
    }

    /// The rest goes to a worker as it comes: large pieces are worth their room.
    pub(crate) fn flows(&self) {
        if let Some(presence) = &self.presence {
            presence.flow();
        }
    }
}

impl Body for Arriving {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
