//! What the flags of agents' sessions come to. A complaint about a secret, or about a URL that may hold
//! one, never shows it.

use std::time::Duration;

use smg_gateway::settings::{Affinity, Imbalance, Secret, SharedStore};

use super::{Complaint, Meant, count, fraction, positive};
use crate::flags::{AffinityFlags, StoreChoice};

/// What the environment says of Redis.
#[derive(Clone, Debug, Default)]
pub(crate) struct RedisEnv {
    pub(crate) host: Option<String>,
    pub(crate) port: Option<String>,
    pub(crate) password: Option<String>,
}

impl RedisEnv {
    /// What this process was given.
    pub(crate) fn read() -> Self {
        let said = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
        let (host, port, password) =
            (said("REDIS_HOST"), said("REDIS_PORT"), said("REDIS_PASSWORD"));
        Self { host, port, password }
    }

    /// As a URL; `None` without a host.
    fn url(&self) -> Meant<Option<Secret>> {
        let Some(host) = &self.host else { return Ok(None) };
        let port = self.port.as_deref().unwrap_or("6379");
        // Kubernetes sets REDIS_PORT to tcp://10.0.0.1:6379 for a service that is called redis.
        let digits = port.rsplit(':').next().unwrap_or(port);
        let number: Option<u16> = digits.parse().ok().filter(|port| *port > 0);
        let port = number.ok_or_else(|| {
            Complaint::about("REDIS_PORT", port, "expected a port from 1 to 65535")
        })?;
        let password = self.password.as_deref().map(encoded);
        let password = password.map_or_else(String::new, |password| format!(":{password}@"));
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        let Ok(url) = format!("redis://{password}{host}:{port}").parse();
        Ok(Some(url))
    }
}

/// Agents' sessions.
pub(super) fn affinity(flags: &AffinityFlags, env: &RedisEnv) -> Meant<Affinity> {
    if flags.session_id_accept_bare && flags.session_id_secret.is_empty() {
        let why = "without --session-id-secret ids always show an address; leave this out";
        return Err(Complaint(format!("--session-id-accept-bare: {why}")));
    }
    let store = store(flags, env)?;
    let imbalance = imbalance(flags)?;
    if let Some(Imbalance { factor, .. }) = imbalance.filter(|_| store.is_none()) {
        let why = "needs --redis-url: without a shared store no pin could follow a key that leaves";
        return Err(Complaint::about("--affinity-imbalance-factor", factor, why));
    }
    Ok(Affinity {
        lock_policy: flags.lock_policy,
        id_secrets: secrets(&flags.session_id_secret)?,
        accept_bare: flags.session_id_accept_bare,
        forward_headers: flags.forward_session_headers,
        imbalance,
        store,
    })
}

fn store(flags: &AffinityFlags, env: &RedisEnv) -> Meant<Option<SharedStore>> {
    let timeout = positive("--sticky-store-timeout-ms", flags.sticky_store_timeout_ms)?;
    let secret = flags.sticky_store_secret.clone();
    if secret.as_ref().is_some_and(|secret| secret.reveal().is_empty()) {
        return Err(Complaint("--sticky-store-secret: expected at least one letter".to_owned()));
    }
    let (url, named) = match &flags.redis_url {
        Some(url) => (Some(url.clone()), "--redis-url"),
        None => (env.url()?, "REDIS_HOST"),
    };
    let routing_keys = flags.sticky_store == StoreChoice::Redis;
    let Some(url) = url else {
        if routing_keys {
            return Err(Complaint("--sticky-store redis: needs --redis-url".to_owned()));
        }
        return Ok(None);
    };
    smg_gateway::settings::try_store(url.reveal()).map_err(|why| {
        Complaint(format!(
            "{named}: {why}; expected a URL like redis://user:password@host:6379, or rediss:// for \
             TLS (the value is not shown)"
        ))
    })?;
    let timeout = Duration::from_millis(timeout);
    Ok(Some(SharedStore { url, timeout, secret, routing_keys }))
}

/// Either flag turns the gate on, the other one then has what AIBrix has.
fn imbalance(flags: &AffinityFlags) -> Meant<Option<Imbalance>> {
    let (factor, gap) = (flags.affinity_imbalance_factor, flags.affinity_imbalance_min_gap);
    if factor.is_none() && gap.is_none() {
        return Ok(None);
    }
    let from_one = |factor| factor >= 1.0;
    let flag = "--affinity-imbalance-factor";
    Ok(Some(Imbalance {
        factor: fraction(flag, factor.unwrap_or(2.0), from_one, "1 or more")?,
        min_gap: count("--affinity-imbalance-min-gap", gap.unwrap_or(8))?,
    }))
}

fn secrets(typed: &[Secret]) -> Meant<Vec<Secret>> {
    if typed.iter().any(|secret| secret.reveal().len() < 16) {
        let why = "expected 16 letters or more, better 32 drawn at random (the value is not shown)";
        return Err(Complaint(format!("--session-id-secret: {why}")));
    }
    Ok(typed.to_vec())
}

/// A password as a URL can carry it.
fn encoded(password: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let letter = |byte| if plain(byte) { char::from(byte).into() } else { format!("%{byte:02X}") };
    password.bytes().map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(host: &str, port: Option<&str>, password: Option<&str>) -> Meant<String> {
        let env = RedisEnv {
            host: Some(host.to_owned()),
            port: port.map(str::to_owned),
            password: password.map(str::to_owned),
        };
        env.url().map(|url| url.unwrap().reveal().to_owned())
    }

    #[test]
    fn the_environment_as_a_url() {
        assert!(matches!(RedisEnv::default().url(), Ok(None)));
        for (host, port, password, expected) in [
            ("r", None, None, "redis://r:6379"),
            ("10.0.0.1", Some("7000"), None, "redis://10.0.0.1:7000"),
            ("r", Some("tcp://10.0.0.1:6380"), None, "redis://r:6380"),
            ("::1", None, Some("p@ss/w:rd"), "redis://:p%40ss%2Fw%3Ard@[::1]:6379"),
        ] {
            assert_eq!(url(host, port, password).unwrap(), expected);
            assert_eq!(smg_gateway::settings::try_store(expected), Ok(()), "{expected}");
        }
        assert!(url("r", Some("0"), None).is_err() && url("r", Some("x"), None).is_err());
    }
}
