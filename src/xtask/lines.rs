//! Lines of code in production, by folder: `cargo xtask lines`. Comments, blank lines and tests are
//! no code. Tests are the code in `tests/`, `tests.rs` or `fixtures.rs`, or below `#[cfg(test)]`.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result};

/// Folders whose folders are counted one by one.
const PARENTS: [&str; 2] = ["src", "src/providers"];

/// Lines of each folder of [`PARENTS`], with all folders in it.
pub(crate) fn by_folder(root: &Path) -> Result<BTreeMap<String, usize>> {
    let mut counted = BTreeMap::new();
    for parent in PARENTS {
        let folder = root.join(parent);
        for entry in fs::read_dir(&folder).with_context(|| format!("listing {}", folder.display()))? {
            let path = entry?.path();
            if path.is_dir() && !is_test(&path) {
                let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
                counted.insert(name, in_folder(&path)?);
            }
        }
    }
    Ok(counted)
}

fn in_folder(folder: &Path) -> Result<usize> {
    let mut lines = 0;
    for entry in fs::read_dir(folder).with_context(|| format!("listing {}", folder.display()))? {
        let path = entry?.path();
        if is_test(&path) {
            continue;
        }
        if path.is_dir() {
            lines += in_folder(&path)?;
        } else if let Some(comment) = comment(&path) {
            let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
            lines += code(&text, comment);
        }
    }
    Ok(lines)
}

fn is_test(path: &Path) -> bool {
    path.file_stem()
        .is_some_and(|stem| stem == "tests" || stem == "fixtures")
}

/// The beginning of a comment in a file of code.
fn comment(path: &Path) -> Option<&'static str> {
    match path.extension()?.to_str()? {
        "rs" | "proto" => Some("//"),
        "sh" | "py" => Some("#"),
        _ => None,
    }
}

/// Lines of code in a text, formatted as `cargo fmt` leaves it.
fn code(text: &str, comment: &str) -> usize {
    let mut lines = text.lines().filter(|line| {
        let line = line.trim_start();
        !line.is_empty() && (!line.starts_with(comment) || line.starts_with("#["))
    });
    let mut count = 0;
    while let Some(line) = lines.next() {
        if line.trim_start() == "#[cfg(test)]" {
            skip_item(&mut lines);
        } else {
            count += 1;
        }
    }
    count
}

/// Skips an item: to its `;`, or to the brace that closes it at the indentation of its beginning.
fn skip_item<'a>(lines: &mut impl Iterator<Item = &'a str>) {
    let mut indentation = None;
    for line in lines {
        let trimmed = line.trim_start();
        if indentation.is_none() && trimmed.starts_with("#[") {
            continue;
        }
        let begins = *indentation.get_or_insert(line.len() - trimmed.len());
        let closes = line.len() - trimmed.len() == begins && (trimmed == "}" || trimmed == "};");
        if closes || line.len() - trimmed.len() == begins && (line.ends_with(';') || line.ends_with("{}")) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_blank_lines_and_tests_are_no_code() {
        let text = "//! A module.\n\nuse a::b; // counted\n\n/// A function.\nfn one() {\n    // why\n    two();\n}\n\n\
                    #[cfg(test)]\nfn helper() {\n    three();\n}\n\n#[cfg(test)]\n#[path = \"tests/x.rs\"]\nmod tests;\n\nconst A: u8 = 1;\n";
        assert_eq!(code(text, "//"), 5);
    }

    #[test]
    fn a_module_of_tests_ends_where_its_brace_stands() {
        let text = "fn one() {}\n#[cfg(test)]\nmod tests {\n    fn two() {\n    }\n}\nfn three() {}\n";
        assert_eq!(code(text, "//"), 2);
    }

    #[test]
    fn comments_of_a_script_are_no_code() {
        assert_eq!(code("#!/bin/sh\n# why\nsleep 1\n", "#"), 1);
    }
}
