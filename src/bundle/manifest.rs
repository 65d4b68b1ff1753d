//! The manifest of a bundle: one way to write it, checked as a whole.

use std::{
    collections::HashSet,
    fmt,
    io::{self, Read},
    str::FromStr,
};

use sha2::{Digest as _, Sha256};

use crate::{Error, Limits, MAGIC, MANIFEST_BYTES, path, quoted};

const ALGORITHM: &str = "sha256:";

/// The digest of a bundle, written `sha256:` and 64 letters and digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub(crate) [u8; 32]);

impl Digest {
    /// The digest without the name of its algorithm.
    pub fn hex(&self) -> String {
        hex(&self.0)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{ALGORITHM}{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digest = text.strip_prefix(ALGORITHM).and_then(unhex);
        digest
            .map(Self)
            .ok_or_else(|| format!("{} is no digest of a bundle", quoted(text)))
    }
}

/// A file of a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name with its folders, separated by `/`.
    pub path: String,
    /// Whether it may be executed.
    pub executable: bool,
    /// Bytes of its content.
    pub size: u64,
    /// SHA-256 of its content.
    pub sha256: [u8; 32],
}

/// The files of a bundle, sorted by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest(pub(crate) Vec<Entry>);

impl Entry {
    /// The entry of a file whose content is read to its end, and not kept.
    pub fn of(path: String, executable: bool, mut content: impl Read) -> io::Result<Self> {
        let mut hash = Sha256::new();
        let size = io::copy(&mut content, &mut hash)?;
        Ok(Self {
            path,
            executable,
            size,
            sha256: hash.finalize().into(),
        })
    }
}

impl Manifest {
    /// The manifest of these files, in whatever order they come.
    pub fn of(mut entries: Vec<Entry>, limits: Limits) -> Result<Self, Error> {
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        check(&entries, limits).map_err(Error::Refused)?;
        Ok(Self(entries))
    }

    /// Reads a manifest; every other way to write it is refused.
    pub(crate) fn parse(text: &[u8], limits: Limits) -> Result<Self, String> {
        let Some(lines) = text.strip_suffix(b"\0") else {
            return Err("the bundle has no files, or its manifest does not end with one".to_owned());
        };
        let mut entries = Vec::new();
        for line in lines.split(|byte| *byte == 0) {
            if entries.len() == limits.files {
                return Err(too_many(limits));
            }
            entries.push(parse_entry(line)?);
        }
        check(&entries, limits)?;
        let manifest = Self(entries);
        if manifest.encode() != text {
            return Err("the bundle's manifest is written in another way than it has to be".to_owned());
        }
        Ok(manifest)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut text = Vec::new();
        for entry in &self.0 {
            let mode = if entry.executable { "0755" } else { "0644" };
            let Entry { path, size, .. } = entry;
            text.extend_from_slice(format!("{mode} {size} {} {path}\0", hex(&entry.sha256)).as_bytes());
        }
        text
    }

    /// All that stands in front of the contents in a bundle.
    pub(crate) fn head(&self) -> Vec<u8> {
        let text = self.encode();
        // The rules for all files together bound its length.
        let length = u32::try_from(text.len()).unwrap_or(MANIFEST_BYTES);
        [MAGIC, &length.to_be_bytes(), &text].concat()
    }

    /// The digest of the bundle.
    pub fn digest(&self) -> Digest {
        Digest(
            Sha256::new()
                .chain_update(MAGIC)
                .chain_update(self.encode())
                .finalize()
                .into(),
        )
    }

    /// The files, sorted by name.
    pub fn entries(&self) -> &[Entry] {
        &self.0
    }

    /// Bytes of all contents.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|entry| entry.size).sum()
    }
}

fn parse_entry(line: &[u8]) -> Result<Entry, String> {
    let line = std::str::from_utf8(line).map_err(|_| "the bundle has a name that is not UTF-8".to_owned())?;
    let mut parts = line.splitn(4, ' ');
    let mut part = || parts.next().unwrap_or_default();
    let (mode, size, sha256, path) = (part(), part(), part(), part());
    let executable = match mode {
        "0644" => false,
        "0755" => true,
        other => {
            return Err(format!(
                "the bundle has a file of mode {}; there are 0644 and 0755",
                quoted(other)
            ));
        }
    };
    let size = size.parse();
    let (Ok(size), Some(sha256)) = (size, unhex(sha256)) else {
        return Err(format!(
            "the bundle does not say the size and the SHA-256 of {}",
            quoted(path)
        ));
    };
    Ok(Entry {
        path: path.to_owned(),
        executable,
        size,
        sha256,
    })
}

/// The rules for all files together.
fn check(entries: &[Entry], limits: Limits) -> Result<(), String> {
    if entries.is_empty() {
        return Err("there are no files".to_owned());
    }
    if entries.len() > limits.files {
        return Err(too_many(limits));
    }
    let mut bytes = 0_u64;
    let mut written = MAGIC.len();
    let mut files = HashSet::with_capacity(entries.len());
    for entry in entries {
        path::check(&entry.path)?;
        bytes = bytes.saturating_add(entry.size);
        if bytes > limits.bytes {
            return Err(format!(
                "the files have more than {} bytes together",
                limits.bytes
            ));
        }
        // Mode, size and digest take at most 92 bytes.
        written += 92 + entry.path.len();
        files.insert(entry.path.as_str());
    }
    if written > MANIFEST_BYTES as usize {
        return Err("the names of the files are too long together".to_owned());
    }
    for pair in entries.windows(2) {
        if pair[0].path == pair[1].path {
            return Err(format!("the file {} is there twice", quoted(&pair[0].path)));
        }
        if pair[0].path > pair[1].path {
            return Err("the files are not sorted by name".to_owned());
        }
    }
    for entry in entries {
        if let Some(file) = path::folders(&entry.path).find(|folder| files.contains(folder)) {
            return Err(format!("{} is a file and a folder", quoted(file)));
        }
    }
    Ok(())
}

fn too_many(limits: Limits) -> String {
    format!("there are more than {} files", limits.files)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if text.len() != 64 || !text.bytes().all(is_hex) {
        return None;
    }
    let mut bytes = [0; 32];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}
