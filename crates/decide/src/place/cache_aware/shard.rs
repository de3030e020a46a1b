//! One shard of the index: links by their hash, each in 24 bytes.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use super::holders::{Holders, Lists, Packed};
use crate::fleet::WorkerId;

/// What is remembered of one link.
#[derive(Clone, Copy, Debug)]
struct Mark {
    held: Packed,
    note: Note,
    /// Which pieces below this block end a prompt; in a tail, how many units it spans.
    pieces: u32,
    /// Which steps below this block or piece end a prompt.
    steps: u32,
}

/// Age and standing of a link, packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Note(u32);

/// How many prompts may go on from a link in different ways before they count as conversations
/// of their own: one is the next turn, one more an edited one.
const FORKS: u32 = 3;

/// The same below several turns: an agent sends out a team, and goes on itself.
const GROWN_FORKS: u32 = 7;

impl Note {
    /// A prompt ends here.
    const END: u32 = 1 << 31;
    /// A whole earlier prompt lies above.
    const GROWN: u32 = 1 << 30;
    const TAIL: u32 = 1 << 29;
    const FORK_SHIFT: u32 = 26;
    const AGE: u32 = (1 << Self::FORK_SHIFT) - 1;

    const fn has(self, flag: u32) -> bool {
        self.0 & flag != 0
    }

    pub(super) const fn forks(self) -> u32 {
        (self.0 >> Self::FORK_SHIFT) & GROWN_FORKS
    }

    const fn age(self) -> u32 {
        self.0 & Self::AGE
    }

    /// Few enough go on from here to be one conversation.
    pub(super) const fn narrow(self) -> bool {
        self.forks() < if self.grown() { GROWN_FORKS } else { FORKS }
    }

    /// A whole earlier prompt lies above.
    pub(super) const fn grown(self) -> bool {
        self.has(Self::GROWN)
    }

    /// A prompt ends here.
    pub(super) const fn ends(self) -> bool {
        self.has(Self::END)
    }

    /// What goes on from here is one conversation, not many that begin alike.
    pub(super) const fn private(self) -> bool {
        self.conversation() && self.narrow()
    }

    /// A whole earlier prompt ends here or above.
    pub(super) const fn conversation(self) -> bool {
        self.ends() || self.grown()
    }
}

/// What a look at a link shows.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub(super) count: usize,
    pub(super) note: Note,
    pub(super) pieces: u32,
    pub(super) steps: u32,
}

/// A link to insert.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) key: u64,
    /// Units it spans below its parent.
    pub(super) span: usize,
    pub(super) tail: bool,
    pub(super) end: bool,
    pub(super) grown: bool,
}

/// A child that a link is to know of.
#[derive(Clone, Copy, Debug)]
pub(super) enum Child {
    Piece(u32),
    Step(u32),
}

/// What inserting a link did.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entered {
    pub(super) new_link: bool,
    pub(super) new_holder: bool,
    pub(super) new_end: bool,
}

/// Some of the index's links.
#[derive(Debug, Default)]
pub(super) struct Shard {
    marks: HashMap<u64, Mark, BuildHasherDefault<AsIs>>,
    lists: Lists,
    /// Units held, each holder counted.
    size: usize,
}

impl Shard {
    pub(super) const fn size(&self) -> usize {
        self.size
    }

    pub(super) fn view(&self, key: u64) -> Option<View> {
        let mark = self.marks.get(&key)?;
        let pieces = if mark.note.has(Note::TAIL) { 0 } else { mark.pieces };
        let count = self.lists.count(mark.held);
        Some(View { count, note: mark.note, pieces, steps: mark.steps })
    }

    pub(super) fn holders(&self, key: u64) -> Holders {
        self.marks.get(&key).map(|mark| self.lists.all(mark.held)).unwrap_or_default()
    }

    pub(super) fn insert(&mut self, link: Link, worker: WorkerId, age: u32) -> Option<Entered> {
        let one = Packed::one(worker)?;
        let mut new_link = false;
        let mark = self.marks.entry(link.key).or_insert_with(|| {
            new_link = true;
            let mut note = 0;
            note |= if link.tail { Note::TAIL } else { 0 };
            note |= if link.grown { Note::GROWN } else { 0 };
            let pieces = if link.tail { link.span as u32 } else { 0 };
            Mark { held: one, note: Note(note), pieces, steps: 0 }
        });
        let new_holder = new_link || self.lists.add(&mut mark.held, worker);
        let new_end = link.end && !mark.note.has(Note::END);
        let flags = (mark.note.0 & !Note::AGE) | if link.end { Note::END } else { 0 };
        mark.note = Note(flags | age.max(mark.note.age()).min(Note::AGE));
        self.size += if new_holder { link.span } else { 0 };
        Some(Entered { new_link, new_holder, new_end })
    }

