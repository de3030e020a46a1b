//! People who chat: a system prompt that an application's users share, then turn after turn.

use super::{Talk, Trace, between, text};
use crate::dice::Dice;

/// What to generate.
#[derive(Debug, Clone)]
pub struct Chat {
    /// Words of each application's system prompt; conversations take one in turn.
    pub systems: Vec<usize>,
    /// How many conversations.
    pub conversations: usize,
    /// The most turns of one; at least half as many.
    pub turns: usize,
    /// Milliseconds between two conversations' beginnings.
    pub apart: u64,
    /// Milliseconds between two turns, at most.
    pub pause: usize,
    /// Decides everything else.
    pub seed: u64,
}

impl Chat {
    /// The trace.
    #[must_use]
    pub fn trace(&self, name: &str) -> Trace {
        let mut dice = Dice::new(self.seed);
        let systems: Vec<_> = self.systems.iter().map(|words| text(&mut dice, *words)).collect();
        let mut requests = Vec::new();
        for conversation in 0..self.conversations {
            let at = conversation as u64 * self.apart;
            let mut talk = Talk { conversation, parts: Vec::new(), at, opens: true };
            let app = dice.below(systems.len());
            talk.parts.extend(systems.get(app).filter(|system| !system.is_empty()).cloned());
            for _ in 0..between(&mut dice, self.turns.div_ceil(2), self.turns) {
                let words = between(&mut dice, 8, 80);
                talk.says(&mut dice, words);
                let (words, pause) = (between(&mut dice, 60, 300), 1 + dice.below(self.pause));
                requests.push(talk.asks(&mut dice, words, pause as u64));
            }
        }
        Trace::new(name.to_owned(), requests)
    }
}
