//! One attempt: the request on its way to one worker, and what came of it.

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::uri::PathAndQuery;
use http::{Request, Response, Version};
use smg_decide::retry::{Fault, MAX_RESEND_BYTES, Sent};
use smg_decide::settle::End;
use smg_wire::header::{
    goes_downstream, goes_to_vendor, goes_upstream, is_event_stream, names_session, nominated,
};
use smg_wire::json::splice::{self, Edit};
use smg_wire::route::{Carries, Inference};
use tokio::time::Instant;

use super::Call;
use super::refusals::failed;
use crate::body::{Flow, Upload};
use crate::edge::{Reply, closing, refuse};
use crate::fleet::Upstream;
use crate::gateway::Gateway;
use crate::relay::{Notes, Relay, ReplyBody, Ticket};
use crate::session::Lease;
use crate::upstream::{self, Exchange, Message, Outgoing};

/// A request on its way to a worker.
pub(super) struct Sending<'a> {
    pub(super) call: Call<'a>,
    pub(super) content: Content,
    /// Whether the client asked for a stream, as far as anybody read that.
    pub(super) stream: bool,
    /// Whether the text of a stream is cut anew.
    pub(super) sliced: bool,
    /// What else shall lead to the worker it goes to.
    pub(super) opening: Option<String>,
}

/// Its body.
pub(super) enum Content {
    /// Held until a worker's answer is passed on.
    Kept(Bytes),
    /// Held until it has been written to a worker.
    Once(Bytes),
    /// Still coming, so that it can be sent once.
    Flowing(Option<Box<Flow>>, Upload),
}

impl Content {
    pub(super) fn flowing(flow: Flow) -> Self {
        let upload = flow.upload();
        Self::Flowing(Some(Box::new(flow)), upload)
    }

    /// How the client's upload stands, if it streams.
    const fn upload(&self) -> Option<&Upload> {
        match self {
            Self::Flowing(_, upload) => Some(upload),
            Self::Kept(_) | Self::Once(_) => None,
        }
    }
}

/// Sends the request to the leased worker; what comes back is ready to be passed on, a failure too.
pub(super) async fn attempt(
    sending: &mut Sending<'_>,
    lease: Lease,
    deadline: Instant,
) -> (Sent, Reply) {
    let answered = match send(sending, &lease, deadline).await {
        Ok((head, exchange)) => relay(sending, lease, head, exchange).await,
        Err(fault) => Err(settle_failed(lease, fault)),
    };
    let (sent, reply) = match answered {
        Ok(reply) => {
            let status = reply.status().as_u16();
            let retry_after = retry_after(reply.headers().get(header::RETRY_AFTER));
            (Sent::Answered { status, retry_after }, reply)
        }
        Err(fault) => (Sent::Failed(fault), refuse(&failed(fault), sending.call.inference.dialect)),
    };
    // Who is answered before the upload has ended may still be sending what nobody reads.
    let unread = sending.content.upload().is_some_and(|up| up.is_going() || up.fault().is_some());
    (sent, if unread { closing(reply) } else { reply })
}

/// Seconds, however many; a date is not understood and counts as none.
fn retry_after(value: Option<&HeaderValue>) -> Option<u64> {
    let text = value?.to_str().ok()?.trim();
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(u64::MAX))
}

/// Send: the request as it came, with the headers that travel, over the worker's pool.
async fn send(
    sending: &mut Sending<'_>,
    lease: &Lease,
    deadline: Instant,
) -> Result<(http::response::Parts, Exchange), Fault> {
    let Sending { call, content, .. } = sending;
    let call = *call;
    let (mut whole, mut flow) = match content {
        Content::Kept(body) => (edited(call.gw, body.clone(), &lease.upstream), None),
        Content::Once(body) => (edited(call.gw, std::mem::take(body), &lease.upstream), None),
        Content::Flowing(flow, _) => (Bytes::new(), flow.take()),
    };
    let upload = content.upload().cloned();
    let length = upload.is_none().then_some(whole.len());
    let mut write = || {
        let body = match flow.take() {
            Some(flow) => Outgoing::Flowing(flow),
            // Nobody sends this again, so the connection alone holds it, and lets it go once it is
            // written (001, "Early release").
            None if whole.len() >= MAX_RESEND_BYTES => Outgoing::Whole(std::mem::take(&mut whole)),
            None => Outgoing::Whole(whole.clone()),
        };
        written(call, &lease.upstream, body)
    };
    let mut message = Message { write: &mut write, body: length, upload };
    let resent = || call.gw.meters.router.send_retries.inc();
    let deadline = upstream::Deadline::at(deadline);
    let answered = upstream::send(&lease.upstream.pool, &mut message, deadline, resent).await?;
    // A status of no class is no answer (RFC 9110, 15): what its body means nobody can say.
    if answered.0.status.as_u16() >= 600 { Err(Fault::Send) } else { Ok(answered) }
}

