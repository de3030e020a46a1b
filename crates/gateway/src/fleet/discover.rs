//! What a worker says of itself at registration.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;
use serde_json::Value;

use super::Spec;
use crate::settings::HealthChecks;
use crate::upstream::{Pool, fetch};

/// A worker's answers, boiled down.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Card {
    /// Every model id it serves; the first is its main one.
    pub(crate) models: Vec<Arc<str>>,
    /// The engine: `sglang`, `vllm`, or `generic`; [`EXTERNAL`] for somebody else's API.
    pub(crate) runtime: &'static str,
    /// Plain facts of `/server_info` and `/model_info`.
    pub(crate) labels: BTreeMap<String, String>,
}

/// The runtime of somebody else's API.
const EXTERNAL: &str = "external";

impl Card {
    /// Of somebody else's API, which is asked nothing; without models it is for any model.
    pub(super) fn external(models: Vec<Arc<str>>) -> Self {
        Self { models, runtime: EXTERNAL, labels: BTreeMap::new() }
    }

    /// Whether it is somebody else's API.
    pub(crate) fn is_external(&self) -> bool {
        self.runtime == EXTERNAL
    }
}

/// Bound on each question.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Fields that become labels when they have a value.
const LABELS: [&str; 14] = [
    "model_path",
    "served_model_name",
    "tp_size",
    "dp_size",
    "pp_size",
    "version",
    "disaggregation_mode",
    "context_length",
    "max_total_tokens",
    "max_running_requests",
    "is_generation",
    "is_embedding",
    "model_type",
    "max_model_len",
];
/// Model ids taken from one worker; a worker cannot fill the fleet's tables at will.
pub(super) const MAX_MODELS: usize = 1024;

/// Ranks of one worker that are believed.
const MAX_RANKS: u32 = 256;

/// Longest model id or label in bytes: both end in metrics, logs and lists of ours.
const MAX_TEXT: usize = 256;

/// Which refusals mean that there is nothing at a path.
type Lacks = fn(StatusCode) -> bool;

#[derive(Deserialize)]
struct Models {
    /// Read one by one: an entry of another shape is no reason to turn the worker away.
    data: Vec<Value>,
}

/// An entry of the list, as far as it has an id.
struct Model<'a> {
    id: &'a str,
    owned_by: &'a str,
    max_model_len: Option<u64>,
}

impl<'a> Model<'a> {
    fn of(entry: &'a Value) -> Option<Self> {
        let text = |name| entry.get(name).and_then(Value::as_str);
        let id = text("id").filter(|id| !id.is_empty() && id.len() <= MAX_TEXT)?;
        let max_model_len = entry.get("max_model_len").and_then(Value::as_u64);
        Some(Self { id, owned_by: text("owned_by").unwrap_or_default(), max_model_len })
    }
}

/// Asks a worker whether it is well and what it serves.
///
/// # Errors
/// In words for the operator, when it does not answer or serves nothing known.
pub(super) async fn discover(
    pool: &Pool,
    health: Option<&HealthChecks>,
    spec: &Spec,
) -> Result<Card, String> {
    if let Some(checks) = health {
        // Registration's own probes count towards the success threshold.
        for _ in 0..checks.thresholds.success.max(1) {
            super::health::probe(pool, checks).await?;
        }
    }
    ask_all(pool, spec, lacks).await
}

/// Asks a worker that was down what it serves now.
///
/// # Errors
/// As [`discover`], and when it cannot say for now: what is known of it is better than nothing.
pub(super) async fn ask_again(pool: &Pool, spec: &Spec) -> Result<Card, String> {
    ask_all(pool, spec, |status| lacks(status) && !is_for_now(status)).await
}

/// Whether a worker that answers like this is taken to have nothing at that path.
fn lacks(status: StatusCode) -> bool {
    !status.is_success()
}

/// Whether this says nothing of what there will be a moment later.
const fn is_for_now(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    )
}

async fn ask_all(pool: &Pool, spec: &Spec, lacks: Lacks) -> Result<Card, String> {
    let listed: Option<Models> = ask(pool, "/v1/models", lacks).await?;
    let server = either(pool, ["/server_info", "/get_server_info"], lacks).await?;
    let model = either(pool, ["/model_info", "/get_model_info"], lacks).await?;
    if listed.is_none() && server.is_none() && spec.models.is_none() {
        return Err("it answers neither /v1/models nor /server_info".to_owned());
    }
    Ok(card(listed, server.as_ref(), model.as_ref()))
}

impl Card {
    /// With what its operator says in place of what it says itself.
    pub(super) fn corrected(mut self, spec: &Spec) -> Self {
        if let Some(named) = &spec.models {
            named.clone_into(&mut self.models);
        }
        if let Some(engine) = spec.engine() {
            self.runtime = engine;
        }
        self
    }

    /// The model it goes by where one has to do.
    pub(crate) fn main_model(&self) -> Option<&Arc<str>> {
        self.models.first()
    }

