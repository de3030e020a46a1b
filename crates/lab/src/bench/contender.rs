//! The gateways that are compared: where their programs are and how each is told to do a row's work.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Serialize;

use super::group::Group;

/// Who is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Contender {
    /// smg, from this workspace.
    Ours,
    /// The same binary, speaking HTTP/2 to its workers.
    #[serde(rename = "ours_http2")]
    #[value(name = "ours_http2")]
    OursHttp2,
    /// The Python package `smg`, 1.13.0.
    Peer,
    /// Debian's HAProxy.
    Haproxy,
}

/// In the order in which a round runs them.
pub(crate) const ALL: [Contender; 4] =
    [Contender::Ours, Contender::OursHttp2, Contender::Peer, Contender::Haproxy];

impl Contender {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::OursHttp2 => "ours with HTTP/2 upstream",
            Self::Peer => "smg 1.13.0",
            Self::Haproxy => "HAProxy",
        }
    }

    /// Whether it is a binary of this workspace.
    fn is_ours(self) -> bool {
        matches!(self, Self::Ours | Self::OursHttp2)
    }
}

/// How requests are to be spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Routing {
    /// By the header `x-smg-routing-key`.
    Sticky,
    /// By the header `x-aibrix-session-key`; smg alone.
    Session,
    /// In turn.
    RoundRobin,
    /// By the prompt's prefix, the default of smg; HAProxy cannot and takes turns, as with whatever stands in a body.
    CacheAware,
    /// In turn, bodies passed on as they arrive.
    Streamed,
    /// By the `rid` in the body.
    KeyInBody,
    /// By what stands within the first 64 KiB of the body.
    KeyInOpening,
}

impl Routing {
    /// Whether requests with one key have one worker.
    pub(crate) fn is_sticky(self) -> bool {
        matches!(self, Self::Sticky | Self::Session | Self::KeyInBody | Self::KeyInOpening)
    }

    /// What smg is told beside the policy.
    fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Sticky | Self::KeyInBody => &["--routing-key-override"],
            Self::RoundRobin | Self::CacheAware | Self::Session => &[],
            Self::Streamed => &["--disable-retries"],
            Self::KeyInOpening => &["--routing-key-override", "--routing-key-peek-bytes", "65536"],
        }
    }
}

/// A contender that was started.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) group: Group,
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// Where it tells its metrics, if it is one that does.
    pub(crate) metrics: SocketAddr,
}

/// The programs, and where files may be written.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    pub(crate) ours: PathBuf,
    peer: PathBuf,
    haproxy: PathBuf,
    scratch: PathBuf,
}

impl Programs {
    /// Finds what is to be measured, and builds smg unless `gateway` names a binary.
    pub(crate) fn find(
        root: &Path,
        only: &[Contender],
        gateway: Option<&Path>,
    ) -> Result<Self, String> {
        let scratch = root.join(".cache/bench");
        fs::create_dir_all(&scratch)
            .map_err(|error| format!("cannot create {}: {error}", scratch.display()))?;
        let ours = match gateway {
            Some(path) => path.to_owned(),
            None if only.iter().any(|contender| contender.is_ours()) => build(root)?,
            None => PathBuf::new(),
        };
        let haproxy =
            ["/usr/sbin/haproxy", "/usr/local/sbin/haproxy", "/usr/bin/haproxy"].map(PathBuf::from);
        let found = Self {
            ours,
            peer: root.join(".cache/bench-venv/bin/smg"),
            haproxy: haproxy
                .iter()
                .find(|path| path.exists())
                .cloned()
                .unwrap_or_else(|| haproxy[0].clone()),
            scratch,
        };
        for &contender in only {
            let path = found.path(contender);
            if !path.exists() {
                let hint = match contender {
                    Contender::Ours | Contender::OursHttp2 => {
                        "build it, or leave out --gateway to have it built"
                    }
                    Contender::Peer | Contender::Haproxy => {
                        "scripts/bench-peers.sh installs it; --only measures the others"
                    }
                };
                return Err(format!(
                    "{} is missing at {}: {hint}",
                    contender.label(),
                    path.display()
                ));
            }
        }
        Ok(found)
    }

    fn path(&self, contender: Contender) -> &Path {
        match contender {
            Contender::Ours | Contender::OursHttp2 => &self.ours,
            Contender::Peer => &self.peer,
            Contender::Haproxy => &self.haproxy,
        }
    }

