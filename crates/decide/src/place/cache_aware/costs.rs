//! What a prompt would cost on each worker, in seconds.
//!
//! Each worker is looked at once, for a fleet of a thousand is more than the nearest cache holds:
//! what depends on all of them is added in a second pass over the rows of the first.

use rand::Rng;
use smallvec::SmallVec;

use super::choose::{Known, Rules, Shared};
use super::score::Discount;
use crate::fleet::WorkerId;
use crate::place::expected_wait::{Part, Speeds};
use crate::place::{Candidates, Estimate, least_of};

/// The costs of one prompt.
pub(super) struct Costs {
    rows: SmallVec<[Row; 16]>,
    waits: Estimate,
    /// The least that any candidate is expected to have to do for conversations placed there.
    floor: u32,
    /// The most that counts of what a worker is expected to do beyond that.
    most: u32,
    /// What one token weighs, in seconds.
    token: f64,
}

/// What one look at a worker tells.
#[derive(Clone, Copy)]
struct Row {
    wait: Part,
    /// Tokens of the prompt that it does not hold.
    uncached: f32,
    /// What conversations placed there are expected to bring.
    placed: u32,
    at: u32,
}

impl Costs {
    pub(super) fn new(
        rules: &Rules,
        known: &Known<'_>,
        shared: &Shared,
        candidates: &Candidates<'_>,
    ) -> Self {
        let tokens_a_unit = 1.0 / known.units_a_token;
        let tokens = known.units as f64 * tokens_a_unit;
        let discount = Discount::new(rules.scoring.decay, tokens, candidates);
        let mut ahead = Ahead::of(shared);
        let mut rows = SmallVec::with_capacity(candidates.all().len());
        let (mut speeds, mut floor) = (Speeds::default(), u32::MAX);
        for (at, worker) in candidates.available() {
            speeds.add(worker);
            let held = ahead.held(worker.id) as f64 * tokens_a_unit * discount.of(worker);
            // A conversation that is at home already adds nothing to what is expected there.
            let placed = if known.own { 0 } else { worker.placed().tokens(known.now) };
            floor = floor.min(placed);
            let uncached = (tokens - held) as f32;
            rows.push(Row { wait: rules.wait.part(worker), uncached, placed, at: at as u32 });
        }
        Self {
            rows,
            waits: rules.wait.at_speeds(&speeds),
            floor,
            // One conversation fewer is worth going to a worker that is a few requests busier just
            // now. But one that is new or was away is far behind, and for that it may be let catch
            // up at this price or that of reading the prompt anew and a little more, not of any
            // queue.
            most: (tokens as u32)
                .saturating_add(rules.wait.mean_prefill_tokens)
                .max(rules.conversation_tokens()),
            token: 1.0 / rules.wait.default_throughput,
        }
    }

    /// The place of one with the least cost; equals are drawn by lot.
    pub(super) fn least(&self, dice: &mut dyn Rng) -> Option<usize> {
        let cost = |row: &Row| {
            let more = row.placed.saturating_sub(self.floor).min(self.most);
            let work = f64::from(row.uncached) + f64::from(more);
            (row.at as usize, self.waits.whole(row.wait).and(work * self.token))
        };
        least_of(self.rows.iter().map(cost), dice)
    }
}

/// Lengths and their holders, less those that have been passed.
struct Ahead<'a>(SmallVec<[(usize, &'a [WorkerId]); 4]>);

impl<'a> Ahead<'a> {
    fn of(shared: &'a Shared) -> Self {
        Self(shared.iter().map(|(units, holders)| (*units, holders.as_slice())).collect())
    }

    /// Units of the prompt that a worker holds. Ask in the order of their ids.
    fn held(&mut self, worker: WorkerId) -> usize {
        for (units, ahead) in &mut self.0 {
            while let Some((next, rest)) = ahead.split_first()
                && *next <= worker
            {
                *ahead = rest;
                if *next == worker {
                    return *units;
                }
            }
        }
        0
    }
}
