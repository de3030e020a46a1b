//! A paged KV cache: prompts are cut into blocks, equal prefixes share them, and what no running
//! request holds is forgotten when room is needed.
//!
//! A block is named by a hash chained over everything before it, so a block can only be found by
//! a prompt that agrees from its first token on. That makes the blocks a forest in which every
//! parent is needed by its children: only leaves are evicted, the longest unused first.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

/// The chained hash that names a block.
type Name = u64;

#[derive(Debug)]
struct Block {
    parent: Option<Name>,
    children: usize,
    holders: usize,
    last_used: u64,
}

/// The blocks of one running request. Give it back with [`Cache::release`].
#[derive(Debug, Default)]
#[must_use = "blocks stay pinned until the hold is released"]
pub struct Hold {
    chain: Vec<Name>,
}

impl Hold {
    /// Blocks held.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.chain.len()
    }
}

/// The cache of one engine.
#[derive(Debug)]
pub struct Cache {
    block_tokens: usize,
    capacity: usize,
    blocks: HashMap<Name, Block>,
    /// Leaves nobody holds, oldest first: exactly what may be evicted now.
    evictable: BTreeSet<(u64, Name)>,
    pinned: usize,
    evicted: u64,
    clock: u64,
}

impl Cache {
    /// A cache of at most `capacity` blocks of `block_tokens` tokens (at least one).
    #[must_use]
    pub fn new(capacity: usize, block_tokens: usize) -> Self {
        Self {
            block_tokens: block_tokens.max(1),
            capacity,
            blocks: HashMap::new(),
            evictable: BTreeSet::new(),
            pinned: 0,
            evicted: 0,
            clock: 0,
        }
    }

    /// How many leading tokens are cached. Looks only; nothing is touched or pinned.
    #[must_use]
    pub fn match_prefix(&self, tokens: &[u32]) -> usize {
        let known = Names::of(tokens, self.block_tokens)
            .take_while(|name| self.blocks.contains_key(name))
            .count();
        known * self.block_tokens
    }

    /// Pins the cached prefix of `tokens`, so that it cannot be evicted while it is computed on.
    pub fn acquire(&mut self, tokens: &[u32]) -> Hold {
        let mut hold = Hold::default();
        for name in Names::of(tokens, self.block_tokens) {
            if !self.blocks.contains_key(&name) {
                break;
            }
            self.pin(name);
            hold.chain.push(name);
        }
        hold
    }

    /// Caches what `tokens` has beyond the blocks already held, and pins it.
    ///
    /// `tokens` must begin with the tokens the hold was made from. When every block is pinned the
    /// rest stays uncached, as on an engine that recomputes what it has no memory for.
    pub fn insert(&mut self, hold: &mut Hold, tokens: &[u32]) {
        let held = hold.chain.len();
        let rest = tokens.get(held * self.block_tokens..).unwrap_or_default();
        let mut parent = hold.chain.last().copied();
        for name in Names::after(parent, rest, self.block_tokens) {
            if !self.blocks.contains_key(&name) && !self.add(name, parent) {
                break;
            }
            self.pin(name);
            hold.chain.push(name);
            parent = Some(name);
        }
    }

    /// Unpins a request's blocks. They stay cached until their room is needed.
    pub fn release(&mut self, hold: Hold) {
        self.clock += 1;
        for name in hold.chain.into_iter().rev() {
            let Some(block) = self.blocks.get_mut(&name) else {
                continue;
            };
            block.last_used = self.clock;
            block.holders = block.holders.saturating_sub(1);
            if block.holders == 0 {
                self.pinned -= 1;
                if block.children == 0 {
                    self.evictable.insert((self.clock, name));
                }
            }
        }
    }

    /// Blocks that hold something.
    #[must_use]
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether nothing is cached.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Blocks that running requests hold.
    #[must_use]
    pub fn pinned(&self) -> usize {
        self.pinned
    }

