//! The answer on its way to the client.
//!
//! An event stream is relayed inline: the client's connection polls this body, which polls the
//! worker's connection. At most one chunk is held, and when the client reads slowly nobody reads
//! from the worker (001, "Backpressure").

mod late;
mod notes;
mod slices;

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use smg_decide::retry::Fault;
use smg_decide::settle::End;
use smg_wire::error::stream_event;
use smg_wire::route::Dialect;
use smg_wire::sse::{Tail, keepalive};

pub(crate) use self::late::{Coming, Late};
pub(crate) use self::notes::Notes;
use self::slices::Slices;
use crate::admission::Permit;
use crate::edge::Attending;
use crate::lull::Lull;
use crate::session::Lease;
use crate::telemetry::CallGuard;
use crate::upstream::Exchange;

/// Rides with an answer and settles it exactly once; dropped unsettled, the client has gone.
#[derive(Debug)]
pub(crate) struct Ticket {
    lease: Lease,
    /// The answer's status; 200 while there is none.
    status: u16,
    /// Whether the worker said when to come back.
    retry_after: bool,
    settled: bool,
    notes: Notes,
}

impl Ticket {
    pub(crate) fn new(lease: Lease) -> Self {
        Self::answered(lease, 200, false)
    }

    /// For an answer that has this status.
    pub(crate) fn answered(lease: Lease, status: u16, retry_after: bool) -> Self {
        Self { lease, status, retry_after, settled: false, notes: Notes::default() }
    }

    /// The same for an answer of which this is to be read.
    pub(crate) fn noting(mut self, notes: Notes) -> Self {
        self.notes = notes;
        self
    }

    /// This is the whole answer.
    pub(crate) fn read(mut self, answer: &[u8]) -> Self {
        self.notes.read(answer);
        self
    }

    /// The exchange ended this way.
    pub(crate) fn settle(mut self, end: End) {
        self.close(end);
    }

    fn close(&mut self, end: End) {
        if std::mem::replace(&mut self.settled, true) {
            return;
        }
        self.lease.record(end, self.status, self.retry_after);
        let upstream = &self.lease.upstream;
        if let Some(usage) = self.notes.usage() {
            upstream.meters.usage.count(self.lease.outcome, usage);
        }
        upstream.meters.attempt_failed(match end {
            End::UpstreamBroke => 500,
            End::Timeout => 504,
            End::Clean | End::ClientGone | End::Refused => self.status,
        });
        tracing::debug!(worker = &*upstream.worker.url, end = end.as_str(), "settled");
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.close(End::ClientGone);
    }
}

/// A body for a client.
#[derive(Debug)]
pub(crate) struct ReplyBody {
    kind: Kind,
    /// Counts the request as in flight until the last byte.
    call: Option<CallGuard>,
    /// Keeps its place among the requests that may run until then, too.
    permit: Option<Permit>,
    /// Keeps its connection from counting as idle.
    attending: Option<Attending>,
}

#[derive(Debug)]
enum Kind {
    Whole(Bytes),
    Stream(Box<Relay>),
    Late(Box<Late>),
    /// Somebody else passes it on.
    Elsewhere,
}

/// An event stream between worker and client.
#[derive(Debug)]
pub(crate) struct Relay {
    exchange: Exchange,
    ticket: Option<Ticket>,
    dialect: Dialect,
    tail: Tail,
    /// Cuts the text anew.
    slices: Option<Box<Slices>>,
    /// `--sse-keepalive-secs`: how long the client may hear nothing.
    silence: Option<Box<Lull>>,
    /// Whether its end is only told by the end of the connection, which may as well be a failure.
    open_ended: bool,
    /// Whether its bytes are compressed, so that nothing can be put between them.
    packed: bool,
    /// It broke within an event, and the client's connection has yet to be told.
    broken: Option<Fault>,
}

/// The worker broke off in the middle of an event: the client's body is left unterminated, so that
/// nobody takes what came for the whole answer.
#[derive(Debug)]
pub(crate) struct Broken(Fault);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(describe(self.0))
    }
}

impl std::error::Error for Broken {}

const fn describe(fault: Fault) -> &'static str {
    match fault {
        Fault::Timeout => "The request timed out before the worker finished its answer.",
        _ if matches!(fault.end(), End::ClientGone) => {
            "The upload failed before the worker finished its answer."
        }
        _ => "The worker broke off in the middle of its answer.",
    }
}

impl Relay {
    pub(crate) fn new(exchange: Exchange, ticket: Ticket, dialect: Dialect) -> Self {
        Self {
            exchange,
            ticket: Some(ticket),
            dialect,
            tail: Tail::default(),
            slices: None,
            silence: None,
            open_ended: false,
            packed: false,
            broken: None,
        }
    }

    /// Cuts its text anew.
    pub(crate) fn sliced(mut self, sliced: bool) -> Self {
        self.slices = sliced.then(|| Box::new(Slices::new()));
        self
    }

    /// Keeps the client from hearing nothing for longer than that.
    pub(crate) fn kept_alive(mut self, every: Option<Duration>) -> Self {
        self.silence = every.map(|every| Box::new(Lull::of(every)));
        self
    }

    /// Ends where the worker closes the connection.
    pub(crate) const fn open_ended(mut self, open: bool) -> Self {
        self.open_ended = open;
        self
    }

