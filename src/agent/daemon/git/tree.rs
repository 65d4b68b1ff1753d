//! The files of a commit, as git lists them: which become part of the bundle. Pure; what is read is hostile.

use std::{
    collections::BTreeMap,
    io::{BufRead, Read},
};

use skyward_bundle::{LIMITS, Limits};

use super::fault::Fault;

/// Entries of a whole repository that are read. More are no code.
const ENTRIES: usize = 250_000;
/// Bytes of one entry: a name may have 1024, and a longer name is refused by name.
const ENTRY_BYTES: u64 = 8 * 1024;
/// Bytes of the target of a link.
pub(super) const TARGET_BYTES: u64 = 4096;
/// Links that lead to links.
const HOPS: usize = 8;
/// Names that a message repeats.
const NAMES: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    File { executable: bool },
    Link,
    Submodule,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) kind: Kind,
    /// Id of the object that has its content.
    pub(super) id: String,
    pub(super) size: u64,
}

/// All entries of a commit but its folders, by name.
pub(super) type Tree = BTreeMap<String, Item>;

/// A file that becomes part of the bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    /// Its name in the bundle.
    pub(super) path: String,
    pub(super) executable: bool,
    pub(super) id: String,
    pub(super) size: u64,
}

/// Reads the output of `git ls-tree -r -z -l --full-tree`.
pub(super) fn read(mut from: impl BufRead) -> Result<Tree, Fault> {
    let mut tree = Tree::new();
    let mut entry = Vec::new();
    loop {
        entry.clear();
        from.by_ref().take(ENTRY_BYTES).read_until(0, &mut entry)?;
        if entry.is_empty() {
            return Ok(tree);
        }
        if entry.pop() != Some(0) {
            return Err(Fault::Invalid(
                "the repository has a name that is too long".to_owned(),
            ));
        }
        if tree.len() == ENTRIES {
            return Err(Fault::Invalid(format!(
                "the repository has more than {ENTRIES} files; a source is code, and large data belongs into an object store"
            )));
        }
        let (path, item) = parse(&entry)?;
        if tree.insert(path, item).is_some() {
            return Err(Fault::Invalid("the repository has a file twice".to_owned()));
        }
    }
}

/// `<mode> <type> <id> <size, with spaces before it>\t<path>`.
fn parse(entry: &[u8]) -> Result<(String, Item), Fault> {
    let invalid = |why: &str| Fault::Invalid(format!("the repository has {why}"));
    let text = std::str::from_utf8(entry).map_err(|_| invalid("a name that is not UTF-8"))?;
    let unknown = || invalid("an entry that is neither a file nor a link");
    let (about, path) = text.split_once('\t').ok_or_else(unknown)?;
    let parts: Vec<&str> = about.split_ascii_whitespace().collect();
    let [mode, _, id, size] = parts[..] else {
        return Err(unknown());
    };
    let kind = match mode {
        "100644" | "100664" => Kind::File { executable: false },
        "100755" => Kind::File { executable: true },
        "120000" => Kind::Link,
        "160000" => Kind::Submodule,
        _ => return Err(unknown()),
    };
    // A submodule has no size here.
    let size = if kind == Kind::Submodule {
        0
    } else {
        size.parse().map_err(|_| unknown())?
    };
    let id = id.to_owned();
    Ok((path.to_owned(), Item { kind, id, size }))
}

/// The links of a repository, if any of the chosen files is one: their targets are needed.
pub(super) fn links(tree: &Tree, names: &[Name<'_>]) -> Vec<String> {
    if !names.iter().any(|name| name.item.kind == Kind::Link) {
        return Vec::new();
    }
    let links = tree.iter().filter(|(_, item)| item.kind == Kind::Link);
    let links = links.filter(|(_, item)| item.size <= TARGET_BYTES);
    links.map(|(path, _)| path.clone()).collect()
}

/// A file, link or submodule that was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Name<'a> {
    /// In the bundle.
    path: &'a str,
    /// In the repository.
    full: &'a str,
    item: &'a Item,
}

