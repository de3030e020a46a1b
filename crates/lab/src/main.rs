//! The lab's tools: one simulated engine, or a play of conversations against any address.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use tokio::net::TcpListener;

use flags::{Command, EngineFlags, Flags, PlayFlags, StudyFlags};
use smg_lab::demo::Sums;
use smg_lab::traces::mooncake;
use smg_lab::{engine, pick_bench, player, prefix_study};

mod flags;

fn main() -> ExitCode {
    let flags = Flags::parse();
    let ended =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().and_then(|runtime| {
            runtime.block_on(async {
                match flags.command {
                    Command::Engine(flags) => run_engine(flags).await,
                    Command::Play(flags) => run_play(flags).await,
                    Command::PrefixStudy(flags) => run_study(&flags),
                    Command::PickBench => pick_bench::print(&mut io::stdout()),
                }
            })
        });
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            // If even that cannot be told, the exit code has to do.
            let _ = writeln!(io::stderr(), "lab: {why}");
            ExitCode::FAILURE
        }
    }
}

async fn run_engine(flags: EngineFlags) -> io::Result<()> {
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
    writeln!(
        out,
        "turns {} errors {} prompt {} cached {} later {} same {} first_token_ms {}",
        sums.turns,
        sums.errors,
        sums.prompt_tokens,
        sums.cached_tokens,
        sums.later,
        sums.same_worker,
        sums.first_token.unwrap_or_default().as_millis(),
    )
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
