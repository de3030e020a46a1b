//! The lab's tools: one simulated engine, a play of conversations against any address, the
//! bench, the simulator.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use tokio::net::TcpListener;

use flags::{Command, EngineFlags, Flags, PinsFlags, PlayFlags, StudyFlags};
use smg_lab::demo::{Sums, by_worker};
use smg_lab::traces::mooncake;
use smg_lab::{bench, engine, pick_bench, pins, player, prefix_study, simulator};

mod flags;

fn main() -> ExitCode {
    let command = match Flags::parse().command {
        // The bench owns its process: threads, children and exit code.
        Command::Bench(args) => return bench::main(&args),
        Command::Flood(args) => return bench::flood_main(&args),
        Command::Crowd(args) => return bench::crowd_main(&args),
        Command::Soak(args) => return bench::soak_main(&args),
        Command::KillOne(args) => return bench::kill_one_main(&args),
        Command::SharedPins(args) => return bench::shared_pins_main(&args),
        Command::BenchWorker(args) => return bench::worker_main(&args),
        Command::Simulate(args) => return simulator::main(&args),
        Command::PrefixStudy(flags) => return told(run_study(&flags)),
        Command::PickBench => return told(pick_bench::print(&mut io::stdout())),
        Command::Pins(flags) => return run_pins(&flags),
        Command::Engine(flags) => Async::Engine(flags),
        Command::Play(flags) => Async::Play(flags),
    };
    let ended =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().and_then(|runtime| {
            runtime.block_on(async {
                match command {
                    Async::Engine(flags) => run_engine(flags).await,
                    Async::Play(flags) => run_play(flags).await,
                }
            })
        });
    told(ended)
}

fn told(ended: io::Result<()>) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            // If even that cannot be told, the exit code has to do.
            let _ = writeln!(io::stderr(), "lab: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run_pins(flags: &PinsFlags) -> ExitCode {
    let name = format!("lab-pins-{}", std::process::id());
    let measured = pins::measure(flags.pins, &flags.dir.join(name));
    told(measured.and_then(|costs| write!(io::stdout(), "{costs}")))
}

/// What runs on tokio.
enum Async {
    Engine(EngineFlags),
    Play(PlayFlags),
}

async fn run_engine(flags: EngineFlags) -> io::Result<()> {
    if flags.attached {
        bench::end_with_parent();
    }
    let listener = TcpListener::bind((flags.host, flags.port)).await?;
    let mut out = io::stdout();
    writeln!(out, "ready http://{}", listener.local_addr()?)?;
    out.flush()?;
    engine::serve(listener, flags.profile()).await
}

async fn run_play(flags: PlayFlags) -> io::Result<()> {
    let turns = player::play(&flags.url, &flags.script(), &mut |_| ()).await?;
    let mut out = io::stdout();
    for turn in turns.iter().filter(|turn| turn.error.is_some()) {
        let (conversation, number) = (turn.conversation, turn.number);
        let error = turn.error.as_deref().unwrap_or_default();
        writeln!(out, "conversation {conversation}, turn {number}: {error}")?;
    }
    let sums = Sums::of(&turns);
    let share = |part: usize, whole: usize| 100.0 * part as f64 / whole.max(1) as f64;
    let (tokens, cached) = sums.later_tokens;
    writeln!(out, "turns {}, failed {}", sums.turns, sums.errors)?;
    writeln!(out, "prompt tokens {}", sums.prompt_tokens)?;
    writeln!(out, "  from a cache {:.1} %", share(sums.cached_tokens, sums.prompt_tokens))?;
    writeln!(out, "later turns {}", sums.later)?;
    writeln!(out, "  prompt tokens from a cache {:.1} %", share(cached, tokens))?;
    writeln!(out, "  where the turn before was {:.1} %", share(sums.same_worker, sums.later))?;
    let first = sums.first_token.unwrap_or_default();
    writeln!(out, "  mean time to the first token {:.0} ms", first.as_secs_f64() * 1e3)?;
    for (worker, count) in by_worker(&turns) {
        writeln!(out, "{worker}: {count} turns")?;
    }
    Ok(())
}

fn run_study(flags: &StudyFlags) -> io::Result<()> {
    let traces = match &flags.mooncake {
        None => prefix_study::traces(),
        Some(path) => {
            let file = io::BufReader::new(std::fs::File::open(path)?);
            vec![mooncake::read(&path.display().to_string(), file)?]
        }
    };
    prefix_study::print(&mut io::stdout(), &traces, flags.engines())
}
