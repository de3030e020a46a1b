//! What a pin that replicas share costs beside one in memory, for keys that are warm: the same small chats with the same
//! keys, one kind of pin after the other in each round. Needs `redis-server`.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use super::contender::{Contender, Programs, Routing, Started, free_address};
use super::gauges::total;
use super::group::Group;
use super::load::{self, Target};
use super::{WARM_UP, WORKERS, WorkerArgs, exit_code, raise_file_limit, say};

/// What a shared pin may cost of one in memory.
const LIMIT: f64 = 1.1;

/// Counts what the store was asked.
const ASKED: &str = "smg_sticky_store_ops_total";

/// The measurement.
#[derive(Clone, Debug, clap::Args)]
pub struct SharedPinsArgs {
    /// Rounds; each measures every kind of pin once.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds of each measured window.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// An smg binary to measure instead of the one cargo builds here.
    #[arg(long)]
    gateway: Option<PathBuf>,
}

/// A kind of pin.
#[derive(Clone, Copy, Debug)]
struct Kind {
    name: &'static str,
    routing: Routing,
    shared: bool,
}

/// The first is what the others are measured by.
const KINDS: [Kind; 4] = [
    Kind { name: "routing key, memory", routing: Routing::Sticky, shared: false },
    Kind { name: "routing key, Redis", routing: Routing::Sticky, shared: true },
    Kind { name: "session key, no store", routing: Routing::Session, shared: false },
    Kind { name: "session key, Redis", routing: Routing::Session, shared: true },
];

/// Measures all kinds. Fails if a shared pin costs more than it may.
pub fn shared_pins_main(args: &SharedPinsArgs) -> ExitCode {
    exit_code(run(args))
}

async fn run(args: &SharedPinsArgs) -> Result<bool, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let programs = Programs::find(&root, &[Contender::Ours], args.gateway.as_deref())?;
    raise_file_limit();
    let (store, port) = redis()?;
    let url = format!("redis://127.0.0.1:{port}");
    let window = Duration::from_secs(u64::from(args.seconds));
    let mut readings = KINDS.map(|_| Vec::new());
    for round in 1..=args.rounds {
        for (kind, readings) in KINDS.iter().zip(&mut readings) {
            let micros = Box::pin(measure(*kind, &programs, &url, window)).await?;
            say(&format!("round {round}/{} · {}: {micros:.1} µs/request", args.rounds, kind.name));
            readings.push(micros);
        }
    }
    drop(store);
    let medians = readings.each_mut().map(|rounds| median(rounds));
    let _ = io::stdout().write_all(told(&medians).as_bytes());
    Ok(good(&medians))
}

/// CPU of one request in microseconds, with workers and a gateway of its own.
async fn measure(
    kind: Kind,
    programs: &Programs,
    url: &str,
    window: Duration,
) -> Result<f64, String> {
    let start = |number| Group::worker(&WorkerArgs { number, events: 1, every_ms: 0 });
    let workers = (0..WORKERS).map(start).collect::<Result<Vec<_>, _>>()?;
    let addresses: Vec<SocketAddr> = workers.iter().map(|(_, address)| *address).collect();
    let more = match (kind.shared, kind.routing) {
        (false, _) => vec![],
        (true, Routing::Session) => vec!["--redis-url", url],
        (true, _) => vec!["--redis-url", url, "--sticky-store", "redis"],
    };
    let Started { mut group, address, metrics } =
        programs.start(Contender::Ours, kind.routing, &addresses, &more)?;
    load::until_ready(&mut group, address, (WORKERS, WORKERS)).await?;
    let target = Target { address, pid: group.id(), warm_up: WARM_UP, window };
    let measured = load::chat(target, kind.routing, WORKERS).await?;
    group.check_alive()?;
    let asked = total(metrics, ASKED).await?;
    if kind.shared != (asked > 0.0) {
        return Err(format!("{}: the store was asked {asked} times", kind.name));
    }
    measured.micros_per_unit()
}

/// A Redis that ends when it is dropped, and its port.
fn redis() -> Result<(Group, u16), String> {
    let port = free_address()?.port();
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
    let log = std::env::temp_dir().join(format!("lab-redis-{port}.log"));
    Ok((Group::start(command, &log)?, port))
}

fn median(rounds: &mut [f64]) -> f64 {
    rounds.sort_by(f64::total_cmp);
    rounds.get(rounds.len() / 2).copied().unwrap_or_default()
}

/// What each kind costs of the first.
fn ratios(medians: &[f64; KINDS.len()]) -> [f64; KINDS.len()] {
    let [first, ..] = *medians;
    medians.map(|median| median / first)
}

fn good(medians: &[f64; KINDS.len()]) -> bool {
    let shared = KINDS.iter().zip(ratios(medians)).filter(|(kind, _)| kind.shared);
    shared.into_iter().all(|(_, ratio)| ratio <= LIMIT)
}

fn told(medians: &[f64; KINDS.len()]) -> String {
    let mut text = "| pin | µs a request | of one in memory |\n|---|---|---|\n".to_owned();
    for ((kind, median), ratio) in KINDS.iter().zip(medians).zip(ratios(medians)) {
        text.push_str(&format!("| {} | {median:.1} | {ratio:.2} |\n", kind.name));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_pins_are_judged_by_the_one_in_memory() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert!(good(&[20.0, 21.9, 90.0, 22.0]));
        assert!(!good(&[20.0, 22.1, 20.0, 20.0]) && !good(&[20.0, 20.0, 20.0, 22.1]));
        let text = told(&[20.0, 21.0, 20.0, 22.0]);
        assert!(text.ends_with("| session key, Redis | 22.0 | 1.10 |\n"), "{text}");
    }
}
