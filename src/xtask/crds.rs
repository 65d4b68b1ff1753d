//! The CRDs as files: `crds/` for `kubectl apply`, and the chart's copy.

use anyhow::{Context, Result};
use skyward_api::crd;

use crate::output::Output;

const HEADER: &str = "# Generated from src/api by `make generate`; do not edit.\n";

/// Writes (or compares) one file for each kind, in both places.
pub(crate) fn generate(output: &mut Output) -> Result<()> {
    for definition in crd::all() {
        let name = &definition.spec.names.plural;
        let yaml = serde_yaml::to_string(&definition)
            .with_context(|| format!("writing the CRD of {name} as YAML"))?;
        let content = format!("{HEADER}{yaml}");
        if content.len() >= crd::MAX_CRD_BYTES {
            output.problem(format!(
                "crds/{name}.yaml has {} bytes, at most {} are allowed; shorten the texts of its fields",
                content.len(),
                crd::MAX_CRD_BYTES
            ));
        }
        output.file(&format!("crds/{name}.yaml"), &content)?;
        output.file(&format!("charts/skyward/crds/{name}.yaml"), &content)?;
    }
    Ok(())
}
