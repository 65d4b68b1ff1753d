//! Files and folders on the machine that the agent makes: files only for its own user, folders with
//! a mode.

use std::{
    ffi::OsString,
    fs::{DirBuilder, File, OpenOptions},
    io::{self, ErrorKind},
    os::{
        fd::AsRawFd,
        unix::fs::{DirBuilderExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

/// A file by a short name: that of a socket may be 107 bytes long, and our folders' may be longer.
#[derive(Debug)]
pub(super) struct Short {
    folder: File,
    name: OsString,
}

impl Short {
    /// Valid as long as this lives.
    pub(super) fn name(&self) -> PathBuf {
        let folder = self.folder.as_raw_fd().to_string();
        Path::new("/proc/self/fd").join(folder).join(&self.name)
    }
}

/// Opens the folder of that path.
pub(super) fn short(path: &Path) -> io::Result<Short> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(ErrorKind::InvalidInput.into());
    };
    Ok(Short {
        folder: File::open(folder)?,
        name: name.to_owned(),
    })
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.create(true).mode(0o600);
    options
}

/// Opens a file with its content, or makes an empty one.
pub(super) fn open(path: impl AsRef<Path>) -> io::Result<File> {
    private().read(true).write(true).truncate(false).open(path)
}

/// Opens a file without its content, or makes an empty one.
pub(super) fn create(path: impl AsRef<Path>) -> io::Result<File> {
    private().read(true).write(true).truncate(true).open(path)
}

/// Makes an empty file; fails if there is one.
pub(super) fn create_new(path: impl AsRef<Path>) -> io::Result<File> {
    private().write(true).create_new(true).open(path)
}

/// Opens a file to write at its end, or makes an empty one.
pub(super) fn append(path: impl AsRef<Path>) -> io::Result<File> {
    private().append(true).open(path)
}

/// Makes a folder, where there is none.
pub(super) fn make_folder(path: &Path, mode: u32) -> io::Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Makes a folder and those above it, where there are none.
pub(super) fn make_folders(path: &Path, mode: u32) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(mode).create(path)
}
