//! Opening connections. Tests dial into memory, the binary dials TCP.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};

use super::origin::is_off_limits;
use super::{Origin, WorkerTls};

/// A byte stream to a worker.
pub type Socket = Box<dyn Duplex>;

/// A connection that has been opened.
pub struct Dialled {
    /// The way there.
    pub socket: Socket,
    /// Whether TLS settled on HTTP/2.
    pub http2: bool,
}

impl fmt::Debug for Dialled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialled").field("http2", &self.http2).finish_non_exhaustive()
    }
}

impl From<Socket> for Dialled {
    /// One that TLS says nothing of.
    fn from(socket: Socket) -> Self {
        Self { socket, http2: false }
    }
}

/// What a worker is offered in TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
    /// Either.
    Both,
}

/// What a [`Socket`] must be able to do.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A way to open connections.
pub trait Dial: Send + Sync + fmt::Debug {
    /// Opens one connection. The caller bounds the time.
    fn dial<'a>(
        &'a self,
        origin: &'a Origin,
        offer: Offer,
    ) -> Pin<Box<dyn Future<Output = io::Result<Dialled>> + Send + 'a>>;
}

/// TCP without Nagle's delay (001, "No Nagle delay"), and TLS above it where the URL asks for it.
#[derive(Debug, Default)]
pub struct TcpDial {
    tls: WorkerTls,
}

impl TcpDial {
    /// One that speaks TLS by these terms.
    #[must_use]
    pub const fn new(tls: WorkerTls) -> Self {
        Self { tls }
    }
}

impl Dial for TcpDial {
    fn dial<'a>(
        &'a self,
        origin: &'a Origin,
        offer: Offer,
    ) -> Pin<Box<dyn Future<Output = io::Result<Dialled>> + Send + 'a>> {
        Box::pin(async move {
            let stream = connect(origin).await?;
            stream.set_nodelay(true)?;
            if origin.is_secure() {
                return self.tls.secure(origin, stream, offer).await;
            }
            Ok(Dialled::from(Box::new(stream) as Socket))
        })
    }
}

/// Connects to the first address of a worker's name that takes the connection. Addresses are looked
/// at again here, because a name can lead anywhere, and to somewhere else tomorrow.
async fn connect(origin: &Origin) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in lookup_host((origin.host(), origin.port())).await? {
        if is_off_limits(address.ip()) {
            let what = format!("{} is link-local or a metadata service", address.ip());
            last = io::Error::new(io::ErrorKind::PermissionDenied, what);
            continue;
        }
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}
