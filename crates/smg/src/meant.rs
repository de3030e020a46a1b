//! From flags as typed to settings as meant: ranges, pairs, addresses. Every complaint names the
//! flag, the value and what would do.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr as _;
use std::time::Duration;

use http::HeaderName;
use smg_gateway::settings::{
    Assignment, BreakerRules, Connections, Eviction, HealthChecks, RetryRules, Settings, Startup,
    Sticky, Thresholds,
};
use smg_gateway::upstream::Origin;

use crate::flags::{AssignmentChoice, Flags, HealthFlags, PolicyChoice, RetryFlags, StickyFlags};

mod access;
mod affinity;
mod limits;
mod others;
mod placement;
mod tls;

/// A flag that cannot be meant.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Complaint(pub(crate) String);

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Complaint {
    fn about(flag: &str, value: impl fmt::Display, why: impl fmt::Display) -> Self {
        Self(format!("{flag} {value}: {why}"))
    }
}

type Meant<T> = Result<T, Complaint>;

/// What the flags come to.
pub(crate) fn settings(flags: &Flags) -> Meant<Settings> {
    others::refuse(&flags.others)?;
    let workers = workers(&flags.worker_urls)?;
    Ok(Settings {
        listen: address(("--host", &flags.host), ("--port", flags.port))?,
        metrics: address(
            ("--prometheus-host", &flags.prometheus_host),
            ("--prometheus-port", flags.prometheus_port),
        )?,
        duration_buckets: buckets(&flags.prometheus_duration_buckets)?,
        index_sweep: index_sweep(flags)?,
        tls: tls::clients(&flags.tls)?,
        access: access::access(&flags.access)?,
        placement: placement::placement(&flags.placement, workers.len())?,
        loads: placement::loads(&flags.loads)?,
        worker_tls: tls::workers(&flags.tls, &workers)?,
        workers,
        aliases: aliases(&flags.model_alias)?,
        startup: startup(flags)?,
        health: health(&flags.health)?,
        sticky: sticky(&flags.sticky)?,
        affinity: affinity::affinity(&flags.affinity, &affinity::RedisEnv::read())?,
        admission: limits::admission(&flags.limits)?,
        bodies: limits::bodies(&flags.requests, &flags.limits)?,
        clients: limits::clients(&flags.limits)?,
        connections: Connections {
            idle_timeout: unless_zero(secs(
                "--upstream-pool-idle-timeout-secs",
                flags.requests.upstream_pool_idle_timeout_secs,
            )?),
            max_idle: 500,
            connect_timeout: Duration::from_secs(10),
        },
        retry: retry(&flags.retry)?,
        breaker: breaker(&flags.retry)?,
        request_timeout: positive_secs(
            "--request-timeout-secs",
            flags.requests.request_timeout_secs,
        )?,
        sse_keepalive: unless_zero(secs(
            "--sse-keepalive-secs",
            flags.requests.sse_keepalive_secs,
        )?),
        request_id_headers: headers("--request-id-headers", &flags.request_id_headers)?,
        shutdown_grace: secs(
            "--shutdown-grace-period-secs",
            flags.process.shutdown_grace_period_secs,
        )?,
    })
}

/// Without a sweep the index of `cache_aware` would only ever grow (000, "Idle Eviction").
fn index_sweep(flags: &Flags) -> Meant<Option<Duration>> {
    let interval = unless_zero(secs("--eviction-interval", flags.sticky.eviction_interval)?);
    if interval.is_none() && flags.placement.policy == PolicyChoice::CacheAware {
        let why = "cache_aware needs its sweep; expected 1 or more, or another --policy";
        return Err(Complaint::about("--eviction-interval", 0, why));
    }
    Ok(interval)
}

fn startup(flags: &Flags) -> Meant<Startup> {
    let (timeout, interval) =
        (flags.worker_startup_timeout_secs, flags.worker_startup_check_interval);
    Ok(Startup {
        timeout: positive_secs("--worker-startup-timeout-secs", timeout)?,
        interval: positive_secs("--worker-startup-check-interval", interval)?,
        delay: secs("--worker-startup-delay", flags.worker_startup_delay)?,
        dp_aware: flags.dp_aware,
        external: others::vendor(flags.backend)?,
        http2: flags.requests.upstream_http2,
    })
}

