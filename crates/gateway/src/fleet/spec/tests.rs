use serde_json::json;

use super::*;
use crate::settings::Thresholds;

fn fields(value: Value) -> Map<String, Value> {
    let Value::Object(fields) = value else { panic!("an object") };
    fields
}

fn read(value: Value) -> Result<Spec, Wrong> {
    Spec::read(fields(value))
}

const CONNECTIONS: Connections = Connections {
    idle_timeout: Some(Duration::from_secs(3)),
    max_idle: 500,
    connect_timeout: Duration::from_secs(10),
};
const RULES: BreakerRules = BreakerRules { failures: Some(10), successes: 3, timeout_ms: 60_000 };

fn checks() -> HealthChecks {
    HealthChecks {
        interval: Duration::from_secs(60),
        timeout: Duration::from_secs(5),
        thresholds: Thresholds { failure: 3, success: 2 },
        endpoint: "/health".to_owned(),
    }
}

#[test]
fn what_is_not_said_stays_with_the_flags() {
    let spec = read(json!({})).unwrap();
    let connections = spec.connections(&CONNECTIONS);
    assert_eq!((connections.idle_timeout, connections.max_idle), (CONNECTIONS.idle_timeout, 500));
    assert_eq!(spec.breaker(RULES), RULES);
    assert_eq!(spec.overload(OverloadRules::OFF), OverloadRules::OFF);
    let either = OverloadRules { waiting: Some(8), token_usage: Some(0.8) };
    assert_eq!(spec.overload(either), either);
    assert_eq!(spec.checks(Some(&checks())).unwrap().endpoint, "/health");
    assert!(spec.checks(None).is_none() && spec.models.is_none());
}

#[test]
fn each_override_beats_its_flag() {
    let spec = read(json!({
        "http_pool": {"pool_idle_timeout_secs": 0, "pool_max_idle_per_host": 1,
                      "connect_timeout_secs": 2, "timeout_secs": 4, "http2": false},
        "circuit_breaker": {"failure_threshold": 1, "success_threshold": 2, "timeout_secs": 3},
        "health": {"interval_secs": 1, "timeout_secs": 2, "failure_threshold": 4,
                   "success_threshold": 5, "endpoint": "/ok"},
        "overload": {"waiting_requests": 7},
    }))
    .unwrap();
    let connections = spec.connections(&CONNECTIONS);
    assert_eq!((connections.idle_timeout, connections.max_idle), (None, 1));
    assert_eq!(connections.connect_timeout.as_secs(), 2);
    let rules = BreakerRules { failures: Some(1), successes: 2, timeout_ms: 3000 };
    assert_eq!(spec.breaker(RULES), rules);
    let overload = spec.overload(OverloadRules { waiting: Some(8), token_usage: Some(0.8) });
    assert_eq!((overload.waiting, overload.token_usage), (Some(7), Some(0.8)));
    let checks = spec.checks(Some(&checks())).unwrap();
    assert_eq!((checks.interval.as_secs(), checks.timeout.as_secs()), (1, 2));
    assert_eq!((checks.thresholds.failure, checks.thresholds.success), (4, 5));
    assert_eq!(checks.endpoint, "/ok");
    let off = read(json!({"health": {"disabled": true}, "circuit_breaker": {"disabled": true}}));
    let off = off.unwrap();
    assert!(off.checks(Some(&checks)).is_none() && off.breaker(RULES).failures.is_none());
}

#[test]
fn what_cannot_be_meant_is_refused_by_the_name_of_its_field() {
    for (spec, named) in [
        (json!({"prioritty": 1}), "prioritty"),
        (json!({"http_pool": {"idle": 1}}), "idle"),
        (json!({"overload": {"usage": 1}}), "usage"),
        (json!({"overload": {"waiting_requests": 0}}), "overload.waiting_requests"),
        (json!({"overload": {"token_usage": 1.01}}), "overload.token_usage"),
        (json!({"http_pool": {"http2": 2}}), "invalid type"),
        (json!({"http_pool": {"timeout_secs": 0}}), "http_pool.timeout_secs"),
        (json!({"http_pool": {"connect_timeout_secs": u64::MAX}}), "connect_timeout_secs"),
        (json!({"health": {"endpoint": "health"}}), "health.endpoint"),
        (json!({"health": {"interval_secs": 0}}), "health.interval_secs"),
        (json!({"circuit_breaker": {"failure_threshold": 0}}), "failure_threshold"),
        (json!({"circuit_breaker": {"timeout_secs": 0}}), "circuit_breaker.timeout_secs"),
        (json!({"labels": {"policy": "best"}}), "policy"),
        (json!({"labels": {"a": "x".repeat(257)}}), "labels"),
        (json!({"models": []}), "models"),
        (json!({"models": [""]}), "models"),
        (json!({"cost": -1}), "cost"),
        (json!({"api_key": 5}), "api_key"),
        (json!({"api_key": "a\nb"}), "api_key"),
    ] {
        let said = read(spec.clone()).unwrap_err();
        assert!(said.contains(named), "{spec}: {said}");
    }
}

#[test]
fn a_patch_changes_what_it_names_and_null_forgets() {
    let spec = read(json!({"priority": 1, "labels": {"a": "1", "b": "2"}, "api_key": "k"}));
    let spec = spec.unwrap();
    let patch = fields(json!({"priority": null, "labels": {"a": null, "c": "3"}}));
    let patched = spec.patched(patch).unwrap();
    assert_eq!(Value::Object(patched.said.clone()), json!({"labels": {"b": "2", "c": "3"}}));
    assert_eq!(patched.api_key.as_ref().unwrap(), "Bearer k");
    assert!(patched.patched(fields(json!({"api_key": null}))).unwrap().api_key.is_none());
    assert!(spec.patched(fields(json!({"nonsense": null}))).unwrap_err().contains("nonsense"));
    let anew = spec.replaced(fields(json!({"cost": 2.5}))).unwrap();
    assert_eq!(Value::Object(anew.said), json!({"cost": 2.5}));
    assert!(anew.api_key.is_some(), "nobody can read it to repeat it");
}

#[test]
fn a_key_is_never_shown() {
    let spec = read(json!({"api_key": "secret", "priority": 1})).unwrap();
    assert!(!format!("{spec:?}").contains("secret"));
    let wrong = read(json!({"api_key": "se\ncret"})).unwrap_err();
    assert!(!wrong.contains("cret"), "{wrong}");
}

#[test]
fn retries_of_a_worker_are_taken_out_and_named() {
    let mut said = fields(json!({"retry": {"max": 1}, "retry_max_retries": 3, "cost": 1}));
    assert_eq!(ignored(&mut said), ["retry", "retry_max_retries"]);
    assert_eq!(said.len(), 1);
}
