//! The folders of a run that become its user's. Root never uses a name inside of a folder that a
//! user may write: between any two of our calls the user's processes could replace the file by a
//! link, and root would act on the link's target. So the sources are written into a folder that is
//! ours, and the folder is given away last, by its open handle.

use std::{
    fs::{DirBuilder, File, OpenOptions},
    io::{self, ErrorKind, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, fchown},
    path::{Path, PathBuf},
};

use nix::{fcntl::OFlag, unistd::Uid};

use super::super::{files, users::User};

/// The sources of a run while they are written. There is no folder before the first file.
#[derive(Debug)]
pub(super) struct Sources<'a> {
    path: PathBuf,
    user: &'a User,
    folder: Option<File>,
}

impl<'a> Sources<'a> {
    pub(super) const fn new(path: PathBuf, user: &'a User) -> Self {
        Self {
            path,
            user,
            folder: None,
        }
    }

    /// Writes a file that its user may read and change once [`Sources::hand_over`] was called.
    pub(super) fn write(&mut self, name: &str, bytes: &[u8]) -> io::Result<PathBuf> {
        if self.folder.is_none() {
            self.folder = Some(fresh(&self.path)?);
        }
        let path = self.path.join(name);
        let mut file = files::create_new(&path)?;
        file.write_all(bytes)?;
        give(&file, self.user)?;
        Ok(path)
    }

    /// From here on we do not touch its content.
    pub(super) fn hand_over(self) -> io::Result<()> {
        self.folder.map_or(Ok(()), |folder| give(&folder, self.user))
    }
}

/// The working directory of a run that names none: its user's alone, from the start. An earlier
/// try to start the run may have made it already.
pub(super) fn make_working_directory(path: &Path, user: &User) -> io::Result<()> {
    files::make_folder(path, 0o700)?;
    give(&open_folder(path)?, user)
}

/// Makes an empty folder that root owns. A folder that an earlier try left there may belong to the
/// Task's user by now: that folder is renamed, and deleted with the run.
pub(super) fn fresh(path: &Path) -> io::Result<File> {
    let make = || DirBuilder::new().mode(0o700).create(path);
    match make() {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let aside = (1..u32::MAX)
                .map(|number| path.with_extension(number.to_string()))
                .find(|aside| aside.symlink_metadata().is_err());
            std::fs::rename(path, aside.ok_or(ErrorKind::AlreadyExists)?)?;
            make()?;
        }
        other => other?,
    }
    open_folder(path)
}

pub(super) fn open_folder(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags((OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW).bits())
        .open(path)
}

pub(super) fn give(file: &File, user: &User) -> io::Result<()> {
    if user.uid == Uid::effective().as_raw() {
        return Ok(());
    }
    fchown(file, Some(user.uid), Some(user.gid))
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::{
            fs::{MetadataExt, PermissionsExt, symlink},
            process::CommandExt,
        },
        process::{Child, Command, Stdio},
        time::{Duration, Instant},
    };

    use super::*;

    const NOBODY: u32 = 65534;

    fn nobody() -> User {
        User {
            name: "nobody".into(),
            uid: NOBODY,
            gid: NOBODY,
            home: "/".into(),
            groups: vec![NOBODY],
        }
    }

    /// A folder of root's that everybody may pass, and a file in it that is root's alone.
    fn root_folder() -> Option<(tempfile::TempDir, PathBuf)> {
        if !Uid::effective().is_root() {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o711)).unwrap();
        let treasure = folder.path().join("treasure");
        std::fs::write(&treasure, "root's").unwrap();
        std::fs::set_permissions(&treasure, PermissionsExt::from_mode(0o600)).unwrap();
        Some((folder, treasure))
    }

    fn is_untouched(treasure: &Path) -> bool {
        let metadata = treasure.symlink_metadata().unwrap();
        (metadata.uid(), metadata.mode() & 0o7777) == (0, 0o600)
            && std::fs::read(treasure).unwrap() == b"root's"
    }

    #[test]
    fn what_an_earlier_try_left_to_its_user_is_set_aside_and_not_written_into() {
        let Some((folder, treasure)) = root_folder() else {
            return;
        };
        let path = folder.path().join("task");
        let user = nobody();
        for round in 0..3 {
            let mut sources = Sources::new(path.clone(), &user);
            let script = sources.write("script.sh", b"echo").unwrap();
            let is_root = |path: &Path| path.symlink_metadata().unwrap().uid() == 0;
            assert!(is_root(&path), "it is ours while it is written to");
            sources.hand_over().unwrap();
            assert!(!is_root(&path) && !is_root(&script), "round {round}");
            // Its user may do this from now on.
            std::fs::remove_file(&script).unwrap();
            symlink(&treasure, &script).unwrap();
        }
        assert!(is_untouched(&treasure));
    }

    #[test]
    fn a_link_in_the_place_of_the_working_directory_is_not_followed() {
        let Some((folder, _)) = root_folder() else { return };
        let elsewhere = folder.path().join("elsewhere");
        std::fs::create_dir(&elsewhere).unwrap();
        let work = folder.path().join("work");
        symlink(&elsewhere, &work).unwrap();
        make_working_directory(&work, &nobody()).unwrap_err();
        assert_eq!(elsewhere.metadata().unwrap().uid(), 0);
        std::fs::remove_file(&work).unwrap();
        make_working_directory(&work, &nobody()).unwrap();
        make_working_directory(&work, &nobody()).unwrap();
        assert_eq!(work.metadata().unwrap().uid(), NOBODY);
    }

    /// Another process of the run's user that exchanges the sources for links as fast as it can.
    struct Attacker(Child);

    impl Attacker {
        fn start(task: &Path, treasure: &Path) -> Self {
            let script = "
import os, sys
task, treasure = sys.argv[1:]
print('ready', flush=True)
while True:
    for name in ('script.sh', 'call.json'):
        try:
            os.symlink(treasure, task + '/next')
            os.rename(task + '/next', task + '/' + name)
        except OSError:
            pass
";
            let mut child = Command::new("python3")
                .args(["-ISc", script])
                .args([task, treasure])
                .current_dir("/")
                .uid(NOBODY)
                .gid(NOBODY)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut line = String::new();
            let mut said = io::BufReader::new(child.stdout.take().unwrap());
            io::BufRead::read_line(&mut said, &mut line).unwrap();
            assert_eq!(line, "ready\n");
            Self(child)
        }
    }

    impl Drop for Attacker {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_process_that_exchanges_the_sources_for_links_gets_nothing_of_roots() {
        let Some((folder, treasure)) = root_folder() else {
            return;
        };
        let task = folder.path().join("task");
        let _attacker = Attacker::start(&task, &treasure);
        let (user, until) = (nobody(), Instant::now() + Duration::from_secs(10));
        let mut prepared = 0;
        while prepared < 10_000 && Instant::now() < until {
            let mut sources = Sources::new(task.clone(), &user);
            for name in ["script.sh", "call.json"] {
                sources.write(name, b"echo").unwrap();
            }
            sources.hand_over().unwrap();
            // Gone with its run, as the daemon does it; the next run has the same names.
            let aside = folder.path().join(format!("old-{prepared}"));
            std::fs::rename(&task, &aside).unwrap();
            // The attacker may still put something there.
            let gone = (0..1_000).any(|_| std::fs::remove_dir_all(&aside).is_ok());
            assert!(gone, "at preparation {prepared}");
            prepared += 1;
            assert!(is_untouched(&treasure), "at preparation {prepared}");
        }
        assert!(prepared > 100, "only {prepared} preparations in time");
    }
}
