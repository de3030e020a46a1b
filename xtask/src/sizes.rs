//! A file holds one concept, and a concept fits in 500 lines of code.

use crate::report::{Finding, Problem};
use crate::source::Source;
use crate::tree::Tree;

const LIMIT: usize = 500;

pub(crate) fn check(tree: &Tree) -> Finding {
    Ok(tree.sources.iter().filter(|source| is_ours(&source.path)).filter_map(too_long).collect())
}

fn is_ours(path: &str) -> bool {
    let mut parts = path.split('/');
    let top = parts.next();
    matches!(top, Some("crates" | "xtask")) && parts.any(|part| part == "src")
}

fn too_long(source: &Source) -> Option<Problem> {
    let lines = code_lines(source);
    let advice = "move the part that has a name of its own into a file of that name";
    (lines > LIMIT).then(|| {
        Problem::at(&source.path, 0, format!("{lines} lines of code, {LIMIT} at most: {advice}"))
    })
}

/// Blank lines and lines of comment alone do not count; tests do.
fn code_lines(source: &Source) -> usize {
    source.lines.iter().filter(|line| !line.code.trim().is_empty()).count()
}

#[cfg(test)]
mod tests {
    use super::{LIMIT, is_ours, too_long};
    use crate::source::Source;

    #[test]
    fn only_code_counts() {
        let lines = "let a = 1; // why\n// a comment\n\n".repeat(LIMIT);
        assert!(too_long(&Source::scan("a.rs", &lines)).is_none());
        assert!(too_long(&Source::scan("a.rs", &format!("{lines}b();"))).is_some());
    }

    #[test]
    fn sources_of_the_crates_and_of_this_one_are_ours() {
        assert!(is_ours("crates/wire/src/sse.rs") && is_ours("crates/adapters/k8s/src/lib.rs"));
        assert!(is_ours("xtask/src/main.rs"));
        assert!(!is_ours("crates/wire/tests/sse.rs") && !is_ours("fuzz/src/a.rs"));
    }
}
