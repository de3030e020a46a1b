//! The gateway's keys: who is let in, and what is taken along to a worker.

use std::convert::Infallible;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use http::header::{AUTHORIZATION, HOST};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, StatusCode};
use siphasher::sip128::SipHasher24;
use smg_wire::access::{
    Caller, Credential, Door, Entry, Locks, bearer, credential, enter, is_of_a_page, is_passed_on,
    presented,
};
use smg_wire::error::Refusal;
use smg_wire::header::nominated;
use smg_wire::route::Row;

use crate::settings;

/// A key as given. It is never shown, by mistake or otherwise.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Box<str>);

impl Secret {
    /// The key itself.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// As the value of `Authorization`; `None` for a key that no header can carry.
    pub(crate) fn bearer(&self) -> Option<HeaderValue> {
        let mut value = HeaderValue::try_from(format!("Bearer {}", self.0)).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

impl FromStr for Secret {
    type Err = Infallible;

    fn from_str(key: &str) -> Result<Self, Infallible> {
        Ok(Self(key.into()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The doors and their keys. A key is kept and compared as a hash under a secret of this process:
/// how long a comparison takes says nothing about a hash that nobody can predict.
pub(crate) struct Access {
    hash: SipHasher24,
    /// Each key with its tenant's name; `--api-key` has none.
    inference: Vec<(u128, Option<Box<str>>)>,
    admin: Option<u128>,
    /// What a worker without a key of its own is sent: `--api-key`.
    gateway: Option<HeaderValue>,
    /// `--host`, by which this machine may be called too.
    listens: IpAddr,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").field("locks", &self.locks()).finish_non_exhaustive()
    }
}

impl Access {
    pub(crate) fn new(given: &settings::Access, listens: IpAddr) -> Self {
        let hash = SipHasher24::new_with_keys(rand::random(), rand::random());
        let tag = |key: &Secret| hash.hash(key.reveal().as_bytes()).as_u128();
        let own = given.api_key.iter().map(|key| (tag(key), None));
        let tenants =
            given.tenants.iter().map(|(name, key)| (tag(key), Some(name.as_str().into())));
        Self {
            hash,
            inference: own.chain(tenants).collect(),
            admin: given.admin_key.as_ref().map(tag),
            gateway: given.api_key.as_ref().and_then(Secret::bearer),
            listens,
        }
    }

    fn locks(&self) -> Locks {
        Locks { inference: !self.inference.is_empty(), admin: self.admin.is_some() }
    }

    /// Why a request may not come in, if it may not; `allowed` is whether it is of a page that may ask.
    pub(crate) fn refuses(
        &self,
        row: &Row,
        headers: &HeaderMap,
        peer: IpAddr,
        allowed: bool,
    ) -> Option<Refusal> {
        let door = row.door();
        // An open door looks at nobody.
        if door == Door::Open || (door == Door::Inference && !self.locks().inference) {
            return None;
        }
        let mut caller = self.known(headers);
        caller.page = !allowed && is_of_a_page(headers);
        caller.local = peer.to_canonical().is_loopback()
            && !is_passed_on(headers)
            && headers.get_all(HOST).iter().all(|host| calls_this_machine(host, self.listens));
        match enter(door, self.locks(), caller) {
            Entry::Granted => None,
            Entry::InvalidKey => Some(Refusal::new(
                StatusCode::UNAUTHORIZED,
                "invalid_api_key",
                "A valid API key is needed, as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.",
            )),
            Entry::LocalOnly => Some(Refusal::new(
                StatusCode::FORBIDDEN,
                "admin_loopback_only",
                "Without --admin-api-key this route answers this machine only, called localhost or \
                 by its loopback address.",
            )),
            Entry::NotForPages => Some(Refusal::new(
                StatusCode::FORBIDDEN,
                "admin_not_for_pages",
                "Without --admin-api-key this route answers no web page but those of \
                 --cors-allowed-origins.",
            )),
        }
    }

    /// Whether a key opens any door here.
    fn opens(&self, key: &[u8]) -> bool {
        let tag = self.hash.hash(key).as_u128();
        self.admin == Some(tag) || self.inference.iter().any(|(known, _)| *known == tag)
    }

    /// Whose keys a request brings. Every key is looked at, whichever fits.
    fn known(&self, headers: &HeaderMap) -> Caller {
        let mut caller = Caller::default();
        for key in presented(headers) {
            let tag = self.hash.hash(key).as_u128();
            for (known, tenant) in &self.inference {
                if *known == tag {
                    caller.inference_key = true;
                    tracing::debug!(tenant = tenant.as_deref(), "let in");
                }
            }
            caller.admin_key |= self.admin == Some(tag);
        }
        caller
    }

    /// What a worker is sent that has `worker` for a key of its own.
    pub(crate) fn for_worker(&self, worker: Option<HeaderValue>) -> Option<HeaderValue> {
        worker.or_else(|| self.gateway.clone())
    }

    /// The `Authorization` of a request that goes to a worker which is sent `ours`. A vendor
    /// (`external`) asks for the client's own key, but never sees one that is meant for here.
    pub(crate) fn upstream<'a>(
        &self,
        ours: Option<&'a HeaderValue>,
        headers: &'a HeaderMap,
        external: bool,
    ) -> Option<&'a HeaderValue> {
        let guarded = self.locks().inference && !external;
        let travels = !nominated(headers, &AUTHORIZATION);
        let mistaken = if external {
            headers.get(AUTHORIZATION).and_then(bearer).is_some_and(|key| self.opens(key))
        } else {
            self.admin.is_some() && self.known(headers).admin_key
        };
        match credential(ours, None, guarded, mistaken) {
            Credential::Ours(value) => Some(value),
            Credential::Clients => headers.get(AUTHORIZATION).filter(|_| travels),
            Credential::None => None,
        }
    }
}

/// Whether a `Host` calls a gateway that listens at `listens` by a name that nobody else can give it. A
/// page whose own name was made to lead to this machine (DNS rebinding) asks as if it were of the same
/// origin, and only the name tells it from the operator.
fn calls_this_machine(host: &HeaderValue, listens: IpAddr) -> bool {
    let Ok(authority) = Authority::try_from(host.as_bytes()) else { return false };
    if authority.as_str().contains('@') {
        return false;
    }
    let name = authority.host();
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    if let Ok(address) = address.parse::<IpAddr>() {
        let address = address.to_canonical();
        return address.is_loopback() || address == listens.to_canonical();
    }
    // Systems and browsers lead no name below it elsewhere (RFC 6761, 6.3).
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_called_by_names_that_nobody_else_can_give_it() {
        let listens = "10.0.0.1".parse().unwrap();
        for (host, ours) in [
            ("localhost", true),
            ("LocalHost:30000", true),
            ("localhost.", true),
            ("smg.localhost:30000", true),
            ("127.0.0.1:30000", true),
            ("127.9.9.9", true),
            ("[::1]:30000", true),
            ("[::ffff:127.0.0.1]", true),
            ("10.0.0.1:30000", true),
            ("10.0.0.2:30000", false),
            ("0.0.0.0:30000", false),
            ("evil.example:30000", false),
            ("localhost.evil.example", false),
            ("notlocalhost", false),
            ("127.0.0.1.evil.example", false),
            ("localhost@evil.example", false),
            ("evil@localhost", false),
            ("", false),
        ] {
            let value = HeaderValue::from_str(host).unwrap();
            assert_eq!(calls_this_machine(&value, listens), ours, "{host}");
        }
    }

    fn secret(key: &str) -> Secret {
        key.parse().unwrap()
    }

    #[test]
    fn nothing_that_is_printed_holds_a_key() {
        let given = settings::Access {
            api_key: Some(secret("hush-1")),
            tenants: vec![("t".to_owned(), secret("hush-2"))],
            admin_key: Some(secret("hush-3")),
            ..settings::Access::default()
        };
        let access = Access::new(&given, IpAddr::from([127, 0, 0, 1]));
        let shown = format!("{given:?} {access:?} {:?}", access.for_worker(None));
        assert!(!shown.contains("hush"), "{shown}");
        assert!(shown.contains("Sensitive"), "{shown}");
    }
}
