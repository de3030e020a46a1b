//! What the flags of access come to. A complaint about a key never shows it: it may be right except
//! for its last letter.

use smg_gateway::settings::{Access, Cors, Secret};

use super::{Complaint, Meant};
use crate::flags::AccessFlags;

/// Who may ask.
pub(super) fn access(flags: &AccessFlags) -> Meant<Access> {
    let api_key = key("--api-key", flags.api_key.as_ref())?;
    let admin_key = key("--admin-api-key", flags.admin_api_key.as_ref())?;
    let mut tenants: Vec<(String, Secret)> = Vec::new();
    for typed in &flags.tenant_api_key {
        let (name, own) = tenant(typed)?;
        let known = tenants.iter().any(|(other, key)| *other == name || *key == own);
        if known || api_key.as_ref() == Some(&own) {
            let why = "its name or its key is another one's too";
            return Err(Complaint::about("--tenant-api-key", format!("{name}=…"), why));
        }
        tenants.push((name, own));
    }
    let clients = api_key.iter().chain(tenants.iter().map(|(_, key)| key));
    if clients.into_iter().any(|key| Some(key) == admin_key.as_ref()) {
        let why = "the operator's key must not be a client's too";
        return Err(Complaint(format!("--admin-api-key: {why}")));
    }
    Ok(Access { api_key, tenants, admin_key, cors: cors(&flags.cors_allowed_origins)? })
}

fn key(flag: &str, typed: Option<&Secret>) -> Meant<Option<Secret>> {
    match typed {
        Some(key) if !can_be_sent(key.reveal()) => Err(Complaint(format!(
            "{flag}: expected visible ASCII characters without spaces (the value is not shown)"
        ))),
        key => Ok(key.cloned()),
    }
}

/// Whether a header can carry it as one word.
fn can_be_sent(key: &str) -> bool {
    !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic())
}

/// `NAME=KEY`; a key may hold further equals signs.
fn tenant(typed: &Secret) -> Meant<(String, Secret)> {
    let named = |name: &str| {
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
    };
    let parts = typed.reveal().split_once('=');
    let parts = parts.filter(|(name, key)| named(name) && can_be_sent(key));
    let Some((name, key)) = parts else {
        let why = "expected NAME=KEY, the name of letters, digits, '-', '_' and '.', the key without spaces (the value is not shown)";
        return Err(Complaint(format!("--tenant-api-key: {why}")));
    };
    let Ok(key) = key.parse();
    Ok((name.to_owned(), key))
}

fn cors(origins: &[String]) -> Meant<Cors> {
    let parse = |typed: &String| {
        let why = "expected exactly an origin as browsers write it, such as https://chat.example";
        smg_gateway::settings::origin(typed)
            .ok_or_else(|| Complaint::about("--cors-allowed-origins", format!("'{typed}'"), why))
    };
    Ok(Cors::new(origins.iter().map(parse).collect::<Meant<_>>()?))
}
