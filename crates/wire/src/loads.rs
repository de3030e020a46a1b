//! What engines say of their load, in each of the shapes that are met: SGLang's JSON, its older
//! list, and the metrics text of SGLang and vLLM.
//!
//! Every field may be missing, and one of a wrong kind counts as missing; what is no load report at
//! all is `None`, so that the caller asks elsewhere.

use serde_json::{Map, Value};

mod metrics;

pub use metrics::from_metrics;

/// One data-parallel rank of an engine. Numbers are finite and not negative; 0 when not said.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rank {
    /// Its number.
    pub dp_rank: u32,
    /// Requests running.
    pub running: u32,
    /// Requests waiting.
    pub waiting: u32,
    /// Tokens of waiting prompts that no cache holds.
    pub waiting_tokens: u32,
    /// Tokens a second.
    pub throughput: f32,
    /// Share of the KV cache in use.
    pub token_usage: f32,
    /// Share of prompt tokens found in the cache.
    pub cache_hit_rate: f32,
}

/// Ranks taken from one worker; what they say ends in tables and metrics of ours.
const MAX_RANKS: usize = 256;

/// What one rank says.
type Said = Map<String, Value>;

/// Reads an answer of `/loads`, `/v1/loads` or the older `/get_load`. An engine that has no rank
/// yet gives an empty list.
#[must_use]
pub fn from_json(body: &[u8]) -> Option<Vec<Rank>> {
    let (ranks, rank): (_, fn(usize, &Said) -> Rank) = match serde_json::from_slice(body).ok()? {
        Value::Object(mut report) => (report.remove("loads")?, current),
        list => (list, older),
    };
    let Value::Array(ranks) = ranks else { return None };
    let ranks: Option<Vec<_>> = ranks.iter().take(MAX_RANKS).map(Value::as_object).collect();
    Some(ranks?.into_iter().enumerate().map(|(at, said)| rank(at, said)).collect())
}

fn current(at: usize, said: &Said) -> Rank {
    Rank {
        dp_rank: dp_rank(at, said),
        running: count(number(said, "num_running_reqs")),
        waiting: count(number(said, "num_waiting_reqs")),
        waiting_tokens: count(number(said, "num_waiting_uncached_tokens")),
        throughput: number(said, "gen_throughput") as f32,
        token_usage: number(said, "token_usage") as f32,
        cache_hit_rate: number(said, "cache_hit_rate") as f32,
    }
}

/// `/get_load` counts waiting requests among all of them.
fn older(at: usize, said: &Said) -> Rank {
    let waiting = count(number(said, "num_waiting_reqs"));
    Rank {
        dp_rank: dp_rank(at, said),
        running: count(number(said, "num_reqs")).saturating_sub(waiting),
        waiting,
        ..Rank::default()
    }
}

/// The rank's own number if it can be one, else its place: it becomes a metric label, which an
/// engine must not be able to make up.
fn dp_rank(at: usize, said: &Said) -> u32 {
    let said = said.get("dp_rank").and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
    let number = said.filter(|number| *number < MAX_RANKS).unwrap_or(at);
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn number(said: &Said, name: &str) -> f64 {
    said.get(name).and_then(Value::as_f64).map_or(0.0, sane)
}

/// A number that may be reckoned with.
fn sane(number: f64) -> f64 {
    if number.is_finite() { number.max(0.0).min(f64::from(f32::MAX)) } else { 0.0 }
}

/// A cast of a float saturates.
const fn count(number: f64) -> u32 {
    number as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_report_of_sglang() {
        let body = br#"{"timestamp":"2026-01-01","version":"0.5","dp_rank_count":2,"loads":[
            {"dp_rank":0,"num_running_reqs":3,"num_waiting_reqs":2,"num_waiting_uncached_tokens":700,
             "num_total_reqs":5,"num_used_tokens":900,"max_total_num_tokens":1000,"token_usage":0.9,
             "gen_throughput":123.5,"cache_hit_rate":0.25,"utilization":0.3,"queues":{"x":1}},
            {"dp_rank":1,"num_waiting_reqs":1,"token_usage":0.1}],"aggregate":{}}"#;
        let ranks = from_json(body).unwrap();
        let first = Rank {
            dp_rank: 0,
            running: 3,
            waiting: 2,
            waiting_tokens: 700,
            throughput: 123.5,
            token_usage: 0.9,
            cache_hit_rate: 0.25,
        };
        let second = Rank { dp_rank: 1, waiting: 1, token_usage: 0.1, ..Rank::default() };
        assert_eq!(ranks, [first, second]);
    }

    #[test]
    fn the_older_list() {
        let body = br#"[{"dp_rank":0,"num_reqs":5,"num_waiting_reqs":2,"num_tokens":99},{}]"#;
        let first = Rank { running: 3, waiting: 2, ..Rank::default() };
        assert_eq!(from_json(body).unwrap(), [first, Rank { dp_rank: 1, ..Rank::default() }]);
    }

    #[test]
    fn nonsense_in_a_field_is_nothing_said() {
        let body =
            br#"{"loads":[{"dp_rank":4000000000,"num_running_reqs":-3,"num_waiting_reqs":"7",
            "num_waiting_uncached_tokens":1e300,"token_usage":null,"gen_throughput":1e300}]}"#;
        let rank = Rank { waiting_tokens: u32::MAX, throughput: f32::MAX, ..Rank::default() };
        assert_eq!(from_json(body).unwrap(), [rank]);
    }

    #[test]
    fn anything_else_is_no_report() {
        for body in
            ["", "{}", "7", "null", "OK", "{\"loads\":7}", "[7]", "{\"loads\":[[]]}", "{\"a\":[]}"]
        {
            assert_eq!(from_json(body.as_bytes()), None, "{body}");
        }
        assert_eq!(from_json(b"{\"loads\":[]}"), Some(Vec::new()), "no rank yet");
    }

    #[test]
    fn a_worker_cannot_fill_our_tables() {
        let body = format!("[{}{{}}]", "{},".repeat(5000));
        assert_eq!(from_json(body.as_bytes()).unwrap().len(), MAX_RANKS);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(body in ".{0,60}", number in any::<f64>()) {
            let _ = from_json(body.as_bytes());
            let sane = sane(number);
            prop_assert!(sane >= 0.0 && (sane as f32).is_finite());
        }
    }
}