    /// Starts a contender before these workers. It need not be ready yet. `more` goes to the end of its command line.
    pub(crate) fn start(
        &self,
        contender: Contender,
        routing: Routing,
        workers: &[SocketAddr],
        more: &[&str],
    ) -> Result<Started, String> {
        let (address, metrics) = (free_address()?, free_address()?);
        let mut command = Command::new(self.path(contender));
        // A developer's RUST_LOG must not make one side log more than the other.
        command.env_remove("RUST_LOG");
        match contender {
            Contender::Ours | Contender::OursHttp2 | Contender::Peer => {
                command.args(smg_arguments(address, metrics, routing, workers));
            }
            Contender::Haproxy => {
                let file = self.scratch.join("haproxy.cfg");
                fs::write(&file, haproxy_configuration(address, routing, workers))
                    .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
                command.arg("-db").arg("-f").arg(file);
            }
        }
        if contender == Contender::OursHttp2 {
            command.arg("--upstream-http2");
        }
        command.args(more);
        let name = contender.label().replace([' ', '/'], "-").to_lowercase();
        let group = Group::start(command, &self.scratch.join(format!("{name}.log")))?;
        Ok(Started { group, address, metrics })
    }
}

/// Has cargo build smg. Always asked, because a stale binary would be measured without anyone noticing.
fn build(root: &Path) -> Result<PathBuf, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let own = std::env::current_exe()
        .map_err(|error| format!("cannot find the lab's own binary: {error}"))?;
    // Beside the lab's own build, wherever that is: TARGET/PROFILE/lab.
    let target = own.ancestors().nth(2).unwrap_or(root);
    let status = Command::new(cargo)
        .current_dir(root)
        .args(["build", "--release", "--package", "smg", "--bin", "smg", "--target-dir"])
        .arg(target)
        .status()
        .map_err(|error| format!("cannot run cargo to build smg: {error}"))?;
    if !status.success() {
        return Err("cargo could not build smg; --gateway PATH measures another binary".to_owned());
    }
    Ok(target.join("release/smg"))
}

/// A port that was free a moment ago.
pub(super) fn free_address() -> Result<SocketAddr, String> {
    TcpListener::bind(("127.0.0.1", 0))
        .and_then(|listener| listener.local_addr())
        .map_err(|error| format!("no free port: {error}"))
}

/// The command line that smg and its peer share.
fn smg_arguments(
    address: SocketAddr,
    metrics: SocketAddr,
    routing: Routing,
    workers: &[SocketAddr],
) -> Vec<String> {
    let mut arguments: Vec<String> =
        ["launch", "--host", "127.0.0.1", "--port"].map(str::to_owned).into_iter().collect();
    arguments.push(address.port().to_string());
    arguments.push("--worker-urls".to_owned());
    arguments.extend(workers.iter().map(|worker| format!("http://{worker}")));
    arguments.extend(["--prometheus-port".to_owned(), metrics.port().to_string()]);
    let policy = match routing {
        Routing::CacheAware => "cache_aware",
        Routing::Session => "session_affinity",
        _ => "round_robin",
    };
    arguments.extend(["--log-level", "warn", "--policy", policy].map(str::to_owned));
    arguments.extend(routing.flags().iter().map(|&flag| flag.to_owned()));
    arguments
}

fn haproxy_configuration(address: SocketAddr, routing: Routing, workers: &[SocketAddr]) -> String {
    let balance = match routing {
        Routing::Sticky => "balance hdr(x-smg-routing-key)\n    hash-type consistent",
        _ => "balance roundrobin",
    };
    let servers: String = workers
        .iter()
        .enumerate()
        .map(|(number, worker)| format!("    server w{number} {worker}\n"))
        .collect();
    format!(
        "global
    nbthread 2
    maxconn 8192
defaults
    mode http
    timeout connect 5s
    timeout client 120s
    timeout server 120s
    http-reuse always
frontend in
    bind {address}
    default_backend workers
backend workers
    {balance}
{servers}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_say_what_a_row_needs() {
        let workers =
            [SocketAddr::from(([127, 0, 0, 1], 7001)), SocketAddr::from(([127, 0, 0, 1], 7002))];
        let address = SocketAddr::from(([127, 0, 0, 1], 7000));
        let sticky = smg_arguments(address, address, Routing::Sticky, &workers).join(" ");
        assert_eq!(
            sticky,
            "launch --host 127.0.0.1 --port 7000 --worker-urls http://127.0.0.1:7001 http://127.0.0.1:7002 \
             --prometheus-port 7000 --log-level warn --policy round_robin --routing-key-override"
        );
        for (routing, end) in [
            (Routing::Streamed, "--policy round_robin --disable-retries"),
            (Routing::KeyInBody, "--policy round_robin --routing-key-override"),
            (Routing::CacheAware, "--policy cache_aware"),
        ] {
            let line = smg_arguments(address, address, routing, &workers).join(" ");
            assert!(line.ends_with(end), "{line}");
        }
        let text = haproxy_configuration(address, Routing::Sticky, &workers);
        assert!(
            text.contains("balance hdr(x-smg-routing-key)\n    hash-type consistent\n"),
            "{text}"
        );
        assert!(
            text.ends_with("    server w0 127.0.0.1:7001\n    server w1 127.0.0.1:7002\n"),
            "{text}"
        );
    }
}
