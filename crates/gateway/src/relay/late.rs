//! An answer that begins before its worker's does: a stream that a client waits for is kept alive
//! with frames of its own (`--sse-keepalive-secs`), so that nobody between takes it for dead. The
//! status is 200 by then; whatever comes of the request after that is told in the stream.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_ENCODING;
use http_body::{Body, Frame};
use smg_wire::error::{late_event, stream_event};
use smg_wire::route::Dialect;
use smg_wire::sse::keepalive;

use super::{Broken, ReplyBody};
use crate::edge::Reply;
use crate::lull::Lull;

/// A request that is still being carried out.
pub(crate) type Coming = Pin<Box<dyn Future<Output = Reply> + Send>>;

/// The body of an answer that has begun without it.
pub(crate) struct Late {
    stage: Stage,
    silence: Lull,
    /// A frame is due: its client has waited for as long as it may.
    due: bool,
    dialect: Dialect,
}

enum Stage {
    Coming(Coming),
    Streaming(Box<ReplyBody>),
    Over,
}

impl fmt::Debug for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Late").field("dialect", &self.dialect).finish_non_exhaustive()
    }
}

impl Late {
    /// For a request that has been waited for as long as that.
    pub(crate) fn new(coming: Coming, every: Duration, dialect: Dialect) -> Self {
        Self { stage: Stage::Coming(coming), silence: Lull::of(every), due: true, dialect }
    }

    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        loop {
            match &mut self.stage {
                Stage::Coming(coming) => match coming.as_mut().poll(cx) {
                    Poll::Ready(reply) => {
                        if let Some(event) = self.settle(reply) {
                            return Poll::Ready(Some(Ok(Frame::data(event))));
                        }
                    }
                    Poll::Pending => {
                        if !std::mem::take(&mut self.due) {
                            ready!(self.silence.poll(cx));
                        }
                        return Poll::Ready(Some(Ok(Frame::data(keepalive(self.dialect)))));
                    }
                },
                // It keeps itself alive.
                Stage::Streaming(body) => return Pin::new(&mut **body).poll_frame(cx),
                Stage::Over => return Poll::Ready(None),
            }
        }
    }

    /// The request has been answered: a stream goes on, anything else is one event.
    fn settle(&mut self, reply: Reply) -> Option<Bytes> {
        let (status, packed) = (reply.status(), reply.headers().contains_key(CONTENT_ENCODING));
        let mut body = reply.into_body();
        if packed {
            // Nobody asked for that, and the head that would say so is gone.
            self.stage = Stage::Over;
            let what = "The worker's answer came compressed after the stream had begun.";
            return Some(stream_event(self.dialect, "upstream_error", what));
        }
        match body.take_whole() {
            None => {
                self.stage = Stage::Streaming(Box::new(body));
                None
            }
            Some(whole) => {
                self.stage = Stage::Over;
                Some(late_event(self.dialect, status, &whole))
            }
        }
    }
}
