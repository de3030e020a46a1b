//! `x-session-id` as it is issued and read back (004). Openly it is the base64 of an address; under a
//! secret it is a token that only gateways with that secret can make or read: encrypted, so that it
//! shows no address, bound to a model, and good for a day from its last use.

use std::time::{SystemTime, UNIX_EPOCH};

use http::HeaderValue;
use rand::RngExt as _;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::hmac;
use smg_decide::keys::issued;

use crate::fleet::Upstream;
use crate::settings::Secret;

/// How long a token is good for. Each answer brings a new one.
const LIFE_SECS: u64 = 24 * 3600;
/// What is in front of the sealed part.
const SALT: usize = 16;
/// The seconds in front of the address.
const EXPIRY: usize = 8;
/// Every token has a key of its own, so that the nonce can always be the same.
const NONCE: [u8; 12] = [0; 12];

/// How ids are issued and read.
#[derive(Debug)]
pub(super) struct Ids {
    /// The first one issues; all are read. Without any, ids are bare.
    secrets: Vec<hmac::Key>,
    accept_bare: bool,
}

impl Ids {
    pub(super) fn new(secrets: &[Secret], accept_bare: bool) -> Self {
        let key = |secret: &Secret| hmac::Key::new(hmac::HMAC_SHA256, secret.reveal().as_bytes());
        Self { secrets: secrets.iter().map(key).collect(), accept_bare }
    }

    /// The id of a worker of this model.
    pub(super) fn issue(&self, model: &str, upstream: &Upstream) -> Option<HeaderValue> {
        let Some(secret) = self.secrets.first() else { return Some(upstream.session.clone()) };
        let token = seal(secret, model, &upstream.address, unix_secs() + LIFE_SECS)?;
        HeaderValue::try_from(issued::id(token)).ok()
    }

    /// The address that an id of this model names; whether it is anybody's is for the caller to see.
    pub(super) fn read(&self, model: &str, id: &[u8]) -> Option<Vec<u8>> {
        let said = issued::read(id)?;
        let now = unix_secs();
        let opened = self.secrets.iter().find_map(|secret| open(secret, model, &said, now));
        let bare = self.secrets.is_empty() || self.accept_bare;
        opened.or_else(|| bare.then_some(said))
    }
}

fn seal(secret: &hmac::Key, model: &str, address: &str, expiry: u64) -> Option<Vec<u8>> {
    let salt: [u8; SALT] = rand::rng().random();
    let mut sealed = expiry.to_be_bytes().to_vec();
    sealed.extend(address.as_bytes());
    let nonce = Nonce::assume_unique_for_key(NONCE);
    let aad = Aad::from(model.as_bytes());
    key(secret, &salt)?.seal_in_place_append_tag(nonce, aad, &mut sealed).ok()?;
    Some([&salt[..], &sealed].concat())
}

fn open(secret: &hmac::Key, model: &str, token: &[u8], now: u64) -> Option<Vec<u8>> {
    let (salt, sealed) = token.split_first_chunk::<SALT>()?;
    let mut sealed = sealed.to_vec();
    let nonce = Nonce::assume_unique_for_key(NONCE);
    let aad = Aad::from(model.as_bytes());
    let opened = key(secret, salt)?.open_in_place(nonce, aad, &mut sealed).ok()?;
    let (expiry, address) = opened.split_first_chunk::<EXPIRY>()?;
    (u64::from_be_bytes(*expiry) > now).then(|| address.to_vec())
}

/// The key of one token. Salts are drawn at random: with 128 bits two alike are not to be expected.
fn key(secret: &hmac::Key, salt: &[u8; SALT]) -> Option<LessSafeKey> {
    let mut context = hmac::Context::with_key(secret);
    context.update(b"smg session id 1");
    context.update(salt);
    UnboundKey::new(&CHACHA20_POLY1305, context.sign().as_ref()).ok().map(LessSafeKey::new)
}

fn unix_secs() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests;
