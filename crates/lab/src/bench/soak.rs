//! A soak: a real gateway before engines that are killed, restarted, stopped and flooded by a seeded plan, while clients
//! ask, listen and leave. Afterwards every request must have ended as the rules allow, every worker must be back in
//! service, every gauge at zero and the memory where it was (docs/soak.md).

mod client;
mod laws;
mod plan;

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::contender::{Contender, Programs, Routing, Started};
use super::engines::Engines;
use super::gauges::{until_in_service, until_let_go};
use super::{exit_code, proc, raise_file_limit, say};

use client::Clients;
use laws::{Crowd, PLACES, Record, Span, TIMEOUT, Troubles};
use plan::{Act, ENGINES, Step};

/// The undisturbed load before memory is read for comparison, a flood included.
const WARM_UP: Duration = Duration::from_secs(3);

/// How long connections and buffers are given before memory is read.
const REST: Duration = Duration::from_secs(2);

/// How much more the gateway may hold after the soak than after its warm-up: what an allocator keeps of the worst
/// moments. A leak of 1 KiB a request would pass it within two minutes.
const MARGIN: u64 = 16 << 20;

/// How long, and how it falls.
#[derive(Clone, Debug, clap::Args)]
pub struct SoakArgs {
    /// Seconds of trouble; warm-up and end come on top.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Decides what happens to which engine when, and what clients ask.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// An smg binary to soak instead of the one cargo builds here.
    #[arg(long)]
    gateway: Option<PathBuf>,
}

/// Soaks a gateway. Fails if it broke a law.
pub fn soak_main(args: &SoakArgs) -> ExitCode {
    exit_code(run(args))
}

async fn run(args: &SoakArgs) -> Result<bool, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let programs = Programs::find(&root, &[Contender::Ours], args.gateway.as_deref())?;
    raise_file_limit();
    let engines = Engines::start(ENGINES, &[])?;
    let timeout = TIMEOUT.as_secs().to_string();
    let places = PLACES.to_string();
    let own = ["--request-timeout-secs", &timeout, "--max-concurrent-requests", &places];
    let more = [&own[..], &["--queue-size", &places], &SETTINGS].concat();
    let started = programs.start(Contender::Ours, Routing::Sticky, &engines.addresses(), &more)?;
    let mut soak = Soak { engines, started, troubles: Troubles::default(), broken: Vec::new() };
    let done = soak.play(args).await;
    soak.started.group.check_alive()?;
    let records = done?;
    soak.judge(&records);
    soak.print(args, &records);
    Ok(soak.broken.is_empty())
}

/// Short times, so that every rule comes to pass within seconds, and bounds that a flood exceeds.
const SETTINGS: [&str; 16] = [
    "--health-check-interval-secs",
    "1",
    "--health-check-timeout-secs",
    "1",
    "--health-failure-threshold",
    "2",
    "--health-success-threshold",
    "1",
    "--cb-timeout-duration-secs",
    "1",
    "--worker-startup-check-interval",
    "1",
    "--upstream-pool-idle-timeout-secs",
    "1",
    "--queue-timeout-secs",
    "10",
];

/// A gateway, its engines, what was done to them and what came of it.
struct Soak {
    engines: Engines,
    started: Started,
    troubles: Troubles,
    /// Laws that were broken.
    broken: Vec<String>,
}

