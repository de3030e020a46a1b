//! `consistent_hashing`: the worker that the request names, else the key's place on the ring. Every
//! replica that sees the same workers as available places a key alike (000, "Scoping").

use rand::Rng;

use super::ring::{KeptRing, position};
use super::{Ask, Branch, Candidates, Policy, Proposal, Reads};
use crate::keys::KeyUse;

/// The policy `consistent_hashing`.
#[derive(Debug, Default)]
pub struct ConsistentHashing {
    ring: KeptRing,
}

impl Policy for ConsistentHashing {
    fn name(&self) -> &'static str {
        "consistent_hashing"
    }

    fn reads(&self) -> Reads {
        Reads::Headers
    }

    fn keys(&self) -> KeyUse {
        KeyUse::Hashes
    }

    fn propose(&self, ask: &Ask<'_>, candidates: &Candidates<'_>, dice: &mut dyn Rng) -> Proposal {
        if let Some(target) = ask.target {
            return match named(target, candidates) {
                Some(at) => Proposal::by(Branch::TargetWorkerHit, Some(at)),
                None => Proposal::by(Branch::TargetWorkerMiss, None),
            };
        }
        let (branch, at) = match ask.key {
            Some(key) => {
                let position = position([key.as_bytes()]);
                (Branch::RoutingKeyHit, self.ring.first_available(position, candidates))
            }
            None => (Branch::RandomFallback, candidates.any(dice)),
        };
        match at {
            Some(_) => Proposal::by(branch, at),
            None => Proposal::by(Branch::NoHealthyWorkers, None),
        }
    }
}

/// `X-SMG-Target-Worker`: a 0-based index in registration order over all workers of the model. It
/// never falls through to another one, also not when that one has failed this request before: who
/// names a worker means that worker.
fn named(target: &[u8], candidates: &Candidates<'_>) -> Option<usize> {
    // `parse` would take a sign as well.
    let digits = target.iter().all(u8::is_ascii_digit);
    let at: usize = std::str::from_utf8(target).ok().filter(|_| digits)?.parse().ok()?;
    candidates.is_available(at).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{dice, fleet};
    use super::*;
    use crate::fleet::WorkerId;
    use proptest::prelude::*;

    fn propose(candidates: &Candidates<'_>, target: Option<&[u8]>, key: Option<&str>) -> Proposal {
        let ask = Ask { target, key, ..Ask::default() };
        ConsistentHashing::default().propose(&ask, candidates, &mut dice())
    }

    #[test]
    fn a_named_worker_is_hit_or_missed_and_nothing_else() {
        let workers = fleet(3);
        workers[1].set_healthy(false);
        let candidates = Candidates::new(&workers, &[WorkerId(2)]);
        for (target, at) in [
            (&b"0"[..], Some(0)),
            (b"1", None),
            (b"2", Some(2)),
            (b"02", Some(2)),
            (b"3", None),
            (b"-1", None),
            (b"+0", None),
            (b" 0", None),
            (b"0x0", None),
            (b"", None),
            (b"http://w0", None),
            (b"\xff", None),
            (b"99999999999999999999999", None),
        ] {
            let branch = at.map_or(Branch::TargetWorkerMiss, |_| Branch::TargetWorkerHit);
            let proposal = propose(&candidates, Some(target), Some("key"));
            assert_eq!(proposal, Proposal::by(branch, at), "{}", target.escape_ascii());
        }
    }

    #[test]
    fn a_key_stays_and_no_key_is_anywhere() {
        let workers = fleet(3);
        let candidates = Candidates::new(&workers, &[]);
        let first = propose(&candidates, None, Some("chat-7f3a"));
        assert_eq!(first.branch, Branch::RoutingKeyHit);
        assert_eq!(propose(&candidates, None, Some("chat-7f3a")), first);
        let mut seen = [0; 3];
        let mut dice = dice();
        for _ in 0..300 {
            let policy = ConsistentHashing::default();
            let proposal = policy.propose(&Ask::default(), &candidates, &mut dice);
            assert_eq!(proposal.branch, Branch::RandomFallback);
            seen[proposal.at.unwrap()] += 1;
        }
        assert!(seen.iter().all(|count| *count > 60), "{seen:?}");
    }

    #[test]
    fn nobody_available_is_a_branch_of_its_own() {
        let workers = fleet(1);
        workers[0].set_healthy(false);
        let candidates = Candidates::new(&workers, &[]);
        for key in [None, Some("k")] {
            let nobody = Proposal::by(Branch::NoHealthyWorkers, None);
            assert_eq!(propose(&candidates, None, key), nobody);
        }
    }

    proptest! {
        #[test]
        fn a_worker_this_request_failed_on_moves_only_its_own_keys(key in ".{1,20}", failed in 0_u32..4) {
            let workers = fleet(4);
            let failed = [WorkerId(failed)];
            let home = propose(&Candidates::new(&workers, &[]), None, Some(&key)).at.unwrap();
            let next = propose(&Candidates::new(&workers, &failed), None, Some(&key)).at.unwrap();
            prop_assert_eq!(home == next, workers[home].id != failed[0]);
        }
    }
}
