//! What a seed plays under: flags, and how often what happens.

use smg_decide::place::Assignment;

use super::policies::Entry;
use super::request::{CONVERSATION, OWN};
use crate::dice::Dice;

/// Models served.
pub(super) const MODELS: usize = 2;

/// One gateway's flags.
#[derive(Debug)]
pub(super) struct Setting {
    pub(super) policy: &'static Entry,
    pub(super) name: &'static str,
    /// `--routing-key-override`
    pub(super) key_override: bool,
    /// `--assignment-mode`
    pub(super) assignment: Option<Assignment>,
    /// `--routing-key-headers`
    pub(super) listed: &'static [&'static str],
    /// Most pins of a table.
    pub(super) max_keys: Option<usize>,
    /// `None` when either flag is 0 (000, "Idle Eviction").
    pub(super) eviction: Option<Eviction>,
    /// Conversations there are.
    pub(super) conversations: usize,
    pub(super) mix: Mix,
}

/// `--max-idle-secs` and `--eviction-interval`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Eviction {
    pub(super) max_idle: u32,
    pub(super) interval: u32,
}

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Move {
    /// A request comes.
    Ask,
    /// A request that was overtaken between propose and land goes on.
    Land,
    /// A request ends.
    End,
    /// A request fails and is sent again, not to the worker it failed on.
    Retry,
    /// A worker becomes unavailable.
    Fall,
    /// And available again.
    Rise,
    /// A worker nobody knew is added.
    Add,
    /// A worker is removed.
    Remove,
    /// And comes back under its id.
    Return,
    /// Time passes.
    Pass,
    /// Engines report.
    Report,
}

/// How often what happens, and how large a share of proposals stays in the air.
#[derive(Debug)]
pub(super) struct Mix {
    weights: [(Move, usize); 11],
    /// In hundredths.
    pub(super) overtaken: usize,
}

const USUAL: [(Move, usize); 11] = [
    (Move::Ask, 40),
    (Move::Land, 12),
    (Move::End, 32),
    (Move::Retry, 4),
    (Move::Fall, 4),
    (Move::Rise, 16),
    (Move::Add, 1),
    (Move::Remove, 1),
    (Move::Return, 6),
    (Move::Pass, 3),
    (Move::Report, 1),
];

impl Mix {
    /// Every seed has its own weather: a mix that is the same for all finds only what the mix finds.
    fn draw(dice: &mut Dice) -> Self {
        let weights = USUAL.map(|(what, usual)| (what, usual * one_of(dice, &[1, 2, 2, 8])));
        Self { weights, overtaken: one_of(dice, &[5, 50, 90]) }
    }

    pub(super) fn next(&self, dice: &mut Dice) -> Move {
        let total = self.weights.iter().map(|(_, weight)| weight).sum();
        let mut at = dice.below(total);
        for (what, weight) in self.weights {
            if at < weight {
                return what;
            }
            at -= weight;
        }
        Move::Ask
    }
}

impl Setting {
    pub(super) fn draw(policies: &'static [Entry], dice: &mut Dice) -> Option<Self> {
        let policy = policies.get(dice.below(policies.len()))?;
        let modes = [
            None,
            Some(Assignment::Random),
            Some(Assignment::MinLoad),
            Some(Assignment::MinGroup),
            Some(Assignment::Delegate),
        ];
        let listed: &'static [&'static str] = match dice.below(4) {
            0 => &[OWN],
            1 => &[CONVERSATION],
            2 => &[CONVERSATION, OWN],
            _ => &[OWN, CONVERSATION],
        };
        let interval = one_of(dice, &[1, 10, 120]);
        let idle = [Some(interval / 2 + 1), Some(interval * 3), Some(interval * 10), None];
        Some(Self {
            policy,
            name: (policy.make)(Assignment::Random).name(),
            key_override: dice.below(6) > 0,
            assignment: one_of(dice, &modes),
            listed,
            // A full shard draws sixteen of its records by odd steps. Where a power of two of them
            // is drawn from, and sixteen at most, it sees every one: then the model can tell which
            // has to go.
            max_keys: one_of(dice, &[None, None, None, Some(1), Some(3), Some(7), Some(15)]),
            eviction: one_of(dice, &idle).map(|max_idle| Eviction { max_idle, interval }),
            conversations: one_of(dice, &[2, 6, 24]),
            mix: Mix::draw(dice),
        })
    }
}

/// One of `choices`, which are not none.
pub(super) fn one_of<T: Copy + Default>(dice: &mut Dice, choices: &[T]) -> T {
    choices.get(dice.below(choices.len())).copied().unwrap_or_default()
}
