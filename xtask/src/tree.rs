//! The project's files, read once for all checks.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::source::Source;

/// Folders that hold nothing of ours. Hidden ones are skipped as well.
const NOT_OURS: [&str; 2] = ["target", "node_modules"];

pub(crate) struct Tree {
    root: PathBuf,
    /// Every file, relative to the root, with `/` between the parts.
    pub(crate) files: Vec<String>,
    /// The Rust files among them, scanned.
    pub(crate) sources: Vec<Source>,
}

impl Tree {
    /// Reads the workspace that cargo runs this program for.
    pub(crate) fn load() -> Result<Self, String> {
        let root = match std::env::var_os("CARGO_MANIFEST_DIR") {
            Some(own) => Path::new(&own)
                .parent()
                .map(Path::to_path_buf)
                .ok_or("no folder above this crate")?,
            None => std::env::current_dir().map_err(|e| format!("no current folder: {e}"))?,
        };
        let mut files = Vec::new();
        walk(&root, "", &mut files)?;
        files.sort();
        let mut tree = Self { root, files, sources: Vec::new() };
        for path in tree.files.iter().filter(|path| path.ends_with(".rs")) {
            tree.sources.push(Source::scan(path, &tree.read(path)?));
        }
        Ok(tree)
    }

    pub(crate) fn read(&self, path: &str) -> Result<String, String> {
        fs::read_to_string(self.root.join(path)).map_err(|e| format!("{path}: {e}"))
    }

    /// The standard output of a program run at the root; its complaint as the error.
    pub(crate) fn run(&self, program: &str, args: &[&str]) -> Result<String, String> {
        let shown = format!("{program} {}", args.join(" "));
        let output = Command::new(program)
            .args(args)
            .current_dir(&self.root)
            .output()
            .map_err(|e| format!("`{shown}`: {e}"))?;
        if !output.status.success() {
            let complaint = String::from_utf8_lossy(&output.stderr);
            return Err(format!("`{shown}` ended with {}: {}", output.status, complaint.trim()));
        }
        String::from_utf8(output.stdout).map_err(|e| format!("`{shown}` printed no UTF-8: {e}"))
    }
}

fn walk(root: &Path, folder: &str, files: &mut Vec<String>) -> Result<(), String> {
    let place = root.join(folder);
    let entries = fs::read_dir(&place).map_err(|e| format!("{}: {e}", place.display()))?;
    for entry in entries {
        let entry = entry.map_err(|e| format!("{}: {e}", place.display()))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with('.') || NOT_OURS.contains(&name.as_str()) {
            continue;
        }
        let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
        // Links are not followed: a link to a folder above would never end.
        let kind = entry.file_type().map_err(|e| format!("{path}: {e}"))?;
        if kind.is_dir() {
            walk(root, &path, files)?;
        } else if kind.is_file() {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Tree;

    #[test]
    fn the_tree_holds_this_file_and_nothing_built() {
        let tree = Tree::load().expect("the workspace is readable");
        assert!(tree.files.iter().any(|f| f == "xtask/src/tree.rs"));
        assert!(tree.sources.iter().any(|s| s.path == "xtask/src/tree.rs"));
        assert!(!tree.files.iter().any(|f| f.starts_with("target/") || f.contains("/.")));
    }

    #[test]
    fn a_failing_program_is_named_with_its_complaint() {
        let tree = Tree::load().expect("the workspace is readable");
        let why = tree.run("cargo", &["no-such-command"]).expect_err("cargo refuses");
        assert!(why.contains("`cargo no-such-command`"), "{why}");
    }
}
