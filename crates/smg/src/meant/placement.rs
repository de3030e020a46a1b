//! What the flags of placement and of load polling come to. Each is checked whatever the policy: a
//! value out of range is a typing error that would wait for the day the policy changes.

use smg_gateway::settings::{
    Boundaries, BucketRules, CacheIndex, CacheParams, CacheRules, ExpectedWait, LoadPolling,
    OverloadRules, Placement, PolicyName, PrefixRules, Scoring,
};

use super::{Complaint, Meant, count, fraction, positive, positive_secs, small, unsigned};
use crate::flags::{IndexChoice, LoadFlags, PlacementFlags, PolicyChoice};

/// How requests that no pin decides get their worker; `workers` is how many are configured.
pub(super) fn placement(flags: &PlacementFlags, workers: usize) -> Meant<Placement> {
    let max_waiting =
        small("--least-load-max-waiting-requests", flags.least_load_max_waiting_requests)?;
    Ok(Placement {
        policy: policy(flags.policy, workers)?,
        wait: wait(flags)?,
        max_waiting: (max_waiting > 0).then_some(max_waiting),
        prefix: prefix(flags)?,
        bucket: bucket(flags)?,
        cache: cache(flags)?,
    })
}

/// How engines are asked for their load.
pub(super) fn loads(flags: &LoadFlags) -> Meant<LoadPolling> {
    Ok(LoadPolling {
        interval: positive_secs("--load-monitor-interval", flags.load_monitor_interval)?,
        always: !flags.disable_load_monitoring,
        overload: overload(flags)?,
    })
}

fn overload(flags: &LoadFlags) -> Meant<OverloadRules> {
    let waiting = flags.worker_overload_waiting_requests;
    let waiting = waiting.map(|n| count("--worker-overload-waiting-requests", n)).transpose()?;
    let flag = "--worker-overload-token-usage";
    let share = |usage| fraction(flag, usage, OverloadRules::is_share, "above 0, up to 1");
    let mut token_usage = flags.worker_overload_token_usage.map(share).transpose()?;
    if flags.worker_overload_protection && waiting.is_none() && token_usage.is_none() {
        token_usage = Some(OverloadRules::DEFAULT_TOKEN_USAGE);
    }
    Ok(OverloadRules { waiting, token_usage })
}

fn policy(choice: PolicyChoice, workers: usize) -> Meant<PolicyName> {
    let name = match choice {
        PolicyChoice::RoundRobin => PolicyName::RoundRobin,
        PolicyChoice::Random => PolicyName::Random,
        PolicyChoice::Passthrough => PolicyName::Passthrough,
        PolicyChoice::PowerOfTwo => PolicyName::PowerOfTwo,
        PolicyChoice::LeastLoad => PolicyName::LeastLoad,
        PolicyChoice::PrefixHash => PolicyName::PrefixHash,
        PolicyChoice::ConsistentHashing => PolicyName::ConsistentHashing,
        PolicyChoice::Manual => PolicyName::Manual,
        PolicyChoice::Bucket => PolicyName::Bucket,
        PolicyChoice::CacheAware => PolicyName::CacheAware,
        PolicyChoice::SessionAffinity => PolicyName::SessionAffinity,
    };
    if name == PolicyName::PowerOfTwo && workers < 2 {
        let why = format!("needs at least two different --worker-urls, found {workers}");
        return Err(Complaint::about("--policy", name.as_str(), why));
    }
    Ok(name)
}

fn wait(flags: &PlacementFlags) -> Meant<ExpectedWait> {
    Ok(ExpectedWait {
        kv_pressure_weight: fraction(
            "--least-load-kv-pressure-weight",
            flags.least_load_kv_pressure_weight,
            |weight| weight >= 0.0,
            "seconds, 0 or more",
        )?,
        default_throughput: fraction(
            "--least-load-default-throughput",
            flags.least_load_default_throughput,
            |throughput| throughput > 0.0,
            "tokens a second, more than 0",
        )?,
        mean_prefill_tokens: count(
            "--least-load-mean-prefill-tokens",
            flags.least_load_mean_prefill_tokens,
        )?,
    })
}

