//! Where log lines go: stdout, as lines for a person or as JSON.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::Directive;

use crate::flags::{LevelChoice, ProcessFlags};

/// Starts logging. Our own crates log at the level asked for, libraries only warnings; `RUST_LOG`
/// is heard last.
pub(crate) fn start(flags: &ProcessFlags) {
    let level = match flags.log_level {
        LevelChoice::Debug => "debug",
        LevelChoice::Info => "info",
        LevelChoice::Warn => "warn",
        LevelChoice::Error => "error",
    };
    let asked = std::env::var("RUST_LOG").unwrap_or_default();
    let directives = format!("warn,smg={level},{asked}");
    let known = directives.split(',').filter_map(|one| one.parse::<Directive>().ok());
    let filter = known.fold(EnvFilter::default(), EnvFilter::add_directive);
    let lines = tracing_subscriber::fmt().with_env_filter(filter);
    // A second start, as in tests, leaves the first one in place.
    let _ = if flags.log_json {
        lines.json().flatten_event(true).try_init()
    } else {
        lines.with_ansi(std::io::stdout().is_terminal()).try_init()
    };
}
