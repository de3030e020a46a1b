//! TLS with clients: the handshake between accepting a connection and conversing on it.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::{Error, ServerConfig};
use tokio_rustls::server::TlsStream;

use crate::identity::{HTTP1, HTTP2, Identity, provider};

/// A listener that speaks TLS.
#[derive(Clone)]
pub struct ServerTls(TlsAcceptor);

impl fmt::Debug for ServerTls {
    /// Without the sessions and the key inside.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ServerTls").finish_non_exhaustive()
    }
}

impl ServerTls {
    /// One that shows this identity; clients are asked for none.
    ///
    /// # Errors
    /// When the cryptography cannot do TLS 1.2 and 1.3, which is a mistake in this crate.
    pub fn new(identity: &Identity) -> Result<Self, Error> {
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(identity.resolver());
        config.alpn_protocols = vec![HTTP2.to_vec(), HTTP1.to_vec()];
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }

    /// Shakes hands with a client, for no longer than `patience`.
    pub(super) async fn greet<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        socket: S,
        patience: Option<Duration>,
    ) -> io::Result<TlsStream<S>> {
        let shaking = self.0.accept(socket);
        let Some(patience) = patience else { return shaking.await };
        tokio::time::timeout(patience, shaking).await.map_err(|_| {
            let what = format!("no whole TLS handshake within {patience:?}");
            io::Error::new(io::ErrorKind::TimedOut, what)
        })?
    }
}
