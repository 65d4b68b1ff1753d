//! Gives a run the files of its bundle: a copy of its own in its working directory, which it may change.
//!
//! It is a copy because everything cheaper shares what must not be shared. A file that a hard link leads to is
//! one file for all runs, and its owner could write into the bundle; a reflink exists on few file systems; an
//! overlay needs rights that an agent in a container lacks. As for all sources, the folder is root's until
//! everything is in it (`sources.rs`), and the digest is computed anew while the files are written.

use std::{
    collections::HashSet,
    fs::{File, OpenOptions, Permissions},
    io::{self, BufReader, ErrorKind, Read},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use skyward_bundle::{Digest, Entry, Error, LIMITS, Reader};

use super::{
    super::{bundles, files, home::Home, users::User},
    prepare::Failure,
    sources::{fresh, give, open_folder},
};

/// Makes a folder with the files of a bundle, all of them the user's.
pub(super) fn unpack(home: &Home, digest: &str, into: &Path, user: &User) -> Result<(), Failure> {
    let digest: Digest = digest.parse().map_err(|why: String| Failure::new(why))?;
    let path = bundles::path_of(&home.bundles(), digest);
    let bundle = match File::open(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(Failure::new("its code is not on the machine any more"));
        }
        opened => opened?,
    };
    let folder = fresh(into)?;
    let mut made = HashSet::new();
    let unpacked = Reader::open(BufReader::new(bundle), LIMITS).and_then(|reader| {
        if reader.digest() != digest {
            return Err(Error::Refused(format!("its digest is {}", reader.digest())));
        }
        reader.unpack(|entry, content| {
            make_folders(into, &entry.path, &mut made, user)?;
            write(into, entry, content, user)
        })
    });
    match unpacked {
        Ok(()) => Ok(give(&folder, user)?),
        Err(Error::Io(error)) => Err(error.into()),
        Err(Error::Refused(why)) => {
            // It is sent again to the next run that needs it.
            let _ = std::fs::remove_file(&path);
            Err(Failure::new(format!(
                "its code was damaged on the disk of the machine ({why}); create the Task again"
            )))
        }
    }
}

fn write(into: &Path, entry: &Entry, content: &mut dyn Read, user: &User) -> io::Result<()> {
    let mode = if entry.executable { 0o755 } else { 0o644 };
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(into.join(&entry.path))?;
    io::copy(content, &mut file)?;
    // Whatever the umask was.
    file.set_permissions(Permissions::from_mode(mode))?;
    give(&file, user)
}

/// Makes the folders that a file lies in, each once.
fn make_folders(into: &Path, path: &str, made: &mut HashSet<PathBuf>, user: &User) -> io::Result<()> {
    for (at, _) in path.match_indices('/') {
        let folder = into.join(&path[..at]);
        if made.insert(folder.clone()) {
            files::make_folder(&folder, 0o755)?;
            give(&open_folder(&folder)?, user)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use skyward_bundle::{File as BundleFile, Packed, pack};

    use super::*;

    fn bundle() -> Packed {
        let file = |path, executable, content| BundleFile {
            path,
            executable,
            content,
        };
        let files = [
            file("train.py", false, &b"print(1)"[..]),
            file("exp/deep/run.sh", true, b"#!/bin/sh\n"),
        ];
        pack(files, LIMITS).unwrap()
    }

    struct Bed {
        folder: tempfile::TempDir,
        home: Home,
        user: User,
    }

    fn bed(bytes: &[u8]) -> (Bed, Digest) {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::new(folder.path());
        std::fs::create_dir(home.bundles()).unwrap();
        let digest = bundle().digest;
        std::fs::write(bundles::path_of(&home.bundles(), digest), bytes).unwrap();
        let own = super::super::super::users::own();
        let user = if own.uid == 0 {
            let nobody = 65534;
            User {
                uid: nobody,
                gid: nobody,
                ..own
            }
        } else {
            own
        };
        (Bed { folder, home, user }, digest)
    }

    #[test]
    fn a_run_gets_files_of_its_own_and_what_it_does_to_them_is_not_in_the_next_run() {
        let (bed, digest) = bed(&bundle().bytes);
        for run in ["a", "b"] {
            let into = bed.folder.path().join(run);
            unpack(&bed.home, &digest.to_string(), &into, &bed.user).unwrap();
            let about = |path: &str| into.join(path).symlink_metadata().unwrap();
            for (path, mode) in [
                ("", 0o700),
                ("train.py", 0o644),
                ("exp", 0o755),
                ("exp/deep", 0o755),
                ("exp/deep/run.sh", 0o755),
            ] {
                assert_eq!(about(path).mode() & 0o7777, mode, "{path}");
                assert_eq!(
                    (about(path).uid(), about(path).gid()),
                    (bed.user.uid, bed.user.gid),
                    "{path}"
                );
            }
            assert_eq!(about("train.py").nlink(), 1);
            assert_eq!(std::fs::read(into.join("train.py")).unwrap(), b"print(1)");
            std::fs::write(into.join("train.py"), "changed").unwrap();
            std::fs::write(into.join("more"), "more").unwrap();
        }
        // An earlier try of the same run left its files.
        let into = bed.folder.path().join("a");
        unpack(&bed.home, &digest.to_string(), &into, &bed.user).unwrap();
        assert_eq!(std::fs::read(into.join("train.py")).unwrap(), b"print(1)");
        assert!(!into.join("more").exists());
    }

    #[test]
    fn a_damaged_bundle_starts_nothing_and_is_deleted() {
        let mut bytes = bundle().bytes;
        *bytes.last_mut().unwrap() ^= 1;
        let (bed, digest) = bed(&bytes);
        let into = bed.folder.path().join("a");
        let failure = unpack(&bed.home, &digest.to_string(), &into, &bed.user).unwrap_err();
        assert!(failure.message.contains("damaged"), "{}", failure.message);
        assert!(!bundles::path_of(&bed.home.bundles(), digest).exists());
        let failure = unpack(&bed.home, &digest.to_string(), &into, &bed.user).unwrap_err();
        assert!(
            failure.message.contains("not on the machine"),
            "{}",
            failure.message
        );
        unpack(&bed.home, "../etc", &into, &bed.user).unwrap_err();
    }
}
