//! What an operator asks: health, workers, models, metrics. Lists are written on the control
//! runtime, so that a long one never delays a token.

mod engines;
mod workers;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use smg_wire::error::Refusal;
use smg_wire::route::{Dialect, Route, Row};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;

use crate::edge::{ACCEPT_PAUSE, Arriving, Reply, closing, json as json_reply, refuse};
use crate::gateway::Gateway;
use crate::relay::ReplyBody;
use crate::tasks;

/// The longest life of a connection to the metrics listener.
const SCRAPED_WITHIN: Duration = Duration::from_secs(30);

/// Answers a route that is no inference.
pub(crate) async fn answer(
    gw: &Arc<Gateway>,
    row: &'static Row,
    request: Request<Arriving>,
) -> Reply {
    let answered = match row.route {
        Route::Readiness => Ok(readiness(gw)),
        Route::Workers | Route::Worker => workers::answer(gw, row, request).await,
        Route::Models => on_control(gw, |gw| Ok(json_reply(models(gw).to_string()))).await,
        Route::ModelInfo | Route::ServerInfo | Route::HealthGenerate => {
            engines::one(gw, row.route, request.uri().query()).await
        }
        Route::Loads => on_control(gw, |gw| Ok(json_reply(engines::loads(gw).to_string()))).await,
        Route::FlushCache => engines::flush(gw).await,
        _ => Ok(Response::new(ReplyBody::whole("OK"))),
    };
    answered.unwrap_or_else(|refusal| {
        let reply = refuse(&refusal, Dialect::OpenAi);
        // Nobody reads the rest of what is too large.
        if refusal.status == StatusCode::PAYLOAD_TOO_LARGE { closing(reply) } else { reply }
    })
}

/// Does what may take a while where it delays no request.
async fn on_control(
    gw: &Arc<Gateway>,
    work: impl FnOnce(&Arc<Gateway>) -> Result<Reply, Refusal> + Send + 'static,
) -> Result<Reply, Refusal> {
    let shared = Arc::clone(gw);
    match tasks::spawn_on(&gw.control, "admin", async move { work(&shared) }).await {
        Ok(done) => done,
        Err(error) => {
            let what = format!("This could not be done: {error}.");
            Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", what))
        }
    }
}

fn readiness(gw: &Gateway) -> Reply {
    let (healthy, total) = gw.workers();
    let reason = if gw.drain.draining() {
        Some("draining")
    } else if healthy == 0 {
        Some("insufficient healthy workers")
    } else {
        None
    };
    let mut body = match reason {
        None => json!({"status": "ready"}),
        Some(reason) => json!({"status": "not ready", "reason": reason}),
    };
    if let Value::Object(fields) = &mut body {
        fields.insert("healthy_workers".to_owned(), healthy.into());
        fields.insert("total_workers".to_owned(), total.into());
    }
    let mut reply = json_reply(body.to_string());
    if reason.is_some() {
        *reply.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    reply
}

fn models(gw: &Gateway) -> Value {
    let fleet = gw.fleet.load();
    // Under its alias a model is served, not listed.
    let listed = |name: &&Arc<str>| !gw.settings.aliases.contains_key(&***name);
    let mut names: Vec<_> = fleet.models.keys().filter(listed).collect();
    names.sort();
    let data: Vec<_> = names
        .into_iter()
        .map(|id| json!({"id": &**id, "object": "model", "created": 0, "owned_by": "smg"}))
        .collect();
    json!({"object": "list", "data": data})
}

/// Serves `GET /metrics` for ever on the current runtime.
pub(crate) async fn listen_metrics(gw: Arc<Gateway>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((socket, _)) => {
                tasks::spawn("scrape", scraped(Arc::clone(&gw), socket));
            }
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Answers one scrape. Its connection is gone within [`SCRAPED_WITHIN`], whatever the other side does
/// or leaves: it takes a file descriptor that a client could need.
pub(crate) async fn scraped(
    gw: Arc<Gateway>,
    socket: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let reply = scrape(&gw, &request);
        async move { Ok::<_, Infallible>(reply) }
    });
    let mut scrapes = http1::Builder::new();
    scrapes.header_read_timeout(None).keep_alive(false);
    let served = scrapes.serve_connection(TokioIo::new(socket), service);
    match tokio::time::timeout(SCRAPED_WITHIN, served).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "scrape ended early"),
        Err(_) => tracing::debug!("scrape took too long"),
    }
}

fn scrape(gw: &Gateway, request: &Request<Incoming>) -> Reply {
    if request.uri().path() != "/metrics" || request.method() != Method::GET {
        let what = "The metrics listener answers GET /metrics only.";
        let refusal = Refusal::new(StatusCode::NOT_FOUND, "route_not_found", what);
        return refuse(&refusal, Dialect::OpenAi);
    }
    match gw.meters.render() {
        Ok(text) => {
            let mut reply = Response::new(ReplyBody::whole(text));
            let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
            reply.headers_mut().insert(header::CONTENT_TYPE, kind);
            reply
        }
        Err(error) => {
            let what = format!("The metrics could not be written: {error}.");
            let refusal = Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", what);
            refuse(&refusal, Dialect::OpenAi)
        }
    }
}
