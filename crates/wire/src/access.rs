//! Who may ask for what, and whose key goes along to the worker.

use http::header::{self, HeaderMap, HeaderValue};

use crate::route::{Route, Row};

/// What a route wants of those who come through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Door {
    /// Nothing: probes carry no key.
    Open,
    /// A client's key, if the gateway has any.
    Inference,
    /// The operator's key, or at least the operator's machine.
    Admin,
}

impl Row {
    /// The door before this route. A route that nobody thought of here is an operator's.
    #[must_use]
    pub const fn door(&self) -> Door {
        match self.route {
            Route::Health | Route::Liveness | Route::Readiness => Door::Open,
            // A probe as well, although an engine has to say a word for it.
            Route::HealthGenerate | Route::Other => Door::Open,
            Route::Models | Route::ModelInfo | Route::ServerInfo => Door::Inference,
            _ if self.inference.is_some() => Door::Inference,
            _ => Door::Admin,
        }
    }
}

/// The keys a gateway was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Locks {
    /// `--api-key` or `--tenant-api-key`.
    pub inference: bool,
    /// `--admin-api-key`.
    pub admin: bool,
}

/// What is known of who asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// Brought a key of `--api-key` or `--tenant-api-key`.
    pub inference_key: bool,
    /// Brought the key of `--admin-api-key`.
    pub admin_key: bool,
    /// Sits at this machine.
    pub local: bool,
    /// Is a web page whose origin the operator has not allowed.
    pub page: bool,
}

/// Whether somebody comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Yes.
    Granted,
    /// A key is needed, and none or another one was brought.
    InvalidKey,
    /// Without an admin key in the world, only this machine is the operator's.
    LocalOnly,
    /// A page that is open in somebody's browser is never the operator: it needs the admin key.
    NotForPages,
}

/// Whether `caller` comes through `door`.
#[must_use]
pub const fn enter(door: Door, locks: Locks, caller: Caller) -> Entry {
    let (locked, brought) = match door {
        Door::Open => (false, false),
        Door::Inference => (locks.inference, caller.inference_key),
        Door::Admin => (locks.admin, caller.admin_key),
    };
    match door {
        _ if locked && !brought => Entry::InvalidKey,
        Door::Admin if !locks.admin && locks.inference && !caller.local => Entry::LocalOnly,
        Door::Admin if !locks.admin && caller.page => Entry::NotForPages,
        _ => Entry::Granted,
    }
}

/// The keys a request brings: after `Bearer` in `Authorization`, and in `x-api-key`. SDKs send
/// whichever their vendor uses, some send both and a dummy in one of them, so either may fit.
pub fn presented(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(bearer);
    let named = headers.get("x-api-key").map(|value| value.as_bytes().trim_ascii());
    bearer.into_iter().chain(named)
}

/// The key in an `Authorization: Bearer`.
#[must_use]
pub fn bearer(value: &HeaderValue) -> Option<&[u8]> {
    let (scheme, key) = value.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
}

/// Whether a request that arrived from this machine was only passed on by it: by a proxy, or by a
/// browser for a page of somebody else. Neither is the operator.
#[must_use]
pub fn is_passed_on(headers: &HeaderMap) -> bool {
    const TRACES: [&str; 5] =
        ["forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via"];
    is_of_a_page(headers) || TRACES.iter().any(|trace| headers.contains_key(*trace))
}

/// Whether a web page made this request. What it asks without reading the answer, such as an image or
/// a form, has no preflight, and an image no `Origin`; a user who types the address comes from no site.
#[must_use]
pub fn is_of_a_page(headers: &HeaderMap) -> bool {
    headers.contains_key(header::ORIGIN)
        || headers.get_all("sec-fetch-site").iter().any(|site| site != "none")
}

/// Whose credential a request takes along to the worker: exactly one, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credential<K> {
    /// One that the operator gave: the worker's own, else the gateway's.
    Ours(K),
    /// The client's `Authorization`, as it came.
    Clients,
    /// None.
    None,
}

