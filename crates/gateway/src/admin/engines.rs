//! What engines themselves are asked through the gateway: who they are, whether they can still say a
//! word, how busy they are, and to forget what they have cached.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use smg_wire::error::Refusal;
use smg_wire::header::ROUTED_WORKER;
use smg_wire::route::Route;
use tokio::task::JoinHandle;

use crate::edge::{Reply, json as json_reply};
use crate::fleet::{Upstream, one_each};
use crate::gateway::Gateway;
use crate::relay::ReplyBody;
use crate::tasks;
use crate::upstream::{Question, ask};

/// Bound on an engine's word on itself.
const INFO_WITHIN: Duration = Duration::from_secs(5);
/// Bound on what has to wait for what the engine is doing.
const DEED_WITHIN: Duration = Duration::from_secs(30);
/// Engines asked at once.
const MAX_ASKED: usize = 64;
/// Engines named when some did not do as they were told.
const MAX_NAMED: usize = 5;

/// Answers for one engine: the first that is ready.
pub(super) async fn one(
    gw: &Arc<Gateway>,
    route: Route,
    query: Option<&str>,
) -> Result<Reply, Refusal> {
    let (paths, within): (&[&str], _) = match route {
        // Older and newer engines have it under different names.
        Route::ModelInfo => (&["/get_model_info", "/model_info"], INFO_WITHIN),
        Route::ServerInfo => (&["/get_server_info", "/server_info"], INFO_WITHIN),
        _ => (&["/health_generate"], DEED_WITHIN),
    };
    let now = gw.clock.millis();
    let fleet = gw.fleet.load();
    let ready = fleet.upstreams.iter().find(|upstream| upstream.worker.available(now));
    let Some(upstream) = ready.map(Arc::clone) else {
        let what = "No worker is available.";
        let status = StatusCode::SERVICE_UNAVAILABLE;
        let refusal = Refusal::new(status, "no_available_workers", what);
        return Err(Refusal { retry_after: Some(1), ..refusal });
    };
    let paths: Vec<_> = paths.iter().map(|path| with_query(path, query)).collect();
    let routed = upstream.routed.clone();
    let _turn = match route {
        Route::HealthGenerate => Some(gw.words.try_acquire().map_err(|_| busy())?),
        _ => None,
    };
    let asked = async move { first_there(&upstream, &paths, within).await };
    let told = tasks::spawn_on(&gw.control, "engine", asked).await;
    let (status, body) = told
        .map_err(|error| error.to_string())
        .flatten()
        .map_err(|why| Refusal::new(StatusCode::BAD_GATEWAY, "engine_not_answering", why))?;
    let mut reply = if route == Route::HealthGenerate {
        Reply::new(ReplyBody::whole(body))
    } else {
        json_reply(without_secrets(&body)?)
    };
    *reply.status_mut() = status;
    reply.headers_mut().insert(ROUTED_WORKER, routed);
    Ok(reply)
}

/// Anybody may ask for a word, so nobody waits for one: a queue would grow, and the engine would do
/// little else.
fn busy() -> Refusal {
    let what = "Engines are being asked for a word by as many as may ask at once.";
    let refusal = Refusal::new(StatusCode::TOO_MANY_REQUESTS, "health_generate_busy", what);
    Refusal { retry_after: Some(1), ..refusal }
}

fn with_query(path: &str, query: Option<&str>) -> String {
    query.map_or_else(|| path.to_owned(), |query| format!("{path}?{query}"))
}

/// What is at the first of these paths that the engine knows.
async fn first_there(
    upstream: &Upstream,
    paths: &[String],
    within: Duration,
) -> Result<(StatusCode, Bytes), String> {
    let mut last = Err("nothing was asked".to_owned());
    for path in paths {
        last = ask(&upstream.pool, Question::what(path), within).await;
        if !matches!(last, Ok((StatusCode::NOT_FOUND, _))) {
            break;
        }
    }
    last.map_err(|why| format!("{} does not answer: {why}.", upstream.worker.url))
}

/// An engine's word on itself, less the keys it was started with: they are mostly the gateway's own.
fn without_secrets(body: &Bytes) -> Result<String, Refusal> {
    let mut said: Value = serde_json::from_slice(body).map_err(|error| {
        let what = format!("The engine's answer is no JSON: {error}.");
        Refusal::new(StatusCode::BAD_GATEWAY, "engine_not_answering", what)
    })?;
    hide(&mut said);
    Ok(said.to_string())
}

fn hide(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.iter_mut().for_each(|(name, value)| match is_secret(name) {
                true => *value = Value::Null,
                false => hide(value),
            })
        }
        Value::Array(items) => items.iter_mut().for_each(hide),
        _ => {}
    }
}

/// Words before `token` that make it a token of a model's vocabulary; any other token opens something.
const VOCABULARY: [&str; 14] = [
    "audio", "bos", "cls", "eos", "image", "mask", "max", "pad", "sep", "special", "stop", "think",
    "unk", "video",
];

/// Whether a field of this name holds what opens a door: for keys, tokens and passwords hiding one too
/// many costs less than showing one.
fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase().replace('-', "_");
    let token = name == "token"
        || name
            .strip_suffix("_token")
            .is_some_and(|of| !VOCABULARY.contains(&of.rsplit('_').next().unwrap_or_default()));
    let key = ["api_key", "apikey", "private_key", "access_key"];
    let word = ["password", "passphrase", "secret", "credential", "authorization"];
    token
        || key.iter().any(|key| name.ends_with(key))
        || word.iter().any(|word| name.contains(word))
}

