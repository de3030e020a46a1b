//! A crowd before a real gateway: a thousand streams whose clients read slowly, ten thousand clients that have asked once
//! and stay, a thousand streams that are left at one moment. While each is there `/liveness` must answer within a second;
//! after each nothing may be held for anybody any more (docs/soak.md).

mod clients;
mod watch;

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::time::sleep;

use super::contender::{Contender, Programs, Routing, Started};
use super::gauges::until_let_go;
use super::load::until_ready;
use super::worker::{self, WorkerArgs};
use super::{WORKERS, exit_code, proc, raise_file_limit, runtime, say};

use clients::Streams;
use watch::{Watch, Watched};

/// How long `/liveness` may take.
const AT_MOST: Duration = Duration::from_secs(1);

/// How long it is watched after everybody has left, which is when the gateway has most to clear away.
const AFTERMATH: Duration = Duration::from_secs(2);

/// How long idle clients are left alone, beyond which nothing of their answers is held.
const IDLE: Duration = Duration::from_secs(3);

/// Open files beside those of clients and of workers.
const SPARE: usize = 256;

/// How many come, and how slow they are.
#[derive(Clone, Debug, clap::Args)]
pub struct CrowdArgs {
    /// Streams that run at once.
    #[arg(long, default_value_t = 1000)]
    pub streams: usize,
    /// Clients that stay after one answer.
    #[arg(long, default_value_t = 10_000)]
    pub idle: usize,
    /// Events of a stream.
    #[arg(long, default_value_t = 20)]
    pub events: u32,
    /// Milliseconds between two events; a slow client reads four fifths of one in that time.
    #[arg(long, default_value_t = 1000)]
    pub every_ms: u64,
    /// MiB that the gateway may hold more than before, once a crowd has left.
    #[arg(long, default_value_t = 32)]
    pub margin_mib: u64,
    /// An smg binary to try instead of the one cargo builds here.
    #[arg(long)]
    pub gateway: Option<PathBuf>,
}

/// Brings the crowds. Fails if a law was broken.
pub fn crowd_main(args: &CrowdArgs) -> ExitCode {
    exit_code(run(args))
}

/// The same within another program: false if a law was broken, which standard output tells.
///
/// # Errors
/// What kept the crowds from coming, such as too few open files.
pub fn crowd(args: &CrowdArgs) -> Result<bool, String> {
    runtime()?.block_on(run(args))
}

async fn run(args: &CrowdArgs) -> Result<bool, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let programs = Programs::find(&root, &[Contender::Ours], args.gateway.as_deref())?;
    let places = places(args)?;
    let workers = Workers::start(args)?;
    // Their connections are looked at when they are idle no longer.
    let mut more = vec!["--upstream-pool-idle-timeout-secs", "1"];
    if let Some(places) = &places {
        say(&format!("half of the open files are too few for all: --max-connections {places}"));
        more.extend(["--max-connections", places]);
    }
    let mut started =
        programs.start(Contender::Ours, Routing::Sticky, &workers.addresses, &more)?;
    until_ready(&mut started.group, started.address, (WORKERS, WORKERS)).await?;
    until_let_go(started.metrics).await?;
    let base = resident(&started)?;
    let mut crowd = Crowd { args, started, base, told: String::new(), broken: Vec::new() };
    let played = crowd.play().await;
    crowd.started.group.check_alive()?;
    played?;
    crowd.print();
    Ok(crowd.broken.is_empty())
}

/// What to tell the gateway of how many may come, if its default is less. Fails if nothing would help.
fn places(args: &CrowdArgs) -> Result<Option<String>, String> {
    raise_file_limit();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    // This process has both ends of the streams and one of every idle client.
    let needed = args.idle.max(2 * args.streams) + SPARE;
    if limit < needed {
        return Err(format!("{needed} open files are needed, and ulimit -Hn allows {limit}"));
    }
    let clients = args.idle.max(args.streams) + SPARE / 4;
    Ok((limit / 2 < clients + SPARE / 4).then(|| clients.to_string()))
}

/// Mock workers, on a thread of their own.
struct Workers {
    addresses: Vec<SocketAddr>,
    runtime: Option<Runtime>,
}

