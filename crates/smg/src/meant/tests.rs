use super::*;
use crate::flags::{Cli, Command};
use clap::Parser as _;
use smg_gateway::settings::{CacheIndex, PolicyName};

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
    assert!(settings.sticky.key_override);
    let eviction = settings.sticky.eviction.unwrap();
    assert_eq!((eviction.max_idle_secs, eviction.interval.as_secs()), (7, 8));
}

#[test]
fn aliases_add_up() {
    let typed = "--policy random --model-alias a=m b=m --model-alias a=m --model-alias B=n=1";
    let aliases = meant(typed).unwrap().aliases;
    let pairs: Vec<_> = aliases.iter().map(|(alias, model)| (&**alias, &**model)).collect();
    assert_eq!(pairs, [("B", "n=1"), ("a", "m"), ("b", "m")]);
    assert!(meant("--policy random --dp-aware").unwrap().startup.dp_aware);
    assert!(meant("--policy random --upstream-http2").unwrap().startup.http2);
    assert!(!meant("--policy random").unwrap().startup.http2);
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
    "--routing-key-headers na:me --routing-key-override",
    "--worker-urls w1:8000",
    "--worker-urls ftp://w1",
    "--worker-urls http://169.254.169.254",
    "--api-key=",
    "--api-key k\u{e9}y",
    "--admin-api-key=",
    "--tenant-api-key hush",
    "--tenant-api-key =hush",
    "--tenant-api-key a=",
    "--tenant-api-key a@b=hush",
    "--tenant-api-key a=hush a=other",
    "--tenant-api-key a=hush b=hush",
    "--tenant-api-key a=hush --api-key hush",
    "--admin-api-key hush --api-key hush",
    "--admin-api-key hush --tenant-api-key a=hush",
    "--cors-allowed-origins *",
    "--cors-allowed-origins https://a.example https://b.example/",
    "--tls-cert-path /no/such",
    "--tls-key-path /no/such",
    "--client-cert-path /no/such",
    "--client-key-path /no/such",
    "--ca-cert-paths /no/such",
    "--worker-startup-timeout-secs 0",
    "--worker-startup-check-interval 0",
    "--worker-startup-delay -1",
    "--model-alias fast",
    "--model-alias =m",
    "--model-alias fast=",
    "--model-alias m=m",
    "--model-alias fast=a fast=b",
    "--max-idle-secs -1",
    "--eviction-interval -5",
    "--max-sticky-keys -1",
    "--session-id-secret short",
    "--session-id-accept-bare",
    "--affinity-imbalance-factor 2",
    "--affinity-imbalance-factor 0.9",
    "--affinity-imbalance-min-gap 0",
    "--redis-url http://user:hush@r",
    "--sticky-store redis",
    "--sticky-store-secret=",
    "--sticky-store-timeout-ms 0",
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
    "--overlap-decay -0.1",
    "--overlap-decay inf",
    "--selection-temperature -1",
    "--selection-temperature nan",
    "--cache-index hash",
    "--cache-boundaries 0",
    "--cache-boundaries 8,8",
    "--cache-boundaries 8,4",
    "--cache-boundaries 4294967296",
    "--cache-ttl-secs 60",
    "--cache-ttl-secs 0",
    "--balance-abs-threshold -1",
    "--balance-rel-threshold 0.5",
    "--max-buffered-total-bytes -1",
    "--buffered-body-timeout-secs 0",
    "--max-header-bytes 8191",
    "--header-read-timeout-secs -1",
    "--idle-connection-timeout-secs -1",
    "--max-connections -1",
    "--queue-size -1",
    "--queue-timeout-secs 0",
    "--rate-limit-tokens-per-second -1",
    "--rate-limit-tokens-per-second 5",
    "--worker-overload-waiting-requests 0",
    "--worker-overload-token-usage 0",
    "--worker-overload-token-usage 1.1",
    "--disable-worker-overload-protection",
    "--worker-overload-shed",
    "--enable-mesh",
    "--enable-wasm",
];

#[test]
fn what_cannot_be_meant_is_refused_by_the_name_of_its_flag() {
    for bad in REFUSED {
        let Err(Complaint(said)) = meant(&format!("--policy random {bad}")) else {
            panic!("{bad} was accepted")
        };
        let flag = bad.split([' ', '=']).next().unwrap();
        assert!(said.starts_with(flag), "{said}");
        assert!(!said.contains("hush"), "{said}");
        // The flag, the value (of a list the one at fault) and what would do.
        let value = bad.split([' ', '=']).next_back().unwrap();
        let hidden = flag.contains("-key") || flag.ends_with("-secret") || flag == "--redis-url";
        assert!(hidden || said.to_lowercase().contains(value), "{said}");
    }
}

