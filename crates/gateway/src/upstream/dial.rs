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

/// What a [`Socket`] must be able to do.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A way to open connections.
pub trait Dial: Send + Sync + fmt::Debug {
    /// Opens one connection. The caller bounds the time.
    fn dial<'a>(
        &'a self,
        origin: &'a Origin,
    ) -> Pin<Box<dyn Future<Output = io::Result<Socket>> + Send + 'a>>;
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
    ) -> Pin<Box<dyn Future<Output = io::Result<Socket>> + Send + 'a>> {
        Box::pin(async move {
            let stream = connect(origin).await?;
            stream.set_nodelay(true)?;
            if origin.is_secure() {
                return self.tls.secure(origin, stream).await;
            }
            Ok(Box::new(stream) as Socket)
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
