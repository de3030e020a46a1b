//! Polls of engine load: the first one right when a worker registers, so that no worker is the only
//! one known (facts, "herding of cold prompts"), then one every interval.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use smg_decide::fleet::load::Report;
use smg_wire::loads::{Rank, from_json, from_metrics};
use tokio::time::MissedTickBehavior;

use super::Upstream;
use crate::gateway::Gateway;
use crate::settings::LoadPolling;
use crate::upstream::{Pool, fetch};

/// Bound on each question.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// The label `mode` of a poll that brought no load.
const UNTOLD: &str = "none";

/// Polls a worker for as long as it is registered.
pub(super) async fn watch(gw: Arc<Gateway>, upstream: Arc<Upstream>, polling: LoadPolling) {
    let mut model = main_model(&upstream);
    let mut sources = Sources::new(&model);
    let mut meters = gw.meters.engines.worker(&upstream.worker.url, &model);
    let mut ticks = tokio::time::interval(polling.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let now = main_model(&upstream);
        if now != model {
            model = now;
            sources = Sources::new(&model);
            meters.serves(&model);
        }
        // Its spec may have changed since.
        let overload = upstream.terms.load().overload;
        let mut ranks = if !upstream.worker.healthy() {
            // It may come back as another engine, which answers elsewhere.
            sources = Sources::new(&model);
            Vec::new()
        } else if polling.always || overload.is_on() || needed(&gw, &upstream) {
            let (ranks, mode) = sources.poll(&upstream.pool).await;
            meters.polled(mode);
            ranks
        } else {
            Vec::new()
        };
        if let Some(own) = upstream.rank {
            ranks.retain(|rank| rank.dp_rank == own);
        }
        // No answer is no report: least_load then goes by what is in flight.
        let report = sum(&ranks);
        upstream.worker.load().set_report(report);
        meters.show(&ranks);
        // It may have left ready while it was being asked.
        let vetoed = overload.veto(report.as_ref()) && upstream.worker.healthy();
        super::overload::set(&gw, &upstream, vetoed);
    }
}

fn main_model(upstream: &Upstream) -> Arc<str> {
    upstream.card.load().main_model().map_or_else(|| Arc::from("unknown"), Arc::clone)
}

/// Whether the policy of one of its models goes by reports.
fn needed(gw: &Gateway, upstream: &Upstream) -> bool {
    let fleet = gw.fleet.load();
    let card = upstream.card.load();
    let mut groups = card.models.iter().filter_map(|model| fleet.models.get(model));
    groups.any(|group| group.reads_loads())
}

/// Ranks as one worker: counts and speeds add up, the use of caches is averaged.
fn sum(ranks: &[Rank]) -> Option<Report> {
    let mut report = Report::default();
    let mut count = 0.0;
    for rank in ranks {
        report.running = report.running.saturating_add(rank.running);
        report.waiting = report.waiting.saturating_add(rank.waiting);
        report.waiting_tokens = report.waiting_tokens.saturating_add(rank.waiting_tokens);
        report.throughput += rank.throughput;
        report.token_usage += rank.token_usage;
        count += 1.0;
    }
    report.token_usage /= count;
    (!ranks.is_empty()).then_some(report)
}

/// The paths at which engines tell their load, in the order in which they are asked.
#[derive(Debug)]
struct Sources([Source; 4]);

#[derive(Debug)]
struct Source {
    /// The value of the label `mode`.
    mode: &'static str,
    path: String,
    read: fn(&Bytes) -> Said,
    /// The worker has no such path, so it is not asked there again.
    absent: bool,
}

enum Said {
    Load(Vec<Rank>),
    /// The right shape, but nothing in it yet.
    NothingYet,
    /// Something else lives at that path.
    NoReport,
}

impl Sources {
    fn new(model: &str) -> Self {
        let source =
            |mode, path: &str, read| Source { mode, path: path.to_owned(), read, absent: false };
        let mut named = source("loads", "/loads?model=", json as fn(&Bytes) -> Said);
        named.path.extend(model.bytes().map(percent));
        Self([
            named,
            source("v1_loads", "/v1/loads?include=core,disagg,queues,memory", json),
            source("metrics", "/metrics", metrics),
            source("get_load", "/get_load", json),
        ])
    }

    /// Asks path after path until one tells the load, and says which did; empty when none does.
    async fn poll(&mut self, pool: &Pool) -> (Vec<Rank>, &'static str) {
        for source in self.0.iter_mut().filter(|source| !source.absent) {
            let (status, body) = match fetch(pool, &source.path, ANSWER_WITHIN).await {
                Ok(answer) => answer,
                Err(why) => {
                    let (worker, path) = (pool.origin().url(), &*source.path);
                    tracing::debug!(worker, path, why, "load poll failed");
                    return (Vec::new(), UNTOLD);
                }
            };
            let said = status.is_success().then(|| (source.read)(&body));
            match (status, said) {
                (_, Some(Said::Load(ranks))) => return (ranks, source.mode),
                (_, Some(Said::NoReport))
                | (
                    StatusCode::NOT_FOUND
                    | StatusCode::METHOD_NOT_ALLOWED
                    | StatusCode::NOT_IMPLEMENTED,
                    _,
                ) => source.absent = true,
                // Asked again at the next poll.
                _ => {}
            }
        }
        (Vec::new(), UNTOLD)
    }
}

fn json(body: &Bytes) -> Said {
    match from_json(body) {
        Some(ranks) if ranks.is_empty() => Said::NothingYet,
        Some(ranks) => Said::Load(ranks),
        None => Said::NoReport,
    }
}

/// Gauges may appear with the first request only: a text without them is not the last word.
fn metrics(body: &Bytes) -> Said {
    let rank = std::str::from_utf8(body).ok().and_then(from_metrics);
    rank.map_or(Said::NothingYet, |rank| Said::Load(vec![rank]))
}

/// A byte as it may stand in a query.
fn percent(byte: u8) -> String {
    match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            char::from(byte).to_string()
        }
        other => format!("%{other:02X}"),
    }
}

#[cfg(test)]
mod tests;
