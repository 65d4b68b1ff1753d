//! Which files become part of a bundle: patterns as in a `.gitignore`, matched against names only.
//!
//! Without `include` every file is meant; `exclude` then leaves files out. A pattern without a `/` in it means
//! a file or folder with the same name at any depth, one with a `/` is meant from the top, and one with a `/` at
//! its end means folders alone; what lies in a matched folder is matched with it. There are no exceptions
//! (`!`): with two lists there is no need for them, and no order of patterns matters.

use std::time::{Duration, Instant};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

use crate::{Error, File, Limits, Manifest, Packed, pack, quoted};

/// Patterns of one list.
const PATTERNS: usize = 64;
/// Bytes of a pattern.
const PATTERN_BYTES: usize = 256;
/// Longest search through the names of all files. Thousands of names take milliseconds; some patterns, together with some
/// names, would take minutes, and both are made by users.
const LONGEST: Duration = Duration::from_secs(5);

/// A choice among files, by their names.
#[derive(Clone, Debug)]
pub struct Selection {
    /// `None`: all files.
    include: Option<GlobSet>,
    exclude: GlobSet,
    /// Folders of which no file is taken.
    closed: GlobSet,
}

impl Selection {
    /// The files that a pattern of `include` matches, or all if there is none, less the files that one of
    /// `exclude` matches.
    pub fn new<T: AsRef<str>>(include: &[T], exclude: &[T]) -> Result<Self, Error> {
        let include = (!include.is_empty()).then_some(include);
        let include = include.map(|patterns| set(patterns, Form::files)).transpose()?;
        Ok(Self {
            include,
            exclude: set(exclude, Form::files)?,
            closed: set(exclude, Form::folders)?,
        })
    }

    /// Whether every file is taken.
    pub fn is_everything(&self) -> bool {
        self.include.is_none() && self.exclude.is_empty()
    }

    /// Whether the file with this name is taken.
    pub fn takes(&self, path: &str) -> bool {
        let is_meant = self.include.as_ref().is_none_or(|include| include.is_match(path));
        is_meant && !self.exclude.is_match(path)
    }

    /// Whether a file in that folder may be taken: a walk need not enter another one.
    pub fn enters(&self, folder: &str) -> bool {
        !self.closed.is_match(folder)
    }
}

/// The bundle of the selected ones of these files, in whatever order they come.
pub fn pack_selected<'a>(
    files: impl IntoIterator<Item = File<'a>>,
    selection: &Selection,
    limits: Limits,
) -> Result<Packed, Error> {
    let all: Vec<File<'a>> = files.into_iter().collect();
    let is_empty = all.is_empty();
    let some = taken(all, |file| file.path, selection, in_time())?;
    if !is_empty && some.is_empty() {
        return Err(nothing_left());
    }
    pack(some, limits)
}

impl Manifest {
    /// The manifest of the selected files.
    pub fn select(&self, selection: &Selection) -> Result<Self, Error> {
        let some = taken(self.entries(), |entry| entry.path.as_str(), selection, in_time())?;
        if some.is_empty() {
            return Err(nothing_left());
        }
        // A part of what was checked needs no second check: it is sorted, and smaller.
        Ok(Self(some.into_iter().cloned().collect()))
    }
}

/// The selected ones of these files, as long as the search goes on.
fn taken<T>(
    files: impl IntoIterator<Item = T>,
    name: impl Fn(&T) -> &str,
    selection: &Selection,
    goes_on: impl Fn() -> bool,
) -> Result<Vec<T>, Error> {
    let mut some = Vec::new();
    for file in files {
        if !goes_on() {
            return Err(Error::Refused(format!(
                "include and exclude take more than {} s for the names of the files: write fewer patterns, with fewer * and ? in each",
                LONGEST.as_secs()
            )));
        }
        if selection.takes(name(&file)) {
            some.push(file);
        }
    }
    Ok(some)
}

fn in_time() -> impl Fn() -> bool {
    let begun = Instant::now();
    move || begun.elapsed() < LONGEST
}

