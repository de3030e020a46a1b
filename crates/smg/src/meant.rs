//! From flags as typed to settings as meant: ranges, pairs, addresses. Every complaint names the
//! flag, the value and what would do.

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

use crate::flags::{AssignmentChoice, Flags, HealthFlags, RetryFlags, StickyFlags};

mod limits;
mod placement;

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
    let workers = workers(&flags.worker_urls)?;
    Ok(Settings {
        listen: address(("--host", &flags.host), ("--port", flags.port))?,
        metrics: address(
            ("--prometheus-host", &flags.prometheus_host),
            ("--prometheus-port", flags.prometheus_port),
        )?,
        duration_buckets: buckets(&flags.prometheus_duration_buckets)?,
        placement: placement::placement(&flags.placement, workers.len())?,
        loads: placement::loads(&flags.loads)?,
        workers,
        startup: Startup {
            timeout: positive_secs(
                "--worker-startup-timeout-secs",
                flags.worker_startup_timeout_secs,
            )?,
            interval: positive_secs(
                "--worker-startup-check-interval",
                flags.worker_startup_check_interval,
            )?,
            delay: secs("--worker-startup-delay", flags.worker_startup_delay)?,
        },
        health: health(&flags.health)?,
        sticky: sticky(&flags.sticky)?,
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
        request_id_headers: headers("--request-id-headers", &flags.request_id_headers)?,
        shutdown_grace: secs(
            "--shutdown-grace-period-secs",
            flags.process.shutdown_grace_period_secs,
        )?,
    })
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
    let port = u16::try_from(port).ok().filter(|port| *port > 0);
    let port =
        port.ok_or_else(|| Complaint::about(port_flag, "", "expected a port from 1 to 65535"))?;
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
mod tests {
    use super::*;
    use crate::flags::{Cli, Command};
    use clap::Parser as _;
    use smg_gateway::settings::PolicyName;

    fn meant(typed: &str) -> Result<Settings, Complaint> {
        let args = ["smg", "launch"].into_iter().chain(typed.split_whitespace());
        let Command::Launch(flags) = Cli::try_parse_from(args).unwrap().command else {
            panic!("launch")
        };
        settings(&flags)
    }

    #[test]
    fn the_example_of_the_readme() {
        let settings = meant(
            "--worker-urls http://w1:8000 http://w2:8000 --policy round_robin --routing-key-override",
        )
        .unwrap();
        assert_eq!(settings.listen, "0.0.0.0:30000".parse().unwrap());
        assert_eq!(settings.workers.len(), 2);
        let sticky = settings.sticky;
        assert!(sticky.key_override && sticky.max_keys == Some(8_000_000));
        assert_eq!(sticky.headers, ["x-smg-routing-key"]);
        assert_eq!(sticky.assignment, None);
        let eviction = sticky.eviction.unwrap();
        assert_eq!((eviction.max_idle_secs, eviction.interval.as_secs()), (14400, 120));
    }

    #[test]
    fn aliases_and_equals_signs_mean_the_same() {
        let typed = "--policy=random --sticky-sessions --sticky-key-idle-secs=7 --eviction-interval-secs 8 --worker-urls=http://a --worker-urls http://b";
        let settings = meant(typed).unwrap();
        assert_eq!(settings.workers.len(), 2);
        let eviction = settings.sticky.eviction.unwrap();
        assert_eq!((eviction.max_idle_secs, eviction.interval.as_secs()), (7, 8));
    }

    #[test]
    fn zero_turns_eviction_off() {
        for off in ["--max-idle-secs 0", "--eviction-interval 0"] {
            let settings = meant(&format!("--policy random --sticky-sessions {off}")).unwrap();
            assert!(settings.sticky.eviction.is_none(), "{off}");
        }
    }

