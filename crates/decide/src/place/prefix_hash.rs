//! `prefix_hash`: equal beginnings of prompts go to one worker, unless that worker has more than its
//! share of requests in flight.

use rand::Rng;
use smallvec::{SmallVec, smallvec};

use super::ring::{KeptRing, position};
use super::{Ask, Boundaries, Branch, Candidates, Policy, Prompt, Proposal, Reads, least_among};
use crate::fleet::Worker;
use crate::keys::KeyUse;

/// What counts as the beginning, and how much load is too much.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrefixRules {
    /// `--prefix-token-count`; of a text four characters are taken for a token.
    pub tokens: usize,
    /// `--cache-boundaries`: beginnings that are tried in place of that one, the longest first.
    pub boundaries: Boundaries,
    /// `--prefix-hash-load-factor`: overloaded above this multiple of the mean …
    pub load_factor: f64,
    /// `--prefix-hash-balance-abs-threshold`: … and above the mean plus this.
    pub abs_threshold: u32,
}

/// The policy `prefix_hash`.
#[derive(Debug)]
pub struct PrefixHash {
    rules: PrefixRules,
    ring: KeptRing,
}

impl PrefixHash {
    /// By these rules.
    #[must_use]
    pub fn new(rules: PrefixRules) -> Self {
        Self { rules, ring: KeptRing::default() }
    }

    /// The routing key's place on the ring, else those of the prompt's beginnings, the first choice
    /// first; none when there is nothing to hash.
    fn positions(&self, ask: &Ask<'_>) -> SmallVec<[u64; 4]> {
        match (ask.key, ask.prompt) {
            (Some(key), _) => smallvec![position([key.as_bytes()])],
            (None, Prompt::Text(segments)) if segments.iter().any(|part| !part.is_empty()) => {
                let lengths = self.lengths(|| characters(segments) / CHARACTERS_A_TOKEN);
                let chars = lengths.map(|tokens| tokens.saturating_mul(CHARACTERS_A_TOKEN));
                chars.map(|chars| position(head(segments, chars))).collect()
            }
            (None, Prompt::Tokens(tokens)) if !tokens.is_empty() => {
                let heads = self.lengths(|| tokens.len()).map(|length| tokens.iter().take(length));
                heads.map(|head| position(head.map(|id| id.to_le_bytes()))).collect()
            }
            (None, Prompt::Text(_) | Prompt::Tokens(_) | Prompt::Unknown) => SmallVec::new(),
        }
    }

    /// How many tokens of a prompt are hashed, the first choice first; `whole` is its length.
    fn lengths(&self, whole: impl Fn() -> usize) -> impl Iterator<Item = usize> {
        let Self { rules: PrefixRules { tokens, boundaries, .. }, .. } = self;
        let reached = match boundaries.all() {
            [] => &[],
            _ => boundaries.reached(whole()),
        };
        let plain = reached.is_empty().then_some(*tokens);
        reached.iter().rev().map(|at| *at as usize).chain(plain)
    }

    /// The load above which a worker is overloaded.
    fn bound(&self, candidates: &Candidates<'_>) -> f64 {
        let (mut total, mut count) = (1.0, 0.0);
        for (_, worker) in candidates.available() {
            total += f64::from(worker.in_flight());
            count += 1.0;
        }
        let mean = total / count;
        let absolute = mean + f64::from(self.rules.abs_threshold);
        (mean * self.rules.load_factor).max(absolute)
    }
}

/// Of a text, which nobody here can cut into tokens.
const CHARACTERS_A_TOKEN: usize = 4;

/// Characters of the segments as joined by one space.
fn characters(segments: &[&str]) -> usize {
    let letters: usize = segments.iter().map(|segment| segment.chars().count()).sum();
    letters + segments.len().saturating_sub(1)
}