/// What lies in a folder and is selected.
pub(super) fn select<'a>(
    tree: &'a Tree,
    folder: &str,
    is_selected: impl Fn(&str) -> bool,
) -> Result<Vec<Name<'a>>, Fault> {
    let mut is_there = folder.is_empty();
    let mut names = Vec::new();
    for (full, item) in tree {
        let path = if folder.is_empty() {
            Some(full.as_str())
        } else {
            full.strip_prefix(folder).and_then(|rest| rest.strip_prefix('/'))
        };
        let Some(path) = path else { continue };
        is_there = true;
        if is_selected(path) {
            names.push(Name { path, full, item });
        }
    }
    if !is_there {
        let what = match tree.get(folder) {
            Some(_) => "is no folder of the repository, but a file or link: name the folder that it lies in",
            None => "is not in the repository at this commit",
        };
        return Err(Fault::Invalid(format!("path {folder:?} {what}")));
    }
    if names.is_empty() {
        let why = "no file is left: the folder is empty, or include and exclude leave all of it out";
        return Err(Fault::Invalid(why.to_owned()));
    }
    Ok(names)
}

/// The files of the bundle, sorted by name: a link to a file of the repository becomes a copy of that file.
pub(super) fn choose(
    tree: &Tree,
    names: &[Name<'_>],
    targets: &BTreeMap<String, String>,
) -> Result<Vec<Chosen>, Fault> {
    let submodules: Vec<&str> = names_of(names, |item| item.kind == Kind::Submodule);
    if !submodules.is_empty() {
        return Err(Fault::Invalid(format!(
            "the repository has submodules, which are not fetched: {}. Leave them out with source.exclude",
            listed(&submodules)
        )));
    }
    let mut chosen = Vec::with_capacity(names.len());
    let mut astray = Vec::new();
    for name in names {
        let Some((executable, item)) = follow(tree, name, targets) else {
            astray.push(name.full);
            continue;
        };
        chosen.push(Chosen {
            path: name.path.to_owned(),
            executable,
            id: item.id.clone(),
            size: item.size,
        });
    }
    if !astray.is_empty() {
        return Err(Fault::Invalid(format!(
            "the repository has links that lead to no file of it: {}. Leave them out with source.exclude",
            listed(&astray)
        )));
    }
    within(&chosen, LIMITS)?;
    chosen.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(chosen)
}

fn names_of<'a>(names: &[Name<'a>], wanted: impl Fn(&Item) -> bool) -> Vec<&'a str> {
    let wanted = names.iter().filter(|name| wanted(name.item));
    wanted.map(|name| name.full).collect()
}

/// The file that a name stands for.
fn follow<'a>(
    tree: &'a Tree,
    name: &Name<'a>,
    targets: &BTreeMap<String, String>,
) -> Option<(bool, &'a Item)> {
    let (mut full, mut item) = (name.full.to_owned(), name.item);
    for _ in 0..=HOPS {
        match item.kind {
            Kind::File { executable } => return Some((executable, item)),
            Kind::Submodule => return None,
            Kind::Link => {}
        }
        full = joined(&full, targets.get(&full)?)?;
        item = tree.get(&full)?;
    }
    None
}

/// Where a link leads, if that is inside of the repository.
fn joined(link: &str, target: &str) -> Option<String> {
    if target.starts_with('/') {
        return None;
    }
    let folder = link.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut names: Vec<&str> = folder.split('/').filter(|name| !name.is_empty()).collect();
    for name in target.split('/') {
        match name {
            "" | "." => {}
            ".." => drop(names.pop()?),
            name => names.push(name),
        }
    }
    Some(names.join("/"))
}

