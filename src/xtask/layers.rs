//! Which crate may depend on which, checked from `cargo metadata`.
//!
//! The compiler forbids what a crate's Cargo.toml does not list; this forbids adding
//! the line. A change here is a change of the architecture: say why in
//! `docs/decisions/`.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::Command,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::pictures::Arrows;

/// Our crates, each with the crates of ours that it may use outside its tests.
const OURS: &[(&str, &[&str])] = &[
    (
        "skyward",
        &[
            "skyward-api",
            "skyward-controller",
            "skyward-core",
            "skyward-providers",
            "skyward-remote",
            "skyward-store",
            "skyward-subresources",
        ],
    ),
    ("skyward-agent", &["skyward-bundle"]),
    ("skyward-api", &["skyward-core"]),
    ("skyward-bundle", &[]),
    (
        "skyward-cli",
        &["skyward-api", "skyward-bundle", "skyward-subresources"],
    ),
    (
        "skyward-controller",
        &[
            "skyward-agent",
            "skyward-api",
            "skyward-bundle",
            "skyward-core",
            "skyward-planner",
            "skyward-remote",
            "skyward-store",
            "skyward-subresources",
        ],
    ),
    ("skyward-core", &[]),
    ("skyward-planner", &["skyward-api", "skyward-core"]),
    ("skyward-provider-aws", &["skyward-core", "skyward-provider-kit"]),
    ("skyward-provider-kit", &["skyward-api", "skyward-core"]),
    (
        "skyward-providers",
        &[
            "skyward-api",
            "skyward-core",
            "skyward-provider-aws",
            "skyward-provider-kit",
        ],
    ),
    ("skyward-remote", &["skyward-agent", "skyward-core"]),
    ("skyward-store", &[]),
    (
        "skyward-subresources",
        &["skyward-agent", "skyward-api", "skyward-bundle"],
    ),
    ("xtask", &["skyward-api", "skyward-providers"]),
];

/// Crates of others that are allowed in some of ours only; deny.toml has those that are allowed nowhere.
const RESTRICTED: &[(&str, &[&str])] = &[
    (
        "kube",
        &[
            "skyward",
            "skyward-api",
            "skyward-controller",
            "skyward-providers",
            "skyward-subresources",
            "skyward-cli",
        ],
    ),
    (
        "k8s-openapi",
        &[
            "skyward",
            "skyward-api",
            "skyward-controller",
            "skyward-planner",
            "skyward-providers",
            "skyward-subresources",
            "xtask",
        ],
    ),
    ("russh", &["skyward-remote"]),
    ("object_store", &["skyward-store"]),
];

/// Our crates that reach nothing outside of the process.
const PURE: &[&str] = &["skyward-api", "skyward-bundle", "skyward-core", "skyward-planner"];

/// Crates of others that reach something outside, or run code that does: none of them may be in the
/// whole tree of dependencies of a crate in [`PURE`].
const REACHING: &[&str] = &[
    "async-std",
    "aws-config",
    "futures-executor",
    "h2",
    "hyper",
    "kube-client",
    "kube-runtime",
    "mio",
    "object_store",
    "reqwest",
    "russh",
    "smol",
    "socket2",
    "tokio",
    "tonic",
    "tower",
    "tracing",
    "ureq",
];

/// Crates under `tests/`: they may use everything.
const TESTS: &[&str] = &[
    "skyward-testkit",
    "skyward-apisim",
    "skyward-cloudsim",
    "skyward-conformance",
    "skyward-control-plane-tests",
    "skyward-e2e",
    "skyward-fuzz",
    "skyward-simulation",
    "skyward-thirds",
    "skyward-bench",
];

/// Each broken rule.
pub(crate) fn problems(root: &Path) -> Result<Vec<String>> {
    let metadata = metadata(root)?;
    let mut problems = broken(&metadata);
    problems.extend(unused(&metadata));
    for name in PURE {
        problems.extend(reaching(name, &tree(root, name)?));
    }
    Ok(problems)
}

/// Our crates by their folders in `src/`, each with those that it depends on outside its tests.
pub(crate) fn arrows(root: &Path) -> Result<Arrows> {
    let metadata = metadata(root)?;
    let sources = format!("{}/src/", metadata["workspace_root"].as_str().unwrap_or_default());
    let folders: BTreeMap<&str, &str> = packages(&metadata)
        .map(|(name, package)| {
            let manifest = package["manifest_path"].as_str().unwrap_or_default();
            let folder = manifest
                .strip_prefix(&sources)
                .and_then(|path| path.strip_suffix("/Cargo.toml"));
            // The operator's own crate lies in the root of the checkout.
            (name, folder.unwrap_or("main.rs"))
        })
        .collect();
    let named = |name: &str| folders.get(name).map(|folder| (*folder).to_owned());
    Ok(packages(&metadata)
        .filter_map(|(name, package)| {
            let uses = dependencies(package).filter_map(|dependency| named(dependency["name"].as_str()?));
            Some((named(name)?, uses.collect()))
        })
        .collect())
}

/// What cargo says of our crates.
fn metadata(root: &Path) -> Result<Value> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let answer = Command::new(cargo)
        .args(["metadata", "--offline", "--no-deps", "--format-version", "1"])
        .current_dir(root)
        .output()
        .context("running cargo metadata")?;
    ensure!(
        answer.status.success(),
        "cargo metadata failed: {}",
        String::from_utf8_lossy(&answer.stderr)
    );
    serde_json::from_slice(&answer.stdout).context("reading cargo's metadata")
}

/// Our crates that are not for tests only, by name.
fn packages(metadata: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    packages
        .filter_map(|package| Some((package["name"].as_str()?, package)))
        .filter(|(name, _)| !TESTS.contains(name))
}

