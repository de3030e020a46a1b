//! The last steps, for whoever has to understand a failure.

use std::collections::VecDeque;

/// Steps that are kept.
const KEPT: usize = 20;

/// The last steps in words.
#[derive(Debug, Default)]
pub(super) struct Trail {
    step: usize,
    steps: VecDeque<(usize, String)>,
}

impl Trail {
    /// What follows belongs to this step.
    pub(super) const fn begin(&mut self, step: usize) {
        self.step = step;
    }

    /// Something happened.
    pub(super) fn say(&mut self, what: impl FnOnce() -> String) {
        let Self { step, steps } = self;
        match steps.back_mut() {
            // A retry is an end and another request in one step.
            Some((last, line)) if last == step => {
                line.push_str("; ");
                line.push_str(&what());
            }
            _ => {
                if steps.len() == KEPT {
                    steps.pop_front();
                }
                steps.push_back((*step, what()));
            }
        }
    }

    /// And so it went on.
    pub(super) fn add(&mut self, what: impl FnOnce() -> String) {
        if let Some((_, line)) = self.steps.back_mut() {
            line.push_str(&what());
        }
    }

    pub(super) const fn step(&self) -> usize {
        self.step
    }

    pub(super) fn into_lines(self) -> Vec<String> {
        self.steps.into_iter().map(|(step, line)| format!("{step:>6}  {line}")).collect()
    }
}
