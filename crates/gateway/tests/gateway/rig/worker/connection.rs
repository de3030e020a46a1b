//! What a worker says on one connection.

use std::io;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

use super::super::script::{Act, answer};
use super::{Received, Worker};

/// One accepted connection.
pub(super) struct Connection {
    worker: Worker,
    socket: DuplexStream,
    unread: Vec<u8>,
    on: usize,
    /// Whether it has seen an inference request.
    seen: bool,
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.seen {
            self.worker.tell(|story| story.open -= 1);
        }
    }
}

impl Connection {
    pub(super) const fn new(
        worker: Worker,
        socket: DuplexStream,
        unread: Vec<u8>,
        on: usize,
    ) -> Self {
        Self { worker, socket, unread, on, seen: false }
    }

    pub(super) async fn serve(&mut self) -> io::Result<()> {
        loop {
            let head = self.read_head().await?;
            if head.starts_with("PRI ") {
                let no = answer("505 HTTP Version Not Supported", &["connection: close"], "");
                return self.socket.write_all(no.as_bytes()).await;
            }
            if let Some(path) = head.strip_prefix("GET ").and_then(|rest| rest.split(' ').next()) {
                self.worker.tell(|story| {
                    let key = head.lines().find_map(|line| line.strip_prefix("authorization: "));
                    story.keys.push(key.unwrap_or_default().to_owned());
                });
                if self.worker.hangs(path) {
                    self.worker.tell(|story| story.probed.push(path.to_owned()));
                    Self::closed(&mut self.socket, &mut self.unread).await;
                    return Ok(());
                }
                let Some(said) = self.probe(path) else { return Ok(()) };
                self.socket.write_all(said.as_bytes()).await?;
                continue;
            }
            let (at, first, on) = (self.worker.served(), !self.seen, self.on);
            self.seen = true;
            let script = self.worker.tell(|story| {
                story.open += usize::from(first);
                story.requests.push(Received { head: head.clone(), on, ..Received::default() });
                story.scripts.pop_front().unwrap_or_else(|| story.usual.clone())
            });
            for act in script.0 {
                self.perform(act, at, &head).await?;
            }
        }
    }

    fn probe(&self, path: &str) -> Option<String> {
        self.worker.probe(path)
    }

    async fn perform(&mut self, act: Act, at: usize, head: &str) -> io::Result<()> {
        match act {
            Act::Read if head.contains("transfer-encoding: chunked") => {
                self.read_chunks(at).await?
            }
            Act::Read => {
                let body = self.read_body(head).await?;
                self.worker.tell(|story| story.requests[at].body = body);
            }
            Act::Say(bytes) => {
                for piece in bytes.chunks(4096) {
                    self.socket.write_all(piece).await?;
                    self.worker.tell(|story| story.written += piece.len());
                }
            }
            Act::Pause(length) => {
                let closed = Self::closed(&mut self.socket, &mut self.unread);
                if tokio::time::timeout(length, closed).await.is_ok() {
                    return Err(io::ErrorKind::BrokenPipe.into());
                }
            }
            Act::Hang => {
                Self::closed(&mut self.socket, &mut self.unread).await;
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            Act::Close => return Err(io::ErrorKind::ConnectionAborted.into()),
        }
        Ok(())
    }

    async fn closed(socket: &mut DuplexStream, unread: &mut Vec<u8>) {
        while socket.read_buf(unread).await.is_ok_and(|read| read > 0) {}
    }

    async fn read_head(&mut self) -> io::Result<String> {
        loop {
            if let Some(at) = self.unread.windows(4).position(|four| four == b"\r\n\r\n") {
                let head = self.unread.drain(..at + 4).collect();
                return Ok(String::from_utf8(head)
                    .unwrap_or_else(|raw| raw.into_bytes().into_iter().map(char::from).collect()));
            }
            self.more().await?;
        }
    }

    async fn read_body(&mut self, head: &str) -> io::Result<Vec<u8>> {
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length = length.map_or(0, |length| length.parse().expect("a length"));
        while self.unread.len() < length {
            self.more().await?;
        }
        Ok(self.unread.drain(..length).collect())
    }

    /// Reads a body of chunks, which shows as far as it has come.
    async fn read_chunks(&mut self, at: usize) -> io::Result<()> {
        loop {
            let line = self.read_line().await?;
            let size = usize::from_str_radix(&line, 16).expect("a chunk's size");
            while self.unread.len() < size + 2 {
                self.more().await?;
            }
            let chunk: Vec<_> = self.unread.drain(..size + 2).take(size).collect();
            self.worker.tell(|story| {
                let request = &mut story.requests[at];
                request.body.extend(&chunk);
                request.whole = size == 0;
            });
            if size == 0 {
                return Ok(());
            }
        }
    }

    async fn read_line(&mut self) -> io::Result<String> {
        loop {
            if let Some(at) = self.unread.windows(2).position(|two| two == b"\r\n") {
                let line: Vec<_> = self.unread.drain(..at + 2).take(at).collect();
                return Ok(String::from_utf8(line).expect("text"));
            }
            self.more().await?;
        }
    }

    async fn more(&mut self) -> io::Result<()> {
        match self.socket.read_buf(&mut self.unread).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}
