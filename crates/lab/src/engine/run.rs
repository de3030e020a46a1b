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
            usage: Usage { prompt: ask.prompt.len(), cached: 0, generated: 0 },
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
        tally.prompt_tokens.fetch_add(count(self.usage.prompt), Relaxed);
        tally.cached_tokens.fetch_add(count(self.usage.cached), Relaxed);

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
    let mut place = Place { core, uncached, left: false };
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::super::ask::Form;
    use super::super::{Counts, Engine, Profile};
    use super::*;

    /// 100 tokens a second in, 10 out: a prompt of 64 and an answer of 8 take about 1.4 s.
    fn engine(slots: usize) -> Engine {
        Engine::new(Profile {
            block_tokens: 4,
            prefill_rate: 100.0,
            decode_rate: 10.0,
            reply_tokens: 8,
            slots,
            ..Profile::default()
        })
    }

    fn ask(engine: &Engine, first: u32) -> Ask {
        let ids: Vec<u32> = (first..first + 64).collect();
        let body = serde_json::json!({ "prompt": ids }).to_string();
        Ask::read(Form::Text, body.as_bytes(), engine.profile()).unwrap()
    }

    async fn answer(engine: &Engine, ask: &Ask) -> (Vec<u32>, Usage) {
        let mut run = Run::begin(Arc::clone(&engine.core), ask).await;
        while run.word().await.is_some() {}
        (run.tokens.clone(), run.usage)
    }

    fn nothing_held(counts: &Counts) {
        let held = (counts.running, counts.waiting, counts.pinned_blocks);
        assert_eq!(held, (0, 0, 0));
    }

    fn near(time: Duration, millis: u64) {
        let off = time.abs_diff(Duration::from_millis(millis));
        assert!(off < Duration::from_millis(5), "{time:?} is not {millis} ms");
    }

    #[tokio::test(start_paused = true)]
    async fn a_known_prompt_is_read_faster() {
        let engine = engine(1);
        let ask = ask(&engine, 0);
        let began = Instant::now();
        let (_, first) = answer(&engine, &ask).await;
        near(began.elapsed(), 640 + 700);
        assert_eq!((first.prompt, first.cached, first.generated), (64, 0, 8));

        let began = Instant::now();
        let (_, second) = answer(&engine, &ask).await;
        assert_eq!(second.cached, 60, "the last token is computed, so its block is too");
        near(began.elapsed(), 40 + 700);
        nothing_held(&engine.counts());
    }

    #[tokio::test(start_paused = true)]
    async fn the_answer_is_cached_for_the_turn_that_repeats_it() {
        let engine = engine(1);
        let (said, _) = answer(&engine, &ask(&engine, 0)).await;
        assert_eq!(said.len(), 64 + 8 + 1, "prompt, answer and the closing mark");
        let mut next = ask(&engine, 0);
        next.prompt = said;
        next.prompt.extend([1, 2, 3, 4]);
        assert_eq!(answer(&engine, &next).await.1.cached, 72);
    }

    #[tokio::test(start_paused = true)]
    async fn beyond_the_slots_requests_wait_in_line() {
        let engine = engine(1);
        let (first, second) = (ask(&engine, 0), ask(&engine, 1000));
        let run = Run::begin(Arc::clone(&engine.core), &first).await;
        let waiting = timeout(Duration::from_secs(9), answer(&engine, &second));
        let look = async {
            // sleeps because time is paused: this is how it moves on
            sleep(Duration::from_secs(1)).await;
            let counts = engine.counts();
            assert_eq!((counts.running, counts.waiting), (1, 1));
            assert_eq!(engine.core.tally.waiting_uncached.load(Relaxed), 64);
            drop(run);
        };
        let (answered, ()) = tokio::join!(waiting, look);
        assert_eq!(answered.unwrap().1.generated, 8);
        assert_eq!(engine.core.tally.waiting_uncached.load(Relaxed), 0);
        nothing_held(&engine.counts());
    }

    #[tokio::test(start_paused = true)]
    async fn one_prompt_is_read_at_a_time() {
        let engine = engine(4);
        let (first, second) = (ask(&engine, 0), ask(&engine, 1000));
        let began = Instant::now();
        tokio::join!(answer(&engine, &first), answer(&engine, &second));
        near(began.elapsed(), 2 * 640 + 700);
    }

    #[tokio::test(start_paused = true)]
    async fn leaving_at_any_moment_gives_everything_back() {
        for millis in (0..1340).step_by(20) {
            let engine = engine(1);
            let (first, second) = (ask(&engine, 0), ask(&engine, 1000));
            let both = async { tokio::join!(answer(&engine, &first), answer(&engine, &second)) };
            assert!(timeout(Duration::from_millis(millis), both).await.is_err());
            let counts = engine.counts();
            nothing_held(&counts);
            assert_eq!((counts.requests, counts.aborted, counts.finished), (2, 2, 0));
            assert_eq!(engine.core.tally.decoding.load(Relaxed), 0);
            assert_eq!(engine.core.slots.available_permits(), 1);
        }
    }
}
