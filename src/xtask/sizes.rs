//! No source file has more than [`MAX_LINES`], so that each can be read in a morning.

use std::{fs, path::Path};

use anyhow::{Context, Result};

/// Most lines of a source file, without the tests at its end.
const MAX_LINES: usize = 700;
const FOLDERS: [&str; 2] = ["src", "tests"];

/// Each source file that is too long.
pub(crate) fn problems(root: &Path) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    let mut folders: Vec<_> = FOLDERS.iter().map(|name| root.join(name)).collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("listing {}", folder.display()))? {
            let path = entry?.path();
            // Tests beside the code, as `plan/tests/` or `plan/tests.rs`, are tests too.
            let of_tests =
                folder.starts_with(root.join("src")) && path.file_stem().is_some_and(|stem| stem == "tests");
            if of_tests {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text =
                    fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
                let generated = text.starts_with("// Generated");
                let lines = text
                    .split("#[cfg(test)]\nmod ")
                    .next()
                    .unwrap_or_default()
                    .lines()
                    .count();
                if lines > MAX_LINES && !generated {
                    let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
                    problems.push(format!(
                        "{name} has {lines} lines without its tests, at most {MAX_LINES} are allowed; split it by policy"
                    ));
                }
            }
        }
    }
    problems.sort();
    Ok(problems)
}
