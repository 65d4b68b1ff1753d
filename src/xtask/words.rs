//! Mistakes that documentation must not contain: a field that exists and is marked *later*, and a
//! `kubectl delete` that may hit another operator's objects. Crossplane and Flux have Providers,
//! Tekton has Tasks, the Cluster API has Machines: kubectl takes a bare plural for whichever group
//! it finds first.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde_json::Value;
use skyward_api::crd;
use skyward_providers::registry;

/// The page that marks missing fields.
const PYTHON: &str = "docs/from-the-python-library.md";
/// Files that users read or copy from.
const READ: [&str; 7] = [
    "README.md",
    "Makefile",
    "docs",
    "charts",
    "config",
    "hack",
    "tests/demo",
];
const KINDS: [&str; 6] = ["provider", "offer", "pool", "machine", "task", "crontask"];

/// Each such sentence, with its place.
pub(crate) fn problems(root: &Path) -> Result<Vec<String>> {
    let page = fs::read_to_string(root.join(PYTHON)).with_context(|| format!("reading {PYTHON}"))?;
    let mut problems: Vec<String> = too_late(&page, &fields()?)
        .map(|name| format!("{PYTHON}: {name} is marked *later*, and is a field of the custom resources"))
        .collect();
    let mut places: Vec<PathBuf> = READ.iter().map(|name| root.join(name)).collect();
    while let Some(place) = places.pop() {
        if place.is_dir() {
            for entry in fs::read_dir(&place).with_context(|| format!("listing {}", place.display()))? {
                places.push(entry?.path());
            }
            continue;
        }
        // Binary files hold no commands.
        let Ok(text) = fs::read_to_string(&place) else {
            continue;
        };
        let name = place.strip_prefix(root).unwrap_or(&place).display();
        problems.extend(ambiguous(&text).map(|(line, word)| {
            format!("{name}:{line}: `kubectl delete {word}` may delete another operator's: write {word}.skyward.dev")
        }));
    }
    problems.sort();
    Ok(problems)
}

/// Names of all fields of a spec.
fn fields() -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for definition in crd::all(&registry::account_kinds()) {
        let versions = serde_json::to_value(&definition.spec.versions)?;
        if let Some(spec) = versions.pointer("/0/schema/openAPIV3Schema/properties/spec") {
            collect(spec, &mut names);
        }
    }
    Ok(names)
}

fn collect(schema: &Value, names: &mut BTreeSet<String>) {
    if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
        for (name, property) in properties {
            names.insert(name.to_ascii_lowercase());
            collect(property, names);
        }
    }
    if let Some(items) = schema.get("items") {
        collect(items, names);
    }
}

/// The parameters in rows marked *later* that have a field: `max_hourly_cost` has
/// `maxHourlyCost`, and of `Worker(buffer)` it is `buffer` that counts.
fn too_late<'a>(page: &'a str, fields: &BTreeSet<String>) -> impl Iterator<Item = &'a str> {
    page.lines()
        .filter_map(|line| line.strip_prefix('|')?.split_once('|'))
        .filter(|(_, here)| here.trim_start().starts_with("*later*"))
        .flat_map(|(theirs, _)| theirs.split('`').skip(1).step_by(2))
        .flat_map(|code| {
            let arguments = code.split_once('(').map(|(_, rest)| rest.trim_end_matches(')'));
            arguments.unwrap_or(code).split(',').map(str::trim)
        })
        .filter(move |name| fields.contains(&name.replace('_', "").to_ascii_lowercase()))
}

/// Lines with a `kubectl delete` of a bare name of ours, and the name.
fn ambiguous(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().flat_map(|(at, line)| {
        let commands = line.split(['|', ';', '&', '`']);
        let deleting = commands.filter_map(|command| {
            let (before, after) = command.split_once(" delete ")?;
            // The scripts' own name for kubectl with its kubeconfig is k.
            before
                .split_whitespace()
                .any(|word| word.ends_with("kubectl") || word == "k")
                .then_some(after)
        });
        deleting
            .flat_map(|words| words.split_whitespace())
            // Braces: {pools,tasks}.skyward.dev
            .filter(|word| !word.starts_with('{'))
            .flat_map(|word| word.split(','))
            .filter_map(|word| word.split('/').next())
            .filter(|word| KINDS.contains(&word.strip_suffix('s').unwrap_or(word)))
            .map(move |word| (at + 1, word))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_plural_in_a_delete_is_found() {
        let text = "ok\n  kubectl delete tasks.skyward.dev,pools --all -A && kubectl delete providers --all\n\
            # k -n a delete machine/m\nkubectl delete -n a task t\n";
        let found: Vec<_> = ambiguous(text).collect();
        assert_eq!(
            found,
            [(2, "pools"), (2, "providers"), (3, "machine"), (4, "task")]
        );
        for fine in [
            "kubectl delete tasks.skyward.dev,pools.skyward.dev --all",
            "kubectl delete crd {providers,offers}.skyward.dev",
            "kubectl delete namespace tour",
            "delete the Pools, or pools",
            "kubectl get pools; delete tasks by hand",
        ] {
            assert_eq!(ambiguous(fine).next(), None, "{fine}");
        }
    }

    #[test]
    fn a_field_that_is_there_is_not_later() {
        let fields = fields().unwrap();
        let page = "| `max_hourly_cost` (none), `nothing` | *later* |\n\
            | `Image(pip_indexes, x)` | *later* (`y`) |\n| `region` | `spec.region`; more *later* |\n";
        let found: Vec<_> = too_late(page, &fields).collect();
        assert_eq!(found, ["max_hourly_cost", "pip_indexes"]);
    }

    #[test]
    fn our_documentation_says_neither() {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
        assert_eq!(problems(&root).unwrap(), Vec::<String>::new());
    }
}