/// How busy each worker is: what this gateway has in flight there, and what its engine reported last.
pub(super) fn loads(gw: &Gateway) -> Value {
    let fleet = gw.fleet.load();
    let worker = |upstream: &Arc<Upstream>| {
        let report = upstream.worker.load().report().map(|report| {
            json!({
                "running_requests": report.running,
                "waiting_requests": report.waiting,
                "waiting_tokens": report.waiting_tokens,
                "gen_throughput": report.throughput,
                "token_usage": report.token_usage,
            })
        });
        json!({
            "worker": upstream.worker.url,
            "model": upstream.card.load().main_model().map(|id| &**id),
            "load": upstream.worker.in_flight(),
            "engine": report,
        })
    };
    let workers: Vec<_> = fleet.upstreams.iter().map(worker).collect();
    json!({"total": workers.len(), "workers": workers})
}

/// Has every healthy engine forget its cache, and forgets what the gateway knew of it. An engine that
/// is down has nothing cached when it comes back.
pub(super) async fn flush(gw: &Arc<Gateway>) -> Result<Reply, Refusal> {
    let flushing = Arc::clone(gw);
    let done = tasks::spawn_on(&gw.control, "flush", async move { flush_all(&flushing).await });
    let (flushed, failed) = done.await.unwrap_or_default();
    tracing::info!(flushed, failed = failed.len(), "engine caches flushed");
    if failed.is_empty() {
        return Ok(json_reply(json!({"status": "ok", "flushed": flushed}).to_string()));
    }
    let named: Vec<_> = failed.iter().take(MAX_NAMED).map(String::as_str).collect();
    let (count, of) = (failed.len(), failed.len() + flushed);
    let what = format!("{count} of {of} engines did not flush their cache: {}.", named.join("; "));
    Err(Refusal::new(StatusCode::BAD_GATEWAY, "flush_cache_failed", what))
}

/// How many engines did, and which did not and why.
async fn flush_all(gw: &Arc<Gateway>) -> (usize, Vec<String>) {
    let fleet = gw.fleet.load();
    let healthy = fleet.upstreams.iter().filter(|upstream| upstream.worker.healthy());
    let engines: Vec<_> = one_each(healthy).collect();
    let (mut flushed, mut failed) = (0, Vec::new());
    for some in engines.chunks(MAX_ASKED) {
        let asked: Vec<_> = some.iter().map(|upstream| flush_one(gw, upstream)).collect();
        for (upstream, told) in some.iter().zip(asked) {
            match told.await.map_err(|error| error.to_string()).flatten() {
                Ok((status, _)) if status.is_success() => {
                    flushed += 1;
                    forget(gw, upstream);
                }
                Ok((status, _)) => {
                    failed.push(format!("{}: {status}", upstream.pool.origin().url()))
                }
                Err(why) => failed.push(format!("{}: {why}", upstream.pool.origin().url())),
            }
        }
    }
    (flushed, failed)
}

type Told = Result<(StatusCode, Bytes), String>;

fn flush_one(gw: &Gateway, upstream: &Arc<Upstream>) -> JoinHandle<Told> {
    let pool = Arc::clone(&upstream.pool);
    tasks::spawn_on(&gw.control, "flush", async move {
        let question = Question { method: Method::POST, path: "/flush_cache", whole: false };
        ask(&pool, question, DEED_WITHIN).await
    })
}

/// Policies that remember what an engine holds learn that it holds nothing.
fn forget(gw: &Gateway, flushed: &Upstream) {
    let fleet = gw.fleet.load();
    let same = |upstream: &&Arc<Upstream>| Arc::ptr_eq(&upstream.pool, &flushed.pool);
    for upstream in fleet.upstreams.iter().filter(same) {
        let card = upstream.card.load();
        let groups = card.models.iter().filter_map(|model| fleet.models.get(model));
        groups.for_each(|group| group.forget(upstream.worker.id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_opens_a_door_is_told_from_what_a_tokenizer_knows() {
        for (name, secret) in [
            ("api_key", true),
            ("admin_api_key", true),
            ("admin-api-key", true),
            ("API_KEY", true),
            ("openai_apikey", true),
            ("hf_token", true),
            ("token", true),
            ("access_token", true),
            ("aws_secret_access_key", true),
            ("ssl_keyfile_password", true),
            ("client_secret", true),
            ("authorization", true),
            ("eos_token", false),
            ("bos_token", false),
            ("pad_token", false),
            ("unk_token", false),
            ("audio_eos_token", false),
            ("image_token", false),
            ("eos_token_id", false),
            ("max_total_num_tokens", false),
            ("tokenizer_path", false),
            ("skip_tokenizer_init", false),
            ("ssl_keyfile", false),
            ("key", false),
        ] {
            assert_eq!(is_secret(name), secret, "{name}");
        }
    }

    #[test]
    fn an_engine_tells_no_keys() {
        let said = br#"{"api_key":"hush","model_path":"m","max_total_num_tokens":5,
            "server_args":[{"admin_api_key":"hush","hf_token":"hush","ssl_keyfile_password":"hush",
            "tokenizer_path":"t","client_secret":{"a":"hush"}}]}"#;
        let told = without_secrets(&Bytes::from_static(said)).unwrap();
        assert!(!told.contains("hush"), "{told}");
        for kept in
            [r#""model_path":"m""#, r#""max_total_num_tokens":5"#, r#""tokenizer_path":"t""#]
        {
            assert!(told.contains(kept), "{told}");
        }
        assert_eq!(without_secrets(&Bytes::from_static(b"<html>")).unwrap_err().status, 502);
    }
}