/// Refuses what no bundle holds, naming what is large.
fn within(chosen: &[Chosen], limits: Limits) -> Result<(), Fault> {
    let sum = |sum: u64, file: &Chosen| sum.saturating_add(file.size);
    let bytes = chosen.iter().fold(0, sum);
    if chosen.len() <= limits.files && bytes <= limits.bytes {
        return Ok(());
    }
    let mut folders: BTreeMap<&str, (u64, usize)> = BTreeMap::new();
    for file in chosen {
        let folder = file
            .path
            .split_once('/')
            .map_or(file.path.as_str(), |(folder, _)| folder);
        let known = folders.entry(folder).or_default();
        known.0 = known.0.saturating_add(file.size);
        known.1 += 1;
    }
    let mut folders: Vec<(&str, (u64, usize))> = folders.into_iter().collect();
    let is_many = chosen.len() > limits.files;
    folders
        .sort_by_key(|(_, (bytes, files))| std::cmp::Reverse(if is_many { *files as u64 } else { *bytes }));
    let largest: Vec<String> = folders
        .iter()
        .take(NAMES)
        .map(|(name, (bytes, files))| {
            let name = listed(&[*name]);
            if is_many {
                format!("{name} ({files} files)")
            } else {
                format!("{name} ({} MiB)", bytes.div_ceil(1024 * 1024))
            }
        })
        .collect();
    Err(Fault::Invalid(format!(
        "the source has {} files of {bytes} bytes together; at most {} files of {} bytes are taken. The largest in it: {}. Name a smaller folder in source.git.path, or leave files out with source.exclude",
        chosen.len(),
        limits.files,
        limits.bytes,
        largest.join(", ")
    )))
}

