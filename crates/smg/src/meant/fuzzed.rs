use clap::Parser as _;

use super::settings;
use crate::flags::{Cli, Command};

#[test]
fn whatever_is_typed_is_meant_or_refused() {
    let target = |input: &[u8]| {
        let typed = String::from_utf8_lossy(input);
        // What names files stays out: a target reads none.
        let args = typed.split_whitespace().filter(|arg| !arg.contains('/') || arg.contains("://"));
        let Ok(cli) = Cli::try_parse_from(["smg", "launch"].into_iter().chain(args)) else {
            return;
        };
        if let Command::Launch(flags) = cli.command
            && let Err(complaint) = settings(&flags)
        {
            assert!(complaint.to_string().contains("--"), "{complaint}");
        }
    };
    fuzz::run("flags", 150, target).unwrap();
}
