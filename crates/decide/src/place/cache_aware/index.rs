//! Which workers were given which prefix: the links of all prompts, in shards.
//!
//! A link's key covers the whole prefix before it, so a link found proves the prefix, whatever
//! was evicted above it. Shards are chosen by key, each behind its own lock that is held for one
//! link; a prefix that many prompts share makes no more than its own shards busy.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use super::chain::{Chain, Hashing, Level, ROOT, Reader, Ruler, Tail};
use super::holders::Holders;
use super::shard::{Child, Entered, Link, Shard, View, bit, cutoff};
use super::{Inserted, Moved, Shared};
use crate::fleet::WorkerId;
use crate::place::Prompt;

const MOST_SHARDS: usize = 64;

/// How many lengths of a prompt are told apart: its own, a branch's, a team's, everybody's.
const MOST_LENGTHS: usize = 4;

/// Blocks that one shard should have room for.
const BLOCKS_A_SHARD: usize = 64;

/// The links of one kind of prompt.
#[derive(Debug)]
pub(super) struct Index {
    ruler: Ruler,
    hashing: Hashing,
    /// Most units held, each holder counted.
    bound: usize,
    /// Which short prompts there are; the root has no link of its own.
    pieces: AtomicU32,
    steps: AtomicU32,
    shards: Box<[Mutex<Shard>]>,
}

/// How far a prompt is known: whole blocks of its chain, then tails below the last of them.
#[derive(Debug)]
pub(super) struct Path {
    blocks: usize,
    tails: SmallVec<[Tail; 2]>,
    /// What the deepest link looks like, unless nothing is known.
    pub(super) view: Option<View>,
    /// Units known.
    pub(super) matched: usize,
}

impl Index {
    pub(super) fn new(ruler: Ruler, seed: u64, bound: usize) -> Self {
        let shards = (bound / (ruler.block * BLOCKS_A_SHARD)).clamp(1, MOST_SHARDS);
        Self {
            ruler,
            hashing: Hashing::new(seed),
            bound,
            pieces: AtomicU32::new(0),
            steps: AtomicU32::new(0),
            shards: (0..shards).map(|_| Mutex::default()).collect(),
        }
    }

    pub(super) fn chain(&self, prompt: Prompt<'_>) -> Chain {
        Chain::of(prompt, self.ruler, &self.hashing)
    }

    /// The deepest link that is known.
    pub(super) fn look(&self, prompt: Prompt<'_>, chain: &Chain) -> Path {
        let mut below = 0;
        let mut above = chain.blocks.len();
        let mut view = None;
        while below < above {
            let middle = usize::midpoint(below, above + 1);
            let seen = key_of(chain, middle).and_then(|key| self.view(key));
            match seen {
                Some(_) => (below, view) = (middle, seen),
                None => above = middle - 1,
            }
        }
        let matched = below * self.ruler.block;
        let mut path = Path { blocks: below, tails: SmallVec::new(), view, matched };
        self.look_below(prompt, chain, &mut path);
        path
    }

    /// Follows the deepest piece and then the deepest step below the last whole block known.
    fn look_below(&self, prompt: Prompt<'_>, chain: &Chain, path: &mut Path) {
        let mut reader = Reader::new(prompt);
        let mut above = key_of(chain, path.blocks).unwrap_or(ROOT);
        let mut steps = match path.view {
            Some(view) => view.steps,
            None => self.steps.load(Ordering::Relaxed),
        };
        for (level, length) in [(Level::Piece, self.ruler.piece), (Level::Step, self.ruler.step)] {
            let mut places = match (level, path.view) {
                (Level::Step, _) => steps,
                (_, Some(view)) => view.pieces,
                (_, None) => self.pieces.load(Ordering::Relaxed),
            };
            let from = path.matched;
            while places != 0 {
                let place = places.ilog2();
                places ^= bit(place);
                let end = from + place as usize * length;
                if end > chain.units {
                    continue;
                }
                let key = self.hashing.link(above, level, reader.bytes(from, end));
                if let Some(view) = self.view(key) {
                    path.tails.push(Tail { key, level, place, end });
                    (path.view, path.matched, above, steps) = (Some(view), end, key, view.steps);
                    break;
                }
            }
        }
    }

    /// Who holds each length of the prompt, the longest first.
    pub(super) fn shared(&self, chain: &Chain, path: &Path) -> Shared {
        let mut shared = Shared::new();
        let mut at = path.len();
        let mut count = path.view.map_or(0, |view| view.count);
        while let Some((key, units)) = self.place(chain, path, at) {
            shared.push((units, self.holders(key)));
            match self.wider(chain, path, at, count) {
                Some(wider) if shared.len() < MOST_LENGTHS => (at, count) = wider,
                _ => break,
            }
        }
        shared
    }

