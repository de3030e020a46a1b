//! The client's side: accepting connections, admitting requests, answering.

mod arriving;
mod h2;
mod handoff;
mod patience;
mod presence;
mod tls;

use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::TokioIo;
use rand::RngExt as _;
use rand::distr::Alphanumeric;
use smg_wire::error::{CODE_HEADER, Refusal};
use smg_wire::header::{REQUEST_ID, is_unambiguous};
use smg_wire::route::{Dialect, Route, Row};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::OwnedSemaphorePermit;

pub(crate) use self::arriving::Arriving;
use self::handoff::{Handed, Left, Slot, Terms};
use self::patience::{Patience, Patient};
pub(crate) use self::presence::Attending;
use self::presence::Presence;
pub use self::tls::ServerTls;
use crate::drain::Watcher;
use crate::gateway::Gateway;
use crate::relay::ReplyBody;
use crate::{admin, serve, tasks};

/// An answer on its way out.
pub(crate) type Reply = Response<ReplyBody>;

/// Pause after a failed accept: out of file descriptors, mostly, which only time can mend.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Most bytes read ahead of, or written behind, one connection to a worker.
pub(crate) const MAX_HELD_BYTES: usize = 64 * 1024;

/// Most bytes written behind a client, and read ahead of one whose upload flows, which costs a read and
/// a write for each of these. Of all others no more than [`MAX_HELD_BYTES`] is read: the kernel holds as
/// much again, and a flood of uploads that are read whole would come in faster than they are looked at.
const READ_AHEAD: usize = 256 * 1024;

