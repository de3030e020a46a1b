//! Nothing half-done is left lying: no marks, no stubs, no ignored tests, no tests that wait for the clock, and no
//! task that the drain does not know of.

use crate::report::{Finding, Problem};
use crate::source::{Line, Source, has_word, words};
use crate::tree::Tree;

const MARKS: [&str; 3] = ["TODO", "FIXME", "XXX"];
const STUBS: [&str; 2] = ["todo!", "unimplemented!"];
/// The comment above a sleep in a test that says why no event can be awaited instead.
const EXCUSE: &str = "sleeps because";
/// The one file of the gateway that starts tasks.
const TASKS: &str = "crates/gateway/src/tasks.rs";
/// Other text of ours in which a mark would be left. Prose may speak of marks.
const TEXT: [&str; 5] = [".py", ".mjs", ".js", ".sh", ".toml"];

pub(crate) fn check(tree: &Tree) -> Finding {
    let mut problems: Vec<Problem> = tree.sources.iter().flat_map(in_source).collect();
    for path in tree
        .files
        .iter()
        .filter(|path| *path == "test" || TEXT.iter().any(|end| path.ends_with(end)))
    {
        let text = tree.read(path)?;
        let marks =
            text.lines().enumerate().filter_map(|(index, line)| Some((index + 1, mark(line)?)));
        problems.extend(marks.map(|(number, what)| Problem::at(path, number, what)));
    }
    Ok(problems)
}

fn in_source(source: &Source) -> Vec<Problem> {
    let tests = source.test_lines();
    let mut problems = Vec::new();
    let mut excused = false;
    for ((number, line), tested) in source.numbered().zip(tests) {
        let found = [
            mark(&line.comment).or_else(|| mark(&line.code)),
            stub(&line.code),
            sleep(&line.code).filter(|_| tested && !excused && !line.comment.contains(EXCUSE)),
            loose_task(&line.code).filter(|_| !tested && is_bound(&source.path)),
        ];
        problems.extend(
            found.into_iter().flatten().map(|what| Problem::at(&source.path, number, what)),
        );
        excused = line.comment.contains(EXCUSE) || (excused && is_comment(line));
    }
    problems
}

fn is_comment(line: &Line) -> bool {
    line.code.trim().is_empty() && !line.comment.is_empty()
}

fn is_bound(path: &str) -> bool {
    path.starts_with("crates/gateway/src/") && path != TASKS
}

fn mark(text: &str) -> Option<String> {
    let mark = words(text).find(|word| MARKS.contains(word))?;
    Some(format!("{mark} is left: finish it, or refuse the input clearly and write an issue"))
}

fn stub(code: &str) -> Option<String> {
    if let Some(stub) = STUBS.iter().find(|stub| calls(code, stub)) {
        return Some(format!("{stub} is left: finish it, or answer with an error"));
    }
    let ignored = code.contains("#[") && has_word(code, "ignore");
    ignored.then(|| "an ignored test proves nothing: mend it or delete it".to_owned())
}

fn sleep(code: &str) -> Option<String> {
    let waits =
        code.contains("thread::sleep") || code.contains("time::sleep") || calls(code, "sleep(");
    waits.then(|| {
        format!("a test waits for the clock: await the event or pause the time, or say `// {EXCUSE} …` on the line above")
    })
}

fn loose_task(code: &str) -> Option<String> {
    let spawns = ["tokio::spawn", "task::spawn"].iter().any(|call| code.contains(call));
    spawns.then(|| format!("a task that the drain does not know of: start it through {TASKS}"))
}

/// Does `call` stand in the code as a free function or macro: not as the end of a longer name, a path or a method?
fn calls(code: &str, call: &str) -> bool {
    code.match_indices(call).any(|(at, _)| {
        let before = code.get(..at).unwrap_or_default();
        let joined =
            before.ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | ':'));
        !joined && !before.trim_end().ends_with("fn")
    })
}

#[cfg(test)]
mod tests {
    use super::in_source;
    use crate::source::Source;

    fn found(path: &str, code: &str) -> Vec<String> {
        in_source(&Source::scan(path, code)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn marks_and_stubs_are_found_in_comments_and_code_but_not_in_strings() {
        assert_eq!(
            found(
                "a.rs",
                "// TODO: more\nfn f() { todo!() }\n#[ignore]\nlet _ = \"TODO todo!()\";"
            )
            .len(),
            3
        );
        assert_eq!(found("a.rs", "// todo list, mastodon\nlet ignore = 1;"), Vec::<String>::new());
        assert_eq!(found("a.rs", "#[ignore = \"slow\"]").len(), 1);
    }

    #[test]
    fn only_tests_may_not_sleep() {
        let sleeps = "tokio::time::sleep(wait).await;";
        assert!(found("crates/a/src/a.rs", sleeps).is_empty());
        assert_eq!(found("crates/a/tests/a.rs", sleeps).len(), 1);
        assert_eq!(
            found("crates/a/tests/a.rs", "std::thread::sleep(x);\n  sleep(y).await;").len(),
            2
        );
        assert_eq!(
            found("crates/a/src/a.rs", &format!("#[cfg(test)]\nmod t {{\n{sleeps}\n}}")).len(),
            1
        );
        assert!(
            found("crates/a/tests/a.rs", "gateway.sleep(x);\nfn sleep(x: u8) {}\nsleep_until(x);")
                .is_empty()
        );
    }

    #[test]
    fn a_reason_above_excuses_one_sleep() {
        let code =
            "// sleeps because the kernel\n// tells nobody\nthread::sleep(x);\nthread::sleep(y);";
        assert_eq!(found("crates/a/tests/a.rs", code).len(), 1);
    }

    #[test]
    fn the_gateway_starts_tasks_in_one_file() {
        let code = "tokio::spawn(f);";
        assert_eq!(found("crates/gateway/src/relay.rs", code).len(), 1);
        assert!(found("crates/gateway/src/tasks.rs", code).is_empty());
        assert!(found("crates/lab/src/engine.rs", code).is_empty());
        assert!(found("crates/gateway/tests/relay.rs", code).is_empty());
    }
}
