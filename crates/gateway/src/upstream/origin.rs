//! A worker's address as registered.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::uri::{PathAndQuery, Scheme};
use http::{HeaderValue, Uri};

/// A worker's URL, parsed once. Requests only ever go to one of these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    url: String,
    secure: bool,
    host: String,
    port: u16,
    authority: HeaderValue,
    prefix: String,
}

/// Why a URL cannot be a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OriginError {
    /// Not `http://host[:port][/path]` or the same with `https`.
    Malformed,
    /// A scheme that is not served.
    Scheme(String),
    /// Credentials, a query or a fragment in the URL.
    Extra,
    /// An address that is nobody's engine ([`is_off_limits`]).
    OffLimits,
}

impl fmt::Display for OriginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed => f.write_str("expected a URL like http://host:8000"),
            Self::Scheme(scheme) => {
                write!(
                    f,
                    "scheme '{scheme}' is not supported; use http://host:8000 or https://host"
                )
            }
            Self::Extra => f.write_str("a worker URL has no credentials and no query"),
            Self::OffLimits => f.write_str("link-local and metadata addresses cannot be workers"),
        }
    }
}

impl Origin {
    /// Parses a worker URL.
    ///
    /// # Errors
    /// When it is not a plain `http` or `https` URL.
    pub fn parse(url: &str) -> Result<Self, OriginError> {
        let uri: Uri = url.parse().map_err(|_| OriginError::Malformed)?;
        let scheme = uri.scheme().ok_or(OriginError::Malformed)?;
        // A capital scheme is refused as the peers refuse it: the URL is an identity, not only an
        // address.
        let secure = *scheme == Scheme::HTTPS;
        if !url.starts_with(if secure { "https://" } else { "http://" }) {
            return Err(OriginError::Scheme(url.split(':').next().unwrap_or_default().to_owned()));
        }
        let authority = uri.authority().ok_or(OriginError::Malformed)?;
        if authority.as_str().contains('@') || uri.query().is_some() || url.contains('#') {
            return Err(OriginError::Extra);
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() {
            return Err(OriginError::Malformed);
        }
        if host.parse().is_ok_and(is_off_limits) {
            return Err(OriginError::OffLimits);
        }
        // `http` takes a port it cannot hold for none at all.
        let port = match authority.as_str().strip_prefix(authority.host()) {
            Some("") if secure => 443,
            Some("") => 80,
            _ => authority.port_u16().filter(|port| *port > 0).ok_or(OriginError::Malformed)?,
        };
        Ok(Self {
            url: url.trim_end_matches('/').to_owned(),
            secure,
            host,
            port,
            authority: HeaderValue::from_str(authority.as_str())
                .map_err(|_| OriginError::Malformed)?,
            prefix: uri.path().trim_end_matches('/').to_owned(),
        })
    }

    /// The URL as registered, without a trailing slash.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Whether the worker is reached by TLS.
    #[must_use]
    pub const fn is_secure(&self) -> bool {
        self.secure
    }

    /// Host name or address, IPv6 without brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// TCP port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The `Host` header.
    #[must_use]
    pub const fn authority(&self) -> &HeaderValue {
        &self.authority
    }

    /// The request target for a path at this worker.
    #[must_use]
    pub fn target(&self, path: &PathAndQuery) -> Uri {
        if self.prefix.is_empty() {
            return Uri::from(path.clone());
        }
        let joined = format!("{}{}", self.prefix, path.as_str());
        // Both halves were parsed before, so that the whole parses too.
        joined.parse().unwrap_or_else(|_| Uri::from(path.clone()))
    }
}

/// Where clouds answer every machine with that machine's credentials, beside link-local addresses.
const METADATA: [IpAddr; 4] = [
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
];

/// Whether an address is never a worker's: link-local, or one of a cloud's metadata services, which
/// whoever may register workers must not be able to ask through the gateway.
pub(crate) fn is_off_limits(address: IpAddr) -> bool {
    let address = address.to_canonical();
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    link_local || METADATA.contains(&address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_urls_are_workers() {
        for (url, host, port, seen) in [
            ("http://w1:8000", "w1", 8000, "http://w1:8000"),
            ("http://w1:8000/", "w1", 8000, "http://w1:8000"),
            ("http://w1", "w1", 80, "http://w1"),
            ("http://[::1]:9", "::1", 9, "http://[::1]:9"),
            ("http://w1:8/base/", "w1", 8, "http://w1:8/base"),
            ("https://w1", "w1", 443, "https://w1"),
            ("https://w1:80/", "w1", 80, "https://w1:80"),
        ] {
            let origin = Origin::parse(url).unwrap();
            assert_eq!((origin.host(), origin.port(), origin.url()), (host, port, seen));
            assert_eq!(origin.is_secure(), url.starts_with("https"));
        }
    }

    #[test]
    fn anything_else_is_refused_in_words() {
        for url in [
            "w1:8000",
            "/w1",
            "",
            "HTTP://w1",
            "HTTPS://w1",
            "https://",
            "https://169.254.169.254",
            "ftp://w1",
            "http://",
            "http://u:p@w1",
            "http://w1?x=1",
            "http://w1#x",
            "http://w1:99999",
            "http://w1:0",
            "http://w1:",
            "http://[::1]:",
            "http://169.254.169.254",
            "http://169.254.0.1:8000",
            "http://[fe80::1]:8000",
            "http://[::ffff:169.254.169.254]",
            "http://[fd00:ec2::254]",
            "http://100.100.100.200",
        ] {
            assert!(Origin::parse(url).is_err(), "{url}");
        }
        let error = Origin::parse("ftp://w1").unwrap_err();
        assert!(error.to_string().contains("'ftp' is not supported"), "{error}");
    }

    #[test]
    fn a_base_path_goes_in_front() {
        let path = PathAndQuery::from_static("/v1/models?x=1");
        assert_eq!(Origin::parse("http://w1").unwrap().target(&path), "/v1/models?x=1");
        assert_eq!(Origin::parse("http://w1/a/").unwrap().target(&path), "/a/v1/models?x=1");
    }
}
