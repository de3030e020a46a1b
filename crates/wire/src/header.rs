//! Which headers travel.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Uri};

use crate::cors::is_cors;

/// The worker that served a request, as registered (000, "Routed Worker Header").
pub const ROUTED_WORKER: HeaderName = HeaderName::from_static("x-smg-routed-worker-id");
/// The default routing-key header.
pub const ROUTING_KEY: HeaderName = HeaderName::from_static("x-smg-routing-key");
/// The policy that a client wants for one request (004).
pub const STRATEGY: HeaderName = HeaderName::from_static("routing-strategy");
/// The session id that the gateway issues (004).
pub const SESSION_ID: HeaderName = HeaderName::from_static("x-session-id");
/// The session key that the caller owns (004).
pub const SESSION_KEY: HeaderName = HeaderName::from_static("x-aibrix-session-key");
/// The session key that a session descends from (ours).
pub const PARENT_KEY: HeaderName = HeaderName::from_static("x-smg-parent-key");
/// Over how many workers a session is spread (ours).
pub const SPREAD: HeaderName = HeaderName::from_static("x-smg-spread");
/// The request id that answers carry.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Whether a client's header is passed on to the worker. A short list, so that what a client sends
/// by chance (cookies, its user agent, gateway controls) never reaches an engine. Credentials have a
/// rule of their own ([`crate::access::credential`]).
#[must_use]
pub fn goes_upstream(name: &HeaderName) -> bool {
    const PASSED: [&str; 5] =
        ["x-request-id", "x-correlation-id", "traceparent", "tracestate", "x-smg-routing-key"];
    PASSED.contains(&name.as_str()) || name.as_str().starts_with("anthropic-")
}

/// Whether a client's header is passed on to a vendor beside those that go to any worker.
#[must_use]
pub fn goes_to_vendor(name: &HeaderName) -> bool {
    name.as_str().starts_with("openai-")
}

/// Whether a header names a session: it is passed on to the worker only if the operator wants that.
#[must_use]
pub fn names_session(name: &HeaderName) -> bool {
    [SESSION_ID, SESSION_KEY, PARENT_KEY].contains(name)
}

/// Whether a worker's header is passed on to the client: all but the hop's own (RFC 9110, 7.6.1),
/// the framing that this hop writes anew, and what only the gateway may say.
#[must_use]
pub fn goes_downstream(name: &HeaderName) -> bool {
    const HOP: [HeaderName; 7] = [
        header::CONNECTION,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
        header::TE,
        header::TRAILER,
        header::PROXY_AUTHENTICATE,
        header::CONTENT_LENGTH,
    ];
    const OURS: [&str; 5] =
        ["keep-alive", "proxy-connection", "x-request-id", "x-session-id", "x-aibrix-session-key"];
    let text = name.as_str();
    let ours = OURS.contains(&text) || text.starts_with("x-smg-") || is_cors(name);
    !HOP.contains(name) && !ours
}

/// Whether `name` is nominated by a `Connection` header and so ends at this hop.
#[must_use]
pub fn nominated(headers: &HeaderMap, name: &HeaderName) -> bool {
    headers.get_all(header::CONNECTION).iter().any(|value| {
        value.to_str().is_ok_and(|list| {
            list.split(',').any(|token| token.trim().eq_ignore_ascii_case(name.as_str()))
        })
    })
}

/// Whether a request's head can be read in one way only: one `Host` at most, and no coding of its transfer but
/// `chunked`, once. Of other codings we would undo the last and forward the rest as if it were the body, which whoever
/// stands before us may have understood otherwise.
#[must_use]
pub fn is_unambiguous(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let chunked =
        |value: &HeaderValue| value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
    let plain = codings.next().is_none_or(chunked) && codings.next().is_none();
    plain && headers.get_all(header::HOST).iter().count() <= 1
}

/// Whether a request of HTTP/2 keeps those rules of RFC 9113 that its parser does not look at: no value begins or ends
/// with white space (8.2.1), a `Host` names whom the target names, without a user (8.3.1), and a tunnel leads somewhere
/// (8.5). Nobody has to choose then between two readings.
#[must_use]
pub fn is_well_formed(method: &Method, target: &Uri, headers: &HeaderMap) -> bool {
    let blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let padded = |value: &HeaderValue| {
        let value = value.as_bytes();
        blank(value.first()) || blank(value.last())
    };
    if headers.values().any(padded) {
        return false;
    }
    let Some(called) = target.authority() else { return method != Method::CONNECT };
    let port: &[u8] = match target.scheme_str() {
        Some("https") => b":443",
        _ => b":80",
    };
    let called = called.as_str().as_bytes();
    let bare = called.strip_suffix(port).unwrap_or(called);
    let same = |host: &HeaderValue| {
        let host = host.as_bytes();
        host.strip_suffix(port).unwrap_or(host).eq_ignore_ascii_case(bare)
    };
    !called.contains(&b'@') && headers.get_all(header::HOST).iter().all(same)
}

