//! The workers API: adding, showing, changing and removing workers of a running gateway
//! (docs/workers.md).

use std::sync::Arc;

use http::{HeaderValue, Method, Request, StatusCode, header};
use serde_json::{Map, Value, json};
use smg_wire::error::Refusal;
use smg_wire::route::Row;
use uuid::Uuid;

use super::on_control;
use crate::body::{self, Bounds};
use crate::edge::{Arriving, Reply, json as json_reply};
use crate::fleet::{self, MAX_WORKERS, Newcomer, Pending, Spec, Unwanted, Upstream, Wrong};
use crate::gateway::Gateway;
use crate::upstream::{Origin, OriginError};

/// Largest body of a request to this API.
const MAX_BODY: usize = 1 << 20;
/// What a worker counts as when nobody says.
const PRIORITY: u32 = 50;
const COST: f64 = 1.0;

/// The object a request carries.
type Fields = Map<String, Value>;

/// Answers `/workers` and `/workers/{worker_id}`.
pub(super) async fn answer(
    gw: &Arc<Gateway>,
    row: &'static Row,
    request: Request<Arriving>,
) -> Result<Reply, Refusal> {
    let (head, body) = request.into_parts();
    let Some(id) = row.captured(head.uri.path()) else {
        if head.method != Method::POST {
            return on_control(gw, |gw| Ok(json_reply(list(gw).to_string()))).await;
        }
        let fields = fields(gw, body).await?;
        return on_control(gw, |gw| add(gw, fields)).await;
    };
    let id = Uuid::try_parse(id).map_err(|_| {
        let what = "A worker's id is a UUID, as GET /workers lists it.";
        Refusal::new(StatusCode::BAD_REQUEST, "invalid_worker_id", what)
    })?;
    let anew = head.method == Method::PUT;
    match head.method {
        Method::DELETE => on_control(gw, move |gw| remove(gw, id)).await,
        Method::PUT | Method::PATCH => {
            let fields = fields(gw, body).await?;
            on_control(gw, move |gw| change(gw, id, fields, anew)).await
        }
        _ => on_control(gw, move |gw| show(gw, id)).await,
    }
}

fn list(gw: &Gateway) -> Value {
    let fleet = gw.fleet.load();
    let workers: Vec<_> = fleet.upstreams.iter().map(|upstream| worker(upstream)).collect();
    let total = workers.len();
    json!({
        "workers": workers,
        "total": total,
        "stats": {"prefill_count": 0, "decode_count": 0, "regular_count": total},
    })
}

fn worker(upstream: &Upstream) -> Value {
    let card = upstream.card.load();
    let terms = upstream.terms.load();
    let models: Vec<_> = card.models.iter().map(|id| json!({"id": &**id})).collect();
    let mut shown = json!({
        "id": upstream.uuid.to_string(),
        "url": upstream.worker.url,
        "model_id": card.main_model().map(|id| &**id),
        "models": models,
        "worker_type": upstream.worker.leg.as_str(),
        "connection_mode": "http",
        "runtime_type": card.runtime,
        "labels": terms.labels,
        "priority": terms.spec.priority.unwrap_or(PRIORITY),
        "cost": terms.spec.cost.unwrap_or(COST),
        "is_healthy": upstream.worker.healthy(),
        "status": upstream.state().as_str(),
        "load": upstream.worker.in_flight(),
        "http2": upstream.pool.is_http2(),
    });
    if let (Value::Object(shown), Some(rank)) = (&mut shown, upstream.rank) {
        shown.insert("dp_base_url".to_owned(), upstream.pool.origin().url().into());
        shown.insert("dp_rank".to_owned(), rank.into());
        shown.insert("dp_size".to_owned(), card.ranks().into());
    }
    shown
}

/// One worker with what was said of it: its overrides, and whether it has a key.
fn whole(upstream: &Upstream) -> Value {
    let mut shown = worker(upstream);
    let terms = upstream.terms.load();
    if let Value::Object(shown) = &mut shown {
        for block in ["health", "circuit_breaker", "overload", "http_pool"] {
            let said = terms.spec.said.get(block).filter(|said| !said.is_null());
            shown.extend(said.map(|said| (block.to_owned(), said.clone())));
        }
        shown.insert("has_api_key".to_owned(), terms.spec.api_key.is_some().into());
    }
    shown
}

fn show(gw: &Gateway, id: Uuid) -> Result<Reply, Refusal> {
    let shown = match gw.fleet.load().find(id) {
        Some(upstream) => whole(upstream),
        None => pending(id, &gw.fleet.find_pending(id).ok_or_else(unknown)?),
    };
    Ok(json_reply(shown.to_string()))
}

fn pending(id: Uuid, pending: &Pending) -> Value {
    json!({
        "id": id.to_string(),
        "url": pending.url,
        "is_healthy": false,
        "status": "pending",
        "message": pending.why,
    })
}

fn add(gw: &Arc<Gateway>, mut fields: Fields) -> Result<Reply, Refusal> {
    let ignored = fleet::ignored(&mut fields);
    let url = match fields.remove("url") {
        None | Some(Value::Null) => {
            let what = "The field 'url' is required.";
            let refusal = Refusal::new(StatusCode::BAD_REQUEST, "missing_required_parameter", what);
            return Err(Refusal { param: Some("url"), ..refusal });
        }
        Some(Value::String(url)) => url,
        Some(_) => return Err(bad_url("The field 'url' must be a string.".to_owned())),
    };
    let origin = origin(&url)?;
    let spec = Spec::read(fields).map_err(wrong)?;
    let url = origin.url().to_owned();
    let id = fleet::enlist(gw, Newcomer { origin, spec }).map_err(|why| unwanted(why, &url))?;
    let location = format!("/workers/{id}");
    let message = "The worker is registered as soon as it answers; until then GET on its \
                   location tells what it lacks.";
    let mut body = accepted(id, &url, message);
    body.insert("location".to_owned(), location.as_str().into());
    if !ignored.is_empty() {
        body.insert("ignored".to_owned(), ignored.into());
    }
    let mut reply = accept(body);
    if let Ok(location) = HeaderValue::try_from(location) {
        reply.headers_mut().insert(header::LOCATION, location);
    }
    Ok(reply)
}

