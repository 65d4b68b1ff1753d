//! Lines of code in production, by folder and by crate: `cargo xtask lines`. Comments, blank lines and
//! tests are no code. Tests are the code in folders and files of the names in [`TESTS`], or below `#[cfg(test)]`. No crate holds more than a quarter of all lines.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

/// Folders whose folders are counted one by one.
const PARENTS: [&str; 2] = ["src", "src/providers"];
/// What only tests compile: folders, and files beside code.
const TESTS: [&str; 3] = ["tests", "fixtures", "testing"];

/// Lines of each folder of [`PARENTS`], with all folders in it.
pub(crate) fn by_folder(root: &Path) -> Result<BTreeMap<String, usize>> {
    let mut counted = BTreeMap::new();
    for (file, lines) in counted_files(root)? {
        for parent in PARENTS {
            let inside = file.strip_prefix(parent).ok();
            let folder = inside.and_then(|inside| inside.parent()?.components().next());
            if let Some(folder) = folder {
                *counted
                    .entry(format!("{parent}/{}", folder.as_os_str().display()))
                    .or_default() += lines;
            }
        }
    }
    Ok(counted)
}

/// Lines of each of our crates by its folder, without crates that lie inside it.
pub(crate) fn by_crate(root: &Path) -> Result<BTreeMap<String, usize>> {
    let mut counted = BTreeMap::new();
    for (file, lines) in counted_files(root)? {
        let krate = file
            .ancestors()
            .find(|folder| root.join(folder).join("Cargo.toml").exists());
        let name = krate
            .map(|folder| folder.display().to_string())
            .unwrap_or_default();
        // The operator's own crate lies in the root of the checkout.
        let name = if name.is_empty() {
            "src/main.rs".to_owned()
        } else {
            name
        };
        *counted.entry(name).or_default() += lines;
    }
    Ok(counted)
}

/// Crates that hold more than a quarter of all lines. The rooms that `rooms` knows are parts of crates.
pub(crate) fn problems(root: &Path) -> Result<Vec<String>> {
    Ok(too_large(&by_crate(root)?))
}

fn too_large(crates: &BTreeMap<String, usize>) -> Vec<String> {
    let all: usize = crates.values().sum();
    let too_large = crates.iter().filter(|(_, lines)| **lines * 4 > all);
    too_large
        .map(|(name, lines)| {
            format!("{name} has {lines} of {all} lines of code, more than a quarter; make a part of it a crate of its own")
        })
        .collect()
}

/// The files of code with their lines, by their paths from the root of the checkout.
fn counted_files(root: &Path) -> Result<Vec<(PathBuf, usize)>> {
    let mut counted = Vec::new();
    let mut folders = vec![root.join("src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("listing {}", folder.display()))? {
            let path = entry?.path();
            if is_test(&path) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if let Some(comment) = comment(&path) {
                let text =
                    fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
                let name = path.strip_prefix(root).unwrap_or(&path).to_owned();
                counted.push((name, code(&text, comment)));
            }
        }
    }
    Ok(counted)
}

/// Whether only tests compile a file or folder.
pub(crate) fn is_test(path: &Path) -> bool {
    path.file_stem()
        .is_some_and(|stem| TESTS.iter().any(|name| stem == *name))
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
    fn a_crate_of_more_than_a_quarter_of_all_lines_is_too_large() {
        let crates = |lines: [usize; 5]| (0..).map(|at| format!("src/{at}")).zip(lines).collect();
        assert_eq!(too_large(&crates([25, 25, 25, 20, 5])), Vec::<String>::new());
        let found = too_large(&crates([26, 25, 25, 19, 5]));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("src/0 has 26 of 100 lines"), "{found:?}");
    }

    #[test]
    fn comments_of_a_script_are_no_code() {
        assert_eq!(code("#!/bin/sh\n# why\nsleep 1\n", "#"), 1);
    }
}
