//! Load in the metrics text of an engine (Prometheus text format).

use super::{Rank, count, sane};

/// The gauges of one engine by what they say.
struct Names {
    prefixes: &'static [&'static str],
    running: &'static str,
    waiting: &'static str,
    /// Any of these; a text without one is no load report.
    usage: &'static [&'static str],
    throughput: &'static str,
    cache_hit_rate: &'static str,
}

const VLLM: Names = Names {
    prefixes: &["vllm:"],
    running: "num_requests_running",
    waiting: "num_requests_waiting",
    usage: &["kv_cache_usage_perc", "gpu_cache_usage_perc"],
    throughput: "",
    cache_hit_rate: "gpu_prefix_cache_hit_rate",
};
const SGLANG: Names = Names {
    prefixes: &["sglang:", "sglang_"],
    running: "num_running_reqs",
    waiting: "num_queue_reqs",
    usage: &["token_usage"],
    throughput: "gen_throughput",
    cache_hit_rate: "cache_hit_rate",
};

/// Reads an answer of `/metrics`: counts and speeds are summed over its series, shares averaged.
#[must_use]
pub fn from_metrics(text: &str) -> Option<Rank> {
    [VLLM, SGLANG].iter().find_map(|names| read(text, names))
}

fn read(text: &str, names: &Names) -> Option<Rank> {
    let mut sums = [Sum::default(); 5];
    let [running, waiting, usage, throughput, hits] = &mut sums;
    for line in text.lines() {
        let Some(rest) = names.prefixes.iter().find_map(|prefix| line.strip_prefix(prefix)) else {
            continue;
        };
        let Some((name, value)) = sample(rest) else { continue };
        if names.usage.contains(&name) {
            usage.add(value);
        }
        for (wanted, sum) in [
            (names.running, &mut *running),
            (names.waiting, &mut *waiting),
            (names.throughput, &mut *throughput),
            (names.cache_hit_rate, &mut *hits),
        ] {
            if name == wanted {
                sum.add(value);
            }
        }
    }
    let token_usage = usage.mean()?;
    Some(Rank {
        dp_rank: 0,
        running: count(running.sum),
        waiting: count(waiting.sum),
        waiting_tokens: 0,
        throughput: sane(throughput.sum) as f32,
        token_usage: token_usage as f32,
        cache_hit_rate: hits.mean().unwrap_or(0.0) as f32,
    })
}

#[derive(Clone, Copy, Default)]
struct Sum {
    sum: f64,
    count: f64,
}

impl Sum {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1.0;
    }

    fn mean(self) -> Option<f64> {
        (self.count > 0.0).then(|| self.sum / self.count)
    }
}

/// Name and value of `name{label="…",…} value [timestamp]`.
fn sample(line: &str) -> Option<(&str, f64)> {
    let end = line.find(['{', ' ', '\t'])?;
    let (name, rest) = line.split_at_checked(end)?;
    let rest = if rest.starts_with('{') { after_labels(rest)? } else { rest };
    let value: f64 = rest.split_ascii_whitespace().next()?.parse().ok()?;
    Some((name, sane(value)))
}

/// What follows the closing brace; one inside of a label's value closes nothing.
fn after_labels(labels: &str) -> Option<&str> {
    let (mut quoted, mut escaped) = (false, false);
    for (at, byte) in labels.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'}' if !quoted => return labels.get(at + 1..),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_metrics_of_vllm() {
        let text = r#"# HELP vllm:num_requests_running Number of requests.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="org/m}\"x"} 3.0
vllm:num_requests_running{engine="1",model_name="org/m"} 2.0 1700000000000
vllm:num_requests_waiting{engine="0"} 7
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 100
vllm:kv_cache_usage_perc{engine="0"} 0.5
vllm:kv_cache_usage_perc{engine="1"} 0.25
vllm:gpu_prefix_cache_hit_rate 0.125
process_open_fds 12.0
"#;
        let rank = Rank {
            running: 5,
            waiting: 7,
            token_usage: 0.375,
            cache_hit_rate: 0.125,
            ..Rank::default()
        };
        assert_eq!(from_metrics(text), Some(rank));
        let older = text.replace("kv_cache_usage", "gpu_cache_usage");
        assert_eq!(from_metrics(&older), Some(rank));
    }

    #[test]
    fn the_metrics_of_sglang_with_either_prefix() {
        let text = "sglang:num_running_reqs{model_name=\"m\"} 4\nsglang:num_queue_reqs{a=\"b\"} 2\n\
                    sglang:gen_throughput 86.5\nsglang:cache_hit_rate 0.5\nsglang:token_usage 0.75\n";
        let rank = Rank {
            running: 4,
            waiting: 2,
            throughput: 86.5,
            token_usage: 0.75,
            cache_hit_rate: 0.5,
            ..Rank::default()
        };
        assert_eq!(from_metrics(text), Some(rank));
        assert_eq!(from_metrics(&text.replace("sglang:", "sglang_")), Some(rank));
    }

    #[test]
    fn without_the_use_of_the_cache_it_is_no_report() {
        for text in [
            "",
            "vllm:num_requests_running 3\n",
            "sglang:num_running_reqs 3\nsglang:token_usage\n",
            "sglang:token_usage{a=\"b 0.5\n",
            "sglang:token_usage high\n",
            "token_usage 0.5\n",
            "<html>Not a metric</html>",
        ] {
            assert_eq!(from_metrics(text), None, "{text}");
        }
    }

    #[test]
    fn a_gauge_that_is_no_number_counts_as_nothing() {
        let rank = from_metrics("vllm:kv_cache_usage_perc NaN\nvllm:num_requests_running +Inf\n");
        assert_eq!(rank, Some(Rank::default()));
    }

    proptest! {
        #[test]
        fn any_label_value_is_stepped_over(value in any::<String>()) {
            let escaped = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            // Other line ends inside of a value are not escaped by the format; lines end there.
            prop_assume!(!escaped.contains('\r'));
            let text = format!("sglang:token_usage{{m=\"{escaped}\"}} 0.5");
            prop_assert_eq!(from_metrics(&text).map(|rank| rank.token_usage), Some(0.5));
        }

        #[test]
        fn any_text_is_read_without_harm(text in "(vllm:|sglang:)?[a-z_{}\"\\\\=, 0-9\n]{0,60}") {
            let _ = from_metrics(&text);
        }
    }
}
