//! CPU and memory of smg beside its peer and HAProxy, on the same work in the same minutes.
//!
//! One measurement: start mock workers and a fresh gateway, wait until both workers have answered through it, load it,
//! and read the CPU time of its process tree around a window. A round measures each contender once, one after the
//! other, so that a busy spell of the machine hits all of them; the table compares figures of one run only.
//! What is measured, and what spoils it, stands in docs/bench.md.

mod contender;
mod crowd;
mod engines;
mod flood;
mod gauges;
mod group;
mod http1;
mod kill_one;
mod load;
mod payload;
mod proc;
mod report;
mod rows;
mod shared_pins;
mod soak;
mod worker;

use std::fs;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

pub use crowd::{CrowdArgs, crowd, crowd_main};
pub use flood::{FloodArgs, flood_main};
pub use group::end_with_parent;
pub use kill_one::{KillOneArgs, kill_one_main};
pub use shared_pins::{SharedPinsArgs, shared_pins_main};
pub use soak::{SoakArgs, soak_main};
pub use worker::{WorkerArgs, worker_main};

use contender::{Contender, Programs, Started};
use group::Group;
use load::{Measured, Target};
use report::{Report, Settings, Table};
use rows::Row;

/// Mock workers behind each gateway.
const WORKERS: usize = 2;

/// How long an idle gateway is left alone before its memory is read.
const IDLE: Duration = Duration::from_secs(1);

/// How long a closed loop runs before its window.
const WARM_UP: Duration = Duration::from_secs(1);

/// What a measurement may take beyond its window before it counts as stuck.
const STUCK: Duration = Duration::from_secs(90);

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Rows to measure, comma-separated; all if not given.
    #[arg(long, value_enum, value_delimiter = ',')]
    rows: Vec<Row>,
    /// Contenders to measure, comma-separated; all if not given.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Contender>,
    /// Rounds; each measures every contender once.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds of each measured window.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// An smg binary to measure instead of the one cargo builds here.
    #[arg(long)]
    gateway: Option<PathBuf>,
    /// Also write settings, machine and every reading to this file.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// Runs the bench. Fails if any row could not be measured without an error.
pub fn main(args: &Args) -> ExitCode {
    exit_code(run(args))
}