    /// A link has a child at the end of a prompt.
    pub(super) fn know(&mut self, key: u64, child: Child) {
        if let Some(mark) = self.marks.get_mut(&key) {
            match child {
                Child::Piece(place) if !mark.note.has(Note::TAIL) => mark.pieces |= bit(place),
                Child::Piece(_) => {}
                Child::Step(place) => mark.steps |= bit(place),
            }
        }
    }

    /// One more prompt goes on from a link, or one less; true if that is a change.
    pub(super) fn fork(&mut self, key: u64, more: bool) -> bool {
        let Some(mark) = self.marks.get_mut(&key) else { return false };
        let was = mark.note.forks();
        let forks = if more { (was + 1).min(GROWN_FORKS) } else { was.saturating_sub(1) };
        let rest = mark.note.0 & !(GROWN_FORKS << Note::FORK_SHIFT);
        mark.note = Note(rest | (forks << Note::FORK_SHIFT));
        forks != was
    }

    /// No prompt ends at a link after all.
    pub(super) fn unend(&mut self, key: u64) {
        if let Some(mark) = self.marks.get_mut(&key) {
            mark.note.0 &= !Note::END;
        }
    }

    /// The worker does not hold a link, which spans `block` units if it is a whole block.
    pub(super) fn remove(&mut self, key: u64, worker: WorkerId, block: usize) {
        if let Some(mark) = self.marks.get_mut(&key)
            && let Some(last) = self.lists.remove(&mut mark.held, worker)
        {
            self.size -= span(mark, block);
            if last {
                self.marks.remove(&key);
            }
        }
    }

    /// The worker is gone.
    pub(super) fn forget(&mut self, worker: WorkerId, block: usize) {
        let Self { marks, lists, size } = self;
        marks.retain(|_, mark| match lists.remove(&mut mark.held, worker) {
            None => true,
            Some(last) => {
                *size -= span(mark, block);
                !last
            }
        });
        self.shrink();
    }

    /// The age and size of every link.
    pub(super) fn ages(&self, block: usize) -> impl Iterator<Item = (u32, usize)> {
        self.marks
            .values()
            .map(move |mark| (mark.note.age(), span(mark, block) * self.lists.count(mark.held)))
    }

    /// Adds everybody who holds a link.
    pub(super) fn workers(&self, into: &mut BTreeSet<WorkerId>) {
        self.marks.values().for_each(|mark| into.extend(self.lists.all(mark.held)));
    }

    /// Drops what is older than `age`, and what is just as old while `over` asks for more.
    pub(super) fn evict(&mut self, age: u32, over: &mut usize, block: usize) {
        let Self { marks, lists, size } = self;
        for inclusive in [false, true] {
            marks.retain(|_, mark| {
                let old = mark.note.age() < age || (inclusive && mark.note.age() == age);
                if !old || *over == 0 {
                    return true;
                }
                let freed = span(mark, block) * lists.count(mark.held);
                lists.drop(mark.held);
                *size -= freed;
                *over = over.saturating_sub(freed);
                false
            });
        }
    }

    /// Gives memory back that is not used any more.
    pub(super) fn shrink(&mut self) {
        if self.marks.len() < self.marks.capacity() / 4 {
            self.marks.shrink_to_fit();
        }
    }

    /// Links remembered.
    pub(super) fn len(&self) -> usize {
        self.marks.len()
    }

    /// Memory taken, in bytes: the table fills 7 of 8 buckets at most and keeps one byte beside
    /// each.
    pub(super) fn bytes(&self) -> usize {
        let buckets = match self.marks.capacity() {
            0 => 0,
            full => (full * 8 / 7).next_power_of_two(),
        };
        buckets * (size_of::<(u64, Mark)>() + 1) + self.lists.bytes()
    }
}

const fn span(mark: &Mark, block: usize) -> usize {
    if mark.note.has(Note::TAIL) { mark.pieces as usize } else { block }
}

pub(super) const fn bit(place: u32) -> u32 {
    1_u32.wrapping_shl(place)
}

/// How old a link may get: the age at which enough of the oldest are gone.
pub(super) fn cutoff(mut ages: Vec<(u32, usize)>, over: usize) -> u32 {
    ages.sort_unstable();
    let mut freed = 0;
    for (age, size) in ages {
        freed += size;
        if freed >= over {
            return age;
        }
    }
    u32::MAX
}

/// Keys are keyed hashes already.
#[derive(Debug, Default)]
pub(super) struct AsIs(u64);

impl Hasher for AsIs {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_takes_24_bytes() {
        assert_eq!(size_of::<(u64, Mark)>(), 24);
    }
}
