//! A name says what a thing is. Words that fit anything say nothing, and `mod.rs` hides a name in a folder.

use crate::report::{Finding, Problem};
use crate::source::{Source, words};
use crate::tree::Tree;

const EMPTY_WORDS: [&str; 5] = ["manager", "helper", "util", "common", "service"];
const DEFINES_A_TYPE: [&str; 5] = ["struct", "enum", "trait", "type", "union"];

pub(crate) fn check(tree: &Tree) -> Finding {
    Ok(tree
        .sources
        .iter()
        .flat_map(|source| path_problems(source).chain(type_problems(source)))
        .collect())
}

fn path_problems(source: &Source) -> impl Iterator<Item = Problem> {
    let path = source.path.as_str();
    let hidden = (path.rsplit('/').next() == Some("mod.rs")).then(|| {
        Problem::at(
            path,
            0,
            "no mod.rs: name the file after its module, beside the module's folder",
        )
    });
    let parts = path.trim_end_matches(".rs").split(['/', '_', '-', '.']);
    let empty = parts.filter(|part| is_empty_word(part)).map(move |part| {
        Problem::at(path, 0, format!("\"{part}\" in a path says nothing: name what the file holds"))
    });
    hidden.into_iter().chain(empty)
}

fn type_problems(source: &Source) -> impl Iterator<Item = Problem> {
    source.numbered().filter_map(|(number, line)| {
        let name = defined_type(&line.code)?;
        let empty = camel_words(name).into_iter().find(|word| is_empty_word(word))?;
        let what = format!("\"{empty}\" in `{name}` says nothing: name what the type is");
        Some(Problem::at(&source.path, number, what))
    })
}

fn defined_type(code: &str) -> Option<&str> {
    let mut words = words(code).skip_while(|word| !DEFINES_A_TYPE.contains(word));
    words.next()?;
    words.next()
}

/// `DrainManager` is Drain, Manager; an abbreviation in capitals is cut into letters, which no rule asks about.
fn camel_words(name: &str) -> Vec<&str> {
    let starts =
        name.char_indices().filter(|&(at, c)| at > 0 && c.is_uppercase()).map(|(at, _)| at);
    let mut from = 0;
    let mut found = Vec::new();
    for to in starts.chain([name.len()]) {
        found.extend(name.get(from..to));
        from = to;
    }
    found
}

/// One of the words, in any case, alone or in the plural.
fn is_empty_word(word: &str) -> bool {
    let word = word.to_ascii_lowercase();
    EMPTY_WORDS
        .iter()
        .any(|empty| word.strip_prefix(empty).is_some_and(|rest| matches!(rest, "" | "s")))
}

#[cfg(test)]
mod tests {
    use super::{camel_words, path_problems, type_problems};
    use crate::source::Source;

    fn types(code: &str) -> usize {
        type_problems(&Source::scan("a.rs", code)).count()
    }

    fn paths(path: &str) -> usize {
        path_problems(&Source::scan(path, "")).count()
    }

    #[test]
    fn empty_words_in_type_names_are_found_as_whole_words() {
        assert_eq!(types("pub(crate) struct DrainManager<'a> {"), 1);
        assert_eq!(types("enum UtilKind {}\ntrait Services {}"), 2);
        assert_eq!(types("struct Utilisation; struct Commonwealth;"), 0);
        assert_eq!(types("impl Service for Gateway {} // struct Helper"), 0);
    }

    #[test]
    fn empty_words_in_paths_are_found_as_whole_words() {
        assert_eq!(paths("crates/a/src/json_utils.rs"), 1);
        assert_eq!(paths("crates/a/tests/common/start.rs"), 1);
        assert_eq!(paths("crates/a/src/utilisation.rs"), 0);
        assert_eq!(paths("crates/a/src/keys/mod.rs"), 1);
    }

    #[test]
    fn a_name_is_cut_before_each_capital() {
        assert_eq!(camel_words("PinTable"), ["Pin", "Table"]);
        assert_eq!(camel_words("pin"), ["pin"]);
    }
}
