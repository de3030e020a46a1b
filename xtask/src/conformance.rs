//! Every test that docs/conformance.md calls as a witness exists.
//!
//! A witness stands in a code span that starts with `tests:`, several parted by commas. Each is a test's name, or a
//! path before `::` and the name: a file path (`crates/decide/src/keys/rid.rs::suffix_is_cut`), which must hold the
//! test, or module names (`keys::rid::suffix_is_cut`), which are for the reader. A test is `fn name` in Rust,
//! `def name` in Python, `test('name'` in JavaScript.

use crate::markdown::code_spans;
use crate::report::{Finding, Problem};
use crate::source::words;
use crate::tree::Tree;

const DOC: &str = "docs/conformance.md";

/// A file and the tests (and other functions) it defines.
struct Defined {
    path: String,
    names: Vec<String>,
}

pub(crate) fn check(tree: &Tree) -> Finding {
    let doc = tree.read(DOC)?;
    let mut defined = Vec::new();
    for source in &tree.sources {
        let names = source
            .lines
            .iter()
            .filter_map(|line| word_after(&line.code, "fn").map(str::to_owned))
            .collect();
        defined.push(Defined { path: source.path.clone(), names });
    }
    for path in tree.files.iter().filter(|path| path.starts_with("tests/")) {
        let names: fn(&str) -> Option<&str> = match path.rsplit('.').next() {
            Some("py") => |line| word_after(line, "def"),
            Some("mjs" | "js") => name_of_script_test,
            _ => continue,
        };
        let names = tree.read(path)?.lines().filter_map(names).map(str::to_owned).collect();
        defined.push(Defined { path: path.clone(), names });
    }
    Ok(judge(&doc, &defined))
}

fn judge(doc: &str, defined: &[Defined]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut called = 0;
    for (index, line) in doc.lines().enumerate() {
        let witnesses = code_spans(line)
            .filter_map(|span| span.strip_prefix("tests:"))
            .flat_map(|names| names.split(','));
        for witness in witnesses.map(str::trim).filter(|witness| !witness.is_empty()) {
            called += 1;
            if !exists(witness, defined) {
                let what = format!(
                    "no test `{witness}`: was it renamed? Name the one that proves this row"
                );
                problems.push(Problem::at(DOC, index + 1, what));
            }
        }
    }
    if called == 0 {
        problems.push(Problem::at(
            DOC,
            0,
            "calls no witness: write them as `tests: name, path.rs::name` in backticks",
        ));
    }
    problems
}

fn exists(witness: &str, defined: &[Defined]) -> bool {
    let (place, name) = witness.rsplit_once("::").unwrap_or(("", witness));
    let is_file = place.contains('.');
    defined
        .iter()
        .filter(|file| !is_file || ends_in_path(&file.path, place))
        .any(|file| file.names.iter().any(|n| n == name))
}

/// `sdk/test_chat.py` names `tests/sdk/test_chat.py`: the end of a path, from a folder's start.
fn ends_in_path(path: &str, end: &str) -> bool {
    path.strip_suffix(end).is_some_and(|folder| folder.is_empty() || folder.ends_with('/'))
}

fn word_after<'a>(code: &'a str, keyword: &str) -> Option<&'a str> {
    let mut words = words(code).skip_while(|word| *word != keyword);
    words.next()?;
    words.next()
}

fn name_of_script_test(line: &str) -> Option<&str> {
    let call = line.trim_start();
    let call = call.strip_prefix("await ").unwrap_or(call);
    let call = call.strip_prefix("test(").or_else(|| call.strip_prefix("it("))?;
    let quote = call.chars().next().filter(|c| matches!(c, '\'' | '"' | '`'))?;
    call.split(quote).nth(1)
}

#[cfg(test)]
mod tests {
    use super::{Defined, judge, name_of_script_test, word_after};

    fn found(doc: &str) -> Vec<String> {
        let defined = [
            Defined {
                path: "crates/decide/src/keys/rid.rs".into(),
                names: vec!["suffix_is_cut".into()],
            },
            Defined {
                path: "tests/sdk/node/chat.test.mjs".into(),
                names: vec!["a turn stays".into()],
            },
        ];
        judge(doc, &defined).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn witnesses_are_found_by_name_module_or_file() {
        let doc = "| a | `tests: suffix_is_cut, keys::rid::suffix_is_cut` and `tests: rid.rs::suffix_is_cut` |\n\
                   | b | `tests: node/chat.test.mjs::a turn stays` `other: thing` |";
        assert_eq!(found(doc), Vec::<String>::new());
    }

    #[test]
    fn a_missing_witness_is_named_with_its_row() {
        assert!(
            found("\n`tests: nothing`")[0].starts_with("docs/conformance.md:2: no test `nothing`")
        );
        assert_eq!(found("`tests: scope.rs::suffix_is_cut`").len(), 1);
        assert_eq!(found("`tests: id.rs::suffix_is_cut`").len(), 1);
    }

    #[test]
    fn a_document_without_witnesses_proves_nothing() {
        assert_eq!(found("all is well").len(), 1);
    }

    #[test]
    fn tests_are_read_in_three_languages() {
        assert_eq!(word_after("    pub async fn a_b() {", "fn"), Some("a_b"));
        assert_eq!(word_after("async def test_a(x):", "def"), Some("test_a"));
        assert_eq!(name_of_script_test("  test('a b', async () => {"), Some("a b"));
        assert_eq!(name_of_script_test("  contest('a b')"), None);
    }
}
