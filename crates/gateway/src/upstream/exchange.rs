//! One request and its answer. The exchange owns its connection and drives it while it is polled;
//! dropping it closes the connection, which is how a worker learns that nobody listens any more.

use std::future::{Future as _, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Request;
use http::response::Parts;
use http_body::{Body as _, Frame};
use hyper::body::Incoming;
use smg_decide::retry::{Failed, Fault, resend};

use super::deadline::Deadline;
use super::outgoing::Hold;
use super::pool::{Line, Link};
use super::shared::{Place, framed, unframed, was_heard};
use super::stream::Stream;
use super::{Outgoing, Pool};
use crate::body::Upload;

/// An answer whose head has come and whose body is on its way.
#[derive(Debug)]
pub(crate) struct Exchange {
    rest: Rest,
    pool: Arc<Pool>,
    deadline: Deadline,
    /// The request's body, if it was still coming when it was sent.
    upload: Option<Upload>,
}

/// Who reads the body.
#[derive(Debug)]
enum Rest {
    Hyper(Incoming, Box<Link>),
    Bare(Box<Stream>),
    /// hyper, over a connection that others share.
    Shared(Stay),
    /// Nobody: it has ended.
    Over,
}

/// What ends together with an exchange on a connection that goes on: dropped before that, the stream
/// is reset, which is how a worker learns it here.
#[derive(Debug)]
struct Stay {
    body: Incoming,
    _hold: Option<Hold>,
    _place: Place,
}

/// Sends a request and waits for the head of its answer; `resent` is called when the message had to
/// be sent a second time.
pub(crate) async fn send(
    pool: &Arc<Pool>,
    message: &mut Message<'_>,
    mut deadline: Deadline,
    resent: impl FnOnce(),
) -> Result<(Parts, Exchange), Fault> {
    let first = poll_fn(|cx| Poll::Ready(pool.take_idle(cx))).await;
    let mut last = None;
    let about = About { body: message.body, upload: message.upload.clone() };
    let sent = match attempt(pool, first, message, (&mut deadline, &mut last)).await {
        Err(failed) if resend(&failed) => {
            resent();
            // Other idle connections may be as stale as the first: open a fresh one.
            match open(pool, last.take().as_ref(), &about, &mut deadline).await {
                Ok(line) => attempt(pool, Some(line), message, (&mut deadline, &mut last)).await,
                Err(failed) => Err(failed),
            }
        }
        sent => sent,
    };
    let upload = message.upload.take();
    let (parts, rest) = sent.map_err(|failed| blamed(upload.as_ref(), failed.fault))?;
    let pool = Arc::clone(pool);
    Ok((parts, Exchange { rest, pool, deadline, upload }))
}

/// Whose fault a failed send is: a client that breaks off its upload ends the worker's connection.
fn blamed(upload: Option<&Upload>, fault: Fault) -> Fault {
    upload.and_then(Upload::fault).unwrap_or(fault)
}

/// A request, written anew each time it is sent.
pub(crate) struct Message<'a> {
    /// Writes it.
    pub(crate) write: &'a mut (dyn FnMut() -> Request<Outgoing> + Send),
    /// Bytes in its body; `None` for one that can be written once only.
    pub(crate) body: Option<usize>,
    /// Its body, if that is still coming.
    pub(crate) upload: Option<Upload>,
}

/// What is asked of a message after it was written.
#[derive(Clone)]
struct About {
    body: Option<usize>,
    upload: Option<Upload>,
}

impl About {
    const fn failed(&self, fault: Fault, heard: bool) -> Failed {
        Failed { fault, heard, body: self.body, resent: false }
    }
}

/// Sends once, over `line` or a new connection; `last` becomes the place it failed at, if that was
/// one of many.
async fn attempt(
    pool: &Pool,
    line: Option<Line>,
    message: &mut Message<'_>,
    (deadline, last): (&mut Deadline, &mut Option<Place>),
) -> Result<(Parts, Rest), Failed> {
    let about = About { body: message.body, upload: message.upload.clone() };
    let line = match line {
        Some(line) => line,
        None => open(pool, None, &about, deadline).await?,
    };
    let request = (message.write)();
    match line {
        Line::Own(link) => over_own(pool, link, request, &about, deadline).await,
        Line::Shared(place) => over_shared(pool, (place, request), &about, deadline, last).await,
    }
}

