//! Makes a bundle in memory.

use sha2::{Digest as _, Sha256};

use crate::{Digest, Entry, Error, Limits, Manifest};

/// A file that becomes part of a bundle.
#[derive(Clone, Copy, Debug)]
pub struct File<'a> {
    /// Its name with its folders, separated by `/`.
    pub path: &'a str,
    /// Whether it may be executed.
    pub executable: bool,
    /// Its content.
    pub content: &'a [u8],
}

/// A bundle in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// Its digest.
    pub digest: Digest,
    /// As it is sent and stored.
    pub bytes: Vec<u8>,
}

/// The bundle of these files, in whatever order they come.
pub fn pack<'a>(files: impl IntoIterator<Item = File<'a>>, limits: Limits) -> Result<Packed, Error> {
    let mut files: Vec<File<'a>> = files.into_iter().collect();
    files.sort_by_key(|file| file.path);
    let entries = files.iter().map(|file| Entry {
        path: file.path.to_owned(),
        executable: file.executable,
        size: file.content.len() as u64,
        sha256: Sha256::digest(file.content).into(),
    });
    let manifest = Manifest::of(entries.collect(), limits)?;
    let mut bytes = manifest.head();
    bytes.reserve(manifest.bytes() as usize);
    for file in &files {
        bytes.extend_from_slice(file.content);
    }
    Ok(Packed {
        digest: manifest.digest(),
        bytes,
    })
}
