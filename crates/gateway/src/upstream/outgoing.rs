//! A request body on its way to a worker.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::body::{Flow, Stopped};

/// All of it, or what arrives as it goes.
#[derive(Debug)]
pub(crate) enum Outgoing {
    /// Held, so that its length is told; what was handed to the connection is held there alone.
    Whole(Bytes),
    /// Still coming, in chunks.
    Flowing(Box<Flow>),
}

impl Default for Outgoing {
    /// None.
    fn default() -> Self {
        Self::Whole(Bytes::new())
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = Stopped;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Stopped>>> {
        match self.get_mut() {
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Flowing(flow) => Pin::new(&mut **flow).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Flowing(_) => SizeHint::default(),
        }
    }
}