#[test]
fn keys_and_origins_are_taken_as_typed() {
    let typed = "--policy random --api-key k= --tenant-api-key a=x=y b=z --admin-api-key op \
                 --cors-allowed-origins https://chat.example http://localhost:3000";
    let access = meant(typed).unwrap().access;
    assert_eq!(access.api_key.unwrap().reveal(), "k=");
    let tenants: Vec<_> =
        access.tenants.iter().map(|(name, key)| (&**name, key.reveal())).collect();
    assert_eq!(tenants, [("a", "x=y"), ("b", "z")]);
    assert_eq!(access.admin_key.unwrap().reveal(), "op");
    assert_ne!(access.cors, smg_gateway::settings::Cors::default());
    let none = meant("--policy random --cors-allowed-origins").unwrap().access;
    assert!(none.api_key.is_none() && none.admin_key.is_none() && none.tenants.is_empty());
    assert_eq!(none.cors, smg_gateway::settings::Cors::default());
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
fn cache_aware_is_the_default_and_needs_its_sweep() {
    let settings = meant("--worker-urls http://w1").unwrap();
    assert_eq!(settings.placement.policy, PolicyName::CacheAware);
    for policy in ["", "--policy cache_aware"] {
        let Err(Complaint(said)) = meant(&format!("{policy} --eviction-interval 0")) else {
            panic!("accepted")
        };
        assert!(
            said.starts_with("--eviction-interval 0") && said.contains("cache_aware"),
            "{said}"
        );
    }
    assert!(meant("--policy random --eviction-interval 0").unwrap().index_sweep.is_none());
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

/// A file of this test's own, gone with it.
struct Pem(std::path::PathBuf);

impl Pem {
    fn holding(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("smg-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }
}

impl fmt::Display for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

impl Drop for Pem {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn certificates_and_keys_are_tried_at_start() {
    let pair = || rcgen::generate_simple_self_signed(["gw".to_owned()]).unwrap();
    let (one, other) = (pair(), pair());
    let cert = Pem::holding("cert", &one.cert.pem());
    let key = Pem::holding("key", &one.signing_key.serialize_pem());
    let foreign = Pem::holding("foreign", &other.signing_key.serialize_pem());
    let meant = |typed: String| meant(&format!("--policy random {typed}"));
    let settings =
        meant(format!("--tls-cert-path {cert} --tls-key-path {key} --ca-cert-paths {cert}"));
    assert!(settings.unwrap().tls.is_some());
    assert!(meant(String::new()).unwrap().tls.is_none());
    let mutual = format!("--client-cert-path {cert} --client-key-path {key}");
    let trusted = format!("{mutual} --ca-cert-paths {cert} {cert} --worker-urls https://w1");
    assert!(meant(trusted).is_ok());
    for (typed, at_fault) in [
        (format!("--tls-cert-path {cert} --tls-key-path {foreign}"), "--tls-key-path"),
        (format!("--client-cert-path {key} --client-key-path {key}"), "--client-cert-path"),
        (format!("--client-cert-path {cert}"), "--client-cert-path"),
        (format!("--ca-cert-paths {cert} {key}"), "--ca-cert-paths"),
    ] {
        let Err(Complaint(said)) = meant(typed) else { panic!("{at_fault} was accepted") };
        assert!(said.starts_with(at_fault) && !said.contains("BEGIN PRIVATE"), "{said}");
    }
}

#[test]
fn an_index_of_heads_is_what_its_flags_say() {
    let kind = |typed: &str| meant(typed).map(|settings| settings.placement.cache.kind);
    let hash = "--cache-index hash --cache-boundaries";
    let boundaries = |at: &[u32]| smg_gateway::settings::Boundaries::new(at).unwrap();
    for (typed, at, ttl_secs) in [
        (format!("{hash} 1024,4096"), &[1024, 4096][..], 180),
        (format!("{hash} 8 16 --cache-ttl-secs 60"), &[8, 16], 60),
    ] {
        let wanted = CacheIndex::Hash { boundaries: boundaries(at), ttl_secs };
        assert_eq!(kind(&typed).unwrap(), wanted, "{typed}");
        let prefix = meant(&typed).unwrap().placement.prefix;
        assert_eq!(prefix.boundaries, boundaries(at));
    }
    assert_eq!(kind("").unwrap(), CacheIndex::Tree);
    let Err(Complaint(said)) = kind("--cache-index hash") else { panic!("accepted") };
    assert!(said.contains("--cache-boundaries"), "{said}");
    let Err(Complaint(said)) = kind("--cache-ttl-secs 60") else { panic!("accepted") };
    assert!(said.contains("--cache-index hash"), "{said}");
    let knobs = meant("--overlap-decay 0.5 --selection-temperature 2").unwrap();
    let scoring = knobs.placement.cache.rules.scoring;
    assert_eq!((scoring.decay, scoring.temperature), (0.5, 2.0));
}
