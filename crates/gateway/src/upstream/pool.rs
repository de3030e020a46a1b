//! Connections to one worker: idle ones that speak HTTP/1.1, newest first, and those that speak HTTP/2
//! and are shared ([`Shared`]).
//!
//! An HTTP/1.1 connection has no task of its own: whoever holds the [`Link`] drives it. An idle one is not
//! driven at all; whether the worker has closed it meanwhile shows when it is taken out again.

use std::future::Future as _;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use http::HeaderValue;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use prometheus::IntGauge;
use tokio::time::Instant;

use super::dial::{Dialled, Offer};
use super::ears::{Ears, Hearing};
use super::shared::{Place, Shared};
use super::{Dial, Origin, Outgoing};
use crate::edge::MAX_HELD_BYTES;
use crate::settings::Connections;

/// The connections of one worker.
#[derive(Debug)]
pub(crate) struct Pool {
    origin: Origin,
    dial: Arc<dyn Dial>,
    /// The `Authorization` of everything sent here.
    credential: ArcSwapOption<HeaderValue>,
    /// Connections open to any worker.
    open: IntGauge,
    shelf: Mutex<Shelf>,
    /// Held while a connection is opened that others may share: they wait for it.
    opening: tokio::sync::Mutex<()>,
}

/// Which HTTP a worker is spoken to in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2, whatever it says: by prior knowledge, or as all that TLS offers.
    Http2,
    /// What TLS settles on.
    Tls,
}

/// A connection and the right to send on it.
#[derive(Debug)]
pub(super) enum Line {
    /// Nobody else's.
    Own(Box<Link>),
    /// A stream of many.
    Shared(Place),
}

#[derive(Debug)]
struct Shelf {
    rules: Connections,
    version: Version,
    /// Its worker is gone.
    closed: bool,
    /// Those that speak HTTP/2. The first stays for as long as the worker keeps it.
    shared: Vec<Arc<Shared>>,
    /// Oldest first; never more than `rules.max_idle`.
    idle: Vec<Idle>,
}

#[derive(Debug)]
struct Idle {
    link: Box<Link>,
    since: Instant,
}

/// One HTTP/1.1 connection.
pub(crate) struct Link {
    pub(super) sender: http1::SendRequest<Outgoing>,
    connection: http1::Connection<TokioIo<Ears>, Outgoing>,
    hearing: Arc<Hearing>,
    over: bool,
}

impl std::fmt::Debug for Link {
    /// Without hyper's buffers, which hold what was sent, credentials and all.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("over", &self.over).finish_non_exhaustive()
    }
}

impl Pool {
    /// `open` counts its connections, those of other pools among them.
    pub(crate) fn new(
        origin: Origin,
        rules: Connections,
        dial: Arc<dyn Dial>,
        open: IntGauge,
    ) -> Self {
        let (idle, shared) = (Vec::new(), Vec::new());
        let shelf = Shelf { rules, version: Version::Http1, closed: false, idle, shared };
        let (shelf, opening) = (Mutex::new(shelf), tokio::sync::Mutex::default());
        Self { origin, dial, credential: ArcSwapOption::empty(), open, shelf, opening }
    }

    /// A pool without connections to the same worker in another version.
    pub(crate) fn twin(&self, version: Version) -> Self {
        let rules = self.lock().rules;
        let twin = Self::new(self.origin.clone(), rules, Arc::clone(&self.dial), self.open.clone());
        twin.speak(version);
        twin.bear(self.credential());
        twin
    }

    /// From now on connections are opened in this version.
    pub(crate) fn speak(&self, version: Version) {
        self.lock().version = version;
    }

    /// Whether HTTP/2 was chosen for this worker, which what TLS settles on is not.
    pub(crate) fn is_http2(&self) -> bool {
        self.lock().version == Version::Http2
    }

    /// From now on this is sent as `Authorization`.
    pub(crate) fn bear(&self, credential: Option<HeaderValue>) {
        self.credential.store(credential.map(Arc::new));
    }

    /// What this worker is sent as `Authorization`, if the operator gave a key for it.
    pub(crate) fn credential(&self) -> Option<HeaderValue> {
        self.credential.load().as_deref().cloned()
    }

    pub(crate) const fn origin(&self) -> &Origin {
        &self.origin
    }

    /// A place on a connection that is shared, else the connection used last that is still open and
    /// young enough.
    pub(super) fn take_idle(&self, cx: &mut Context<'_>) -> Option<Line> {
        if let Some(place) = self.join(None) {
            return Some(Line::Shared(place));
        }
        loop {
            let mut link = self.lock().pop()?;
            // One look notices a close that arrived while it lay idle.
            if link.poll_drive(cx).is_pending() && link.sender.is_ready() {
                return Some(Line::Own(link));
            }
        }
    }

    /// A place on a connection that is shared, but not on the one on which `failed` was.
    pub(super) fn join(&self, failed: Option<&Place>) -> Option<Place> {
        let mut shelf = self.lock();
        if shelf.shared.is_empty() {
            return None;
        }
        shelf.shared.retain(|shared| !shared.is_over());
        let mut others =
            shelf.shared.iter().filter(|shared| !failed.is_some_and(|failed| failed.is_on(shared)));
        others.find_map(Shared::place)
    }

    /// Puts a connection back whose exchange is over.
    pub(super) fn put(&self, link: Box<Link>) {
        if !link.sender.is_ready() {
            return;
        }
        let mut shelf = self.lock();
        if shelf.rules.max_idle == 0 {
            return;
        }
        shelf.shorten(1);
        shelf.idle.push(Idle { link, since: Instant::now() });
    }

    /// Keeps connections by other rules from now on.
    pub(crate) fn set_rules(&self, rules: Connections) {
        let mut shelf = self.lock();
        shelf.rules = rules;
        shelf.shorten(0);
    }