    /// Passes on bytes in which no event can be found: no text is cut, no silence ended, no error told.
    pub(crate) fn packed(mut self, packed: bool) -> Self {
        self.packed = packed;
        if packed {
            (self.slices, self.silence, self.open_ended) = (None, None, false);
        }
        self
    }

    fn settle(&mut self, end: End) {
        if let Some(ticket) = self.ticket.take() {
            ticket.settle(end);
        }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        if let Some(fault) = self.broken.take() {
            return Poll::Ready(Some(Err(Broken(fault))));
        }
        loop {
            let Poll::Ready(came) = self.exchange.poll_frame(cx) else {
                return self.poll_silence(cx).map(|data| self.send(data));
            };
            match came {
                Some(Ok(frame)) => {
                    if let (Some(data), Some(ticket)) = (frame.data_ref(), &mut self.ticket) {
                        ticket.notes.pass(data);
                    }
                    if self.exchange.is_over() {
                        self.settle(End::Clean);
                    }
                    let Ok(data) = frame.into_data() else { continue };
                    let data = match &mut self.slices {
                        Some(slices) => slices.feed(&data),
                        None => data,
                    };
                    // An empty chunk would become an empty HTTP/2 frame (001, "Empty chunks").
                    if !data.is_empty() {
                        return Poll::Ready(self.send(data));
                    }
                }
                Some(Err(fault)) => return self.broke(fault, cx),
                None => {
                    let rest = self.slices.take().map(|slices| slices.finish());
                    if let Some(rest) = rest.filter(|rest| !rest.is_empty()) {
                        return Poll::Ready(self.send(rest));
                    }
                    if self.open_ended && !self.tail.between_events() {
                        return self.broke(Fault::Body, cx);
                    }
                    self.settle(End::Clean);
                    return Poll::Ready(None);
                }
            }
        }
    }

    fn send(&mut self, data: Bytes) -> Option<Result<Frame<Bytes>, Broken>> {
        self.tail.feed(&data);
        if let Some(silence) = &mut self.silence {
            silence.ends();
        }
        Some(Ok(Frame::data(data)))
    }

    /// What a silence of the worker brings.
    fn poll_silence(&mut self, cx: &mut Context<'_>) -> Poll<Bytes> {
        if let Some(slices) = &mut self.slices
            && let Poll::Ready(held) = slices.poll_silence(cx)
        {
            return Poll::Ready(held);
        }
        let Some(silence) = &mut self.silence else { return Poll::Pending };
        loop {
            ready!(silence.poll(cx));
            // Half an event cannot be parted.
            if self.tail.between_events() {
                return Poll::Ready(keepalive(self.dialect));
            }
        }
    }

    fn broke(
        &mut self,
        fault: Fault,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        self.settle(fault.end());
        self.open_ended = false;
        let mut last = self.slices.take().map_or_else(Vec::new, |slices| slices.fail());
        self.tail.feed(&last);
        if self.packed || !self.tail.between_events() {
            // An error makes hyper drop what it has not written yet, the head included. It writes
            // whenever the body has nothing, so the error comes a turn later.
            self.broken = Some(fault);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        last.extend_from_slice(&stream_event(self.dialect, fault.code(), describe(fault)));
        Poll::Ready(Some(Ok(Frame::data(last.into()))))
    }
}

impl ReplyBody {
    /// A body that is all there.
    pub(crate) fn whole(bytes: impl Into<Bytes>) -> Self {
        Self { kind: Kind::Whole(bytes.into()), call: None, permit: None, attending: None }
    }

    /// A body that is still coming.
    pub(crate) fn stream(relay: Relay) -> Self {
        Self { kind: Kind::Stream(Box::new(relay)), call: None, permit: None, attending: None }
    }

    /// A body that begins before its worker's answer does.
    pub(crate) fn late(late: Late) -> Self {
        Self { kind: Kind::Late(Box::new(late)), call: None, permit: None, attending: None }
    }

    /// What there is of a body that is all there; `None` of one that is still coming.
    fn take_whole(&mut self) -> Option<Bytes> {
        match &mut self.kind {
            Kind::Whole(bytes) => Some(std::mem::take(bytes)),
            Kind::Stream(_) | Kind::Late(_) | Kind::Elsewhere => None,
        }
    }

    /// Stands for a body that somebody else passes on.
    pub(crate) const fn elsewhere() -> Self {
        Self { kind: Kind::Elsewhere, call: None, permit: None, attending: None }
    }

    /// Whether it is a stream, and nothing else on its client's connection is still coming.
    pub(crate) fn streams(&self) -> bool {
        matches!(&self.kind, Kind::Stream(relay) if relay.exchange.is_asked())
    }

    /// Keeps the client's connection busy.
    pub(crate) fn attended(mut self, attending: Attending) -> Self {
        self.attending = Some(attending);
        self
    }

    /// Holds the request's permit.
    pub(crate) fn permitted(mut self, permit: Option<Permit>) -> Self {
        self.permit = permit;
        self
    }

    /// Keeps the request counted as in flight.
    pub(crate) fn counted(mut self, call: CallGuard) -> Self {
        self.call = Some(call);
        self
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match &mut self.kind {
            Kind::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Kind::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Kind::Stream(relay) => relay.poll_frame(cx),
            Kind::Late(late) => late.poll_frame(cx),
            Kind::Elsewhere => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.kind, Kind::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Kind::Stream(_) | Kind::Late(_) | Kind::Elsewhere => SizeHint::default(),
        }
    }
}
