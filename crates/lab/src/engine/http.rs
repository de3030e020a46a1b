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
    let told = match (request.method(), request.uri().path()) {
        (&Method::POST, "/v1/messages/count_tokens") => return count(core, request).await,
        (&Method::POST, path) => match form(path) {
            Some(form) => return complete(core, form, request).await,
            None => None,
        },
        (&Method::GET, path) => told(&core, path),
        _ => None,
    };
    told.unwrap_or_else(|| {
        let what = format!("There is no {} {} here", request.method(), request.uri().path());
        refuse(&Complaint::new(404, "not_found", what))
    })
}

fn form(path: &str) -> Option<Form> {
    match path {
        "/v1/chat/completions" => Some(Form::Chat),
        "/v1/completions" => Some(Form::Text),
        "/v1/messages" => Some(Form::Messages),
        _ => None,
    }
}

/// What the engine tells of itself.
fn told(core: &Core, path: &str) -> Option<Reply> {
    Some(match path {
        "/health" => text(String::new()),
        "/metrics" => text(core.metrics()),
        "/v1/models" => json(StatusCode::OK, &core.models()),
        "/server_info" | "/get_server_info" => json(StatusCode::OK, &core.server_info()),
        "/model_info" | "/get_model_info" => json(StatusCode::OK, &core.model_info()),
        "/loads" | "/v1/loads" => json(StatusCode::OK, &core.loads()),
        _ => return None,
    })
}

async fn complete(core: Arc<Core>, form: Form, request: Request<Incoming>) -> Reply {
    match read(&core, form, request).await {
        Ok(ask) => deliver(core, ask).await,
        Err(complaint) => refuse(&complaint),
    }
}

/// How long a prompt is, without reading it.
async fn count(core: Arc<Core>, request: Request<Incoming>) -> Reply {
    match read(&core, Form::Messages, request).await {
        Ok(ask) => json(StatusCode::OK, &serde_json::json!({"input_tokens": ask.prompt.len()})),
        Err(complaint) => refuse(&complaint),
    }
}

async fn read(core: &Core, form: Form, request: Request<Incoming>) -> Result<Ask, Complaint> {
    let body = Limited::new(request, LARGEST_BODY).collect().await.map_err(|why| {
        let status = if why.is::<http_body_util::LengthLimitError>() { 413 } else { 400 };
        Complaint::new(status, "bad_body", why.to_string())
    })?;
    Ask::read(form, &body.to_bytes(), &core.profile)
}

async fn deliver(core: Arc<Core>, ask: Ask) -> Reply {
    let head = Letterhead::new(&ask, core.next_number(), &core.profile.model);
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
