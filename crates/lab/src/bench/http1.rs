//! As much HTTP/1.1 as the load and the mock workers need, cheap enough not to disturb what is measured.

use std::io;

use bytes::{Buf, BytesMut};
use memchr::{memchr, memmem};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// Read at a time where little is expected.
const LITTLE: usize = 8 * 1024;
/// Read at a time where much is.
const MUCH: usize = 256 * 1024;

/// A head longer than this is a fault of the peer, not a message.
const MAX_HEAD: usize = 64 * 1024;

/// How the end of a body is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    Length(usize),
    Chunked,
}

/// A message's head: its first line, its framing, and which worker a gateway says it is from.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) first_line: String,
    pub(crate) framing: Framing,
    pub(crate) worker: Option<String>,
}

impl Head {
    /// The status of an answer; `None` if this is no answer.
    pub(crate) fn status(&self) -> Option<u16> {
        self.first_line.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut lines = text.split("\r\n");
        let first_line = lines.next()?.to_owned();
        let (mut framing, mut worker) = (Framing::Length(0), None);
        for (name, value) in lines.filter_map(|line| line.split_once(':')) {
            if name.eq_ignore_ascii_case("x-smg-routed-worker-id") {
                worker = Some(value.trim().to_owned());
            } else if name.eq_ignore_ascii_case("content-length") && framing != Framing::Chunked {
                framing = Framing::Length(value.trim().parse().ok()?);
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                framing = Framing::Chunked;
            }
        }
        Some(Self { first_line, framing, worker })
    }
}

/// One connection, read message by message.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    buffer: BytesMut,
}

impl Connection {
    pub(crate) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: BytesMut::with_capacity(16 * 1024) })
    }

    /// The next head, or `None` if the other side closed between messages.
    pub(crate) async fn head(&mut self) -> io::Result<Option<Head>> {
        loop {
            if let Some(end) = memmem::find(&self.buffer, b"\r\n\r\n") {
                let bytes = self.buffer.split_to(end);
                self.buffer.advance(4);
                return Head::parse(&bytes)
                    .map(Some)
                    .ok_or_else(|| broken("a head that cannot be read"));
            }
            if self.buffer.len() > MAX_HEAD {
                return Err(broken("a head without end"));
            }
            if self.more(LITTLE).await? == 0 {
                return if self.buffer.is_empty() {
                    Ok(None)
                } else {
                    Err(broken("closed within a head"))
                };
            }
        }
    }

    /// Reads the body to its end, handing over each piece as it comes. A `sink` that returns an error ends it.
    pub(crate) async fn body(
        &mut self,
        framing: Framing,
        mut sink: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut body = Body::new(framing);
        loop {
            if body.take(&mut self.buffer, &mut sink)? {
                return Ok(());
            }
            if self.more(body.expected().clamp(LITTLE, MUCH)).await? == 0 {
                return Err(broken("closed within a body"));
            }
        }
    }

    async fn more(&mut self, room: usize) -> io::Result<usize> {
        self.buffer.reserve(room);
        self.stream.read_buf(&mut self.buffer).await
    }
}

/// Where in a body we are.
#[derive(Debug)]
enum Body {
    /// So many bytes to come, then the end.
    Fixed(usize),
    /// A chunk's size line comes next.
    Size,
    /// So many bytes of a chunk to come.
    Chunk(usize),
    /// The line end behind a chunk comes next.
    Gap,
    /// Trailers until an empty line.
    Trailer,
}

impl Body {
    fn new(framing: Framing) -> Self {
        match framing {
            Framing::Length(length) => Self::Fixed(length),
            Framing::Chunked => Self::Size,
        }
    }

    /// Bytes that are known to come.
    fn expected(&self) -> usize {
        match *self {
            Self::Fixed(left) | Self::Chunk(left) => left,
            Self::Size | Self::Gap | Self::Trailer => 0,
        }
    }

