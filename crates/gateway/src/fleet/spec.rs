//! What an operator says of a worker through the API, and what that comes to for this gateway.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::Card;
use crate::settings::{
    BreakerRules, Connections, HealthChecks, OverloadRules, PolicyName, Settings,
};

/// A worker's spec: only what was said, so that the flags decide the rest whenever that is asked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spec {
    /// The models to serve there, in place of what the worker lists.
    pub(crate) models: Option<Vec<Arc<str>>>,
    /// As said, but the key: `GET /workers/{id}` shows it, `PATCH` changes it.
    pub(crate) said: Map<String, Value>,
    /// What the worker wants to see as `Authorization`; marked sensitive, so that no log shows it.
    pub(crate) api_key: Option<HeaderValue>,
    pub(crate) priority: Option<u32>,
    pub(crate) cost: Option<f64>,
    /// What kind of server it is, where that is not found out.
    runtime: Option<Runtime>,
    labels: BTreeMap<String, String>,
    health: Health,
    breaker: Breaker,
    overload: Overload,
    pool: HttpPool,
}

/// A spec as it arrives.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Typed {
    models: Option<Vec<Model>>,
    labels: Option<BTreeMap<String, Option<String>>>,
    priority: Option<u32>,
    cost: Option<f64>,
    health: Option<Health>,
    circuit_breaker: Option<Breaker>,
    overload: Option<Overload>,
    http_pool: Option<HttpPool>,
    runtime_type: Option<Runtime>,
}

