//! What is read of an answer as it passes by: its usage, and the id of a response that its worker keeps.

use std::sync::Arc;

use smg_decide::fleet::WorkerId;
use smg_wire::response::{Search, id_of};
use smg_wire::route::{Carries, Dialect, Inference};
use smg_wire::usage::{self, Usage};

use crate::session::Responses;

/// What is to be read, and what has been.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    usage: Option<usage::Reader>,
    whole: Option<Usage>,
    id: Option<Kept>,
}

/// A response that will be asked for.
#[derive(Debug)]
struct Kept {
    search: Search,
    responses: Arc<Responses>,
    worker: WorkerId,
}

impl Notes {
    /// For a good answer of this route by `worker`.
    pub(crate) fn of(inference: &Inference, responses: &Arc<Responses>, worker: WorkerId) -> Self {
        let made = inference.dialect == Dialect::Responses && inference.carries == Carries::Json;
        Self {
            usage: inference.reads_prompts().then(usage::Reader::default),
            whole: None,
            id: made.then(|| Kept {
                search: Search::default(),
                responses: Arc::clone(responses),
                worker,
            }),
        }
    }

    /// Reads the next bytes of a stream.
    pub(super) fn pass(&mut self, chunk: &[u8]) {
        if let Some(reader) = &mut self.usage {
            reader.feed(chunk);
        }
        if let Some(Kept { search, responses, worker }) = &mut self.id
            && let Some(id) = search.feed(chunk)
        {
            responses.remember(&id, *worker);
            self.id = None;
        }
    }

    /// Reads a whole answer.
    pub(super) fn read(&mut self, answer: &[u8]) {
        self.whole = self.usage.take().and_then(|_| usage::of(answer));
        if let Some(Kept { responses, worker, .. }) = self.id.take()
            && let Some(id) = id_of(answer)
        {
            responses.remember(&id, worker);
        }
    }

    pub(super) fn usage(&self) -> Option<Usage> {
        self.whole.or_else(|| self.usage.as_ref()?.usage())
    }
}
