//! Makes a bundle: in memory, or its head, behind which the maker writes the contents itself.

use sha2::{Digest as _, Sha256};

use crate::{Digest, Entry, Error, Limits, MAGIC, MANIFEST_BYTES, Manifest};

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

/// The beginning of a bundle. Behind it come the contents of its files, sorted by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The digest of the bundle.
    pub digest: Digest,
    /// As it is sent and stored.
    pub bytes: Vec<u8>,
}

/// The head of the bundle of these files, in whatever order they come.
pub fn head(entries: Vec<Entry>, limits: Limits) -> Result<Head, Error> {
    let manifest = Manifest::of(entries, limits).map_err(Error::Refused)?;
    let text = manifest.encode();
    // The rules of the manifest bound its length.
    let length = u32::try_from(text.len()).unwrap_or(MANIFEST_BYTES);
    let mut bytes = Vec::with_capacity(MAGIC.len() + 4 + text.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(&text);
    Ok(Head {
        digest: manifest.digest(),
        bytes,
    })
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
    let Head { digest, mut bytes } = head(entries.collect(), limits)?;
    for file in &files {
        bytes.extend_from_slice(file.content);
    }
    Ok(Packed { digest, bytes })
}
