//! A hash ring: a key belongs to the next point clockwise, so that a worker that comes or goes
//! moves its own keys only.
//!
//! Points are made from URLs and nothing else: every replica, and the same replica after a restart,
//! places a key alike without a word to the others (000, "By gateway replica").

use std::hash::Hasher as _;
use std::sync::Arc;

use arc_swap::ArcSwap;
use siphasher::sip::SipHasher13;

use super::Candidates;
use crate::fleet::{Worker, WorkerId};

/// Points of one worker; shares differ by about a twelfth then.
const POINTS: u32 = 150;
/// Not a secret, but part of the contract between replicas: another one moves nearly every key.
const KEY: [u8; 16] = *b"smg hash ring v1";

/// The points of a list of workers.
#[derive(Debug, Default)]
pub struct Ring {
    ids: Box<[WorkerId]>,
    points: Box<[Point]>,
}

#[derive(Clone, Copy, Debug)]
struct Point {
    position: u64,
    /// The worker's place in the list.
    at: usize,
}

/// Where the concatenation of these parts lies on any ring.
pub(super) fn position<B: AsRef<[u8]>>(parts: impl IntoIterator<Item = B>) -> u64 {
    let mut hasher = SipHasher13::new_with_key(&KEY);
    parts.into_iter().for_each(|part| hasher.write(part.as_ref()));
    hasher.finish()
}

impl Ring {
    /// The ring of these workers.
    #[must_use]
    pub fn over(workers: &[Arc<Worker>]) -> Self {
        let points_of = |(at, worker): (usize, &Arc<Worker>)| {
            let url = Arc::clone(worker);
            (0..POINTS).map(move |n| Point {
                position: position([url.url.as_bytes(), b"#", &n.to_le_bytes()[..]]),
                at,
            })
        };
        let mut points: Vec<_> = workers.iter().enumerate().flat_map(points_of).collect();
        let url = |point: &Point| workers.get(point.at).map(|worker| &worker.url);
        // By URL where positions meet, as the order of registration differs between replicas.
        points
            .sort_unstable_by(|a, b| a.position.cmp(&b.position).then_with(|| url(a).cmp(&url(b))));
        Self {
            ids: workers.iter().map(|worker| worker.id).collect(),
            points: points.into_boxed_slice(),
        }
    }

    /// Whether it is the ring of exactly these workers.
    fn is_over(&self, workers: &[Arc<Worker>]) -> bool {
        self.ids.len() == workers.len()
            && self.ids.iter().zip(workers).all(|(id, worker)| *id == worker.id)
    }

    /// Places in the list, clockwise from a position; each comes up once for every point it has.
    pub fn clockwise(&self, position: u64) -> impl Iterator<Item = usize> {
        let start = self.points.partition_point(|point| point.position < position);
        let (before, after) = self.points.split_at(start);
        after.iter().chain(before).map(|point| point.at)
    }
}

/// The ring of the list seen last, kept until the list changes.
#[derive(Debug, Default)]
pub struct KeptRing(ArcSwap<Ring>);

impl KeptRing {
    /// The first available worker clockwise from a position.
    #[must_use]
    pub fn first_available(&self, position: u64, candidates: &Candidates<'_>) -> Option<usize> {
        // Spares the walk over every point when there is nobody to find.
        candidates.available().next()?;
        let find = |ring: &Ring| ring.clockwise(position).find(|at| candidates.takes(*at));
        let kept = self.0.load();
        if kept.is_over(candidates.all()) {
            return find(&kept);
        }
        let ring = Arc::new(Ring::over(candidates.all()));
        self.0.store(Arc::clone(&ring));
        find(&ring)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::fleet;
    use super::*;
    use proptest::prelude::*;

    fn owners(workers: &[Arc<Worker>], keys: u32) -> Vec<Option<Box<str>>> {
        let (kept, candidates) = (KeptRing::default(), Candidates::new(workers, &[]));
        let owner = |key: u32| {
            let position = position([format!("conversation-{key}").as_bytes()]);
            let at = kept.first_available(position, &candidates)?;
            Some(workers[at].url.clone())
        };
        (0..keys).map(owner).collect()
    }

    #[test]
    fn each_worker_gets_about_its_share() {
        let workers = fleet(5);
        let owners = owners(&workers, 10_000);
        for worker in &workers {
            let share = owners.iter().flatten().filter(|url| **url == worker.url).count();
            assert!((1500..2500).contains(&share), "{} has {share}", worker.url);
        }
    }

    #[test]
    fn positions_are_a_contract_between_versions() {
        let positions = [position([b""]), position([&b"chat-7f3a"[..]])];
        assert_eq!(positions, [0x434f_07c0_8e7f_32b0, 0x0cef_a1e4_a5f3_18a0]);
        assert_eq!(position([&b"chat"[..], b"-7f3a"]), position([&b"chat-7f3a"[..]]));
    }

    #[test]
    fn the_kept_ring_follows_the_list() {
        let all = fleet(3);
        let kept = KeptRing::default();
        for workers in [&all[..], &all[..2], &all[1..], &all[..1], &[]] {
            let fresh = Ring::over(workers);
            for key in 0..50_u32 {
                let position = position([&key.to_le_bytes()[..]]);
                let found = kept.first_available(position, &Candidates::new(workers, &[]));
                assert_eq!(found, fresh.clockwise(position).next());
            }
        }
    }

    proptest! {
        #[test]
        fn a_worker_that_goes_or_is_down_moves_only_its_keys(count in 1_u32..8, gone in 0_usize..8) {
            let all = fleet(count);
            let gone = gone % all.len();
            let before = owners(&all, 200);
            let rest: Vec<_> =
                all.iter().filter(|worker| worker.id != all[gone].id).map(Arc::clone).collect();
            let removed = owners(&rest, 200);
            all[gone].set_healthy(false);
            let down = owners(&all, 200);
            prop_assert_eq!(&removed, &down, "removed or down is the same");
            for (before, after) in before.iter().zip(&removed) {
                if before.as_ref() != Some(&all[gone].url) {
                    prop_assert_eq!(before, after);
                }
            }
        }

        #[test]
        fn the_order_of_registration_does_not_matter(count in 1_u32..8, turn in 0_usize..8) {
            let workers = fleet(count);
            let mut turned = workers.clone();
            turned.rotate_left(turn % workers.len());
            prop_assert_eq!(owners(&workers, 100), owners(&turned, 100));
        }
    }
}
