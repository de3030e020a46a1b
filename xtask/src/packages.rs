//! The default build stays small enough for one person to know what is in it.

use std::collections::BTreeSet;

use crate::report::{Finding, Problem};
use crate::tree::Tree;

const LIMIT: usize = 250;

pub(crate) fn check(tree: &Tree) -> Finding {
    let args = ["tree", "--locked", "-e", "normal,build", "-p", "smg", "--prefix", "none"];
    Ok(judge(&tree.run("cargo", &args)?))
}

fn judge(listing: &str) -> Vec<Problem> {
    let count = count(listing);
    let advice =
        "see `cargo tree -p smg`; put a seldom-used one behind a feature, or write the ten lines";
    let over = (count >= LIMIT).then(|| {
        Problem::at(
            "Cargo.lock",
            0,
            format!("smg builds {count} packages, {LIMIT} is too many: {advice}"),
        )
    });
    over.into_iter().collect()
}

/// `cargo tree` marks a package that it printed before with `(*)`; name and version tell packages apart.
fn count(listing: &str) -> usize {
    let package = |line: &str| line.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
    listing
        .lines()
        .map(package)
        .filter(|package| !package.is_empty())
        .collect::<BTreeSet<_>>()
        .len()
}

#[cfg(test)]
mod tests {
    use super::{LIMIT, count, judge};

    #[test]
    fn a_package_counts_once_for_each_version() {
        assert_eq!(
            count("smg v0.1.0 (/a)\nsyn v2.0.1\nsyn v2.0.1 (*)\nsyn v3.0.0 (proc-macro)\n\n"),
            3
        );
    }

    #[test]
    fn the_limit_itself_is_too_many() {
        let listing = |n: usize| (0..n).map(|i| format!("p{i} v1.0.0\n")).collect::<String>();
        assert!(judge(&listing(LIMIT - 1)).is_empty());
        assert_eq!(judge(&listing(LIMIT)).len(), 1);
    }
}
