//! Certificates of a test's own, and the ends of TLS connections.

use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair,
};
use smg_gateway::Identity;
use smg_gateway::upstream::Socket;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// A CA.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key in PEM.
pub(crate) struct Signed {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("a CA"))
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for a host.
    pub(crate) fn signs(&self, host: &str) -> Signed {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new([host.to_owned()]).expect("a host");
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.0).expect("signed");
        Signed { certificate: certificate.pem(), key: key.serialize_pem() }
    }

    fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).expect("a CA");
        Arc::new(roots)
    }

    /// Shakes hands as a client that believes this CA alone.
    pub(crate) async fn connect(&self, host: &'static str, socket: Socket) -> Socket {
        let mut config =
            ClientConfig::builder().with_root_certificates(self.roots()).with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let host = ServerName::try_from(host).expect("a host");
        let connected = TlsConnector::from(Arc::new(config)).connect(host, socket).await;
        let connected = connected.expect("a handshake");
        assert_eq!(connected.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
        Box::new(connected)
    }

    /// Shakes hands as a client that offers these protocols; what was taken comes along.
    pub(crate) async fn negotiate(
        &self,
        host: &'static str,
        socket: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        offered: &[&[u8]],
    ) -> (Socket, Option<Vec<u8>>) {
        let mut config =
            ClientConfig::builder().with_root_certificates(self.roots()).with_no_client_auth();
        config.alpn_protocols = offered.iter().map(|name| name.to_vec()).collect();
        let host = ServerName::try_from(host).expect("a host");
        let connected = TlsConnector::from(Arc::new(config)).connect(host, socket).await;
        let connected = connected.expect("a handshake");
        let taken = connected.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
        (Box::new(connected), taken)
    }

    /// Shakes hands as a worker that knows these protocols.
    pub(crate) fn accepts_in(signed: &Signed, known: &[&[u8]]) -> TlsAcceptor {
        let acceptor = Self::accepts(signed, None);
        let mut config = ServerConfig::clone(acceptor.config());
        config.alpn_protocols = known.iter().map(|name| name.to_vec()).collect();
        TlsAcceptor::from(Arc::new(config))
    }

    /// Shakes hands as a worker: with this certificate, and with those only whom `asks` knows.
    pub(crate) fn accepts(signed: &Signed, asks: Option<&Self>) -> TlsAcceptor {
        let builder = ServerConfig::builder();
        let builder = match asks {
            None => builder.with_no_client_auth(),
            Some(authority) => builder.with_client_cert_verifier(
                WebPkiClientVerifier::builder(authority.roots()).build().expect("a verifier"),
            ),
        };
        let chain = CertificateDer::from_pem_slice(signed.certificate.as_bytes()).expect("PEM");
        let key = PrivateKeyDer::from_pem_slice(signed.key.as_bytes()).expect("PEM");
        let config = builder.with_single_cert(vec![chain], key).expect("a pair");
        TlsAcceptor::from(Arc::new(config))
    }
}

impl Signed {
    pub(crate) fn identity(&self) -> Identity {
        Identity::of(self.certificate.as_bytes(), self.key.as_bytes()).expect("a pair")
    }
}
