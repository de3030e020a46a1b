//! The request path, from a body that is about to be read to an answer that is about to be
//! relayed. Read it from top to bottom; each phase has the name that docs/architecture.md gives it.

mod attempt;
mod attempts;
mod deliver;
mod plan;
mod prompt;
mod refusals;
mod said;
mod stored;
mod strategy;

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, StatusCode, request};
use smg_decide::body::Path;
use smg_wire::error::Refusal;
use smg_wire::json::{Bad, Fields};
use smg_wire::reslice::selects;
use smg_wire::route::{Carries, Dialect, Inference, Route};
use tokio::time::Instant;

use self::attempt::{Content, Sending};
use self::attempts::{attempts, once};
use self::deliver::Asked;
pub(crate) use self::deliver::deliver;
use self::refusals::{bad_body, counted, unavailable};
use self::said::Said;
use crate::body::{Begun, Flow};
use crate::edge::{Arriving, Reply, closing, refuse};
use crate::fleet::{Fleet, Group};
use crate::gateway::Gateway;
use crate::session::{Round, Told, Way};
use crate::settings::PolicyName;
use crate::telemetry::ModelMeters;
use crate::{admission, body};

/// A request, but for its body.
#[derive(Clone, Copy)]
struct Call<'a> {
    gw: &'a Gateway,
    route: Route,
    inference: &'a Inference,
    head: &'a request::Parts,
    /// Told whether it asks for a stream.
    asked: &'a Asked,
    /// The policy that the client asks for.
    wanted: Option<PolicyName>,
}

/// Serves an inference request.
async fn serve(
    gw: &Arc<Gateway>,
    (route, inference): (Route, &Inference),
    request: Request<Arriving>,
    asked: &Asked,
) -> Reply {
    let arrived = Instant::now();
    // Counted under no model's name until one that is served is known.
    let mut meters = Arc::clone(&gw.meters.router.no_model);
    let (head, body) = request.into_parts();
    let call = Call { gw, route, inference, head: &head, asked, wanted: None };
    let mut unread = false;
    let reply = match carry_out(call, body, &mut meters, &mut unread).await {
        Ok(reply) => reply,
        Err(refusal) => {
            tracing::debug!(code = refusal.code, why = &*refusal.message, "refused");
            let reply = refuse(&refusal, inference.dialect);
            if unread || body::is_unread(&refusal) { closing(reply) } else { reply }
        }
    };
    meters.head(route, reply.status().as_u16(), arrived.elapsed());
    reply
}

/// Plan, then one of two ways. `unread` is set for a refusal that comes while the body does, whatever
/// it is for: its client has to be heard out to read it.
async fn carry_out(
    call: Call<'_>,
    body: Arriving,
    meters: &mut Arc<ModelMeters>,
    unread: &mut bool,
) -> Result<Reply, Refusal> {
    let gw = call.gw;
    let call = Call { wanted: strategy::wanted(gw, &call.head.headers)?, ..call };
    let plan = plan::made(call, &body);
    let mut body = Begun::unread(body);
    if let Some(plan) = plan.filter(|plan| plan.path != Path::Buffered) {
        if plan.path == Path::Peeked {
            body = plan::look(call, body.rest).await?;
        }
        let known = body.known();
        let fields = Fields::read(&known, &[]).unwrap_or_default();
        let permit = admission::enter(gw.admission.as_ref()).await;
        *unread = permit.is_err() && body.is_coming();
        let permit = permit?;
        if let Some(group) = plan::met(call, plan, &fields) {
            let reply = streamed(call, &group, (body, &fields), meters).await;
            *unread = reply.is_err();
            return Ok(reply?.map(|body| body.permitted(permit)));
        }
        // Whoever uploads holds no permit.
    } else {
        plan::count(gw, plan);
    }
    let body = body::take_decoded(body, &call.head.headers, &gw.limits.upload).await?;
    let permit = admission::enter(gw.admission.as_ref()).await?;
    let reply = buffered(call, body, meters).await?;
    Ok(reply.map(|body| body.permitted(permit)))
}

