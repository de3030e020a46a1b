//! `lab`: one binary for everything the lab can do.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use smg_lab::bench;

#[derive(Parser)]
#[command(name = "lab", about = "What smg is tried and measured with.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure CPU and memory of smg beside a peer and HAProxy on the same work.
    Bench(bench::Args),
    /// The bench's mock worker; the bench starts it as a process of its own.
    #[command(hide = true)]
    BenchWorker(bench::WorkerArgs),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Bench(args) => bench::main(&args),
        Command::BenchWorker(args) => bench::worker_main(&args),
    }
}