    const REFUSED: &[&str] = &[
        "--port 0",
        "--port 65536",
        "--prometheus-port -1",
        "--host localhost",
        "--prometheus-host x",
        "--prometheus-duration-buckets 1 1",
        "--prometheus-duration-buckets 2 1",
        "--prometheus-duration-buckets 0",
        "--prometheus-duration-buckets nan",
        "--request-id-headers b@d",
        "--routing-key-headers x-fine na:me",
        "--worker-urls w1:8000",
        "--worker-urls https://w1",
        "--worker-startup-timeout-secs 0",
        "--worker-startup-check-interval 0",
        "--worker-startup-delay -1",
        "--max-idle-secs -1",
        "--eviction-interval -5",
        "--max-sticky-keys -1",
        "--max-payload-size 0",
        "--request-timeout-secs 0",
        "--request-timeout-secs 9223372036854775807",
        "--upstream-pool-idle-timeout-secs -1",
        "--health-check-interval-secs 0",
        "--health-check-timeout-secs 0",
        "--health-failure-threshold 0",
        "--health-success-threshold 4294967296",
        "--health-check-endpoint health",
        "--shutdown-grace-period-secs -1",
        "--retry-max-retries 0",
        "--retry-initial-backoff-ms 0",
        "--retry-max-backoff-ms 49",
        "--retry-backoff-multiplier 0.9",
        "--retry-backoff-multiplier nan",
        "--retry-jitter-factor 1.1",
        "--retry-jitter-factor -0.1",
        "--cb-failure-threshold 0",
        "--cb-success-threshold 0",
        "--cb-timeout-duration-secs 0",
        "--cb-window-duration-secs 0",
        "--load-monitor-interval 0",
        "--least-load-kv-pressure-weight -0.1",
        "--least-load-kv-pressure-weight inf",
        "--least-load-default-throughput 0",
        "--least-load-default-throughput nan",
        "--least-load-mean-prefill-tokens 0",
        "--least-load-max-waiting-requests -1",
        "--prefix-token-count 0",
        "--prefix-hash-load-factor 0.99",
        "--prefix-hash-balance-abs-threshold -1",
        "--bucket-adjust-interval-secs 0",
        "--bucket-adjust-interval-secs 4294967296",
        "--balance-abs-threshold -1",
        "--balance-rel-threshold 0.5",
        "--max-buffered-total-bytes -1",
        "--buffered-body-timeout-secs 0",
        "--max-header-bytes 8191",
        "--header-read-timeout-secs -1",
        "--idle-connection-timeout-secs -1",
        "--queue-size -1",
        "--queue-timeout-secs 0",
        "--rate-limit-tokens-per-second -1",
        "--rate-limit-tokens-per-second 5",
        "--worker-overload-waiting-requests 0",
        "--worker-overload-token-usage 0",
        "--worker-overload-token-usage 1.1",
        "--disable-worker-overload-protection",
        "--worker-overload-shed",
    ];

    #[test]
    fn what_cannot_be_meant_is_refused_by_the_name_of_its_flag() {
        for bad in REFUSED {
            let Err(Complaint(said)) = meant(&format!("--policy random {bad}")) else {
                panic!("{bad} was accepted")
            };
            assert!(said.starts_with(bad.split_whitespace().next().unwrap()), "{said}");
        }
    }

    #[test]
    fn power_of_two_needs_two_different_workers() {
        for few in ["", "--worker-urls http://a", "--worker-urls http://a http://a/"] {
            let Err(Complaint(said)) = meant(&format!("--policy power_of_two {few}")) else {
                panic!("'{few}' was accepted")
            };
            assert!(said.starts_with("--policy power_of_two"), "{said}");
        }
        let two = meant("--policy power_of_two --worker-urls http://a http://b").unwrap();
        assert_eq!(two.placement.policy, PolicyName::PowerOfTwo);
    }

    #[test]
    fn every_policy_is_meant_by_its_own_name() {
        for name in PolicyName::ALL {
            let typed = format!("--policy {} --worker-urls http://a http://b", name.as_str());
            assert_eq!(meant(&typed).unwrap().placement.policy, name);
        }
    }

