//! What an engine says about itself: its model, its settings, its load. Names and shapes are the
//! ones SGLang uses, since that is what gateways read.

use std::fmt::Write as _;
use std::sync::atomic::Ordering::Relaxed;

use serde_json::{Value, json};

use super::{Core, Counts};

impl Core {
    pub(super) fn models(&self) -> Value {
        let profile = &self.profile;
        json!({"object": "list", "data": [{
            "id": profile.model,
            "object": "model",
            "created": 0,
            "owned_by": "sglang",
            "root": profile.model,
            "max_model_len": profile.context_tokens,
        }]})
    }

    pub(super) fn server_info(&self) -> Value {
        let profile = &self.profile;
        json!({
            "model_path": profile.model,
            "served_model_name": profile.model,
            "tp_size": 1,
            "dp_size": 1,
            "version": concat!("lab-", env!("CARGO_PKG_VERSION")),
            "is_embedding": false,
            "context_length": profile.context_tokens,
            "page_size": profile.block_tokens,
            "max_total_tokens": profile.blocks * profile.block_tokens,
            "max_running_requests": profile.slots,
        })
    }

    pub(super) fn model_info(&self) -> Value {
        json!({
            "model_path": self.profile.model,
            "tokenizer_path": self.profile.model,
            "is_generation": true,
            "has_image_understanding": false,
            "has_audio_understanding": false,
        })
    }

    pub(super) fn loads(&self) -> Value {
        let profile = &self.profile;
        let load = self.load();
        let (running, waiting) = (load.counts.running, load.counts.waiting);
        json!({
            "version": concat!("lab-", env!("CARGO_PKG_VERSION")),
            "dp_rank_count": 1,
            "loads": [{
                "dp_rank": 0,
                "num_running_reqs": running,
                "num_waiting_reqs": waiting,
                "num_waiting_uncached_tokens": load.waiting_uncached,
                "num_total_reqs": running + waiting,
                "num_used_tokens": load.used_tokens,
                "max_total_num_tokens": profile.blocks * profile.block_tokens,
                "token_usage": load.usage,
                "gen_throughput": load.throughput,
                "cache_hit_rate": load.hit_rate,
                "utilization": ratio(running, profile.slots),
                "max_running_requests": profile.slots,
            }],
            "aggregate": {
                "total_running_reqs": running,
                "total_waiting_reqs": waiting,
                "total_reqs": running + waiting,
                "avg_token_usage": load.usage,
                "avg_throughput": load.throughput,
            },
        })
    }

    pub(super) fn metrics(&self) -> String {
        let load = self.load();
        let counts = load.counts;
        let label = escape(&self.profile.model);
        let mut text = String::new();
        let mut sample = |kind: &str, name: &str, value: &dyn std::fmt::Display| {
            // Writing to a string cannot fail.
            let _ = write!(
                text,
                "# TYPE sglang:{name} {kind}\nsglang:{name}{{model_name=\"{label}\"}} {value}\n"
            );
        };
        sample("gauge", "num_running_reqs", &counts.running);
        sample("gauge", "num_queue_reqs", &counts.waiting);
        sample("gauge", "num_used_tokens", &load.used_tokens);
        sample("gauge", "token_usage", &load.usage);
        sample("gauge", "cache_hit_rate", &load.hit_rate);
        sample("gauge", "gen_throughput", &load.throughput);
        sample("counter", "num_requests_total", &counts.requests);
        sample("counter", "num_aborted_requests_total", &counts.aborted);
        sample("counter", "prompt_tokens_total", &counts.prompt_tokens);
        sample("counter", "cached_tokens_total", &counts.cached_tokens);
        sample("counter", "generation_tokens_total", &counts.generated_tokens);
        sample("counter", "evicted_blocks_total", &counts.evicted_blocks);
        text
    }

    fn load(&self) -> Load {
        let counts = self.counts();
        // The prompt count is raised first, so a reader between the two sees a share below one.
        let hit_rate = share(counts.cached_tokens, counts.prompt_tokens);
        let decoding = self.tally.decoding.load(Relaxed);
        let decoding = u32::try_from(decoding).unwrap_or(u32::MAX);
        Load {
            counts,
            waiting_uncached: self.tally.waiting_uncached.load(Relaxed),
            used_tokens: counts.pinned_blocks * self.profile.block_tokens,
            usage: ratio(counts.pinned_blocks, self.profile.blocks),
            throughput: f64::from(decoding) * self.profile.decode_rate,
            hit_rate,
        }
    }
}

struct Load {
    counts: Counts,
    waiting_uncached: usize,
    /// Held by running requests; what is merely cached can be had at any time.
    used_tokens: usize,
    usage: f64,
    throughput: f64,
    hit_rate: f64,
}

fn ratio(part: usize, whole: usize) -> f64 {
    share(part as u64, whole as u64)
}

/// `part` of `whole`, 0 of nothing.
#[expect(clippy::cast_precision_loss, reason = "a share needs no 53 bits")]
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    part as f64 / whole as f64
}

fn escape(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
