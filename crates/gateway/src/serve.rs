//! The request path, from a body that is about to be read to an answer that is about to be
//! relayed. Read it from top to bottom; each phase has the name that docs/architecture.md gives it.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::uri::PathAndQuery;
use http::{Request, Response, StatusCode, request};
use hyper::body::{Body as _, Incoming};
use smg_decide::body::{self as rules, Facts};
use smg_decide::place::{self, Policy, Reads};
use smg_decide::retry::Fault;
use smg_decide::settle::End;
use smg_wire::error::Refusal;
use smg_wire::header::{ROUTED_WORKER, goes_downstream, goes_upstream, is_event_stream, nominated};
use smg_wire::hint::{self, ROUTING_TOKENS};
use smg_wire::json::{Bad, Fields};
use smg_wire::prompt::{self, Prompt};
use smg_wire::route::{Inference, Route};

use crate::body;
use crate::edge::{Reply, refuse};
use crate::fleet::{Fleet, Group};
use crate::gateway::Gateway;
use crate::relay::{Relay, ReplyBody, Ticket};
use crate::session::{Asking, Lease};
use crate::telemetry::ModelMeters;
use crate::upstream::{self, Exchange, Message, Origin, Outgoing};

/// A request whose body is in hand.
struct Held<'a> {
    gw: &'a Gateway,
    inference: &'a Inference,
    head: &'a request::Parts,
    body: &'a Bytes,
    stream: bool,
}

/// Serves an inference request.
pub(crate) async fn serve(
    gw: &Arc<Gateway>,
    route: Route,
    inference: &Inference,
    request: Request<Incoming>,
) -> Reply {
    let arrived = tokio::time::Instant::now();
    // Counted under no model's name until one that is served is known.
    let mut meters = Arc::clone(&gw.meters.router.no_model);
    let reply = match carry_out(gw, route, inference, request, &mut meters).await {
        Ok(reply) => reply,
        Err(refusal) => {
            tracing::debug!(code = refusal.code, why = &*refusal.message, "refused");
            refuse(&refusal, inference.dialect)
        }
    };
    meters.head(route, reply.status().as_u16(), arrived.elapsed());
    reply
}

async fn carry_out(
    gw: &Arc<Gateway>,
    route: Route,
    inference: &Inference,
    request: Request<Incoming>,
    meters: &mut Arc<ModelMeters>,
) -> Result<Reply, Refusal> {
    plan(gw, inference, &request);
    let (head, body) = request.into_parts();
    let body = body::take(body, gw.limits.bodies.max_payload).await?;
    let fields = Fields::read(&body, inference.required).map_err(bad_body)?;
    let stream = fields.stream();
    let group = model(gw, &gw.fleet.load(), fields.model().map_err(bad_body)?);
    if let Ok(group) = &group {
        *meters = Arc::clone(&group.meters);
    }
    meters.request(route, stream);
    let group = group?;
    let rid = fields.rid(inference.rid);
    let prompt = prompt(&*group.policy, inference, &head, &fields);
    let asking =
        gw.session.asking(&*group.policy, rid.as_deref(), &head.headers, as_asked(&prompt));
    let held = Held { gw, inference, head: &head, body: &body, stream };
    attempt(&held, &group, &asking).await
}

/// What the engine will have to read, if the policy wants to know: the tokens hint, else the body's.
fn prompt<'a>(
    policy: &dyn Policy,
    inference: &Inference,
    head: &request::Parts,
    fields: &Fields<'a>,
) -> Prompt<'a> {
    if policy.reads() == Reads::Headers {
        return Prompt::Unknown;
    }
    let hint = head.headers.get(ROUTING_TOKENS).and_then(|value| hint::tokens(value.as_bytes()));
    hint.map_or_else(|| prompt::of(inference.prompt, fields), Prompt::Tokens)
}

fn as_asked<'a>(prompt: &'a Prompt<'_>) -> place::Prompt<'a> {
    match prompt {
        Prompt::Unknown => place::Prompt::Unknown,
        Prompt::Text(parts) => place::Prompt::Text(parts),
        Prompt::Tokens(ids) => place::Prompt::Tokens(ids),
    }
}

/// Plan: stream or buffer. Counted for every request that reaches a route that may stream; for now
/// every body is buffered whatever the deciding rule.
fn plan(gw: &Gateway, inference: &Inference, request: &Request<Incoming>) {
    if !inference.streams {
        return;
    }
    let hinted =
        request.headers().get(ROUTING_TOKENS).is_some_and(|v| hint::is_valid(v.as_bytes()));
    let facts = Facts {
        key_override: gw.session.reads_rid(),
        needs_prompt: gw.fleet.reads_prompt() && !hinted,
        several_models: gw.fleet.load().models.len() > 1,
        content_length: request.body().size_hint().exact(),
        max_buffered: gw.limits.bodies.max_buffered,
        ..Facts::default()
    };
    let reason = rules::plan(&facts).reason;
    gw.meters.router.plan(rules::Plan { path: rules::Path::Buffered, reason });
}