fn aliases(typed: &[String]) -> Meant<BTreeMap<String, String>> {
    let mut aliases = BTreeMap::new();
    for pair in typed {
        let wrong = |why: &str| Complaint::about("--model-alias", pair, why);
        let (alias, model) = pair.split_once('=').ok_or_else(|| wrong("expected ALIAS=MODEL"))?;
        if alias.is_empty() || model.is_empty() {
            return Err(wrong("expected a name on both sides of ="));
        }
        if alias == model {
            return Err(wrong("a model needs no alias to its own name"));
        }
        let before = aliases.insert(alias.to_owned(), model.to_owned());
        if let Some(other) = before.filter(|other| other != model) {
            return Err(wrong(&format!("the alias stands for '{other}' already")));
        }
    }
    Ok(aliases)
}

fn sticky(flags: &StickyFlags) -> Meant<Sticky> {
    // Names are checked with or without the override, as a typing error is one either way.
    let mut headers = headers("--routing-key-headers", &flags.routing_key_headers)?;
    if headers.is_empty() {
        headers.push(HeaderName::from_static("x-smg-routing-key"));
    }
    let idle = secs("--max-idle-secs", flags.max_idle_secs)?;
    let interval = secs("--eviction-interval", flags.eviction_interval)?;
    let eviction = unless_zero(idle).zip(unless_zero(interval)).map(|(idle, interval)| Eviction {
        max_idle_secs: u32::try_from(idle.as_secs()).unwrap_or(u32::MAX),
        interval,
    });
    let assignment = flags.assignment_mode.map(|mode| match mode {
        AssignmentChoice::Delegate => Assignment::Delegate,
        AssignmentChoice::Random => Assignment::Random,
        AssignmentChoice::MinLoad => Assignment::MinLoad,
        AssignmentChoice::MinGroup => Assignment::MinGroup,
    });
    let max_keys = unsigned("--max-sticky-keys", flags.max_sticky_keys)?;
    Ok(Sticky {
        key_override: flags.routing_key_override,
        headers,
        assignment,
        eviction,
        max_keys: usize::try_from(max_keys).ok().filter(|max| *max > 0),
        snapshot: flags.sticky_snapshot.clone(),
    })
}

fn health(flags: &HealthFlags) -> Meant<Option<HealthChecks>> {
    let checks = HealthChecks {
        interval: positive_secs("--health-check-interval-secs", flags.health_check_interval_secs)?,
        timeout: positive_secs("--health-check-timeout-secs", flags.health_check_timeout_secs)?,
        thresholds: Thresholds {
            failure: count("--health-failure-threshold", flags.health_failure_threshold)?,
            success: count("--health-success-threshold", flags.health_success_threshold)?,
        },
        endpoint: flags.health_check_endpoint.clone(),
    };
    let path = &checks.endpoint;
    if !path.starts_with('/') || http::uri::PathAndQuery::from_str(path).is_err() {
        return Err(Complaint::about(
            "--health-check-endpoint",
            path,
            "expected a path like /health",
        ));
    }
    Ok((!flags.disable_health_check).then_some(checks))
}

fn retry(flags: &RetryFlags) -> Meant<RetryRules> {
    let attempts = count("--retry-max-retries", flags.retry_max_retries)?;
    let initial_ms = positive("--retry-initial-backoff-ms", flags.retry_initial_backoff_ms)?;
    let max_ms = positive("--retry-max-backoff-ms", flags.retry_max_backoff_ms)?;
    if max_ms < initial_ms {
        let why = format!("expected at least --retry-initial-backoff-ms ({initial_ms})");
        return Err(Complaint::about("--retry-max-backoff-ms", max_ms, why));
    }
    let multiplier = flags.retry_backoff_multiplier;
    if !(multiplier.is_finite() && multiplier >= 1.0) {
        return Err(Complaint::about(
            "--retry-backoff-multiplier",
            multiplier,
            "expected 1 or more",
        ));
    }
    let jitter = flags.retry_jitter_factor;
    if !(0.0..=1.0).contains(&jitter) {
        return Err(Complaint::about("--retry-jitter-factor", jitter, "expected 0 to 1"));
    }
    let attempts = if flags.disable_retries { 1 } else { attempts };
    Ok(RetryRules { attempts, initial_ms, max_ms, multiplier, jitter })
}

