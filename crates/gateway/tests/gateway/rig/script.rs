//! What a scripted worker does with one request.

use std::time::Duration;

/// One step.
#[derive(Clone, Debug)]
pub(super) enum Act {
    /// Read the request's body.
    Read,
    /// Write these bytes.
    Say(Vec<u8>),
    /// Let this much time pass.
    Pause(Duration),
    /// Wait until the other side closes.
    Hang,
    /// Close.
    Close,
}

/// The steps for one request; after the last one the connection serves the next request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Script(pub(super) Vec<Act>);

/// A script that reads the request.
pub(crate) fn script() -> Script {
    Script(vec![Act::Read])
}

impl Script {
    /// A script that does not even read the request's body.
    pub(crate) fn deaf() -> Self {
        Self::default()
    }

    pub(crate) fn say(self, bytes: impl AsRef<[u8]>) -> Self {
        self.then(Act::Say(bytes.as_ref().to_vec()))
    }

    pub(crate) fn read(self) -> Self {
        self.then(Act::Read)
    }

    pub(crate) fn pause(self, secs: f64) -> Self {
        self.then(Act::Pause(Duration::from_secs_f64(secs)))
    }

    pub(crate) fn hang(self) -> Self {
        self.then(Act::Hang)
    }

    pub(crate) fn close(self) -> Self {
        self.then(Act::Close)
    }

    fn then(mut self, act: Act) -> Self {
        self.0.push(act);
        self
    }
}

/// A whole answer with a length. `headers` are lines without line ends.
pub(crate) fn answer(status: &str, headers: &[&str], body: &str) -> String {
    let mut head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n", body.len());
    for line in headers {
        head.push_str(line);
        head.push_str("\r\n");
    }
    head + "\r\n" + body
}

/// A whole 200 with JSON.
pub(crate) fn json(body: &str) -> String {
    answer("200 OK", &["content-type: application/json"], body)
}

/// The head of an event stream.
pub(crate) fn events_head() -> &'static str {
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
}

/// One chunk.
pub(crate) fn chunked(data: impl AsRef<[u8]>) -> Vec<u8> {
    let data = data.as_ref();
    [format!("{:x}\r\n", data.len()).as_bytes(), data, b"\r\n"].concat()
}

/// A whole event stream, each of `chunks` a chunk of its own.
pub(crate) fn events(chunks: &[&str]) -> Vec<u8> {
    let mut all = events_head().as_bytes().to_vec();
    chunks.iter().for_each(|chunk| all.extend(chunked(chunk)));
    all.extend(b"0\r\n\r\n");
    all
}
