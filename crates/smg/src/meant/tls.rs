//! What the flags of TLS come to. Complaints name files and never show what is in them.

use std::path::{Path, PathBuf};

use smg_gateway::settings::ServerTls;
use smg_gateway::upstream::{Origin, WorkerTls};
use smg_gateway::{Identity, Unfit};

use super::{Complaint, Meant};
use crate::flags::TlsFlags;

/// How clients are spoken to; `None` for plain HTTP.
pub(super) fn clients(flags: &TlsFlags) -> Meant<Option<ServerTls>> {
    let (cert, key) = (flags.tls_cert_path.as_ref(), flags.tls_key_path.as_ref());
    let Some(identity) = identity(("--tls-cert-path", cert), ("--tls-key-path", key))? else {
        return Ok(None);
    };
    let tls = ServerTls::new(&identity);
    tls.map(Some).map_err(|why| Complaint(format!("--tls-cert-path: {why}")))
}

/// How workers at `https` are spoken to, those among `workers` and those yet to come.
pub(super) fn workers(flags: &TlsFlags, workers: &[Origin]) -> Meant<WorkerTls> {
    let mut tls = WorkerTls::default();
    let (cert, key) = (flags.client_cert_path.as_ref(), flags.client_key_path.as_ref());
    if let Some(identity) = identity(("--client-cert-path", cert), ("--client-key-path", key))? {
        tls.come_as(identity);
    }
    for path in &flags.ca_cert_paths {
        let about = ("--ca-cert-paths", path.as_path());
        tls.believe(&read(about)?).map_err(|why| complaint(about, why))?;
    }
    if let Some(worker) = workers.iter().find(|worker| worker.is_secure()) {
        tls.check().map_err(|why| Complaint::about("--worker-urls", worker.url(), why))?;
    }
    Ok(tls)
}

/// A flag and the file it names, if it was typed.
type Typed<'a> = (&'a str, Option<&'a PathBuf>);

fn identity((cert_flag, cert): Typed<'_>, (key_flag, key): Typed<'_>) -> Meant<Option<Identity>> {
    let (cert, key) = match (cert, key) {
        (None, None) => return Ok(None),
        (Some(cert), None) => {
            let why = format!("needs {key_flag}, the key of this certificate");
            return Err(complaint((cert_flag, cert), why));
        }
        (None, Some(key)) => {
            let why = format!("needs {cert_flag}, the certificate of this key");
            return Err(complaint((key_flag, key), why));
        }
        (Some(cert), Some(key)) => ((cert_flag, cert.as_path()), (key_flag, key.as_path())),
    };
    let identity = Identity::of(&read(cert)?, &read(key)?).map_err(|unfit| match unfit {
        Unfit::Certificate(why) => complaint(cert, why),
        Unfit::Key(why) => complaint(key, why),
    })?;
    Ok(Some(identity))
}

fn read((flag, path): (&str, &Path)) -> Meant<Vec<u8>> {
    std::fs::read(path).map_err(|why| complaint((flag, path), format!("cannot be read: {why}")))
}

fn complaint((flag, path): (&str, &Path), why: impl std::fmt::Display) -> Complaint {
    Complaint::about(flag, path.display(), why)
}
