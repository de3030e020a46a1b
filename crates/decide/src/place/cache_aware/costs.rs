//! What a prompt would cost on each worker, in seconds.
//!
//! Each worker is looked at once, for a fleet of a thousand is more than the nearest cache holds:
//! what depends on all of them is added in a second pass over the rows of the first.

use rand::Rng;
use smallvec::SmallVec;

use super::Holders;
use super::choose::{Known, Rules, Shared};
use super::score::Discount;
use crate::fleet::WorkerId;
use crate::place::expected_wait::{Part, Speeds};
use crate::place::{Candidates, least_of};

/// The costs of one prompt.
pub(super) struct Costs {
    rows: Vec<Row>,
    /// What one token weighs, in seconds.
    token: f64,
    /// The same where an engine reports nothing.
    silent_token: f64,
    /// The least that any candidate is expected to have to do for conversations placed there.
    floor: u32,
    /// The most that counts of what a worker is expected to do beyond that.
    most: u32,
}

/// What one look at a candidate tells.
#[derive(Clone, Copy, Default)]
struct Row {
    /// Seconds that do not depend on anybody else.
    seconds: f64,
    /// Tokens that a worker without a report has to read before.
    silent: f32,
    /// What conversations placed there are expected to bring.
    placed: u32,
    in_flight: u32,
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
        let token = 1.0 / rules.wait.default_throughput;
        let discount = Discount::new(rules.scoring.decay, tokens, candidates);
        let mut ahead = Ahead::of(shared, tokens_a_unit * token);
        let (mut speeds, mut floor) = (Speeds::default(), u32::MAX);
        let whole = tokens * token;
        // Made beforehand, as a push that may grow the list costs as much as a look.
        let mut rows = vec![Row::default(); candidates.all().len()];
        let mut count = 0;
        for (row, (at, worker)) in rows.iter_mut().zip(candidates.available()) {
            let Part { seconds: wait, silent, in_flight } = rules.wait.part(worker, &mut speeds);
            let saved = ahead.saved(worker.id) * discount.of(worker);
            // A conversation that is at home already adds nothing to what is expected there.
            let placed = if known.own { 0 } else { worker.placed().tokens(known.now) };
            floor = floor.min(placed);
            let seconds = wait + (whole - saved);
            *row = Row { seconds, silent, placed, in_flight, at: at as u32 };
            count += 1;
        }
        rows.truncate(count);
        Self {
            rows,
            token,
            silent_token: rules.wait.at_speeds(&speeds).silent_token(),
            floor,
            // One conversation fewer is worth going to a worker that is a few requests busier just
            // now. But one that is new or was away is far behind, and for that it may be let catch
            // up at this price or that of reading the prompt anew and a little more, not of any
            // queue.
            most: (tokens as u32)
                .saturating_add(rules.wait.mean_prefill_tokens)
                .max(rules.conversation_tokens()),
        }
    }

    /// The place of one with the least cost. Where seconds are equal, the fewest in flight cost less,
    /// and equals in that are drawn by lot.
    pub(super) fn least(mut self, dice: &mut dyn Rng) -> Option<usize> {
        let Self { token, silent_token, floor, most, .. } = self;
        let mut least = f64::INFINITY;
        for row in &mut self.rows {
            let more = row.placed.saturating_sub(floor).min(most);
            row.seconds += f64::from(row.silent) * silent_token + f64::from(more) * token;
            least = if row.seconds < least { row.seconds } else { least };
        }
        let equals = self.rows.iter().filter(|row| row.seconds <= least);
        least_of(equals.map(|row| (row.at as usize, row.in_flight)), dice)
    }
}

/// What holding a length of the prompt saves in seconds, and who holds it, less those that have been
/// passed.
struct Ahead<'a>(SmallVec<[(f64, &'a [WorkerId]); 4]>);

impl<'a> Ahead<'a> {
    fn of(shared: &'a Shared, unit: f64) -> Self {
        let saved = |(units, holders): &'a (usize, Holders)| (*units as f64 * unit, &**holders);
        Self(shared.iter().map(saved).collect())
    }

    /// What a worker saves. Ask in the order of their ids.
    #[inline]
    fn saved(&mut self, worker: WorkerId) -> f64 {
        for (saved, ahead) in &mut self.0 {
            while let Some((next, rest)) = ahead.split_first()
                && *next <= worker
            {
                *ahead = rest;
                if *next == worker {
                    return *saved;
                }
            }
        }
        0.0
    }
}