    /// Its worker is gone: closes what is idle, and whatever else comes back.
    pub(crate) fn close(&self) {
        let mut shelf = self.lock();
        shelf.rules.max_idle = 0;
        shelf.closed = true;
        shelf.idle.clear();
        shelf.shared.clear();
    }

    /// Opens a connection, which others may share if it speaks HTTP/2; whoever comes while that is
    /// done waits for a place on it. None is taken on the connection on which `failed` was.
    pub(super) async fn open(&self, failed: Option<&Place>) -> io::Result<Line> {
        if self.lock().version == Version::Http1 {
            return self.open_own().await;
        }
        let _turn = self.opening.lock().await;
        if let Some(place) = self.join(failed) {
            return Ok(Line::Shared(place));
        }
        let line = self.open_own().await?;
        if let Line::Shared(place) = &line {
            let mut shelf = self.lock();
            if !shelf.closed {
                shelf.shared.push(Arc::clone(place.shared()));
            }
        }
        Ok(line)
    }

    /// Opens a connection that nobody else is given.
    pub(super) async fn open_own(&self) -> io::Result<Line> {
        let (version, timeout) = {
            let shelf = self.lock();
            (shelf.version, shelf.rules.connect_timeout)
        };
        let offer = match version {
            Version::Http1 => Offer::Http1,
            Version::Http2 => Offer::Http2,
            Version::Tls => Offer::Both,
        };
        let dialled = self.dial.dial(&self.origin, offer);
        let Dialled { socket, http2 } =
            tokio::time::timeout(timeout, dialled).await.map_err(|_| {
                let what = format!("no connection within {timeout:?}");
                io::Error::new(io::ErrorKind::TimedOut, what)
            })??;
        let ears = Ears::new(socket, &self.open);
        match version {
            Version::Http2 if self.origin.is_secure() && !http2 => {
                Err(io::Error::other("it does not speak HTTP/2, to which http_pool.http2 pins it"))
            }
            Version::Http1 | Version::Tls if !http2 => Link::over(ears).await.map(Line::Own),
            _ => Shared::over(ears).await.map(Line::Shared),
        }
    }

    /// Puts a socket back on which an answer was read without hyper.
    pub(super) fn put_bare(&self, ears: Ears, cx: &mut Context<'_>) {
        // hyper has nothing to wait for before it speaks; one that had would lose this socket.
        if let Poll::Ready(Ok(mut link)) = pin!(Link::over(ears)).poll(cx)
            // One turn lets the connection see that it is idle.
            && link.poll_drive(cx).is_pending()
        {
            self.put(link);
        }
    }

    /// Closes connections that have been idle for too long.
    pub(crate) fn reap(&self) {
        let mut shelf = self.lock();
        let expired = shelf.idle.iter().take_while(|idle| shelf.expired(idle.since)).count();
        shelf.idle.drain(..expired);
        let timeout = shelf.rules.idle_timeout;
        let mut first = true;
        shelf.shared.retain(|shared| {
            let first = std::mem::take(&mut first);
            let idle = || timeout.zip(shared.idle()).is_some_and(|(most, idle)| idle >= most);
            !shared.is_over() && (first || !idle())
        });
    }

    /// How long a connection may lie idle, if there is a bound.
    pub(crate) fn idle_timeout(&self) -> Option<Duration> {
        self.lock().rules.idle_timeout
    }

    /// A panic under the lock leaves a list of connections, which is whole at any time.
    fn lock(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shelf {
    /// The connection put there last, if it is young enough.
    fn pop(&mut self) -> Option<Box<Link>> {
        let Idle { link, since } = self.idle.pop()?;
        if self.expired(since) {
            // What lies below is older still.
            self.idle.clear();
            return None;
        }
        Some(link)
    }

    /// Closes the oldest until there is room for so many more.
    fn shorten(&mut self, room: usize) {
        let surplus = (self.idle.len() + room).saturating_sub(self.rules.max_idle);
        self.idle.drain(..surplus.min(self.idle.len()));
    }

    fn expired(&self, since: Instant) -> bool {
        self.rules.idle_timeout.is_some_and(|timeout| since.elapsed() >= timeout)
    }
}

impl Link {
    /// hyper over this socket.
    async fn over(ears: Ears) -> io::Result<Box<Self>> {
        let hearing = ears.hearing();
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(MAX_HELD_BYTES)
            .handshake(TokioIo::new(ears))
            .await
            .map_err(io::Error::other)?;
        Ok(Box::new(Self { sender, connection, hearing, over: false }))
    }

    /// Moves bytes; ready when the connection is over.
    pub(super) fn poll_drive(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // Why a connection ended is told by the response future or the body.
        self.over = self.over || Pin::new(&mut self.connection).poll(cx).is_ready();
        if self.over { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Forgets what was heard so far, before a new request.
    pub(super) fn listen_anew(&self) {
        self.hearing.listen_anew();
    }

    /// Holds back what will follow the head of the answer until [`Self::release`] or
    /// [`Self::into_ears`].
    pub(super) fn hold(&self) {
        self.hearing.hold();
    }

    /// Lets hyper read on.
    pub(super) fn release(&self) {
        self.hearing.release();
    }

    /// Whether any byte came back since [`Self::listen_anew`].
    pub(super) fn heard(&self) -> bool {
        self.hearing.heard()
    }

    /// Its socket, which stands behind the head of an answer.
    pub(super) fn into_ears(self: Box<Self>) -> Result<Ears, Box<Self>> {
        if self.over || !self.hearing.between() {
            return Err(self);
        }
        self.hearing.release();
        Ok(self.connection.into_parts().io.into_inner())
    }
}