    /// Blocks forgotten so far to make room.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    fn pin(&mut self, name: Name) {
        if let Some(block) = self.blocks.get_mut(&name) {
            if block.holders == 0 {
                self.pinned += 1;
                self.evictable.remove(&(block.last_used, name));
            }
            block.holders += 1;
        }
    }

    /// Makes an unheld leaf below `parent`, which the caller holds. False if there is no room.
    fn add(&mut self, name: Name, parent: Option<Name>) -> bool {
        if self.blocks.len() >= self.capacity && !self.evict_one() {
            return false;
        }
        if let Some(above) = parent.and_then(|parent| self.blocks.get_mut(&parent)) {
            above.children += 1;
        }
        let last_used = self.clock;
        self.blocks.insert(name, Block { parent, children: 0, holders: 0, last_used });
        true
    }

    fn evict_one(&mut self) -> bool {
        let Some((_, name)) = self.evictable.pop_first() else {
            return false;
        };
        self.evicted += 1;
        let parent = self.blocks.remove(&name).and_then(|block| block.parent);
        if let Some((parent, above)) = parent.and_then(|p| Some((p, self.blocks.get_mut(&p)?))) {
            above.children = above.children.saturating_sub(1);
            if above.children == 0 && above.holders == 0 {
                self.evictable.insert((above.last_used, parent));
            }
        }
        true
    }
}

/// The names of the full blocks of a prompt. A last, partly filled block has none yet.
struct Names<'a> {
    blocks: std::slice::ChunksExact<'a, u32>,
    above: Option<Name>,
}

impl<'a> Names<'a> {
    fn of(tokens: &'a [u32], block_tokens: usize) -> Self {
        Self::after(None, tokens, block_tokens)
    }

    fn after(above: Option<Name>, tokens: &'a [u32], block_tokens: usize) -> Self {
        Self { blocks: tokens.chunks_exact(block_tokens), above }
    }
}

