//! The engine's front door: HTTP/1 on a listener, one task a connection.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::Core;
use super::ask::{Ask, Complaint, Form};
use super::reply::{self, Letterhead};
use super::run::Run;
use super::stream::{Events, spaced};

const LARGEST_BODY: usize = 32 << 20;

type Reply = Response<UnsyncBoxBody<Bytes, Infallible>>;

pub(super) async fn serve(listener: TcpListener, core: Arc<Core>) -> io::Result<()> {
    // Owned here, so that dropping this future ends every connection.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    // Without it a small event waits for the acknowledgement of the one before;
                    // slower, not wrong.
                    let _ = stream.set_nodelay(true);
                    connections.spawn(converse(stream, Arc::clone(&core)));
                }
                // The client left between knocking and being let in.
                Err(why) if why.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(why) => return Err(why),
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

pub(super) async fn converse<S>(stream: S, core: Arc<Core>)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let answer = service_fn(move |request| {
        let core = Arc::clone(&core);
        async move { Ok::<_, Infallible>(answer(core, request).await) }
    });
    // A connection that breaks is the client's affair: its runs are dropped, which is all we do.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
}

async fn answer(core: Arc<Core>, request: Request<Incoming>) -> Reply {
    let post = request.method() == Method::POST;
    let get = request.method() == Method::GET;
    match request.uri().path() {
        "/v1/chat/completions" if post => complete(core, Form::Chat, request).await,
        "/v1/completions" if post => complete(core, Form::Text, request).await,
        "/health" if get => text(String::new()),
        "/metrics" if get => text(core.metrics()),
        "/v1/models" if get => json(StatusCode::OK, &core.models()),
        "/server_info" | "/get_server_info" if get => json(StatusCode::OK, &core.server_info()),
        "/model_info" | "/get_model_info" if get => json(StatusCode::OK, &core.model_info()),
        "/loads" | "/v1/loads" if get => json(StatusCode::OK, &core.loads()),
        path => refuse(&Complaint::new(
            404,
            "not_found",
            format!("There is no {} {path} here", request.method()),
        )),
    }
}

async fn complete(core: Arc<Core>, form: Form, request: Request<Incoming>) -> Reply {
    let body = match Limited::new(request, LARGEST_BODY).collect().await {
        Ok(body) => body.to_bytes(),
        Err(why) => {
            let status = if why.is::<http_body_util::LengthLimitError>() { 413 } else { 400 };
            return refuse(&Complaint::new(status, "bad_body", why.to_string()));
        }
    };
    match Ask::read(form, &body, &core.profile) {
        Ok(ask) => deliver(core, ask).await,
        Err(complaint) => refuse(&complaint),
    }
}

async fn deliver(core: Arc<Core>, ask: Ask) -> Reply {
    let head = Letterhead::new(ask.form, core.next_number(), &core.profile.model);
    if ask.stream {
        let mut reply = Response::new(Events::new(core, ask, head).boxed_unsync());
        let headers = reply.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        return reply;
    }
    let mut run = Run::begin(core, &ask).await;
    let mut said = String::new();
    while let Some(word) = run.word().await {
        said.push_str(&spaced(word, run.usage().generated));
    }
    json(StatusCode::OK, &head.whole(&said, run.ending(), run.usage()))
}

fn refuse(complaint: &Complaint) -> Reply {
    let status = StatusCode::from_u16(complaint.status).unwrap_or(StatusCode::BAD_REQUEST);
    json(status, &reply::error(complaint))
}

fn json(status: StatusCode, value: &Value) -> Reply {
    let mut reply = typed(value.to_string(), "application/json");
    *reply.status_mut() = status;
    reply
}

fn text(text: String) -> Reply {
    typed(text, "text/plain; charset=utf-8")
}

fn typed(body: String, kind: &'static str) -> Reply {
    let mut reply = Response::new(Full::new(Bytes::from(body)).boxed_unsync());
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    reply
}
