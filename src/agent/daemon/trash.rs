//! Deletes the folders of forgotten runs, in the background: a task may have left millions
//! of files, or folders it made read-only. A folder first moves aside, so its name is free at
//! once, and a half-deleted one is never taken for a run.

use std::{
    collections::BTreeSet,
    fs::{self, DirBuilder, Permissions},
    io::{self, ErrorKind},
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc::{SyncSender, TrySendError, sync_channel},
    },
};

use super::home::Home;

/// The way to the thread that deletes; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Trash {
    folder: PathBuf,
    count: AtomicU64,
    wake: SyncSender<()>,
}

impl Trash {
    /// Also throws away what a crash has left: folders of runs that nobody knows.
    pub(super) fn open(home: &Home, known: &BTreeSet<String>) -> io::Result<Self> {
        let folder = home.trash();
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let (wake, woken) = sync_channel::<()>(1);
        let sweep = folder.clone();
        std::thread::Builder::new().name("trash".into()).spawn(move || {
            empty(&sweep);
            while woken.recv().is_ok() {
                empty(&sweep);
            }
        })?;
        // Names from before are not taken twice: the count starts at the time.
        let trash = Self {
            folder,
            count: AtomicU64::new(super::unix_ms() << 16),
            wake,
        };
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
        let aside = self
            .folder
            .join(self.count.fetch_add(1, Ordering::Relaxed).to_string());
        match fs::rename(path, aside) {
            Ok(()) => match self.wake.try_send(()) {
                Ok(()) | Err(TrySendError::Full(()) | TrySendError::Disconnected(())) => {}
            },
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "a run's folder could not be moved aside");
            }
        }
    }
}

fn empty(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.filter_map(|entry| entry.ok().map(|entry| entry.path())) {
        if let Err(error) = remove(&path) {
            tracing::warn!(%error, path = %path.display(), "a forgotten run's folder could not be deleted");
        }
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            open_up(path);
            fs::remove_dir_all(path)
        }
        Err(error) if error.kind() == ErrorKind::NotADirectory => fs::remove_file(path),
        other => other,
    }
}

/// Makes every folder under `path` writable; links are not followed.
fn open_up(path: &Path) {
    let mut open = vec![path.to_owned()];
    while let Some(folder) = open.pop() {
        let _ = fs::set_permissions(&folder, Permissions::from_mode(0o700));
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                open.push(entry.path());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_unknown_runs_go_even_when_they_are_read_only() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::new(folder.path());
        for run in ["known", "unknown"] {
            let deep = home.runs().join(run).join("work/deep");
            fs::create_dir_all(&deep).unwrap();
            fs::write(deep.join("file"), "x").unwrap();
            fs::set_permissions(&deep, Permissions::from_mode(0o500)).unwrap();
        }
        let _trash = Trash::open(&home, &["known".to_owned()].into()).unwrap();
        assert!(home.runs().join("known").exists());
        assert!(!home.runs().join("unknown").exists());
        while fs::read_dir(home.trash()).unwrap().next().is_some() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn read_only_folders_are_opened_and_links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("run/work");
        fs::create_dir_all(&inside).unwrap();
        let outside = folder.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::set_permissions(&outside, Permissions::from_mode(0o500)).unwrap();
        std::os::unix::fs::symlink(&outside, inside.join("link")).unwrap();
        fs::set_permissions(&inside, Permissions::from_mode(0o500)).unwrap();
        open_up(&folder.path().join("run"));
        assert_eq!(fs::metadata(&inside).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(
            fs::metadata(&outside).unwrap().permissions().mode() & 0o777,
            0o500
        );
    }
}
