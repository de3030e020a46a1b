//! A client that may send anything and looks at every byte that comes back.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use smg_gateway::Gateway;
use smg_gateway::upstream::Socket;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinHandle;

use super::{Authority, within};

/// How an answer's body ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Its length was met.
    Length,
    /// The last chunk came.
    LastChunk,
    /// The connection closed before that.
    Unterminated,
}

/// An answer.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// Names in small letters; values byte for byte, as Latin-1.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) ended: Ended,
}

impl Reply {
    /// All values of a header, joined by `|`.
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        let found: Vec<_> =
            self.headers.iter().filter(|(n, _)| n == name).map(|(_, v)| v.as_str()).collect();
        (!found.is_empty()).then(|| found.join("|"))
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {:?}", self.text()))
    }

    /// The name of the worker that answered.
    pub(crate) fn worker(&self) -> String {
        let url = self.header("x-smg-routed-worker-id").unwrap_or_default();
        url.trim_start_matches("http://").trim_end_matches(":8000").to_owned()
    }

    /// Checks a refusal of the gateway's own: shape, code in header and body alike.
    #[track_caller]
    pub(crate) fn is_refusal(&self, status: u16, code: &str) {
        let seen = (self.status, self.header("x-smg-error-code"));
        assert_eq!(seen, (status, Some(code.to_owned())), "{}", self.text());
        assert_eq!(self.header("content-type").as_deref(), Some("application/json"));
        let error = &self.json()["error"];
        assert_eq!(error["code"], code);
        for field in ["type", "message"] {
            assert!(error[field].as_str().is_some_and(|text| !text.is_empty()), "{error}");
        }
        assert!(error.get("param").is_some(), "{error}");
        assert_eq!(self.ended, Ended::Length);
    }
}

/// One client connection.
pub(crate) struct Client {
    socket: Socket,
    unread: Vec<u8>,
    conversation: JoinHandle<()>,
}

impl Client {
    pub(super) fn connect(gw: &Arc<Gateway>, pipe: usize) -> Self {
        Self::connect_from(gw, pipe, Ipv4Addr::LOCALHOST.into())
    }

    pub(super) fn connect_from(gw: &Arc<Gateway>, pipe: usize, peer: IpAddr) -> Self {
        let (socket, theirs) = tokio::io::duplex(pipe);
        let conversation = tokio::spawn(Arc::clone(gw).converse(theirs, peer));
        Self { socket: Box::new(socket), unread: Vec::new(), conversation }
    }

    /// Shakes hands with the gateway, which must be this host.
    pub(crate) async fn secured(mut self, authority: &Authority, host: &'static str) -> Self {
        self.socket = authority.connect(host, self.socket).await;
        self
    }