impl Soak {
    /// The whole soak; returns what all clients saw.
    async fn play(&mut self, args: &SoakArgs) -> Result<Vec<Record>, String> {
        let (address, metrics) = (self.started.address, self.started.metrics);
        until_in_service(metrics, ENGINES)
            .await
            .map_err(|missing| format!("{missing}{}", self.started.group.last_words()))?;
        let mut clients = Clients::start(address, args.seed);
        self.flood(&mut clients, address);
        sleep(WARM_UP).await;
        let mut records = clients.end().await;
        let base = self.resident_at_rest().await?;

        let steps = plan::draw(args.seed, Duration::from_secs(args.seconds));
        let mut clients = Clients::start(address, args.seed.wrapping_add(1));
        let began = Instant::now();
        for step in steps {
            sleep(step.at.saturating_sub(began.elapsed())).await;
            self.act(step, &mut clients)?;
        }
        sleep(Duration::from_secs(args.seconds).saturating_sub(began.elapsed())).await;
        records.extend(clients.end().await);

        self.broken.extend(until_in_service(metrics, ENGINES).await.err());
        self.broken.extend(until_let_go(metrics).await.err());
        let grown = self.resident_at_rest().await?.saturating_sub(base);
        say(&format!("memory: {} KiB at base, {} KiB more at the end", base >> 10, grown >> 10));
        if grown > MARGIN {
            self.broken.push(format!("{} KiB more in memory than before", grown >> 10));
        }
        Ok(records)
    }

    fn act(&mut self, step: Step, clients: &mut Clients) -> Result<(), String> {
        say(&format!("{:6.1} s  {:?}", step.at.as_secs_f64(), step.act));
        match step.act {
            Act::Kill(engine) => {
                // From before the blow until after it.
                let url = self.engines.url(engine);
                self.troubles.kills.push((url, Instant::now()));
                self.engines.kill(engine);
            }
            Act::Revive(engine) => self.engines.revive(engine)?,
            Act::Freeze(engine) => {
                let now = Instant::now();
                let span = Span { from: now, to: now };
                self.troubles.hangs.push((self.engines.url(engine), span));
                self.engines.freeze(engine, true)?;
            }
            Act::Thaw(engine) => {
                self.engines.freeze(engine, false)?;
                let url = self.engines.url(engine);
                let mut hangs = self.troubles.hangs.iter_mut().rev();
                if let Some((_, span)) = hangs.find(|(worker, _)| *worker == url) {
                    span.to = Instant::now();
                }
            }
            Act::Flood => self.flood(clients, self.started.address),
        }
        Ok(())
    }

    fn flood(&mut self, clients: &mut Clients, address: SocketAddr) {
        self.troubles.floods += 1;
        clients.flood(address);
    }

    async fn resident_at_rest(&self) -> Result<u64, String> {
        sleep(REST).await;
        let usage = proc::usage(self.started.group.id());
        usage
            .map(|usage| usage.resident)
            .map_err(|error| format!("cannot read the gateway's memory: {error}"))
    }

    fn judge(&mut self, records: &[Record]) {
        self.troubles.crowd = Crowd::of(records);
        for record in records.iter().filter(|record| !self.troubles.allow(record)) {
            let took = record.ended.duration_since(record.began);
            let worker = record.worker.as_deref().unwrap_or("no worker");
            let kind = if record.streamed { "stream" } else { "whole answer" };
            let label = record.fate.label();
            self.broken.push(format!("{label}: a {kind} from {worker}, after {took:.1?}"));
        }
    }

    fn print(&self, args: &SoakArgs, records: &[Record]) {
        let mut fates: BTreeMap<String, usize> = BTreeMap::new();
        for record in records {
            *fates.entry(record.fate.label()).or_default() += 1;
        }
        let Troubles { kills, hangs, floods, .. } = &self.troubles;
        let mut text = format!(
            "seed {}: {} s, {} kills, {} hangs, {} floods\n",
            args.seed,
            args.seconds,
            kills.len(),
            hangs.len(),
            floods
        );
        for (label, count) in fates {
            text.push_str(&format!("{count:8}  {label}\n"));
        }
        if self.broken.is_empty() {
            text.push_str("every law held\n");
        } else {
            let (count, seed, seconds) = (self.broken.len(), args.seed, args.seconds);
            text.push_str(&format!(
                "{count} times a law was broken; again with --seed {seed} --seconds {seconds}\n"
            ));
        }
        for law in self.broken.iter().take(20) {
            text.push_str(&format!("    {law}\n"));
        }
        let _ = io::stdout().write_all(text.as_bytes());
    }
}
