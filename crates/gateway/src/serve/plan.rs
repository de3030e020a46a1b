//! Plan: stream or buffer, decided before a byte of the body is read.

use std::sync::Arc;

use http_body::Body as _;
use smg_decide::body::{self as rules, Facts, Met, Path, Plan};
use smg_decide::place::Candidates;
use smg_wire::coding;
use smg_wire::error::Refusal;
use smg_wire::hint::{self, ROUTING_TOKENS};
use smg_wire::json::Fields;
use smg_wire::peek::{Field, Peek};

use super::Call;
use super::refusals::failed;
use crate::body::{Begun, Look, Unseen};
use crate::edge::Arriving;
use crate::fleet::Group;
use crate::gateway::Gateway;

/// The plan by the nine rules; `None` on a route whose bodies never stream.
pub(super) fn made(call: Call<'_>, body: &Arriving) -> Option<Plan> {
    if !call.inference.streams {
        return None;
    }
    let (gw, headers) = (call.gw, &call.head.headers);
    let fleet = gw.fleet.load();
    let (reads, whole) = gw.fleet.reads_prompt(call.wanted);
    let hinted = headers.get(ROUTING_TOKENS).is_some_and(|v| hint::is_valid(v.as_bytes()));
    Some(rules::plan(&Facts {
        external: fleet.external,
        model_selection: gw.limits.bodies.model_selection,
        key_override: gw.session.reads_rid(),
        needs_prompt: reads && !hinted,
        several_models: fleet.models.len() > 1,
        worker_mutates: fleet.mutates,
        content_length: body.size_hint().exact(),
        retries: gw.limits.retry.attempts > 1,
        max_buffered: gw.limits.bodies.max_buffered,
        peek: gw.limits.bodies.peek > 0 && coding::of(headers) == Ok(None),
        needs_whole_prompt: whole,
        ..Facts::default()
    }))
}

/// Looks at the beginning of a body, no further than it takes to know what decides.
pub(super) async fn look(call: Call<'_>, body: Arriving) -> Result<Begun, Refusal> {
    let gw = call.gw;
    let whose =
        if gw.session.reads_rid() { &[Field::Model, Field::Rid][..] } else { &[Field::Model] };
    // Nobody can say how much of a prompt is enough.
    let wanted = if gw.fleet.reads_prompt(call.wanted).0 { &[] } else { whose };
    let look = Look { most: gw.limits.bodies.peek, wanted, stall: gw.limits.flow.stall };
    let begun = Begun::look(body, look, &gw.limits.upload).await;
    begun.map_err(|unseen| match unseen {
        Unseen::Broken(fault) => failed(fault),
        Unseen::Refused(refusal) => refusal,
    })
}

/// What stands for the messages a body opens with, if its conversation may come to a point where
/// only they are seen of its key.
pub(super) fn opening(gw: &Gateway, body: &[u8]) -> Option<String> {
    let most = gw.limits.bodies.peek;
    if most == 0 || !gw.session.reads_rid() {
        return None;
    }
    let beginning = body.get(..most).unwrap_or(body);
    let mut peek = Peek::default();
    peek.read(beginning);
    // As it is seen of a longer body that is peeked.
    let begun = || peek.opening_begun(beginning).filter(|_| beginning.len() == most);
    let messages = beginning.get(peek.opening_messages(beginning).or_else(begun)?)?;
    Some(gw.session.opening(messages))
}

/// Holds a streamed plan against the fleet as it is now, and counts what comes of it: the workers to
/// choose from, or nobody, when the body has to be read after all.
pub(super) fn met(call: Call<'_>, plan: Plan, fields: &Fields<'_>) -> Option<Arc<Group>> {
    let gw = call.gw;
    let fleet = gw.fleet.load();
    let said = fields.model();
    let named = said.as_ref().ok().and_then(|name| fleet.models.get(name.as_deref()?));
    let unknown = named.is_none();
    // Whoever uses an alias has the body rewritten, which takes all of it; so does a refusal.
    let strange = unknown && said != Ok(None);
    let group = named.or_else(|| fleet.models.values().next());
    let now = gw.clock.millis();
    let available = group
        .filter(|group| Candidates::new(&group.workers, &[]).at(now).available().next().is_some());
    let plan = plan.met(Met {
        worker_mutates: fleet.mutates,
        several_models: strange || (unknown && fleet.models.len() > 1),
        model_selection: unknown && gw.limits.bodies.model_selection,
        available: available.is_some(),
    });
    count(gw, Some(plan));
    let group = available.filter(|_| plan.path != Path::Buffered).cloned()?;
    Some(gw.fleet.under(group, call.wanted, &gw.meters))
}

/// Counts the deciding rule, once for each request on a route that may stream.
pub(super) fn count(gw: &Gateway, plan: Option<Plan>) {
    if let Some(plan) = plan {
        gw.meters.router.plan(plan);
    }
}