impl Workers {
    fn start(args: &CrowdArgs) -> Result<Self, String> {
        let failed = |error: io::Error| format!("cannot start the workers: {error}");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(failed)?;
        let mut addresses = Vec::new();
        for number in 0..WORKERS {
            let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(failed)?;
            listener.set_nonblocking(true).map_err(failed)?;
            addresses.push(listener.local_addr().map_err(failed)?);
            let (events, every_ms) = (args.events, args.every_ms);
            runtime.spawn(async move {
                let args = WorkerArgs { number, events, every_ms };
                worker::serve(tokio::net::TcpListener::from_std(listener)?, &args).await
            });
        }
        Ok(Self { addresses, runtime: Some(runtime) })
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Waiting for its thread is not allowed within another runtime.
            runtime.shutdown_background();
        }
    }
}

/// A gateway and what became of it.
struct Crowd<'a> {
    args: &'a CrowdArgs,
    started: Started,
    /// What it held before anybody came.
    base: u64,
    told: String,
    /// Laws that were broken.
    broken: Vec<String>,
}

impl Crowd<'_> {
    async fn play(&mut self) -> Result<(), String> {
        let address = self.started.address;
        let every = Duration::from_millis(self.args.every_ms);
        let streams =
            Streams { address, count: self.args.streams, events: self.args.events, every };

        let (began, watch) = (Instant::now(), Watch::start(address)?);
        let listening = clients::listen_slowly(streams);
        let (held, heard) =
            tokio::join!(self.resident_after(every * self.args.events / 2), listening);
        self.done("slow streams", (began, held?), watch.end()?).await?;
        self.broken.extend(heard);

        let (began, watch) = (Instant::now(), Watch::start(address)?);
        let mut idle = clients::ask_and_stay(address, self.args.idle).await?;
        let held = self.resident_after(IDLE).await?;
        let watched = watch.end()?;
        // They are still there, and nothing is held for them but their connections.
        self.broken.extend(until_let_go(self.started.metrics).await.err());
        self.broken.extend(clients::ask_again(&mut idle).await);
        let watch = Watch::start(address)?;
        drop(idle);
        sleep(AFTERMATH).await;
        self.done("idle clients", (began, held), watched.with(watch.end()?)).await?;

        let (began, watch) = (Instant::now(), Watch::start(address)?);
        let running = clients::begin(streams).await?;
        let held = resident(&self.started)?;
        drop(running);
        sleep(AFTERMATH).await;
        self.done("streams left at once", (began, held), watch.end()?).await
    }

    async fn resident_after(&self, pause: Duration) -> Result<u64, String> {
        sleep(pause).await;
        resident(&self.started)
    }

    /// A crowd has left.
    async fn done(
        &mut self,
        what: &str,
        (began, held): (Instant, u64),
        watched: Watched,
    ) -> Result<(), String> {
        self.broken.extend(until_let_go(self.started.metrics).await.err());
        let took = began.elapsed().as_secs_f64();
        let left = resident(&self.started)?.saturating_sub(self.base);
        let beyond = held.saturating_sub(self.base);
        if left > self.args.margin_mib << 20 {
            self.broken.push(format!("{what}: {} KiB more in memory than before", left >> 10));
        }
        if watched.worst > AT_MOST || watched.failed > 0 {
            self.broken.push(format!("{what}: /liveness was not answered within a second"));
        }
        // Writing to a String cannot fail.
        let _ = writeln!(
            self.told,
            "{what:22} {took:5.1} s; {watched}; {:.1} MiB more while they were there, {:.1} MiB after",
            mib(beyond),
            mib(left)
        );
        Ok(())
    }

    fn print(&self) {
        let CrowdArgs { streams, idle, .. } = self.args;
        let base = mib(self.base);
        let mut text = format!("{streams} streams, {idle} idle clients, {base:.1} MiB before\n");
        text.push_str(&self.told);
        if self.broken.is_empty() {
            text.push_str("every law held\n");
        }
        for law in &self.broken {
            let _ = writeln!(text, "broken: {law}");
        }
        let _ = io::stdout().write_all(text.as_bytes());
    }
}

fn resident(started: &Started) -> Result<u64, String> {
    proc::usage(started.group.id())
        .map(|usage| usage.resident)
        .map_err(|error| format!("cannot read the gateway's memory: {error}"))
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
