//! The files of a folder as a bundle: which ones, their digest, and their bytes part by part. The contents are
//! read from the disk when they are sent, so a large folder takes little memory.

use std::{
    collections::BTreeMap,
    fs::{self, File, Metadata},
    io::{self, Read as _, Seek as _, SeekFrom},
    ops::Range,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, anyhow, bail};
use skyward_bundle::{Digest, Entry, LIMITS, Manifest, Outline, Piece, Selection};

/// Names that are left out at any depth.
pub(crate) const LEFT_OUT: [&str; 3] = [".git", ".venv", "__pycache__"];
/// Files that are looked at, to say which folders are too large.
const LOOKED_AT: usize = 1_000_000;
/// Folders that are named when a folder is too large.
const NAMED: usize = 5;

/// A file that is taken.
#[derive(Debug)]
struct Found {
    /// Its name in the bundle.
    name: String,
    /// Where its content is.
    path: PathBuf,
    executable: bool,
    bytes: u64,
}

/// The files of a folder.
#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) digest: Digest,
    outline: Outline,
    /// Where each content is, in the order of the bundle.
    paths: Vec<PathBuf>,
}

impl Files {
    /// Reads the selected files of a folder once, for their digest.
    pub(crate) fn read(folder: &Path, selection: &Selection) -> Result<Self> {
        let mut found = walk(folder, selection)?;
        fits(&found)?;
        found.sort_by(|a, b| a.name.cmp(&b.name));
        let mut entries = Vec::with_capacity(found.len());
        for file in &found {
            let read = File::open(&file.path)
                .and_then(|content| Entry::of(file.name.clone(), file.executable, content));
            entries.push(read.with_context(|| format!("reading {}", file.path.display()))?);
        }
        let manifest = Manifest::of(entries, LIMITS)
            .with_context(|| format!("the files of {} cannot be uploaded", folder.display()))?;
        Ok(Self {
            digest: manifest.digest(),
            outline: Outline::of(&manifest),
            paths: found.into_iter().map(|file| file.path).collect(),
        })
    }

    /// How many files there are.
    pub(crate) fn count(&self) -> usize {
        self.paths.len()
    }

    /// Bytes of the bundle.
    pub(crate) fn bytes(&self) -> u64 {
        self.outline.bytes()
    }

    /// Some bytes of the bundle.
    pub(crate) fn part(&self, range: Range<u64>) -> Result<Vec<u8>> {
        let mut part = Vec::new();
        for piece in self.outline.pieces(range) {
            match piece {
                Piece::Head(range) => part.extend_from_slice(&self.outline.head()[range]),
                Piece::Content { file, range } => {
                    let path = &self.paths[file];
                    append(path, range, &mut part).with_context(|| {
                        format!(
                            "{} changed while it was uploaded; upload the folder again",
                            path.display()
                        )
                    })?;
                }
            }
        }
        Ok(part)
    }
}