fn breaker(flags: &RetryFlags) -> Meant<BreakerRules> {
    let failures = count("--cb-failure-threshold", flags.cb_failure_threshold)?;
    let successes = count("--cb-success-threshold", flags.cb_success_threshold)?;
    let timeout = positive_secs("--cb-timeout-duration-secs", flags.cb_timeout_duration_secs)?;
    positive_secs("--cb-window-duration-secs", flags.cb_window_duration_secs)?;
    Ok(BreakerRules {
        failures: (!flags.disable_circuit_breaker).then_some(failures),
        successes,
        timeout_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
    })
}

fn workers(urls: &[String]) -> Meant<Vec<Origin>> {
    let mut workers: Vec<Origin> = Vec::with_capacity(urls.len());
    for url in urls {
        let origin =
            Origin::parse(url).map_err(|why| Complaint::about("--worker-urls", url, why))?;
        if !workers.contains(&origin) {
            workers.push(origin);
        }
    }
    Ok(workers)
}

fn headers(flag: &str, names: &[String]) -> Meant<Vec<HeaderName>> {
    let parse = |name: &String| {
        HeaderName::from_bytes(name.as_bytes()).map_err(|_| {
            Complaint::about(flag, format!("'{name}'"), "not a valid HTTP header name")
        })
    };
    names.iter().map(parse).collect()
}

fn address((host_flag, host): (&str, &str), (port_flag, port): (&str, i64)) -> Meant<SocketAddr> {
    let ip: IpAddr = host.parse().map_err(|_| {
        Complaint::about(host_flag, host, "expected an IP address like 0.0.0.0 or ::")
    })?;
    let fits = u16::try_from(port).ok().filter(|port| *port > 0);
    let port =
        fits.ok_or_else(|| Complaint::about(port_flag, port, "expected a port from 1 to 65535"))?;
    Ok(SocketAddr::new(ip, port))
}

fn buckets(bounds: &[f64]) -> Meant<Vec<f64>> {
    let ascending = bounds.windows(2).all(|pair| matches!(pair, [low, high] if low < high));
    let positive = bounds.iter().all(|bound| bound.is_finite() && *bound > 0.0);
    if ascending && positive {
        return Ok(bounds.to_vec());
    }
    let typed: Vec<_> = bounds.iter().map(ToString::to_string).collect();
    let why = "expected seconds above 0, strictly ascending";
    Err(Complaint::about("--prometheus-duration-buckets", typed.join(" "), why))
}

fn unsigned(flag: &str, value: i64) -> Meant<u64> {
    u64::try_from(value).map_err(|_| Complaint::about(flag, value, "expected 0 or more"))
}

fn positive(flag: &str, value: i64) -> Meant<u64> {
    let found = u64::try_from(value).ok().filter(|value| *value > 0);
    found.ok_or_else(|| Complaint::about(flag, value, "expected 1 or more"))
}

fn count(flag: &str, value: i64) -> Meant<u32> {
    let value = positive(flag, value)?;
    u32::try_from(value).map_err(|_| Complaint::about(flag, value, "expected at most 4294967295"))
}

/// Zero or a [`count`].
fn small(flag: &str, value: i64) -> Meant<u32> {
    if value == 0 { Ok(0) } else { unsigned(flag, value).and_then(|_| count(flag, value)) }
}

/// Longest time a flag may name: a hundred years, far below where clocks overflow.
const MAX_SECS: u64 = 100 * 365 * 24 * 3600;

fn secs(flag: &str, value: i64) -> Meant<Duration> {
    let value = unsigned(flag, value)?;
    if value > MAX_SECS {
        return Err(Complaint::about(flag, value, format!("expected at most {MAX_SECS}")));
    }
    Ok(Duration::from_secs(value))
}

fn positive_secs(flag: &str, value: i64) -> Meant<Duration> {
    positive(flag, value)?;
    secs(flag, value)
}

/// A number with a fraction, in a range that is told in words.
fn fraction(flag: &str, value: f64, fits: impl Fn(f64) -> bool, range: &str) -> Meant<f64> {
    if value.is_finite() && fits(value) {
        return Ok(value);
    }
    Err(Complaint::about(flag, value, format!("expected {range}")))
}

fn unless_zero(duration: Duration) -> Option<Duration> {
    (!duration.is_zero()).then_some(duration)
}

#[cfg(test)]
mod fuzzed;
#[cfg(test)]
mod tests;
