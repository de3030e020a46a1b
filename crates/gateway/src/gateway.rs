//! One gateway: its parts, and the doors to them.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::access::Access;
use crate::admission::Admission;
use crate::body::{Banks, Bounds, Budget};
use crate::clock::Clock;
use crate::drain::Drain;
use crate::fleet::Roster;
use crate::session::{Session, share};
use crate::settings::{Assignment, Bodies, Cors, RetryRules, Settings};
use crate::telemetry::Meters;
use crate::upstream::Dial;
use crate::{edge, fleet, tasks};

/// Between two sticky snapshots.
const SNAPSHOT_INTERVAL: Duration = Duration::from_secs(60);

/// Engines that have to say a word at once, as probes ask.
const MAX_WORDS: usize = 4;

/// A running gateway. Requests share it; each part guards itself.
#[derive(Debug)]
pub struct Gateway {
    pub(crate) fleet: Roster,
    pub(crate) session: Session,
    pub(crate) access: Access,
    pub(crate) cors: Cors,
    /// Where requests queue; `None` when any number may run.
    pub(crate) admission: Option<Admission>,
    pub(crate) limits: Limits,
    pub(crate) meters: Meters,
    pub(crate) drain: Drain,
    pub(crate) clock: Clock,
    /// Places for connections of clients (`--max-connections`).
    pub(crate) places: Arc<Semaphore>,
    /// Turns of those who have an engine say a word, which anybody may (`/health_generate`).
    pub(crate) words: Semaphore,
    /// Where work that must not delay a request runs.
    pub(crate) control: Handle,
    pub(crate) settings: Arc<Settings>,
    /// The way to workers yet to come.
    pub(crate) dial: Arc<dyn Dial>,
}

/// What bounds a request.
#[derive(Debug)]
pub(crate) struct Limits {
    pub(crate) bodies: Bodies,
    pub(crate) upload: Bounds,
    pub(crate) flow: Banks,
    pub(crate) request_timeout: Duration,
    pub(crate) retry: RetryRules,
    pub(crate) request_id_headers: Vec<http::HeaderName>,
}

impl Gateway {
    /// A gateway for these settings. Its background work (registration, health checks, sweeps)
    /// starts on `control`, which should be a runtime that serves no requests.
    ///
    /// # Errors
    /// When its metrics contradict each other, which is a mistake in this crate.
    pub fn start(
        settings: Settings,
        dial: Arc<dyn Dial>,
        control: Handle,
    ) -> io::Result<Arc<Self>> {
        let settings = Arc::new(settings);
        let assignment = settings.sticky.assignment.unwrap_or(Assignment::Random);
        let fleet = Roster::new(settings.placement, assignment);
        let clock = Clock::start();
        let meters = Meters::new(&settings.duration_buckets).map_err(io::Error::other)?;
        // Before pins are restored, which knows addresses too.
        let expected = fleet.expect(&settings.workers);
        let store = settings.affinity.store.as_ref();
        let store = store.map(|store| share(store, meters.store.clone(), clock, &control));
        let store = store.transpose().map_err(io::Error::other)?;
        let gw = Arc::new(Self {
            session: Session::new(settings.sticky.clone(), &fleet, clock)
                .sharing(&settings.affinity, store),
            admission: settings
                .admission
                .map(|rules| Admission::new(rules, clock, meters.admission.clone())),
            clock,
            fleet,
            access: Access::new(&settings.access, settings.listen.ip()),
            cors: settings.access.cors.clone(),
            limits: Limits {
                bodies: settings.bodies,
                upload: Bounds {
                    bytes: settings.bodies.max_payload,
                    time: settings.bodies.timeout,
                    budget: settings.bodies.max_buffered_total.map(Budget::new),
                },
                flow: Banks { bytes: settings.bodies.max_payload, stall: settings.bodies.stall },
                request_timeout: settings.request_timeout,
                retry: settings.retry,
                request_id_headers: settings.request_id_headers.clone(),
            },
            meters,
            drain: Drain::default(),
            places: Arc::new(Semaphore::new(
                settings.clients.max_connections.min(Semaphore::MAX_PERMITS),
            )),
            words: Semaphore::new(MAX_WORDS),
            control,
            settings,
            dial,
        });
        gw.tend(expected);
        Ok(gw)
    }

    fn tend(self: &Arc<Self>, expected: Vec<uuid::Uuid>) {
        let _on_control = self.control.enter();
        fleet::tend(self, expected);
        let gw = Arc::clone(self);
        tasks::spawn("sweep", async move { gw.session.sweep(&gw.meters.sticky).await });
        if let Some(interval) = self.settings.index_sweep {
            let gw = Arc::clone(self);
            tasks::spawn("index", async move {
                loop {
                    tokio::time::sleep(interval).await;
                    gw.fleet.sweep(gw.clock.millis(), &gw.meters.trees);
                }
            });
        }
        if self.session.is_saved() {
            let gw = Arc::clone(self);
            tasks::spawn("snapshot", async move { gw.save_for_ever().await });
        }
        let gw = Arc::clone(self);
        tasks::spawn("ages", async move {
            loop {
                tokio::time::sleep(crate::telemetry::AGE_SAMPLE).await;
                gw.meters.http.sample_ages();
            }
        });
    }

    /// Writes the sticky snapshot every minute.
    async fn save_for_ever(self: &Arc<Self>) {
        loop {
            tokio::time::sleep(SNAPSHOT_INTERVAL).await;
            let gw = Arc::clone(self);
            tasks::blocking(move || gw.session.save(&gw.fleet)).await;
        }
    }

    /// Accepts clients for ever on the current runtime.
    pub async fn listen(self: Arc<Self>, listener: TcpListener) {
        edge::listen(self, listener).await;
    }

    /// Serves the connection of a client at `peer` to its end.
    pub async fn converse(
        self: Arc<Self>,
        socket: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        peer: IpAddr,
    ) {
        edge::receive(self, socket, peer).await;
    }

    /// Serves `GET /metrics` for ever.
    pub async fn listen_metrics(self: Arc<Self>, listener: TcpListener) {
        crate::admin::listen_metrics(self, listener).await;
    }

    /// Answers one scrape that came through this connection.
    pub async fn scraped(
        self: Arc<Self>,
        socket: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    ) {
        crate::admin::scraped(self, socket).await;
    }

    /// What `GET /metrics` answers; empty if a metric cannot be written.
    #[must_use]
    pub fn metrics_text(&self) -> String {
        self.meters.render().ok().and_then(|text| String::from_utf8(text).ok()).unwrap_or_default()
    }

    /// Workers ready for requests, of those registered.
    #[must_use]
    pub fn workers(&self) -> (usize, usize) {
        let fleet = self.fleet.load();
        let ready = fleet.upstreams.iter().filter(|upstream| upstream.worker.healthy()).count();
        (ready, fleet.upstreams.len())
    }

    /// Leaves: `/readiness` says so, new requests are refused, running ones end. False when `grace`
    /// was over before they had.
    pub async fn drain(&self, grace: Duration) -> bool {
        self.drain.run(grace).await
    }

    /// Writes the sticky snapshot, if there is to be one: the last act, however the drain ended.
    pub fn save_pins(&self) {
        self.session.save(&self.fleet);
    }

    /// Connections that a drain still waits for.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.drain.watchers()
    }
}
