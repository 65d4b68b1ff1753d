//! The Python packages of an image in the two forms that uv reads.

use std::{collections::BTreeMap, fmt::Write as _};

use super::PipIndex;

/// Packages as a requirements file, and packages from an index of their own as a project: uv
/// knows such indexes only in projects.
pub(super) fn requirements(pip: &[String], indexes: &[PipIndex]) -> (String, String) {
    let index_of = |package: &str| {
        let name = normalized(package);
        indexes
            .iter()
            .position(|index| index.packages.iter().any(|listed| normalized(listed) == name))
    };
    let (own, others): (Vec<&String>, Vec<&String>) =
        pip.iter().partition(|package| index_of(package).is_some());
    let mut plain = others.into_iter().cloned().collect::<Vec<_>>().join("\n");
    plain.push('\n');
    if own.is_empty() {
        return (plain, String::new());
    }
    let mut project =
        String::from("[project]\nname = \"skyward-image\"\nversion = \"0\"\ndependencies = [\n");
    // Writing to a String cannot fail.
    for package in &own {
        let _ = writeln!(project, "  {},", toml_string(package));
    }
    project.push_str("]\n");
    for (number, index) in indexes.iter().enumerate() {
        let url = toml_string(&index.url);
        let _ = write!(
            project,
            "\n[[tool.uv.index]]\nname = \"index-{number}\"\nurl = {url}\nexplicit = true\n"
        );
    }
    project.push_str("\n[tool.uv.sources]\n");
    let sources: BTreeMap<String, usize> = own
        .iter()
        .filter_map(|package| Some((normalized(package), index_of(package)?)))
        .collect();
    for (name, number) in sources {
        let _ = writeln!(project, "{name} = {{ index = \"index-{number}\" }}");
    }
    (plain, project)
}

/// The normalized name of a requirement such as `Torch[cuda] >= 2`.
fn normalized(requirement: &str) -> String {
    let name = requirement
        .trim()
        .split(|c: char| !(c.is_ascii_alphanumeric() || "._-".contains(c)))
        .next();
    name.unwrap_or_default()
        .to_ascii_lowercase()
        .split(['.', '_', '-'])
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join("-")
}

/// A basic string of TOML; JSON strings are such.
fn toml_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_named_packages_come_from_their_index() {
        let indexes = vec![PipIndex {
            url: "https://index.example/cu128".into(),
            packages: vec!["Torch".into(), "torch_vision".into()],
            credentials: None,
        }];
        let pip = [
            "numpy>=2",
            "torch==2.8",
            "torch-vision[extra]; python_version > \"3.9\"",
        ]
        .map(String::from);
        let (requirements, project) = requirements(&pip, &indexes);
        assert_eq!(requirements, "numpy>=2\n");
        assert_eq!(
            project,
            r#"[project]
name = "skyward-image"
version = "0"
dependencies = [
  "torch==2.8",
  "torch-vision[extra]; python_version > \"3.9\"",
]

[[tool.uv.index]]
name = "index-0"
url = "https://index.example/cu128"
explicit = true

[tool.uv.sources]
torch = { index = "index-0" }
torch-vision = { index = "index-0" }
"#
        );
        assert_eq!(
            super::requirements(&pip[..1], &indexes),
            ("numpy>=2\n".into(), String::new())
        );
    }
}
