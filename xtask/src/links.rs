//! Relative links in Markdown lead somewhere: to a file, a folder, and a heading if they name one.

use crate::markdown::{headings, links};
use crate::report::{Finding, Problem};
use crate::tree::Tree;

pub(crate) fn check(tree: &Tree) -> Finding {
    let mut problems = Vec::new();
    for path in tree.files.iter().filter(|path| is_markdown(path)) {
        let text = tree.read(path)?;
        for (number, target) in links(&text) {
            if let Some(why) = dead(tree, (path, &text), target)? {
                problems.push(Problem::at(
                    path,
                    number,
                    format!("`{target}` leads nowhere: {why}"),
                ));
            }
        }
    }
    Ok(problems)
}

fn is_markdown(path: &str) -> bool {
    path.ends_with(".md")
}

/// Why a link is dead; links to elsewhere are taken for alive.
fn dead(tree: &Tree, (from, text): (&str, &str), target: &str) -> Result<Option<String>, String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return Ok(None);
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let other;
    let text = if file.is_empty() {
        text
    } else {
        let Some(path) = resolved(from, file) else {
            return Ok(Some("it leaves the project".to_owned()));
        };
        if !is_there(tree, &path) {
            return Ok(Some(format!("there is no {path}")));
        }
        if anchor.is_empty() || !is_markdown(&path) {
            return Ok(None);
        }
        other = tree.read(&path)?;
        &other
    };
    let known = anchor.is_empty() || headings(text).any(|heading| slug(heading) == anchor);
    Ok((!known).then(|| format!("no heading makes #{anchor}")))
}

/// The path that a link in a file means, from the root.
fn resolved(from: &str, link: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => _ = parts.pop()?,
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

fn is_there(tree: &Tree, path: &str) -> bool {
    let inside = |file: &String| {
        file.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    // Hidden files are none of the tree's.
    path.is_empty() || tree.files.iter().any(inside) || tree.read(path).is_ok()
}

/// What a heading is called in a link.
fn slug(heading: &str) -> String {
    let letters = heading.chars().flat_map(char::to_lowercase);
    letters
        .filter_map(|c| match c {
            ' ' => Some('-'),
            c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{dead, resolved, slug};
    use crate::tree::Tree;

    #[test]
    fn links_are_read_from_where_they_stand() {
        for (from, link, path) in [
            ("README.md", "docs/flags.md", Some("docs/flags.md")),
            ("docs/a.md", "b.md", Some("docs/b.md")),
            ("docs/a.md", "../README.md", Some("README.md")),
            ("docs/a.md", "./x/../b.md", Some("docs/b.md")),
            ("README.md", "../elsewhere.md", None),
        ] {
            assert_eq!(resolved(from, link).as_deref(), path, "{from} {link}");
        }
        assert_eq!(slug("What `x-y` is, and why"), "what-x-y-is-and-why");
    }

    #[test]
    fn a_dead_link_is_told_from_a_live_one() {
        let tree = Tree::load().expect("the workspace is readable");
        let why = |target| dead(&tree, ("docs/a.md", "# Top\n## Not in this"), target).unwrap();
        for alive in [
            "https://example.com",
            "flags.md",
            "flags.md#placement",
            "#not-in-this",
            "..",
            "../docs",
        ] {
            assert_eq!(why(alive), None, "{alive}");
        }
        for gone in ["flag.md", "#nothing", "flags.md#nothing", "../..", "docs/flags.md"] {
            assert!(why(gone).is_some(), "{gone}");
        }
    }
}
