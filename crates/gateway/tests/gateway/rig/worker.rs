//! A worker that does as it is told and remembers what was done to it.

mod connection;

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use smg_gateway::upstream::{Origin, Socket};
use tokio::io::{AsyncReadExt as _, DuplexStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use self::connection::Connection;
use super::http2::{Tongue, first};
use super::script::{Script, answer, json};
use super::{MODEL, within};

/// What happens to a dial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    Open,
    Refusing,
    /// The dial never ends.
    Silent,
}

/// Answers to what the gateway itself asks; `None` closes the connection.
#[derive(Clone, Debug)]
struct Probes {
    health: Option<&'static str>,
    models: Vec<&'static str>,
    info: Option<&'static str>,
    /// Paths at which it fails, and how; `None` hangs there.
    failing: Vec<(&'static str, Option<&'static str>)>,
    loads: Option<&'static str>,
    /// The whole answer of `/loads`, if it is there.
    report: Option<String>,
    /// Paths it knows besides, queries left out, and what is there.
    pages: Vec<(String, String)>,
}

/// A request as it arrived.
#[derive(Clone, Debug, Default)]
pub(crate) struct Received {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    /// Whether the last chunk of a body that came in chunks has arrived.
    pub(crate) whole: bool,
    /// Which of the worker's connections, counted from 0.
    pub(crate) on: usize,
}

impl Received {
    /// All values of a header.
    pub(crate) fn header(&self, name: &str) -> Vec<&str> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        lines.filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value).collect()
    }
}

/// What is known of a worker.
pub(crate) struct Story {
    door: Door,
    /// How it shakes hands, at https.
    front: Option<TlsAcceptor>,
    /// How it speaks HTTP/2, if it does.
    tongue: Option<Tongue>,
    probes: Probes,
    scripts: VecDeque<Script>,
    usual: Script,
    /// Inference requests in the order their heads arrived.
    pub(crate) requests: Vec<Received>,
    /// Connections opened, those of probes included.
    pub(crate) dials: usize,
    /// Connections that are open and have seen an inference request.
    pub(crate) open: usize,
    /// Bytes that were taken from this worker for answers.
    pub(crate) written: usize,
    /// Paths the gateway asked for itself.
    pub(crate) probed: Vec<String>,
    /// What the gateway showed as `Authorization` when it asked for itself; empty for nothing.
    pub(crate) keys: Vec<String>,
}

/// A scripted worker; clones are the same worker.
#[derive(Clone)]
pub(crate) struct Worker {
    origin: Origin,
    pipe: usize,
    story: Arc<Mutex<Story>>,
    news: Arc<watch::Sender<()>>,
}

impl Worker {
    /// A worker that serves [`MODEL`] and answers everything with a small JSON object.
    pub(crate) fn new(name: &str) -> Self {
        Self::serving(name, &[MODEL])
    }

    /// One at https, on the port of that.
    pub(crate) fn secure(name: &str) -> Self {
        let origin = Origin::parse(&format!("https://{name}")).expect("a worker's URL");
        Self { origin, ..Self::new(name) }
    }

    /// From now on it shakes hands so.
    pub(crate) fn shakes(&self, front: TlsAcceptor) {
        self.tell(|story| story.front = Some(front));
    }

    /// From now on it speaks HTTP/2 too.
    pub(crate) fn speaks(&self, tongue: &Tongue) {
        self.tell(|story| story.tongue = Some(tongue.clone()));
    }