    /// Sends these bytes.
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        within("the gateway reads", self.socket.write_all(bytes.as_ref())).await.expect("sent");
        self
    }

    /// Sends these bytes, as far as the gateway takes them.
    pub(crate) async fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        within("the gateway reads", self.socket.write_all(bytes.as_ref())).await.is_ok()
    }

    /// Sends a POST with a length and returns the answer.
    pub(crate) async fn post(
        &mut self,
        path: &str,
        headers: &[(&str, &str)],
        body: impl AsRef<[u8]>,
    ) -> Reply {
        self.send(post(path, headers, body)).await;
        self.reply().await
    }

    pub(crate) async fn get(&mut self, path: &str) -> Reply {
        self.send(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n")).await;
        self.reply().await
    }

    /// The next answer, whole.
    pub(crate) async fn reply(&mut self) -> Reply {
        let mut reply = self.head().await;
        let length = reply.header("content-length").map(|l| l.parse().expect("a length"));
        reply.ended = if reply.header("transfer-encoding").is_some() {
            loop {
                match self.chunk().await {
                    Some(chunk) if chunk.is_empty() => break Ended::LastChunk,
                    Some(chunk) => reply.body.extend(chunk),
                    None => break Ended::Unterminated,
                }
            }
        } else if let Some(length) = length {
            let whole = self.fill(|unread| (unread.len() >= length).then_some(length)).await;
            reply.body = self.unread.drain(..length.min(self.unread.len())).collect();
            if whole.is_some() { Ended::Length } else { Ended::Unterminated }
        } else if matches!(reply.status, 100..200 | 204 | 304) {
            Ended::Length
        } else {
            self.fill(|_| None::<()>).await;
            reply.body = std::mem::take(&mut self.unread);
            Ended::Unterminated
        };
        reply
    }

    /// What is left of a chunked answer whose head is read.
    pub(crate) async fn reply_body(&mut self) -> String {
        let mut body = Vec::new();
        while let Some(chunk) = self.chunk().await.filter(|chunk| !chunk.is_empty()) {
            body.extend(chunk);
        }
        String::from_utf8(body).expect("text")
    }

    /// The head of the next answer.
    pub(crate) async fn head(&mut self) -> Reply {
        let end = |unread: &[u8]| unread.windows(4).position(|four| four == b"\r\n\r\n");
        let Some(at) = self.fill(end).await else {
            panic!("no answer but {:?}", String::from_utf8_lossy(&self.unread));
        };
        let head: String = self.unread.drain(..at + 4).map(char::from).collect();
        let mut lines = head.trim_end().lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)).expect("a status");
        let headers = lines.filter_map(|line| line.split_once(": "));
        Reply {
            status: status.parse().expect("a number"),
            headers: headers.map(|(n, v)| (n.to_ascii_lowercase(), v.to_owned())).collect(),
            body: Vec::new(),
            ended: Ended::Unterminated,
        }
    }

    /// The next chunk; empty at the last one, `None` when the connection closed before.
    pub(crate) async fn chunk(&mut self) -> Option<Vec<u8>> {
        let line = |unread: &[u8]| unread.windows(2).position(|two| two == b"\r\n");
        let at = self.fill(line).await?;
        let size: String = self.unread.drain(..at + 2).map(char::from).collect();
        let size = usize::from_str_radix(size.trim_end(), 16).expect("a chunk's size");
        let whole = self.fill(|unread| (unread.len() >= size + 2).then_some(())).await;
        let data = self.unread.drain(..size.min(self.unread.len())).collect();
        if whole.is_some() {
            self.unread.drain(..2);
        }
        Some(data)
    }

    /// Everything until the gateway closes.
    pub(crate) async fn rest(mut self) -> Vec<u8> {
        self.fill(|_| None::<()>).await;
        self.unread
    }

    /// The gateway has closed this connection and said nothing more.
    pub(crate) async fn sees_the_end(self) {
        let rest = self.rest().await;
        assert_eq!(String::from_utf8_lossy(&rest), "");
    }

    /// Stops sending but goes on reading.
    pub(crate) async fn half_close(&mut self) {
        self.socket.shutdown().await.expect("shut down");
    }

    /// Goes away; returns once the gateway has noticed.
    pub(crate) async fn leave(self) {
        drop(self.socket);
        within("the gateway notices", self.conversation).await.expect("no panic");
    }

    /// Reads until `find` finds something; `None` when the gateway closed before.
    async fn fill<T>(&mut self, find: impl Fn(&[u8]) -> Option<T>) -> Option<T> {
        loop {
            if let Some(found) = find(&self.unread) {
                return Some(found);
            }
            let read = within("bytes from the gateway", self.socket.read_buf(&mut self.unread));
            if !read.await.is_ok_and(|read| read > 0) {
                return None;
            }
        }
    }
}

/// A POST as bytes, with a length.
pub(crate) fn post(path: &str, headers: &[(&str, &str)], body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let mut head =
        format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n", body.len());
    headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
    [head.as_bytes(), b"\r\n", body].concat()
}
