//! The routing key: what names a conversation (000, "Deriving the Routing Key").

pub mod headers;
pub mod issued;
pub mod rid;
pub mod scope;
pub mod session;

/// Longest key in bytes that a body `rid` or a routing-key header may give (000, "Body `rid` Lineage").
pub const MAX_KEY_BYTES: usize = 128;

/// Where a key came from; its text is the `source` label of `smg_routing_key_source_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The body field `rid`, lineage suffixes stripped.
    Rid,
    /// A header named in `--routing-key-headers`.
    Header,
    /// The messages with which the conversation opens, where only the beginning of a body is read.
    Opening,
}

impl Source {
    /// All sources, for metrics that exist at zero.
    pub const ALL: [Self; 3] = [Self::Rid, Self::Header, Self::Opening];

    /// The metric label and log field.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rid => "rid",
            Self::Header => "header",
            Self::Opening => "opening",
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

/// What a policy makes of routing keys by itself (000, "How the Override Composes with Each Policy").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyUse {
    /// Nothing.
    None,
    /// Hashes them, with or without the override (`consistent_hashing`).
    Hashes,
    /// Hashes them unless the override pins them (`prefix_hash`).
    HashesUnlessPinned,
    /// Pins them in a map of its own (`manual`).
    Pins,
    /// Takes agents' session keys in their place (`session_affinity`, 004).
    Sessions,
}

/// What happens to a key on a request's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// It means nothing.
    Ignore,
    /// The policy hashes it.
    Hash,
    /// The policy hashes it; `X-SMG-Routing-Key` is read though it is not listed.
    HashOwn,
    /// The override pins it, by model and leg.
    Pin,
    /// `manual` pins it, by leg only.
    PinManual,
    /// `session_affinity` takes it for a session key: with the override on it stands where `manual`
    /// does, so that a `rid` is a key and a routing-key header is none.
    Session,
}

/// The composition table: what becomes of a key under a policy, with the override on or off.
#[must_use]
pub const fn treatment(policy: KeyUse, override_on: bool) -> Treatment {
    match (policy, override_on) {
        (KeyUse::Pins, _) => Treatment::PinManual,
        (KeyUse::Sessions, _) => Treatment::Session,
        (KeyUse::Hashes, _) => Treatment::HashOwn,
        (_, true) => Treatment::Pin,
        (KeyUse::HashesUnlessPinned, false) => Treatment::Hash,
        (KeyUse::None, false) => Treatment::Ignore,
    }
}

/// The places a key may stand in.
#[derive(Debug)]
pub struct Places<'a, I> {
    /// The body's `rid`.
    pub rid: Option<&'a str>,
    /// In the order of `--routing-key-headers`, each name's first value or `None`.
    pub listed: I,
    /// The first value of `X-SMG-Routing-Key`.
    pub own: Option<&'a [u8]>,
    /// A hash of the opening messages; `None` unless the override is on and all else may stand where
    /// nobody looks.
    pub opening: Option<&'a str>,
}

/// The key of a request: body `rid`, else the headers that the treatment reads (000, "Key
/// Precedence" and "`manual` and `consistent_hashing` read headers their own way").
pub fn derive<'a>(
    treatment: Treatment,
    places: Places<'a, impl Iterator<Item = Option<&'a [u8]>>>,
) -> Option<Key<'a>> {
    if treatment == Treatment::Ignore {
        return None;
    }
    if let Some(text) = places.rid.and_then(rid::key) {
        return Some(Key { source: Source::Rid, text });
    }
    let own = std::iter::once(places.own);
    let opening = || places.opening.map(|text| Key { source: Source::Opening, text });
    let text = match treatment {
        // Headers of another kind, and before the opening.
        Treatment::Ignore | Treatment::Session => return None,
        Treatment::Hash => headers::first_valid(places.listed),
        Treatment::HashOwn => headers::first_valid(places.listed.chain(own)),
        Treatment::Pin => headers::first_valid(places.listed).map(rid::strip),
        Treatment::PinManual => places.own.and_then(headers::ascii),
    };
    text.map(|text| Key { source: Source::Header, text }).or_else(opening)
}

/// A request's key, and what its policy may see of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sight<'a> {
    /// What happens to the key.
    pub treatment: Treatment,
    /// The key.
    pub key: Option<Key<'a>>,
    /// The key that the policy sees. A new key's first request is placed exactly as it would be
    /// without the override (000, "How the Override Composes with Each Policy"), so a policy below
    /// it sees the key that it would see then.
    pub seen: Option<Key<'a>>,
}

