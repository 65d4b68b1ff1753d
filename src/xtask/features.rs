//! One set of features for everything that is built, checked from `cargo tree`: a feature
//! that only a dev-dependency asks for would let `cargo test` compile again what
//! `cargo build` compiled (docs/decisions/0008-one-set-of-features.md).

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::Command,
};

use anyhow::{Context, Result, ensure};

/// Packages by name and version, each with the sets of features that it is built with.
type Features<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// Each package that tests would compile a second time.
pub(crate) fn problems(root: &Path) -> Result<Vec<String>> {
    let programs = tree(root, "normal,build")?;
    let tests = tree(root, "normal,build,dev")?;
    Ok(differences(&read(&programs), &read(&tests)))
}

fn tree(root: &Path, edges: &str) -> Result<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let answer = Command::new(cargo)
        .args([
            "tree",
            "--locked",
            "--workspace",
            "--prefix",
            "none",
            "--no-dedupe",
        ])
        .args(["--format", "{p}|{f}", "--edges", edges])
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

fn read(tree: &str) -> Features<'_> {
    let mut all = Features::new();
    for (package, features) in tree.lines().filter_map(|line| line.split_once('|')) {
        all.entry(package).or_default().insert(features);
    }
    all
}

fn differences(programs: &Features<'_>, tests: &Features<'_>) -> Vec<String> {
    programs
        .iter()
        .filter_map(|(package, features)| {
            let also = tests.get(package)?.difference(features).next()?;
            Some(format!(
                "{package}: tests ask for other features ({also}) than programs, so it and all above it are compiled twice; \
                 ask for them in a normal dependency of a crate under tests/"
            ))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feature_that_only_tests_ask_for_is_named_with_its_package() {
        let programs = "tokio v1.0.0|net,rt\nbytes v1.0.0|std\nsyn v2.0.0|full\nsyn v2.0.0|full,visit\n";
        let tests = "tokio v1.0.0|net,rt,test-util\nbytes v1.0.0|std\nsyn v2.0.0|full\nrstest v0.1.0|\n";
        let found = differences(&read(programs), &read(tests));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with("tokio v1.0.0: ") && found[0].contains("test-util"),
            "{found:?}"
        );
    }
}
