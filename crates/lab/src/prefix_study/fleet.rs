//! Simulated engines under a policy: a cache each, and requests that take their time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use smg_decide::fleet::load::Charge;
use smg_decide::fleet::{Leg, Worker, WorkerId};
use smg_decide::place::{Ask, Candidates, Policy, Prompt};

use super::Row;
use crate::engine::cache::Cache;
use crate::engine::tokens;
use crate::traces::{Body, Request, Trace};

/// Tokens in one block of an engine's cache.
pub const BLOCK_TOKENS: usize = 16;

/// What engines a trace is played on.
#[derive(Debug, Clone, Copy)]
pub struct Engines {
    /// How many.
    pub workers: usize,
    /// Blocks in the cache of each.
    pub blocks: usize,
    /// Prompt tokens that each reads in a second.
    pub prefill: f64,
    /// Answer tokens that each writes in a second, for each request.
    pub decode: f64,
}

impl Default for Engines {
    fn default() -> Self {
        Self { workers: 4, blocks: 60_000, prefill: 4000.0, decode: 60.0 }
    }
}

struct Play {
    engines: Engines,
    workers: Vec<Arc<Worker>>,
    caches: Vec<Cache>,
    /// Requests in flight by when they end.
    flying: BinaryHeap<Reverse<(u64, usize)>>,
    charges: Vec<Option<(usize, Charge)>>,
    prompt: usize,
    cached: usize,
}

/// Plays a trace; the memory of the policy's index is not filled in.
pub(super) fn play<P: Policy + ?Sized>(policy: &P, trace: &Trace, engines: Engines) -> Row {
    let mut play = Play::new(engines);
    let mut dice = SmallRng::seed_from_u64(5);
    let mut homes: HashMap<usize, (usize, bool)> = HashMap::new();
    let mut opened = vec![0; engines.workers];
    let mut requests = vec![0; engines.workers];
    for request in &trace.requests {
        play.land(request.at);
        let Some(at) = play.send(policy, request, &mut dice) else { continue };
        let (home, moved) = homes.entry(request.conversation).or_insert((at, false));
        *moved |= *home != at;
        if let Some(count) = opened.get_mut(at).filter(|_| request.opens) {
            *count += 1;
        }
        if let Some(count) = requests.get_mut(at) {
            *count += 1;
        }
    }
    Row {
        hit_share: play.cached as f64 / play.prompt.max(1) as f64,
        bytes: 0,
        uneven: uneven(&opened),
        uneven_requests: uneven(&requests),
        conversations: homes.len(),
        moved: homes.values().filter(|(_, moved)| *moved).count(),
    }
}

impl Play {
    fn new(engines: Engines) -> Self {
        let worker = |at: usize| {
            let worker = Worker::new(WorkerId(at as u32), format!("http://w{at}"), Leg::Regular);
            worker.set_healthy(true);
            Arc::new(worker)
        };
        let cache = |_| Cache::new(engines.blocks, BLOCK_TOKENS);
        Self {
            engines,
            workers: (0..engines.workers).map(worker).collect(),
            caches: (0..engines.workers).map(cache).collect(),
            flying: BinaryHeap::new(),
            charges: Vec::new(),
            prompt: 0,
            cached: 0,
        }
    }

    /// Ends what has ended by now.
    fn land(&mut self, now: u64) {
        while let Some(Reverse((end, flight))) = self.flying.peek().copied()
            && end <= now
        {
            self.flying.pop();
            let landed = self.charges.get_mut(flight).and_then(Option::take);
            if let Some((at, charge)) = landed
                && let Some(worker) = self.workers.get(at)
            {
                worker.end(charge);
            }
        }
    }

    /// Places a request and lets the engine serve it.
    fn send<P: Policy + ?Sized>(
        &mut self,
        policy: &P,
        request: &Request,
        dice: &mut SmallRng,
    ) -> Option<usize> {
        let parts: Vec<&str>;
        let (prompt, mut tokens) = match &request.prompt {
            Body::Tokens(ids) => (Prompt::Tokens(ids), ids.clone()),
            Body::Text(text) => {
                parts = text.iter().map(AsRef::as_ref).collect();
                let tokens = text.iter().flat_map(|part| tokens::of_text(part)).collect();
                (Prompt::Text(&parts), tokens)
            }
        };
        let ask = Ask { prompt, now: request.at, ..Ask::default() };
        let at = policy.propose(&ask, &Candidates::new(&self.workers, &[]), dice).at?;
        let worker = self.workers.get(at)?;
        policy.commit(&ask, worker);
        let charge = worker.begin(None);

        let cache = self.caches.get_mut(at)?;
        let mut hold = cache.acquire(&tokens);
        let cached = hold.blocks() * BLOCK_TOKENS;
        let asked = tokens.len();
        tokens.extend(tokens::of_text(&request.answer));
        cache.insert(&mut hold, &tokens);
        cache.release(hold);
        self.prompt += asked;
        self.cached += cached;

        let seconds = (asked - cached) as f64 / self.engines.prefill
            + request.answer_tokens as f64 / self.engines.decode;
        let end = request.at + (seconds * 1000.0) as u64;
        self.flying.push(Reverse((end, self.charges.len())));
        self.charges.push(Some((at, charge)));
        Some(at)
    }
}

/// How far the furthest from the mean is from it, as a share of the mean.
fn uneven(counts: &[usize]) -> f64 {
    let mean = counts.iter().sum::<usize>() as f64 / counts.len().max(1) as f64;
    let off = counts.iter().map(|count| (*count as f64 - mean).abs());
    if mean > 0.0 { off.fold(0.0, f64::max) / mean } else { 0.0 }
}
