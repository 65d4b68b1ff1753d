//! Asks the volume behind a store for its room.

use std::{
    fs,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};

use nix::sys::statvfs::statvfs;

use crate::ledger::Space;

/// A volume with limited room.
pub trait Volume: Send + Sync {
    /// Its room now. The call may block.
    fn space(&self) -> io::Result<Space>;
}

/// The file system on which a directory is.
pub(crate) struct Directory(pub(crate) PathBuf);

impl Volume for Directory {
    fn space(&self) -> io::Result<Space> {
        let stat = statvfs(&self.0)?;
        Ok(space(
            stat.fragment_size(),
            stat.blocks(),
            stat.blocks_free(),
            stat.blocks_available(),
            (stat.files(), stat.files_available()),
        ))
    }
}

/// Whether files can have a second name in a folder: a new object gets its name by one, so that it
/// never takes the place of another. SMB shares, for example, have no such names.
pub(crate) fn has_hard_links(folder: &Path) -> bool {
    let (file, link) = (folder.join(".first-name"), folder.join(".second-name"));
    let _ = fs::remove_file(&link);
    // A volume that is full or broken says nothing about that.
    let linked = fs::write(&file, []).and_then(|()| fs::hard_link(&file, &link));
    let _ = (fs::remove_file(&link), fs::remove_file(&file));
    !linked.is_err_and(|error| matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::PermissionDenied))
}

/// Blocks that a file system keeps for root are free but not available. They count neither as
/// free nor in the total: else a tenth of the total could be more than was ever available.
/// Where files are not counted their number is 0.
fn space(unit: u64, blocks: u64, free: u64, available: u64, (files, files_free): (u64, u64)) -> Space {
    let used = blocks.saturating_sub(free);
    Space {
        total: used.saturating_add(available).saturating_mul(unit),
        free: available.saturating_mul(unit),
        files,
        files_free,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_asked_for_hard_links_and_nothing_of_that_stays() {
        let folder = tempfile::tempdir().unwrap();
        assert!(has_hard_links(folder.path()));
        assert!(has_hard_links(folder.path()), "again, as after a restart");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_a_file_system_keeps_for_root_is_no_part_of_the_volume() {
        let Space { total, free, .. } = space(4096, 250, 190, 20, (0, 0));
        assert_eq!((total, free), (80 * 4096, 20 * 4096));
    }
}
