//! `cache_aware`: where most of the prompt is cached already, unless that costs more than it saves.
//!
//! An index remembers which workers were given which prefix. A prompt that goes on
//! where an earlier one ended belongs to that conversation and stays with its worker, up to the
//! documented gates. A prefix that many prompts merely begin with, such as a system prompt, is
//! worth the time it saves and no more: see [`choose`].

use rand::Rng;

use super::{Ask, Boundaries, Candidates, Policy, Prompt, Proposal, Reads, Receipt, Remembered};
use crate::fleet::{Worker, WorkerId};
use chain::Ruler;
use choose::{Known, Shared};
use heads::Heads;
use index::{Index, Path};

mod chain;
pub mod choose;
mod costs;
mod heads;
mod holders;
mod index;
mod score;
mod shard;

pub use chain::Chain;
pub use choose::Rules;
pub use holders::Holders;
pub use score::Scoring;

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
    /// `--cache-index`.
    pub kind: Kind,
}

/// What of prompts is remembered: `--cache-index`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `tree`: prompts from their beginning to their end, of text and of tokens.
    Tree,
    /// `hash`: prompts of tokens up to given positions.
    Hash {
        /// `--cache-boundaries`, not none.
        boundaries: Boundaries,
        /// `--cache-ttl-secs`: how long what nobody uses is remembered.
        ttl_secs: u32,
    },
}

impl Params {
    /// The defaults of the flags.
    pub const DEFAULT: Self = Self {
        rules: Rules::DEFAULT,
        max_size: 1 << 26,
        text_block: 1024,
        page: 16,
        seed: 0,
        kind: Kind::Tree,
    };
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
    memory: Memory,
}

/// What it remembers, by its kind.
#[derive(Debug)]
enum Memory {
    Tree(Trees),
    Hash(Heads),
}

/// Prompts of text and of tokens.
#[derive(Debug)]
struct Trees {
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
        let Params { rules, max_size, text_block, page, seed, kind } = params;
        let index = |ruler| Index::new(ruler, seed, max_size);
        let memory = match kind {
            Kind::Tree => Memory::Tree(Trees {
                text: index(Ruler::text(text_block)),
                tokens: index(Ruler::tokens(page)),
            }),
            Kind::Hash { boundaries, ttl_secs } => {
                Memory::Hash(Heads::new(boundaries, ttl_secs, seed, max_size))
            }
        };
        Self { rules, memory }
    }

    /// How much is remembered.
    #[must_use]
    pub fn held(&self) -> Held {
        match &self.memory {
            Memory::Hash(heads) => heads.held(),
            Memory::Tree(trees) => trees.held(),
        }
    }
}

impl Trees {
    fn both(&self) -> [&Index; 2] {
        [&self.text, &self.tokens]
    }

    fn held(&self) -> Held {
        self.both().into_iter().fold(Held::default(), |held, index| Held {
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

impl Heads {
    fn of<'a>(&self, ask: &'a Ask<'_>) -> &'a Chain {
        ask.chain.get_or_init(|| self.chain(ask.prompt))
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
        let units_a_token = units_a_token(ask.prompt);
        let trees = match &self.memory {
            Memory::Tree(trees) => trees,
            Memory::Hash(heads) => {
                let chain = heads.of(ask);
                let known = Known {
                    units: chain.units,
                    units_a_token,
                    matched: 0,
                    own: false,
                    deepest: &Holders::new,
                    shared: &|| heads.shared(chain, secs(ask.now)),
                    now: ask.now,
                };
                return self.rules.choose_head(&known, candidates, dice);
            }
        };
        let look = trees.look(ask);
        let Look { index, chain, path } = &look;
        let known = Known {
            units: chain.units,
            units_a_token,
            matched: path.matched,
            own: look.own(),
            deepest: &|| index.deepest(chain, path),
            shared: &|| index.shared(chain, path),
            now: ask.now,
        };
        self.rules.choose(&known, candidates, dice)
    }

    fn commit(&self, ask: &Ask<'_>, used: &Worker) -> Receipt {
        let trees = match &self.memory {
            Memory::Tree(trees) => trees,
            Memory::Hash(heads) => {
                let heads = heads.insert(heads.of(ask), used.id, secs(ask.now));
                return Receipt { heads, ..Receipt::default() };
            }
        };
        let look = trees.look(ask);
        let charged = if look.begins(used.id) { self.rules.conversation_tokens() } else { 0 };
        used.placed().add(charged, ask.now);
        let Look { index, chain, path } = look;
        let inserted = index.insert(chain, &path, used.id, age(ask.now));
        Receipt { inserted, charged, ..Receipt::default() }
    }

    /// The next turns of a pinned conversation are no less in its worker's cache than the first one,
    /// and the in-flight threshold counts on its being found there (000, "In-Flight Threshold").
    fn learn(&self, ask: &Ask<'_>, used: &Worker) -> Receipt {
        self.commit(ask, used)
    }

    fn undo(&self, ask: &Ask<'_>, used: &Worker, receipt: Receipt) {
        match &self.memory {
            Memory::Hash(heads) => heads.remove(heads.of(ask), used.id, receipt.heads),
            Memory::Tree(trees) => {
                let Look { index, chain, .. } = trees.look(ask);
                index.remove(chain, used.id, receipt.inserted, age(ask.now));
                used.placed().take(receipt.charged, ask.now);
            }
        }
    }

    fn forget(&self, gone: WorkerId) {
        match &self.memory {
            Memory::Hash(heads) => heads.forget(gone),
            Memory::Tree(trees) => trees.both().into_iter().for_each(|index| index.forget(gone)),
        }
    }

    fn remembered(&self) -> Option<[Remembered; 2]> {
        Some(match &self.memory {
            Memory::Hash(heads) => [Remembered::default(), heads.remembered()],
            Memory::Tree(trees) => trees
                .both()
                .map(|index| Remembered { size: index.size(), workers: index.workers() }),
        })
    }

    fn sweep(&self, now: u64) {
        match &self.memory {
            Memory::Hash(heads) => heads.sweep(secs(now)),
            Memory::Tree(trees) => trees.both().into_iter().for_each(Index::sweep),
        }
    }
}

/// Entries that expire are as old as whole seconds tell.
const fn secs(now: u64) -> u32 {
    let secs = now / 1000;
    if secs > u32::MAX as u64 { u32::MAX } else { secs as u32 }
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
