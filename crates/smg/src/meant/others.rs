//! What to use instead of flags that this version does not have.

use super::{Complaint, Meant};
use crate::flags::OtherFlags;

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
            "replicas share no pins; send each conversation to the same replica, or use --policy \
             consistent_hashing, which places alike on all of them",
        ),
        (
            flags.enable_wasm,
            "--enable-wasm",
            "modules are not run; let a proxy in front of the gateway do what they do",
        ),
    ] {
        if typed {
            return Err(Complaint(format!("{flag}: {why}")));
        }
    }
    Ok(())
}
