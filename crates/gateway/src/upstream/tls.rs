//! TLS towards workers: whom the gateway believes, and as whom it comes.

use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock};

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{CertificateError, ClientConfig, Error, RootCertStore};

use super::Origin;
use super::dial::{Dialled, Duplex, Offer};
use crate::identity::{HTTP1, HTTP2, Identity, certificates, provider};

/// Who may say that a worker is who it is, and what it is shown in return.
#[derive(Clone)]
pub struct WorkerTls {
    authorities: RootCertStore,
    identity: Option<Identity>,
    /// Made when the first worker needs it: most fleets speak plain HTTP, and the system's roots take
    /// milliseconds to read. That is in a worker's registration, never in a request.
    connector: OnceLock<TlsConnector>,
}

impl Default for WorkerTls {
    fn default() -> Self {
        let authorities = RootCertStore::empty();
        Self { authorities, identity: None, connector: OnceLock::new() }
    }
}

impl fmt::Debug for WorkerTls {
    /// Without sessions and keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerTls")
            .field("authorities", &self.authorities.len())
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

impl WorkerTls {
    /// Also believes whom these certificates, the text of a PEM file, sign.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn believe(&mut self, pem: &[u8]) -> Result<(), &'static str> {
        for certificate in certificates(pem)? {
            self.authorities
                .add(certificate)
                .map_err(|_| "holds a certificate that cannot be read as X.509")?;
        }
        self.connector = OnceLock::new();
        Ok(())
    }

    /// Comes as this to workers that ask for a certificate.
    pub fn come_as(&mut self, identity: Identity) {
        self.identity = Some(identity);
        self.connector = OnceLock::new();
    }

    /// Whether a worker could be believed at all.
    ///
    /// # Errors
    /// When nobody may vouch for one.
    pub fn check(&self) -> io::Result<()> {
        self.connector().map(drop)
    }

    /// Shakes hands over a connection to a worker, which must prove that it is the origin's host. The
    /// caller bounds the time.
    ///
    /// # Errors
    /// When the worker cannot, in words for the operator.
    pub async fn secure(
        &self,
        origin: &Origin,
        socket: impl Duplex + 'static,
        offer: Offer,
    ) -> io::Result<Dialled> {
        let name = ServerName::try_from(origin.host().to_owned()).map_err(|_| {
            let what = format!("no certificate can be for the name {}", origin.host());
            io::Error::new(io::ErrorKind::InvalidInput, what)
        })?;
        let connector = self.connector()?.with_alpn(match offer {
            Offer::Http1 => vec![HTTP1.to_vec()],
            Offer::Http2 => vec![HTTP2.to_vec()],
            Offer::Both => vec![HTTP2.to_vec(), HTTP1.to_vec()],
        });
        let shaken = connector.connect(name, socket).await.map_err(in_words)?;
        let http2 = shaken.get_ref().1.alpn_protocol() == Some(HTTP2);
        Ok(Dialled { socket: Box::new(shaken), http2 })
    }

    fn connector(&self) -> io::Result<&TlsConnector> {
        if let Some(connector) = self.connector.get() {
            return Ok(connector);
        }
        let connector = self.connect_by()?;
        Ok(self.connector.get_or_init(|| connector))
    }

    fn connect_by(&self) -> io::Result<TlsConnector> {
        let mut roots = self.authorities.clone();
        let system = rustls_native_certs::load_native_certs();
        for error in &system.errors {
            tracing::warn!(%error, "some of the system's root certificates are not used");
        }
        roots.add_parsable_certificates(system.certs);
        if roots.is_empty() {
            let what =
                "the system has no root certificates; name the workers' CA with --ca-cert-paths";
            return Err(io::Error::new(io::ErrorKind::NotFound, what));
        }
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(roots);
        let config = match &self.identity {
            Some(identity) => config.with_client_cert_resolver(identity.resolver()),
            None => config.with_no_client_auth(),
        };
        Ok(TlsConnector::from(Arc::new(config)))
    }
}

/// Why a handshake failed, with what would help where that is known.
fn in_words(error: io::Error) -> io::Error {
    let cause = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    let help = match cause {
        Some(Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
            "; name the CA that issued it with --ca-cert-paths"
        }
        Some(Error::InvalidMessage(_)) => "; does it speak plain HTTP?",
        _ => "",
    };
    io::Error::new(error.kind(), format!("TLS: {error}{help}"))
}
