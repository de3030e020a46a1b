//! The yardstick: a radix tree that keeps every character of every prompt, and who holds it.
//!
//! It is built without thrift but without waste either: a label takes its own length, a node what
//! it must say, and what the allocator adds is not counted. Nothing is ever evicted.

use std::sync::{Mutex, PoisonError};

use rand::Rng;
use smg_decide::fleet::{Worker, WorkerId};
use smg_decide::place::cache_aware::choose::{Known, Shared};
use smg_decide::place::cache_aware::{Holders, Rules};
use smg_decide::place::{Ask, Candidates, Policy, Prompt, Proposal, Reads, Receipt};

/// `cache_aware` over an exact tree.
#[derive(Debug)]
pub struct Exact {
    rules: Rules,
    /// Whether any match is taken for the prompt's own conversation, as the peers do.
    herds: bool,
    tree: Mutex<Tree>,
}

/// A radix tree over bytes; the first node is the root.
#[derive(Debug)]
struct Tree {
    nodes: Vec<Node>,
}

#[derive(Debug, Default)]
struct Node {
    label: Box<[u8]>,
    /// The first byte of each child's label, and the child.
    children: Vec<(u8, u32)>,
    holders: Vec<WorkerId>,
    end: bool,
    forks: u32,
}

/// How far a prompt is known.
#[derive(Debug, Default)]
struct Found {
    matched: usize,
    /// Nodes passed and the bytes each reaches to; in the last one maybe not to its end.
    path: Vec<(u32, usize)>,
    /// Bytes of the last node's label that match.
    within: usize,
    /// How many prompts end on the way.
    ends: u32,
    forks: u32,
}

impl Exact {
    /// An empty tree.
    #[must_use]
    pub fn new(herds: bool) -> Self {
        let tree = Mutex::new(Tree { nodes: vec![Node::default()] });
        Self { rules: Rules::default(), herds, tree }
    }

    /// Memory taken.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let node = |node: &Node| {
            size_of::<Node>()
                + node.label.len()
                + node.children.len() * size_of::<(u8, u32)>()
                + node.holders.len() * size_of::<WorkerId>()
        };
        self.with(|tree| tree.nodes.iter().map(node).sum())
    }

    fn with<T>(&self, act: impl FnOnce(&mut Tree) -> T) -> T {
        act(&mut self.tree.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn own(&self, found: &Found, shared: &Shared, length: usize) -> bool {
        let beyond = shared.get(1).is_some_and(|(wider, _)| found.matched - wider >= 1024);
        let most = if found.ends > 1 { 7 } else { 3 };
        let private = (found.ends > 0 || beyond) && found.forks < most;
        found.matched > 0 && (self.herds || private || found.matched == length)
    }
}

impl Policy for Exact {
    fn name(&self) -> &'static str {
        "exact"
    }

    fn reads(&self) -> Reads {
        Reads::Prompt
    }

    fn propose(&self, ask: &Ask<'_>, candidates: &Candidates<'_>, dice: &mut dyn Rng) -> Proposal {
        let bytes = bytes(ask.prompt);
        let (found, shared) = self.with(|tree| {
            let found = tree.find(&bytes);
            let shared = tree.shared(&found);
            (found, shared)
        });
        let known = Known {
            units: bytes.len(),
            units_a_token: 4.0,
            matched: found.matched,
            own: self.own(&found, &shared, bytes.len()),
            deepest: &|| shared.first().map(|(_, holders)| holders.clone()).unwrap_or_default(),
            shared: &|| shared.clone(),
            now: ask.now,
        };
        self.rules.choose(&known, candidates, dice)
    }

    fn commit(&self, ask: &Ask<'_>, used: &Worker) -> Receipt {
        let bytes = bytes(ask.prompt);
        let stays = self.with(|tree| {
            let found = tree.find(&bytes);
            let shared = tree.shared(&found);
            let first = found.forks == 0 || found.matched == bytes.len();
            let stays = first
                && self.own(&found, &shared, bytes.len())
                && shared.first().is_some_and(|(_, holders)| holders.contains(&used.id));
            tree.insert(&bytes, &found, used.id);
            stays
        });
        if !stays {
            used.placed().add(self.rules.conversation_tokens(), ask.now);
        }
        Receipt::default()
    }
}

#[expect(
    clippy::indexing_slicing,
    reason = "nodes are never removed, so a number that was dealt is good"
)]
impl Tree {
    fn node(&self, at: u32) -> &Node {
        &self.nodes[at as usize]
    }