/// Finds a request's key under a policy, with the override on or off.
pub fn sight<'a>(
    policy: KeyUse,
    override_on: bool,
    places: Places<'a, impl Iterator<Item = Option<&'a [u8]>> + Clone>,
) -> Sight<'a> {
    let treatment = treatment(policy, override_on);
    let Places { rid, listed, own, opening } = places;
    let alone = Places { rid: None, listed: listed.clone(), own, opening: None };
    let [rid, opening] = [rid, opening].map(|of_body| of_body.filter(|_| override_on));
    let key = derive(treatment, Places { rid, listed, own, opening });
    let seen = match treatment {
        Treatment::Pin => derive(self::treatment(policy, false), alone),
        _ => key,
    };
    Sight { treatment, key, seen }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key<'a>(
        how: Treatment,
        rid: Option<&'a str>,
        listed: &'a str,
        own: &'a str,
    ) -> Option<Key<'a>> {
        let listed = std::iter::once(Some(listed.as_bytes()));
        derive(how, Places { rid, listed, own: Some(own.as_bytes()), opening: None })
    }

    #[test]
    fn the_opening_is_a_key_when_nothing_else_is() {
        for (rid, header, source) in [
            (Some("r"), "h", Source::Rid),
            (None, "h", Source::Header),
            (None, "", Source::Opening),
            (Some(""), "", Source::Opening),
        ] {
            let listed = std::iter::once(Some(header.as_bytes()));
            let places = Places { rid, listed, own: None, opening: Some("hash") };
            assert_eq!(derive(Treatment::Pin, places).unwrap().source, source, "{rid:?}");
        }
    }

    const KEYED: [Treatment; 4] =
        [Treatment::Hash, Treatment::HashOwn, Treatment::Pin, Treatment::PinManual];

    #[test]
    fn the_composition_table() {
        for (policy, off, on) in [
            (KeyUse::None, Treatment::Ignore, Treatment::Pin),
            (KeyUse::HashesUnlessPinned, Treatment::Hash, Treatment::Pin),
            (KeyUse::Pins, Treatment::PinManual, Treatment::PinManual),
            (KeyUse::Hashes, Treatment::HashOwn, Treatment::HashOwn),
            (KeyUse::Sessions, Treatment::Session, Treatment::Session),
        ] {
            assert_eq!(
                (treatment(policy, false), treatment(policy, true)),
                (off, on),
                "{policy:?}"
            );
        }
    }

    #[test]
    fn a_policy_below_the_override_sees_the_key_it_would_see_without() {
        for (policy, on, key, seen) in [
            (KeyUse::HashesUnlessPinned, true, Some("conv"), Some("a_t1")),
            (KeyUse::HashesUnlessPinned, false, Some("a_t1"), Some("a_t1")),
            (KeyUse::None, true, Some("conv"), None),
            (KeyUse::None, false, None, None),
            (KeyUse::Hashes, true, Some("conv"), Some("conv")),
            (KeyUse::Hashes, false, Some("a_t1"), Some("a_t1")),
            (KeyUse::Pins, false, Some("b_t1"), Some("b_t1")),
        ] {
            let listed = std::iter::once(Some(&b"a_t1"[..]));
            let places = Places { rid: Some("conv_t2"), listed, own: Some(b"b_t1"), opening: None };
            let found = sight(policy, on, places);
            let texts = [found.key, found.seen].map(|key| key.map(|key| key.text));
            assert_eq!(texts, [key, seen], "{policy:?} {on}");
        }
    }

    #[test]
    fn a_body_rid_wins_over_a_header() {
        for how in KEYED {
            let found = key(how, Some("conv_t2"), "unique", "unique").unwrap();
            assert_eq!(found, Key { source: Source::Rid, text: "conv" }, "{how:?}");
        }
        assert_eq!(key(Treatment::Ignore, Some("conv"), "x", "x"), None);
    }

    #[test]
    fn a_header_decides_when_the_rid_gives_no_key() {
        let long = "x".repeat(129);
        for rid in [None, Some(""), Some(&*long)] {
            let found = key(Treatment::Pin, rid, "conv_t2_r1", "").unwrap();
            assert_eq!(found, Key { source: Source::Header, text: "conv" }, "{rid:?}");
        }
    }

    #[test]
    fn only_the_override_strips_header_values() {
        let text = |how| key(how, None, "a_t1", "b_t1").unwrap().text;
        assert_eq!(text(Treatment::Pin), "a");
        assert_eq!(text(Treatment::Hash), "a_t1");
        assert_eq!(text(Treatment::HashOwn), "a_t1");
        assert_eq!(text(Treatment::PinManual), "b_t1");
    }

    #[test]
    fn consistent_hashing_tries_the_list_then_the_smg_header() {
        let text = |how, listed| key(how, None, listed, "own").map(|key| key.text);
        assert_eq!(text(Treatment::HashOwn, "listed"), Some("listed"));
        assert_eq!(text(Treatment::HashOwn, ""), Some("own"));
        assert_eq!(text(Treatment::Hash, ""), None);
        assert_eq!(text(Treatment::Pin, ""), None);
    }

    #[test]
    fn manual_takes_any_length_of_ascii_from_its_own_header() {
        let long = "k".repeat(5000);
        assert_eq!(key(Treatment::PinManual, None, "listed", &long).unwrap().text, long);
        for none in ["", "clé"] {
            assert_eq!(key(Treatment::PinManual, None, "listed", none), None, "{none}");
        }
    }

    #[test]
    fn of_a_session_only_the_rid_is_a_key_of_this_kind() {
        let found = key(Treatment::Session, Some("conv_t2"), "listed", "own").unwrap();
        assert_eq!(found, Key { source: Source::Rid, text: "conv" });
        assert_eq!(key(Treatment::Session, None, "listed", "own"), None);
    }

    #[test]
    fn nothing_valid_is_no_key() {
        for how in KEYED {
            assert_eq!(key(how, None, "", ""), None, "{how:?}");
        }
    }
}
