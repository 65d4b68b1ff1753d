//! Rooms of the controller and of the planner: which files belong to which, and which rooms each may
//! use.
//!
//! A crate lets its files import each other in circles; this counts them. A circle that is larger
//! than [`MAX_CIRCLE`] is refused, since none of its files can be read without all others. Rooms
//! are listed from the ground up and may use rooms above them in the table only, so that no two
//! rooms need each other. A change here is a change of the architecture, as in `layers.rs`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context, Result};

use crate::{
    lines,
    pictures::{Arrows, reached},
};

/// The folders of the crates that are looked at, each with its rooms.
const CRATES: &[(&str, Rooms)] = &[
    ("src/controller", CONTROLLER),
    ("src/controller/planner", PLANNER),
];
/// Most files that may import each other in a circle.
const MAX_CIRCLE: usize = 8;

/// Rooms from the ground up: a folder or a file, and the rooms that it may use. A file belongs to the
/// longest name that it begins with.
type Rooms = &'static [(&'static str, &'static [&'static str])];

/// The rooms of the planner.
const PLANNER: Rooms = &[
    ("base", &[]),
    ("accelerators", &[]),
    ("events", &[]),
    ("map", &[]),
    ("money", &[]),
    ("records", &[]),
    ("cron", &["base", "events"]),
    ("restore", &["base"]),
    ("accounts", &["base", "money", "records", "restore"]),
    (
        "pool",
        &["base", "accelerators", "events", "money", "records", "accounts"],
    ),
    ("provider", &["base", "events", "restore", "accounts"]),
    (
        "machine",
        &["base", "events", "money", "records", "accounts", "pool"],
    ),
    (
        "task",
        &["base", "accelerators", "events", "map", "money", "pool"],
    ),
];

/// The rooms of the controller.
const CONTROLLER: Rooms = &[
    ("base", &[]),
    ("access", &[]),
    ("certificates", &[]),
    ("config", &[]),
    ("guard", &[]),
    ("keys", &[]),
    ("maps", &[]),
    ("versions", &[]),
    ("caches", &["guard"]),
    ("newest", &[]),
    ("hints", &["base"]),
    ("restore", &["base"]),
    ("accounts", &[]),
    ("metrics", &["caches", "hints", "accounts"]),
    ("deadline", &[]),
    ("references", &["deadline"]),
    ("uploads", &["metrics"]),
    ("api", &["deadline", "metrics"]),
    ("events", &["base", "metrics"]),
    ("panics", &["base", "metrics", "events"]),
    ("health", &["metrics"]),
    ("leadership", &["config", "health"]),
    (
        "endpoints",
        &["access", "config", "deadline", "events", "health", "metrics"],
    ),
    (
        "context",
        &[
            "base",
            "config",
            "references",
            "uploads",
            "caches",
            "hints",
            "restore",
            "accounts",
            "metrics",
            "events",
            "panics",
            "health",
            "leadership",
        ],
    ),
    (
        "reconcile",
        &["api", "base", "newest", "metrics", "panics", "health", "context"],
    ),
    (
        "accounts/sweeps",
        &["base", "deadline", "keys", "versions", "accounts", "context"],
    ),
    (
        "pool",
        &[
            "api",
            "base",
            "deadline",
            "keys",
            "versions",
            "references",
            "newest",
            "hints",
            "accounts",
            "context",
            "reconcile",
            "accounts/sweeps",
        ],
    ),
    (
        "provider",
        &[
            "api",
            "base",
            "deadline",
            "newest",
            "restore",
            "accounts",
            "leadership",
            "context",
            "reconcile",
            "accounts/sweeps",
        ],
    ),
    (
        "machine",
        &[
            "api",
            "base",
            "keys",
            "versions",
            "references",
            "newest",
            "hints",
            "accounts",
            "context",
            "reconcile",
            "pool",
        ],
    ),
    (
        "task",
        &[
            "base",
            "deadline",
            "guard",
            "maps",
            "references",
            "uploads",
            "metrics",
            "context",
        ],
    ),
    (
        "cron",
        &[
            "api",
            "base",
            "deadline",
            "guard",
            "newest",
            "metrics",
            "context",
            "reconcile",
        ],
    ),
    ("logs", &["certificates", "hints", "maps", "uploads", "context"]),
    // It starts and stops everything.
    ("runtime", EVERY),
];

/// Marks a room that may use every other one.
const EVERY: &[&str] = &["*"];

/// A module, as the names of the modules that it is in and its own.
type Module = Vec<String>;

