//! Deletes the folders of forgotten runs, in the background: a task may have left millions
//! of files, folders it made read-only, or folders in folders a hundred thousand deep. A folder
//! first moves aside, so its name is free at once, and a half-deleted one is never taken for a run.
//!
//! The content of such a folder is its user's, who may still have a process that changes it. So
//! folders are used by their open handles, links are never followed, and deletion does not descend:
//! a folder inside of a folder moves up into the trash, which is ours.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::{self, File, OpenOptions, Permissions},
    io::{self, ErrorKind},
    os::{
        fd::AsRawFd,
        unix::fs::{OpenOptionsExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{SyncSender, sync_channel},
    },
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, openat, renameat},
    sys::stat::Mode,
    unistd::{UnlinkatFlags, unlinkat},
};

use super::{files, home::Home};

/// Entries of one folder that are looked at before the others have their turn.
const TURN: usize = 100_000;

/// Handle of the thread that deletes, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct Trash {
    folder: PathBuf,
    names: Names,
    wake: SyncSender<()>,
}

/// Names in the trash, each of them once.
#[derive(Clone, Debug)]
struct Names(Arc<AtomicU64>);

impl Names {
    fn next(&self) -> String {
        self.0.fetch_add(1, Ordering::Relaxed).to_string()
    }
}

impl Trash {
    /// Also throws away folders of unknown runs, which a crash has left.
    pub(super) fn open(home: &Home, known: &BTreeSet<String>) -> io::Result<Self> {
        let folder = home.trash();
        files::make_folders(&folder, 0o700)?;
        let (wake, woken) = sync_channel::<()>(1);
        // The count starts at the time, so no earlier name is used again.
        let names = Names(Arc::new(AtomicU64::new(super::unix_ms() << 16)));
        let (sweep, sweep_names) = (folder.clone(), names.clone());
        std::thread::Builder::new().name("trash".into()).spawn(move || {
            empty(&sweep, &sweep_names);
            while woken.recv().is_ok() {
                empty(&sweep, &sweep_names);
            }
        })?;
        let trash = Self { folder, names, wake };
        for entry in fs::read_dir(home.runs())? {
            let entry = entry?;
            if !entry
                .file_name()
                .to_str()
                .is_some_and(|name| known.contains(name))
            {
                trash.throw(&entry.path());
            }
        }
        Ok(trash)
    }

    /// Moves a folder aside, to be deleted.
    pub(super) fn throw(&self, path: &Path) {
        match fs::rename(path, self.folder.join(self.names.next())) {
            // A thread that was woken already looks at this folder, too.
            Ok(()) => drop(self.wake.try_send(())),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "a run's folder could not be moved aside");
            }
        }
    }
}

/// Deletes what can be deleted.
fn empty(folder: &Path, names: &Names) {
    loop {
        match sweep(folder, names) {
            Ok(Swept { deleted: 0, failed }) => {
                if let Some(error) = failed {
                    tracing::warn!(%error, "some files of forgotten runs could not be deleted");
                }
                return;
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, "the folders of forgotten runs cannot be looked at");
                return;
            }
        }
    }
}

#[derive(Debug, Default)]
struct Swept {
    deleted: u64,
    failed: Option<Errno>,
}

impl Swept {
    fn count(&mut self, result: nix::Result<()>) {
        match result {
            Ok(()) => self.deleted += 1,
            // Another process was quicker, or fills it again.
            Err(Errno::ENOENT | Errno::ENOTEMPTY) => {}
            Err(error) => self.failed = Some(error),
        }
    }
}

/// Deletes every file in the trash and in its folders, and moves the folders in those up.
fn sweep(folder: &Path, names: &Names) -> io::Result<Swept> {
    let trash = OpenOptions::new()
        .read(true)
        .custom_flags((OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW).bits())
        .open(folder)?;
    let mut swept = Swept::default();
    for entry in fs::read_dir(folder)?.flatten() {
        let name = entry.file_name();
        match unlinkat(&trash, name.as_os_str(), UnlinkatFlags::NoRemoveDir) {
            Err(Errno::EISDIR | Errno::EPERM) => match open_up(&trash, &name) {
                Ok(inner) => {
                    take_apart(&inner, &trash, names, &mut swept);
                    swept.count(unlinkat(&trash, name.as_os_str(), UnlinkatFlags::RemoveDir));
                }
                Err(error) => swept.count(Err(error)),
            },
            other => swept.count(other),
        }
    }
    Ok(swept)
}

