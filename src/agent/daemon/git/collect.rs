//! Makes the bundle of a commit's files: first all contents into one file, then, once their digests are known,
//! the head of the bundle and that file behind it.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::{self, BufRead, BufReader, BufWriter, Read, Seek, Write},
    path::Path,
    process::Stdio,
};

use sha2::{Digest as _, Sha256};
use skyward_bundle::{Entry, Error, LIMITS, Manifest, Outline};

use super::{
    fault::Fault,
    repository::{Call, Repository},
    tree::{self, Chosen, TARGET_BYTES, Tree, listed},
};

/// The first line of a file that stands for one in Git LFS, and the longest such file.
const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/v1\n";
const POINTER_BYTES: u64 = 1024;
/// Bytes of the line before a content.
const HEADER_BYTES: u64 = 256;

/// A bundle that is ready to be given out.
#[derive(Debug)]
pub(super) struct Made {
    outline: Outline,
    contents: File,
}

impl Made {
    pub(super) fn give(mut self, to: &mut impl Write) -> io::Result<()> {
        to.write_all(self.outline.head())?;
        self.contents.rewind()?;
        io::copy(&mut self.contents, to)?;
        to.flush()
    }
}

/// The bundle of a folder of a commit.
pub(super) fn bundle(
    repository: &Repository<'_>,
    commit: &str,
    folder: &str,
    is_selected: impl Fn(&str) -> bool,
    scratch: &Path,
) -> Result<Made, Fault> {
    let tree = list(repository, commit)?;
    let names = tree::select(&tree, folder, is_selected)?;
    let links = tree::links(&tree, &names);
    let targets = targets(repository, &tree, links, scratch)?;
    let chosen = tree::choose(&tree, &names, &targets)?;
    contents(repository, &chosen, scratch)
}

fn list(repository: &Repository<'_>, commit: &str) -> Result<Tree, Fault> {
    let arguments = ["ls-tree", "-r", "-z", "-l", "--full-tree", commit];
    let mut call = repository.reading(&arguments, Stdio::null())?;
    let tree = tree::read(&mut call.output)?;
    finished(call)?;
    Ok(tree)
}

fn finished(call: Call) -> Result<(), Fault> {
    let ended = call.end(&mut io::sink())?;
    ended.map_err(|_| Fault::Unavailable("git did not give out all files of the commit".to_owned()))
}

/// Reads objects one after the other, each in its size.
struct Objects {
    call: Call,
}

impl Objects {
    /// Asks for these objects; the list is a file, so that neither side waits for the other.
    fn ask<'a>(
        repository: &Repository<'_>,
        ids: impl Iterator<Item = &'a str>,
        scratch: &Path,
    ) -> Result<Self, Fault> {
        let mut list = scratch_file(&scratch.join("objects.list"))?;
        let mut lines = BufWriter::new(&mut list);
        for id in ids {
            writeln!(lines, "{id}")?;
        }
        lines.flush()?;
        drop(lines);
        list.rewind()?;
        let call = repository.reading(&["cat-file", "--batch"], list.into())?;
        Ok(Self { call })
    }

    /// The next object, which has that id and size.
    fn read(
        &mut self,
        id: &str,
        size: u64,
        take: impl FnOnce(&mut dyn Read) -> io::Result<()>,
    ) -> Result<(), Fault> {
        let output = &mut self.call.output;
        let lost = || Fault::Unavailable("git did not give out all files of the commit".to_owned());
        let mut header = Vec::new();
        output
            .by_ref()
            .take(HEADER_BYTES)
            .read_until(b'\n', &mut header)?;
        if header != format!("{id} blob {size}\n").as_bytes() {
            return Err(lost());
        }
        let mut content = output.by_ref().take(size);
        take(&mut content)?;
        io::copy(&mut content, &mut io::sink())?;
        let is_whole = content.limit() == 0;
        let mut end = [0];
        output.read_exact(&mut end)?;
        if is_whole && end == *b"\n" {
            Ok(())
        } else {
            Err(lost())
        }
    }

    fn end(self) -> Result<(), Fault> {
        finished(self.call)
    }
}

fn scratch_file(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
}

/// Where links lead.
fn targets(
    repository: &Repository<'_>,
    tree: &Tree,
    links: Vec<String>,
    scratch: &Path,
) -> Result<BTreeMap<String, String>, Fault> {
    let links: Vec<_> = links
        .into_iter()
        .filter_map(|path| Some((tree.get(&path)?, path)))
        .collect();
    if links.is_empty() {
        return Ok(BTreeMap::new());
    }
    let mut objects = Objects::ask(
        repository,
        links.iter().map(|(item, _)| item.id.as_str()),
        scratch,
    )?;
    let mut targets = BTreeMap::new();
    for (item, path) in links {
        let mut target = Vec::new();
        objects.read(&item.id, item.size, |content| {
            content.take(TARGET_BYTES).read_to_end(&mut target).map(drop)
        })?;
        // One that is no text leads nowhere that has a name here.
        if let Ok(target) = String::from_utf8(target) {
            targets.insert(path, target);
        }
    }
    objects.end()?;
    Ok(targets)
}

/// All contents one after the other, and the head of their bundle.
fn contents(repository: &Repository<'_>, chosen: &[Chosen], scratch: &Path) -> Result<Made, Fault> {
    let mut file = scratch_file(&scratch.join("contents"))?;
    let mut into = BufWriter::new(&mut file);
    let mut objects = Objects::ask(repository, chosen.iter().map(|file| file.id.as_str()), scratch)?;
    let mut entries = Vec::with_capacity(chosen.len());
    let mut pointers = Vec::new();
    for file in chosen {
        let mut hash = Sha256::new();
        let mut first = Vec::new();
        objects.read(&file.id, file.size, |content| {
            let mut content = BufReader::with_capacity(64 * 1024, content);
            loop {
                let piece = content.fill_buf()?;
                if piece.is_empty() {
                    return Ok(());
                }
                if first.len() < POINTER.len() {
                    first.extend_from_slice(&piece[..piece.len().min(POINTER.len() - first.len())]);
                }
                hash.update(piece);
                into.write_all(piece)?;
                let read = piece.len();
                content.consume(read);
            }
        })?;
        if file.size <= POINTER_BYTES && first == POINTER {
            pointers.push(file.path.as_str());
        }
        entries.push(Entry {
            path: file.path.clone(),
            executable: file.executable,
            size: file.size,
            sha256: hash.finalize().into(),
        });
    }
    objects.end()?;
    into.flush()?;
    drop(into);
    if !pointers.is_empty() {
        return Err(Fault::Invalid(format!(
            "the repository keeps files in Git LFS, which are not fetched: {}. Leave them out with source.exclude, and read large data from an object store",
            listed(&pointers)
        )));
    }
    let manifest = Manifest::of(entries, LIMITS).map_err(|error| match error {
        Error::Refused(why) => Fault::Invalid(format!("the repository cannot be a source: {why}")),
        Error::Io(error) => error.into(),
    })?;
    Ok(Made {
        outline: Outline::of(&manifest),
        contents: file,
    })
}
