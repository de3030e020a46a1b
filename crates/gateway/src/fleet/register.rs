//! Workers join the fleet when they answer, however late that is, and leave it when they are told to.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use serde_json::{Map, Value};
use tokio::time::Instant;
use uuid::Uuid;

use super::discover::discover;
use super::{Arrival, Card, Spec, Terms, Unwanted, Upstream, Wrong};
use crate::gateway::Gateway;
use crate::tasks;
use crate::upstream::{Origin, Pool};

/// Pause after the first failed attempt; it doubles up to `--worker-startup-check-interval`.
const FIRST_PAUSE: Duration = Duration::from_millis(250);

/// A worker that is to register.
#[derive(Debug)]
pub(crate) struct Newcomer {
    pub(crate) origin: Origin,
    pub(crate) spec: Spec,
}

/// Starts the registration of every configured worker on the current runtime; `ids` are theirs.
pub(crate) fn tend(gw: &Arc<Gateway>, ids: Vec<Uuid>) {
    for (id, origin) in ids.into_iter().zip(gw.settings.workers.clone()) {
        let external = gw.settings.startup.external;
        let spec = if external { Spec::vendors() } else { Spec::default() };
        let newcomer = Newcomer { origin, spec };
        let (joining, delay) = (Arc::clone(gw), gw.settings.startup.delay);
        let task = tasks::spawn("worker", async move {
            tokio::time::sleep(delay).await;
            join(&joining, id, newcomer).await;
        });
        gw.fleet.registered_by(id, task.abort_handle());
    }
}

/// Accepts a worker and starts its registration on the control runtime.
///
/// # Errors
/// When it is known already, or there are too many.
pub(crate) fn enlist(gw: &Arc<Gateway>, newcomer: Newcomer) -> Result<Uuid, Unwanted> {
    let id = gw.fleet.accept(&newcomer.origin)?;
    let joining = Arc::clone(gw);
    let join = async move { join(&joining, id, newcomer).await };
    let task = tasks::spawn_on(&gw.control, "worker", join);
    gw.fleet.registered_by(id, task.abort_handle());
    Ok(id)
}

/// Registers one worker as soon as it answers.
async fn join(gw: &Arc<Gateway>, id: Uuid, newcomer: Newcomer) {
    let Newcomer { origin, spec } = newcomer;
    let (settings, url) = (&gw.settings, origin.url().to_owned());
    let connections = spec.connections(&settings.connections);
    let open = gw.meters.workers.connections.clone();
    let pool = Pool::new(origin, connections, Arc::clone(&gw.dial), open);
    pool.bear(bears(gw, &spec));
    let pool = Arc::new(pool);
    let give_up = Instant::now() + settings.startup.timeout;
    let mut pause = FIRST_PAUSE.min(settings.startup.interval);
    let checks = spec.checks(settings.health.as_ref());
    let card = loop {
        if spec.is_external() {
            break Card::external(spec.models.clone().unwrap_or_default());
        }
        let met = async {
            super::version::resolve(&pool, &spec, settings).await?;
            discover(&pool, checks.as_ref(), &spec).await
        };
        match met.await {
            Ok(card) => break card,
            Err(why) if Instant::now() + pause >= give_up => {
                tracing::error!(worker = url, why, "worker never answered; giving up on it");
                if let Some(pending) = gw.fleet.give_up(id) {
                    gw.meters.discovery.failed(pending.source);
                }
                return;
            }
            Err(why) => {
                tracing::warn!(worker = url, why, retry_in = ?pause, "worker is not ready yet");
                gw.fleet.not_yet(id, &why);
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(settings.startup.interval);
            }
        }
    };
    let card = card.corrected(&spec);
    let (models, runtime) = (card.models.join(", "), card.runtime);
    let ranks = if settings.startup.dp_aware { card.ranks() } else { None };
    let terms = Terms::of(spec, &card, settings);
    let arrival = Arrival { id, pool, card, terms, ranks };
    for upstream in gw.fleet.add(arrival, &gw.meters) {
        tracing::info!(worker = &*upstream.worker.url, models, runtime, "worker registered");
        begin(gw, &upstream);
    }
}