    /// Whether what is known goes on for a block or more after what several workers hold.
    pub(super) fn beyond_the_shared(&self, chain: &Chain, path: &Path) -> bool {
        let count = path.view.map_or(0, |view| view.count);
        let wider = self.wider(chain, path, path.len(), count);
        let shared = wider.and_then(|(at, _)| self.place(chain, path, at));
        shared.is_some_and(|(_, units)| path.matched - units >= self.ruler.block)
    }

    /// The deepest link above the `at`-th that has more holders than `count`, and how many.
    /// Whoever holds a link holds those above it, so there are no fewer holders further up.
    fn wider(&self, chain: &Chain, path: &Path, at: usize, count: usize) -> Option<(usize, usize)> {
        let more = |at| {
            let (key, _) = self.place(chain, path, at)?;
            self.view(key).map(|view| view.count).filter(|here| *here > count)
        };
        let mut found = (1, more(1)?);
        let mut same = at;
        while same - found.0 > 1 {
            let middle = usize::midpoint(found.0, same);
            match more(middle) {
                Some(here) => found = (middle, here),
                None => same = middle,
            }
        }
        Some(found)
    }

    /// Who holds the deepest link.
    pub(super) fn deepest(&self, chain: &Chain, path: &Path) -> Holders {
        match self.place(chain, path, path.len()) {
            Some((key, _)) => self.holders(key),
            None => Holders::new(),
        }
    }

    /// The `at`-th link of a path, counted from 1, and the units it reaches to.
    fn place(&self, chain: &Chain, path: &Path, at: usize) -> Option<(u64, usize)> {
        match at.checked_sub(path.blocks + 1) {
            Some(tail) => path.tails.get(tail).map(|tail| (tail.key, tail.end)),
            None => key_of(chain, at).map(|key| (key, at * self.ruler.block)),
        }
    }

    /// The worker was given a prompt that was known as far as `path`.
    pub(super) fn insert(
        &self,
        chain: &Chain,
        path: &Path,
        worker: WorkerId,
        age: u32,
    ) -> Inserted {
        let mut inserted = Inserted::default();
        let grown = path.view.is_some_and(|view| view.note.conversation());
        let last = chain.len();
        let mut above = ROOT;
        let mut from = 0;
        let mut forked = false;
        for at in 1..=last {
            let tail = chain.tails.get(at.wrapping_sub(chain.blocks.len() + 1));
            let (key, to) = match (tail, key_of(chain, at)) {
                (Some(tail), _) => (tail.key, tail.end),
                (None, Some(key)) => (key, at * self.ruler.block),
                (None, None) => break,
            };
            let (end, tailed) = (at == last, tail.is_some());
            let link = Link { key, span: to - from, tail: tailed, end, grown };
            let Some(entered) = self.enter(link, worker, age) else { break };
            if let Some(tail) = tail {
                self.know(above, *tail);
            }
            if entered.new_holder && inserted.from == 0 {
                inserted.from = at as u32;
            }
            inserted.end = entered.new_end && end;
            forked |= entered.new_link;
            (above, from) = (key, to);
        }
        if !forked {
            return inserted;
        }
        inserted.moved = self.outgrow(chain, path, worker);
        if inserted.moved.is_none()
            && let Some((key, _)) = self.place(chain, path, path.len())
            && self.shard(key).fork(key, true)
        {
            inserted.fork = key;
        }
        inserted
    }

    /// Drops the end that a conversation had before: it is still known by its whole blocks, and
    /// the links of its latest end are enough. Not so the first end, before which nothing tells
    /// the conversation from others that begin alike, and no end of a prompt shorter than a block.
    fn outgrow(&self, chain: &Chain, path: &Path, worker: WorkerId) -> Option<Moved> {
        let view = path.view?;
        let block = self.view(key_of(chain, path.blocks)?)?;
        let lonely =
            view.count == 1 && view.steps == 0 && view.note.ends() && view.note.forks() == 0;
        if !(lonely && (view.note.grown() || block.note.grown())) {
            return None;
        }
        let mut moved = Moved::default();
        let mut from = path.blocks * self.ruler.block;
        for (slot, tail) in moved.iter_mut().zip(&path.tails) {
            *slot = (tail.key, (tail.end - from) as u32);
            from = tail.end;
        }
        let [(piece, _), (step, _)] = moved;
        // A piece below which other prompts end has to stay.
        let shared = step != ROOT && {
            let view = self.view(piece)?;
            view.count > 1 || view.steps.count_ones() > 1 || view.note.ends()
        };
        if shared || piece == ROOT || !self.deepest(chain, path).contains(&worker) {
            return None;
        }
        for (key, _) in moved.into_iter().filter(|(key, _)| *key != ROOT) {
            self.shard(key).remove(key, worker, self.ruler.block);
        }
        Some(moved)
    }