async fn open(
    pool: &Pool,
    failed: Option<&Place>,
    about: &About,
    deadline: &mut Deadline,
) -> Result<Line, Failed> {
    let opened = within(deadline, pool.open(failed)).await;
    opened.map_err(|fault| about.failed(fault, false))?.map_err(|error| {
        tracing::debug!(worker = pool.origin().url(), %error, "connect failed");
        let fault = match error.kind() {
            std::io::ErrorKind::TimedOut => Fault::ConnectTimeout,
            _ => Fault::Connect,
        };
        about.failed(fault, false)
    })
}

async fn over_own(
    pool: &Pool,
    mut link: Box<Link>,
    request: Request<Outgoing>,
    about: &About,
    deadline: &mut Deadline,
) -> Result<(Parts, Rest), Failed> {
    let upload = about.upload.as_ref();
    link.listen_anew();
    let mut answer = pin!(link.sender.send_request(request));
    let answered = poll_fn(|cx| {
        // An answer to half a request is hyper's, which has the other half to write.
        if !upload.is_some_and(Upload::is_going) {
            link.hold();
        }
        let over = link.poll_drive(cx).is_ready();
        match answer.as_mut().poll(cx) {
            Poll::Ready(answer) => Poll::Ready(answer.map_err(|error| {
                tracing::debug!(worker = pool.origin().url(), %error, "send failed");
                Fault::Send
            })),
            // The connection is gone and took the answer with it.
            Poll::Pending if over => Poll::Ready(Err(Fault::Send)),
            Poll::Pending => deadline.poll(cx).map(|()| Err(Fault::Timeout)),
        }
    })
    .await;
    match answered {
        // Nobody asked for another protocol (101), and hyper passes over all other 1xx.
        Ok(response) if response.status().is_informational() => {
            Err(about.failed(Fault::Send, true))
        }
        Ok(response) => {
            let (parts, body) = response.into_parts();
            Ok((parts, Rest::Hyper(body, link)))
        }
        Err(fault) => Err(about.failed(fault, link.heard())),
    }
}

/// The same as a stream of a connection that others share.
async fn over_shared(
    pool: &Pool,
    (mut place, request): (Place, Request<Outgoing>),
    about: &About,
    deadline: &mut Deadline,
    last: &mut Option<Place>,
) -> Result<(Parts, Rest), Failed> {
    let (head, body) = request.into_parts();
    let (body, hold) = body.leashed();
    let mut request = framed(Request::from_parts(head, body), pool.origin());
    loop {
        let mut answer = pin!(place.sender().try_send_request(request));
        let answered = poll_fn(|cx| match answer.as_mut().poll(cx) {
            Poll::Ready(answered) => Poll::Ready(Ok(answered)),
            Poll::Pending => deadline.poll(cx).map(|()| Err(Fault::Timeout)),
        });
        let mut failed = match answered.await {
            Ok(Ok(response)) => {
                let (parts, body) = response.into_parts();
                let stay = Stay { body, _hold: hold, _place: place };
                return Ok((parts, Rest::Shared(stay)));
            }
            Ok(Err(failed)) => failed,
            Err(fault) => return Err(about.failed(fault, false)),
        };
        // The connection ended before it took the request, which is whole as it was.
        let unsent = failed.take_message();
        let error = failed.into_error();
        tracing::debug!(worker = pool.origin().url(), %error, "send failed");
        match unsent {
            Some(unsent) if last.is_none() => {
                *last = Some(place);
                match open(pool, last.as_ref(), about, deadline).await? {
                    Line::Shared(next) => (place, request) = (next, unsent),
                    // TLS settled on HTTP/1.1 this time.
                    Line::Own(link) => {
                        let unsent = unframed(unsent, pool.origin());
                        return over_own(pool, link, unsent, about, deadline).await;
                    }
                }
            }
            _ => {
                *last = Some(place);
                return Err(about.failed(Fault::Send, was_heard(&error)));
            }
        }
    }
}

