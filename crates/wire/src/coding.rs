//! Which coding a request body came in (RFC 9110, 8.4).

use http::HeaderMap;
use http::header::CONTENT_ENCODING;

/// A coding that can be undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// `gzip`, also as `x-gzip`.
    Gzip,
    /// `zstd`.
    Zstd,
}

/// A coding that is not known here, or one over another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unknown;

/// The coding of a body; `None` when it came as it is.
///
/// # Errors
/// When it cannot be undone here.
pub fn of(headers: &HeaderMap) -> Result<Option<Coding>, Unknown> {
    let mut found = None;
    for value in headers.get_all(CONTENT_ENCODING) {
        for name in value.as_bytes().split(|byte| *byte == b',') {
            let coding = match name.trim_ascii().to_ascii_lowercase().as_slice() {
                b"" | b"identity" => continue,
                b"gzip" | b"x-gzip" => Coding::Gzip,
                b"zstd" => Coding::Zstd,
                _ => return Err(Unknown),
            };
            if found.replace(coding).is_some() {
                return Err(Unknown);
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn one_known_coding_or_none() {
        for (values, coding) in [
            (&[][..], Ok(None)),
            (&["identity"], Ok(None)),
            (&["gzip"], Ok(Some(Coding::Gzip))),
            (&["X-GZIP"], Ok(Some(Coding::Gzip))),
            (&[" zstd , identity"], Ok(Some(Coding::Zstd))),
            (&["identity", "zstd"], Ok(Some(Coding::Zstd))),
            (&["br"], Err(Unknown)),
            (&["deflate"], Err(Unknown)),
            (&["gzip, zstd"], Err(Unknown)),
            (&["gzip", "gzip"], Err(Unknown)),
            (&["\u{e9}"], Err(Unknown)),
        ] {
            let mut headers = HeaderMap::new();
            for value in values {
                headers
                    .append(CONTENT_ENCODING, HeaderValue::from_bytes(value.as_bytes()).unwrap());
            }
            assert_eq!(of(&headers), coding, "{values:?}");
        }
    }
}