/// `runtime_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Runtime {
    Sglang,
    Vllm,
    /// Somebody else's API: nothing is found out about it, and no conversation is pinned there.
    External,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Model {
    Id(String),
    Object { id: String },
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Health {
    disabled: Option<bool>,
    interval_secs: Option<u64>,
    timeout_secs: Option<u64>,
    failure_threshold: Option<u32>,
    success_threshold: Option<u32>,
    endpoint: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Breaker {
    disabled: Option<bool>,
    failure_threshold: Option<u32>,
    success_threshold: Option<u32>,
    timeout_secs: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Overload {
    waiting_requests: Option<u32>,
    token_usage: Option<f64>,
}

/// 001, "Connection Pools".
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct HttpPool {
    pool_idle_timeout_secs: Option<u64>,
    pool_max_idle_per_host: Option<u64>,
    connect_timeout_secs: Option<u64>,
    timeout_secs: Option<u64>,
    http2: Option<bool>,
}

/// Fields that are accepted and change nothing; the answer says so (001: per-worker retry fields
/// have no effect).
const IGNORED: [&str; 8] = [
    "retry",
    "disable_retries",
    "retry_max_retries",
    "retry_initial_backoff_ms",
    "retry_max_backoff_ms",
    "retry_backoff_multiplier",
    "retry_jitter_factor",
    "max_connection_attempts",
];
/// Longest time a spec may name: a hundred years, as with the flags.
const MAX_SECS: u64 = 100 * 365 * 24 * 3600;
/// Labels of one worker.
const MAX_LABELS: usize = 64;
/// Bytes of a label, of its name, and of a model's id.
const MAX_TEXT: usize = 256;

/// Why a spec is refused, in words for the operator.
pub(crate) type Wrong = String;

/// Takes the fields that change nothing out of a request; returns their names.
pub(crate) fn ignored(fields: &mut Map<String, Value>) -> Vec<&'static str> {
    IGNORED.into_iter().filter(|name| fields.remove(*name).is_some()).collect()
}

impl Spec {
    /// Reads a spec; `url` and ignored fields are no part of it any more.
    ///
    /// # Errors
    /// When a field is unknown or cannot be meant.
    pub(crate) fn read(fields: Map<String, Value>) -> Result<Self, Wrong> {
        Self::default().replaced(fields)
    }

    /// The spec that takes this one's place: everything is said anew, but a key that is not named
    /// stays, as nobody can read it to repeat it.
    pub(crate) fn replaced(&self, mut fields: Map<String, Value>) -> Result<Self, Wrong> {
        let api_key = match fields.remove("api_key") {
            None => self.api_key.clone(),
            Some(Value::Null) => None,
            Some(Value::String(key)) => Some(credential(&key)?),
            Some(_) => return Err("'api_key' must be a string".to_owned()),
        };
        let said = Value::Object(fields);
        let typed = Typed::deserialize(&said).map_err(|error| error.to_string())?;
        let Value::Object(said) = said else { return Err("not an object".to_owned()) };
        let mut spec = typed.meant(said, api_key)?;
        // What it is was settled when it registered.
        spec.runtime = spec.runtime.or(self.runtime);
        Ok(spec)
    }

    /// This spec with some fields changed, those set to null forgotten (RFC 7396).
    pub(crate) fn patched(&self, mut fields: Map<String, Value>) -> Result<Self, Wrong> {
        let key = fields.remove("api_key");
        // On its own first: null would make an unknown field vanish unseen.
        Typed::deserialize(&Value::Object(fields.clone())).map_err(|error| error.to_string())?;
        let mut said = self.said.clone();
        merge(&mut said, fields);
        said.extend(key.map(|key| ("api_key".to_owned(), key)));
        self.replaced(said)
    }

    /// How this worker's connections are kept.
    pub(crate) fn connections(&self, base: &Connections) -> Connections {
        let HttpPool {
            pool_idle_timeout_secs, pool_max_idle_per_host, connect_timeout_secs, ..
        } = self.pool;
        let idle = pool_idle_timeout_secs.map(|secs| (secs > 0).then_some(secs));
        let max_idle = pool_max_idle_per_host.map(|max| usize::try_from(max).unwrap_or(usize::MAX));
        Connections {
            idle_timeout: idle.map_or(base.idle_timeout, |secs| secs.map(Duration::from_secs)),
            max_idle: max_idle.unwrap_or(base.max_idle),
            connect_timeout: connect_timeout_secs.map_or(base.connect_timeout, Duration::from_secs),
        }
    }

    /// One of which no more is known than that it is somebody else's API.
    pub(crate) fn vendors() -> Self {
        Self { runtime: Some(Runtime::External), ..Self::default() }
    }

    /// Whether it is somebody else's API.
    pub(crate) fn is_external(&self) -> bool {
        self.runtime == Some(Runtime::External)
    }

    /// The version of HTTP to which it is pinned: HTTP/2 or, if false, HTTP/1.1.
    pub(crate) fn http2(&self) -> Option<bool> {
        self.pool.http2
    }

    /// What kind of engine it is said to be.
    pub(crate) fn engine(&self) -> Option<&'static str> {
        match self.runtime? {
            Runtime::Sglang => Some("sglang"),
            Runtime::Vllm => Some("vllm"),
            Runtime::External => None,
        }
    }

    /// Its breaker.
    pub(crate) fn breaker(&self, base: BreakerRules) -> BreakerRules {
        let Breaker { disabled, failure_threshold, success_threshold, timeout_secs } = self.breaker;
        let wanted = failure_threshold.or(base.failures);
        // Turned on where the flags turn it off, it needs a threshold of its own.
        let failures = if disabled == Some(true) { None } else { wanted };
        BreakerRules {
            failures,
            successes: success_threshold.unwrap_or(base.successes),
            timeout_ms: timeout_secs.map_or(base.timeout_ms, |secs| secs * 1000),
        }
    }

    /// When it has enough to do.
    pub(crate) fn overload(&self, base: OverloadRules) -> OverloadRules {
        let Overload { waiting_requests, token_usage } = self.overload;
        OverloadRules {
            waiting: waiting_requests.or(base.waiting),
            token_usage: token_usage.or(base.token_usage),
        }
    }

    /// Its health checks; `None` when it has none.
    pub(crate) fn checks(&self, base: Option<&HealthChecks>) -> Option<HealthChecks> {
        let mut checks = base?.clone();
        let Health { disabled, interval_secs, timeout_secs, .. } = self.health;
        if disabled == Some(true) {
            return None;
        }
        checks.interval = interval_secs.map_or(checks.interval, Duration::from_secs);
        checks.timeout = timeout_secs.map_or(checks.timeout, Duration::from_secs);
        let Health { failure_threshold, success_threshold, endpoint, .. } = &self.health;
        checks.thresholds.failure = failure_threshold.unwrap_or(checks.thresholds.failure);
        checks.thresholds.success = success_threshold.unwrap_or(checks.thresholds.success);
        checks.endpoint = endpoint.clone().unwrap_or(checks.endpoint);
        Some(checks)
    }
}

/// What a worker's spec comes to beside the flags and what the worker says of itself.
#[derive(Debug)]
pub(crate) struct Terms {
    pub(crate) spec: Spec,
    /// The worker's own, and over them the spec's.
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) checks: Option<HealthChecks>,
    /// Bound on an exchange there, where it differs from the gateway's.
    pub(crate) timeout: Option<Duration>,
    pub(crate) breaker: BreakerRules,
    pub(crate) overload: OverloadRules,
    pub(crate) connections: Connections,
}

