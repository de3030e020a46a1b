//! Plan: stream or buffer, decided before a byte of the body is read.

use http::Request;
use hyper::body::{Body as _, Incoming};
use smg_decide::body::{self as rules, Facts};
use smg_wire::hint::{self, ROUTING_TOKENS};
use smg_wire::route::Inference;

use crate::fleet::Fleet;
use crate::gateway::Gateway;

/// Counts the deciding rule of every request that reaches a route that may stream; for now
/// every body is buffered whatever the deciding rule.
pub(super) fn count(
    gw: &Gateway,
    fleet: &Fleet,
    inference: &Inference,
    request: &Request<Incoming>,
) {
    if !inference.streams {
        return;
    }
    let hinted =
        request.headers().get(ROUTING_TOKENS).is_some_and(|v| hint::is_valid(v.as_bytes()));
    let facts = Facts {
        key_override: gw.session.reads_rid(),
        needs_prompt: fleet.reads_prompt && !hinted,
        several_models: fleet.models.len() > 1,
        content_length: request.body().size_hint().exact(),
        retries: gw.limits.retry.attempts > 1,
        max_buffered: gw.limits.bodies.max_buffered,
        ..Facts::default()
    };
    let reason = rules::plan(&facts).reason;
    gw.meters.router.plan(rules::Plan { path: rules::Path::Buffered, reason });
}
