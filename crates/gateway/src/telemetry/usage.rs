//! What answers say of their prompts, by what pins had to do with where they went: the cached share
//! of one outcome beside another's is what stickiness is worth.

use prometheus::{IntCounter, IntCounterVec, Opts, Registry};
use smg_decide::pins::Outcome;
use smg_wire::usage::Usage;

use super::keep;

/// Tokens by outcome.
#[derive(Debug)]
pub(crate) struct UsageMeters {
    prompt: [IntCounter; Outcome::ALL.len()],
    cached: [IntCounter; Outcome::ALL.len()],
}

impl UsageMeters {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let tokens = |name, help| {
            let family = keep(registry, IntCounterVec::new(Opts::new(name, help), &["outcome"]))?;
            let of = |outcome: Outcome| family.with_label_values(&[outcome.as_str()]);
            Ok::<_, prometheus::Error>(Outcome::ALL.map(of))
        };
        Ok(Self {
            prompt: tokens("smg_prompt_tokens_total", "Prompt tokens, as answers report them.")?,
            cached: tokens(
                "smg_cached_prompt_tokens_total",
                "Prompt tokens that the engine had in its cache, as answers report them.",
            )?,
        })
    }

    /// Counts an answer's usage.
    pub(crate) fn count(&self, outcome: Outcome, usage: Usage) {
        let counters = [(&self.prompt, usage.prompt), (&self.cached, usage.cached)];
        for (family, tokens) in counters {
            if let Some(counter) = family.get(outcome as usize) {
                counter.inc_by(tokens);
            }
        }
    }
}