/// Which credential goes upstream. `worker` is the worker's own key, `gateway` is `--api-key`. The
/// client's goes only where the gateway asks for none itself (`guarded`), and never one that opens
/// a door here (`ours`), such as an admin key sent to the wrong route.
pub fn credential<K>(
    worker: Option<K>,
    gateway: Option<K>,
    guarded: bool,
    ours: bool,
) -> Credential<K> {
    match worker.or(gateway) {
        Some(key) => Credential::Ours(key),
        None if guarded || ours => Credential::None,
        None => Credential::Clients,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_has_its_door() {
        for row in Route::rows() {
            let door = match row.path {
                "/health" | "/liveness" | "/readiness" | "other" => Door::Open,
                "/health_generate" => Door::Open,
                "/v1/models" | "/get_model_info" | "/get_server_info" => Door::Inference,
                _ if row.inference.is_some() => Door::Inference,
                _ => Door::Admin,
            };
            assert_eq!(row.door(), door, "{}", row.path);
        }
        for path in ["/workers", "/flush_cache", "/get_loads"] {
            assert_eq!(Route::find(path).door(), Door::Admin);
        }
        assert_eq!(Route::find("/v1/responses").door(), Door::Inference);
    }

    const NOBODY: Caller =
        Caller { inference_key: false, admin_key: false, local: false, page: false };
    const CLIENT: Caller = Caller { inference_key: true, ..NOBODY };
    const OPERATOR: Caller = Caller { admin_key: true, ..NOBODY };
    const LOCAL: Caller = Caller { local: true, ..NOBODY };
    const PAGE: Caller = Caller { page: true, ..NOBODY };

    #[test]
    fn who_comes_through_which_door() {
        use Entry::{Granted as Yes, InvalidKey as Key, LocalOnly as Local, NotForPages as Page};
        let locks = |inference, admin| Locks { inference, admin };
        for (door, locks, entries) in [
            // In the order nobody, client, operator, local, a page.
            (Door::Open, locks(true, true), [Yes, Yes, Yes, Yes, Yes]),
            (Door::Inference, locks(false, false), [Yes, Yes, Yes, Yes, Yes]),
            (Door::Inference, locks(true, false), [Key, Yes, Key, Key, Key]),
            (Door::Inference, locks(false, true), [Yes, Yes, Yes, Yes, Yes]),
            (Door::Inference, locks(true, true), [Key, Yes, Key, Key, Key]),
            (Door::Admin, locks(false, false), [Yes, Yes, Yes, Yes, Page]),
            (Door::Admin, locks(true, false), [Local, Local, Local, Yes, Local]),
            (Door::Admin, locks(false, true), [Key, Key, Yes, Key, Key]),
            (Door::Admin, locks(true, true), [Key, Key, Yes, Key, Key]),
        ] {
            let got =
                [NOBODY, CLIENT, OPERATOR, LOCAL, PAGE].map(|caller| enter(door, locks, caller));
            assert_eq!(got, entries, "{door:?} {locks:?}");
        }
    }

    #[test]
    fn a_key_comes_as_bearer_or_as_x_api_key() {
        for (name, value, key) in [
            ("authorization", "Bearer k", Some("k")),
            ("authorization", "bearer  k ", Some("k")),
            ("authorization", "BEARER ", Some("")),
            ("authorization", "Basic k", None),
            ("authorization", "k", None),
            ("authorization", "Bearerk", None),
            ("x-api-key", "k", Some("k")),
            ("x-api-key", "Bearer k", Some("Bearer k")),
            ("api-key", "k", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static(value));
            let found = presented(&headers).next().map(|key| std::str::from_utf8(key).unwrap());
            assert_eq!(found, key, "{name}: {value}");
        }
        let mut both = HeaderMap::new();
        both.insert("x-api-key", HeaderValue::from_static("real"));
        both.insert("authorization", HeaderValue::from_static("Bearer dummy"));
        assert!(presented(&both).eq([&b"dummy"[..], &b"real"[..]]));
    }

    #[test]
    fn a_proxy_or_a_page_on_this_machine_is_not_the_operator() {
        for (name, passed_on) in [
            ("x-forwarded-for", true),
            ("forwarded", true),
            ("via", true),
            ("origin", true),
            ("sec-fetch-site", true),
            ("user-agent", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static("x"));
            assert_eq!(is_passed_on(&headers), passed_on, "{name}");
        }
        for (site, passed_on) in
            [("none", false), ("same-origin", true), ("same-site", true), ("cross-site", true)]
        {
            let mut headers = HeaderMap::new();
            headers.insert("sec-fetch-site", HeaderValue::from_static(site));
            assert_eq!(is_passed_on(&headers), passed_on, "{site}");
        }
    }

    #[test]
    fn exactly_one_credential_goes_upstream() {
        use Credential::{Clients, None as Nothing, Ours};
        for (worker, gateway, guarded, ours, goes) in [
            (None, None, false, false, Clients),
            (None, None, false, true, Nothing),
            (None, None, true, false, Nothing),
            (None, Some("gw"), true, true, Ours("gw")),
            (Some("w"), None, false, false, Ours("w")),
            (Some("w"), None, true, true, Ours("w")),
            (Some("w"), Some("gw"), true, true, Ours("w")),
        ] {
            assert_eq!(credential(worker, gateway, guarded, ours), goes);
        }
    }
}
