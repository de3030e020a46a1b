//! One request on its way through the engine: it waits for a slot, reads its prompt, and speaks.
//!
//! Whatever it holds it holds by value, so dropping it at any await gives everything back. That is
//! all there is to a client that goes away.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep, sleep_until};

use super::Core;
use super::ask::Ask;
use super::cache::Hold;
use super::tokens::{self, Voice};

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    Stop,
    Length,
}

impl Ending {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

/// What a request used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) prompt: usize,
    pub(super) cached: usize,
    pub(super) generated: usize,
}

/// A request that holds a slot and has read its prompt.
#[derive(Debug)]
pub(super) struct Run {
    core: Arc<Core>,
    _slot: Option<OwnedSemaphorePermit>,
    hold: Hold,
    /// The prompt, and after it what has been said so far.
    tokens: Vec<u32>,
    voice: Voice,
    usage: Usage,
    limit: usize,
    ending: Ending,
    began: Instant,
    decoding: bool,
    finished: bool,
}

impl Run {
    /// Waits for a slot, then for the prompt to be read.
    pub(super) async fn begin(core: Arc<Core>, ask: &Ask) -> Self {
        core.tally.requests.fetch_add(1, Relaxed);
        let slot = in_line(&core, &ask.prompt).await;
        let mut run = Self::new(core, slot, ask);
        run.read().await;
        run
    }

    fn new(core: Arc<Core>, slot: Option<OwnedSemaphorePermit>, ask: &Ask) -> Self {
        let (limit, ending) = ask.length(&core.profile);
        core.tally.running.fetch_add(1, Relaxed);
        Self {
            core,
            _slot: slot,
            hold: Hold::default(),
            tokens: ask.prompt.clone(),
            voice: Voice::answering(&ask.prompt),
            usage: Usage {
                prompt: ask.prompt.len(),
                cached: 0,
                generated: 0,
            },
            limit,
            ending,
            began: Instant::now(),
            decoding: false,
            finished: false,
        }
    }

    async fn read(&mut self) {
        let core = Arc::clone(&self.core);
        let turn = core.reading.lock().await;
        // The last token is always computed: it is what the first answer token comes from.
        let known = self.tokens.split_last().map_or(&[][..], |(_, known)| known);
        self.hold = core.cache().acquire(known);
        self.usage.cached = self.hold.blocks() * core.profile.block_tokens.max(1);
        let tally = &core.tally;
        tally
            .prompt_tokens
            .fetch_add(count(self.usage.prompt), Relaxed);
        tally
            .cached_tokens
            .fetch_add(count(self.usage.cached), Relaxed);

        let missing = self.usage.prompt - self.usage.cached;
        sleep(core.profile.prefill_time(missing)).await;
        core.cache().insert(&mut self.hold, &self.tokens);
        drop(turn);
        self.began = Instant::now();
        self.decoding = true;
        tally.decoding.fetch_add(1, Relaxed);
    }

    /// The next word, or the end. The first word is what reading the prompt yields.
    pub(super) async fn word(&mut self) -> Option<&'static str> {
        if self.usage.generated >= self.limit {
            self.finish();
            return None;
        }
        // Measured from the beginning, so that coarse timers do not add up.
        sleep_until(self.began + self.core.profile.decode_time(self.usage.generated)).await;
        let word = self.voice.word();
        self.usage.generated += 1;
        self.core.tally.generated_tokens.fetch_add(1, Relaxed);
        self.keep(tokens::of_word(word));
        Some(word)
    }

    pub(super) fn usage(&self) -> Usage {
        self.usage
    }

    pub(super) fn ending(&self) -> Ending {
        self.ending
    }

    fn keep(&mut self, token: u32) {
        self.tokens.push(token);
        self.core.cache().insert(&mut self.hold, &self.tokens);
    }

    fn finish(&mut self) {
        if !self.finished {
            self.finished = true;
            if self.ending == Ending::Stop {
                self.keep(tokens::closing());
            }
            self.core.tally.finished.fetch_add(1, Relaxed);
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.core.cache().release(std::mem::take(&mut self.hold));
        let tally = &self.core.tally;
        tally.running.fetch_sub(1, Relaxed);
        if self.decoding {
            tally.decoding.fetch_sub(1, Relaxed);
        }
        if !self.finished {
            tally.aborted.fetch_add(1, Relaxed);
        }
    }
}

/// Waits for a slot, counted as waiting meanwhile.
async fn in_line(core: &Arc<Core>, prompt: &[u32]) -> Option<OwnedSemaphorePermit> {
    let uncached = prompt.len() - core.cache().match_prefix(prompt);
    let mut place = Place {
        core,
        uncached,
        left: false,
    };
    add(&core.tally.waiting, 1);
    add(&core.tally.waiting_uncached, uncached);
    // The semaphore is never closed, so there is always a slot in the end.
    let slot = Arc::clone(&core.slots).acquire_owned().await.ok();
    place.left = true;
    slot
}

/// A place in line, given up on drop: by reaching the front or by leaving.
struct Place<'a> {
    core: &'a Core,
    uncached: usize,
    left: bool,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let tally = &self.core.tally;
        tally.waiting.fetch_sub(1, Relaxed);
        tally.waiting_uncached.fetch_sub(self.uncached, Relaxed);
        if !self.left {
            tally.aborted.fetch_add(1, Relaxed);
        }
    }
}

fn add(gauge: &AtomicUsize, by: usize) {
    gauge.fetch_add(by, Relaxed);
}

fn count(tokens: usize) -> u64 {
    u64::try_from(tokens).unwrap_or(u64::MAX)
}