    /// Data-parallel ranks behind the worker's address, as far as one is to be told from the other.
    pub(crate) fn ranks(&self) -> Option<u32> {
        let size: u32 = self.labels.get("dp_size")?.parse().ok()?;
        (2..=MAX_RANKS).contains(&size).then_some(size)
    }
}

fn card(listed: Option<Models>, server: Option<&Value>, model: Option<&Value>) -> Card {
    let mut labels = BTreeMap::new();
    for name in LABELS {
        let found = [server, model].into_iter().flatten().find_map(|info| plain(info.get(name)?));
        if let Some(value) = found {
            labels.insert(name.to_owned(), value);
        }
    }
    let listed = listed.map_or_else(Vec::new, |listed| listed.data);
    let listed: Vec<_> = listed.iter().filter_map(Model::of).collect();
    if let Some(len) = listed.iter().find_map(|model| model.max_model_len) {
        labels.insert("max_model_len".to_owned(), len.to_string());
    }
    let runtime = match listed.first().map(|model| model.owned_by) {
        Some("vllm") => "vllm",
        _ if server.is_some() => "sglang",
        _ => "generic",
    };
    let mut models: Vec<Arc<str>> = Vec::new();
    for id in listed.iter().map(|model| model.id) {
        if models.len() < MAX_MODELS && !models.iter().any(|known| **known == *id) {
            models.push(Arc::from(id));
        }
    }
    if models.is_empty() {
        models.push(Arc::from(main_model(&labels)));
    }
    Card { models, runtime, labels }
}

/// The model of an engine that lists none: its served name, else the last part of its path.
fn main_model(labels: &BTreeMap<String, String>) -> &str {
    let served = labels.get("served_model_name").map(String::as_str);
    let path =
        labels.get("model_path").and_then(|path| path.trim_end_matches('/').rsplit('/').next());
    served.or(path).filter(|name| !name.is_empty()).unwrap_or("unknown")
}

fn plain(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if !text.is_empty() && text.len() <= MAX_TEXT => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(yes) => Some(yes.to_string()),
        _ => None,
    }
}

async fn either(pool: &Pool, paths: [&str; 2], lacks: Lacks) -> Result<Option<Value>, String> {
    let [new, old] = paths;
    match ask(pool, new, lacks).await? {
        None => ask(pool, old, lacks).await,
        found => Ok(found),
    }
}

/// The JSON at a path; `None` when the worker has no such path or answers something else there.
async fn ask<T: for<'de> Deserialize<'de>>(
    pool: &Pool,
    path: &str,
    lacks: Lacks,
) -> Result<Option<T>, String> {
    let (status, body) =
        fetch(pool, path, ANSWER_WITHIN).await.map_err(|error| format!("GET {path}: {error}"))?;
    match status {
        _ if status.is_success() => Ok(serde_json::from_slice(&body).ok()),
        _ if lacks(status) => Ok(None),
        _ => Err(format!("GET {path}: {status}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn listed(data: Value) -> Option<Models> {
        serde_json::from_value(json!({"object": "list", "data": data})).ok()
    }

    fn names(card: &Card) -> Vec<&str> {
        card.models.iter().map(AsRef::as_ref).collect()
    }

    #[test]
    fn every_listed_id_is_served_once() {
        let data = json!([{"id": "m", "owned_by": "vllm", "max_model_len": 9}, {"id": "lora"}, {"id": "m"}]);
        let card = card(listed(data), None, None);
        assert_eq!((names(&card), card.runtime), (vec!["m", "lora"], "vllm"));
        assert_eq!(card.labels["max_model_len"], "9");
    }

    #[test]
    fn an_odd_entry_spoils_no_list() {
        let long = "m".repeat(MAX_TEXT + 1);
        let data = json!([null, 7, {}, {"id": 5}, {"id": ""}, {"id": long},
            {"id": "m", "owned_by": null, "max_model_len": "long"}, {"id": "n", "owned_by": 7}]);
        let card = card(listed(data), None, None);
        assert_eq!((names(&card), card.runtime), (vec!["m", "n"], "generic"));
    }

    #[test]
    fn an_engine_without_a_list_is_named_by_its_info() {
        for (server, name) in [
            (json!({"served_model_name": "n", "model_path": "/a/b"}), "n"),
            (json!({"model_path": "/models/org/b/"}), "b"),
            (json!({"served_model_name": ""}), "unknown"),
        ] {
            let card = card(None, Some(&server), None);
            assert_eq!((names(&card), card.runtime), (vec![name], "sglang"));
        }
    }

    #[test]
    fn only_plain_values_become_labels() {
        let server = json!({"tp_size": 2, "version": "1", "dp_size": [1], "model_type": null});
        let card = card(None, Some(&server), Some(&json!({"is_generation": true})));
        let labels: Vec<_> = card.labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(labels, ["is_generation=true", "tp_size=2", "version=1"]);
    }
}