fn prefix(flags: &PlacementFlags) -> Meant<PrefixRules> {
    let tokens = positive("--prefix-token-count", flags.prefix_token_count)?;
    Ok(PrefixRules {
        tokens: usize::try_from(tokens).unwrap_or(usize::MAX),
        boundaries: boundaries(flags)?,
        load_factor: factor("--prefix-hash-load-factor", flags.prefix_hash_load_factor)?,
        abs_threshold: small(
            "--prefix-hash-balance-abs-threshold",
            flags.prefix_hash_balance_abs_threshold,
        )?,
    })
}

fn bucket(flags: &PlacementFlags) -> Meant<BucketRules> {
    let secs = count("--bucket-adjust-interval-secs", flags.bucket_adjust_interval_secs)?;
    Ok(BucketRules {
        interval: u64::from(secs) * 1000,
        abs_threshold: unsigned("--balance-abs-threshold", flags.balance_abs_threshold)?,
        rel_threshold: factor("--balance-rel-threshold", flags.balance_rel_threshold)?,
    })
}

fn cache(flags: &PlacementFlags) -> Meant<CacheParams> {
    let share = |flag, value| fraction(flag, value, |share| (0.0..=1.0).contains(&share), "0 to 1");
    let above_0 = |flag, value| fraction(flag, value, |share| share > 0.0, "more than 0");
    let (usage, spread) =
        (flags.overload_token_usage_threshold, flags.balance_token_usage_threshold);
    let size = |flag, value| {
        Ok::<_, Complaint>(usize::try_from(positive(flag, value)?).unwrap_or(usize::MAX))
    };
    Ok(CacheParams {
        rules: CacheRules {
            threshold: share("--cache-threshold", flags.cache_threshold)? as f32,
            abs: small("--balance-abs-threshold", flags.balance_abs_threshold)?,
            rel: factor("--balance-rel-threshold", flags.balance_rel_threshold)? as f32,
            overload_usage: above_0("--overload-token-usage-threshold", usage)? as f32,
            balance_usage: above_0("--balance-token-usage-threshold", spread)? as f32,
            wait: wait(flags)?,
            scoring: scoring(flags)?,
        },
        kind: index(flags)?,
        max_size: size("--max-tree-size", flags.max_tree_size)?,
        page: size("--block-size", flags.block_size)?,
        ..CacheParams::DEFAULT
    })
}

fn scoring(flags: &PlacementFlags) -> Meant<Scoring> {
    let or_more = |flag, value| fraction(flag, value, |value| value >= 0.0, "0 or more");
    Ok(Scoring {
        decay: or_more("--overlap-decay", flags.overlap_decay)?,
        temperature: or_more("--selection-temperature", flags.selection_temperature)?,
    })
}

/// Seconds that the hash index remembers what nobody uses, unless told otherwise.
const CACHE_TTL_SECS: u32 = 180;

fn index(flags: &PlacementFlags) -> Meant<CacheIndex> {
    let ttl = flags.cache_ttl_secs.map(|secs| count("--cache-ttl-secs", secs)).transpose()?;
    let boundaries = boundaries(flags)?;
    match (flags.cache_index, ttl) {
        (IndexChoice::Hash, _) if boundaries == Boundaries::NONE => {
            let why = "needs --cache-boundaries: the token positions at which engines keep state";
            Err(Complaint::about("--cache-index", "hash", why))
        }
        (IndexChoice::Hash, ttl) => {
            Ok(CacheIndex::Hash { boundaries, ttl_secs: ttl.unwrap_or(CACHE_TTL_SECS) })
        }
        (IndexChoice::Tree, Some(ttl)) => {
            let why =
                "a tree forgets by --max-tree-size; add --cache-index hash, or leave this out";
            Err(Complaint::about("--cache-ttl-secs", ttl, why))
        }
        (IndexChoice::Tree, None) => Ok(CacheIndex::Tree),
    }
}

fn boundaries(flags: &PlacementFlags) -> Meant<Boundaries> {
    let typed = &flags.cache_boundaries;
    let flag = "--cache-boundaries";
    let positions = typed.iter().map(|at| count(flag, *at)).collect::<Meant<Vec<_>>>()?;
    Boundaries::new(&positions).ok_or_else(|| {
        let all: Vec<String> = typed.iter().map(ToString::to_string).collect();
        let why = format!("expected ascending positions, at most {}", Boundaries::MOST);
        Complaint::about(flag, all.join(","), why)
    })
}

fn factor(flag: &str, value: f64) -> Meant<f64> {
    fraction(flag, value, |factor| factor >= 1.0, "1 or more")
}
