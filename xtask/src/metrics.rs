//! The metric names in the code are those that docs/metrics.md explains.

use std::collections::BTreeMap;

use crate::markdown::first_cells;
use crate::report::{Finding, Problem};
use crate::source::{Source, words};
use crate::tree::Tree;

const DOC: &str = "docs/metrics.md";
const CODE: &str = "crates/gateway/src/";
/// Our crates, which log targets name.
const NO_METRIC: [&str; 4] = ["smg_decide", "smg_gateway", "smg_lab", "smg_wire"];

pub(crate) fn check(tree: &Tree) -> Finding {
    let sources = tree.sources.iter().filter(|source| source.path.starts_with(CODE));
    Ok(compare(sources, &tree.read(DOC)?))
}

fn compare<'a>(sources: impl Iterator<Item = &'a Source>, doc: &str) -> Vec<Problem> {
    let mut in_code: BTreeMap<&str, (&str, usize)> = BTreeMap::new();
    for source in sources {
        for (name, line) in names_in(source) {
            in_code.entry(name).or_insert((&source.path, line));
        }
    }
    let mut in_doc: BTreeMap<&str, usize> = BTreeMap::new();
    for (number, cell) in first_cells(doc) {
        for name in words(cell).filter(|word| is_metric(word)) {
            in_doc.entry(name).or_insert(number);
        }
    }
    let undocumented = in_code.iter().filter(|(name, _)| !in_doc.contains_key(*name)).map(
        |(name, (path, line))| {
            Problem::at(path, *line, format!("{name} has no row in {DOC}: add one, the name first"))
        },
    );
    let gone =
        in_doc.iter().filter(|(name, _)| !in_code.contains_key(*name)).map(|(name, line)| {
            Problem::at(
                DOC,
                *line,
                format!(
                    "{name} is no string literal under {CODE}: drop the row, or write the name out"
                ),
            )
        });
    undocumented.chain(gone).collect()
}

/// Whole literals only, and none of the tests: those also name the series of a histogram.
fn names_in(source: &Source) -> impl Iterator<Item = (&str, usize)> {
    let tests = source.test_lines();
    source.literals.iter().filter_map(move |literal| {
        let tested = tests.get(literal.line - 1).copied().unwrap_or(false);
        (!tested && is_metric(&literal.text)).then_some((literal.text.as_str(), literal.line))
    })
}

fn is_metric(text: &str) -> bool {
    let lower = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    text.strip_prefix("smg_").is_some_and(|rest| !rest.is_empty() && rest.chars().all(lower))
        && !NO_METRIC.contains(&text)
}

#[cfg(test)]
mod tests {
    use super::compare;
    use crate::source::Source;

    fn found(code: &str, doc: &str) -> Vec<String> {
        let source = Source::scan("crates/gateway/src/telemetry.rs", code);
        compare([&source].into_iter(), doc).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_same_names_are_fine() {
        let code = "a(\"smg_x_total\");\nb(\"smg_gateway\", \"smg_{}\");\n#[cfg(test)]\nmod t { c(\"smg_x_bucket\"); }";
        assert_eq!(found(code, "| `smg_x_total` | counts `smg_y` |"), Vec::<String>::new());
    }

    #[test]
    fn either_side_may_lack_one() {
        let found = found("\na(\"smg_x_total\");", "| `smg_y_total` | |");
        assert_eq!(found.len(), 2);
        assert!(
            found[0].starts_with("crates/gateway/src/telemetry.rs:2: smg_x_total"),
            "{found:?}"
        );
        assert!(found[1].starts_with("docs/metrics.md:1: smg_y_total"), "{found:?}");
    }
}
