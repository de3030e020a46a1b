//! Vetoes of overload protection, and how many there are.

use super::Upstream;
use crate::gateway::Gateway;

/// Keeps requests away from a worker, or no longer.
pub(super) fn set(gw: &Gateway, upstream: &Upstream, vetoed: bool) {
    let worker = &upstream.worker;
    if worker.vetoed() == vetoed {
        return;
    }
    worker.set_vetoed(vetoed);
    tracing::warn!(worker = &*worker.url, overloaded = vetoed, "worker overload");
    let fleet = gw.fleet.load();
    let card = upstream.card.load();
    for group in card.models.iter().filter_map(|model| fleet.models.get(model)) {
        let count = group.workers.iter().filter(|worker| worker.vetoed()).count();
        gw.meters.overload.set_vetoed(&group.model, count);
    }
}
