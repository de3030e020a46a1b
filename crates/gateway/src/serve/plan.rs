//! Plan: stream or buffer, decided before a byte of the body is read.

use std::sync::Arc;

use hyper::body::{Body as _, Incoming};
use smg_decide::body::{self as rules, Facts, Met, Path, Plan};
use smg_decide::place::Candidates;
use smg_wire::hint::{self, ROUTING_TOKENS};

use super::Call;
use crate::fleet::Group;
use crate::gateway::Gateway;

/// The plan by the nine rules; `None` on a route whose bodies never stream.
pub(super) fn made(call: Call<'_>, body: &Incoming) -> Option<Plan> {
    if !call.inference.streams {
        return None;
    }
    let (gw, headers) = (call.gw, &call.head.headers);
    let fleet = gw.fleet.load();
    let hinted = headers.get(ROUTING_TOKENS).is_some_and(|v| hint::is_valid(v.as_bytes()));
    Some(rules::plan(&Facts {
        external: fleet.external,
        model_selection: gw.limits.bodies.model_selection,
        key_override: gw.session.reads_rid(),
        needs_prompt: fleet.reads_prompt && !hinted,
        several_models: fleet.models.len() > 1,
        worker_mutates: fleet.mutates,
        content_length: body.size_hint().exact(),
        retries: gw.limits.retry.attempts > 1,
        max_buffered: gw.limits.bodies.max_buffered,
        ..Facts::default()
    }))
}

/// Holds a streamed plan against the fleet as it is now, and counts what comes of it: the workers to
/// choose from, or nobody, when the body has to be read after all.
pub(super) fn met(gw: &Gateway, plan: Option<Plan>) -> Option<Arc<Group>> {
    let fleet = gw.fleet.load();
    let group = fleet.models.values().next();
    let now = gw.clock.millis();
    let available = group
        .filter(|group| Candidates::new(&group.workers, &[]).at(now).available().next().is_some());
    let plan = plan.map(|plan| {
        plan.met(Met {
            worker_mutates: fleet.mutates,
            several_models: fleet.models.len() > 1,
            available: available.is_some(),
        })
    });
    count(gw, plan);
    available.filter(|_| plan.is_some_and(|plan| plan.path == Path::Streamed)).cloned()
}

/// Counts the deciding rule, once for each request on a route that may stream.
pub(super) fn count(gw: &Gateway, plan: Option<Plan>) {
    if let Some(plan) = plan {
        gw.meters.router.plan(plan);
    }
}
