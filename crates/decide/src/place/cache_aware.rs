//! `cache_aware`: where most of the prompt is cached already, unless that costs more than it saves.
//!
//! An index remembers which workers were given which prefix. A prompt that goes on
//! where an earlier one ended belongs to that conversation and stays with its worker, up to the
//! documented gates. A prefix that many prompts merely begin with, such as a system prompt, is
//! worth the time it saves and no more: see [`choose`].

use rand::Rng;

use super::{Ask, Candidates, Policy, Prompt, Proposal, Reads, Receipt, Remembered};
use crate::fleet::{Worker, WorkerId};
use chain::Ruler;
use choose::{Known, Shared};
use index::{Index, Path};

mod chain;
pub mod choose;
mod holders;
mod index;
mod shard;

pub use chain::Chain;
pub use choose::Rules;
pub use holders::Holders;

/// What `cache_aware` is made with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Params {
    /// When a match counts and when a holder is too busy.
    pub rules: Rules,
    /// `--max-tree-size`: characters, or tokens, that either index remembers, each holder counted.
    pub max_size: usize,
    /// Bytes of text in one block. Smaller blocks tell finer where prompts part, and take more
    /// memory: a link takes 25 bytes in a table that is half to seven eighths full.
    pub text_block: usize,
    /// `--block-size`: tokens of one page of the engine's cache.
    pub page: usize,
    /// Keys the hashes. Objects that are given the same [`Ask`] need the same.
    pub seed: u64,
}

impl Params {
    /// The defaults of the flags.
    pub const DEFAULT: Self =
        Self { rules: Rules::DEFAULT, max_size: 1 << 26, text_block: 1024, page: 16, seed: 0 };
}

impl Default for Params {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Links an insert added, so that it can be undone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Inserted {
    /// The first link the worker did not hold before, counted from 1; it held none after it.
    from: u32,
    /// Whether the prompt's end was not known for one.
    end: bool,
    /// The link the prompt went on from, if it was the first to do so in its way.
    fork: u64,
    /// The links of the conversation's end before this one, which they took the place of.
    moved: Option<Moved>,
}

/// Up to two links below a block and the units they span.
type Moved = [(u64, u32); 2];

/// The policy `cache_aware`: one object for each model.
#[derive(Debug)]
pub struct CacheAware {
    rules: Rules,
    text: Index,
    tokens: Index,
}

/// What the indexes hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Characters and tokens, each holder counted.
    pub size: usize,
    /// Links.
    pub links: usize,
    /// Bytes of memory.
    pub bytes: usize,
}

impl CacheAware {
    /// An empty index.
    #[must_use]
    pub fn new(params: Params) -> Self {
        let Params { rules, max_size, text_block, page, seed } = params;
        let index = |ruler| Index::new(ruler, seed, max_size);
        Self { rules, text: index(Ruler::text(text_block)), tokens: index(Ruler::tokens(page)) }
    }

    /// How much is remembered.
    #[must_use]
    pub fn held(&self) -> Held {
        [&self.text, &self.tokens].into_iter().fold(Held::default(), |held, index| Held {
            size: held.size + index.size(),
            links: held.links + index.links(),
            bytes: held.bytes + index.bytes(),
        })
    }

    /// The prompt's links and how far they are known.
    fn look<'a>(&'a self, ask: &'a Ask<'_>) -> Look<'a> {
        let index = match ask.prompt {
            Prompt::Tokens(_) => &self.tokens,
            Prompt::Text(_) | Prompt::Unknown => &self.text,
        };
        let chain = ask.chain.get_or_init(|| index.chain(ask.prompt));
        Look { index, chain, path: index.look(ask.prompt, chain) }
    }
}

/// A prompt held against its index.
struct Look<'a> {
    index: &'a Index,
    chain: &'a Chain,
    path: Path,
}

impl Look<'_> {
    /// Whether what is known of the prompt is its own conversation: it goes on where an earlier
    /// one ended, is all known, or is known well beyond what many share.
    fn own(&self) -> bool {
        let Self { index, chain, path } = self;
        path.view.is_some_and(|view| {
            view.note.private()
                || path.matched == chain.units
                || (view.count == 1 && view.note.narrow() && index.beyond_the_shared(chain, path))
        })
    }

    /// Whether a worker that is given the prompt has one conversation more.
    fn begins(&self, worker: WorkerId) -> bool {
        let Self { index, chain, path } = self;
        let first = path.matched == chain.units || path.view.is_none_or(|it| it.note.forks() == 0);
        !(first && self.own() && index.deepest(chain, path).binary_search(&worker).is_ok())
    }
}

impl Policy for CacheAware {
    fn name(&self) -> &'static str {
        "cache_aware"
    }

    fn reads(&self) -> Reads {
        Reads::Prompt
    }

    fn goes_by_beginnings(&self) -> bool {
        true
    }

    fn reads_loads(&self) -> bool {
        true
    }

    fn propose(&self, ask: &Ask<'_>, candidates: &Candidates<'_>, dice: &mut dyn Rng) -> Proposal {
        let look = self.look(ask);
        let Look { index, chain, path } = &look;
        let known = Known {
            units: chain.units,
            units_a_token: units_a_token(ask.prompt),
            matched: path.matched,
            own: look.own(),
            deepest: &|| index.deepest(chain, path),
            shared: &|| index.shared(chain, path),
            now: ask.now,
        };
        self.rules.choose(&known, candidates, dice)
    }

    fn commit(&self, ask: &Ask<'_>, used: &Worker) -> Receipt {
        let look = self.look(ask);
        let charged = if look.begins(used.id) { self.rules.conversation_tokens() } else { 0 };
        used.placed().add(charged, ask.now);
        let Look { index, chain, path } = look;
        Receipt { inserted: index.insert(chain, &path, used.id, age(ask.now)), charged }
    }

    fn undo(&self, ask: &Ask<'_>, used: &Worker, receipt: Receipt) {
        let Look { index, chain, .. } = self.look(ask);
        index.remove(chain, used.id, receipt.inserted, age(ask.now));
        used.placed().take(receipt.charged, ask.now);
    }

    fn forget(&self, gone: WorkerId) {
        self.text.forget(gone);
        self.tokens.forget(gone);
    }

    fn remembered(&self) -> Option<[Remembered; 2]> {
        Some(
            [&self.text, &self.tokens]
                .map(|index| Remembered { size: index.size(), workers: index.workers() }),
        )
    }

    fn sweep(&self, _: u64) {
        self.text.sweep();
        self.tokens.sweep();
    }
}

/// Ages count steps of two seconds: there is room for four years of them.
const fn age(now: u64) -> u32 {
    let steps = now >> 11;
    if steps > u32::MAX as u64 { u32::MAX } else { steps as u32 }
}

/// Text is counted in bytes; four make a token, as a rule.
const fn units_a_token(prompt: Prompt<'_>) -> f64 {
    match prompt {
        Prompt::Tokens(_) => 1.0,
        Prompt::Text(_) | Prompt::Unknown => 4.0,
    }
}

#[cfg(test)]
mod laws;
#[cfg(test)]
mod tests;
