//! The policy that a client wants for one request (`routing-strategy`, 004).

use http::{HeaderMap, StatusCode};
use smg_decide::strategy;
use smg_wire::error::Refusal;
use smg_wire::header::STRATEGY;

use crate::gateway::Gateway;
use crate::settings::PolicyName;

/// The policy that these headers ask for, if they do and clients may ask. Who repeats the header means
/// the last one.
pub(super) fn wanted(gw: &Gateway, headers: &HeaderMap) -> Result<Option<PolicyName>, Refusal> {
    let value = headers.get_all(STRATEGY).iter().next_back();
    let Some(value) = value.filter(|_| !gw.settings.affinity.lock_policy) else { return Ok(None) };
    // The index of cache_aware only ever grows without its sweep (000, "Idle Eviction").
    let swept = gw.settings.index_sweep.is_some();
    let offered = PolicyName::ALL.into_iter().filter(|of| swept || *of != PolicyName::CacheAware);
    let names: Vec<_> = offered.map(PolicyName::as_str).collect();
    match strategy::policy(value.as_bytes(), &names) {
        Ok(name) => Ok(name.and_then(PolicyName::named)),
        Err(strategy::Unknown) => {
            let accepted = strategy::accepted(&names);
            let what =
                format!("The header routing-strategy names no strategy; accepted: {accepted}.");
            Err(Refusal::new(StatusCode::BAD_REQUEST, "invalid_routing_strategy", what))
        }
    }
}
