//! The shared store as it is configured, and the tasks that keep it up.

use std::sync::Arc;

use tokio::runtime::Handle;

use super::store::Shared;
use crate::clock::Clock;
use crate::settings::SharedStore;
use crate::telemetry::StoreMeters;

/// Opens a store; its tasks run on `control`. Nobody waits for it to be there.
///
/// # Errors
/// When the URL cannot be one, in words that do not repeat it: it may hold a password.
#[cfg(feature = "redis")]
pub(crate) fn share(
    settings: &SharedStore,
    meters: StoreMeters,
    clock: Clock,
    control: &Handle,
) -> Result<Arc<Shared>, String> {
    use super::store::Parts;
    use super::store::redis::Redis;
    use crate::tasks;

    let copies = Arc::default();
    let redis = Arc::new(Redis::new(settings.url.reveal(), Arc::clone(&copies))?);
    let (shared, renewals) = Shared::new(Parts {
        store: Arc::<Redis>::clone(&redis),
        copies,
        secret: settings.secret.as_ref().map(|secret| secret.reveal().as_bytes().into()),
        deadline: settings.timeout,
        meters,
        clock,
    });
    tasks::spawn_on(control, "store", async move { redis.keep().await });
    let renewing = Arc::clone(&shared);
    tasks::spawn_on(control, "renewals", async move { renewing.renew(renewals).await });
    Ok(shared)
}

/// This build knows no store.
///
/// # Errors
/// Always.
#[cfg(not(feature = "redis"))]
pub(crate) fn share(
    _: &SharedStore,
    _: StoreMeters,
    _: Clock,
    _: &Handle,
) -> Result<Arc<Shared>, String> {
    Err("this build has no Redis support (the feature `redis`)".to_owned())
}

/// Whether there can be a store at this URL.
///
/// # Errors
/// Why not, in words that do not repeat the URL.
#[cfg(feature = "redis")]
pub fn try_out(url: &str) -> Result<(), String> {
    super::store::redis::Redis::new(url, Arc::default()).map(|_| ())
}

/// This build knows no store.
///
/// # Errors
/// Always.
#[cfg(not(feature = "redis"))]
pub fn try_out(_: &str) -> Result<(), String> {
    Err("this build has no Redis support (the feature `redis`)".to_owned())
}
