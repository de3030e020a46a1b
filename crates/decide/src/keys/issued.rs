//! `x-session-id`: the id that the gateway issues, base64 of the address of the worker that served
//! (004, "Sequential requests with `x-session-id`"). What comes back is only ever compared with the
//! addresses of registered workers, so that no id can send a request anywhere else.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Longest id that is looked at.
const MAX_BYTES: usize = 1024;

/// A worker's address as ids have it: `host:port` as registered, IPv6 in brackets, `@rank` for a
/// data-parallel rank.
#[must_use]
pub fn address(host: &str, port: u16, rank: Option<u32>) -> String {
    let rank = rank.map_or_else(String::new, |rank| format!("@{rank}"));
    if host.contains(':') {
        format!("[{host}]:{port}{rank}")
    } else {
        format!("{host}:{port}{rank}")
    }
}

/// The id of an address.
#[must_use]
pub fn id(address: impl AsRef<[u8]>) -> String {
    STANDARD.encode(address)
}

/// What an id says, if it is one at all.
#[must_use]
pub fn read(id: &[u8]) -> Option<Vec<u8>> {
    if id.len() > MAX_BYTES {
        return None;
    }
    STANDARD.decode(id).ok().filter(|bytes| !bytes.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_address_is_the_registered_one() {
        for (host, port, rank, text) in [
            ("10.0.0.5", 8000, None, "10.0.0.5:8000"),
            ("10.0.0.5", 8000, Some(3), "10.0.0.5:8000@3"),
            ("engine-0.engines", 80, None, "engine-0.engines:80"),
            ("::1", 8000, None, "[::1]:8000"),
            ("fd00::2", 8000, Some(0), "[fd00::2]:8000@0"),
        ] {
            assert_eq!(address(host, port, rank), text);
        }
    }

    #[test]
    fn an_id_is_padded_base64() {
        assert_eq!(id("10.0.0.1:8000"), "MTAuMC4wLjE6ODAwMA==");
        assert_eq!(read(b"MTAuMC4wLjE6ODAwMA==").as_deref(), Some(&b"10.0.0.1:8000"[..]));
    }

    #[test]
    fn whatever_else_comes_is_no_id() {
        let long = "A".repeat(4000);
        for wrong in ["", "%%%", "====", "MTAuMC4wLjE6ODAwMA", "127.0.0.1:8000", "MTA_", &long] {
            assert_eq!(read(wrong.as_bytes()), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn what_was_issued_is_understood(host in "[a-z0-9.-]{1,60}", port: u16, rank: Option<u32>) {
            let address = address(&host, port, rank);
            prop_assert_eq!(read(id(&address).as_bytes()), Some(address.into_bytes()));
        }
    }
}
