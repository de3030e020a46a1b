use super::*;

fn secret(text: &str) -> Secret {
    let Ok(secret) = text.parse();
    secret
}

fn hmac_key(text: &str) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, text.as_bytes())
}

const ADDRESS: &str = "10.0.0.1:8000@3";

#[test]
fn a_token_is_read_under_its_secret_and_model_until_it_expires() {
    let (own, other) = (hmac_key("own"), hmac_key("other"));
    let token = seal(&own, "m", ADDRESS, 100).unwrap();
    assert_eq!(open(&own, "m", &token, 99).as_deref(), Some(ADDRESS.as_bytes()));
    assert_eq!(open(&own, "m", &token, 100), None, "expired");
    assert_eq!(open(&own, "n", &token, 99), None, "of another model");
    assert_eq!(open(&other, "m", &token, 99), None, "under another secret");
}

#[test]
fn no_byte_of_a_token_can_be_changed_or_left_out() {
    let own = hmac_key("own");
    let token = seal(&own, "m", ADDRESS, 100).unwrap();
    for at in 0..token.len() {
        let mut forged = token.clone();
        forged[at] ^= 1;
        assert_eq!(open(&own, "m", &forged, 0), None, "{at}");
        assert_eq!(open(&own, "m", &token[..at], 0), None, "cut at {at}");
    }
}

#[test]
fn a_token_shows_no_address_and_no_two_are_alike() {
    let own = hmac_key("own");
    let tokens = [seal(&own, "m", ADDRESS, 100).unwrap(), seal(&own, "m", ADDRESS, 100).unwrap()];
    assert_ne!(tokens[0], tokens[1]);
    let shown = |token: &[u8]| token.windows(4).any(|four| ADDRESS.as_bytes().starts_with(four));
    assert!(!shown(&tokens[0]) && !shown(&tokens[1]));
}

#[test]
fn two_secrets_roll_over() {
    let old = Ids::new(&[secret("old")], false);
    let both = Ids::new(&[secret("new"), secret("old")], false);
    let new = Ids::new(&[secret("new")], false);
    let later = unix_secs() + 1000;
    let id = |under: &str| issued::id(seal(&hmac_key(under), "m", ADDRESS, later).unwrap());
    let read = |ids: &Ids, id: &str| ids.read("m", id.as_bytes()).is_some();
    assert!(read(&old, &id("old")) && !read(&old, &id("new")));
    assert!(read(&both, &id("old")) && read(&both, &id("new")));
    assert!(!read(&new, &id("old")) && read(&new, &id("new")));
}

#[test]
fn bare_ids_are_read_without_a_secret_or_when_that_is_wanted() {
    let bare = issued::id(ADDRESS);
    for (secrets, accept, read) in
        [(vec![], false, true), (vec![secret("s")], false, false), (vec![secret("s")], true, true)]
    {
        let found = Ids::new(&secrets, accept).read("m", bare.as_bytes());
        assert_eq!(found.is_some(), read, "{secrets:?} {accept}");
    }
}