/// What a crate depends on outside its tests.
fn dependencies(package: &Value) -> impl Iterator<Item = &Value> {
    let dependencies = package["dependencies"].as_array().into_iter().flatten();
    dependencies.filter(|dependency| dependency["kind"] != "dev")
}

/// What a crate may use and does not: the rule is to say what is, as the picture in ARCHITECTURE.md does.
fn unused(metadata: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    for (name, package) in packages(metadata) {
        let used: BTreeSet<_> = dependencies(package)
            .filter_map(|dependency| dependency["name"].as_str())
            .collect();
        let allowed = OURS
            .iter()
            .filter(|(ours, _)| *ours == name)
            .flat_map(|(_, allowed)| *allowed);
        let others = RESTRICTED
            .iter()
            .filter(|(_, users)| users.contains(&name))
            .map(|(restricted, _)| restricted);
        problems.extend(
            allowed
                .chain(others)
                .filter(|allowed| !used.contains(*allowed))
                .map(|allowed| {
                    format!(
                        "{name} may depend on {allowed} and does not: take that out of src/xtask/layers.rs"
                    )
                }),
        );
    }
    problems
}

/// All that a crate depends on outside its tests, with the features that it asks for itself.
fn tree(root: &Path, name: &str) -> Result<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let answer = Command::new(cargo)
        .args(["tree", "--locked", "--offline", "--package", name])
        .args(["--edges", "normal,build", "--prefix", "none", "--format", "{p}"])
        .current_dir(root)
        .output()
        .context("running cargo tree")?;
    ensure!(
        answer.status.success(),
        "cargo tree failed: {}",
        String::from_utf8_lossy(&answer.stderr)
    );
    String::from_utf8(answer.stdout).context("reading cargo's tree")
}

/// The crates in a tree that reach something outside.
fn reaching(name: &str, tree: &str) -> Vec<String> {
    let packages: BTreeSet<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    let found = REACHING.iter().filter(|reaching| packages.contains(*reaching));
    found
        .map(|reaching| {
            format!(
                "{name} must not depend on {reaching}, nor may what it depends on (src/xtask/layers.rs); `cargo tree -p {name} -i {reaching}` tells the way"
            )
        })
        .collect()
}

/// The rules, on cargo's metadata.
fn broken(metadata: &Value) -> Vec<String> {
    let ours: BTreeMap<_, _> = OURS.iter().copied().collect();
    let mut problems = Vec::new();
    for (name, package) in packages(metadata) {
        let Some(allowed) = ours.get(name) else {
            problems.push(format!(
                "{name}: src/xtask/layers.rs does not say what this crate may use; add it there"
            ));
            continue;
        };
        for dependency in dependencies(package) {
            let uses = dependency["name"].as_str().unwrap_or_default();
            let is_ours = ours.contains_key(uses) || TESTS.contains(&uses);
            if is_ours && !allowed.contains(&uses) {
                problems.push(format!("{name} must not depend on {uses} (src/xtask/layers.rs)"));
            }
            for (restricted, users) in RESTRICTED {
                if uses == *restricted && !users.contains(&name) {
                    problems.push(format!("{name} must not depend on {uses} (src/xtask/layers.rs)"));
                }
            }
            // The daemon belongs on machines: linking it into the operator would
            // also bring its dependencies there.
            if uses == "skyward-agent" {
                let daemon = dependency["features"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .any(|feature| feature == "daemon");
                if daemon || dependency["uses_default_features"] == true {
                    problems.push(format!(
                        "{name} must use skyward-agent without its default features and without daemon"
                    ));
                }
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn package(name: &str, dependency: Value) -> Value {
        json!({ "packages": [{ "name": name, "dependencies": [dependency] }] })
    }

    #[test]
    fn the_controller_knows_no_provider() {
        let metadata = package(
            "skyward-controller",
            json!({ "name": "skyward-providers", "kind": null }),
        );
        assert_eq!(broken(&metadata).len(), 1);
        let test_only = package(
            "skyward-controller",
            json!({ "name": "skyward-providers", "kind": "dev" }),
        );
        assert_eq!(broken(&test_only), Vec::<String>::new());
    }

    #[test]
    fn what_a_crate_may_use_and_does_not_is_a_problem() {
        let metadata = package("skyward-remote", json!({ "name": "skyward-agent", "kind": null }));
        let problems = unused(&metadata);
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(
            problems[0].contains("may depend on skyward-core and does not"),
            "{problems:?}"
        );
        assert!(
            problems[1].contains("may depend on russh and does not"),
            "{problems:?}"
        );
    }

    #[test]
    fn core_knows_no_kubernetes() {
        assert_eq!(
            broken(&package("skyward-core", json!({ "name": "kube", "kind": null }))).len(),
            1
        );
    }

    #[test]
    fn the_operator_links_no_daemon() {
        let with = |features: &[&str], default: bool| {
            broken(&package(
                "skyward-remote",
                json!({ "name": "skyward-agent", "kind": null, "features": features, "uses_default_features": default }),
            ))
        };
        assert_eq!(with(&[], false), Vec::<String>::new());
        assert_eq!(with(&["daemon"], false).len(), 1);
        assert_eq!(with(&[], true).len(), 1);
    }

    #[test]
    fn what_decides_reaches_nothing_through_the_crates_that_it_depends_on() {
        let tree = "skyward-planner v0.1.0 (/src)\nkube v5.0.0\nkube-client v5.0.0\nkube-core v5.0.0 (*)\n";
        let found = reaching("skyward-planner", tree);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with("skyward-planner must not depend on kube-client"),
            "{found:?}"
        );
    }

    #[test]
    fn a_new_crate_must_be_placed() {
        assert_eq!(
            broken(&package("skyward-new", json!({ "name": "serde", "kind": null }))).len(),
            1
        );
    }
}
