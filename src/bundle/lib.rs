//! Bundles: the one form that code has on its way to a machine, wherever it came from.
//!
//! A bundle is a manifest, which names each file with its mode, its size and the SHA-256 of its content, and
//! behind the manifest the contents in the same order. The digest of a bundle is that of its manifest: it
//! depends on names, contents and executable bits, and on nothing else, such as an order, a time or an owner.
//! Links, devices, owners and times cannot be written down in this form, so there are none to be refused.
//!
//! What is read is hostile: the whole manifest is checked before the first content is given out, and a bundle
//! is accepted only in the one way to write it, so that two bundles of one digest are the same bytes.
//! Pure, but for the clock that bounds a search by patterns: a reader reads from any [`Read`](std::io::Read) and knows no
//! file system. Which files of a folder
//! become part of a bundle is chosen by their names alone ([`Selection`]), and a bundle that is too large to
//! be held in memory is made or divided along its [`Outline`].

mod manifest;
mod outline;
mod path;
mod read;
mod selection;
#[cfg(test)]
mod tests;
mod write;

use std::io;

pub use self::{
    manifest::{Digest, Entry, Manifest},
    outline::{Outline, Piece, START, head_bytes},
    read::Reader,
    selection::{Selection, pack_selected},
    write::{File, Packed, pack},
};

/// What a bundle may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Files.
    pub files: usize,
    /// Bytes of all contents together.
    pub bytes: u64,
}

/// The limits of every bundle.
pub const LIMITS: Limits = Limits {
    files: 50_000,
    bytes: 256 * 1024 * 1024,
};

/// Bytes of a manifest.
const MANIFEST_BYTES: u32 = 16 * 1024 * 1024;
/// The first line of a bundle. Its digest begins with it, too.
const MAGIC: &[u8] = b"skyward-bundle 1\n";

impl Limits {
    /// Bytes of the longest bundle within these limits.
    pub const fn packed(self) -> u64 {
        MAGIC.len() as u64 + 4 + MANIFEST_BYTES as u64 + self.bytes
    }
}

/// Why files are no bundle, or could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A rule is broken: trying again does not help.
    #[error("{0}")]
    Refused(String),
    /// Reading, or what was done with a content, failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A name of others in a message: it may be long, and hold anything.
fn quoted(name: &str) -> String {
    const MOST: usize = 100;
    let cut = &name[..name.floor_char_boundary(MOST)];
    let more = if cut.len() < name.len() { "…" } else { "" };
    format!("{cut:?}{more}")
}