/// Awaits `work`, but no longer than the deadline.
async fn within<T>(deadline: &mut Deadline, work: impl Future<Output = T>) -> Result<T, Fault> {
    let mut work = pin!(work);
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Ok(done)),
        Poll::Pending => deadline.poll(cx).map(|()| Err(Fault::Timeout)),
    })
    .await
}

impl Exchange {
    /// Reads on without hyper where that can be done: for an answer that comes piece by piece.
    pub(crate) fn streamed(mut self, head: &Parts) -> Self {
        self.rest = match self.rest {
            Rest::Hyper(body, link) => match Stream::take(head, link) {
                Ok(stream) => Rest::Bare(stream),
                Err(link) => Rest::Hyper(body, link),
            },
            rest => rest,
        };
        self
    }

    /// The next frame of the answer; `None` at its end, when the connection is back in the pool.
    pub(crate) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        if self.is_over() {
            return Poll::Ready(None);
        }
        // Asked first: a worker that is always ahead of its client never lets this be pending.
        if self.deadline.poll(cx).is_ready() {
            return self.broke(Fault::Timeout);
        }
        let (frame, over) = match &mut self.rest {
            Rest::Hyper(body, link) => {
                link.release();
                let over = link.poll_drive(cx).is_ready();
                let frame = match Pin::new(&mut *body).poll_frame(cx) {
                    Poll::Ready(frame) => frame.map(|frame| frame.map_err(|e| e.to_string())),
                    Poll::Pending if over => return self.broke(Fault::Body),
                    Poll::Pending => return Poll::Pending,
                };
                // The server stops asking once it has written a whole Content-Length, so the end
                // is taken from the body's own word.
                (frame, body.is_end_stream())
            }
            Rest::Bare(stream) => {
                let data = ready!(stream.poll_data(cx));
                let data = data.map_err(str::to_owned).transpose();
                (data.map(|data| data.map(Frame::data)), stream.is_over())
            }
            Rest::Shared(Stay { body, .. }) => {
                let frame = ready!(Pin::new(&mut *body).poll_frame(cx));
                (frame.map(|frame| frame.map_err(|e| e.to_string())), body.is_end_stream())
            }
            Rest::Over => (None, true),
        };
        match frame {
            Some(Ok(frame)) => {
                if over {
                    self.finish(cx);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(error)) => {
                tracing::debug!(worker = self.pool.origin().url(), %error, "answer broke off");
                self.broke(Fault::Body)
            }
            None => {
                self.finish(cx);
                Poll::Ready(None)
            }
        }
    }

    /// Whether the request has been sent whole.
    pub(crate) fn is_asked(&self) -> bool {
        self.upload.as_ref().is_none_or(|upload| !upload.is_going() && upload.fault().is_none())
    }

    /// Whether the answer has ended and was whole.
    pub(crate) const fn is_over(&self) -> bool {
        matches!(self.rest, Rest::Over)
    }

    /// Reads the whole answer, at most `limit` bytes of it.
    pub(crate) async fn collect(mut self, limit: usize) -> Result<Bytes, Fault> {
        let mut first = Bytes::new();
        let mut rest = Vec::new();
        while let Some(frame) = poll_fn(|cx| self.poll_frame(cx)).await {
            let Ok(data) = frame?.into_data() else { continue };
            if first.len() + rest.len() + data.len() > limit {
                return Err(Fault::TooLarge);
            }
            if first.is_empty() {
                first = data;
            } else {
                rest.extend_from_slice(&data);
            }
        }
        if rest.is_empty() {
            return Ok(first);
        }
        rest.splice(0..0, first);
        Ok(rest.into())
    }

    fn broke(&mut self, fault: Fault) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        self.rest = Rest::Over;
        Poll::Ready(Some(Err(blamed(self.upload.as_ref(), fault))))
    }

    fn finish(&mut self, cx: &mut Context<'_>) {
        match std::mem::replace(&mut self.rest, Rest::Over) {
            Rest::Hyper(_, mut link) => {
                // One more turn lets the connection see that it is idle again.
                if link.poll_drive(cx).is_pending() {
                    self.pool.put(link);
                }
            }
            Rest::Bare(stream) => {
                if let Some(ears) = stream.into_ears() {
                    self.pool.put_bare(ears, cx);
                }
            }
            Rest::Shared(..) | Rest::Over => {}
        }
    }
}