fn nothing_left() -> Error {
    Error::Refused("include and exclude leave none of the files".to_owned())
}

/// A pattern as globs over whole names.
struct Form {
    /// Matches the file or folder itself.
    itself: String,
    /// Matches all that lies in the folder.
    within: String,
    is_folder: bool,
}

impl Form {
    fn read(pattern: &str) -> Result<Self, Error> {
        let refuse = |why: &str| Err(Error::Refused(format!("the pattern {} {why}", quoted(pattern))));
        if pattern.len() > PATTERN_BYTES {
            return refuse(&format!("has more than {PATTERN_BYTES} bytes"));
        }
        if pattern.starts_with('!') {
            return refuse(
                "begins with !, and there are no exceptions: name what is taken in include, and what is left out in exclude",
            );
        }
        let bare = pattern.strip_suffix('/').unwrap_or(pattern);
        let is_anchored = bare.contains('/');
        let name = bare.strip_prefix('/').unwrap_or(bare);
        if name.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return refuse("names no file: write it as in a .gitignore, such as data/, *.csv or src/**");
        }
        let itself = if is_anchored || name == "**" {
            name.to_owned()
        } else {
            format!("**/{name}")
        };
        Ok(Self {
            within: format!("{itself}/**"),
            itself,
            is_folder: bare.len() < pattern.len(),
        })
    }

    /// The globs that match files.
    fn files(&self) -> Vec<&str> {
        if self.is_folder {
            vec![&self.within]
        } else {
            vec![&self.itself, &self.within]
        }
    }

    /// The globs that match folders all of whose files are matched.
    fn folders(&self) -> Vec<&str> {
        vec![&self.itself, &self.within]
    }
}

