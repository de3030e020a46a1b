//! What browsers are told about pages of other origins (Fetch, "CORS protocol").

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, request};

/// `--cors-allowed-origins`. Empty: browsers keep other origins out, as they do unasked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cors(Vec<HeaderValue>);

impl Cors {
    /// Pages of these origins may ask.
    #[must_use]
    pub const fn new(origins: Vec<HeaderValue>) -> Self {
        Self(origins)
    }

    /// The headers of the answer to a preflight; `None` when the request is none, or nobody's
    /// pages may ask. A page that may not ask learns no more than that its origin matters.
    #[must_use]
    pub fn preflight(&self, request: &request::Parts) -> Option<HeaderMap> {
        let headers = &request.headers;
        let asked = request.method == Method::OPTIONS
            && headers.contains_key(header::ORIGIN)
            && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
        if !asked || self.0.is_empty() {
            return None;
        }
        let mut answer = HeaderMap::new();
        answer.insert(header::VARY, HeaderValue::from_static("origin"));
        let Some(origin) = self.allowed(headers) else { return Some(answer) };
        answer.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        for (name, value) in [
            (header::ACCESS_CONTROL_ALLOW_METHODS, "GET,POST,PATCH,DELETE,OPTIONS"),
            (
                header::ACCESS_CONTROL_ALLOW_HEADERS,
                "content-type,authorization,anthropic-version,anthropic-beta",
            ),
            (header::ACCESS_CONTROL_MAX_AGE, "3600"),
        ] {
            answer.insert(name, HeaderValue::from_static(value));
        }
        Some(answer)
    }

    /// The origin that an answer to `headers` is shown to, if it is one of ours.
    #[must_use]
    pub fn allowed(&self, headers: &HeaderMap) -> Option<&HeaderValue> {
        let origin = headers.get(header::ORIGIN)?;
        self.0.iter().find(|allowed| *allowed == origin)
    }

    /// Adds to an answer what browsers need to show it to `origin` ([`Self::allowed`]).
    pub fn mark(&self, origin: Option<HeaderValue>, answer: &mut HeaderMap) {
        if self.0.is_empty() {
            return;
        }
        // Appended: a worker may have reasons of its own for its answer to vary.
        answer.append(header::VARY, HeaderValue::from_static("origin"));
        if let Some(origin) = origin {
            answer.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            let exposed = HeaderValue::from_static("x-request-id");
            answer.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
        }
    }
}

/// Whether a header is CORS's own, which only the gateway may say to its clients.
#[must_use]
pub fn is_cors(name: &HeaderName) -> bool {
    name.as_str().starts_with("access-control-")
}

