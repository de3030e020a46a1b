//! A request body on its way to a worker.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

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
    /// Still coming, on a connection that outlives the exchange.
    Leashed(Leash),
}

/// A body that somebody else sends, and that ends with its exchange: hyper would go on taking it from
/// the client after everybody else had left.
#[derive(Debug)]
pub(crate) struct Leash(Arc<Mutex<Held>>);

/// Takes such a body back when it is dropped.
#[derive(Debug)]
pub(super) struct Hold(Arc<Mutex<Held>>);

#[derive(Debug)]
struct Held {
    flow: Option<Box<Flow>>,
    /// Who sends it.
    told: Option<Waker>,
}

impl Outgoing {
    /// The same for a connection that outlives the exchange, and what ends it.
    pub(super) fn leashed(self) -> (Self, Option<Hold>) {
        match self {
            Self::Flowing(flow) => {
                let held = Arc::new(Mutex::new(Held { flow: Some(flow), told: None }));
                (Self::Leashed(Leash(Arc::clone(&held))), Some(Hold(held)))
            }
            other => (other, None),
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut held = lock(&self.0);
        let (flow, told) = (held.flow.take(), held.told.take());
        drop(held);
        drop(flow);
        if let Some(told) = told {
            told.wake();
        }
    }
}

/// A panic under the lock leaves a body that is there or not.
fn lock(held: &Mutex<Held>) -> MutexGuard<'_, Held> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
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
            Self::Leashed(leash) => {
                let mut held = lock(&leash.0);
                let Held { flow, told } = &mut *held;
                let Some(flow) = flow else { return Poll::Ready(Some(Err(Stopped::taken_back()))) };
                let polled = Pin::new(&mut **flow).poll_frame(cx);
                if !told.as_ref().is_some_and(|told| told.will_wake(cx.waker())) {
                    *told = Some(cx.waker().clone());
                }
                polled
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Flowing(_) | Self::Leashed(_) => SizeHint::default(),
        }
    }
}
