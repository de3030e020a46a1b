//! A request body that goes to the worker as it arrives.
//!
//! The worker's connection asks for it, so a worker that reads slowly slows its client down, and the
//! watchdog's clock runs only while it is the client that is waited for (001, "Stalled and Aborted
//! Uploads").

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use smg_decide::retry::Fault;

use crate::edge::Arriving;
use crate::lull::Lull;

/// What bounds a body that flows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Banks {
    /// `--max-payload-size`.
    pub(crate) bytes: usize,
    /// `--stream-body-stall-timeout-secs`; `None` for a client that may take its time.
    pub(crate) stall: Option<Duration>,
}

/// A body on its way from the client to a worker.
#[derive(Debug)]
pub(crate) struct Flow {
    /// What was taken of the body before, and goes first.
    start: Bytes,
    body: Arriving,
    /// Bytes that may still come.
    left: usize,
    /// How long the client is waited for.
    watchdog: Option<Lull>,
    upload: Upload,
}

/// How an upload ended, for whoever has to answer for it; shared with the body, which its worker's
/// connection has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Upload(Arc<OnceLock<Result<(), Fault>>>);

/// Tells a worker's connection that the rest of the body will not come.
#[derive(Debug)]
pub(crate) struct Stopped(Fault);

impl Upload {
    /// Whether there is more to come.
    pub(crate) fn is_going(&self) -> bool {
        self.0.get().is_none()
    }

    /// What went wrong with it, if something did.
    pub(crate) fn fault(&self) -> Option<Fault> {
        self.0.get().and_then(|ended| ended.err())
    }

    /// It ends once.
    fn ended(&self, how: Result<(), Fault>) {
        let _ = self.0.set(how);
    }
}

impl Stopped {
    /// For a body whose exchange is over.
    pub(crate) const fn taken_back() -> Self {
        Self(Fault::UploadAborted)
    }
}

impl Flow {
    /// What is left of a body, after what was taken of it.
    pub(crate) fn new(start: Bytes, body: Arriving, banks: Banks) -> Self {
        body.flows();
        Self {
            start,
            body,
            left: banks.bytes,
            watchdog: banks.stall.map(Lull::of),
            upload: Upload::default(),
        }
    }

    /// How it stands.
    pub(crate) fn upload(&self) -> Upload {
        self.upload.clone()
    }

    fn pass(&mut self, data: Bytes) -> Poll<Option<Result<Frame<Bytes>, Stopped>>> {
        match self.left.checked_sub(data.len()) {
            Some(left) => {
                self.left = left;
                Poll::Ready(Some(Ok(Frame::data(data))))
            }
            None => self.stop(Fault::UploadTooLarge),
        }
    }

    fn stop(&self, fault: Fault) -> Poll<Option<Result<Frame<Bytes>, Stopped>>> {
        self.upload.ended(Err(fault));
        Poll::Ready(Some(Err(Stopped(fault))))
    }
}

impl Body for Flow {
    type Data = Bytes;
    type Error = Stopped;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Stopped>>> {
        if !self.start.is_empty() {
            let start = std::mem::take(&mut self.start);
            return self.pass(start);
        }
        loop {
            let Poll::Ready(came) = Pin::new(&mut self.body).poll_frame(cx) else {
                let Some(watchdog) = &mut self.watchdog else { return Poll::Pending };
                ready!(watchdog.poll(cx));
                return self.stop(Fault::UploadStalled);
            };
            if let Some(watchdog) = &mut self.watchdog {
                watchdog.ends();
            }
            let Some(came) = came else {
                self.upload.ended(Ok(()));
                return Poll::Ready(None);
            };
            let Ok(frame) = came else { return self.stop(Fault::UploadAborted) };
            // Trailers end at this hop.
            let Ok(data) = frame.into_data() else { continue };
            return self.pass(data);
        }
    }
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.code())
    }
}

impl std::error::Error for Stopped {}