/// The first `chars` characters of the segments as joined by one space, in pieces.
fn head<'a>(segments: &'a [&'a str], chars: usize) -> impl Iterator<Item = &'a [u8]> {
    let joined = segments.iter().flat_map(|segment| [" ", *segment]).skip(1);
    joined.scan(chars, |left, piece| {
        if *left == 0 {
            return None;
        }
        let piece = match end_of(piece, *left) {
            Some(end) => {
                *left = 0;
                piece.get(..end)?
            }
            None => {
                *left -= piece.chars().count();
                piece
            }
        };
        Some(piece.as_bytes())
    })
}

/// Where the first `chars` characters end, if more follow.
fn end_of(text: &str, chars: usize) -> Option<usize> {
    let plain = text.as_bytes().get(..chars).is_some_and(<[u8]>::is_ascii);
    // Most prompts begin in ASCII, where a character is a byte and need not be looked for.
    if plain && text.len() > chars {
        return Some(chars);
    }
    text.char_indices().nth(chars).map(|(end, _)| end)
}

impl Policy for PrefixHash {
    fn name(&self) -> &'static str {
        "prefix_hash"
    }

    fn reads(&self) -> Reads {
        Reads::PromptIfThere
    }

    fn keys(&self) -> KeyUse {
        KeyUse::HashesUnlessPinned
    }

    fn propose(&self, ask: &Ask<'_>, candidates: &Candidates<'_>, dice: &mut dyn Rng) -> Proposal {
        let positions = self.positions(ask);
        let Some(first) = positions.first() else {
            return match candidates.least(Worker::in_flight, dice) {
                Some(at) => Proposal::by(Branch::NoRoutingKey, Some(at)),
                None => Proposal::by(Branch::NoHealthyWorkers, None),
            };
        };
        let Some(home) = self.ring.first_available(*first, candidates) else {
            return Proposal::by(Branch::NoHealthyWorkers, None);
        };
        let bound = self.bound(candidates);
        let fits = |worker: &Worker| f64::from(worker.in_flight()) <= bound;
        let has_room = |at: usize| candidates.worker(at).is_some_and(fits);
        if has_room(home) {
            return Proposal::by(Branch::RingHit, Some(home));
        }
        // A shorter beginning is still better than none.
        let shorter = positions.iter().skip(1);
        let homes = shorter.filter_map(|position| self.ring.first_available(*position, candidates));
        if let Some(at) = homes.into_iter().find(|at| has_room(*at)) {
            return Proposal::by(Branch::LoadBalanceWalk, Some(at));
        }
        let others = candidates.available().filter(|(_, worker)| fits(worker));
        let other = least_among(others, Worker::in_flight, dice).unwrap_or(home);
        Proposal::by(Branch::LoadBalanceWalk, Some(other))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{dice, fleet, send};
    use super::*;
    use proptest::prelude::*;

    const RULES: PrefixRules = PrefixRules {
        tokens: 4,
        boundaries: Boundaries::NONE,
        load_factor: 1.25,
        abs_threshold: 10,
    };

    fn at(ask: Ask<'_>) -> Option<u64> {
        PrefixHash::new(RULES).positions(&ask).first().copied()
    }

    fn bounded(tokens: usize) -> PrefixHash {
        let boundaries = Boundaries::new(&[2, 8]).unwrap();
        PrefixHash::new(PrefixRules { tokens, boundaries, ..RULES })
    }

    #[test]
    fn the_deepest_boundary_reached_is_hashed_and_then_the_shallower_ones() {
        let plain = |length| PrefixHash::new(PrefixRules { tokens: length, ..RULES });
        let ids: Vec<u32> = (0..20).collect();
        let letters: String = ('a'..='z').cycle().take(80).collect();
        for (length, hashed) in [(1, &[4][..]), (2, &[2]), (7, &[2]), (8, &[8, 2]), (20, &[8, 2])] {
            let ask = tokens(&ids[..length]);
            let text_of = [&letters[..length * 4]];
            let wanted = |ask: &Ask<'_>| -> Vec<u64> {
                hashed.iter().flat_map(|tokens| plain(*tokens).positions(ask)).collect()
            };
            assert_eq!(bounded(4).positions(&ask).to_vec(), wanted(&ask), "{length}");
            let ask = text(&text_of);
            assert_eq!(bounded(4).positions(&ask).to_vec(), wanted(&ask), "{length} of text");
        }
        let keyed = Ask { key: Some("k"), ..tokens(&ids) };
        assert_eq!(bounded(4).positions(&keyed).len(), 1);
    }

    #[test]
    fn an_overloaded_home_gives_way_to_that_of_a_shallower_boundary() {
        let workers = fleet(4);
        let policy = bounded(4);
        let candidates = Candidates::new(&workers, &[]);
        let propose = |ids: &[u32]| policy.propose(&tokens(ids), &candidates, &mut dice());
        // A prompt whose two boundaries have homes of their own.
        let two = |n: u32| [n, 0, 0, 0, 0, 0, 0, n];
        let home = |ids: &[u32]| propose(ids).at.unwrap();
        let ids = (0..).map(two).find(|ids| home(ids) != home(&ids[..2])).unwrap();
        let (deep, shallow) = (home(&ids), home(&ids[..2]));
        send(&workers[deep], 100);
        send(&workers[shallow], 1);
        assert_eq!(propose(&ids), Proposal::by(Branch::LoadBalanceWalk, Some(shallow)));
        send(&workers[shallow], 100);
        let other = propose(&ids);
        assert!(
            other.branch == Branch::LoadBalanceWalk
                && ![deep, shallow].map(Some).contains(&other.at)
        );
    }

    fn text<'a>(segments: &'a [&'a str]) -> Ask<'a> {
        Ask { prompt: Prompt::Text(segments), ..Ask::default() }
    }

    fn tokens(ids: &[u32]) -> Ask<'_> {
        Ask { prompt: Prompt::Tokens(ids), ..Ask::default() }
    }

    #[test]
    fn a_key_goes_before_the_prompt_and_only_the_beginning_of_that_counts() {
        let key = |key, prompt| Ask { key: Some(key), prompt, ..Ask::default() };
        assert_eq!(at(key("k", Prompt::Tokens(&[1]))), at(key("k", Prompt::Unknown)));
        assert_ne!(at(key("k", Prompt::Unknown)), at(key("l", Prompt::Unknown)));
        assert_eq!(at(tokens(&[1, 2, 3, 4, 5])), at(tokens(&[1, 2, 3, 4, 6])));
        assert_ne!(at(tokens(&[1, 2, 3, 4])), at(tokens(&[1, 2, 3, 5])));
        // Sixteen characters, however many bytes.
        assert_eq!(at(text(&["ääääääääääääääääX"])), at(text(&["ääääääääääääääääY"])));
        assert_ne!(at(text(&["äääääääääääääääX"])), at(text(&["äääääääääääääääY"])));
    }

    #[test]
    fn nothing_to_hash_is_no_key() {
        for ask in [Ask::default(), tokens(&[]), text(&[]), text(&["", ""])] {
            assert_eq!(at(ask.clone()), None, "{ask:?}");
        }
        assert_eq!(at(text(&["", "a"])), at(text(&[" a"])));
    }

    #[test]
    fn an_overloaded_home_gives_way_to_the_least_loaded() {
        let workers = fleet(3);
        let policy = PrefixHash::new(RULES);
        let candidates = Candidates::new(&workers, &[]);
        let propose = || policy.propose(&text(&["hello"]), &candidates, &mut dice());
        let home = propose();
        assert_eq!(home.branch, Branch::RingHit);
        let home = home.at.unwrap();
        let others: Vec<_> = (0..3).filter(|at| *at != home).collect();
        workers[others[0]].begin(None);
        // (n + 1 + 1) / 3 + 10 is the bound: 17 are over it, 16 are not.
        send(&workers[home], 16);
        assert_eq!(propose(), Proposal::by(Branch::RingHit, Some(home)));
        workers[home].begin(None);
        assert_eq!(propose(), Proposal::by(Branch::LoadBalanceWalk, Some(others[1])));
        others.iter().for_each(|at| workers[*at].set_healthy(false));
        assert_eq!(propose(), Proposal::by(Branch::RingHit, Some(home)), "one alone is the mean");
        workers[home].set_healthy(false);
        assert_eq!(propose(), Proposal::by(Branch::NoHealthyWorkers, None));
    }

    #[test]
    fn without_a_key_the_fewest_in_flight() {
        let workers = fleet(2);
        workers[0].begin(None);
        let policy = PrefixHash::new(RULES);
        for (workers, proposal) in [
            (&workers[..], Proposal::by(Branch::NoRoutingKey, Some(1))),
            (&[], Proposal::by(Branch::NoHealthyWorkers, None)),
        ] {
            let candidates = Candidates::new(workers, &[]);
            assert_eq!(policy.propose(&Ask::default(), &candidates, &mut dice()), proposal);
        }
    }

    proptest! {
        #[test]
        fn it_is_the_joined_text_that_counts(words in proptest::collection::vec("[aé ]{0,6}", 1..6)) {
            let pieces: Vec<_> = words.iter().map(String::as_str).collect();
            let joined = words.join(" ");
            let first: String = joined.chars().take(16).collect();
            let expected = pieces.iter().any(|piece| !piece.is_empty())
                .then(|| position([first.as_bytes()]));
            prop_assert_eq!(at(text(&pieces)), expected);
        }

        #[test]
        fn nobody_is_given_more_than_the_bound(loads in proptest::collection::vec(0_u32..60, 1..6)) {
            let workers = fleet(loads.len() as u32);
            for (worker, load) in workers.iter().zip(&loads) {
                send(worker, *load);
            }
            let candidates = Candidates::new(&workers, &[]);
            let policy = PrefixHash::new(RULES);
            let at = policy.propose(&text(&["x"]), &candidates, &mut dice()).at.unwrap();
            prop_assert!(f64::from(loads[at]) <= policy.bound(&candidates));
        }
    }
}
