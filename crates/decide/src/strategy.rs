//! The header `routing-strategy`: which policy a client wants for one request (004).

/// What AIBrix calls policies that go by another name here.
const ALIASES: [(&str, &str); 2] =
    [("prefix-cache", "cache_aware"), ("least-request", "least_load")];

/// A value that names no policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unknown;

/// The policy, of those `known` by their names here, that a value asks for; `None` when it is blank,
/// which is as good as not sent. Hyphens and underscores are alike, large and small letters are not.
///
/// # Errors
/// When it names none: a client that means something else must not get it silently.
pub fn policy<'k>(value: &[u8], known: &[&'k str]) -> Result<Option<&'k str>, Unknown> {
    let text = std::str::from_utf8(value).map_err(|_| Unknown)?.trim();
    if text.is_empty() {
        return Ok(None);
    }
    let alias = ALIASES.iter().find(|(alias, _)| alike(alias, text));
    let wanted = alias.map_or(text, |(_, name)| name);
    known.iter().find(|name| alike(name, wanted)).map(|name| Some(*name)).ok_or(Unknown)
}

/// The values that are accepted, as clients would write them, for the words of a refusal.
#[must_use]
pub fn accepted(known: &[&str]) -> String {
    let own = known.iter().map(|name| name.replace('_', "-"));
    let aliases = ALIASES.iter().filter(|(_, name)| known.contains(name));
    let all: Vec<_> = own.chain(aliases.map(|(alias, _)| (*alias).to_owned())).collect();
    all.join(", ")
}

fn alike(one: &str, other: &str) -> bool {
    let folded = |byte: u8| if byte == b'-' { b'_' } else { byte };
    one.len() == other.len() && one.bytes().map(folded).eq(other.bytes().map(folded))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [&str; 5] =
        ["random", "power_of_two", "least_load", "cache_aware", "session_affinity"];

    #[test]
    fn the_table_of_values() {
        for (value, policy) in [
            ("session-affinity", "session_affinity"),
            ("session_affinity", "session_affinity"),
            (" session-affinity\t", "session_affinity"),
            ("prefix-cache", "cache_aware"),
            ("prefix_cache", "cache_aware"),
            ("cache-aware", "cache_aware"),
            ("least-request", "least_load"),
            ("random", "random"),
            ("power-of-two", "power_of_two"),
        ] {
            assert_eq!(super::policy(value.as_bytes(), &KNOWN), Ok(Some(policy)), "{value}");
        }
    }

    #[test]
    fn blank_is_unset_and_anything_else_is_nothing() {
        for blank in ["", " ", "\t "] {
            assert_eq!(policy(blank.as_bytes(), &KNOWN), Ok(None));
        }
        for wrong in [
            "session-affinity-x",
            "session affinity",
            "Session-Affinity",
            "session-affinity:1",
            "session-affinity,random",
            "random;",
            "no-such-strategy",
            "round-robin",
        ] {
            assert_eq!(policy(wrong.as_bytes(), &KNOWN), Err(Unknown), "{wrong}");
        }
        assert_eq!(policy(b"random\xff", &KNOWN), Err(Unknown));
    }

    #[test]
    fn a_refusal_lists_what_would_do() {
        let list = accepted(&KNOWN);
        for value in list.split(", ") {
            assert!(policy(value.as_bytes(), &KNOWN).is_ok(), "{value}");
        }
        assert!(list.contains("session-affinity") && list.contains("prefix-cache"));
    }
}