fn set<T: AsRef<str>>(patterns: &[T], globs: fn(&Form) -> Vec<&str>) -> Result<GlobSet, Error> {
    if patterns.len() > PATTERNS {
        return Err(Error::Refused(format!(
            "there are {} patterns; at most {PATTERNS} are allowed",
            patterns.len()
        )));
    }
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        let pattern = pattern.as_ref();
        let unreadable = |error: &globset::Error| {
            Error::Refused(format!(
                "the pattern {} cannot be read: {}",
                quoted(pattern),
                error.kind()
            ))
        };
        for glob in globs(&Form::read(pattern)?) {
            let glob = GlobBuilder::new(glob)
                .literal_separator(true)
                .backslash_escape(true)
                .build();
            set.add(glob.map_err(|error| unreadable(&error))?);
        }
    }
    set.build()
        .map_err(|error| Error::Refused(format!("the patterns cannot be read: {}", error.kind())))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::LIMITS;

    fn taken<'a>(include: &[&str], exclude: &[&str], files: &[&'a str]) -> Vec<&'a str> {
        let selection = Selection::new(include, exclude).unwrap();
        files
            .iter()
            .copied()
            .filter(|file| selection.takes(file))
            .collect()
    }

    #[test]
    fn patterns_mean_what_they_mean_in_a_gitignore() {
        let files = [
            "a.py",
            "data/a.csv",
            "data/deep/b.csv",
            "src/data/c.csv",
            "src/exp/train.py",
            "src/notes.md",
        ];
        for (exclude, left_out) in [
            ("data", &[1, 2, 3][..]),
            ("data/", &[1, 2, 3]),
            ("/data", &[1, 2]),
            ("/data/", &[1, 2]),
            ("src/data", &[3]),
            ("**/data", &[1, 2, 3]),
            ("*.csv", &[1, 2, 3]),
            ("/*.py", &[0]),
            ("data/*.csv", &[1]),
            ("data/**", &[1, 2]),
            ("src/**/*.py", &[4]),
            ("[ab].*", &[0, 1, 2]),
            ("a.py/", &[]),
            ("a", &[]),
            ("?.py", &[0]),
            ("**", &[0, 1, 2, 3, 4, 5]),
            ("notes.m\\d", &[5]),
            ("DATA", &[]),
        ] {
            let expected: Vec<&str> = (0..files.len())
                .filter(|at| !left_out.contains(at))
                .map(|at| files[at])
                .collect();
            assert_eq!(taken(&[], &[exclude], &files), expected, "{exclude}");
            // As an include the same pattern means the others.
            let included: Vec<&str> = left_out.iter().map(|at| files[*at]).collect();
            assert_eq!(taken(&[exclude], &[], &files), included, "{exclude}");
        }
        assert_eq!(
            taken(&["src/**", "a.py"], &["*.md", "data"], &files),
            ["a.py", "src/exp/train.py"]
        );
    }

    #[test]
    fn a_walk_leaves_out_folders_of_which_nothing_is_taken_and_no_others() {
        let selection = Selection::new(&["src/**"], &[".venv", "__pycache__/", "build/*", "/x/y"]).unwrap();
        for closed in [".venv", "a/.venv", "a/__pycache__", "build/lib", "x/y", "x/y/z"] {
            assert!(!selection.enters(closed), "{closed}");
        }
        for open in ["build", "x", "a/x/y", "src", "elsewhere"] {
            assert!(selection.enters(open), "{open}");
        }
    }

    #[test]
    fn a_pattern_that_could_never_match_or_means_an_exception_is_refused_with_a_remedy() {
        let long = "x".repeat(PATTERN_BYTES + 1);
        for (pattern, why) in [
            ("", "names no file"),
            ("/", "names no file"),
            ("//", "names no file"),
            ("../secrets", "names no file"),
            ("./data", "names no file"),
            ("a//b", "names no file"),
            ("!keep.py", "there are no exceptions"),
            ("[a", "cannot be read"),
            ("a\\", "cannot be read"),
            (long.as_str(), "more than 256 bytes"),
        ] {
            let error = Selection::new(&[], &[pattern]).unwrap_err().to_string();
            assert!(error.contains(why), "{pattern}: {error}");
        }
        let many = vec!["a"; PATTERNS + 1];
        assert!(Selection::new(&many, &[]).is_err());
    }

    #[test]
    fn a_selection_of_files_is_the_bundle_of_these_files_alone() {
        let file = |path| File {
            path,
            executable: false,
            content: b"x",
        };
        let selection = Selection::new(&[], &["*.csv"]).unwrap();
        let all = [file("b.py"), file("a.csv"), file("c/d.csv")];
        let some = pack_selected(all, &selection, LIMITS).unwrap();
        assert_eq!(some, pack([file("b.py")], LIMITS).unwrap());
        let none = pack_selected([file("a.csv")], &selection, LIMITS).unwrap_err();
        assert!(none.to_string().contains("leave none of the files"), "{none}");
        let empty = pack_selected([], &selection, LIMITS).unwrap_err();
        assert!(empty.to_string().contains("there are no files"), "{empty}");
    }

    #[test]
    fn a_search_that_takes_too_long_is_given_up_with_a_remedy() {
        let selection = Selection::new(&["*.py"], &[]).unwrap();
        let names = ["a.py", "b.csv", "c.py"];
        let search = |goes_on: &dyn Fn() -> bool| super::taken(names, |name| *name, &selection, goes_on);
        assert_eq!(search(&|| true).unwrap(), ["a.py", "c.py"]);
        let looks = std::cell::Cell::new(0);
        let error = search(&|| looks.replace(looks.get() + 1) < 2).unwrap_err();
        assert!(error.to_string().contains("write fewer patterns"), "{error}");
        assert_eq!(looks.get(), 3);
    }

    proptest! {
        #[test]
        fn no_file_is_taken_from_a_folder_that_is_not_entered(
            patterns in prop::collection::vec("[ab*/?]{1,6}", 1..4),
            path in "[ab]{1,2}(/[ab]{1,2}){0,3}",
        ) {
            if let Ok(selection) = Selection::new(&[], &patterns) {
                let folders = path.match_indices('/').map(|(at, _)| &path[..at]);
                for folder in folders {
                    prop_assert!(selection.enters(folder) || !selection.takes(&path), "{folder}");
                }
            }
        }
    }
}
