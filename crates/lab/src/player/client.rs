//! A small HTTP/1 client: one connection an exchange, and the events of the answer read as they come.

use std::fmt::Display;
use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HOST};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// The answer header in which a gateway names the worker.
const WORKER: &str = "x-smg-routed-worker-id";

/// Where requests go.
#[derive(Debug)]
pub(super) struct Base {
    address: String,
    path: String,
}

/// What came back, as far as it came.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) worker: Option<String>,
    pub(super) text: String,
    pub(super) prompt_tokens: usize,
    pub(super) cached_tokens: usize,
    pub(super) first_token: Option<Duration>,
    pub(super) error: Option<String>,
}

impl Answer {
    pub(super) fn failed(why: impl Display) -> Self {
        Self { error: Some(why.to_string()), ..Self::default() }
    }
}

impl Base {
    pub(super) fn parse(url: &str) -> io::Result<Self> {
        let wrong =
            || io::Error::new(io::ErrorKind::InvalidInput, format!("no http:// address: {url}"));
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        if uri.scheme_str() != Some("http") {
            return Err(wrong());
        }
        let host = uri.host().ok_or_else(wrong)?;
        Ok(Self {
            address: format!("{host}:{}", uri.port_u16().unwrap_or(80)),
            path: uri.path().trim_end_matches('/').to_owned(),
        })
    }

    /// Sends one streaming chat request and listens to the end.
    pub(super) async fn chat(&self, body: Value, header: Option<(&str, &str)>) -> Answer {
        let mut answer = Answer::default();
        if let Err(why) = self.exchange(&body, header, &mut answer).await {
            answer.error = Some(why.to_string());
        }
        answer
    }

    async fn exchange(
        &self,
        body: &Value,
        header: Option<(&str, &str)>,
        answer: &mut Answer,
    ) -> Result<(), Trouble> {
        let mut request = Request::post(format!("{}/v1/chat/completions", self.path))
            .header(HOST, &self.address)
            .header(CONTENT_TYPE, "application/json");
        if let Some((name, value)) = header {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(Bytes::from(body.to_string())))?;

        let began = Instant::now();
        let stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // In a set of one, so that the connection ends with this exchange however that ends.
        let mut line = JoinSet::new();
        line.spawn(connection);
        let response = sender.send_request(request).await?;
        let worker = response.headers().get(WORKER);
        answer.worker = worker.and_then(|id| Some(id.to_str().ok()?.to_owned()));
        listen(response, began, answer).await
    }
}

type Trouble = Box<dyn std::error::Error + Send + Sync>;

async fn listen(
    response: Response<Incoming>,
    began: Instant,
    answer: &mut Answer,
) -> Result<(), Trouble> {
    let status = response.status();
    let mut body = response.into_body();
    if status != StatusCode::OK {
        let body = body.collect().await?.to_bytes();
        let text: String = String::from_utf8_lossy(&body).chars().take(200).collect();
        return Err(format!("status {}: {text}", status.as_u16()).into());
    }
    let mut lines = Lines::default();
    while let Some(frame) = body.frame().await {
        let Ok(chunk) = frame?.into_data() else {
            continue;
        };
        lines.add(&chunk);
        while let Some(data) = lines.next_event() {
            if data == "[DONE]" {
                return Ok(());
            }
            answer.take(&serde_json::from_slice(data.as_bytes())?, began)?;
        }
    }
    Err("the stream ended before [DONE]".into())
}

impl Answer {
    fn take(&mut self, event: &Value, began: Instant) -> Result<(), Trouble> {
        if let Some(error) = event.get("error").filter(|error| !error.is_null()) {
            return Err(format!("error event: {error}").into());
        }
        let text = event.pointer("/choices/0/delta/content").and_then(Value::as_str);
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            self.first_token.get_or_insert_with(|| began.elapsed());
            self.text.push_str(text);
        }
        let number = |path| {
            let number = event.pointer(path).and_then(Value::as_u64)?;
            usize::try_from(number).ok()
        };
        if let Some(tokens) = number("/usage/prompt_tokens") {
            self.prompt_tokens = tokens;
            self.cached_tokens =
                number("/usage/prompt_tokens_details/cached_tokens").unwrap_or_default();
        }
        Ok(())
    }
}

/// Cuts what arrives into lines, wherever the network cut it.
#[derive(Default)]
struct Lines(BytesMut);

impl Lines {
    fn add(&mut self, chunk: &[u8]) {
        self.0.extend_from_slice(chunk);
    }

    /// The data of the next whole `data:` line.
    fn next_event(&mut self) -> Option<String> {
        loop {
            let end = self.0.iter().position(|byte| *byte == b'\n')?;
            let line = self.0.split_to(end + 1);
            if let Some(data) = line.strip_prefix(b"data:") {
                return Some(String::from_utf8_lossy(data).trim().to_owned());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_found_wherever_the_network_cuts() {
        let stream = b": hello\r\ndata: {\"a\":1}\r\n\r\ndata:[DONE]\n\n";
        for cut in 0..stream.len() {
            let (first, second) = stream.split_at(cut);
            let mut lines = Lines::default();
            let mut events = Vec::new();
            for chunk in [first, second] {
                lines.add(chunk);
                events.extend(std::iter::from_fn(|| lines.next_event()));
            }
            assert_eq!(events, ["{\"a\":1}", "[DONE]"]);
        }
    }

    #[test]
    fn only_plain_http_addresses_are_taken() {
        let base = Base::parse("http://127.0.0.1:8000/gateway/").unwrap();
        assert_eq!(base.address, "127.0.0.1:8000");
        assert_eq!(base.path, "/gateway");
        assert_eq!(Base::parse("http://[::1]").unwrap().address, "[::1]:80");
        assert!(Base::parse("https://example.org").is_err());
        assert!(Base::parse("127.0.0.1:8000").is_err());
    }
}
