//! A streamed answer as a response body. The body is the run: when hyper drops it, because the
//! client went away, the run is dropped with it wherever it stood.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};

use super::Core;
use super::ask::Ask;
use super::reply::Letterhead;
use super::run::Run;

/// The next bytes, and how to go on after them.
type Step = Pin<Box<dyn Future<Output = Option<(Bytes, Scribe)>> + Send>>;

pub(super) struct Events {
    step: Option<Step>,
}

impl Events {
    pub(super) fn new(core: Arc<Core>, ask: Ask, head: Letterhead) -> Self {
        let scribe = Scribe { head, stage: Stage::Asked(core, ask) };
        Self { step: Some(Box::pin(scribe.next())) }
    }
}

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(step) = &mut self.step else {
            return Poll::Ready(None);
        };
        let next = ready!(step.as_mut().poll(context));
        let (bytes, step) = match next {
            Some((bytes, scribe)) => (Some(bytes), Some(Box::pin(scribe.next()) as Step)),
            None => (None, None),
        };
        self.step = step;
        Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// Writes one answer down as events.
struct Scribe {
    head: Letterhead,
    stage: Stage,
}

enum Stage {
    Asked(Arc<Core>, Ask),
    Speaking(Run),
    Done,
}

impl Scribe {
    async fn next(self) -> Option<(Bytes, Self)> {
        let mut events = BytesMut::new();
        let (mut run, begins) = match self.stage {
            Stage::Asked(core, ask) => (Run::begin(core, &ask).await, true),
            Stage::Speaking(run) => (run, false),
            Stage::Done => return None,
        };
        if begins {
            let opening = self.head.opening(run.usage());
            opening.iter().for_each(|piece| self.head.event(&mut events, piece));
        }
        let stage = if let Some(word) = run.word().await {
            let text = self.head.text(&spaced(word, run.usage().generated));
            self.head.event(&mut events, &text);
            Stage::Speaking(run)
        } else {
            let closing = self.head.closing(run.ending(), run.usage());
            closing.iter().for_each(|piece| self.head.event(&mut events, piece));
            events.extend_from_slice(self.head.last_line());
            Stage::Done
        };
        Some((events.freeze(), Self { stage, ..self }))
    }
}

/// A word as it stands in the text: all but the first have a space before them.
pub(super) fn spaced(word: &str, nth: usize) -> String {
    let space = if nth > 1 { " " } else { "" };
    format!("{space}{word}")
}
