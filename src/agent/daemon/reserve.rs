//! A file that only takes up room. When a Task has filled the disk the file is deleted, so that the
//! agent can still record and report what happened.

use std::path::PathBuf;

use nix::fcntl::{FallocateFlags, fallocate};

use super::files;

/// The reserve of an agent.
pub(crate) const RESERVE_BYTES: u64 = 16 * 1024 * 1024;

/// Handle to the file; it need not exist.
#[derive(Debug)]
pub(crate) struct Reserve {
    path: PathBuf,
    bytes: u64,
}

impl Reserve {
    /// Allocates the reserve where there is room for it.
    pub(crate) fn new(path: PathBuf, bytes: u64) -> Self {
        let reserve = Self { path, bytes };
        reserve.restore();
        reserve
    }

    /// Deletes the reserve; answers whether there was one.
    pub(crate) fn give_up(&self) -> bool {
        std::fs::remove_file(&self.path).is_ok()
    }

    /// Allocates it again, if the disk has room for several of its size: while a Task still fills
    /// the disk it would only be lost once more.
    pub(crate) fn restore(&self) {
        if self.path.exists() {
            return;
        }
        let Some(parent) = self.path.parent() else { return };
        if free_bytes(parent).is_none_or(|free| free < self.bytes * 4) {
            return;
        }
        let allocated = files::create(&self.path)
            .is_ok_and(|file| fallocate(&file, FallocateFlags::empty(), 0, self.bytes as i64).is_ok());
        if !allocated {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Bytes an ordinary user can still write where `path` is.
pub(crate) fn free_bytes(path: &std::path::Path) -> Option<u64> {
    let room = nix::sys::statvfs::statvfs(path).ok()?;
    Some(room.blocks_available() * room.fragment_size())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_can_be_given_up_once_and_taken_back() {
        let folder = tempfile::tempdir().unwrap();
        let reserve = Reserve::new(folder.path().join("reserve"), 4096);
        assert!(reserve.give_up());
        assert!(!reserve.give_up());
        reserve.restore();
        assert!(reserve.give_up());
    }
}
