//! Which crate may stand on which. Cargo forbids circles; this forbids shortcuts.

use serde_json::Value;

use crate::report::{Finding, Problem};
use crate::tree::Tree;

/// Each crate of the house and those of ours it may name. `None`: any below it.
const FLOORS: [(&str, Option<&[&str]>); 7] = [
    ("smg-decide", Some(&[])),
    ("smg-wire", Some(&[])),
    ("smg-gateway", Some(&["smg-decide", "smg-wire"])),
    ("smg-lab", Some(&["smg-decide", "smg-wire", "smg-gateway"])),
    ("smg", None),
    ("fuzz", Some(&["smg-decide", "smg-wire"])),
    ("xtask", Some(&[])),
];

pub(crate) fn check(tree: &Tree) -> Finding {
    let text =
        tree.run("cargo", &["metadata", "--format-version", "1", "--no-deps", "--offline"])?;
    judge(&text)
}

fn judge(metadata: &str) -> Finding {
    let metadata: Value =
        serde_json::from_str(metadata).map_err(|e| format!("cargo metadata: {e}"))?;
    let packages = list(&metadata, "packages");
    let mut ours: Vec<&str> = packages.iter().filter_map(|package| text(package, "name")).collect();
    // The tool that checks the house is no part of it, so nothing may stand on it either.
    ours.sort_unstable();
    let mut problems = Vec::new();
    for package in packages {
        let name = text(package, "name").unwrap_or_default();
        let place = format!("the Cargo.toml of {name}");
        let Some(allowed) =
            FLOORS.iter().find_map(|(own, allowed)| (*own == name).then_some(*allowed))
        else {
            problems.push(Problem::at(
                &place,
                0,
                "stands on no floor: give it one in xtask/src/floors.rs",
            ));
            continue;
        };
        let counts = |dependency: &&Value| !is_fuzzing(dependency);
        let below = list(package, "dependencies").iter().filter(counts);
        let below = below.filter_map(|dependency| text(dependency, "name"));
        for other in below.filter(|other| ours.binary_search(other).is_ok()) {
            if other == "xtask" || allowed.is_some_and(|allowed| !allowed.contains(&other)) {
                problems.push(Problem::at(
                    &place,
                    0,
                    format!("{name} may not stand on {other}: {}", advice(allowed)),
                ));
            }
        }
    }
    Ok(problems)
}

/// Whether it is what tests of hostile bytes run on, which they may on every floor.
fn is_fuzzing(dependency: &Value) -> bool {
    text(dependency, "name") == Some("fuzz") && text(dependency, "kind") == Some("dev")
}

fn advice(allowed: Option<&[&str]>) -> String {
    match allowed {
        Some([]) => {
            "it stands on none of ours; hand the value in, or move the code down".to_owned()
        }
        Some(names) => format!("only on {}", names.join(", ")),
        None => "nothing stands on the checks".to_owned(),
    }
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value.get(field).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn text<'a>(value: &'a Value, field: &str) -> Option<&'a str> {
    value.get(field)?.as_str()
}

#[cfg(test)]
mod tests {
    use super::judge;

    /// Metadata of packages given as (name, names it depends on).
    fn found(packages: &[(&str, &[&str])]) -> Vec<String> {
        let packages: Vec<_> = packages
            .iter()
            .map(|(name, on)| {
                let on: Vec<_> = on.iter().map(|d| serde_json::json!({ "name": d })).collect();
                serde_json::json!({ "name": name, "dependencies": on })
            })
            .collect();
        let text = serde_json::json!({ "packages": packages }).to_string();
        judge(&text).expect("valid metadata").iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_house_as_designed_stands() {
        let found = found(&[
            ("smg-decide", &["rand"]),
            ("smg-wire", &["bytes"]),
            ("smg-gateway", &["smg-decide", "smg-wire", "tokio"]),
            ("smg-lab", &["smg-gateway", "smg-wire"]),
            ("smg", &["smg-gateway", "smg-lab"]),
            ("xtask", &["serde_json"]),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn tests_of_any_floor_may_fuzz_and_nothing_else_may() {
        let on = |kind| {
            let on = serde_json::json!([{ "name": "fuzz", "kind": kind }]);
            let packages =
                serde_json::json!([{ "name": "smg-wire", "dependencies": on }, { "name": "fuzz" }]);
            judge(&serde_json::json!({ "packages": packages }).to_string()).expect("valid metadata")
        };
        assert_eq!((on(Some("dev")).len(), on(None).len()), (0, 1));
    }

    #[test]
    fn a_shortcut_is_named_with_both_ends() {
        let found = found(&[
            ("smg-decide", &["smg-wire"]),
            ("smg-wire", &[]),
            ("smg", &["xtask"]),
            ("xtask", &[]),
        ]);
        assert_eq!(found.len(), 2);
        assert!(found[0].contains("smg-decide may not stand on smg-wire"), "{found:?}");
        assert!(found[1].contains("smg may not stand on xtask"), "{found:?}");
    }

    #[test]
    fn a_crate_without_a_floor_is_wrong() {
        assert_eq!(found(&[("smg-attic", &[])]).len(), 1);
    }

    #[test]
    fn a_name_that_is_not_ours_is_not_our_business() {
        assert!(found(&[("smg-decide", &["smg-else"])]).is_empty());
    }
}
