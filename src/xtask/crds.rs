//! The CRDs as files: `crds/` for `kubectl apply`, and copies for the chart and kustomize.

use anyhow::{Context, Result};
use skyward_api::crd;

use crate::output::Output;

const HEADER: &str = "# Generated from src/api by `make generate`; do not edit.\n";

/// Writes (or compares) one file for each kind, in each place.
pub(crate) fn generate(output: &mut Output) -> Result<()> {
    for definition in crd::all(&skyward_providers::registry::account_kinds()) {
        let name = &definition.spec.names.plural;
        let yaml = serde_yaml::to_string(&definition)
            .with_context(|| format!("writing the CRD of {name} as YAML"))?;
        let content = format!("{HEADER}{}", quoted(&yaml));
        if content.len() >= crd::MAX_CRD_BYTES {
            output.problem(format!(
                "crds/{name}.yaml has {} bytes, at most {} are allowed; shorten the texts of its fields",
                content.len(),
                crd::MAX_CRD_BYTES
            ));
        }
        output.file(&format!("crds/{name}.yaml"), &content)?;
        output.file(&format!("charts/skyward/crds/{name}.yaml"), &content)?;
        // kustomize reads nothing outside its own folder.
        output.file(&format!("config/crds/{name}.yaml"), &content)?;
    }
    Ok(())
}

/// kubectl reads YAML 1.1, where a bare `Yes` or `Off` is a boolean, and an enumeration of such
/// words would become one of booleans.
fn quoted(yaml: &str) -> String {
    let mut text = String::with_capacity(yaml.len());
    for line in yaml.lines() {
        let start = line
            .find("- ")
            .map(|at| at + 2)
            .or_else(|| line.find(": ").map(|at| at + 2));
        match start.map(|at| line.split_at(at)) {
            Some((before, word)) if is_truth_of_yaml_1_1(word) => {
                text.extend([before, "'", word, "'"]);
            }
            _ => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

fn is_truth_of_yaml_1_1(word: &str) -> bool {
    matches!(
        word.to_ascii_lowercase().as_str(),
        "y" | "n" | "yes" | "no" | "on" | "off"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_kubectl_takes_for_booleans_are_quoted() {
        let yaml = "enum:\n  - Yes\n  - Unknown\n  - Off\nname: no\nserved: true\ntext: Yes, it can.\n";
        let expected =
            "enum:\n  - 'Yes'\n  - Unknown\n  - 'Off'\nname: 'no'\nserved: true\ntext: Yes, it can.\n";
        assert_eq!(quoted(yaml), expected);
    }
}
