//! One attempt: the request on its way to one worker, and what came of it.

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::uri::PathAndQuery;
use http::{Request, Response};
use smg_decide::retry::{Fault, Sent};
use smg_decide::settle::End;
use smg_wire::header::{goes_downstream, goes_upstream, is_event_stream, nominated};
use smg_wire::json::splice::{self, Edit};
use smg_wire::route::{Carries, Inference};
use tokio::time::Instant;

use super::Held;
use super::refusals::failed;
use crate::edge::{Reply, refuse};
use crate::fleet::Upstream;
use crate::relay::{Notes, Relay, ReplyBody, Ticket};
use crate::session::Lease;
use crate::upstream::{self, Exchange, Message, Outgoing};

/// Sends the request to the leased worker; what comes back is ready to be passed on, a failure too.
pub(super) async fn attempt(held: &Held<'_>, lease: Lease, deadline: Instant) -> (Sent, Reply) {
    let answered = match send(held, &lease, deadline).await {
        Ok((head, exchange)) => relay(held, lease, head, exchange).await,
        Err(fault) => Err(settle_failed(lease, fault)),
    };
    match answered {
        Ok(reply) => {
            let status = reply.status().as_u16();
            let retry_after = retry_after(reply.headers().get(header::RETRY_AFTER));
            (Sent::Answered { status, retry_after }, reply)
        }
        Err(fault) => (Sent::Failed(fault), refuse(&failed(fault), held.inference.dialect)),
    }
}

/// Seconds, however many; a date is not understood and counts as none.
fn retry_after(value: Option<&HeaderValue>) -> Option<u64> {
    let text = value?.to_str().ok()?.trim();
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(u64::MAX))
}

/// Send: the request as it came, with the headers that travel, over the worker's pool.
async fn send(
    held: &Held<'_>,
    lease: &Lease,
    deadline: Instant,
) -> Result<(http::response::Parts, Exchange), Fault> {
    let pool = &lease.upstream.pool;
    let body = outgoing(held, &lease.upstream);
    let bears = pool.credential();
    let credential = held.gw.access.upstream(bears.as_ref(), &held.head.headers);
    let write = || {
        let mut request = Request::new(Outgoing::new(body.clone()));
        *request.method_mut() = held.head.method.clone();
        *request.uri_mut() = target(held, &lease.upstream);
        let headers = request.headers_mut();
        headers.insert(header::HOST, pool.origin().authority().clone());
        if let Some(kind) = kind(held) {
            headers.insert(header::CONTENT_TYPE, kind);
        }
        headers.insert(header::ACCEPT, HeaderValue::from_static("*/*"));
        for (name, value) in &held.head.headers {
            if goes_upstream(name) && !nominated(&held.head.headers, name) {
                headers.append(name.clone(), value.clone());
            }
        }
        if let Some(credential) = credential {
            headers.insert(header::AUTHORIZATION, credential.clone());
        }
        request
    };
    let message = Message { write: &write, body: body.len() };
    let resent = || held.gw.meters.router.send_retries.inc();
    upstream::send(pool, &message, upstream::Deadline::at(deadline), resent).await
}

/// The body as this worker wants it: a data-parallel rank is told its number, which is how its
/// engine knows.
fn outgoing(held: &Held<'_>, upstream: &Upstream) -> Bytes {
    let told = upstream.rank.and_then(|rank| {
        let edit = Edit { name: "data_parallel_rank", value: &rank.at.to_string() };
        splice::set(held.body, &[edit])
    });
    let written = |body| held.gw.limits.upload.rewritten(body);
    told.map_or_else(|| held.body.clone(), written)
}

/// What the body is.
fn kind(held: &Held<'_>) -> Option<HeaderValue> {
    match held.inference.carries {
        Carries::Json => Some(HeaderValue::from_static("application/json")),
        // Its parts cannot be told without the boundary that stands there.
        Carries::Form => held.head.headers.get(header::CONTENT_TYPE).cloned(),
        Carries::ResponseId => None,
    }
}

/// The path at the worker, query string and all.
fn target(held: &Held<'_>, upstream: &Upstream) -> http::Uri {
    let Inference { upstream_path, vllm_path, .. } = *held.inference;
    let other = vllm_path.filter(|_| upstream.card.runtime == "vllm").or(upstream_path);
    let (origin, typed) = (upstream.pool.origin(), held.head.uri.path_and_query());
    let path = match (other, typed.and_then(|path| path.query())) {
        (None, _) => typed.cloned(),
        (Some(path), None) => Some(PathAndQuery::from_static(path)),
        (Some(path), Some(query)) => format!("{path}?{query}").parse().ok(),
    };
    origin.target(&path.unwrap_or_else(|| PathAndQuery::from_static("/")))
}

/// Relay: an event stream goes on as it comes, anything else once it is whole. So does a failure that
/// came as an event stream: it may be tried again elsewhere, and only one that has ended is settled,
/// which its worker's breaker waits for.
async fn relay(
    held: &Held<'_>,
    lease: Lease,
    head: http::response::Parts,
    exchange: Exchange,
) -> Result<Reply, Fault> {
    let kind = head.headers.get(header::CONTENT_TYPE);
    let streams =
        head.status.is_success() && (is_event_stream(kind) || (held.stream && kind.is_none()));
    let status = head.status.as_u16();
    let waits = head.headers.contains_key(header::RETRY_AFTER);
    let notes = if head.status.is_success() {
        let worker = lease.upstream.worker.id;
        Notes::of(held.inference, &held.gw.session.responses, worker)
    } else {
        Notes::default()
    };
    let body = if streams {
        let ticket = Ticket::answered(lease, status, waits).noting(notes);
        ReplyBody::stream(Relay::new(exchange, ticket, held.inference.dialect))
    } else {
        match exchange.collect(held.gw.limits.bodies.max_payload).await {
            Ok(bytes) => {
                let ticket = Ticket::answered(lease, status, waits).noting(notes);
                ticket.read(&bytes).settle(End::Clean);
                ReplyBody::whole(bytes)
            }
            Err(fault) => return Err(settle_failed(lease, fault)),
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
fn settle_failed(lease: Lease, fault: Fault) -> Fault {
    let end = if fault == Fault::Timeout { End::Timeout } else { End::UpstreamBroke };
    Ticket::new(lease).settle(end);
    fault
}
