//! Multipart forms (RFC 7578), as far as routing has to know them: which model they name, and
//! whether they ask for a stream. Files in them are passed over at memory speed.

use std::borrow::Cow;
use std::ops::Range;

use http::HeaderValue;
use memchr::memmem;

use crate::json::Bad;

/// What a form says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Form {
    /// The model it names.
    pub model: Option<String>,
    /// Whether it asks for a stream.
    pub stream: bool,
    model_at: Range<usize>,
}

/// Longest boundary (RFC 2046, 5.1.1).
const MAX_BOUNDARY: usize = 70;

impl Form {
    /// Reads a body of this type.
    ///
    /// # Errors
    /// When it is no multipart form, or one without an end.
    pub fn read(kind: Option<&HeaderValue>, body: &[u8]) -> Result<Self, Bad> {
        let boundary = kind.and_then(boundary).ok_or(Bad::NotAForm)?;
        let parts = parts(body, format!("--{boundary}").as_bytes()).ok_or(Bad::NotAForm)?;
        let mut form = Self::default();
        for part in parts {
            let bytes = body.get(part.clone()).unwrap_or_default();
            let Some(end) = memmem::find(bytes, b"\r\n\r\n") else { continue };
            let (head, value) = (bytes.get(..end), bytes.get(end + 4..));
            let value = value.and_then(|value| std::str::from_utf8(value).ok());
            match (head.and_then(name).as_deref(), value) {
                (Some("model"), Some(value)) => {
                    form.model_at = part.start + end + 4..part.end;
                    form.model = Some(value.to_owned());
                }
                (Some("stream"), Some(value)) => form.stream = value.eq_ignore_ascii_case("true"),
                _ => {}
            }
        }
        Ok(form)
    }

    /// The body with another model in the place of the one it names.
    #[must_use]
    pub fn renamed(&self, body: &[u8], model: &str) -> Option<Vec<u8>> {
        let (before, after) = (body.get(..self.model_at.start)?, body.get(self.model_at.end..)?);
        Some([before, model.as_bytes(), after].concat())
    }
}

/// The boundary that a `Content-Type` names.
fn boundary(kind: &HeaderValue) -> Option<Cow<'_, str>> {
    let (essence, parameters) = kind.to_str().ok()?.split_once(';')?;
    if !essence.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let value = parameter(parameters, "boundary")?;
    (1..=MAX_BOUNDARY).contains(&value.len()).then_some(value)
}

/// Where the parts stand, heads and all; `None` without a last boundary.
fn parts(body: &[u8], boundary: &[u8]) -> Option<Vec<Range<usize>>> {
    let (mut parts, mut begun) = (Vec::new(), None);
    for at in memmem::find_iter(body, boundary) {
        // Elsewhere than at the start of a line it belongs to a file.
        let line_break = at.checked_sub(2).and_then(|before| body.get(before..at));
        if at > 0 && line_break != Some(b"\r\n") {
            continue;
        }
        if let Some(begun) = begun.filter(|begun| *begun + 2 <= at) {
            parts.push(begun..at - 2);
        }
        let after = at + boundary.len();
        match body.get(after..after + 2)? {
            b"--" => return Some(parts),
            b"\r\n" => begun = Some(after + 2),
            // A longer boundary, or blanks, which nobody sends: the part goes on.
            _ => {}
        }
    }
    None
}

/// The name of a part.
fn name(head: &[u8]) -> Option<Cow<'_, str>> {
    let mut lines = std::str::from_utf8(head).ok()?.split("\r\n");
    let value = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("content-disposition").then_some(value)
    })?;
    parameter(value, "name")
}

/// The value of a parameter (RFC 9110, 5.6.6), without its quotes and escapes. What stands in another's
/// quotes is no parameter, and a quote that never ends goes on to the end.
fn parameter<'a>(mut rest: &'a str, wanted: &str) -> Option<Cow<'a, str>> {
    loop {
        let (one, more) = split_at_semicolon(rest);
        if let Some((name, value)) = one.split_once('=')
            && name.trim().eq_ignore_ascii_case(wanted)
        {
            return Some(unquoted(value.trim()));
        }
        rest = more?;
    }
}

/// What stands before the first `;` outside of quotes, and what comes after it.
fn split_at_semicolon(text: &str) -> (&str, Option<&str>) {
    let (mut quoted, mut escaped) = (false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = quoted,
            b'"' => quoted = !quoted,
            b';' if !quoted => return (text.get(..at).unwrap_or(text), text.get(at + 1..)),
            _ => {}
        }
    }
    (text, None)
}