/// The workers of the model a request names; without a name, of the only model there is.
fn model(gw: &Gateway, fleet: &Fleet, name: Option<Cow<'_, str>>) -> Result<Arc<Group>, Refusal> {
    let group = match &name {
        Some(name) => fleet.models.get(&**name),
        None if fleet.models.len() > 1 => return Err(bad_body(Bad::Missing("model"))),
        None => fleet.models.values().next(),
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
    gw.meters.router.attempt(refusal.status.as_u16(), refusal.code);
    refusal.param = Some("model");
    Err(refusal)
}

/// Choose, send, judge: one worker is chosen, the request goes there, and the answer is passed on.
async fn attempt(held: &Held<'_>, group: &Group, asking: &Asking<'_>) -> Result<Reply, Refusal> {
    let gw = held.gw;
    let Some(lease) = gw.session.choose(group, asking, &[], &gw.meters.sticky) else {
        let refusal = unavailable(format!("No worker of '{}' is available.", group.model));
        gw.meters.router.attempt(refusal.status.as_u16(), refusal.code);
        return Err(refusal);
    };
    let upstream = Arc::clone(&lease.upstream);
    let answered = match send(held, &lease).await {
        Ok((head, exchange)) => relay(held, lease, head, exchange).await,
        Err(fault) => {
            settle_failed(lease, fault);
            Err(fault)
        }
    };
    let mut reply = match answered {
        Ok(reply) => {
            gw.meters.router.attempt(reply.status().as_u16(), "");
            reply
        }
        Err(fault) => {
            gw.meters.router.attempt(fault.status(), fault.code());
            group.policy.undo(&asking.ask, &upstream.worker);
            refuse(&failed(fault), held.inference.dialect)
        }
    };
    reply.headers_mut().insert(ROUTED_WORKER, upstream.routed.clone());
    Ok(reply)
}

/// Send: the request as it came, with the headers that travel, over the worker's pool.
async fn send(held: &Held<'_>, lease: &Lease) -> Result<(http::response::Parts, Exchange), Fault> {
    let pool = &lease.upstream.pool;
    let write = || {
        let mut request = Request::new(Outgoing::new(held.body.clone()));
        *request.method_mut() = held.head.method.clone();
        *request.uri_mut() = target(held, pool.origin());
        let headers = request.headers_mut();
        headers.insert(header::HOST, pool.origin().authority().clone());
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::ACCEPT, HeaderValue::from_static("*/*"));
        for (name, value) in &held.head.headers {
            if goes_upstream(name) && !nominated(&held.head.headers, name) {
                headers.append(name.clone(), value.clone());
            }
        }
        request
    };
    let deadline = upstream::deadline(held.gw.limits.request_timeout);
    let message = Message { write: &write, body: held.body.len() };
    let resent = || held.gw.meters.router.send_retries.inc();
    upstream::send(pool, &message, deadline, resent).await
}

/// The path at the worker, query string and all.
fn target(held: &Held<'_>, origin: &Origin) -> http::Uri {
    let typed = held.head.uri.path_and_query();
    let path = match (held.inference.upstream_path, typed.and_then(|path| path.query())) {
        (None, _) => typed.cloned(),
        (Some(path), None) => Some(PathAndQuery::from_static(path)),
        (Some(path), Some(query)) => format!("{path}?{query}").parse().ok(),
    };
    origin.target(&path.unwrap_or_else(|| PathAndQuery::from_static("/")))
}

/// Relay: an event stream goes on as it comes, anything else once it is whole.
async fn relay(
    held: &Held<'_>,
    lease: Lease,
    head: http::response::Parts,
    exchange: Exchange,
) -> Result<Reply, Fault> {
    let streams = is_event_stream(head.headers.get(header::CONTENT_TYPE))
        || (held.stream
            && head.status.is_success()
            && !head.headers.contains_key(header::CONTENT_TYPE));
    let status = head.status.as_u16();
    let body = if streams {
        let ticket = Ticket::new(lease);
        ReplyBody::stream(Relay::new(exchange, ticket, held.inference.dialect))
    } else {
        match exchange.collect(held.gw.limits.bodies.max_payload).await {
            Ok(bytes) => {
                lease.upstream.meters.attempt_failed(status);
                Ticket::new(lease).settle(End::Clean);
                ReplyBody::whole(bytes)
            }
            Err(fault) => {
                settle_failed(lease, fault);
                return Err(fault);
            }
        }
    };
    let mut reply = Response::new(body);
    *reply.status_mut() = head.status;
    for (name, value) in &head.headers {
        if goes_downstream(name) && !nominated(&head.headers, name) {
            reply.headers_mut().append(name.clone(), value.clone());
        }
    }
    if streams && !head.headers.contains_key(header::CONTENT_TYPE) {
        let events = HeaderValue::from_static("text/event-stream");
        reply.headers_mut().insert(header::CONTENT_TYPE, events);
    }
    Ok(reply)
}

/// Settle, for an exchange that gave no answer to pass on.
fn settle_failed(lease: Lease, fault: Fault) {
    let end = if fault == Fault::Timeout { End::Timeout } else { End::UpstreamBroke };
    Ticket::new(lease).settle(end);
}

fn failed(fault: Fault) -> Refusal {
    let what = match fault {
        Fault::Connect => "The worker could not be reached.",
        Fault::Send => "The connection to the worker was lost before it answered.",
        Fault::Body => "The connection to the worker was lost in the middle of its answer.",
        Fault::TooLarge => "The worker's answer is larger than --max-payload-size.",
        Fault::Timeout => "The worker did not answer within --request-timeout-secs.",
    };
    let status = StatusCode::from_u16(fault.status()).unwrap_or(StatusCode::BAD_GATEWAY);
    Refusal::new(status, fault.code(), what)
}

fn unavailable(what: String) -> Refusal {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    Refusal { retry_after: Some(1), ..Refusal::new(status, "no_available_workers", what) }
}

fn bad_body(bad: Bad) -> Refusal {
    let refusal = Refusal::new(StatusCode::BAD_REQUEST, bad.code(), bad.to_string());
    Refusal { param: bad.param(), ..refusal }
}
