//! TLS on both sides of the whole binary: a gateway with a certificate is the `https` worker of another.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::rig::{Gateway, Worker, launch};

/// A CA and, in files, its certificate and a pair for this machine.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    files: [PathBuf; 3],
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        // Whose CAs have one name are taken for one another.
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap();
        let file = |what: &str, pem: String| {
            let name = format!("smg-tls-{}-{name}-{what}.pem", std::process::id());
            let path = std::env::temp_dir().join(name);
            std::fs::write(&path, pem).unwrap();
            path
        };
        let files = [
            file("ca", issuer.pem()),
            file("certificate", certificate.pem()),
            file("key", key.serialize_pem()),
        ];
        Self { issuer, files }
    }

    pub(crate) fn path(&self, file: usize) -> &str {
        self.files.get(file).and_then(|path| path.to_str()).unwrap()
    }

    /// Flags that have a gateway show its pair to clients.
    fn shown(&self) -> [&str; 4] {
        ["--tls-cert-path", self.path(1), "--tls-key-path", self.path(2)]
    }

    /// Asks a gateway at this port as a client who believes this CA alone.
    fn ask(&self, port: u16, request: &str) -> std::io::Result<String> {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let host = ServerName::try_from("127.0.0.1").unwrap();
        let connection = ClientConnection::new(Arc::new(config), host).unwrap();
        let socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let mut stream = StreamOwned::new(connection, socket);
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        for file in &self.files {
            let _ = std::fs::remove_file(file);
        }
    }
}

fn chat(stream: bool) -> String {
    let body = format!("{{\"model\":\"m\",\"messages\":[],\"stream\":{stream}}}");
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n";
    format!("{head}content-length: {}\r\n\r\n{body}", body.len())
}

#[test]
fn tls_from_the_client_to_the_worker() {
    let (ca, other) = (Authority::new("ours"), Authority::new("theirs"));
    let engine = Worker::start();
    let inner = Gateway::start(&[&engine.url], &ca.shown());
    let worker = format!("https://127.0.0.1:{}", inner.port);
    let believes = [&ca.shown()[..], &["--ca-cert-paths", ca.path(0)]].concat();
    let outer = Gateway::start(&[&worker], &believes);

    let answer = ca.ask(outer.port, &chat(false)).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.ends_with(&format!("{{\"worker\":\"{}\"}}", engine.url)), "{answer}");
    assert!(answer.contains(&format!("x-smg-routed-worker-id: {worker}")), "{answer}");
    engine.finish_stream();
    let streamed = ca.ask(outer.port, &chat(true)).unwrap();
    assert!(streamed.contains("data: first") && streamed.contains("data: last"), "{streamed}");

    let refused = other.ask(outer.port, &chat(false)).unwrap_err();
    assert!(refused.to_string().contains("UnknownIssuer"), "{refused}");
    outer.signal("TERM");
    assert!(outer.ended().success());
}

#[test]
fn a_worker_of_an_unknown_ca_is_named_and_not_used() {
    let (ca, other) = (Authority::new("known"), Authority::new("unknown"));
    let engine = Worker::start();
    let inner = Gateway::start(&[&engine.url], &other.shown());
    let worker = format!("https://127.0.0.1:{}", inner.port);
    let flags = ["--ca-cert-paths", ca.path(0), "--worker-urls", &worker];
    let outer = Gateway::of(launch([""; 0]), &[], &flags);
    let said = outer.wait_for_log("is not ready yet");
    assert!(said.contains("UnknownIssuer") && said.contains("--ca-cert-paths"), "{said}");
}

#[test]
fn a_pair_that_does_not_fit_is_refused_at_start() {
    let (one, two) = (Authority::new("one"), Authority::new("two"));
    let flags =
        ["--policy", "random", "--tls-cert-path", one.path(1), "--tls-key-path", two.path(2)];
    let done = launch(flags).output().unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(said.contains("--tls-key-path") && said.lines().count() == 1, "{said}");
}