fn take_apart(inner: &File, trash: &File, names: &Names, swept: &mut Swept) {
    let Ok(entries) = fs::read_dir(by_handle(inner)) else {
        swept.count(Err(Errno::EACCES));
        return;
    };
    for entry in entries.flatten().take(TURN) {
        let name = entry.file_name();
        match unlinkat(inner, name.as_os_str(), UnlinkatFlags::NoRemoveDir) {
            Err(Errno::EISDIR | Errno::EPERM) => {
                // Moving a folder changes what is above it: it must be writable for that.
                let moved = open_up(inner, &name)
                    .and_then(|_| renameat(inner, name.as_os_str(), trash, names.next().as_str()));
                swept.count(moved);
            }
            other => swept.count(other),
        }
    }
}

/// Opens a folder in a folder and makes it writable; links are refused.
fn open_up(folder: &File, name: &OsStr) -> nix::Result<File> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let inner = File::from(openat(folder, name, flags, Mode::empty())?);
    // If this fails, the next operation in the folder fails too.
    let _ = fs::set_permissions(by_handle(&inner), Permissions::from_mode(0o700));
    Ok(inner)
}

/// A path to an open file, whatever its name is by now.
fn by_handle(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    #[test]
    fn folders_of_unknown_runs_go_even_when_they_are_read_only() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::new(folder.path());
        for run in ["known", "unknown"] {
            let deep = home.runs().join(run).join("work/deep/deeper");
            fs::create_dir_all(&deep).unwrap();
            fs::write(deep.join("file"), "x").unwrap();
            for path in [&deep, deep.parent().unwrap()] {
                fs::set_permissions(path, Permissions::from_mode(0o100)).unwrap();
            }
        }
        let _trash = Trash::open(&home, &["known".to_owned()].into()).unwrap();
        assert!(home.runs().join("known").exists());
        assert!(!home.runs().join("unknown").exists());
        while fs::read_dir(home.trash()).unwrap().next().is_some() {
            std::thread::yield_now();
        }
    }

    fn emptied(trash: &Path) -> bool {
        empty(trash, &Names(Arc::new(AtomicU64::new(1_000_000))));
        fs::read_dir(trash).unwrap().next().is_none()
    }

    #[test]
    fn what_links_lead_to_keeps_its_content_its_owner_and_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        let (trash, outside) = (folder.path().join("trash"), folder.path().join("outside"));
        fs::create_dir_all(trash.join("run/work")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("file"), "mine").unwrap();
        fs::set_permissions(&outside, Permissions::from_mode(0o511)).unwrap();
        for link in ["run/work/link", "run/link", "link"] {
            symlink(&outside, trash.join(link)).unwrap();
        }
        assert!(emptied(&trash));
        assert_eq!(fs::metadata(&outside).unwrap().mode() & 0o777, 0o511);
        assert_eq!(fs::read(outside.join("file")).unwrap(), b"mine");
        // Also when a folder becomes a link after the look.
        let open = File::open(folder.path()).unwrap();
        symlink(&outside, folder.path().join("late")).unwrap();
        open_up(&open, OsStr::new("late")).unwrap_err();
    }

    /// Deeper than descriptors and stack reach: code that descends into it does not come back.
    #[test]
    fn folders_in_folders_a_hundred_thousand_deep_are_deleted() {
        // In memory where there is such a folder: a disk takes half a minute for them.
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let folder = folder.unwrap();
        let trash = folder.path().join("trash");
        fs::create_dir(&trash).unwrap();
        // Longer than a path may be, so each one is moved into the next.
        let (mut inner, mut outer) = (trash.join("even"), trash.join("odd"));
        fs::create_dir(&inner).unwrap();
        for _ in 0..100_000 {
            fs::create_dir(&outer).unwrap();
            fs::rename(&inner, outer.join("d")).unwrap();
            std::mem::swap(&mut inner, &mut outer);
        }
        assert!(emptied(&trash));
    }
}
