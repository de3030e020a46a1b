//! Static workers join the fleet when they answer, however late that is.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::discover::discover;
use crate::gateway::Gateway;
use crate::settings::Settings;
use crate::tasks;
use crate::upstream::{Dial, Origin, Pool};

/// Pause after the first failed attempt; it doubles up to `--worker-startup-check-interval`.
const FIRST_PAUSE: Duration = Duration::from_millis(250);

/// Starts the registration of every configured worker on the current runtime.
pub(crate) fn tend(gw: &Arc<Gateway>, settings: &Arc<Settings>, dial: &Arc<dyn Dial>) {
    for origin in &settings.workers {
        let (gw, settings) = (Arc::clone(gw), Arc::clone(settings));
        let (origin, dial) = (origin.clone(), Arc::clone(dial));
        tasks::spawn("worker", async move { join(&gw, &settings, origin, dial).await });
    }
}

/// Registers one worker, then checks its health for ever.
async fn join(gw: &Arc<Gateway>, settings: &Settings, origin: Origin, dial: Arc<dyn Dial>) {
    let url = origin.url().to_owned();
    let pool = Arc::new(Pool::new(origin, settings.connections, dial));
    let give_up = Instant::now() + settings.startup.delay + settings.startup.timeout;
    tokio::time::sleep(settings.startup.delay).await;
    let mut pause = FIRST_PAUSE.min(settings.startup.interval);
    let card = loop {
        match discover(&pool, settings.health.as_ref()).await {
            Ok(card) => break card,
            Err(why) if Instant::now() + pause >= give_up => {
                tracing::error!(worker = url, why, "worker never answered; giving up on it");
                gw.fleet.give_up_one();
                return;
            }
            Err(why) => {
                tracing::warn!(worker = url, why, retry_in = ?pause, "worker is not ready yet");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(settings.startup.interval);
            }
        }
    };
    let models = card.models.join(", ");
    let runtime = card.runtime;
    let upstream = gw.fleet.add(pool, card, &gw.meters);
    tracing::info!(worker = url, models, runtime, "worker registered");
    tasks::spawn("pool", reap(Arc::clone(&upstream.pool)));
    tasks::spawn(
        "loads",
        super::loads::watch(Arc::clone(gw), Arc::clone(&upstream), settings.loads),
    );
    if let Some(checks) = &settings.health {
        super::health::watch(Arc::clone(gw), upstream, checks.clone()).await;
    }
}

/// Closes idle connections on time, so that the worker's own keep-alive timeout never does it first
/// (001, "Connection Pools").
async fn reap(pool: Arc<Pool>) {
    let Some(timeout) = pool.idle_timeout() else { return };
    let pause = (timeout / 8).clamp(Duration::from_millis(50), Duration::from_secs(1));
    loop {
        tokio::time::sleep(pause).await;
        pool.reap();
    }
}
