//! `cargo xtask check [NAME…]`: the project's own rules, those that rustc, clippy and cargo-deny cannot hold.
//!
//! One module is one rule. Each rule is a function of the [`Tree`] that answers with the [`Problem`]s it found, each
//! naming a place and a way out.

mod conformance;
mod flags;
mod floors;
mod leftovers;
mod links;
mod markdown;
mod metrics;
mod names;
mod packages;
mod report;
mod sizes;
mod source;
mod tree;

use std::io::Write;
use std::process::ExitCode;

use report::{Finding, Problem};
use tree::Tree;

type Check = fn(&Tree) -> Finding;

/// Cheap ones first; those that run cargo or the binary last.
const CHECKS: [(&str, Check); 9] = [
    ("sizes", sizes::check),
    ("names", names::check),
    ("leftovers", leftovers::check),
    ("conformance", conformance::check),
    ("links", links::check),
    ("metrics", metrics::check),
    ("floors", floors::check),
    ("packages", packages::check),
    ("flags", flags::check),
];

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let command = args.next();
    let wanted: Vec<String> = args.collect();
    let known = |name: &String| CHECKS.iter().any(|(check, _)| check == name);
    if command.as_deref() != Some("check") || !wanted.iter().all(known) {
        let names: Vec<&str> = CHECKS.iter().map(|(name, _)| *name).collect();
        say(&format!("usage: cargo xtask check [{}]…", names.join("|")));
        return ExitCode::from(2);
    }
    let tree = match Tree::load() {
        Ok(tree) => tree,
        Err(why) => {
            say(&format!("xtask: {why}"));
            return ExitCode::from(2);
        }
    };
    let wrong = CHECKS
        .iter()
        .filter(|(name, _)| wanted.is_empty() || wanted.iter().any(|w| w == name))
        .filter(|(name, check)| !passes(name, check(&tree)))
        .count();
    if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints what a check found; true if it found nothing wrong.
fn passes(name: &str, finding: Finding) -> bool {
    let problems =
        finding.unwrap_or_else(|why| vec![Problem::at("", 0, format!("could not look: {why}"))]);
    if problems.is_empty() {
        say(&format!("ok     {name}"));
        return true;
    }
    say(&format!("WRONG  {name}: {} to mend", problems.len()));
    for problem in problems {
        say(&format!("       {problem}"));
    }
    false
}

fn say(line: &str) {
    // A closed pipe (`cargo xtask check | head`) is no reason to fail: the exit code still tells.
    let _closed = writeln!(std::io::stdout(), "{line}");
}
