//! Which crate may depend on which, checked from `cargo metadata`.
//!
//! The compiler forbids what a crate's Cargo.toml does not list; this forbids adding
//! the line. A change here is a change of the architecture: say why in
//! `docs/decisions/`.

use std::{collections::BTreeMap, path::Path, process::Command};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

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
    ("skyward-agent", &[]),
    ("skyward-api", &[]),
    ("skyward-cli", &["skyward-api", "skyward-subresources"]),
    (
        "skyward-controller",
        &[
            "skyward-agent",
            "skyward-api",
            "skyward-core",
            "skyward-remote",
            "skyward-store",
            "skyward-subresources",
        ],
    ),
    ("skyward-core", &[]),
    (
        "skyward-provider-aws",
        &["skyward-api", "skyward-core", "skyward-provider-kit"],
    ),
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
    ("skyward-subresources", &["skyward-agent", "skyward-api"]),
    ("xtask", &["skyward-api", "skyward-providers"]),
];

/// Crates of others that are allowed in some of ours only.
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
            "skyward-providers",
            "skyward-subresources",
            "skyward-cli",
            "xtask",
        ],
    ),
    ("russh", &["skyward-remote", "skyward-controller"]),
    ("object_store", &["skyward-store"]),
    // A second crypto provider in the process panics at the first connection.
    ("ring", &[]),
    ("openssl", &[]),
    ("chrono", &[]),
];

/// Crates under `tests/`: they may use everything.
const TESTS: &[&str] = &[
    "skyward-testkit",
    "skyward-cloudsim",
    "skyward-conformance",
    "skyward-control-plane-tests",
    "skyward-e2e",
    "skyward-bench",
];

/// Each broken rule.
pub(crate) fn problems(root: &Path) -> Result<Vec<String>> {
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
    let metadata: Value = serde_json::from_slice(&answer.stdout).context("reading cargo's metadata")?;
    Ok(broken(&metadata))
}

/// The rules, on cargo's metadata.
fn broken(metadata: &Value) -> Vec<String> {
    let ours: BTreeMap<_, _> = OURS.iter().copied().collect();
    let mut problems = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let name = package["name"].as_str().unwrap_or_default();
        if TESTS.contains(&name) {
            continue;
        }
        let Some(allowed) = ours.get(name) else {
            problems.push(format!(
                "{name}: src/xtask/layers.rs does not say what this crate may use; add it there"
            ));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let uses = dependency["name"].as_str().unwrap_or_default();
            if dependency["kind"] == "dev" {
                continue;
            }
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
    fn a_new_crate_must_be_placed() {
        assert_eq!(
            broken(&package("skyward-new", json!({ "name": "serde", "kind": null }))).len(),
            1
        );
    }
}