    pub(crate) fn serving(name: &str, models: &[&'static str]) -> Self {
        let story = Story {
            door: Door::Open,
            front: None,
            tongue: None,
            probes: Probes {
                health: Some("200 OK"),
                models: models.to_vec(),
                info: None,
                failing: Vec::new(),
                loads: None,
                report: None,
                pages: Vec::new(),
            },
            scripts: VecDeque::new(),
            usual: super::script().say(json(&format!(r#"{{"from":"{name}"}}"#))),
            requests: Vec::new(),
            dials: 0,
            open: 0,
            written: 0,
            probed: Vec::new(),
            keys: Vec::new(),
        };
        Self {
            origin: Origin::parse(&format!("http://{name}:8000")).expect("a worker's URL"),
            pipe: 64 << 10,
            story: Arc::new(Mutex::new(story)),
            news: Arc::new(watch::Sender::new(())),
        }
    }

    /// A worker whose sockets hold no more than `bytes` that nobody has read.
    pub(crate) fn narrow(mut self, bytes: usize) -> Self {
        self.pipe = bytes;
        self
    }

    pub(crate) fn url(&self) -> &str {
        self.origin.url()
    }

    pub(crate) fn origin(&self) -> Origin {
        self.origin.clone()
    }

    /// Does this with the next request that has no script yet.
    pub(crate) fn next(&self, script: Script) -> &Self {
        self.tell(|story| story.scripts.push_back(script));
        self
    }

    /// Does this with every request that has no script of its own.
    pub(crate) fn usually(&self, script: Script) -> &Self {
        self.tell(|story| story.usual = script);
        self
    }

    pub(crate) fn door(&self, door: Door) {
        self.tell(|story| story.door = door);
    }

    /// What `GET /health` says; `None` closes the connection.
    pub(crate) fn health(&self, status: Option<&'static str>) {
        self.tell(|story| story.probes.health = status);
    }

    /// What `GET /server_info` says.
    pub(crate) fn info(&self, json: &'static str) {
        self.tell(|story| story.probes.info = Some(json));
    }

    /// The models that it lists from now on.
    pub(crate) fn serves(&self, models: &[&'static str]) {
        self.tell(|story| story.probes.models = models.to_vec());
    }

    /// Fails with this status where it is asked for this path; `None` never answers there.
    pub(crate) fn fails(&self, path: &'static str, status: Option<&'static str>) {
        self.tell(|story| story.probes.failing.push((path, status)));
    }

    /// Fails nowhere any more.
    pub(crate) fn mends(&self) {
        self.tell(|story| story.probes.failing.clear());
    }

    /// What `GET /v1/loads` says.
    pub(crate) fn loads(&self, json: &'static str) {
        self.tell(|story| story.probes.loads = Some(json));
    }

    /// Reports this many waiting requests when it is asked for its load.
    pub(crate) fn waiting(&self, requests: u32) {
        self.reports(requests, 0.0);
    }

    /// Reports requests waiting and the share of its KV cache in use.
    pub(crate) fn reports(&self, waiting: u32, token_usage: f64) {
        let load = format!(
            r#"{{"loads":[{{"num_waiting_reqs":{waiting},"token_usage":{token_usage}}}]}}"#
        );
        self.tell(|story| story.probes.report = Some(json(&load)));
    }

    /// It cannot say what its load is.
    pub(crate) fn reports_nothing(&self) {
        self.tell(|story| story.probes.report = Some(answer("500 Not Now", &[], "")));
    }

    /// Answers a GET of this path with JSON.
    pub(crate) fn page(&self, path: &str, json: &str) -> &Self {
        self.tell(|story| story.probes.pages.push((path.to_owned(), json.to_owned())));
        self
    }

    /// How often a path was asked for, whatever the query.
    pub(crate) fn asked(&self, path: &str) -> usize {
        let here = |asked: &&String| asked.split('?').next() == Some(path);
        self.now(|story| story.probed.iter().filter(here).count())
    }

    /// What the worker knows now.
    pub(crate) fn now<T>(&self, read: impl FnOnce(&Story) -> T) -> T {
        read(&self.lock())
    }

    /// Waits until the worker has seen this.
    pub(crate) async fn until(&self, what: &str, so: impl Fn(&Story) -> bool) {
        let mut news = self.news.subscribe();
        within(what, async {
            while !self.now(&so) {
                news.changed().await.expect("a worker that lives");
            }
        })
        .await;
    }

    /// Inference requests so far.
    pub(crate) fn served(&self) -> usize {
        self.now(|story| story.requests.len())
    }

    /// The last inference request.
    pub(crate) fn last(&self) -> Received {
        self.now(|story| story.requests.last().cloned()).expect("a request")
    }

    pub(super) async fn dialled(&self) -> io::Result<Socket> {
        let (door, on) = self.tell(|story| {
            story.dials += 1;
            (story.door, story.dials - 1)
        });
        match door {
            Door::Open => {}
            Door::Refusing => return Err(io::ErrorKind::ConnectionRefused.into()),
            Door::Silent => return std::future::pending().await,
        }
        let (theirs, ours) = tokio::io::duplex(self.pipe);
        let worker = self.clone();
        tokio::spawn(async move {
            // An error means that the other side has closed.
            let _ = worker.meet(ours, on).await;
        });
        let Some(acceptor) = self.now(|story| story.front.clone()) else {
            return Ok(Box::new(theirs));
        };
        let (outer, inner) = tokio::io::duplex(self.pipe);
        tokio::spawn(async move {
            let (mut inner, mut theirs) = (acceptor.accept(inner).await?, theirs);
            tokio::io::copy_bidirectional(&mut inner, &mut theirs).await
        });
        Ok(Box::new(outer))
    }

    /// Serves a connection in the version in which it is spoken to.
    async fn meet(self, mut socket: DuplexStream, on: usize) -> io::Result<()> {
        let unread = first(&mut socket).await?;
        let tongue = self.now(|story| story.tongue.clone());
        let Some(tongue) = tongue.filter(|_| unread.starts_with(b"PRI")) else {
            return Connection::new(self, socket, unread, on).serve().await;
        };
        let (reader, writer) = tokio::io::split(socket);
        let socket = tokio::io::join(io::Cursor::new(unread).chain(reader), writer);
        tongue.speak(socket, on, |path| page(&self.probe(path)?)).await;
        Ok(())
    }

    fn tell<T>(&self, change: impl FnOnce(&mut Story) -> T) -> T {
        let changed = change(&mut self.lock());
        self.news.send_replace(());
        changed
    }

    /// Whether it never answers there.
    fn hangs(&self, path: &str) -> bool {
        self.now(|story| story.probes.failing.iter().any(|(at, how)| *at == path && how.is_none()))
    }

    fn probe(&self, path: &str) -> Option<String> {
        self.tell(|story| {
            story.probed.push(path.to_owned());
            let bare = path.split('?').next().unwrap_or_default();
            if let Some((_, status)) = story.probes.failing.iter().find(|(at, _)| *at == bare) {
                return status.map(|status| answer(status, &[], ""));
            }
            if let Some((_, page)) = story.probes.pages.iter().find(|(at, _)| at == bare) {
                return Some(json(page));
            }
            match path {
                "/health" => story.probes.health.map(|status| answer(status, &[], "")),
                "/v1/models" => {
                    let ids: Vec<_> =
                        story.probes.models.iter().map(|m| format!(r#"{{"id":"{m}"}}"#)).collect();
                    Some(json(&format!(r#"{{"data":[{}]}}"#, ids.join(","))))
                }
                path => {
                    let report = story.probes.report.clone();
                    if let Some(report) = report.filter(|_| path.starts_with("/loads?")) {
                        return Some(report);
                    }
                    let said = match path.split('?').next() {
                        Some("/server_info") => story.probes.info,
                        Some("/v1/loads") => story.probes.loads,
                        _ => None,
                    };
                    Some(said.map_or_else(|| answer("404 Not Found", &[], ""), json))
                }
            }
        })
    }

    fn lock(&self) -> MutexGuard<'_, Story> {
        self.story.lock().expect("no test panics under this lock")
    }
}

/// Status and body of an answer.
fn page(answer: &str) -> Option<(u16, String)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}
