//! Agents: a long instruction with tools, a loop of calls and results, and now and then a few
//! sub-agents that start from what their parent knows and go on by themselves.

use super::{Request, Talk, Trace, between, text};
use crate::dice::Dice;

/// What to generate.
#[derive(Debug, Clone)]
pub struct Agents {
    /// Words of each kind of agent's instructions.
    pub kinds: Vec<usize>,
    /// How many agents, sub-agents not counted.
    pub agents: usize,
    /// The most steps of one; at least half as many.
    pub steps: usize,
    /// The most sub-agents that are started at once.
    pub branches: usize,
    /// Milliseconds between two agents' beginnings.
    pub apart: u64,
    /// Decides everything else.
    pub seed: u64,
}

impl Agents {
    /// The trace.
    #[must_use]
    pub fn trace(&self, name: &str) -> Trace {
        let mut dice = Dice::new(self.seed);
        let kinds: Vec<_> = self.kinds.iter().map(|words| text(&mut dice, *words)).collect();
        let mut requests = Vec::new();
        let mut conversations = self.agents;
        for agent in 0..self.agents {
            let at = agent as u64 * self.apart;
            let mut talk = Talk { conversation: agent, parts: Vec::new(), at, opens: true };
            talk.parts.extend(kinds.get(dice.below(kinds.len())).cloned());
            let words = between(&mut dice, 20, 200);
            talk.says(&mut dice, words);
            let steps = between(&mut dice, self.steps.div_ceil(2), self.steps);
            let fans_out = dice.below(steps.max(1));
            for step in 0..steps {
                requests.push(Self::call(&mut dice, &mut talk));
                if step == fans_out {
                    for _ in 0..dice.below(self.branches + 1) {
                        let branch = Talk { conversation: conversations, ..talk.clone() };
                        conversations += 1;
                        self.branch(&mut dice, branch, &mut requests);
                    }
                }
                result(&mut dice, &mut talk);
            }
        }
        Trace::new(name.to_owned(), requests)
    }

    /// Calls a tool.
    fn call(dice: &mut Dice, talk: &mut Talk) -> Request {
        let (words, pause) = (between(dice, 10, 60), between(dice, 500, 6000));
        talk.asks(dice, words, pause as u64)
    }

    fn branch(&self, dice: &mut Dice, mut talk: Talk, requests: &mut Vec<Request>) {
        let words = between(dice, 20, 80);
        talk.says(dice, words);
        for _ in 0..between(dice, 2, self.steps.div_ceil(2).max(2)) {
            requests.push(Self::call(dice, &mut talk));
            result(dice, &mut talk);
        }
    }
}

/// What a tool says: seldom a whole file, mostly a few lines.
fn result(dice: &mut Dice, talk: &mut Talk) {
    let words = if dice.below(5) == 0 { between(dice, 400, 1500) } else { between(dice, 10, 200) };
    talk.says(dice, words);
}