/// The request as it goes to this worker.
fn written(call: Call<'_>, upstream: &Upstream, body: Outgoing) -> Request<Outgoing> {
    let (flows, external) =
        (matches!(body, Outgoing::Flowing(_)), upstream.card.load().is_external());
    // A vendor's engines have no use for them.
    let forwards = call.gw.settings.affinity.forward_headers && !external;
    let mut request = Request::new(body);
    *request.method_mut() = call.head.method.clone();
    *request.uri_mut() = target(call, upstream);
    let headers = request.headers_mut();
    headers.insert(header::HOST, upstream.pool.origin().authority().clone());
    if let Some(kind) = kind(call) {
        headers.insert(header::CONTENT_TYPE, kind);
    }
    headers.insert(header::ACCEPT, HeaderValue::from_static("*/*"));
    for (name, value) in &call.head.headers {
        // What flows was not decoded.
        let goes = goes_upstream(name)
            || (flows && *name == header::CONTENT_ENCODING)
            || (external && goes_to_vendor(name))
            || (forwards && names_session(name));
        if goes && !nominated(&call.head.headers, name) {
            headers.append(name.clone(), value.clone());
        }
    }
    let bears = upstream.pool.credential();
    let credential = call.gw.access.upstream(bears.as_ref(), &call.head.headers, external);
    if let Some(credential) = credential {
        headers.insert(header::AUTHORIZATION, credential.clone());
    }
    request
}

/// The body as this worker wants it: a data-parallel rank is told its number, which is how its
/// engine knows.
fn edited(gw: &Gateway, body: Bytes, upstream: &Upstream) -> Bytes {
    let told = upstream.rank.and_then(|at| {
        let edit = Edit { name: "data_parallel_rank", value: &at.to_string() };
        splice::set(&body, &[edit])
    });
    told.map_or(body, |body| gw.limits.upload.rewritten(body))
}

/// What the body is.
fn kind(call: Call<'_>) -> Option<HeaderValue> {
    match call.inference.carries {
        Carries::Json => Some(HeaderValue::from_static("application/json")),
        // Its parts cannot be told without the boundary that stands there.
        Carries::Form => call.head.headers.get(header::CONTENT_TYPE).cloned(),
        Carries::ResponseId => None,
    }
}

/// The path at the worker, query string and all.
fn target(call: Call<'_>, upstream: &Upstream) -> http::Uri {
    let Inference { upstream_path, vllm_path, .. } = *call.inference;
    let other = vllm_path.filter(|_| upstream.card.load().runtime == "vllm").or(upstream_path);
    let (origin, typed) = (upstream.pool.origin(), call.head.uri.path_and_query());
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
    sending: &Sending<'_>,
    lease: Lease,
    head: http::response::Parts,
    exchange: Exchange,
) -> Result<Reply, Fault> {
    let Call { gw, inference, .. } = sending.call;
    let kind = head.headers.get(header::CONTENT_TYPE);
    let streams =
        head.status.is_success() && (is_event_stream(kind) || (sending.stream && kind.is_none()));
    let status = head.status.as_u16();
    let waits = head.headers.contains_key(header::RETRY_AFTER);
    let notes = if head.status.is_success() {
        let worker = lease.upstream.worker.id;
        Notes::of(inference, &gw.session.responses, worker)
    } else {
        Notes::default()
    };
    let body = if streams {
        let ticket = Ticket::answered(lease, status, waits).noting(notes);
        let exchange = exchange.streamed(&head);
        let relay = Relay::new(exchange, ticket, inference.dialect)
            .sliced(sending.sliced)
            .kept_alive(gw.settings.sse_keepalive)
            .open_ended(is_open_ended(&head))
            .packed(head.headers.contains_key(header::CONTENT_ENCODING));
        ReplyBody::stream(relay)
    } else {
        match exchange.collect(gw.limits.bodies.max_payload).await {
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

/// Whether only the end of the connection ends this answer's body (RFC 9112, 6.3).
fn is_open_ended(head: &http::response::Parts) -> bool {
    let told = [header::CONTENT_LENGTH, header::TRANSFER_ENCODING];
    head.version < Version::HTTP_2 && !told.iter().any(|name| head.headers.contains_key(name))
}

/// Settle, for an exchange that gave no answer to pass on.
fn settle_failed(lease: Lease, fault: Fault) -> Fault {
    Ticket::new(lease).settle(fault.end());
    fault
}