impl Terms {
    pub(crate) fn of(spec: Spec, card: &Card, settings: &Settings) -> Self {
        let mut labels = card.labels.clone();
        labels.extend(spec.labels.clone());
        Self {
            labels,
            // A vendor has no such path, unless one is named.
            checks: spec
                .checks(settings.health.as_ref())
                .filter(|_| !card.is_external() || spec.health.endpoint.is_some()),
            timeout: spec.pool.timeout_secs.map(Duration::from_secs),
            breaker: spec.breaker(settings.breaker),
            overload: spec.overload(settings.loads.overload),
            connections: spec.connections(&settings.connections),
            spec,
        }
    }
}

impl Typed {
    fn meant(self, said: Map<String, Value>, api_key: Option<HeaderValue>) -> Result<Spec, Wrong> {
        let Self { models: named, labels: typed, priority, cost, health, .. } = self;
        let (circuit_breaker, http_pool) = (self.circuit_breaker, self.http_pool);
        let runtime = self.runtime_type;
        let (health, breaker) = (health.unwrap_or_default(), circuit_breaker.unwrap_or_default());
        let pool = http_pool.unwrap_or_default();
        health.check()?;
        let Breaker { failure_threshold, success_threshold, timeout_secs, .. } = breaker;
        at_least_one("circuit_breaker.failure_threshold", failure_threshold.map(u64::from))?;
        at_least_one("circuit_breaker.success_threshold", success_threshold.map(u64::from))?;
        at_least_one("circuit_breaker.timeout_secs", timeout_secs)?;
        let overload = self.overload.unwrap_or_default();
        overload.check()?;
        pool.check()?;
        if cost.is_some_and(|cost| !cost.is_finite() || cost < 0.0) {
            return Err("'cost' must be 0 or more".to_owned());
        }
        let models = named.map(models).transpose()?;
        let labels = labels(typed.unwrap_or_default())?;
        Ok(Spec {
            models,
            said,
            api_key,
            priority,
            cost,
            runtime,
            labels,
            health,
            breaker,
            overload,
            pool,
        })
    }
}

impl Health {
    fn check(&self) -> Result<(), Wrong> {
        at_least_one("health.interval_secs", self.interval_secs)?;
        at_least_one("health.timeout_secs", self.timeout_secs)?;
        at_least_one("health.failure_threshold", self.failure_threshold.map(u64::from))?;
        at_least_one("health.success_threshold", self.success_threshold.map(u64::from))?;
        let path = |path: &String| {
            path.starts_with('/')
                && path.len() <= MAX_TEXT
                && path.parse::<http::uri::PathAndQuery>().is_ok()
        };
        match self.endpoint.as_ref() {
            Some(endpoint) if !path(endpoint) => {
                Err("'health.endpoint' must be a path like /health".to_owned())
            }
            _ => Ok(()),
        }
    }
}