/// The body goes to a worker as it arrives, so the headers choose which, with what is known of the
/// body's beginning, once.
async fn streamed(
    call: Call<'_>,
    group: &Group,
    (body, fields): (Begun, &Fields<'_>),
    meters: &mut Arc<ModelMeters>,
) -> Result<Reply, Refusal> {
    let gw = call.gw;
    let named = fields.model().is_ok_and(|model| model.is_some());
    *meters = Arc::clone(if named { &group.meters } else { &gw.meters.router.unread_model });
    meters.request(call.route, fields.stream());
    let rid = fields.rid(call.inference.rid);
    let opening = body.opening_messages().map(|messages| gw.session.opening(messages));
    let prompt = prompt::wanted(&*group.policy, call.inference, call.head, fields);
    let told = Told {
        rid: rid.as_deref(),
        opening: opening.as_deref(),
        prompt: prompt::as_asked(&prompt),
    };
    let asking = gw.session.asking(group, &call.head.headers, told);
    let lease = gw.session.choose(group, &asking, &Round::default(), &gw.meters.sticky).await;
    let opening = opening.clone().filter(|_| asking.has_other_key());
    let content = Content::flowing(Flow::new(body.start, body.rest, gw.limits.flow));
    call.asked.note(fields.stream());
    // Nobody read the whole of it, so its answer goes as it comes.
    let mut sending = Sending { call, content, stream: fields.stream(), sliced: false, opening };
    once(&mut sending, group, lease, asking.way).await
}

/// The body is in hand: it is read, and may be sent as often as retries allow.
async fn buffered(
    call: Call<'_>,
    body: Bytes,
    meters: &mut Arc<ModelMeters>,
) -> Result<Reply, Refusal> {
    let Call { gw, inference, head, .. } = call;
    let said = Said::read(&body, inference, &head.headers).map_err(bad_body)?;
    let stream = said.stream();
    call.asked.note(stream);
    let named = said.model().map_err(bad_body)?;
    // By the name that the client uses, whatever that stands for.
    let sliced = stream && call.route == Route::Chat && named.as_deref().is_some_and(selects);
    let alias = named.as_deref().and_then(|name| gw.settings.aliases.get(name));
    let outgoing = said.outgoing(&body, alias.map(String::as_str), &gw.limits.upload);
    let found = match inference.carries {
        Carries::ResponseId => stored::find(gw, head.uri.path()).await,
        _ => model(gw, &gw.fleet.load(), alias.map(Cow::from).or(named)).map(|it| (it, None)),
    };
    if let Ok((group, _)) = &found {
        *meters = Arc::clone(&group.meters);
    }
    meters.request(call.route, stream);
    let (group, home) = found?;
    let group = gw.fleet.under(group, call.wanted, &gw.meters);
    let way = match home {
        Some(worker) => Way::Home(worker),
        None => way(gw, inference, &group, &said).await?,
    };
    let rid = said.fields.rid(inference.rid);
    let prompt = prompt::wanted(&*group.policy, inference, head, &said.fields);
    let told = Told { rid: rid.as_deref(), prompt: prompt::as_asked(&prompt), ..Told::default() };
    let mut asking = gw.session.asking(&group, &head.headers, told);
    asking.way = way;
    let opening = plan::opening(gw, &body).filter(|_| asking.has_other_key());
    if gw.limits.retry.attempts > 1 {
        let mut sending =
            Sending { call, content: Content::Kept(outgoing), stream, sliced, opening };
        return attempts(&mut sending, group, &asking).await;
    }
    let lease = gw.session.choose(&group, &asking, &Round::default(), &gw.meters.sticky).await;
    // Nothing is read again, so what was read goes before the body does (001, "Early release").
    drop(asking);
    drop((rid, prompt, said));
    drop(body);
    gw.meters.router.released_early.inc_by(outgoing.len() as u64);
    let mut sending = Sending { call, content: Content::Once(outgoing), stream, sliced, opening };
    once(&mut sending, &group, lease, way).await
}

/// What decides where a request to this model goes.
async fn way(
    gw: &Gateway,
    inference: &Inference,
    group: &Group,
    said: &Said<'_>,
) -> Result<Way, Refusal> {
    let responses = inference.dialect == Dialect::Responses;
    match said.fields.previous_response().filter(|_| responses) {
        Some(id) => stored::previous(gw, group, &id).await.map(Way::Home),
        None if inference.anywhere => Ok(Way::Anywhere),
        None if group.external => Ok(Way::Placed),
        None => Ok(Way::Sticky),
    }
}

/// The workers of the model a request names; without a name, of the only model there is.
fn model(gw: &Gateway, fleet: &Fleet, name: Option<Cow<'_, str>>) -> Result<Arc<Group>, Refusal> {
    let group = match &name {
        Some(name) => fleet.group(name),
        None if fleet.models.len() > 1 => return Err(bad_body(Bad::Missing("model"))),
        None => fleet.models.values().next().or(fleet.anything.as_ref()),
    };
    if let Some(group) = group {
        return Ok(Arc::clone(group));
    }
    let pending = gw.fleet.pending();
    let mut refusal = if pending > 0 {
        let what = format!("{pending} workers have not answered yet; the model may be theirs.");
        unavailable(what)
    } else {
        let named = name.map_or_else(String::new, |name| format!(" '{name}'"));
        let what = format!("No worker serves the model{named}.");
        Refusal {
            param: Some("model"),
            ..Refusal::new(StatusCode::NOT_FOUND, "model_not_found", what)
        }
    };
    refusal.param = Some("model");
    Err(counted(gw, refusal))
}
