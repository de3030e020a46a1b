//! The flags that `smg launch --help` prints are those that docs/flags.md explains.

use std::collections::BTreeMap;

use crate::markdown::{code_spans, first_cells};
use crate::report::{Finding, Problem};
use crate::tree::Tree;

const DOC: &str = "docs/flags.md";
/// clap indents a flag by at most this much, and what it says about the flag by more.
const DEEPEST_FLAG: usize = 6;
/// clap's own, which need no row.
const BUILT_IN: [&str; 2] = ["--help", "--version"];

pub(crate) fn check(tree: &Tree) -> Finding {
    let doc = tree.read(DOC)?;
    // A binary that stands ready saves a build: ./test sets SMG_BIN once it has one.
    let help = match std::env::var("SMG_BIN") {
        Ok(binary) => tree.run(&binary, &["launch", "--help"])?,
        Err(_) => tree.run("cargo", &["run", "--quiet", "-p", "smg", "--", "launch", "--help"])?,
    };
    Ok(compare(&help, &doc))
}

fn compare(help: &str, doc: &str) -> Vec<Problem> {
    let in_help: Vec<&str> =
        help.lines().filter_map(flag_of_help).filter(|flag| !BUILT_IN.contains(flag)).collect();
    let mut in_doc: BTreeMap<&str, usize> = BTreeMap::new();
    let mut problems = Vec::new();
    if in_help.is_empty() {
        problems.push(Problem::at(
            "",
            0,
            "`smg launch --help` lists no flag: is it clap's help that is printed?",
        ));
    }
    for (number, cell) in first_cells(doc) {
        let Some(flag) = code_spans(cell).find_map(flag_at_start) else {
            continue;
        };
        if let Some(first) = in_doc.insert(flag, number) {
            problems.push(Problem::at(
                DOC,
                number,
                format!("{flag} has a row already, on line {first}"),
            ));
        }
        if !in_help.contains(&flag) && !BUILT_IN.contains(&flag) {
            problems.push(Problem::at(
                DOC,
                number,
                format!("{flag} is no flag of `smg launch`: drop the row"),
            ));
        }
    }
    let missing = in_help.iter().filter(|flag| !in_doc.contains_key(*flag));
    problems
        .extend(missing.map(|flag| {
            Problem::at(DOC, 0, format!("{flag} has no row: add one, `{flag}` first"))
        }));
    problems
}

/// The flag that a line of the help introduces: `  -p, --port <PORT>` or `      --port <PORT>  …`.
fn flag_of_help(line: &str) -> Option<&str> {
    let start = line.trim_start();
    if line.len() - start.len() > DEEPEST_FLAG {
        return None;
    }
    let long = match start.split_once(", ") {
        Some((short, long)) if short.len() == 2 && short.starts_with('-') => long,
        _ => start,
    };
    flag_at_start(long)
}

fn flag_at_start(text: &str) -> Option<&str> {
    let name = text.strip_prefix("--")?;
    let length =
        name.find(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).unwrap_or(name.len());
    if length == 0 { None } else { text.get(..length + 2) }
}

#[cfg(test)]
mod tests {
    use super::compare;

    const HELP: &str = "\
Options:
  -p, --port <PORT>      where to listen
      --policy <POLICY>  which target, see
                         --port for nothing [aliases: --way]
      --drain
          --not-a-flag starts this description
  -h, --help             Print help";

    fn found(doc: &str) -> Vec<String> {
        compare(HELP, doc).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_same_flags_are_fine() {
        let doc = "| flag | default |\n|---|---|\n| `--port PORT` | |\n| **`--policy`** | `--drain` |\n| `--drain` | |";
        assert_eq!(found(doc), Vec::<String>::new());
    }

    #[test]
    fn either_side_may_lack_one() {
        let found = found("| `--port` | |\n| `--policy` | |\n| `--gone` | |");
        assert_eq!(found.len(), 2);
        assert!(found[0].starts_with("docs/flags.md:3: --gone"), "{found:?}");
        assert!(found[1].starts_with("docs/flags.md: --drain has no row"), "{found:?}");
    }

    #[test]
    fn a_second_row_is_wrong() {
        let found = found("| `--port` |\n| `--policy` |\n| `--drain` |\n| `--port` |");
        assert_eq!(found, ["docs/flags.md:4: --port has a row already, on line 1"]);
    }

    #[test]
    fn help_without_flags_is_wrong() {
        assert_eq!(compare("", "").len(), 1);
    }
}
