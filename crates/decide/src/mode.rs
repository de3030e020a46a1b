//! Which document owns a request. A header that another mode owns is plain data: never a key.

use crate::keys::KeyUse;

/// The owner of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// 002: a model of the configuration file, served by providers.
    Providers,
    /// 004: agents' sessions, by `x-session-id` and `x-aibrix-session-key`.
    Affinity,
    /// 000: routing keys.
    Keys,
}

/// The owner of a request for a model that the configuration file defines or not, under the policy
/// that is in effect for it.
#[must_use]
pub const fn of(model_is_defined: bool, policy: KeyUse) -> Mode {
    match (model_is_defined, policy) {
        (true, _) => Mode::Providers,
        (false, KeyUse::Sessions) => Mode::Affinity,
        (false, _) => Mode::Keys,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_file_comes_first_then_the_policy() {
        for policy in [KeyUse::Sessions, KeyUse::Pins, KeyUse::Hashes, KeyUse::None] {
            assert_eq!(of(true, policy), Mode::Providers);
        }
        assert_eq!(of(false, KeyUse::Sessions), Mode::Affinity);
        for policy in [KeyUse::Pins, KeyUse::Hashes, KeyUse::HashesUnlessPinned, KeyUse::None] {
            assert_eq!(of(false, policy), Mode::Keys, "{policy:?}");
        }
    }
}
