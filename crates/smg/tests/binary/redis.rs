//! A real Redis on loopback.

use std::collections::BTreeSet;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::rig::{Gateway, free_port, get};

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Redis {
    pub(crate) port: u16,
    process: Child,
}

impl Redis {
    pub(crate) fn start() -> Self {
        let port = free_port();
        Self { port, process: Self::spawn(port) }
    }

    /// One that speaks TLS alone, with a user who may do what docs/affinity.md asks for and no more;
    /// `None` where the build of Redis cannot.
    pub(crate) fn guarded(files: [&str; 3], user: &str) -> Option<Self> {
        let port = free_port();
        let [ca, certificate, key] = files;
        let user: Vec<_> = user.split(' ').collect();
        let process = Command::new("redis-server")
            .args(["--port", "0", "--tls-port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--tls-ca-cert-file", ca, "--tls-cert-file", certificate, "--tls-key-file", key])
            .args(["--tls-auth-clients", "no", "--save", ""])
            .args(["--user", "default", "off", "--user"])
            .args(user)
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server: on Debian it is in the package redis-server");
        let mut redis = Self { port, process };
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(begun.elapsed() < PATIENCE, "Redis neither listens nor ends");
            if redis.process.try_wait().unwrap().is_some() {
                return None;
            }
            // sleeps because another process is waited for, which says nothing
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(redis)
    }

    fn spawn(port: u16) -> Child {
        Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server: on Debian it is in the package redis-server")
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    pub(crate) fn restart(&mut self) {
        self.process = Self::spawn(self.port);
    }

    pub(crate) fn signal(&self, name: &str) {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &id]).status().unwrap().success());
    }

    pub(crate) fn ask(&self, command: &[&str]) -> String {
        let port = self.port.to_string();
        let done = Command::new("redis-cli").args(["-p", &port]).args(command).output().unwrap();
        String::from_utf8(done.stdout).unwrap()
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// How often the store was asked this and answered so.
pub(crate) fn ops(gateway: &Gateway, op: &str, result: &str) -> u64 {
    let series = format!("smg_sticky_store_ops_total{{op=\"{op}\",result=\"{result}\"}} ");
    let text = get(gateway.metrics, "/metrics").1;
    let value = text.lines().find_map(|line| line.strip_prefix(&series).map(str::to_owned));
    value.unwrap().parse().unwrap()
}

pub(crate) fn until(what: &str, so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        // sleeps because another process is waited for, which says nothing
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What fifty who ask at once are told, each thing once.
pub(crate) fn burst(ask: impl Fn(usize) -> String + Sync) -> BTreeSet<String> {
    std::thread::scope(|scope| {
        let ask = &ask;
        let asked: Vec<_> = (0..50).map(|n| scope.spawn(move || ask(n))).collect();
        asked.into_iter().map(|asked| asked.join().unwrap()).collect()
    })
}
