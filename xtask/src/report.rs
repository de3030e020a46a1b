//! What a check answers with.

use std::fmt;

/// The problems found, or why the check could not look at all (which counts as a problem too).
pub(crate) type Finding = Result<Vec<Problem>, String>;

/// One thing to mend: where it is, and what is wrong together with the way out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    path: String,
    line: usize,
    what: String,
}

impl Problem {
    /// Line 0 stands for the file as a whole, an empty path for the project as a whole.
    pub(crate) fn at(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, what: what.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.path.as_str(), self.line) {
            ("", _) => write!(f, "{}", self.what),
            (path, 0) => write!(f, "{path}: {}", self.what),
            (path, line) => write!(f, "{path}:{line}: {}", self.what),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Problem;

    #[test]
    fn a_problem_names_its_place_as_far_as_it_has_one() {
        assert_eq!(Problem::at("a.rs", 3, "x").to_string(), "a.rs:3: x");
        assert_eq!(Problem::at("a.rs", 0, "x").to_string(), "a.rs: x");
        assert_eq!(Problem::at("", 0, "x").to_string(), "x");
    }
}