/// Whether a `Content-Type` says server-sent events.
#[must_use]
pub fn is_event_stream(content_type: Option<&HeaderValue>) -> bool {
    let Some(value) = content_type else { return false };
    let essence = value.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default();
    essence.trim_ascii().eq_ignore_ascii_case(b"text/event-stream")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> HeaderName {
        HeaderName::try_from(text).unwrap()
    }

    #[test]
    fn upstream_gets_identity_and_tracing_only() {
        for passed in ["X-Request-Id", "anthropic-beta", "traceparent"] {
            assert!(goes_upstream(&name(passed)), "{passed}");
        }
        for dropped in [
            "cookie",
            "user-agent",
            "accept-encoding",
            "connection",
            "host",
            "x-smg-target-worker",
            "authorization",
            "x-api-key",
            "x-session-id",
            "x-aibrix-session-key",
            "routing-strategy",
            "target-pod",
        ] {
            assert!(!goes_upstream(&name(dropped)), "{dropped}");
        }
    }

    #[test]
    fn downstream_loses_the_hops_own_and_what_only_we_say() {
        for dropped in [
            "connection",
            "keep-alive",
            "proxy-connection",
            "transfer-encoding",
            "upgrade",
            "te",
            "trailer",
            "content-length",
            "x-smg-error-code",
            "x-smg-routed-worker-id",
            "x-request-id",
            "x-session-id",
            "x-aibrix-session-key",
            "access-control-allow-origin",
        ] {
            assert!(!goes_downstream(&name(dropped)), "{dropped}");
        }
        for passed in ["content-type", "retry-after", "set-cookie", "server", "x-ratelimit-limit"] {
            assert!(goes_downstream(&name(passed)), "{passed}");
        }
    }

    #[test]
    fn a_connection_header_nominates() {
        let mut headers = HeaderMap::new();
        headers.append("connection", HeaderValue::from_static("keep-alive, X-Private"));
        headers.append("connection", HeaderValue::from_static("x-other"));
        assert!(nominated(&headers, &name("x-private")) && nominated(&headers, &name("x-other")));
        assert!(!nominated(&headers, &name("x-public")));
    }

    #[test]
    fn one_host_and_chunks_once_are_unambiguous() {
        for (lines, is) in [
            (&[][..], true),
            (&[("host", "a"), ("transfer-encoding", "Chunked ")], true),
            (&[("host", "a"), ("host", "a")], false),
            (&[("transfer-encoding", "gzip, chunked")], false),
            (&[("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")], false),
        ] {
            let mut headers = HeaderMap::new();
            for (key, value) in lines {
                headers.append(name(key), HeaderValue::from_static(value));
            }
            assert_eq!(is_unambiguous(&headers), is, "{lines:?}");
        }
    }

    #[test]
    fn a_request_of_http2_calls_one_host_and_pads_nothing() {
        for (method, target, host, is) in [
            ("POST", "http://gw/", "gw", true),
            ("POST", "http://gw/", "GW:80", true),
            ("POST", "http://gw:80/", "gw", true),
            ("POST", "https://gw/", "gw:443", true),
            ("POST", "https://gw/", "gw:80", false),
            ("POST", "http://gw/", "gw:8080", false),
            ("POST", "http://gw/", "gw.evil", false),
            ("POST", "http://gw/", "", false),
            ("POST", "http://gw/", "gw|gw", true),
            ("POST", "http://gw/", "gw|evil", false),
            ("POST", "http://me@gw/", "me@gw", false),
            ("POST", "/", "gw", true),
            ("CONNECT", "gw:80", "gw:80", true),
            ("CONNECT", "/", "gw", false),
        ] {
            let mut headers = HeaderMap::new();
            for host in host.split('|') {
                headers.append("host", HeaderValue::from_static(host));
            }
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            let seen = is_well_formed(&method, &Uri::from_static(target), &headers);
            assert_eq!(seen, is, "{method} {target} {host}");
        }
        for (value, is) in
            [("", true), ("a \tb", true), (" a", false), ("a\t", false), (" ", false)]
        {
            let headers = HeaderMap::from_iter([(name("x"), HeaderValue::from_static(value))]);
            let seen = is_well_formed(&Method::GET, &Uri::from_static("http://gw/"), &headers);
            assert_eq!(seen, is, "{value:?}");
        }
    }

    #[test]
    fn an_event_stream_may_carry_parameters() {
        for (value, is) in [
            ("text/event-stream", true),
            ("Text/Event-Stream; charset=utf-8", true),
            ("application/json", false),
            ("text/event-streams", false),
        ] {
            assert_eq!(is_event_stream(Some(&HeaderValue::from_static(value))), is, "{value}");
        }
        assert!(!is_event_stream(None));
    }
}
