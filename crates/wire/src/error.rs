//! How the gateway says no: status, `X-SMG-Error-Code` and a body that SDKs raise as their own
//! exception types.

use std::borrow::Cow;

use bytes::Bytes;
use http::StatusCode;
use serde::Serialize;

use crate::route::Dialect;

/// The header that carries a refusal's code.
pub const CODE_HEADER: &str = "x-smg-error-code";

/// An answer the gateway makes itself in place of a worker's.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The HTTP status.
    pub status: StatusCode,
    /// The `X-SMG-Error-Code`; metrics take it as a label, so it is never a client's or worker's.
    pub code: &'static str,
    /// For a person: what is wrong and what helps.
    pub message: Cow<'static, str>,
    /// The field at fault.
    pub param: Option<&'static str>,
    /// `Retry-After` in seconds.
    pub retry_after: Option<u32>,
}

impl Refusal {
    /// A refusal with a message and no more.
    pub fn new(
        status: StatusCode,
        code: &'static str,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { status, code, message: message.into(), param: None, retry_after: None }
    }

    /// The JSON body in the words of `dialect`.
    #[must_use]
    pub fn body(&self, dialect: Dialect) -> Bytes {
        let error = Error {
            kind: kind(self.status, dialect),
            code: self.code,
            message: &self.message,
            param: self.param,
        };
        // Anthropic's SDKs look for the outer type; the rest is the same for all.
        let outer = (dialect == Dialect::Anthropic).then_some("error");
        json(&Body { outer, error })
    }
}

/// A failure in the middle of a stream, as a frame of the route's dialect.
#[must_use]
pub fn stream_event(dialect: Dialect, code: &str, message: &str) -> Bytes {
    let error = |kind| Error { kind, code, message, param: None };
    let (event, body) = match dialect {
        Dialect::OpenAi => ("", json(&Body { outer: None, error: error("stream_error") })),
        Dialect::Anthropic => {
            ("event: error\n", json(&Body { outer: Some("error"), error: error("api_error") }))
        }
        Dialect::Responses => ("event: response.failed\n", json(&failed_response(code, message))),
    };
    Bytes::from([event.as_bytes(), b"data: ", &*body, b"\n\n"].concat())
}

/// What an answer comes to that a stream has to tell, since the stream has begun without it: the
/// answer as an event where it can be one, else its text as an error.
#[must_use]
pub fn late_event(dialect: Dialect, status: StatusCode, answer: &[u8]) -> Bytes {
    let read: Option<serde_json::Value> = serde_json::from_slice(answer).ok();
    let told = read.as_ref().and_then(|answer| answer.get("error"));
    let text = |name: &str| told.and_then(|error| error.get(name)).and_then(|text| text.as_str());
    let as_it_is = match dialect {
        _ if status.is_success() => read.is_some(),
        Dialect::OpenAi | Dialect::Anthropic => told.is_some(),
        Dialect::Responses => false,
    };
    if !as_it_is {
        let code = text("code").unwrap_or("upstream_error");
        let plain = String::from_utf8_lossy(answer);
        return stream_event(dialect, code, text("message").unwrap_or(&plain));
    }
    let event = match dialect {
        Dialect::Anthropic if !status.is_success() => "event: error\n",
        _ => "",
    };
    // One line: a blank one would end the event.
    let data = read.unwrap_or_default().to_string();
    Bytes::from([event, "data: ", &data, "\n\n"].concat())
}

/// The last event of a Responses stream that could not be finished.
fn failed_response(code: &str, message: &str) -> serde_json::Value {
    serde_json::json!({
        "type": "response.failed",
        "response": {"status": "failed", "error": {"code": code, "message": message}},
    })
}

fn kind(status: StatusCode, dialect: Dialect) -> &'static str {
    let anthropic = dialect == Dialect::Anthropic;
    match status {
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::UNAUTHORIZED if anthropic => "authentication_error",
        StatusCode::FORBIDDEN if anthropic => "permission_error",
        StatusCode::NOT_FOUND if anthropic => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE if anthropic => "request_too_large",
        StatusCode::SERVICE_UNAVAILABLE if anthropic => "overloaded_error",
        status if status.is_server_error() && anthropic => "api_error",
        status if status.is_server_error() => "server_error",
        _ => "invalid_request_error",
    }
}