/// Starts all that goes on for as long as a worker is registered.
pub(super) fn begin(gw: &Arc<Gateway>, upstream: &Arc<Upstream>) {
    if !upstream.card.load().is_external() {
        let loads = super::loads::watch(Arc::clone(gw), Arc::clone(upstream), gw.settings.loads);
        let loads = tasks::spawn_on(&gw.control, "loads", loads);
        upstream.tended_for_good_by(loads.abort_handle());
    }
    look_after(gw, upstream);
}

/// What a worker is sent as `Authorization`: the gateway's own key is no vendor's business.
fn bears(gw: &Gateway, spec: &Spec) -> Option<HeaderValue> {
    let own = spec.api_key.clone();
    if spec.is_external() { own } else { gw.access.for_worker(own) }
}

/// Starts what goes on by a worker's terms, in place of what went on so far.
fn look_after(gw: &Arc<Gateway>, upstream: &Arc<Upstream>) {
    let reap = tasks::spawn_on(&gw.control, "pool", reap(Arc::clone(&upstream.pool)));
    let mut held = vec![reap.abort_handle()];
    match upstream.terms.load().checks.clone() {
        Some(checks) => {
            let watch = super::health::watch(Arc::clone(gw), Arc::clone(upstream), checks);
            held.push(tasks::spawn_on(&gw.control, "health", watch).abort_handle());
        }
        None => upstream.trust(),
    }
    upstream.tended_by(held);
}

/// Changes what an operator has said of a worker: `anew` forgets all that was said before. `None`
/// when it is not registered.
pub(crate) fn change(
    gw: &Arc<Gateway>,
    id: Uuid,
    fields: Map<String, Value>,
    anew: bool,
) -> Option<Result<Arc<Upstream>, Wrong>> {
    let changed = gw.fleet.amend(id, &gw.meters, |upstream| {
        let spec = &upstream.terms.load().spec;
        let spec = if anew { spec.replaced(fields)? } else { spec.patched(fields)? };
        let card = upstream.card.load();
        if spec.is_external() != card.is_external() {
            return Err("'runtime_type' is settled at registration: remove the worker and add it \
                        again"
                .to_owned());
        }
        if spec.http2().is_some_and(|http2| http2 != upstream.pool.is_http2()) {
            return Err(
                "'http_pool.http2' is settled at registration: remove the worker and add it \
                        again"
                    .to_owned(),
            );
        }
        Ok(Terms::of(spec, &card, &gw.settings))
    })?;
    if let Ok(upstream) = &changed {
        upstream.pool.bear(bears(gw, &upstream.terms.load().spec));
        tracing::info!(worker = &*upstream.worker.url, "worker changed");
        look_after(gw, upstream);
    }
    Some(changed)
}

/// Takes a worker out of the fleet at once; what is in flight there ends in its own time. Returns
/// its address, `None` when there is no such worker.
pub(crate) fn remove(gw: &Arc<Gateway>, id: Uuid) -> Option<String> {
    if let Some(pending) = gw.fleet.give_up(id) {
        pending.end();
        return Some(pending.url.into());
    }
    let upstream = gw.fleet.take_out(id, &gw.meters)?;
    let url = upstream.worker.url.to_string();
    let in_flight = upstream.worker.in_flight();
    tracing::info!(worker = url, in_flight, "worker removed");
    see_off(gw, upstream);
    Some(url)
}

/// Has what a worker had end with its last request; it is out of the fleet already.
pub(super) fn see_off(gw: &Arc<Gateway>, upstream: Arc<Upstream>) {
    let retiring = Arc::clone(gw);
    tasks::spawn_on(&gw.control, "retire", async move { retire(&retiring, &upstream).await });
}

/// Ends what a removed worker has, once its last request has ended.
async fn retire(gw: &Gateway, upstream: &Upstream) {
    if !upstream.worker.leave() {
        upstream.drained.notified().await;
    }
    upstream.tended_no_more();
    // Ranks share one pool.
    let fleet = gw.fleet.load();
    if !fleet.upstreams.iter().any(|other| Arc::ptr_eq(&other.pool, &upstream.pool)) {
        upstream.pool.close();
    }
    gw.meters.workers.retire(&upstream.worker.url);
    tracing::info!(worker = &*upstream.worker.url, "worker drained");
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
