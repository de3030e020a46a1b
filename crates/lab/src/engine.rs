//! A simulated LLM engine: the texts are noise, but what a prompt costs is not. Prompts are cut
//! into cached blocks, prefill takes time for what the cache does not know, decode for every token,
//! and only so many requests run at once.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use cache::Cache;

mod ask;
pub mod cache;
pub mod fleet;
mod http;
mod messages;
mod reply;
mod report;
mod run;
mod stream;
pub mod tokens;

/// What an engine is like.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// The model's name: the one `model` this engine serves.
    pub model: String,
    /// Tokens in one cache block.
    pub block_tokens: usize,
    /// Blocks in the cache.
    pub blocks: usize,
    /// Tokens read per second. One prompt is read at a time.
    pub prefill_rate: f64,
    /// Tokens written per second, for each request.
    pub decode_rate: f64,
    /// Requests that run at once; the others wait in line.
    pub slots: usize,
    /// Tokens of an answer that the request does not bound.
    pub reply_tokens: usize,
    /// The longest prompt, in tokens.
    pub context_tokens: usize,
    /// Stretches every wait: 1 as the rates say, 0 not at all.
    pub pace: f64,
}

impl Default for Profile {
    fn default() -> Self {
        Self {
            model: "lab".to_owned(),
            block_tokens: 16,
            blocks: 4096,
            prefill_rate: 8_000.0,
            decode_rate: 200.0,
            slots: 16,
            reply_tokens: 24,
            context_tokens: 32_768,
            pace: 1.0,
        }
    }
}

impl Profile {
    fn prefill_time(&self, tokens: usize) -> Duration {
        self.time(tokens, self.prefill_rate)
    }

    fn decode_time(&self, tokens: usize) -> Duration {
        self.time(tokens, self.decode_rate)
    }

    /// A rate nobody can work at (zero, or not a number) counts as no wait, not as forever.
    fn time(&self, tokens: usize, rate: f64) -> Duration {
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        Duration::try_from_secs_f64(f64::from(tokens) / rate * self.pace).unwrap_or_default()
    }
}

/// What an engine has done so far, and is doing now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Completion requests accepted.
    pub requests: u64,
    /// Requests answered to their end.
    pub finished: u64,
    /// Requests whose client left first.
    pub aborted: u64,
    /// Prompt tokens read, cached or not.
    pub prompt_tokens: u64,
    /// Those of them that came from the cache.
    pub cached_tokens: u64,
    /// Tokens written.
    pub generated_tokens: u64,
    /// Requests that hold a slot.
    pub running: usize,
    /// Requests in line for one.
    pub waiting: usize,
    /// Cache blocks that running requests hold.
    pub pinned_blocks: usize,
    /// Cache blocks in use, held or not.
    pub cached_blocks: usize,
    /// Cache blocks forgotten to make room.
    pub evicted_blocks: u64,
}

/// A handle on one engine; clones mean the same one.
#[derive(Debug, Clone)]
pub struct Engine {
    core: Arc<Core>,
}

impl Engine {
    /// An engine with an empty cache.
    #[must_use]
    pub fn new(profile: Profile) -> Self {
        let core = Core {
            cache: Mutex::new(Cache::new(profile.blocks, profile.block_tokens)),
            slots: Arc::new(Semaphore::new(profile.slots.clamp(1, Semaphore::MAX_PERMITS))),
            reading: tokio::sync::Mutex::new(()),
            tally: Tally::default(),
            profile,
        };
        Self { core: Arc::new(core) }
    }

    /// Answers on `listener` until the future is dropped, which also cuts every connection.
    ///
    /// # Errors
    /// When the listener can take no more connections.
    pub async fn serve(&self, listener: TcpListener) -> std::io::Result<()> {
        http::serve(listener, Arc::clone(&self.core)).await
    }

    /// Answers on one connection of any kind, such as an in-memory pipe, until it closes.
    pub async fn converse<S>(&self, stream: S)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        http::converse(stream, Arc::clone(&self.core)).await;
    }

    /// The numbers as they are now.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.core.counts()
    }

    /// What this engine is like.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        &self.core.profile
    }
}

/// Runs an engine on `listener` for those who need no handle on it.
///
/// # Errors
/// When the listener can take no more connections.
pub async fn serve(listener: TcpListener, profile: Profile) -> std::io::Result<()> {
    Engine::new(profile).serve(listener).await
}

/// What all requests of one engine share.
#[derive(Debug)]
struct Core {
    profile: Profile,
    cache: Mutex<Cache>,
    slots: Arc<Semaphore>,
    /// Held while a prompt is read: requests that miss the cache make the others wait too.
    reading: tokio::sync::Mutex<()>,
    tally: Tally,
}

#[derive(Debug, Default)]
struct Tally {
    /// Numbers for the ids of answers.
    numbers: AtomicU64,
    requests: AtomicU64,
    finished: AtomicU64,
    aborted: AtomicU64,
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    generated_tokens: AtomicU64,
    running: AtomicUsize,
    decoding: AtomicUsize,
    waiting: AtomicUsize,
    /// Tokens that those in line would have to read as the cache was when they came.
    waiting_uncached: AtomicUsize,
}

impl Core {
    /// The cache is whole after every call on it, so a panic elsewhere need not poison it.
    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_number(&self) -> u64 {
        self.tally.numbers.fetch_add(1, Relaxed)
    }

    fn counts(&self) -> Counts {
        let (pinned_blocks, cached_blocks, evicted_blocks) = {
            let cache = self.cache();
            (cache.pinned(), cache.len(), cache.evicted())
        };
        let tally = &self.tally;
        Counts {
            requests: tally.requests.load(Relaxed),
            finished: tally.finished.load(Relaxed),
            aborted: tally.aborted.load(Relaxed),
            prompt_tokens: tally.prompt_tokens.load(Relaxed),
            cached_tokens: tally.cached_tokens.load(Relaxed),
            generated_tokens: tally.generated_tokens.load(Relaxed),
            running: tally.running.load(Relaxed),
            waiting: tally.waiting.load(Relaxed),
            pinned_blocks,
            cached_blocks,
            evicted_blocks,
        }
    }
}
