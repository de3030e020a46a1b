//! What to use instead of flags that this version does not have.

use super::{Complaint, Meant};
use crate::flags::{BackendChoice, OtherFlags};

/// Refuses those that were typed.
pub(super) fn refuse(flags: &OtherFlags) -> Meant<()> {
    for (typed, flag, why) in [
        (
            flags.disable_worker_overload_protection,
            "--disable-worker-overload-protection",
            "overload protection is off unless a --worker-overload-… flag asks for it; leave this out",
        ),
        (
            flags.worker_overload_shed,
            "--worker-overload-shed",
            "requests are always shed when every worker is overloaded; leave this out",
        ),
        (
            flags.enable_mesh,
            "--enable-mesh",
            "replicas tell each other nothing; use --policy session_affinity with --redis-url, or \
             consistent_hashing, which places alike on all of them",
        ),
        (
            flags.enable_wasm,
            "--enable-wasm",
            "modules are not run; let a proxy in front of the gateway do what they do",
        ),
        (
            flags.stream_request_bodies_over.is_some(),
            "--stream-request-bodies-over",
            "this flag was removed; --max-buffered-request-bytes says up to which size a body is \
             kept for retries, and larger ones stream",
        ),
    ] {
        if typed {
            return Err(Complaint(format!("{flag}: {why}")));
        }
    }
    Ok(())
}

/// Whether the workers are a vendor's.
pub(super) fn vendor(backend: BackendChoice) -> Meant<bool> {
    let without = |name| {
        let why = "not spoken by this version; expected sglang, vllm or openai";
        Err(Complaint::about("--backend", name, why))
    };
    match backend {
        BackendChoice::Sglang | BackendChoice::Vllm => Ok(false),
        BackendChoice::Openai => Ok(true),
        BackendChoice::Anthropic => without("anthropic"),
        BackendChoice::Tokenspeed => without("tokenspeed"),
    }
}