/// Each circle that is too large, and each file that uses a room that it must not.
pub(crate) fn problems(root: &Path) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for (name, rooms) in CRATES {
        let imports = imports(&sources(&root.join(name))?);
        let circles = circles(&imports).into_iter();
        problems.extend(circles.filter(|circle| circle.len() > MAX_CIRCLE).map(|circle| {
            format!(
                "{name}: {} files import each other in a circle, at most {MAX_CIRCLE} may: {}",
                circle.len(),
                circle.into_iter().collect::<Vec<_>>().join(", ")
            )
        }));
        problems.extend(forbidden(name, &imports, rooms));
        problems.extend(unused(name, &between_rooms(&imports, rooms), rooms));
    }
    Ok(problems)
}

/// The rooms of each crate by its folder, each with the rooms that it uses.
pub(crate) fn arrows(root: &Path) -> Result<Vec<(&'static str, Arrows)>> {
    let of = |(name, rooms): &(&'static str, Rooms)| {
        let imports = imports(&sources(&root.join(name))?);
        Ok((*name, between_rooms(&imports, rooms)))
    };
    CRATES.iter().map(of).collect()
}

/// Rooms with the rooms that their files use.
fn between_rooms(imports: &Arrows, rooms: &[(&str, &[&str])]) -> Arrows {
    let mut arrows: Arrows = rooms
        .iter()
        .map(|(room, _)| ((*room).to_owned(), BTreeSet::new()))
        .collect();
    for (file, used) in imports {
        let Some((room, _)) = room_of(file, rooms) else {
            continue;
        };
        let others = used.iter().filter_map(|other| room_of(other, rooms));
        let others = others
            .map(|(other, _)| other.to_owned())
            .filter(|other| other != room);
        arrows.entry(room.to_owned()).or_default().extend(others);
    }
    arrows
}

/// What a room may use and does not: the table is to say what is, as the picture in ARCHITECTURE.md does.
fn unused(krate: &str, arrows: &Arrows, rooms: &[(&str, &[&str])]) -> Vec<String> {
    let mut problems = Vec::new();
    for (room, may_use) in rooms.iter().filter(|(_, may_use)| *may_use != EVERY) {
        let used = arrows.get(*room);
        let unused = may_use
            .iter()
            .filter(|other| !used.is_some_and(|used| used.contains(**other)));
        problems.extend(unused.map(|other| {
            format!(
                "{krate}: the room {room} may use {other} and does not: take that out of src/xtask/rooms.rs"
            )
        }));
    }
    problems
}