/// An origin exactly as browsers write it: `scheme://host`, a port only where it is not the
/// scheme's, no path, small letters. Anything else would never be equal to one.
#[must_use]
pub fn origin(text: &str) -> Option<HeaderValue> {
    let (scheme, rest) = text.split_once("://")?;
    let named = scheme.starts_with(|first: char| first.is_ascii_lowercase())
        && scheme
            .bytes()
            .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'+' | b'-' | b'.'));
    // The colon of a port stands after those of an IPv6 address.
    let bracket = rest.find(']').map_or(0, |at| at + 1);
    let (host, port) = match rest.get(bracket..)?.find(':') {
        Some(colon) => (rest.get(..bracket + colon)?, rest.get(bracket + colon + 1..)),
        None => (rest, None),
    };
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let hosted = match inner {
        Some(v6) => {
            !v6.is_empty()
                && v6.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f' | b':' | b'.'))
        }
        None => {
            !host.is_empty()
                && host.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'z' | b'-' | b'.' | b'_'))
        }
    };
    let ported = port.is_none_or(|port| {
        let number = port.parse::<u16>().ok().filter(|number| *number > 0);
        let usual = match scheme {
            "http" => Some(80),
            "https" => Some(443),
            _ => None,
        };
        number.is_some_and(|number| number.to_string() == port && Some(number) != usual)
    });
    (named && hosted && ported).then(|| HeaderValue::from_str(text).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn asking(method: &str, headers: &[(&str, &str)]) -> request::Parts {
        let mut request = Request::builder().method(method).uri("/v1/models");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn cors() -> Cors {
        Cors::new(vec![origin("https://chat.example").unwrap()])
    }

    const METHOD: (&str, &str) = ("access-control-request-method", "POST");

    #[test]
    fn a_preflight_of_an_allowed_origin_is_told_everything() {
        let parts = asking("OPTIONS", &[("origin", "https://chat.example"), METHOD]);
        let answer = cors().preflight(&parts).unwrap();
        for (name, value) in [
            ("access-control-allow-origin", "https://chat.example"),
            ("access-control-allow-methods", "GET,POST,PATCH,DELETE,OPTIONS"),
            (
                "access-control-allow-headers",
                "content-type,authorization,anthropic-version,anthropic-beta",
            ),
            ("access-control-max-age", "3600"),
            ("vary", "origin"),
        ] {
            assert_eq!(answer[name], value);
        }
        assert!(!answer.contains_key("access-control-allow-credentials"));
    }

    #[test]
    fn others_learn_nothing_and_what_is_no_preflight_is_left_alone() {
        for foreign in ["https://chat.example.evil", "http://chat.example", "null"] {
            let answer = cors().preflight(&asking("OPTIONS", &[("origin", foreign), METHOD]));
            let answer = answer.unwrap();
            assert_eq!((answer.len(), &answer["vary"]), (1, &HeaderValue::from_static("origin")));
        }
        let allowed = ("origin", "https://chat.example");
        for parts in [
            asking("OPTIONS", &[allowed]),
            asking("OPTIONS", &[METHOD]),
            asking("POST", &[allowed, METHOD]),
        ] {
            assert_eq!(cors().preflight(&parts), None);
        }
        let preflight = asking("OPTIONS", &[allowed, METHOD]);
        assert_eq!(Cors::default().preflight(&preflight), None, "no CORS at all");
    }

    #[test]
    fn answers_are_marked_for_the_origin_that_asked() {
        let mut answer = HeaderMap::new();
        answer.insert("vary", HeaderValue::from_static("accept"));
        let asked = asking("GET", &[("origin", "https://chat.example")]).headers;
        cors().mark(cors().allowed(&asked).cloned(), &mut answer);
        assert_eq!(answer["access-control-allow-origin"], "https://chat.example");
        assert_eq!(answer["access-control-expose-headers"], "x-request-id");
        assert!(answer.get_all("vary").iter().eq(["accept", "origin"]));
        let (mut foreign, mut without) = (HeaderMap::new(), HeaderMap::new());
        cors().mark(None, &mut foreign);
        Cors::default().mark(None, &mut without);
        assert_eq!((foreign.len(), without.len()), (1, 0));
    }

    #[test]
    fn origins_are_as_browsers_write_them() {
        for good in [
            "https://chat.example",
            "http://localhost:3000",
            "http://127.0.0.1:8080",
            "http://[::1]:8080",
            "https://[2001:db8::1]",
            "chrome-extension://abcdef",
        ] {
            assert_eq!(origin(good).unwrap(), good);
        }
        for bad in [
            "",
            "*",
            "null",
            "chat.example",
            "https://",
            "https://chat.example/",
            "https://chat.example/x",
            "https://chat.example:443",
            "http://chat.example:80",
            "https://chat.example:",
            "https://chat.example:0",
            "https://chat.example:08",
            "https://chat.example:99999",
            "https://Chat.example",
            "HTTPS://chat.example",
            "https://u@chat.example",
            "https://*.example",
            "https://chat.example?x",
            "https://[::1",
            "https://[]",
            "://x",
        ] {
            assert_eq!(origin(bad), None, "{bad}");
        }
    }
}
