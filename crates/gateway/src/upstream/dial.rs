//! Opening connections. Tests dial into memory, the binary dials TCP.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::Origin;

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

/// Plain TCP without Nagle's delay (001, "No Nagle delay").
#[derive(Debug, Default)]
pub struct TcpDial;

impl Dial for TcpDial {
    fn dial<'a>(
        &'a self,
        origin: &'a Origin,
    ) -> Pin<Box<dyn Future<Output = io::Result<Socket>> + Send + 'a>> {
        Box::pin(async move {
            let stream = TcpStream::connect((origin.host(), origin.port())).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as Socket)
        })
    }
}