fn remove(gw: &Arc<Gateway>, id: Uuid) -> Result<Reply, Refusal> {
    let url = fleet::remove(gw, id).ok_or_else(unknown)?;
    let message = "The worker takes no new request; those in flight there may end.";
    Ok(accept(accepted(id, &url, message)))
}

fn change(gw: &Arc<Gateway>, id: Uuid, mut fields: Fields, anew: bool) -> Result<Reply, Refusal> {
    if let Some(fixed) = ["url", "models"].into_iter().find(|name| fields.contains_key(*name)) {
        let what = format!("'{fixed}' cannot be changed: remove the worker and add it anew.");
        return Err(Refusal { param: Some(fixed), ..invalid(what) });
    }
    let ignored = fleet::ignored(&mut fields);
    let upstream = match fleet::change(gw, id, fields, anew) {
        Some(changed) => changed.map_err(wrong)?,
        None if gw.fleet.find_pending(id).is_some() => {
            let what = "The worker has not registered yet: remove it and add it anew.";
            return Err(Refusal::new(StatusCode::CONFLICT, "worker_pending", what));
        }
        None => return Err(unknown()),
    };
    let mut shown = whole(&upstream);
    if let (Value::Object(shown), false) = (&mut shown, ignored.is_empty()) {
        shown.insert("ignored".to_owned(), ignored.into());
    }
    Ok(json_reply(shown.to_string()))
}

fn accepted(id: Uuid, url: &str, message: &str) -> Fields {
    let fields = [
        ("status", "accepted"),
        ("worker_id", &*id.to_string()),
        ("url", url),
        ("message", message),
    ];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect()
}

fn accept(body: Fields) -> Reply {
    let mut reply = json_reply(Value::Object(body).to_string());
    *reply.status_mut() = StatusCode::ACCEPTED;
    reply
}

/// The object in a request's body.
async fn fields(gw: &Gateway, body: Arriving) -> Result<Fields, Refusal> {
    let bounds = Bounds { bytes: MAX_BODY, ..gw.limits.upload.clone() };
    let bytes = body::take(body, &bounds).await.map_err(|refusal| match refusal.status {
        StatusCode::PAYLOAD_TOO_LARGE => {
            let what = format!("A request to this API has at most {MAX_BODY} bytes.");
            Refusal { message: what.into(), ..refusal }
        }
        _ => refusal,
    })?;
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(invalid("The request body must be a JSON object.".to_owned())),
        Err(error) => {
            let what = format!("The request body is not valid JSON: {error}.");
            Err(Refusal::new(StatusCode::BAD_REQUEST, "invalid_json", what))
        }
    }
}

/// A worker's address; of a scheme that is not served, what to register instead.
fn origin(url: &str) -> Result<Origin, Refusal> {
    let scheme = url.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
    let instead = match scheme.as_deref() {
        Some("grpc" | "grpcs") => "start the engine's HTTP server and register its http:// URL",
        Some("zmq" | "ipc" | "tcp") => {
            "put the engine behind its own HTTP server and register that one's http:// URL"
        }
        _ => return Origin::parse(url).map_err(|why| bad_origin(&why)),
    };
    let what = format!("Workers at {}:// are not served: {instead}.", scheme.unwrap_or_default());
    let refusal = Refusal::new(StatusCode::BAD_REQUEST, "worker_scheme_unsupported", what);
    Err(Refusal { param: Some("url"), ..refusal })
}

fn bad_origin(why: &OriginError) -> Refusal {
    match why {
        OriginError::Scheme(_) => {
            let what = format!("The field 'url': {why}.");
            let refusal = Refusal::new(StatusCode::BAD_REQUEST, "worker_scheme_unsupported", what);
            Refusal { param: Some("url"), ..refusal }
        }
        _ => bad_url(format!("The field 'url': {why}.")),
    }
}

fn bad_url(what: String) -> Refusal {
    let refusal = Refusal::new(StatusCode::BAD_REQUEST, "invalid_worker_url", what);
    Refusal { param: Some("url"), ..refusal }
}

fn invalid(what: String) -> Refusal {
    Refusal::new(StatusCode::BAD_REQUEST, "invalid_worker_spec", what)
}

fn wrong(why: Wrong) -> Refusal {
    invalid(format!("The worker's spec cannot be meant: {why}."))
}

fn unknown() -> Refusal {
    let what = "No worker has this id; GET /workers lists those that are registered.";
    Refusal::new(StatusCode::NOT_FOUND, "worker_not_found", what)
}

fn unwanted(why: Unwanted, url: &str) -> Refusal {
    match why {
        Unwanted::Known => {
            let what = format!("The worker {url} is registered already, or about to be.");
            Refusal::new(StatusCode::CONFLICT, "worker_already_exists", what)
        }
        Unwanted::Full => {
            let what = format!("There are {MAX_WORKERS} workers, which is the most there may be.");
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_workers", what)
        }
    }
}