    /// Takes back what an insert added.
    pub(super) fn remove(&self, chain: &Chain, worker: WorkerId, inserted: Inserted, age: u32) {
        let keys = chain.blocks.iter().copied().chain(chain.tails.iter().map(|tail| tail.key));
        if inserted.end
            && let Some(key) = keys.clone().last()
        {
            self.shard(key).unend(key);
        }
        if let Some(moved) = inserted.moved {
            self.put_back(moved, worker, age);
        }
        if inserted.fork != ROOT {
            self.shard(inserted.fork).fork(inserted.fork, false);
        }
        if let Some(kept) = inserted.from.checked_sub(1) {
            for key in keys.skip(kept as usize) {
                self.shard(key).remove(key, worker, self.ruler.block);
            }
        }
    }

    fn put_back(&self, moved: Moved, worker: WorkerId, age: u32) {
        let mut above = ROOT;
        let count = moved.iter().filter(|(key, _)| *key != ROOT).count();
        for (at, (key, span)) in moved.into_iter().take(count).enumerate() {
            let link =
                Link { key, span: span as usize, tail: true, end: at + 1 == count, grown: true };
            self.enter(link, worker, age);
            if above != ROOT {
                // The block still knows its piece; the piece is new and has to learn its step.
                let place = span / self.ruler.step as u32;
                self.shard(above).know(above, Child::Step(place));
            }
            above = key;
        }
    }

    pub(super) fn forget(&self, worker: WorkerId) {
        for shard in &self.shards {
            lock(shard).forget(worker, self.ruler.block);
        }
    }

    /// Drops the least recently used links until the bound is met.
    pub(super) fn sweep(&self) {
        let mut over = self.size().saturating_sub(self.bound);
        if over > 0 {
            let block = self.ruler.block;
            let mut ages = Vec::new();
            for shard in &self.shards {
                ages.extend(lock(shard).ages(block));
            }
            let oldest = cutoff(ages, over);
            // First all that is older, so that what is just as old goes only if it has to.
            for age in [oldest.saturating_sub(1), oldest] {
                for shard in &self.shards {
                    lock(shard).evict(age, &mut over, block);
                }
            }
        }
        for shard in &self.shards {
            lock(shard).shrink();
        }
    }

    /// Units held, each holder counted.
    pub(super) fn size(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).size()).sum()
    }

    /// Workers that hold anything.
    pub(super) fn workers(&self) -> usize {
        let mut workers = BTreeSet::new();
        self.shards.iter().for_each(|shard| lock(shard).workers(&mut workers));
        workers.len()
    }

    /// Links remembered.
    pub(super) fn links(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    /// Memory taken, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).bytes() + size_of::<Mutex<Shard>>()).sum()
    }

    /// Inserts one link and keeps its shard from growing far beyond its share until the sweep.
    fn enter(&self, link: Link, worker: WorkerId, age: u32) -> Option<Entered> {
        let block = self.ruler.block;
        let share = self.bound / self.shards.len();
        let mut shard = self.shard(link.key);
        let entered = shard.insert(link, worker, age)?;
        if shard.size() > share + share / 4 + block {
            let mut over = shard.size() - share;
            let oldest = cutoff(shard.ages(block).collect(), over);
            shard.evict(oldest, &mut over, block);
        }
        Some(entered)
    }

    fn know(&self, above: u64, tail: Tail) {
        let (at_root, child) = match tail.level {
            Level::Step => (&self.steps, Child::Step(tail.place)),
            _ => (&self.pieces, Child::Piece(tail.place)),
        };
        if above == ROOT {
            at_root.fetch_or(bit(tail.place), Ordering::Relaxed);
        } else {
            self.shard(above).know(above, child);
        }
    }

    fn view(&self, key: u64) -> Option<View> {
        self.shard(key).view(key)
    }

    fn holders(&self, key: u64) -> Holders {
        self.shard(key).holders(key)
    }

    #[expect(clippy::indexing_slicing, reason = "a remainder by the number of shards is below it")]
    fn shard(&self, key: u64) -> MutexGuard<'_, Shard> {
        // Bits that the table inside the shard does not choose its bucket by.
        let at = (key >> 40) as usize % self.shards.len();
        lock(&self.shards[at])
    }
}

impl Path {
    fn len(&self) -> usize {
        self.blocks + self.tails.len()
    }
}

/// The key of the `at`-th block, counted from 1.
fn key_of(chain: &Chain, at: usize) -> Option<u64> {
    chain.blocks.get(at.checked_sub(1)?).copied()
}

/// A panic under the lock leaves a link that is at worst stale, so the shard stays in use.
fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}
