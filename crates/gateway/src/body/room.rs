//! Where a body is put together that came in pieces.
//!
//! A long one gets pages of its own, once, as many as it claims: nothing is copied while it grows, and
//! they go back to the system with it. From a heap they would come back with neighbours in between, and
//! a gateway would stay as large as its busiest minute made it. A page costs memory only once it is
//! written to, so a claim alone costs none. The first ones are small: a large one for a few bytes would
//! make a crowd of uploads that never go on cost a hundred times what they are charged.

use bytes::Bytes;
use memmap2::MmapMut;

use super::budget::Charge;

/// Room made at once in the heap; the rest comes as it is needed.
const FIRST_ROOM: usize = 1 << 20;
/// Bodies that claim this much get pages of their own. It is what a large page holds, of which five
/// come as quickly as a hundred of the small ones.
const OWN_PAGES: usize = 2 << 20;
/// So much comes in small pages first.
#[cfg(target_os = "linux")]
const SMALL_PAGES: usize = 1 << 20;

/// A body that is growing.
#[derive(Debug)]
pub(super) enum Room {
    Heap(Vec<u8>),
    /// Own pages, and how much of them is filled.
    Pages(MmapMut, usize),
}

impl Room {
    /// For a body of this length, as far as its client says.
    pub(super) fn claimed(len: usize) -> Self {
        if len >= OWN_PAGES
            && let Ok(pages) = MmapMut::map_anon(len)
        {
            enlarge(&pages);
            return Self::Pages(pages, 0);
        }
        Self::Heap(Vec::with_capacity(len.min(FIRST_ROOM)))
    }

    pub(super) const fn len(&self) -> usize {
        match self {
            Self::Heap(body) => body.len(),
            Self::Pages(_, filled) => *filled,
        }
    }

    pub(super) fn push(&mut self, data: &[u8]) {
        let after = self.len() + data.len();
        if let Self::Pages(pages, filled) = self {
            if let Some(free) = pages.get_mut(*filled..after) {
                free.copy_from_slice(data);
                *filled = after;
                return;
            }
            // Longer than it said.
            *self = Self::Heap(self.as_ref().to_vec());
        }
        if let Self::Heap(body) = self {
            body.extend_from_slice(data);
        }
    }

    /// The body, holding its charge until its last clone is gone.
    pub(super) fn seal(self, charge: Charge) -> Bytes {
        match self {
            Self::Heap(body) => charge.seal(body),
            pages @ Self::Pages(..) => charge.keep(pages),
        }
    }
}

impl AsRef<[u8]> for Room {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Heap(body) => body,
            Self::Pages(pages, filled) => pages.get(..*filled).unwrap_or_default(),
        }
    }
}

/// Asks for large pages where whole ones will be filled, behind the first bytes. A system without them
/// does without.
fn enlarge(pages: &MmapMut) {
    #[cfg(target_os = "linux")]
    {
        let whole = pages.len() / OWN_PAGES * OWN_PAGES;
        let rest = whole.saturating_sub(SMALL_PAGES);
        let _ = pages.advise_range(memmap2::Advice::HugePage, SMALL_PAGES, rest);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Budget;
    use super::*;

    /// A body of `len` bytes, put together in a room for `claimed`.
    fn built(claimed: usize, len: usize) -> (Vec<u8>, Room) {
        let body: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
        let mut room = Room::claimed(claimed);
        body.chunks(65_537).for_each(|piece| room.push(piece));
        (body, room)
    }

    #[test]
    fn a_body_is_the_pieces_it_came_in() {
        for (claimed, len, pages) in [
            (0, 100_000, false),
            (OWN_PAGES - 1, OWN_PAGES - 1, false),
            (OWN_PAGES, OWN_PAGES, true),
            (OWN_PAGES + 12_345, OWN_PAGES + 12_345, true),
            (3 * OWN_PAGES, 70_000, true),
            // HTTP would not let it be longer than it said; if it were, nothing is lost.
            (OWN_PAGES, OWN_PAGES + 1, false),
        ] {
            let (body, room) = built(claimed, len);
            assert_eq!(matches!(room, Room::Pages(..)), pages, "{claimed} {len}");
            assert_eq!(room.len(), len);
            assert!(room.seal(Charge::none(None)) == body, "{claimed} {len}");
        }
    }

    /// Thousands of uploads that stop after two bytes cost two bytes each, and a page.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_large_claim_and_few_bytes_cost_no_large_page() {
        let mut room = Room::claimed(64 * OWN_PAGES);
        room.push(b"{");
        room.push(b"}");
        let at = room.as_ref().as_ptr() as usize;
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let holds = |line: &str| {
            let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
            let bound = |hex| usize::from_str_radix(hex, 16).ok();
            range.and_then(|(from, to)| Some((bound(from)?..bound(to)?).contains(&at)))
        };
        let mut lines = maps.lines().skip_while(|line| holds(line) != Some(true));
        let large = lines.find_map(|line| line.strip_prefix("AnonHugePages:")).unwrap();
        assert_eq!(large.trim(), "0 kB");
    }

    #[test]
    fn what_no_machine_has_is_not_asked_of_the_heap() {
        let mut room = Room::claimed(usize::MAX);
        room.push(b"{}");
        assert_eq!(room.seal(Charge::none(None)), "{}");
    }

    #[test]
    fn own_pages_are_charged_until_the_last_clone_is_gone() {
        let budget = Budget::new(u64::MAX);
        let mut charge = Charge::none(Some(budget.clone()));
        let (_, room) = built(OWN_PAGES, OWN_PAGES);
        assert!(charge.grow(room.len()));
        let body = room.seal(charge);
        let part = body.slice(..1);
        drop(body);
        assert!(budget.held() > 0);
        drop(part);
        assert_eq!(budget.held(), 0);
    }
}
