//! The routing key: what names a conversation (000, "Deriving the Routing Key").

pub mod headers;
pub mod rid;
pub mod scope;

/// Longest key in bytes that a body `rid` or a routing-key header may give (000, "Body `rid` Lineage").
pub const MAX_KEY_BYTES: usize = 128;

/// Where a key came from; its text is the `source` label of `smg_routing_key_source_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The body field `rid`, lineage suffixes stripped.
    Rid,
    /// A header named in `--routing-key-headers`.
    Header,
}

impl Source {
    /// All sources, for metrics that exist at zero.
    pub const ALL: [Self; 2] = [Self::Rid, Self::Header];

    /// The metric label and log field.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rid => "rid",
            Self::Header => "header",
        }
    }
}

/// A key and where it was found; borrowed from the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key<'a> {
    /// Where it was found.
    pub source: Source,
    /// The key itself, suffixes stripped, never empty.
    pub text: &'a str,
}

/// The key of a request under the override: body `rid`, else the first configured header that
/// carries a valid value, else none (000, "Key Precedence").
///
/// `headers` yields, in the order of `--routing-key-headers`, each name's first value or `None`.
pub fn derive<'a>(
    rid: Option<&'a str>,
    headers: impl Iterator<Item = Option<&'a [u8]>>,
) -> Option<Key<'a>> {
    if let Some(text) = rid.and_then(rid::key) {
        return Some(Key { source: Source::Rid, text });
    }
    let value = headers::first_valid(headers)?;
    Some(Key { source: Source::Header, text: rid::strip(value) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(value: &str) -> impl Iterator<Item = Option<&[u8]>> {
        std::iter::once(Some(value.as_bytes()))
    }

    #[test]
    fn a_body_rid_wins_over_a_header() {
        let key = derive(Some("conv_t2"), header("unique")).unwrap();
        assert_eq!(key, Key { source: Source::Rid, text: "conv" });
    }

    #[test]
    fn a_header_decides_when_the_rid_gives_no_key() {
        for rid in [None, Some(""), Some(&*"x".repeat(129))] {
            let key = derive(rid, header("conv_t2_r1")).unwrap();
            assert_eq!(key, Key { source: Source::Header, text: "conv" }, "{rid:?}");
        }
    }

    #[test]
    fn nothing_valid_is_no_key() {
        assert_eq!(derive(None, [None, Some(&b""[..])].into_iter()), None);
    }
}
