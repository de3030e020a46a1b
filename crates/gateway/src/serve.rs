//! The request path, from a body that is about to be read to an answer that is about to be
//! relayed. Read it from top to bottom; each phase has the name that docs/architecture.md gives it.

mod attempt;
mod deliver;
mod plan;
mod prompt;
mod refusals;
mod said;
mod stored;
mod strategy;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, request};
use hyper::body::Incoming;
use smg_decide::body::Path;
use smg_decide::place::Candidates;
use smg_decide::retry::{Attempts, Chances, Sent, Verdict};
use smg_wire::error::Refusal;
use smg_wire::header::{ROUTED_WORKER, SESSION_ID};
use smg_wire::json::{Bad, Fields};
use smg_wire::reslice::selects;
use smg_wire::route::{Carries, Dialect, Inference, Route};
use tokio::time::Instant;

use self::attempt::{Content, Sending, attempt};
use self::deliver::Asked;
pub(crate) use self::deliver::deliver;
use self::refusals::{bad_body, failed, shed, unavailable};
use self::said::Said;
use crate::body::{Begun, Flow};
use crate::edge::{Reply, closing, refuse};
use crate::fleet::{Fleet, Group, Upstream};
use crate::gateway::Gateway;
use crate::session::{Asking, Lease, Round, Told, Way};
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
    request: Request<Incoming>,
    asked: &Asked,
) -> Reply {
    let arrived = Instant::now();
    // Counted under no model's name until one that is served is known.
    let mut meters = Arc::clone(&gw.meters.router.no_model);
    let (head, body) = request.into_parts();
    let call = Call { gw, route, inference, head: &head, asked, wanted: None };
    let reply = match carry_out(call, body, &mut meters).await {
        Ok(reply) => reply,
        Err(refusal) => {
            tracing::debug!(code = refusal.code, why = &*refusal.message, "refused");
            let reply = refuse(&refusal, inference.dialect);
            if body::is_unread(&refusal) { closing(reply) } else { reply }
        }
    };
    meters.head(route, reply.status().as_u16(), arrived.elapsed());
    reply
}