fn unquoted(value: &str) -> Cow<'_, str> {
    let Some(inner) = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) else {
        return Cow::Borrowed(value);
    };
    if !inner.contains('\\') {
        return Cow::Borrowed(inner);
    }
    let (mut plain, mut escaped) = (String::with_capacity(inner.len()), false);
    for letter in inner.chars() {
        escaped = letter == '\\' && !escaped;
        if !escaped {
            plain.push(letter);
        }
    }
    Cow::Owned(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(text: &'static str) -> HeaderValue {
        HeaderValue::from_static(text)
    }

    fn body() -> Vec<u8> {
        let mut body =
            b"--b1\r\nContent-Disposition: form-data; name=\"file\"; filename=\"model\"\r\n\
            Content-Type: audio/wav\r\n\r\nRIFF\xff--b1\r\n\r\n--b1x\r\nname=\"model\"\r\n\r\nno"
                .to_vec();
        body.extend(b"\r\n--b1\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nwhisper");
        body.extend(b"\r\n--b1\r\nContent-Disposition: form-data; name=stream\r\n\r\nTrue");
        body.extend(b"\r\n--b1--\r\n");
        body
    }

    #[test]
    fn model_and_stream_are_found_beside_a_file() {
        for kind in [
            kind("multipart/form-data; boundary=b1"),
            kind("Multipart/Form-Data;charset=utf-8; Boundary=\"b1\""),
        ] {
            let form = Form::read(Some(&kind), &body()).unwrap();
            assert_eq!((form.model.as_deref(), form.stream), (Some("whisper"), true));
            let renamed = form.renamed(&body(), "large").unwrap();
            let again = Form::read(Some(&kind), &renamed).unwrap();
            assert_eq!(again.model.as_deref(), Some("large"));
            assert_eq!(renamed.len(), body().len() - 2);
        }
    }

    #[test]
    fn what_stands_in_quotes_is_no_parameter() {
        for (text, found) in [
            (r#"form-data; name="model""#, Some("model")),
            (r#"form-data; NAME = model ; x=y"#, Some("model")),
            (r#"form-data; filename="a; name=b"; name="model""#, Some("model")),
            (r#"form-data; filename="a; name=b""#, None),
            (r#"form-data; filename="a\"; name=b"; name=c"#, Some("c")),
            (r#"form-data; filename="a\\"; name=b"#, Some("b")),
            (r#"form-data; filename=a\; name=b"#, Some("b")),
            (r#"form-data; name="a;b""#, Some("a;b")),
            (r#"form-data; name="a\"b\\c\d""#, Some(r#"a"b\cd"#)),
            (r#"form-data; name="""#, Some("")),
            (r#"form-data; name=""#, Some("\"")),
            (r#"form-data; filename="a; name=b"#, None),
            (r#"form-data; filename="ü;"; name=é"#, Some("é")),
            ("form-data; name*=x; =; ;", None),
            ("", None),
        ] {
            assert_eq!(parameter(text, "name").as_deref(), found, "{text}");
        }
    }

    #[test]
    fn a_boundary_may_hold_what_parts_parameters() {
        let kind = kind("multipart/form-data; x=\"; boundary=no\"; boundary=\"b;1\"");
        let body = b"--b;1\r\nContent-Disposition: form-data; filename=\"; name=file\"; \
            name=\"model\"\r\n\r\nm\r\n--b;1--";
        let form = Form::read(Some(&kind), body).unwrap();
        assert_eq!(form.model.as_deref(), Some("m"));
    }

    #[test]
    fn a_form_may_name_nothing() {
        let multipart = kind("multipart/form-data; boundary=b1");
        for body in [&b"--b1--"[..], b"--b1\r\n\r\nx\r\n--b1--", b"--b1\r\nno end\r\n--b1--\r\n"] {
            let form = Form::read(Some(&multipart), body).unwrap();
            assert_eq!(form, Form::default());
        }
    }

    #[test]
    fn what_is_no_whole_form_is_refused() {
        let bad = |kind: Option<&HeaderValue>, body: &[u8]| {
            assert_eq!(Form::read(kind, body), Err(Bad::NotAForm), "{kind:?}");
        };
        bad(None, &body());
        for other in ["application/json", "multipart/form-data", "multipart/form-data; boundary="] {
            bad(Some(&kind(other)), &body());
        }
        let multipart = kind("multipart/form-data; boundary=b1");
        for cut in 0..body().len() - 2 {
            bad(Some(&multipart), &body()[..cut]);
        }
        bad(Some(&kind("multipart/form-data; boundary=other")), &body());
    }
}