fn append(path: &Path, range: Range<u64>, to: &mut Vec<u8>) -> io::Result<()> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(range.start))?;
    let length = range.end - range.start;
    let read = file.take(length).read_to_end(to)?;
    if read as u64 == length {
        Ok(())
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

/// All selected files below a folder.
fn walk(folder: &Path, selection: &Selection) -> Result<Vec<Found>> {
    let root = folder
        .canonicalize()
        .with_context(|| format!("the folder {}", folder.display()))?;
    if !root.is_dir() {
        bail!(
            "{} is no folder; name the folder that the file lies in, and --include the file",
            folder.display()
        );
    }
    let mut found = Vec::new();
    // Names of folders below the root, which are still to be looked into.
    let mut folders = vec![String::new()];
    while let Some(inside) = folders.pop() {
        let path = root.join(&inside);
        let entries = fs::read_dir(&path).with_context(|| format!("reading {}", path.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("reading {}", path.display()))?;
            let path = entry.path();
            let name = entry
                .file_name()
                .into_string()
                .map_err(|_| anyhow!("{} has a name that is not UTF-8; rename it", path.display()))?;
            let name = if inside.is_empty() {
                name
            } else {
                format!("{inside}/{name}")
            };
            let kind = entry
                .file_type()
                .with_context(|| format!("reading {}", path.display()))?;
            if kind.is_dir() {
                if selection.enters(&name) {
                    folders.push(name);
                }
            } else if selection.takes(&name) {
                let (path, metadata) = if kind.is_symlink() {
                    linked(&root, &path)?
                } else {
                    let metadata = entry.metadata();
                    (
                        path.clone(),
                        metadata.with_context(|| format!("reading {}", path.display()))?,
                    )
                };
                if !metadata.is_file() {
                    bail!(
                        "{} is neither a file nor a folder: leave it out (--exclude)",
                        path.display()
                    );
                }
                if found.len() == LOOKED_AT {
                    return Ok(found);
                }
                found.push(Found {
                    executable: is_executable(&metadata),
                    bytes: metadata.len(),
                    name,
                    path,
                });
            }
        }
    }
    Ok(found)
}

/// The file that a link leads to: one of the same folder.
fn linked(root: &Path, link: &Path) -> Result<(PathBuf, Metadata)> {
    let remedy = "leave the link out (--exclude), or put a copy in its place";
    let target = link
        .canonicalize()
        .with_context(|| format!("{} is a link that leads nowhere; {remedy}", link.display()))?;
    let Ok(inside) = target.strip_prefix(root) else {
        bail!(
            "{} is a link to {}, outside of the folder; {remedy}",
            link.display(),
            target.display()
        );
    };
    // The settings of a repository may hold a token of its user, and the link may come from somebody else.
    if inside.iter().any(|name| name.eq_ignore_ascii_case(".git")) {
        bail!("{} is a link into a repository of git; {remedy}", link.display());
    }
    let metadata = fs::symlink_metadata(&target).with_context(|| format!("reading {}", target.display()))?;
    if metadata.is_dir() {
        bail!("{} is a link to a folder; {remedy}", link.display());
    }
    Ok((target, metadata))
}

#[cfg(unix)]
fn is_executable(metadata: &Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    metadata.permissions().mode() & 0o111 != 0
}

#[cfg(not(unix))]
fn is_executable(_: &Metadata) -> bool {
    false
}

/// Refuses more files or bytes than a bundle may have, and says where most of them are.
fn fits(found: &[Found]) -> Result<()> {
    let bytes: u64 = found.iter().map(|file| file.bytes).sum();
    if found.len() <= LIMITS.files && bytes <= LIMITS.bytes {
        return Ok(());
    }
    let many = found.len() > LIMITS.files;
    let (has, most) = if many {
        (
            format!("{} files or more", found.len()),
            format!("{} files", LIMITS.files),
        )
    } else {
        (amount(bytes), amount(LIMITS.bytes))
    };
    let largest = largest(found, |file| if many { 1 } else { file.bytes });
    let largest: Vec<String> = largest
        .into_iter()
        .map(|(name, weight)| {
            let weight = if many {
                format!("{weight} files")
            } else {
                amount(weight)
            };
            format!("  {name}  {weight}")
        })
        .collect();
    bail!(
        "the folder is too large for an upload: it has {has}, and at most {most} are taken. Leave out what the Tasks do not need (--exclude), and keep data in object storage. Most of it is in:\n{}",
        largest.join("\n")
    )
}

/// The heaviest files and folders, below the one folder that has nearly all.
fn largest(found: &[Found], weight: impl Fn(&Found) -> u64) -> Vec<(String, u64)> {
    let mut inside = String::new();
    loop {
        let mut weights: BTreeMap<String, u64> = BTreeMap::new();
        for file in found {
            let Some(rest) = file.name.strip_prefix(inside.as_str()) else {
                continue;
            };
            let name = match rest.split_once('/') {
                Some((folder, _)) => format!("{inside}{folder}/"),
                None => file.name.clone(),
            };
            *weights.entry(name).or_default() += weight(file);
        }
        let whole: u64 = weights.values().sum();
        let mut largest: Vec<(String, u64)> = weights.into_iter().collect();
        largest.sort_by_key(|(_, weight)| std::cmp::Reverse(*weight));
        match largest.first() {
            Some((name, weight)) if name.ends_with('/') && weight * 10 > whole * 9 => {
                inside.clone_from(name);
            }
            _ => {
                largest.truncate(NAMED);
                return largest;
            }
        }
    }
}

/// Bytes for people.
pub(crate) fn amount(bytes: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.iter().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) => format!("{:.1} {name}", bytes as f64 / *unit as f64),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use skyward_bundle::{Reader, pack};

    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        folder
    }

    fn selection(exclude: &[&str]) -> Selection {
        let all: Vec<&str> = LEFT_OUT.iter().chain(exclude).copied().collect();
        Selection::new(&[], &all).unwrap()
    }

    fn names(folder: &tempfile::TempDir, exclude: &[&str]) -> Result<Vec<String>> {
        let files = Files::read(folder.path(), &selection(exclude))?;
        let bytes = files.part(0..files.bytes()).unwrap();
        let reader = Reader::open(&*bytes, LIMITS).unwrap();
        assert_eq!(reader.digest(), files.digest);
        let names = reader.manifest().entries().iter().map(|entry| entry.path.clone());
        let names = names.collect();
        reader.verify().unwrap();
        Ok(names)
    }

    #[test]
    fn a_folder_is_the_bundle_of_its_files_in_parts_of_any_size() {
        let content = [
            ("a.py", "print(1)"),
            ("exp/run.sh", "#!/bin/sh"),
            ("exp/empty", ""),
        ];
        let folder = folder(&content);
        let run = folder.path().join("exp/run.sh");
        fs::set_permissions(run, fs::Permissions::from_mode(0o700)).unwrap();
        let files = Files::read(folder.path(), &selection(&[])).unwrap();
        let expected = pack(
            content.iter().map(|(path, content)| skyward_bundle::File {
                path,
                executable: *path == "exp/run.sh",
                content: content.as_bytes(),
            }),
            LIMITS,
        );
        let expected = expected.unwrap();
        assert_eq!(
            (files.digest, files.count(), files.bytes()),
            (expected.digest, 3, expected.bytes.len() as u64)
        );
        for size in [1, 7, 1000] {
            let mut bytes = Vec::new();
            while (bytes.len() as u64) < files.bytes() {
                let at = bytes.len() as u64;
                bytes.extend(files.part(at..files.bytes().min(at + size)).unwrap());
            }
            assert_eq!(bytes, expected.bytes, "{size}");
        }
        fs::write(folder.path().join("a.py"), "shorter").unwrap();
        let changed = files.part(0..files.bytes()).unwrap_err().to_string();
        assert!(changed.contains("a.py changed while"), "{changed}");
    }

    #[test]
    fn the_sample_and_its_page_name_the_digest_of_its_folder() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let code = format!("{root}/config/samples/upload/code");
        let digest = Files::read(Path::new(&code), &selection(&[])).unwrap().digest;
        for page in ["config/samples/upload/task.yaml", "docs/how-do-i.md"] {
            let text = fs::read_to_string(format!("{root}/{page}")).unwrap();
            assert!(
                text.contains(&digest.to_string()),
                "{page} does not name {digest}"
            );
        }
    }

    #[test]
    fn what_is_left_out_is_not_even_looked_at() {
        let folder = folder(&[
            ("train.py", "x"),
            (".git/config", "x"),
            ("exp/.venv/lib/a.py", "x"),
            ("exp/__pycache__/a.pyc", "x"),
            ("exp/data/a.csv", "x"),
            ("exp/model.py", "x"),
        ]);
        symlink("/etc/passwd", folder.path().join("exp/data/link")).unwrap();
        assert_eq!(names(&folder, &["data"]).unwrap(), ["exp/model.py", "train.py"]);
    }

    #[test]
    fn a_link_to_a_file_of_the_folder_becomes_a_copy_and_another_one_is_refused() {
        let folder = folder(&[("lib/a.py", "x"), (".git/config", "token")]);
        symlink("lib/a.py", folder.path().join("b.py")).unwrap();
        assert_eq!(names(&folder, &[]).unwrap(), ["b.py", "lib/a.py"]);
        for (target, why) in [
            ("/etc/passwd", "outside of the folder"),
            ("..", "outside of the folder"),
            ("lib", "a link to a folder"),
            (".git/config", "a link into a repository of git"),
            ("nowhere", "leads nowhere"),
            ("loop", "leads nowhere"),
        ] {
            let link = folder.path().join("loop");
            symlink(target, &link).unwrap();
            let refused = format!("{:#}", names(&folder, &[]).unwrap_err());
            assert!(
                refused.contains(why) && refused.contains("--exclude"),
                "{target}: {refused}"
            );
            assert_eq!(names(&folder, &["loop"]).unwrap(), ["b.py", "lib/a.py"]);
            fs::remove_file(link).unwrap();
        }
    }

    #[test]
    fn a_folder_that_cannot_be_uploaded_is_refused_in_words() {
        let empty = tempfile::tempdir().unwrap();
        let refused = format!("{:#}", names(&empty, &[]).unwrap_err());
        assert!(refused.contains("there are no files"), "{refused}");
        let file = folder(&[("a", "x")]);
        let refused = Files::read(&file.path().join("a"), &selection(&[])).unwrap_err();
        assert!(refused.to_string().contains("is no folder"), "{refused}");
        assert!(Files::read(&file.path().join("b"), &selection(&[])).is_err());
    }

    #[test]
    fn a_folder_that_is_too_large_says_where_most_of_it_is() {
        let found = |name: &str, bytes: u64| Found {
            name: name.into(),
            path: PathBuf::new(),
            executable: false,
            bytes,
        };
        let mib = 1 << 20;
        let files = [
            found("train.py", 10),
            found("exp/data/big/a.bin", 200 * mib),
            found("exp/data/big/b.bin", 30 * mib),
            found("exp/data/small.csv", 60 * mib),
            found("exp/model.py", mib),
        ];
        assert!(fits(&files[..2]).is_ok());
        let refused = fits(&files).unwrap_err().to_string();
        assert!(
            refused.contains("it has 291.0 MiB, and at most 256.0 MiB"),
            "{refused}"
        );
        let named: Vec<&str> = refused.lines().skip(1).collect();
        assert_eq!(
            named,
            ["  exp/data/big/  230.0 MiB", "  exp/data/small.csv  60.0 MiB"]
        );
        let many: Vec<Found> = (0..=LIMITS.files)
            .map(|number| found(&format!("cache/{number}"), 0))
            .chain([found("a.py", 1)])
            .collect();
        let refused = fits(&many).unwrap_err().to_string();
        assert!(refused.contains("50002 files or more"), "{refused}");
    }
}