/// The files of a crate, without its tests and without crates that lie inside its folder.
fn sources(folder: &Path) -> Result<BTreeMap<String, String>> {
    let mut sources = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(inside) = folders.pop() {
        for entry in fs::read_dir(&inside).with_context(|| format!("listing {}", inside.display()))? {
            let path = entry?.path();
            if lines::is_test(&path) {
                continue;
            }
            if path.is_dir() {
                if !path.join("Cargo.toml").exists() {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text =
                    fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
                let name = path.strip_prefix(folder).unwrap_or(&path);
                sources.insert(name.display().to_string(), text);
            }
        }
    }
    Ok(sources)
}

/// Uses of rooms that the table does not allow, and files that it does not know.
fn forbidden(krate: &str, imports: &Arrows, rooms: &[(&str, &[&str])]) -> Vec<String> {
    let mut problems = Vec::new();
    for (file, used) in imports.iter().filter(|(file, _)| *file != "lib.rs") {
        let Some((room, may_use)) = room_of(file, rooms) else {
            problems.push(format!(
                "{krate}/{file}: src/xtask/rooms.rs does not say which room this is; add it there"
            ));
            continue;
        };
        for other in used {
            match room_of(other, rooms) {
                Some((name, _)) if name != room && may_use != EVERY && !may_use.contains(&name) => problems.push(format!(
                    "{krate}/{file} must not use {other}: the room {room} may not use {name} (src/xtask/rooms.rs)"
                )),
                _ => {}
            }
        }
    }
    problems
}

/// The room of a file, with the rooms that it may use.
fn room_of<'a>(file: &str, rooms: &[(&'a str, &'a [&'a str])]) -> Option<(&'a str, &'a [&'a str])> {
    let is_in = |room: &str| {
        file.strip_prefix(room)
            .is_some_and(|rest| rest.starts_with('/') || rest == ".rs")
    };
    let of_file = rooms.iter().filter(|(room, _)| is_in(room));
    of_file.max_by_key(|(room, _)| room.len()).copied()
}

/// Files that can all be reached from each other, where these are more than one.
fn circles(imports: &Arrows) -> Vec<BTreeSet<String>> {
    let reached: BTreeMap<&String, BTreeSet<String>> = imports
        .keys()
        .map(|file| (file, reached(imports, file)))
        .collect();
    let circles: BTreeSet<BTreeSet<String>> = reached
        .iter()
        .map(|(file, found)| {
            let back = |other: &&String| reached.get(other).is_some_and(|found| found.contains(*file));
            found.iter().filter(back).cloned().collect()
        })
        .collect();
    circles.into_iter().filter(|circle| circle.len() > 1).collect()
}

/// The files that each file names, in `use` declarations and in paths.
fn imports(sources: &BTreeMap<String, String>) -> Arrows {
    let files: BTreeMap<Module, &String> = sources.keys().map(|file| (module_of(file), file)).collect();
    let mut imports = Arrows::new();
    for (file, text) in sources {
        let module = module_of(file);
        let used = paths(&without_tests(text))
            .into_iter()
            .filter_map(|path| resolved(&module, &path, &files))
            .filter(|used| *used != file)
            .cloned()
            .collect();
        imports.insert(file.clone(), used);
    }
    imports
}

/// The module that a file is.
fn module_of(file: &str) -> Module {
    let path = file.trim_end_matches(".rs");
    let path = path.strip_suffix("/mod").unwrap_or(path);
    path.split('/')
        .filter(|name| *name != "lib")
        .map(str::to_owned)
        .collect()
}

/// The file that a path of a module leads to; `None` where it leads out of the crate.
fn resolved<'a>(
    module: &[String],
    path: &[String],
    files: &BTreeMap<Module, &'a String>,
) -> Option<&'a String> {
    let ups = path.iter().take_while(|name| *name == "super").count();
    let (start, rest) = match path.first()?.as_str() {
        "crate" => (Vec::new(), path.get(1..)?),
        "self" => (module.to_vec(), path.get(1..)?),
        "super" => (
            module.get(..module.len().checked_sub(ups)?)?.to_vec(),
            path.get(ups..)?,
        ),
        child => {
            let inside = [module, &[child.to_owned()]].concat();
            files.contains_key(&inside).then(|| (module.to_vec(), path))?
        }
    };
    let mut at = start;
    for name in rest {
        at.push(name.clone());
        if !files.contains_key(&at) {
            at.pop();
            break;
        }
    }
    files.get(&at).copied()
}

