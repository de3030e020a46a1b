//! The prompt, for policies that read it.

use http::request;
use smg_decide::place::{self, Policy, Reads};
use smg_wire::hint::{self, ROUTING_TOKENS};
use smg_wire::json::Fields;
use smg_wire::prompt::{self, Prompt};
use smg_wire::route::Inference;

/// What the engine will have to read, if the policy wants to know: the tokens hint, else the body's.
pub(super) fn wanted<'a>(
    policy: &dyn Policy,
    inference: &Inference,
    head: &request::Parts,
    fields: &Fields<'a>,
) -> Prompt<'a> {
    if policy.reads() == Reads::Headers {
        return Prompt::Unknown;
    }
    let hint = head.headers.get(ROUTING_TOKENS).and_then(|value| hint::tokens(value.as_bytes()));
    hint.map_or_else(|| prompt::of(inference.prompt, fields), Prompt::Tokens)
}

/// The same as policies take it.
pub(super) fn as_asked<'a>(prompt: &'a Prompt<'_>) -> place::Prompt<'a> {
    match prompt {
        Prompt::Unknown => place::Prompt::Unknown,
        Prompt::Text(parts) => place::Prompt::Text(parts),
        Prompt::Tokens(ids) => place::Prompt::Tokens(ids),
    }
}