impl Overload {
    fn check(self) -> Result<(), Wrong> {
        at_least_one("overload.waiting_requests", self.waiting_requests.map(u64::from))?;
        if self.token_usage.is_some_and(|share| !OverloadRules::is_share(share)) {
            return Err("'overload.token_usage' must be above 0 and up to 1".to_owned());
        }
        Ok(())
    }
}

impl HttpPool {
    fn check(&self) -> Result<(), Wrong> {
        at_most("http_pool.pool_idle_timeout_secs", self.pool_idle_timeout_secs)?;
        at_least_one("http_pool.connect_timeout_secs", self.connect_timeout_secs)?;
        at_least_one("http_pool.timeout_secs", self.timeout_secs)?;
        Ok(())
    }
}

fn at_least_one(field: &str, value: Option<u64>) -> Result<(), Wrong> {
    if value == Some(0) {
        return Err(format!("'{field}' must be 1 or more"));
    }
    at_most(field, value)
}

fn at_most(field: &str, value: Option<u64>) -> Result<(), Wrong> {
    if value.is_some_and(|value| value > MAX_SECS) {
        return Err(format!("'{field}' must be at most {MAX_SECS}"));
    }
    Ok(())
}

fn credential(key: &str) -> Result<HeaderValue, Wrong> {
    let header = HeaderValue::from_str(&format!("Bearer {key}"));
    let mut header = header.map_err(|_| "'api_key' holds what no header can".to_owned())?;
    if key.is_empty() {
        return Err("'api_key' is empty".to_owned());
    }
    header.set_sensitive(true);
    Ok(header)
}

fn models(typed: Vec<Model>) -> Result<Vec<Arc<str>>, Wrong> {
    let mut models: Vec<Arc<str>> = Vec::new();
    for Model::Id(id) | Model::Object { id } in typed {
        if id.is_empty() || id.len() > MAX_TEXT {
            return Err(format!("an id in 'models' must have 1 to {MAX_TEXT} bytes"));
        }
        if !models.iter().any(|known| **known == *id) {
            models.push(id.into());
        }
    }
    if models.is_empty() || models.len() > super::discover::MAX_MODELS {
        return Err(format!("'models' must name 1 to {}", super::discover::MAX_MODELS));
    }
    Ok(models)
}

fn labels(typed: BTreeMap<String, Option<String>>) -> Result<BTreeMap<String, String>, Wrong> {
    let long = |text: &str| text.len() > MAX_TEXT;
    let labels: BTreeMap<_, _> =
        typed.into_iter().filter_map(|(name, label)| Some((name, label?))).collect();
    if labels.len() > MAX_LABELS || labels.iter().any(|(name, label)| long(name) || long(label)) {
        return Err(format!("'labels' may hold {MAX_LABELS}, each of at most {MAX_TEXT} bytes"));
    }
    match labels.get("policy") {
        Some(policy) if PolicyName::named(policy).is_none() => {
            let known = PolicyName::ALL.map(PolicyName::as_str).join(", ");
            Err(format!("the label 'policy' names no policy; there are {known}"))
        }
        _ => Ok(labels),
    }
}

/// RFC 7396, into an object. The depth is bounded by the JSON parser's.
fn merge(into: &mut Map<String, Value>, patch: Map<String, Value>) {
    for (name, value) in patch {
        match (into.get_mut(&name), value) {
            (_, Value::Null) => drop(into.remove(&name)),
            (Some(Value::Object(into)), Value::Object(patch)) => merge(into, patch),
            (_, Value::Object(patch)) => {
                let mut fresh = Map::new();
                merge(&mut fresh, patch);
                into.insert(name, Value::Object(fresh));
            }
            (_, value) => drop(into.insert(name, value)),
        }
    }
}

#[cfg(test)]
mod tests;