fn json(value: &impl Serialize) -> Bytes {
    // These are plain structs of text: writing them cannot fail.
    serde_json::to_vec(value).unwrap_or_default().into()
}

#[derive(Serialize)]
struct Body<'a> {
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    outer: Option<&'static str>,
    error: Error<'a>,
}

#[derive(Serialize)]
struct Error<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    code: &'a str,
    message: &'a str,
    param: Option<&'a str>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_too_late_for_a_status_is_an_event() {
        let event = |dialect, status, answer: &str| {
            let status = StatusCode::from_u16(status).unwrap();
            String::from_utf8(late_event(dialect, status, answer.as_bytes()).to_vec()).unwrap()
        };
        let error = "{\"error\":{\"code\":\"c\",\n\"message\":\"m\"}}";
        assert_eq!(
            event(Dialect::OpenAi, 503, error),
            "data: {\"error\":{\"code\":\"c\",\"message\":\"m\"}}\n\n"
        );
        assert!(
            event(Dialect::Anthropic, 503, error).starts_with("event: error\ndata: {\"error\"")
        );
        let failed = event(Dialect::Responses, 503, error);
        assert!(failed.contains("response.failed") && failed.contains("\"m\""), "{failed}");
        let text = event(Dialect::OpenAi, 502, "line\n\nline");
        assert!(text.contains(r"line\n\nline") && text.contains("upstream_error"), "{text}");
        assert_eq!(event(Dialect::OpenAi, 200, "{\"a\": 1}"), "data: {\"a\":1}\n\n");
    }

    #[test]
    fn the_shape_sdks_read() {
        let mut refusal = Refusal::new(StatusCode::NOT_FOUND, "model_not_found", "No \"m\".");
        refusal.param = Some("model");
        assert_eq!(
            refusal.body(Dialect::OpenAi),
            r#"{"error":{"type":"invalid_request_error","code":"model_not_found","message":"No \"m\".","param":"model"}}"#
        );
        let full = Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "c", "m").body(Dialect::OpenAi);
        assert!(std::str::from_utf8(&full).unwrap().contains(r#""type":"server_error""#));
        assert_eq!(
            refusal.body(Dialect::Anthropic),
            r#"{"type":"error","error":{"type":"not_found_error","code":"model_not_found","message":"No \"m\".","param":"model"}}"#
        );
    }

    #[test]
    fn each_status_has_the_type_that_its_vendor_gives_it() {
        for (status, openai, anthropic) in [
            (400, "invalid_request_error", "invalid_request_error"),
            (401, "invalid_request_error", "authentication_error"),
            (403, "invalid_request_error", "permission_error"),
            (404, "invalid_request_error", "not_found_error"),
            (413, "invalid_request_error", "request_too_large"),
            (429, "rate_limit_error", "rate_limit_error"),
            (500, "server_error", "api_error"),
            (503, "server_error", "overloaded_error"),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(kind(status, Dialect::OpenAi), openai, "{status}");
            assert_eq!(kind(status, Dialect::Anthropic), anthropic, "{status}");
        }
    }

    #[test]
    fn each_dialect_has_its_own_last_event() {
        let event = |dialect| String::from_utf8(stream_event(dialect, "c", "m").to_vec()).unwrap();
        assert!(event(Dialect::OpenAi).starts_with("data: {\"error\":"));
        assert!(event(Dialect::Anthropic).starts_with("event: error\ndata: {\"type\":\"error\","));
        let failed = event(Dialect::Responses);
        assert!(failed.starts_with("event: response.failed\ndata: {"), "{failed}");
        assert!(failed.contains(r#""status":"failed""#));
    }

    #[test]
    fn a_stream_error_is_one_whole_event() {
        let event = stream_event(Dialect::OpenAi, "c", "broke\n\n");
        let text = std::str::from_utf8(&event).unwrap();
        let json = text.strip_prefix("data: ").and_then(|t| t.strip_suffix("\n\n")).unwrap();
        assert!(!json.contains('\n'));
        let value: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!(value["error"]["message"], "broke\n\n");
    }
}