    /// Takes what `buffer` holds of the body; true once the body is complete.
    fn take(
        &mut self,
        buffer: &mut BytesMut,
        sink: &mut impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<bool> {
        loop {
            match *self {
                Self::Fixed(0) => return Ok(true),
                Self::Fixed(left) => match pass(buffer, left, sink)? {
                    Some(left) => *self = Self::Fixed(left),
                    None => return Ok(false),
                },
                Self::Size => match line(buffer) {
                    Some(line) => *self = chunk_size(&line)?,
                    None => return Ok(false),
                },
                Self::Chunk(0) => *self = Self::Gap,
                Self::Chunk(left) => match pass(buffer, left, sink)? {
                    Some(left) => *self = Self::Chunk(left),
                    None => return Ok(false),
                },
                Self::Gap => match line(buffer) {
                    Some(line) if line.is_empty() => *self = Self::Size,
                    Some(_) => return Err(broken("a chunk longer than its size")),
                    None => return Ok(false),
                },
                Self::Trailer => match line(buffer) {
                    Some(line) if line.is_empty() => return Ok(true),
                    Some(_) => {}
                    None => return Ok(false),
                },
            }
        }
    }
}

/// Hands over up to `left` bytes and returns how many are still to come; `None` if there was nothing to hand over.
fn pass(
    buffer: &mut BytesMut,
    left: usize,
    sink: &mut impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<Option<usize>> {
    let here = left.min(buffer.len());
    if here == 0 {
        return Ok(None);
    }
    sink(buffer.get(..here).unwrap_or_default())?;
    buffer.advance(here);
    Ok(Some(left - here))
}

/// Takes one line without its end.
fn line(buffer: &mut BytesMut) -> Option<BytesMut> {
    let end = memchr(b'\n', buffer)?;
    let mut line = buffer.split_to(end + 1);
    line.truncate(line.len().saturating_sub(2));
    Some(line)
}

fn chunk_size(line: &[u8]) -> io::Result<Body> {
    let digits = line.split(|&byte| byte == b';').next().unwrap_or_default();
    let size = std::str::from_utf8(digits)
        .ok()
        .and_then(|digits| usize::from_str_radix(digits.trim(), 16).ok());
    match size {
        Some(0) => Ok(Body::Trailer),
        Some(size) => Ok(Body::Chunk(size)),
        None => Err(broken("a chunk without a size")),
    }
}

/// The error for an answer or request that is not what it should be.
pub(crate) fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(framing: Framing, pieces: &[&[u8]]) -> (Vec<u8>, bool, usize) {
        let mut body = Body::new(framing);
        let mut buffer = BytesMut::new();
        let mut out = Vec::new();
        let mut done = false;
        for piece in pieces {
            buffer.extend_from_slice(piece);
            done = body
                .take(&mut buffer, &mut |bytes| {
                    out.extend_from_slice(bytes);
                    Ok(())
                })
                .unwrap();
        }
        (out, done, buffer.len())
    }

    #[test]
    fn a_chunked_body_reads_the_same_at_every_split() {
        let wire: &[u8] = b"5\r\nhello\r\n7;x=y\r\n, world\r\n0\r\ntrailer: t\r\n\r\n";
        for at in 0..wire.len() {
            let (head, tail) = wire.split_at(at);
            assert_eq!(
                decode(Framing::Chunked, &[head, tail]),
                (b"hello, world".to_vec(), true, 0),
                "split at {at}"
            );
        }
    }

    #[test]
    fn a_fixed_body_leaves_what_follows_it() {
        assert_eq!(decode(Framing::Length(3), &[b"ab", b"cde"]), (b"abc".to_vec(), true, 2));
        assert_eq!(decode(Framing::Length(3), &[b"ab"]), (b"ab".to_vec(), false, 0));
        assert_eq!(decode(Framing::Length(0), &[b""]), (Vec::new(), true, 0));
    }

    #[test]
    fn broken_chunks_are_refused() {
        for wire in [&b"zz\r\n"[..], b"1\r\nab\r\n"] {
            let mut buffer = BytesMut::from(wire);
            assert!(Body::Size.take(&mut buffer, &mut |_| Ok(())).is_err());
        }
    }

    #[test]
    fn a_head_gives_status_and_framing() {
        let head = Head::parse(b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\nx: y").unwrap();
        assert_eq!((head.status(), head.framing), (Some(200), Framing::Length(12)));
        let head =
            Head::parse(b"POST /x HTTP/1.1\r\ncontent-length: 1\r\nTransfer-Encoding: chunked")
                .unwrap();
        assert_eq!((head.status(), head.framing), (None, Framing::Chunked));
        assert_eq!(Head::parse(b"HTTP/1.1 204 No Content\r\ncontent-length: many"), None);
    }
}