/// A few names for a message: they may be long, and hold anything.
pub(super) fn listed(names: &[&str]) -> String {
    const MOST: usize = 80;
    let shown = names.iter().take(NAMES).map(|name| {
        let cut = &name[..name.floor_char_boundary(MOST)];
        let more = if cut.len() < name.len() { "…" } else { "" };
        format!("{cut:?}{more}")
    });
    let shown: Vec<String> = shown.collect();
    let more = match names.len().saturating_sub(NAMES) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    shown.join(", ") + &more
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "45b983be36b73c0788dc9cbcb76cbb80fc7bb057";

    fn line(mode: &str, size: &str, path: &str) -> String {
        format!("{mode} blob {ID} {size:>7}\t{path}\0")
    }

    fn tree(entries: &[(&str, &str)]) -> Tree {
        let text: String = entries.iter().map(|(mode, path)| line(mode, "3", path)).collect();
        read(text.as_bytes()).unwrap()
    }

    fn bundle(tree: &Tree, folder: &str, targets: &[(&str, &str)]) -> Result<Vec<(String, bool)>, String> {
        let targets = targets
            .iter()
            .map(|(link, target)| ((*link).to_owned(), (*target).to_owned()))
            .collect();
        select(tree, folder, |_| true)
            .and_then(|names| choose(tree, &names, &targets))
            .map(|chosen| {
                chosen
                    .into_iter()
                    .map(|file| (file.path, file.executable))
                    .collect()
            })
            .map_err(|fault| fault.to_string())
    }

    #[test]
    fn files_of_a_folder_are_chosen_without_its_name() {
        let tree = tree(&[
            ("100644", "README"),
            ("100644", "exp/b.py"),
            ("100755", "exp/a/run.sh"),
            ("100644", "expert/x"),
            ("100644", "exp.py"),
        ]);
        let chosen = bundle(&tree, "exp", &[]).unwrap();
        assert_eq!(
            chosen,
            [("a/run.sh".to_owned(), true), ("b.py".to_owned(), false)]
        );
        assert_eq!(bundle(&tree, "", &[]).unwrap().len(), 5);
        assert!(
            bundle(&tree, "ex", &[])
                .unwrap_err()
                .contains("is not in the repository")
        );
        assert!(bundle(&tree, "exp.py", &[]).unwrap_err().contains("is no folder"));
        let none = select(&tree, "exp", |_| false).unwrap_err().to_string();
        assert!(none.contains("no file is left"), "{none}");
    }

    #[test]
    fn a_link_to_a_file_of_the_repository_is_a_copy_and_every_other_link_is_refused() {
        let tree = tree(&[
            ("100755", "tool"),
            ("100644", "exp/data"),
            ("120000", "exp/link"),
            ("120000", "exp/chain"),
            ("160000", "sub"),
        ]);
        for (target, executable) in [("data", false), ("../tool", true), ("./../exp/data", false)] {
            let targets = [("exp/link", target), ("exp/chain", "link")];
            let chosen = bundle(&tree, "exp", &targets).unwrap();
            let expected =
                ["chain", "data", "link"].map(|name| (name.to_owned(), name != "data" && executable));
            assert_eq!(chosen, expected, "{target}");
        }
        for target in [
            "/etc/passwd",
            "../../etc/passwd",
            "..",
            "../exp",
            "nothing",
            "link",
            "chain",
            "",
            "../sub",
            "data/x",
        ] {
            let targets = [("exp/link", target), ("exp/chain", "link")];
            let refused = bundle(&tree, "exp", &targets).unwrap_err();
            assert!(refused.contains("exp/link"), "{target}: {refused}");
        }
        // A target that is too long was not read.
        assert!(bundle(&tree, "exp", &[]).is_err());
    }

    #[test]
    fn a_submodule_is_named_and_what_is_left_out_is_no_matter() {
        let tree = tree(&[("100644", "a"), ("160000", "sub"), ("120000", "out")]);
        let refused = bundle(&tree, "", &[("out", "/etc")]).unwrap_err();
        assert!(
            refused.contains("submodules") && refused.contains("\"sub\""),
            "{refused}"
        );
        let names = select(&tree, "", |path| path == "a").unwrap();
        assert_eq!(links(&tree, &names), Vec::<String>::new());
        assert_eq!(choose(&tree, &names, &BTreeMap::new()).unwrap().len(), 1);
    }

    #[test]
    fn what_is_too_large_is_named() {
        let file = |path: &str, size: u64| Chosen {
            path: path.to_owned(),
            executable: false,
            id: ID.to_owned(),
            size,
        };
        let chosen = [
            file("data/a", 300 << 20),
            file("data/b", 1 << 20),
            file("src/c", 1),
        ];
        let refused = within(&chosen, LIMITS).unwrap_err().to_string();
        assert!(
            refused.contains("\"data\" (301 MiB), \"src\" (1 MiB)"),
            "{refused}"
        );
        let few = Limits { files: 2, ..LIMITS };
        let chosen = [file("a/1", 1), file("b/1", 1), file("b/2", 1)];
        let refused = within(&chosen, few).unwrap_err().to_string();
        assert!(refused.contains("\"b\" (2 files), \"a\" (1 files)"), "{refused}");
        assert!(within(&[file("a", u64::MAX), file("b", u64::MAX)], LIMITS).is_err());
    }

    #[test]
    fn a_list_that_no_git_makes_is_refused() {
        for text in [
            line("040000", "3", "a"),
            line("100600", "3", "a"),
            line("100644", "-", "a"),
            line("100644", "99999999999999999999", "a"),
            line("100644", "3", "a") + &line("100644", "3", "a"),
            "100644 blob\ta\0".to_owned(),
            "no tab\0".to_owned(),
            line("100644", "3", "a").trim_end_matches('\0').to_owned(),
            line("100644", "3", &"x".repeat(10_000)),
        ] {
            assert!(read(text.as_bytes()).is_err(), "{text:.100}");
        }
        assert!(read(&b"100644 blob 00 3\t\xff\0"[..]).is_err());
        let endless = std::iter::repeat_n(line("100644", "3", "a"), 2).collect::<String>();
        assert!(read(endless.as_bytes()).is_err());
        assert_eq!(read(&b""[..]).unwrap(), Tree::new());
    }

    #[test]
    fn long_and_strange_names_are_cut_in_messages() {
        let long = "é".repeat(200);
        let text = listed(&[&long, "a\u{1b}[2J", "c", "d", "e"]);
        assert!(text.len() < 300 && !text.contains('\u{1b}'), "{text}");
        assert!(text.ends_with("and 2 more"), "{text}");
    }
}