/// Plan, then one of two ways.
async fn carry_out(
    call: Call<'_>,
    body: Incoming,
    meters: &mut Arc<ModelMeters>,
) -> Result<Reply, Refusal> {
    let gw = call.gw;
    let call = Call { wanted: strategy::wanted(gw, &call.head.headers)?, ..call };
    let plan = plan::made(call, &body);
    let mut body = Begun::unread(body);
    if let Some(plan) = plan.filter(|plan| plan.path != Path::Buffered) {
        if plan.path == Path::Peeked {
            body = plan::look(call, body.rest).await.map_err(failed)?;
        }
        let known = body.known();
        let fields = Fields::read(&known, &[]).unwrap_or_default();
        let permit = admission::enter(gw.admission.as_ref()).await?;
        if let Some(group) = plan::met(call, plan, &fields) {
            let reply = streamed(call, &group, (body, &fields), meters).await?;
            return Ok(reply.map(|body| body.permitted(permit)));
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
    let content = Content::flowing(Flow::new(body.start, body.rest, gw.limits.flow));
    call.asked.note(fields.stream());
    // Nobody read the whole of it, so its answer goes as it comes.
    let mut sending = Sending { call, content, stream: fields.stream(), sliced: false };
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
    if gw.limits.retry.attempts > 1 {
        let mut sending = Sending { call, content: Content::Kept(outgoing), stream, sliced };
        return attempts(&mut sending, group, &asking).await;
    }
    let lease = gw.session.choose(&group, &asking, &Round::default(), &gw.meters.sticky).await;
    // Nothing is read again, so what was read goes before the body does (001, "Early release").
    drop(asking);
    drop((rid, prompt, said));
    drop(body);
    gw.meters.router.released_early.inc_by(outgoing.len() as u64);
    let mut sending = Sending { call, content: Content::Once(outgoing), stream, sliced };
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

/// Choose, send, judge, until there is something to pass on.
async fn attempts(
    sending: &mut Sending<'_>,
    mut group: Arc<Group>,
    asking: &Asking<'_>,
) -> Result<Reply, Refusal> {
    let Call { gw, route, wanted, .. } = sending.call;
    let begun = Instant::now();
    let (mut attempts, mut round, mut last) = (Attempts::default(), Round::default(), None);
    for made in 1.. {
        let choice = gw.session.choose(&group, asking, &round, &gw.meters.sticky);
        let Some(lease) = choice.await else { break };
        let (upstream, receipt) = (Arc::clone(&lease.upstream), lease.receipt);
        let deadline = begun + timeout(gw, &upstream);
        let sent = sending.to(&group, lease, deadline).await;
        if sent.as_ref().map_or(true, |(sent, _)| has_failed(*sent)) {
            group.policy.undo(&asking.ask, &upstream.worker, receipt);
        }
        let (sent, reply) = sent?;
        round.excluded.push(upstream.worker.id);
        let elsewhere = !matches!(asking.way, Way::Home(_)) && elsewhere(gw, &group, &round);
        match judge(gw, &mut attempts, sent, (elsewhere, deadline)) {
            Verdict::Final => return Ok(reply),
            Verdict::Exhausted => {
                gw.meters.retries.exhausted(route);
                return Ok(reply);
            }
            Verdict::Retry { wait_ms, keep_pin } => {
                let wait = Duration::from_millis(wait_ms);
                tracing::debug!(worker = &*upstream.worker.url, ?sent, ?wait, "retrying");
                gw.meters.retries.retried(route, made, wait);
                round.keep_pin = keep_pin;
                if !elsewhere {
                    round.excluded.clear();
                }
                // The failed answer is kept in case nobody is left to give another.
                last = Some(reply);
                tokio::time::sleep(wait).await;
            }
        }
        // The fleet may have changed while the worker was busy failing.
        if let Some(now) = gw.fleet.load().group(&group.model) {
            group = gw.fleet.under(Arc::clone(now), wanted, &gw.meters);
        }
    }
    match last {
        Some(reply) => Ok(reply),
        None => Err(counted(gw, nobody(gw, &group, asking.way))),
    }
}

/// The same for a request that nobody can send again.
async fn once(
    sending: &mut Sending<'_>,
    group: &Group,
    lease: Option<Lease>,
    way: Way,
) -> Result<Reply, Refusal> {
    let gw = sending.call.gw;
    let lease = lease.ok_or_else(|| counted(gw, nobody(gw, group, way)))?;
    let deadline = Instant::now() + timeout(gw, &lease.upstream);
    let (_, reply) = sending.to(group, lease, deadline).await?;
    Ok(reply)
}

/// How long a worker may take over a request, all attempts together.
fn timeout(gw: &Gateway, upstream: &Upstream) -> Duration {
    upstream.terms.load().timeout.unwrap_or(gw.limits.request_timeout)
}

impl Sending<'_> {
    /// One attempt, counted; the answer is ready to be passed on, a failure too.
    async fn to(
        &mut self,
        group: &Group,
        mut lease: Lease,
        deadline: Instant,
    ) -> Result<(Sent, Reply), Refusal> {
        let gw = self.call.gw;
        let (upstream, session) = (Arc::clone(&lease.upstream), lease.session.take());
        if upstream.worker.vetoed() {
            // A report came in since it was looked at.
            gw.meters.overload.shed_dispatch.inc();
            return Err(counted(gw, shed(gw, group)));
        }
        let (sent, mut reply) = attempt(self, lease, deadline).await;
        match sent {
            Sent::Answered { status, .. } => gw.meters.router.attempt(status, ""),
            Sent::Failed(fault) => gw.meters.router.attempt(fault.status(), fault.code()),
        }
        reply.headers_mut().insert(ROUTED_WORKER, upstream.routed.clone());
        if let Some(id) = session {
            reply.headers_mut().insert(SESSION_ID, id);
        }
        Ok((sent, reply))
    }
}

/// Why no worker of a model takes the request: all have enough to do, or none is there.
fn nobody(gw: &Gateway, group: &Group, way: Way) -> Refusal {
    let now = gw.clock.millis();
    let mut could = group.workers.iter().filter(|worker| match way {
        Way::Home(home) => worker.id == home,
        Way::Sticky | Way::Anywhere | Way::Placed => true,
    });
    if could.any(|worker| worker.only_vetoed(now)) {
        gw.meters.overload.shed_selection.inc();
        return shed(gw, group);
    }
    unavailable(format!("No worker of '{}' is available.", group.model))
}

/// Counts a refusal made in a worker's place.
fn counted(gw: &Gateway, refusal: Refusal) -> Refusal {
    gw.meters.router.attempt(refusal.status.as_u16(), refusal.code);
    refusal
}

/// Judge: pass it on, or try again.
fn judge(
    gw: &Gateway,
    attempts: &mut Attempts,
    sent: Sent,
    (elsewhere, deadline): (bool, Instant),
) -> Verdict {
    let left = deadline.saturating_duration_since(Instant::now());
    let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
    let chances = Chances { elsewhere, left_ms };
    attempts.judge(sent, &gw.limits.retry, chances, &mut rand::rng())
}

/// Whether what the policy remembered of an attempt is no longer so.
fn has_failed(sent: Sent) -> bool {
    !matches!(sent, Sent::Answered { status: ..500, .. })
}

/// Whether a worker is available that has not failed this request.
fn elsewhere(gw: &Gateway, group: &Group, round: &Round) -> bool {
    let others = Candidates::new(&group.workers, &round.excluded).at(gw.clock.millis());
    others.available().next().is_some()
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
