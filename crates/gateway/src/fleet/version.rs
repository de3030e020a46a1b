//! Which HTTP a worker is spoken to in: settled when it registers (001, "Upstream HTTP/2").

use std::time::Duration;

use http::StatusCode;

use super::Spec;
use crate::settings::Settings;
use crate::upstream::{Pool, Version, fetch};

/// Bound on the question that both versions are asked.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Settles the version of a worker, asking it if that is how it is settled.
///
/// # Errors
/// When it answers in neither, in words for the operator.
pub(super) async fn resolve(pool: &Pool, spec: &Spec, settings: &Settings) -> Result<(), String> {
    let version = match spec.http2() {
        _ if spec.is_external() => Version::Http1,
        Some(true) => Version::Http2,
        Some(false) => Version::Http1,
        None if !settings.startup.http2 => Version::Http1,
        None if pool.origin().is_secure() => Version::Tls,
        None => probe(pool, spec, settings).await?,
    };
    pool.speak(version);
    if settings.startup.http2 {
        let (worker, http2) = (pool.origin().url(), version == Version::Http2);
        tracing::info!(worker, http2, "resolved worker HTTP version");
    }
    Ok(())
}

/// Asks in both versions at once. HTTP/2 it is as soon as the worker is well in it, and also if it
/// answers in it and is well in neither.
async fn probe(pool: &Pool, spec: &Spec, settings: &Settings) -> Result<Version, String> {
    let checks = spec.checks(settings.health.as_ref());
    let path = checks.map_or_else(|| "/health".to_owned(), |checks| checks.endpoint);
    let ask = async |version| {
        let answered = fetch(&pool.twin(version), &path, ANSWER_WITHIN).await;
        answered.map(|(status, _)| status)
    };
    let well =
        |answered: &Result<StatusCode, String>| answered.as_ref().is_ok_and(StatusCode::is_success);
    let both = tokio::try_join!(
        async {
            let http2 = ask(Version::Http2).await;
            if well(&http2) { Err(()) } else { Ok(http2) }
        },
        async { Ok(ask(Version::Http1).await) },
    );
    match both {
        Err(()) => Ok(Version::Http2),
        Ok((Ok(_), http1)) if !well(&http1) => Ok(Version::Http2),
        Ok((_, Ok(_))) => Ok(Version::Http1),
        Ok((_, Err(why))) => Err(format!("GET {path}: {why}")),
    }
}