    #[test]
    fn defaults_and_units_of_placement() {
        let Settings { placement, loads, .. } = meant("--policy random").unwrap();
        let (wait, prefix, bucket) = (placement.wait, placement.prefix, placement.bucket);
        let floats = [
            wait.kv_pressure_weight,
            wait.default_throughput,
            prefix.load_factor,
            bucket.rel_threshold,
        ];
        assert_eq!(floats, [0.15, 2000.0, 1.25, 1.5]);
        assert_eq!((wait.mean_prefill_tokens, placement.max_waiting), (1024, None));
        assert_eq!((prefix.tokens, prefix.abs_threshold), (256, 10));
        assert_eq!((bucket.interval, bucket.abs_threshold), (5000, 64));
        assert_eq!((loads.interval.as_secs(), loads.always), (10, true));
        let typed = "--policy random --spill-abs-threshold 7 --spill-rel-threshold=2 \
                     --least-load-max-waiting-requests 3 --disable-load-monitoring";
        let Settings { placement, loads, .. } = meant(typed).unwrap();
        let bucket = placement.bucket;
        assert_eq!((bucket.abs_threshold, bucket.rel_threshold), (7, 2.0));
        assert_eq!((placement.max_waiting, loads.always), (Some(3), false));
    }

    #[test]
    fn any_number_of_requests_run_until_a_limit_is_given() {
        let admission = |typed: &str| meant(&format!("--policy random {typed}")).unwrap().admission;
        for off in ["", "--max-concurrent-requests 0", "--max-concurrent-requests=-7"] {
            assert_eq!(admission(off), None, "{off}");
        }
        let rules = admission("--max-concurrent-requests 5").unwrap();
        assert_eq!((rules.limit, rules.queue, rules.wait_ms, rules.rate), (5, 100, 60_000, None));
        let typed = "--max-concurrent-requests 5 --queue-size 0 --queue-timeout-secs 0";
        assert_eq!(admission(typed).unwrap().queue, 0);
        let rated = |rate| admission(&format!("{typed} --rate-limit-tokens-per-second {rate}"));
        assert_eq!((rated(0).unwrap().rate, rated(9).unwrap().rate), (None, Some(9)));
    }

    #[test]
    fn bodies_may_hold_a_quarter_of_the_memory_and_take_as_long_as_a_request() {
        let bodies = |typed: &str| meant(&format!("--policy random {typed}")).unwrap().bodies;
        let default = bodies("--request-timeout-secs 7");
        assert_eq!(default.max_buffered_total, crate::memory::total().map(|all| all / 4));
        assert_eq!(default.timeout.as_secs(), 7);
        let typed = bodies("--max-buffered-total-bytes 5 --buffered-body-timeout-secs 9");
        assert_eq!((typed.max_buffered_total, typed.timeout.as_secs()), (Some(5), 9));
        assert_eq!(bodies("--max-buffered-total-bytes 0").max_buffered_total, None);
    }

    #[test]
    fn overload_protection_is_off_until_a_flag_asks_for_it() {
        for (typed, waiting, token_usage) in [
            ("", None, None),
            ("--worker-overload-protection", None, Some(0.9)),
            ("--worker-overload-protection --worker-overload-waiting-requests 3", Some(3), None),
            ("--worker-overload-token-usage 1", None, Some(1.0)),
        ] {
            let overload = meant(&format!("--policy random {typed}")).unwrap().loads.overload;
            assert_eq!((overload.waiting, overload.token_usage), (waiting, token_usage), "{typed}");
        }
    }

    #[test]
    fn a_missing_policy_names_those_that_exist() {
        let Err(Complaint(said)) = meant("--worker-urls http://w1") else { panic!("accepted") };
        assert!(
            said.contains("--policy") && said.contains("round_robin, random, passthrough"),
            "{said}"
        );
    }
}