    fn node_mut(&mut self, at: u32) -> &mut Node {
        &mut self.nodes[at as usize]
    }

    fn add(&mut self, node: Node) -> u32 {
        self.nodes.push(node);
        (self.nodes.len() - 1) as u32
    }

    fn find(&self, bytes: &[u8]) -> Found {
        let mut found = Found::default();
        let mut at = 0;
        loop {
            let rest = bytes.get(found.matched..).unwrap_or_default();
            let next = rest.first().and_then(|first| self.child(at, *first));
            let Some(next) = next else { return found };
            let node = self.node(next);
            found.within = node.label.iter().zip(rest).take_while(|(a, b)| a == b).count();
            found.matched += found.within;
            found.path.push((next, found.matched));
            found.forks = 0;
            if found.within < node.label.len() {
                return found;
            }
            found.ends += u32::from(node.end);
            found.forks = node.forks;
            at = next;
        }
    }

    fn child(&self, at: u32, first: u8) -> Option<u32> {
        self.node(at).children.iter().find(|(byte, _)| *byte == first).map(|(_, child)| *child)
    }

    /// Who holds how much, the longest first.
    fn shared(&self, found: &Found) -> Shared {
        let mut shared = Shared::new();
        for (at, matched) in found.path.iter().rev() {
            let mut holders: Holders = self.node(*at).holders.iter().copied().collect();
            holders.sort_unstable();
            if shared.last().is_none_or(|(_, deeper)| deeper.len() < holders.len()) {
                shared.push((*matched, holders));
            }
        }
        shared
    }

    fn insert(&mut self, bytes: &[u8], found: &Found, worker: WorkerId) {
        let mut at = found.path.last().map_or(0, |(at, _)| *at);
        if found.path.last().is_some_and(|(at, _)| found.within < self.node(*at).label.len()) {
            self.split(at, found.within);
        }
        for (passed, _) in &found.path {
            let holders = &mut self.node_mut(*passed).holders;
            if !holders.contains(&worker) {
                holders.push(worker);
            }
        }
        let rest = bytes.get(found.matched..).unwrap_or_default();
        if let Some(first) = rest.first() {
            let leaf = Node { label: rest.into(), holders: vec![worker], ..Node::default() };
            let leaf = self.add(leaf);
            let node = self.node_mut(at);
            node.children.push((*first, leaf));
            node.forks += 1;
            at = leaf;
        }
        self.node_mut(at).end |= at != 0;
    }

    /// Cuts a node in two after some bytes of its label; it keeps its number and the upper part.
    fn split(&mut self, at: u32, after: usize) {
        let node = std::mem::take(self.node_mut(at));
        let (upper, lower) = node.label.split_at(after);
        let (upper, first) = (upper.into(), lower.first().copied().unwrap_or_default());
        let holders = node.holders.clone();
        let below = self.add(Node { label: lower.into(), ..node });
        let children = vec![(first, below)];
        *self.node_mut(at) = Node { label: upper, children, holders, end: false, forks: 0 };
    }
}

/// All of a prompt, copied together.
fn bytes(prompt: Prompt<'_>) -> Vec<u8> {
    match prompt {
        Prompt::Unknown => Vec::new(),
        Prompt::Text(parts) => parts.join(" ").into_bytes(),
        Prompt::Tokens(ids) => ids.iter().flat_map(|id| id.to_le_bytes()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_knows_every_character() {
        let mut tree = Tree { nodes: vec![Node::default()] };
        let mut insert = |text: &str, worker| {
            let found = tree.find(text.as_bytes());
            tree.insert(text.as_bytes(), &found, WorkerId(worker));
        };
        insert("system one", 1);
        insert("system two", 2);
        insert("system one and on", 1);
        for (text, matched, ends, forks) in [
            ("system one and more", 15, 1, 0),
            ("system one", 10, 1, 1),
            ("system three", 8, 0, 0),
            ("system for", 7, 0, 1),
            ("else", 0, 0, 0),
        ] {
            let found = tree.find(text.as_bytes());
            assert_eq!((found.matched, found.ends, found.forks), (matched, ends, forks));
        }
        let shared = tree.shared(&tree.find(b"system one"));
        assert_eq!(shared.len(), 2);
        assert_eq!(shared[0], (10, Holders::from_slice(&[WorkerId(1)])));
        assert_eq!(shared[1], (7, Holders::from_slice(&[WorkerId(1), WorkerId(2)])));
    }
}
