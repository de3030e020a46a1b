//! Laws of the index under any order of events.

use super::chain::{Chain, Ruler};
use super::index::Index;
use super::*;
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Step {
    Insert(String, u32),
    Undone(String, u32),
    Look(String),
    Forget(u32),
    Sweep,
}

/// Few letters and lengths around the blocks of 32, pieces of 1.
fn prompt() -> impl Strategy<Value = String> {
    prop::collection::vec(prop_oneof!["a", "b", "a{31}", "a{32}", "b{40}", "a{7}"], 0..6)
        .prop_map(|parts| parts.concat())
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (prompt(), 0..4_u32).prop_map(|(prompt, worker)| Step::Insert(prompt, worker)),
        3 => (prompt(), 0..4_u32).prop_map(|(prompt, worker)| Step::Undone(prompt, worker)),
        5 => prompt().prop_map(Step::Look),
        1 => (0..4_u32).prop_map(Step::Forget),
        1 => Just(Step::Sweep),
    ]
}

fn looked(index: &Index, text: &str) -> (Chain, Path, Shared) {
    let prompt = [text];
    let chain = index.chain(Prompt::Text(&prompt));
    let path = index.look(Prompt::Text(&prompt), &chain);
    let shared = index.shared(&chain, &path);
    (chain, path, shared)
}

fn insert(index: &Index, text: &str, worker: u32, age: u32) -> (Chain, Inserted) {
    let (chain, path, _) = looked(index, text);
    let inserted = index.insert(&chain, &path, WorkerId(worker), age);
    (chain, inserted)
}

/// Nobody is said to hold what it was not given.
fn honest(shared: &Shared, text: &str, given: &[(String, u32)]) {
    for (units, holders) in shared {
        for holder in holders {
            let prefix = &text[..*units];
            let really = given.iter().any(|(one, to)| *to == holder.0 && one.starts_with(prefix));
            assert!(really, "{holder:?} was never given {prefix:?}");
        }
    }
}

fn common(one: &str, other: &str) -> usize {
    one.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count()
}

proptest! {
    /// With room for all: honest, exact at ends, undo restores, forget leaves nothing.
    #[test]
    fn with_room(steps in prop::collection::vec(step(), 0..60), block in prop::sample::select(vec![32_usize, 64])) {
        let index = Index::new(Ruler::text(block), 5, 1 << 30);
        let mut given: Vec<(String, u32)> = Vec::new();
        for step in steps {
            match step {
                Step::Insert(text, worker) => {
                    insert(&index, &text, worker, 0);
                    given.push((text, worker));
                }
                Step::Undone(text, worker) => {
                    let before = (index.size(), index.links(), looked(&index, &text).2);
                    let note = looked(&index, &text).1.view.map(|view| view.note.private());
                    let (chain, inserted) = insert(&index, &text, worker, 0);
                    index.remove(&chain, WorkerId(worker), inserted, 0);
                    prop_assert_eq!((index.size(), index.links(), looked(&index, &text).2), before);
                    let after = looked(&index, &text).1.view.map(|view| view.note.private());
                    prop_assert_eq!(after, note);
                }
                Step::Look(text) => {
                    let (_, path, shared) = looked(&index, &text);
                    honest(&shared, &text, &given);
                    // A prompt given before is found by its end, or by its blocks once it went on
                    // beyond them, and never more than is common.
                    for (one, _) in given.iter().filter(|(one, _)| text.starts_with(one.as_str())) {
                        let end = one.len() - one.len() % block;
                        let known = if end > 0 { end } else { one.len() };
                        prop_assert!(path.matched >= known);
                    }
                    let most = given.iter().map(|(one, _)| common(one, &text)).max();
                    prop_assert!(path.matched <= most.unwrap_or(0));
                }
                Step::Forget(worker) => {
                    index.forget(WorkerId(worker));
                    given.retain(|(_, to)| *to != worker);
                    let seen = given.iter().flat_map(|(text, _)| looked(&index, text).2);
                    for (_, holders) in seen {
                        prop_assert!(!holders.contains(&WorkerId(worker)));
                    }
                }
                Step::Sweep => index.sweep(),
            }
        }
        for worker in 0..4 {
            index.forget(WorkerId(worker));
        }
        prop_assert_eq!((index.size(), index.links()), (0, 0));
    }

    /// Without room: still honest, never far beyond the bound, within it after a sweep.
    #[test]
    fn without_room(steps in prop::collection::vec(step(), 0..80), bound in 1..400_usize) {
        let index = Index::new(Ruler::text(32), 5, bound);
        let mut given: Vec<(String, u32)> = Vec::new();
        for (age, step) in steps.into_iter().enumerate() {
            match step {
                Step::Insert(text, worker) | Step::Undone(text, worker) => {
                    insert(&index, &text, worker, age as u32);
                    given.push((text, worker));
                    prop_assert!(index.size() <= bound + bound / 4 + 32);
                }
                Step::Look(text) => honest(&looked(&index, &text).2, &text, &given),
                Step::Forget(worker) => {
                    index.forget(WorkerId(worker));
                    given.retain(|(_, to)| *to != worker);
                }
                Step::Sweep => {
                    index.sweep();
                    prop_assert!(index.size() <= bound);
                }
            }
        }
    }

    /// Of two prompts the one used later stays.
    #[test]
    fn the_least_recently_used_go_first(mut ages in prop::collection::vec(0..1000_u32, 2..30)) {
        ages.sort_unstable();
        let index = Index::new(Ruler::text(32), 5, ages.len() * 60 / 2);
        let text = |at: usize| format!("{at:03}").repeat(20);
        for (at, age) in ages.iter().enumerate() {
            insert(&index, &text(at), 0, *age);
        }
        index.sweep();
        let known: Vec<_> = (0..ages.len()).map(|at| looked(&index, &text(at)).1.matched).collect();
        for at in 1..ages.len() {
            prop_assert!(ages[at - 1] == ages[at] || known[at - 1] == 0 || known[at] == 60);
        }
    }
}
