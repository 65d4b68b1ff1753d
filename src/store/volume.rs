//! Asks the volume behind a store for its room.

use std::{io, path::PathBuf};

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
    fn what_a_file_system_keeps_for_root_is_no_part_of_the_volume() {
        let Space { total, free, .. } = space(4096, 250, 190, 20, (0, 0));
        assert_eq!((total, free), (80 * 4096, 20 * 4096));
    }
}
