//! Certificates and keys as operators keep them, in PEM. Either side of the gateway may show one:
//! to clients as a server, to workers as a client.

use std::fmt;
use std::sync::Arc;

use tokio_rustls::rustls::Error;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};

/// The protocols spoken, for clients and workers that ask (ALPN).
pub(crate) const HTTP1: &[u8] = b"http/1.1";
pub(crate) const HTTP2: &[u8] = b"h2";

/// A certificate with those of its issuers, and the key that belongs to it.
#[derive(Clone)]
pub struct Identity(Arc<CertifiedKey>);

/// What is wrong with a pair of files, in words that never hold a part of either.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// The certificate's file.
    Certificate(&'static str),
    /// The key's file.
    Key(&'static str),
}

impl fmt::Debug for Identity {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("certificates", &self.0.cert.len()).finish_non_exhaustive()
    }
}

impl Identity {
    /// The identity in the texts of two PEM files.
    ///
    /// # Errors
    /// When one is not what it should be, or the key is another certificate's.
    pub fn of(certificate: &[u8], key: &[u8]) -> Result<Self, Unfit> {
        let chain = certificates(certificate).map_err(Unfit::Certificate)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| {
            Unfit::Key(
                "holds no private key in PEM; one under a passphrase must be decrypted first",
            )
        })?;
        match CertifiedKey::from_der(chain, key, &provider()) {
            Ok(identity) => Ok(Self(Arc::new(identity))),
            Err(Error::InconsistentKeys(_)) => Err(Unfit::Key(
                "does not fit the certificate; of several in its file, the first must be its own",
            )),
            Err(Error::InvalidCertificate(_)) => {
                Err(Unfit::Certificate("its first certificate cannot be read as X.509"))
            }
            Err(_) => Err(Unfit::Key("holds no RSA, ECDSA or Ed25519 key that can be used")),
        }
    }

    /// For a configuration of either side.
    pub(crate) fn resolver(&self) -> Arc<SingleCertAndKey> {
        Arc::new(SingleCertAndKey::from(Arc::clone(&self.0)))
    }
}

/// The certificates in the text of a PEM file, at least one.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, &'static str> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let read = read.map_err(|_| "is damaged: not every certificate in it is whole PEM")?;
    if read.is_empty() {
        return Err("holds no certificate in PEM (-----BEGIN CERTIFICATE-----)");
    }
    Ok(read)
}

/// The cryptography of every connection, named here so that no other can slip in by a feature of
/// some package.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
