//! What the prefix index of `cache_aware` is worth beside an exact character tree: the same traces
//! over the same simulated caches, and what the caches saved, what the index took, how even the
//! conversations lie and how many of them moved.

use std::io::{self, Write};

use smg_decide::place::cache_aware::Params;
use smg_decide::place::{CacheAware, Policy, RoundRobin};

use crate::traces::agent::Agents;
use crate::traces::chat::Chat;
use crate::traces::{Trace, mooncake};
use exact::Exact;
use fleet::Engines;

pub mod exact;
pub mod fleet;

/// What one policy made of one trace.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Row {
    /// Share of all prompt tokens that a cache held.
    pub hit_share: f64,
    /// Bytes of the policy's index.
    pub bytes: usize,
    /// How far the worker furthest from the mean is from it, in conversations begun.
    pub uneven: f64,
    /// The same in requests.
    pub uneven_requests: f64,
    /// Conversations.
    pub conversations: usize,
    /// Conversations that did not stay where they started.
    pub moved: usize,
}

/// An index whose memory can be told.
trait Weighed: Policy {
    fn bytes(&self) -> usize {
        0
    }
}

impl Weighed for RoundRobin {}

impl Weighed for CacheAware {
    fn bytes(&self) -> usize {
        self.held().bytes
    }
}

impl Weighed for Exact {
    fn bytes(&self) -> usize {
        self.bytes()
    }
}

/// The policies that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contender {
    /// `cache_aware`.
    Ours,
    /// The same rules over an exact character tree.
    Exact,
    /// The exact tree under the documented rules alone: any match above the threshold binds.
    Herding,
    /// `round_robin`.
    RoundRobin,
}

impl Contender {
    const ALL: [(Self, &'static str); 4] = [
        (Self::Ours, "cache_aware"),
        (Self::Exact, "exact tree"),
        (Self::Herding, "exact tree, any match binds"),
        (Self::RoundRobin, "round_robin"),
    ];

    /// Plays a trace.
    #[must_use]
    pub fn play(self, trace: &Trace, engines: Engines) -> Row {
        let policy: Box<dyn Weighed> = match self {
            Self::Ours => Box::new(CacheAware::new(Params { seed: 1, ..Params::default() })),
            Self::Exact => Box::new(Exact::new(false)),
            Self::Herding => Box::new(Exact::new(true)),
            Self::RoundRobin => Box::new(RoundRobin::default()),
        };
        let row = fleet::play(&*policy, trace, engines);
        Row { bytes: policy.bytes(), ..row }
    }
}

/// The traces of the study.
#[must_use]
pub fn traces() -> Vec<Trace> {
    let chat = |systems: &[usize], apart| Chat {
        systems: systems.to_vec(),
        conversations: 400,
        turns: 10,
        apart,
        pause: 20_000,
        seed: 11,
    };
    let agents = Agents {
        kinds: vec![600, 1500, 4000],
        agents: 120,
        steps: 24,
        branches: 4,
        apart: 4000,
        seed: 12,
    };
    vec![
        chat(&[0], 700).trace("chat, no system prompt"),
        chat(&[100], 700).trace("chat, 100 words shared"),
        chat(&[1000], 700).trace("chat, 1,000 words shared"),
        chat(&[1000], 60_000).trace("the same, one by one"),
        chat(&[6000], 1500).trace("chat, 6,000 words shared"),
        chat(&[20, 100, 300, 1000, 3000, 6000], 1500).trace("chat, six applications"),
        agents.trace("agents"),
        mooncake::trace("mooncake sample", &mooncake::sample(300, 8, 13)),
    ]
}

/// Prints the table.
///
/// # Errors
/// When the table cannot be written.
pub fn print(out: &mut impl Write, traces: &[Trace], engines: Engines) -> io::Result<()> {
    let Engines { workers, blocks, .. } = engines;
    writeln!(out, "{workers} engines, {blocks} blocks of {} tokens each", fleet::BLOCK_TOKENS)?;
    writeln!(
        out,
        "| trace | policy | hit % | index KiB | conversations ±% | requests ±% | moved |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|---|")?;
    for trace in traces {
        for (contender, name) in Contender::ALL {
            let row = contender.play(trace, engines);
            writeln!(
                out,
                "| {} | {name} | {:.1} | {} | {:.1} | {:.1} | {} of {} |",
                trace.name,
                row.hit_share * 100.0,
                row.bytes / 1024,
                row.uneven * 100.0,
                row.uneven_requests * 100.0,
                row.moved,
                row.conversations,
            )?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