/// The text without its inline modules of tests.
fn without_tests(text: &str) -> String {
    let mut kept = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let of_tests = line == "#[cfg(test)]"
            && lines
                .peek()
                .is_some_and(|next| next.contains("mod ") && next.ends_with('{'));
        if of_tests {
            for line in lines.by_ref() {
                if line == "}" {
                    break;
                }
            }
        } else {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

/// Every path of more than one name, those in the braces of a `use` joined with what is before.
fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut groups: Vec<Option<Vec<String>>> = Vec::new();
    let mut path: Vec<String> = Vec::new();
    let mut tokens = tokens(code).into_iter().peekable();
    while let Some(token) = tokens.next() {
        let joins = tokens.peek().is_some_and(|next| next == "::");
        match token.as_str() {
            "::" => {}
            "as" => drop(tokens.next()),
            "{" => {
                let group = groups.iter().rev().flatten().next();
                let prefix = group.into_iter().flatten().chain(&path).cloned().collect();
                groups.push((!path.is_empty()).then_some(prefix));
                path.clear();
            }
            "}" => {
                groups.pop();
                path.clear();
            }
            name if name.starts_with(|first: char| first.is_alphabetic() || first == '_') => {
                path.push(name.to_owned());
                if !joins {
                    let group = groups.last().and_then(Option::as_ref);
                    let whole: Vec<String> = group.into_iter().flatten().chain(&path).cloned().collect();
                    path.clear();
                    if whole.len() > 1 {
                        found.push(whole);
                    }
                }
            }
            // The end of a path after `::`, such as a star, or the type in `a::b::<C>`.
            _ if !path.is_empty() => {
                let group = groups.last().and_then(Option::as_ref);
                found.push(group.into_iter().flatten().chain(&path).cloned().collect());
                path.clear();
            }
            _ => {}
        }
    }
    found
}

/// Names, `::` and single signs; no comments, no texts.
fn tokens(code: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    for line in code.lines() {
        let mut rest = line.split("//").next().unwrap_or_default();
        while let Some(first) = rest.chars().next() {
            let length = if first == '"' {
                let inside = rest.get(1..).unwrap_or_default();
                inside.find('"').map_or(rest.len(), |end| end + 2)
            } else if rest.starts_with("::") {
                2
            } else if first.is_alphanumeric() || first == '_' {
                let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
                end.unwrap_or(rest.len())
            } else {
                first.len_utf8()
            };
            let (token, after) = rest.split_at(length);
            if !first.is_whitespace() {
                tokens.push(token.to_owned());
            }
            rest = after;
        }
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(files: &[(&str, &str)]) -> BTreeMap<String, String> {
        let owned = |(file, text): &(&str, &str)| ((*file).to_owned(), (*text).to_owned());
        files.iter().map(owned).collect()
    }

    fn of(files: &[(&str, &str)]) -> Vec<(String, Vec<String>)> {
        let imports = imports(&sources(files)).into_iter();
        imports
            .map(|(file, used)| (file, used.into_iter().collect()))
            .collect()
    }

    #[test]
    fn a_file_names_others_by_use_by_path_and_by_the_names_of_its_children() {
        let files = [
            (
                "a.rs",
                "use crate::{\n    b::{self, Thing},\n    c as other,\n};\nfn f() { part::run() }\n",
            ),
            ("a/part.rs", "use super::Thing;\n// crate::c is only spoken of\n"),
            ("b.rs", "fn f() { crate::c::run(\"crate::a::x\") }\n"),
            ("c.rs", "#[cfg(test)]\nmod tests {\n    use crate::a::Thing;\n}\n"),
        ];
        let used = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            of(&files),
            [
                ("a.rs".to_owned(), used(&["a/part.rs", "b.rs", "c.rs"])),
                ("a/part.rs".to_owned(), used(&["a.rs"])),
                ("b.rs".to_owned(), used(&["c.rs"])),
                ("c.rs".to_owned(), used(&[])),
            ]
        );
    }

    #[test]
    fn a_circle_is_found_and_a_file_that_only_looks_into_it_is_not_of_it() {
        let files = sources(&[
            ("a.rs", "use crate::b::B;\n"),
            ("b.rs", "use crate::c::C;\n"),
            ("c.rs", "use crate::a::A;\n"),
            ("d.rs", "use crate::a::A;\n"),
        ]);
        let circles = circles(&imports(&files));
        assert_eq!(circles.len(), 1);
        assert_eq!(circles[0].len(), 3);
        assert!(!circles[0].contains("d.rs"));
    }

    #[test]
    fn a_room_uses_what_the_table_allows_and_nothing_else() {
        const TABLE: &[(&str, &[&str])] = &[
            ("base", &[]),
            ("accounts", &["base"]),
            ("accounts/sweeps", &["accounts"]),
        ];
        let files = sources(&[
            ("accounts/mod.rs", "use crate::base::Key;\n"),
            (
                "accounts/sweeps/keys.rs",
                "use crate::{accounts::A, base::Key};\n",
            ),
            ("base.rs", "use crate::accounts::A;\n"),
            ("new.rs", ""),
        ]);
        let problems = forbidden("src/a", &imports(&files), TABLE);
        assert_eq!(problems.len(), 3, "{problems:?}");
        assert!(
            problems[0].contains("accounts/sweeps may not use base"),
            "{problems:?}"
        );
        assert!(problems[1].contains("base may not use accounts"), "{problems:?}");
        assert!(problems[2].contains("new.rs: "), "{problems:?}");
    }

    #[test]
    fn what_a_room_may_use_and_does_not_is_a_problem() {
        const TABLE: &[(&str, &[&str])] =
            &[("base", &[]), ("hints", &["base"]), ("pool", &["base", "hints"])];
        let files = sources(&[
            ("base.rs", ""),
            ("hints.rs", "use crate::base::Key;\n"),
            ("pool.rs", "use crate::base::Key;\n"),
        ]);
        let problems = unused("src/a", &between_rooms(&imports(&files), TABLE), TABLE);
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(
            problems[0].contains("pool may use hints and does not"),
            "{problems:?}"
        );
    }

    #[test]
    fn a_room_may_use_rooms_above_it_in_the_table_only() {
        for (_, rooms) in CRATES {
            let mut above = BTreeSet::new();
            for (index, (room, may_use)) in rooms.iter().enumerate() {
                if *may_use == EVERY {
                    assert_eq!(
                        index + 1,
                        rooms.len(),
                        "{room} may use every room, so none may use it"
                    );
                    continue;
                }
                for used in *may_use {
                    assert!(above.contains(used), "{room} uses {used}, which is not above it");
                }
                above.insert(*room);
            }
        }
    }
}
