//! smg, a sticky model gateway. This file is the table of contents: what is typed ([`flags`]), what
//! it means ([`meant`]), and what is done with it ([`launch`], [`demo`]).

mod demo;
mod flags;
mod launch;
mod logging;
mod meant;
mod memory;
mod open_files;
mod runtimes;

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;

use crate::flags::{Cli, Command};

/// The system's own keeps what a crowd took long after the crowd has gone.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Launch(flags) => launch::run(&flags),
        Command::Demo(flags) => demo::run(&flags),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(complaint) => {
            // Nothing is left to tell a closed stderr.
            let _ = writeln!(std::io::stderr(), "smg: {complaint}");
            ExitCode::FAILURE
        }
    }
}