/// Runs a command that owns its process. What ends with false has said why on standard output.
fn exit_code(work: impl Future<Output = Result<bool, String>>) -> ExitCode {
    match runtime().and_then(|runtime| runtime.block_on(until_interrupted(work))) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            say(&format!("error: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, String> {
    // One thread: the load must not take more than one core from the gateway.
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start the runtime: {error}"))
}

/// Drops the work on a signal, and with it every process it has started.
async fn until_interrupted(
    work: impl Future<Output = Result<bool, String>>,
) -> Result<bool, String> {
    let failed = |error: io::Error| format!("cannot wait for signals: {error}");
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    tokio::select! {
        done = work => done,
        _ = interrupt.recv() => Err("interrupted".to_owned()),
        _ = terminate.recv() => Err("terminated".to_owned()),
    }
}

async fn run(args: &Args) -> Result<bool, String> {
    let rows = or_all(&args.rows, &rows::ALL);
    let mut contenders = or_all(&args.only, &contender::ALL);
    contenders.retain(|&contender| rows.iter().any(|row| row.is_for(contender)));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let root =
        root.canonicalize().map_err(|error| format!("cannot find the workspace: {error}"))?;
    let programs = Programs::find(&root, &contenders, args.gateway.as_deref())?;
    if let Some(parent) = args.json.as_deref().and_then(Path::parent) {
        // Now, and not when all has been measured.
        fs::create_dir_all(parent)
            .map_err(|error| format!("cannot create {}: {error}", parent.display()))?;
    }
    raise_file_limit();
    if cfg!(debug_assertions) {
        say(
            "note: this is a debug build of the lab; its load takes CPU from the gateways. Use --release.",
        );
    }
    let settings = Settings { rounds: args.rounds, seconds: args.seconds };
    let mut report = Report::new(settings);
    for &row in &rows {
        match run_rounds(row, args, &contenders, &programs).await {
            Ok(table) => report.add(table),
            Err(error) => {
                say(&format!("no figures for {}: {error}", row.label()));
                report.refuse(row, error);
            }
        }
    }
    let _ = writeln!(io::stdout(), "{}", report.render());
    if let Some(file) = &args.json {
        fs::write(file, report.json()?)
            .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    }
    Ok(report.complete())
}

fn or_all<T: Copy>(chosen: &[T], all: &[T]) -> Vec<T> {
    if chosen.is_empty() { all.to_vec() } else { chosen.to_vec() }
}

/// All rounds of a row, contender by contender within each.
async fn run_rounds(
    row: Row,
    args: &Args,
    contenders: &[Contender],
    programs: &Programs,
) -> Result<Table, String> {
    let mut table = Table::new(row);
    let window = Duration::from_secs(u64::from(args.seconds));
    for round in 1..=args.rounds {
        for &contender in contenders.iter().filter(|&&contender| row.is_for(contender)) {
            let measuring = Box::pin(measure(row, contender, programs, window));
            let reading = tokio::time::timeout(window + STUCK, measuring)
                .await
                .unwrap_or_else(|_| Err("the measurement got stuck".to_owned()))
                .map_err(|error| format!("{} in round {round}: {error}", contender.label()))?;
            say(&format!(
                "{} · round {round}/{} · {}: {}",
                row.label(),
                args.rounds,
                contender.label(),
                reading.describe(row)
            ));
            table.add(contender, reading);
        }
    }
    Ok(table)
}

/// What one measurement gave.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Reading {
    /// One figure for each of the row's metrics.
    pub(crate) figures: Vec<f64>,
    /// Requests or events a second; 0 where the row has none.
    pub(crate) rate: f64,
    /// The part of its intended pace that paced work kept. Below 1 the machine was too busy, and events that are
    /// late arrive together and look cheaper than they are.
    pub(crate) pace: Option<f64>,
    /// Cores taken by what is not the bench.
    pub(crate) others: f64,
}

impl Reading {
    fn new(figures: Vec<f64>, measured: Measured) -> Self {
        let rate = measured.units as f64 / measured.window.elapsed.as_secs_f64().max(1e-9);
        Self { figures, rate, pace: None, others: measured.window.others }
    }

    fn describe(&self, row: Row) -> String {
        let figures = row.metrics().iter().zip(&self.figures);
        let mut text: Vec<String> = figures
            .map(|(metric, figure)| format!("{} {figure:.1} {}", metric.name, metric.unit))
            .collect();
        if self.rate > 0.0 {
            text.push(format!("{:.0}/s", self.rate));
        }
        if let Some(pace) = self.pace {
            text.push(format!("{:.0} % of the pace", pace * 100.0));
        }
        if self.others > 0.1 {
            text.push(format!("other processes took {:.2} cores", self.others));
        }
        text.join(", ")
    }
}

/// One measurement, with workers and a gateway of its own.
async fn measure(
    row: Row,
    contender: Contender,
    programs: &Programs,
    window: Duration,
) -> Result<Reading, String> {
    let mut workers = Vec::new();
    let mut addresses = Vec::new();
    for number in 0..WORKERS {
        let (worker, address) = Group::worker(&worker_args(row, number, window))?;
        workers.push(worker);
        addresses.push(address);
    }
    let Started { group: mut gateway, address, metrics } =
        programs.start(contender, row.routing(), &addresses, &[])?;
    // One prompt has one worker under cache_aware or where its opening is its key, so that no more than one shows.
    let shown = if matches!(row, Row::GrowingChat | Row::BodyPeeked) { 1 } else { WORKERS };
    let first_answer = load::until_ready(&mut gateway, address, (shown, WORKERS)).await?;
    if contender == Contender::OursHttp2 {
        speaks_http2(metrics).await?;
    }
    let target = Target { address, pid: gateway.id(), warm_up: WARM_UP, window };
    let reading = run_row(row, target, first_answer).await;
    reading.map_err(|error| match gateway.check_alive() {
        Ok(()) => error,
        Err(ended) => format!("{error}; {ended}"),
    })
}

/// Fails if a gateway speaks HTTP/1.1 to any of its workers, which would be measured without anyone noticing.
async fn speaks_http2(metrics: SocketAddr) -> Result<(), String> {
    let workers = gauges::total(metrics, "smg_worker_http2").await?;
    if workers < WORKERS as f64 {
        return Err(format!("it speaks HTTP/2 to {workers} of {WORKERS} workers"));
    }
    Ok(())
}

fn worker_args(row: Row, number: usize, window: Duration) -> WorkerArgs {
    match row {
        Row::SsePaced | Row::SsePacedHttp2 => WorkerArgs {
            number,
            events: load::paced_events(window),
            every_ms: load::PACED_EVERY.as_millis().try_into().unwrap_or(u64::MAX),
        },
        _ => WorkerArgs { number, events: load::BURST_EVENTS, every_ms: 0 },
    }
}

/// The row's own work.
async fn run_row(row: Row, target: Target, first_answer: Duration) -> Result<Reading, String> {
    match row {
        Row::Sticky | Row::StickyHttp2 | Row::RoundRobin => {
            let measured = load::chat(target, row.routing(), WORKERS).await?;
            Ok(Reading::new(vec![measured.micros_per_unit()?], measured))
        }
        Row::SseBurst | Row::SseBurstHttp2 => {
            let measured = load::burst(target).await?;
            Ok(Reading::new(vec![measured.micros_per_unit()?], measured))
        }
        Row::SsePaced | Row::SsePacedHttp2 => {
            let idle = idle_memory(target).await?;
            let measured = load::paced(target).await?;
            let grown = measured.window.resident.saturating_sub(idle) as f64;
            let per_stream = grown / 1024.0 / load::PACED_STREAMS as f64;
            let mut reading = Reading::new(vec![measured.micros_per_unit()?, per_stream], measured);
            reading.pace =
                Some(reading.rate * load::PACED_EVERY.as_secs_f64() / load::PACED_STREAMS as f64);
            Ok(reading)
        }
        Row::GrowingChat => {
            let idle = idle_memory(target).await?;
            let measured = load::growing(target, WORKERS).await?;
            let grown = grown(&measured, idle);
            Ok(Reading::new(vec![measured.micros_per_unit()?, grown], measured))
        }
        Row::BodyStreamed | Row::BodyRead | Row::BodyPeeked => {
            let idle = idle_memory(target).await?;
            let measured = load::large(target, row.routing(), WORKERS).await?;
            let grown = grown(&measured, idle);
            Ok(Reading::new(vec![measured.millis_per_unit()?, grown], measured))
        }
        Row::Start => {
            let idle = idle_memory(target).await? as f64 / (1024.0 * 1024.0);
            let first_answer = first_answer.as_secs_f64() * 1000.0;
            Ok(Reading { figures: vec![idle, first_answer], rate: 0.0, pace: None, others: 0.0 })
        }
    }
}

/// Megabytes that a gateway holds at the end of the window beyond what it held when idle.
fn grown(measured: &Measured, idle: u64) -> f64 {
    measured.window.resident.saturating_sub(idle) as f64 / (1024.0 * 1024.0)
}

/// Resident bytes of a gateway that has nothing to do.
async fn idle_memory(target: Target) -> Result<u64, String> {
    tokio::time::sleep(IDLE).await;
    proc::usage(target.pid)
        .map(|usage| usage.resident)
        .map_err(|error| format!("cannot read the gateway's memory: {error}"))
}

/// Lets this process and the gateways it starts open a socket for each of a thousand streams, twice.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // If it cannot be raised the paced row will say so by failing to connect.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// Progress and errors go to standard error, so that standard output is the table alone.
fn say(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}