impl Iterator for Names<'_> {
    type Item = Name;

    fn next(&mut self) -> Option<Name> {
        let mut hasher = DefaultHasher::new();
        self.above.hash(&mut hasher);
        self.blocks.next()?.hash(&mut hasher);
        self.above = Some(hasher.finish());
        self.above
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(cache: &mut Cache, tokens: &[u32]) -> usize {
        let mut hold = cache.acquire(tokens);
        let cached = hold.chain.len() * cache.block_tokens;
        cache.insert(&mut hold, tokens);
        cache.release(hold);
        cached
    }

    fn text(from: u32, len: u32) -> Vec<u32> {
        (from..from + len).collect()
    }

    #[test]
    fn a_repeated_prompt_is_cached_in_whole_blocks() {
        let mut cache = Cache::new(8, 4);
        assert_eq!(run(&mut cache, &text(0, 10)), 0);
        assert_eq!(cache.len(), 2, "the partly filled third block is not cached");
        assert_eq!(cache.match_prefix(&text(0, 10)), 8);
        assert_eq!(cache.match_prefix(&text(0, 7)), 4);
        assert_eq!(cache.match_prefix(&text(1, 10)), 0);
    }

    #[test]
    fn the_same_block_after_another_prefix_is_another_block() {
        let mut cache = Cache::new(8, 2);
        run(&mut cache, &[1, 2, 9, 9]);
        assert_eq!(cache.match_prefix(&[3, 4, 9, 9]), 0);
        assert_eq!(cache.match_prefix(&[9, 9]), 0);
    }

    #[test]
    fn a_hold_grows_with_the_answer() {
        let mut cache = Cache::new(8, 2);
        let mut hold = cache.acquire(&[1, 2, 3]);
        cache.insert(&mut hold, &[1, 2, 3]);
        cache.insert(&mut hold, &[1, 2, 3, 4]);
        cache.insert(&mut hold, &[1, 2, 3, 4, 5, 6]);
        assert_eq!(cache.pinned(), 3);
        cache.release(hold);
        assert_eq!(cache.match_prefix(&[1, 2, 3, 4, 5, 6, 7, 8]), 6);
    }

    #[test]
    fn the_longest_unused_goes_first_and_from_its_end() {
        let mut cache = Cache::new(4, 2);
        run(&mut cache, &[1, 1, 1, 2]);
        run(&mut cache, &[2, 1, 2, 2]);
        run(&mut cache, &[1, 1, 1, 2]);
        run(&mut cache, &[3, 1]);
        assert_eq!(cache.match_prefix(&[1, 1, 1, 2]), 4);
        assert_eq!(cache.match_prefix(&[2, 1, 2, 2]), 2, "its tail went, its head stayed");
        run(&mut cache, &[4, 1]);
        assert_eq!(cache.match_prefix(&[2, 1, 2, 2]), 0);
        assert_eq!(cache.evicted(), 2);
    }

    #[test]
    fn held_blocks_are_never_evicted_and_the_rest_stays_uncached() {
        let mut cache = Cache::new(2, 2);
        let mut hold = cache.acquire(&[1, 1, 1, 2]);
        cache.insert(&mut hold, &[1, 1, 1, 2]);
        assert_eq!(run(&mut cache, &[2, 1, 2, 2]), 0);
        assert_eq!(cache.match_prefix(&[2, 1]), 0);
        assert_eq!(cache.match_prefix(&[1, 1, 1, 2]), 4);
        cache.release(hold);
        run(&mut cache, &[2, 1, 2, 2]);
        assert_eq!(cache.match_prefix(&[2, 1, 2, 2]), 4);
    }

    #[test]
    fn a_shared_block_stays_pinned_until_its_last_holder_leaves() {
        let mut cache = Cache::new(4, 2);
        let mut first = cache.acquire(&[1, 1]);
        cache.insert(&mut first, &[1, 1]);
        let second = cache.acquire(&[1, 1]);
        assert_eq!(cache.pinned(), 1);
        cache.release(first);
        assert_eq!(cache.pinned(), 1);
        cache.release(second);
        assert_eq!(cache.pinned(), 0);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Begin(Vec<u32>),
        Grow(usize, Vec<u32>),
        End(usize),
        Look(Vec<u32>),
    }

    /// Few distinct tokens, so that prompts really share prefixes.
    fn prompt() -> impl Strategy<Value = Vec<u32>> {
        prop::collection::vec(0_u32..3, 0..20)
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => prompt().prop_map(Step::Begin),
            2 => (0_usize..8, prompt()).prop_map(|(at, more)| Step::Grow(at, more)),
            3 => (0_usize..8).prop_map(Step::End),
            3 => prompt().prop_map(Step::Look),
        ]
    }

    /// What must hold after every step, worked out from scratch.
    fn check(cache: &Cache, running: &[(Vec<u32>, Hold)]) {
        assert!(cache.len() <= cache.capacity);
        let held: std::collections::HashSet<_> =
            running.iter().flat_map(|(_, hold)| &hold.chain).collect();
        assert_eq!(cache.pinned(), held.len());
        for name in held {
            assert!(cache.blocks.contains_key(name), "a held block was evicted");
        }
        for (name, block) in &cache.blocks {
            let children = cache.blocks.values().filter(|b| b.parent == Some(*name));
            assert_eq!(children.count(), block.children);
            let free = block.holders == 0 && block.children == 0;
            assert_eq!(free, cache.evictable.contains(&(block.last_used, *name)));
            assert!(block.parent.is_none_or(|above| cache.blocks.contains_key(&above)));
        }
    }

    /// A prompt nobody sent may only match what somebody did send.
    fn look(cache: &Cache, asked: &[u32], seen: &[Vec<u32>]) {
        let cached = cache.match_prefix(asked);
        assert!(cached <= asked.len() && cached.is_multiple_of(cache.block_tokens));
        let prefix = &asked[..cached];
        let really = cached == 0 || seen.iter().any(|one| one.starts_with(prefix));
        assert!(really, "nobody ever computed {prefix:?}");
    }

    proptest! {
        #[test]
        fn laws(capacity in 0_usize..12, size in 1_usize..4, steps in prop::collection::vec(step(), 0..60)) {
            let mut cache = Cache::new(capacity, size);
            let mut running: Vec<(Vec<u32>, Hold)> = Vec::new();
            let mut seen: Vec<Vec<u32>> = Vec::new();
            for step in steps {
                match step {
                    Step::Begin(tokens) => {
                        let mut hold = cache.acquire(&tokens);
                        prop_assert_eq!(hold.chain.len() * size, cache.match_prefix(&tokens));
                        cache.insert(&mut hold, &tokens);
                        seen.push(tokens.clone());
                        running.push((tokens, hold));
                    }
                    Step::Grow(at, more) => if let Some((tokens, hold)) = running.get_mut(at) {
                        tokens.extend(more);
                        cache.insert(hold, tokens);
                        seen.push(tokens.clone());
                    },
                    Step::Look(tokens) => look(&cache, &tokens, &seen),
                    Step::End(at) => if at < running.len() {
                        cache.release(running.swap_remove(at).1);
                    },
                }
                check(&cache, &running);
            }
            for (_, hold) in running.drain(..) {
                cache.release(hold);
            }
            check(&cache, &[]);
            prop_assert_eq!(cache.pinned(), 0);
            prop_assert!(cache.blocks.values().all(|block| block.holders == 0));
        }
    }
}
