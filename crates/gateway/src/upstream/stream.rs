//! An answer in chunks that is read without hyper: its bytes go through room on the stack, so that
//! nothing is held for a stream between two events.

use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderName, StatusCode, Version, header};
use smg_wire::chunked::Decoder;
use smg_wire::header::nominated;
use tokio::io::{AsyncRead as _, ReadBuf};

use super::ears::Ears;
use super::pool::Link;

/// Most that is read at once.
const ROOM: usize = 16 * 1024;

/// The rest of an answer whose head hyper has read.
#[derive(Debug)]
pub(super) struct Stream {
    ears: Ears,
    chunks: Decoder,
    /// Whether the connection may serve another request after this.
    goes_on: bool,
}

impl Stream {
    /// Takes the connection over, if what follows the head are chunks and nothing else could be
    /// meant: any doubt is left to hyper.
    pub(super) fn take(head: &Parts, link: Box<Link>) -> Result<Box<Self>, Box<Link>> {
        if !in_chunks(head) {
            return Err(link);
        }
        let ears = link.into_ears()?;
        let goes_on = !nominated(&head.headers, &HeaderName::from_static("close"));
        Ok(Box::new(Self { ears, chunks: Decoder::default(), goes_on }))
    }

    /// The next of its bytes; none at the end. An error says that it broke off or makes no sense.
    pub(super) fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, &'static str>> {
        loop {
            if self.chunks.is_over() {
                return Poll::Ready(Ok(None));
            }
            let mut room = [MaybeUninit::uninit(); ROOM];
            let mut read = ReadBuf::uninit(&mut room);
            if ready!(Pin::new(&mut self.ears).poll_read(cx, &mut read)).is_err() {
                return Poll::Ready(Err("the connection failed"));
            }
            let said = read.filled();
            if said.is_empty() {
                return Poll::Ready(Err("the connection was closed"));
            }
            let mut data = Vec::with_capacity(said.len());
            let Ok(taken) = self.chunks.feed(said, &mut data) else {
                return Poll::Ready(Err("what came is no chunk"));
            };
            // Whatever stands behind the end of an answer answers nothing.
            self.goes_on &= taken == said.len();
            if !data.is_empty() {
                return Poll::Ready(Ok(Some(data.into())));
            }
        }
    }

    /// Whether the last chunk has come.
    pub(super) const fn is_over(&self) -> bool {
        self.chunks.is_over()
    }

    /// The connection, if it may serve another request.
    pub(super) fn into_ears(self) -> Option<Ears> {
        self.goes_on.then_some(self.ears)
    }
}

/// Whether a head announces chunks and has no other word on how long its body is.
fn in_chunks(head: &Parts) -> bool {
    let mut codings = head.headers.get_all(header::TRANSFER_ENCODING).iter();
    let chunked = codings.next().is_some_and(|c| c.as_bytes().eq_ignore_ascii_case(b"chunked"));
    let alone = codings.next().is_none() && !head.headers.contains_key(header::CONTENT_LENGTH);
    chunked && alone && head.version == Version::HTTP_11 && head.status != StatusCode::NO_CONTENT
}
