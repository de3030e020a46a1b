//! Health checks of registered workers.

use std::sync::Arc;

use smg_decide::fleet::health::State;

use super::{Upstream, overload};
use crate::gateway::Gateway;
use crate::settings::HealthChecks;
use crate::upstream::{Pool, fetch};

/// One check: any 2xx within the timeout is good.
///
/// # Errors
/// In words for the operator.
pub(super) async fn probe(pool: &Pool, checks: &HealthChecks) -> Result<(), String> {
    let path = checks.endpoint.as_str();
    match fetch(pool, path, checks.timeout).await {
        Ok((status, _)) if status.is_success() => Ok(()),
        Ok((status, _)) => Err(format!("GET {path}: {status}")),
        Err(error) => Err(format!("GET {path}: {error}")),
    }
}

/// Checks a worker for as long as it is registered.
pub(super) async fn watch(gw: Arc<Gateway>, upstream: Arc<Upstream>, checks: HealthChecks) {
    loop {
        tokio::time::sleep(checks.interval).await;
        let probed = probe(&upstream.pool, &checks).await;
        let passed = probed.is_ok();
        // Nobody else writes it while this watch lives.
        let health = *upstream.lock_health();
        let next = health.after(passed, checks.thresholds);
        let (before, after) = (health.state, next.state);
        let ready = after == State::Ready;
        if ready && before != State::Ready {
            // First of all: no request is to find what was there before.
            super::renew::renew(&gw, &upstream).await;
        }
        *upstream.lock_health() = next;
        upstream.worker.set_healthy(ready);
        if !ready {
            overload::set(&gw, &upstream, false);
        }
        upstream.meters.checked(passed, ready);
        if before != after {
            let worker = &*upstream.worker.url;
            let why = probed.err().unwrap_or_default();
            tracing::warn!(
                worker,
                from = before.as_str(),
                to = after.as_str(),
                why,
                "worker health"
            );
        }
    }
}
