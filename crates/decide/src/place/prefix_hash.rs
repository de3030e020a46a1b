//! `prefix_hash`: equal beginnings of prompts go to one worker, unless that worker has more than its
//! share of requests in flight.

use rand::Rng;

use super::ring::{KeptRing, position};
use super::{Ask, Branch, Candidates, Policy, Prompt, Proposal, Reads, least_among};
use crate::fleet::Worker;
use crate::keys::KeyUse;

/// What counts as the beginning, and how much load is too much.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrefixRules {
    /// `--prefix-token-count`; of a text four characters are taken for a token.
    pub tokens: usize,
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

    /// The routing key's place on the ring, else that of the prompt's beginning.
    fn position(&self, ask: &Ask<'_>) -> Option<u64> {
        match (ask.key, ask.prompt) {
            (Some(key), _) => Some(position([key.as_bytes()])),
            (None, Prompt::Text(segments)) => {
                head(segments, self.rules.tokens.saturating_mul(4)).map(position)
            }
            (None, Prompt::Tokens(tokens)) if !tokens.is_empty() => {
                let head = tokens.iter().take(self.rules.tokens);
                Some(position(head.map(|id| id.to_le_bytes())))
            }
            (None, Prompt::Tokens(_) | Prompt::Unknown) => None,
        }
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

/// The first `chars` characters of the segments as joined by one space, in pieces; `None` when
/// there is no text.
fn head<'a>(segments: &'a [&'a str], chars: usize) -> Option<impl Iterator<Item = &'a [u8]>> {
    if segments.iter().all(|segment| segment.is_empty()) {
        return None;
    }
    let joined = segments.iter().flat_map(|segment| [" ", *segment]).skip(1);
    let pieces = joined.scan(chars, |left, piece| {
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
    });
    Some(pieces)
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
        let Some(position) = self.position(ask) else {
            return match candidates.least(Worker::in_flight, dice) {
                Some(at) => Proposal::by(Branch::NoRoutingKey, Some(at)),
                None => Proposal::by(Branch::NoHealthyWorkers, None),
            };
        };
        let Some(home) = self.ring.first_available(position, candidates) else {
            return Proposal::by(Branch::NoHealthyWorkers, None);
        };
        let bound = self.bound(candidates);
        let fits = |worker: &Worker| f64::from(worker.in_flight()) <= bound;
        if candidates.all().get(home).is_some_and(|worker| fits(worker)) {
            return Proposal::by(Branch::RingHit, Some(home));
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

    const RULES: PrefixRules = PrefixRules { tokens: 4, load_factor: 1.25, abs_threshold: 10 };

    fn at(ask: Ask<'_>) -> Option<u64> {
        PrefixHash::new(RULES).position(&ask)
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