pub(crate) async fn listen(gw: Arc<Gateway>, listener: TcpListener) {
    let (mut failing, mut full) = (false, false);
    loop {
        match listener.accept().await {
            Ok((socket, peer)) => {
                failing = false;
                // Small events leave at once (001, "No Nagle delay"). A socket that is gone already
                // shows when it is read.
                let _ = socket.set_nodelay(true);
                let Some(place) = place(&gw, &mut full).await else { return };
                let served = receive(Arc::clone(&gw), socket, peer.ip());
                tasks::spawn("client", async move {
                    served.await;
                    drop(place);
                });
            }
            Err(error) => {
                // Out of descriptors, it fails until somebody leaves: once is enough in the log.
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(%error, "accept failed; trying on");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// A place for a connection. While there is none the next ones wait in the kernel, so that descriptors
/// are left for workers; one at each listener has been accepted already.
async fn place(gw: &Gateway, full: &mut bool) -> Option<OwnedSemaphorePermit> {
    if let Ok(place) = Arc::clone(&gw.places).try_acquire_owned() {
        *full = false;
        return Some(place);
    }
    // Once is enough in the log while it lasts.
    if !std::mem::replace(full, true) {
        let connections = gw.settings.clients.max_connections;
        tracing::warn!(connections, "--max-connections reached; clients wait to be accepted");
    }
    Arc::clone(&gw.places).acquire_owned().await.ok()
}

/// Serves a connection to its end, after the handshake if this gateway's clients speak TLS. Until a
/// client has shaken hands it is nobody a drain waits for.
pub(crate) async fn receive(
    gw: Arc<Gateway>,
    socket: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    peer: IpAddr,
) {
    let Some(tls) = gw.settings.tls.clone() else {
        return converse(gw, socket, peer).await;
    };
    // Boxed so that a plain connection does not take the room of one with TLS.
    let secured = Box::pin(async move {
        match tls.greet(socket, gw.settings.clients.header_timeout).await {
            Ok(socket) => converse(gw, socket, peer).await,
            Err(error) => tracing::debug!(%error, %peer, "TLS handshake with a client failed"),
        }
    });
    secured.await;
}

async fn converse(
    gw: Arc<Gateway>,
    socket: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    peer: IpAddr,
) {
    // Who comes while the gateway leaves gets one answer, and does not hold it up.
    let late = gw.drain.draining();
    let mut drain = (!late).then(|| gw.drain.watch());
    let clients = gw.settings.clients;
    let patience = Patience {
        write: gw.limits.request_timeout,
        head: clients.header_timeout,
        idle: clients.idle_timeout,
    };
    let presence = Arc::new(Presence::default());
    let mut socket = Patient::new(socket, patience, Arc::clone(&presence));
    let mut early = BytesMut::new();
    let http2 = tokio::select! {
        biased;
        http2 = h2::is_spoken(&mut socket, &mut early) => http2,
        // Who has said nothing by now is let go as ever.
        () = begun(&mut drain) => false,
    };
    socket.unread(early.freeze());
    if http2 {
        // Boxed so that an HTTP/1.1 connection does not take the room of this one.
        return Box::pin(h2::converse(gw, socket, peer, (presence, patience), drain)).await;
    }
    // One turn for each stream, and the last until the connection ends.
    loop {
        let slot = Slot::default();
        let service = service_fn(|request| attend(&gw, request, peer, (&presence, &slot)));
        let connection = http1::Builder::new()
            .half_close(false)
            .header_read_timeout(None)
            .max_header_size(clients.max_header_bytes)
            .max_buf_size(READ_AHEAD.max(clients.max_header_bytes))
            .keep_alive(!late)
            .serve_connection(TokioIo::new(socket), service);
        let mut turn = Turn { connection, slot: &slot, presence: &presence };
        let ended = match &mut drain {
            None => poll_fn(|cx| turn.poll(cx)).await,
            Some(drain) => tokio::select! {
                // First what has already arrived: a request that came before the signal is answered.
                biased;
                ended = poll_fn(|cx| turn.poll(cx)) => ended,
                () = drain.begun() => turn.leave(patience.head).await,
            },
        };
        let Some(handed) = ended else { return };
        let parts = turn.connection.into_parts();
        socket = parts.io.into_inner();
        let goes_on = handed.goes_on;
        let left = handoff::relay(&mut socket, parts.read_buf, handed).await;
        let Left::Whole(early) = left else { return };
        if !goes_on || gw.drain.draining() {
            let _ = poll_fn(|cx| Pin::new(&mut socket).poll_shutdown(cx)).await;
            return;
        }
        socket.unread(early);
    }
}

/// Resolves when a drain that is watched begins.
async fn begun(drain: &mut Option<Watcher>) {
    match drain {
        Some(drain) => drain.begun().await,
        None => pending().await,
    }
}

/// Answers one request, unless its answer is a stream: that waits for the connection.
async fn attend(
    gw: &Arc<Gateway>,
    request: Request<Incoming>,
    peer: IpAddr,
    (presence, slot): (&Arc<Presence>, &Slot),
) -> Result<Reply, Infallible> {
    let attending = presence.begin();
    let terms = Terms::of(&request);
    let request = request.map(|body| Arriving::over_http1(body, presence));
    let reply = greet(gw, request, peer).await.map(|body| body.attended(attending));
    if reply.extensions().get::<Unread>().is_some() {
        // The connection ends with this answer, which hyper sees to.
        presence.leave_unread();
        return Ok(reply);
    }
    Ok(slot.keep(reply, terms))
}

/// hyper's turn on a connection.
struct Turn<'a, S, F>
where
    F: HttpService<Incoming>,
{
    connection: http1::Connection<TokioIo<Patient<S>>, F>,
    slot: &'a Slot,
    presence: &'a Presence,
}

impl<S, F> Turn<'_, S, F>
where
    S: AsyncRead + AsyncWrite + Unpin,
    F: HttpService<Incoming, ResBody = ReplyBody, Error = Infallible>,
{
    /// Ready when the connection has ended, or with a stream whose head is written.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Handed>> {
        match Pin::new(&mut self.connection).poll(cx) {
            Poll::Ready(served) => {
                if let Err(error) = served {
                    tracing::debug!(%error, "client connection ended early");
                }
                Poll::Ready(None)
            }
            Poll::Pending if self.presence.owing() => Poll::Pending,
            Poll::Pending => match self.slot.take() {
                Some(handed) => Poll::Ready(Some(handed)),
                None => Poll::Pending,
            },
        }
    }

    /// Ends with the answer that is on its way. Half a head holds nobody up: only what is being
    /// answered is waited for.
    async fn leave(&mut self, head: Option<Duration>) -> Option<Handed> {
        Pin::new(&mut self.connection).graceful_shutdown();
        loop {
            let turn = poll_fn(|cx| self.poll(cx));
            match tokio::time::timeout(head.unwrap_or(Duration::MAX), turn).await {
                Ok(ended) => return ended,
                Err(_) if self.presence.busy() => {}
                Err(_) => return None,
            }
        }
    }
}

/// Answers what a browser asks on its own account, and marks for it what a page asked.
async fn greet(gw: &Arc<Gateway>, request: Request<Arriving>, peer: IpAddr) -> Reply {
    let (head, body) = request.into_parts();
    // No request of a client yet, so it is not counted as one.
    if let Some(headers) = gw.cors.preflight(&head) {
        let mut reply = Reply::new(ReplyBody::whole(""));
        *reply.headers_mut() = headers;
        return reply;
    }
    let origin = gw.cors.allowed(&head.headers).cloned();
    let mut reply = answer(gw, Request::from_parts(head, body), peer).await;
    gw.cors.mark(origin, reply.headers_mut());
    reply
}

/// Answers one request, and counts it.
async fn answer(gw: &Arc<Gateway>, request: Request<Arriving>, peer: IpAddr) -> Reply {
    let row = Route::find(request.uri().path());
    let call = gw.meters.http.arrive(row.route, request.method());
    let id = request_id(gw, row, request.headers());
    let mut reply = match (refused(gw, row, &request, peer), &row.inference) {
        (Some(refused), _) => refused,
        (None, Some(inference)) => serve::deliver(gw, row.route, inference, request).await,
        (None, None) => admin::answer(gw, row, request).await,
    };
    reply.headers_mut().insert(REQUEST_ID, id);
    call.head_ready();
    let code = reply.extensions().get::<Code>().map_or("", |code| code.0);
    gw.meters.http.answer(row.route, reply.status().as_u16(), code);
    reply.map(|body| body.counted(call))
}

/// The code of a refusal, beside the header so that metrics never read a worker's.
#[derive(Clone, Copy, Debug)]
struct Code(&'static str);

/// Admit: the answer to what can be refused before the body is looked at. What may be read in two ways is read in none,
/// and neither is what follows it: that may have been meant as part of it, or for a tunnel that is not there.
fn refused(
    gw: &Gateway,
    row: &'static Row,
    request: &Request<Arriving>,
    peer: IpAddr,
) -> Option<Reply> {
    // Who is refused in the middle of a long upload is heard out, not cut off before the answer.
    let long = request.body().size_hint().upper().is_none_or(|bytes| bytes > SHORT_UPLOAD);
    let refused = unfit(gw, row, request, peer).map(|no| if long { closing(no) } else { no });
    if is_unambiguous(request.headers()) && request.method() != Method::CONNECT {
        return refused;
    }
    Some(closing(refused.unwrap_or_else(|| refuse(&ambiguous(), dialect(row)))))
}

/// Bytes of a body that hyper reads by itself behind an answer.
const SHORT_UPLOAD: u64 = 64 << 10;

fn ambiguous() -> Refusal {
    let what = "The request has several Host headers, or a Transfer-Encoding other than chunked.";
    Refusal::new(StatusCode::BAD_REQUEST, "ambiguous_request", what)
}

fn unfit(
    gw: &Gateway,
    row: &'static Row,
    request: &Request<Arriving>,
    peer: IpAddr,
) -> Option<Reply> {
    if row.route == Route::Other {
        let path = request.uri().path();
        let what = format!("There is nothing at {path}.");
        let refusal = Refusal::new(StatusCode::NOT_FOUND, "route_not_found", what);
        return Some(refuse(&refusal, Dialect::OpenAi));
    }
    if !row.answers(request.method()) {
        let allow = row.allow();
        let what =
            format!("{} does not answer {}; it answers {allow}.", row.path, request.method());
        let refusal = Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", what);
        let mut reply = refuse(&refusal, dialect(row));
        if let Ok(allow) = HeaderValue::from_str(&allow) {
            reply.headers_mut().insert(header::ALLOW, allow);
        }
        return Some(reply);
    }
    let headers = request.headers();
    let allowed = gw.cors.allowed(headers).is_some();
    if let Some(refusal) = gw.access.refuses(row, headers, peer, allowed) {
        return Some(unwelcome(&refusal, row));
    }
    let inference = row.inference.as_ref()?;
    let limit = gw.limits.bodies.max_payload;
    if request.body().size_hint().lower() > limit as u64 {
        return Some(too_large(limit));
    }
    if gw.drain.draining() {
        let what = "This gateway is shutting down; send the request again.";
        let mut refusal = Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "gateway_draining", what);
        refusal.retry_after = Some(1);
        return Some(closing(refuse(&refusal, inference.dialect)));
    }
    None
}

/// In whose words a route refuses.
fn dialect(row: &Row) -> Dialect {
    row.inference.as_ref().map_or(Dialect::OpenAi, |inference| inference.dialect)
}

/// The answer to somebody who may not come in; nobody reads the body that comes after it.
fn unwelcome(refusal: &Refusal, row: &Row) -> Reply {
    let mut reply = refuse(refusal, dialect(row));
    if refusal.status == StatusCode::UNAUTHORIZED {
        let bearer = HeaderValue::from_static("Bearer");
        reply.headers_mut().insert(header::WWW_AUTHENTICATE, bearer);
    }
    if row.inference.is_some() { closing(reply) } else { reply }
}

/// The one answer without JSON and without a code (001, "Request bodies").
fn too_large(limit: usize) -> Reply {
    let text = format!("The request body is larger than {limit} bytes (--max-payload-size).\n");
    let mut reply = Reply::new(ReplyBody::whole(text));
    *reply.status_mut() = StatusCode::PAYLOAD_TOO_LARGE;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    reply.headers_mut().insert(header::CONTENT_TYPE, plain);
    closing(reply)
}

/// Marks the refusal of an upload that its client may still be sending.
#[derive(Clone, Copy, Debug)]
struct Unread;

/// Ends the connection after this answer, for a body that nobody will read.
pub(crate) fn closing(mut reply: Reply) -> Reply {
    reply.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    reply.extensions_mut().insert(Unread);
    reply
}

/// A refusal as an answer.
pub(crate) fn refuse(refusal: &Refusal, dialect: Dialect) -> Reply {
    let mut reply = json(refusal.body(dialect));
    *reply.status_mut() = refusal.status;
    let headers = reply.headers_mut();
    headers.insert(CODE_HEADER, HeaderValue::from_static(refusal.code));
    if let Some(seconds) = refusal.retry_after {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    reply.extensions_mut().insert(Code(refusal.code));
    reply
}

/// A JSON answer.
pub(crate) fn json(body: impl Into<bytes::Bytes>) -> Reply {
    let mut reply = Reply::new(ReplyBody::whole(body));
    let json = HeaderValue::from_static("application/json");
    reply.headers_mut().insert(header::CONTENT_TYPE, json);
    reply
}

/// The client's own request id, else a new one in the style of the route.
fn request_id(gw: &Gateway, row: &Row, headers: &HeaderMap) -> HeaderValue {
    let mut named = gw.limits.request_id_headers.iter().filter_map(|name| headers.get(name));
    if let Some(id) = named.find(|id| !id.is_empty()) {
        return id.clone();
    }
    let prefix = row.inference.as_ref().map_or("req-", |inference| inference.id_prefix);
    let mut id = String::with_capacity(prefix.len() + 24);
    id.push_str(prefix);
    id.extend(rand::rng().sample_iter(Alphanumeric).take(24).map(char::from));
    HeaderValue::try_from(id).unwrap_or_else(|_| HeaderValue::from_static("req-unknown"))
}
