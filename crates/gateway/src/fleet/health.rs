//! Health checks of registered workers.

use std::sync::Arc;

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
        let (before, after) = {
            let mut health = upstream.lock_health();
            let before = health.state;
            *health = health.after(passed, checks.thresholds);
            (before, health.state)
        };
        let ready = after == smg_decide::fleet::health::State::Ready;
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
