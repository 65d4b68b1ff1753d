//! The bundles on this machine: files of the agent's alone, named by their digests. A run takes a copy of the
//! contents (`shim/unpack.rs`), so a bundle is never written to once it has its name.
//!
//! Parts are appended to `<digest>.part`. When the last one is there the digest is computed from the bytes on
//! the disk, the disk is told to keep them, and only then the file is renamed: a file with the name of a digest
//! is whole, whenever the agent or the machine is killed. What is not whole when the agent starts is deleted.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, BufReader, ErrorKind, Read, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use skyward_bundle::{Digest, Error, LIMITS, Reader};
use tonic::Status;

use super::{files, reserve::free_bytes};
use crate::protocol::PART_BYTES;

/// Bytes of all bundles: more than one of the largest, and little beside the packages of an image.
pub(super) const MOST: u64 = 1024 * 1024 * 1024;
/// A bundle that was asked for lately stays: a run is about to take it.
const IN_USE: Duration = Duration::from_mins(10);
/// Bytes of the disk that bundles leave to the runs.
pub(super) const LEAST_FREE: u64 = 64 * 1024 * 1024;
const PART: &str = "part";

/// A part of a bundle.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<'a> {
    /// Of the bundle.
    pub(super) digest: Digest,
    /// Of the whole bundle.
    pub(super) bytes: u64,
    /// Of the first byte of this part.
    pub(super) offset: u64,
    /// Empty: the controller only asks.
    pub(super) data: &'a [u8],
}

/// How much of a bundle is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// All of it.
    Whole,
    /// So many bytes; the next part begins there.
    Upto(u64),
}

/// Why a part was not taken.
#[derive(Debug, thiserror::Error)]
pub(super) enum PutError {
    #[error("a bundle of {0} bytes is more than any machine takes")]
    TooLarge(u64),
    #[error("there is no room for the code of more runs: {0}")]
    NoRoom(String),
    #[error("what came is not the bundle of this digest: {0}")]
    Wrong(String),
    #[error("the bundle cannot be written: {0}")]
    Io(#[from] io::Error),
}

impl From<PutError> for Status {
    fn from(error: PutError) -> Self {
        let text = error.to_string();
        match error {
            PutError::TooLarge(_) => Self::invalid_argument(text),
            PutError::Io(error) if error.kind() == ErrorKind::StorageFull => Self::resource_exhausted(text),
            PutError::NoRoom(_) => Self::resource_exhausted(text),
            PutError::Wrong(_) => Self::aborted(text),
            PutError::Io(_) => Self::unavailable(text),
        }
    }
}

/// All bundles of this machine.
#[derive(Debug)]
pub(super) struct Bundles {
    folder: PathBuf,
    most: u64,
    /// Two connections may bring the same bundle.
    turn: Mutex<()>,
    /// Of files whose digests are not known yet.
    number: AtomicU64,
}

impl Bundles {
    /// Opens the folder, and deletes what is not whole.
    pub(super) fn open(folder: PathBuf, most: u64) -> io::Result<Self> {
        files::make_folders(&folder, 0o700)?;
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == PART) {
                fs::remove_file(path)?;
            }
        }
        Ok(Self {
            folder,
            most,
            turn: Mutex::default(),
            number: AtomicU64::default(),
        })
    }

    /// Whether a bundle is here. One that is asked for counts as used.
    pub(super) fn has(&self, digest: Digest, now: SystemTime) -> io::Result<bool> {
        match File::open(path_of(&self.folder, digest)) {
            Ok(file) => file.set_modified(now).map(|()| true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Takes a part, if it is the next one. Bundles in `wanted` stay: runs that have not started name them.
    pub(super) fn put(
        &self,
        part: Part<'_>,
        wanted: &BTreeSet<String>,
        now: SystemTime,
    ) -> Result<Progress, PutError> {
        let Part {
            digest,
            bytes,
            offset,
            data,
        } = part;
        let _turn = self.turn.lock();
        if self.has(digest, now)? {
            return Ok(Progress::Whole);
        }
        if bytes > LIMITS.packed() && !data.is_empty() {
            return Err(PutError::TooLarge(bytes));
        }
        let path = path_of(&self.folder, digest).with_extension(PART);
        let here = match fs::metadata(&path) {
            Ok(found) => found.len(),
            Err(error) if error.kind() == ErrorKind::NotFound => 0,
            Err(error) => return Err(error.into()),
        };
        let here = if here < bytes || here == 0 {
            here
        } else {
            // Only garbage is as long as the bundle and not the bundle.
            fs::remove_file(&path)?;
            0
        };
        if data.is_empty() || offset != here {
            return Ok(Progress::Upto(here));
        }
        let end = here + data.len() as u64;
        let added = if end > bytes {
            Err(PutError::Wrong(format!(
                "it has more than the {bytes} bytes that were announced"
            )))
        } else {
            self.make_room(data.len() as u64, wanted, now)?;
            files::append(&path)?.write_all(data)?;
            if end < bytes {
                return Ok(Progress::Upto(end));
            }
            self.finish(&path, Some(digest)).map(drop)
        };
        if added.is_err() {
            // The next try begins anew. If this fails the next part is wrong as well.
            let _ = fs::remove_file(&path);
        }
        added.map(|()| Progress::Whole)
    }

    /// Takes a whole bundle from a process that made it on this machine, and answers with its digest and length.
    /// The process is believed no more than a controller.
    pub(super) fn take(
        &self,
        from: &mut dyn Read,
        wanted: &BTreeSet<String>,
        now: SystemTime,
    ) -> Result<(Digest, u64), PutError> {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let path = self.folder.join(format!("made-{number}")).with_extension(PART);
        let taken = self.take_into(&path, from, wanted, now);
        if taken.is_err() {
            // What stays is deleted when the agent starts.
            let _ = fs::remove_file(&path);
        }
        taken
    }

    fn take_into(
        &self,
        path: &Path,
        from: &mut dyn Read,
        wanted: &BTreeSet<String>,
        now: SystemTime,
    ) -> Result<(Digest, u64), PutError> {
        let mut file = files::create_new(path)?;
        let (mut bytes, mut part) = (0, Vec::with_capacity(PART_BYTES));
        loop {
            part.clear();
            let read = Read::take(&mut *from, PART_BYTES as u64).read_to_end(&mut part)? as u64;
            if read == 0 {
                break;
            }
            bytes += read;
            if bytes > LIMITS.packed() {
                return Err(PutError::TooLarge(bytes));
            }
            // The process may be slow: others have their turn meanwhile.
            let _turn = self.turn.lock();
            self.make_room(read, wanted, now)?;
            file.write_all(&part)?;
        }
        let _turn = self.turn.lock();
        let digest = self.finish(path, None)?;
        Ok((digest, bytes))
    }

    /// Gives a file with all parts its name, if it is a bundle, and the one that was announced.
    fn finish(&self, path: &Path, announced: Option<Digest>) -> Result<Digest, PutError> {
        let file = File::open(path)?;
        let is_right = Reader::open(BufReader::new(&file), LIMITS).and_then(|reader| {
            let found = reader.digest();
            if announced.is_some_and(|announced| announced != found) {
                return Err(Error::Refused(format!("its digest is {found}")));
            }
            reader.verify().map(|()| found)
        });
        let digest = is_right.map_err(|error| match error {
            Error::Refused(why) => PutError::Wrong(why),
            Error::Io(error) => error.into(),
        })?;
        file.sync_all()?;
        fs::rename(path, path_of(&self.folder, digest))?;
        File::open(&self.folder)?.sync_all()?;
        Ok(digest)
    }

    /// Deletes bundles that were not used for longest, until there is room for so many bytes.
    fn make_room(&self, need: u64, wanted: &BTreeSet<String>, now: SystemTime) -> Result<(), PutError> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let about = entry.metadata()?;
            files.push((about.modified()?, about.len(), entry.path()));
        }
        files.sort();
        let mut held: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
        let lacks = |held: u64| {
            let free = free_bytes(&self.folder);
            if held + need > self.most {
                Some(format!("bundles may take {} bytes of this machine", self.most))
            } else if free.is_some_and(|free| free < need + LEAST_FREE) {
                Some("the disk of the machine is full".to_owned())
            } else {
                None
            }
        };
        for (used, bytes, path) in files {
            if lacks(held).is_none() {
                break;
            }
            // A clock that was set back must not keep a bundle for ever, nor take one that just came.
            let idle = now.duration_since(used).unwrap_or_else(|ahead| ahead.duration());
            let is_recent = idle < IN_USE;
            let is_wanted = path
                .file_stem()
                .and_then(|name| name.to_str())
                .is_some_and(|name| wanted.contains(name));
            if !is_recent && !is_wanted {
                fs::remove_file(path)?;
                held -= bytes;
            }
        }
        lacks(held).map_or(Ok(()), |why| Err(PutError::NoRoom(why)))
    }
}

/// The file of a bundle.
pub(super) fn path_of(folder: &Path, digest: Digest) -> PathBuf {
    folder.join(digest.hex())
}

#[cfg(test)]
mod tests {
    use skyward_bundle::{Packed, pack};

    use super::*;

    fn bundle(content: &[u8]) -> Packed {
        let file = skyward_bundle::File {
            path: "a.py",
            executable: false,
            content,
        };
        pack([file], LIMITS).unwrap()
    }

    struct Bed {
        bundles: Bundles,
        folder: tempfile::TempDir,
        now: SystemTime,
    }

    fn bed(most: u64) -> Bed {
        let folder = tempfile::tempdir().unwrap();
        Bed {
            bundles: Bundles::open(folder.path().join("bundles"), most).unwrap(),
            folder,
            now: SystemTime::now(),
        }
    }

    impl Bed {
        fn put(&self, bundle: &Packed, offset: usize, length: usize) -> Result<Progress, PutError> {
            let part = Part {
                digest: bundle.digest,
                bytes: bundle.bytes.len() as u64,
                offset: offset as u64,
                data: &bundle.bytes[offset..offset + length],
            };
            self.bundles.put(part, &BTreeSet::new(), self.now)
        }

        fn put_all(&self, bundle: &Packed) -> Result<Progress, PutError> {
            self.put(bundle, 0, bundle.bytes.len())
        }

        fn has(&self, bundle: &Packed) -> bool {
            path_of(&self.bundles.folder, bundle.digest).exists()
        }

        fn files(&self) -> usize {
            fs::read_dir(&self.bundles.folder).unwrap().count()
        }
    }

    #[test]
    fn a_bundle_arrives_in_parts_that_may_come_twice_and_counts_once_it_is_whole() {
        let (bed, bundle) = (bed(MOST), bundle(b"print(1)"));
        let length = bundle.bytes.len();
        assert_eq!(bed.put(&bundle, 0, 0).unwrap(), Progress::Upto(0));
        assert_eq!(bed.put(&bundle, 0, 10).unwrap(), Progress::Upto(10));
        assert_eq!(bed.put(&bundle, 0, 10).unwrap(), Progress::Upto(10));
        assert_eq!(bed.put(&bundle, 20, 10).unwrap(), Progress::Upto(10));
        assert_eq!(
            bed.put(&bundle, 10, length - 11).unwrap(),
            Progress::Upto(length as u64 - 1)
        );
        assert!(!bed.has(&bundle) && !bed.bundles.has(bundle.digest, bed.now).unwrap());
        assert_eq!(bed.put(&bundle, length - 1, 1).unwrap(), Progress::Whole);
        assert_eq!(bed.put(&bundle, 0, 10).unwrap(), Progress::Whole);
        assert!(bed.bundles.has(bundle.digest, bed.now).unwrap());
        assert_eq!(
            fs::read(path_of(&bed.bundles.folder, bundle.digest)).unwrap(),
            bundle.bytes
        );
    }

    #[test]
    fn bytes_that_are_not_those_of_the_digest_are_deleted_and_the_right_ones_are_taken_afterwards() {
        let (bed, bundle, other) = (bed(MOST), bundle(b"print(1)"), bundle(b"print(2)"));
        let forged = Packed {
            digest: bundle.digest,
            bytes: other.bytes,
        };
        assert!(matches!(bed.put_all(&forged), Err(PutError::Wrong(_))));
        let garbage = Packed {
            digest: bundle.digest,
            bytes: vec![0; 100],
        };
        assert!(matches!(bed.put_all(&garbage), Err(PutError::Wrong(_))));
        let part = Part {
            digest: bundle.digest,
            bytes: 5,
            offset: 0,
            data: b"longer than announced",
        };
        let taken = bed.bundles.put(part, &BTreeSet::new(), bed.now);
        assert!(matches!(taken, Err(PutError::Wrong(_))), "{taken:?}");
        assert_eq!(bed.files(), 0);
        assert_eq!(bed.put_all(&bundle).unwrap(), Progress::Whole);
    }

    #[test]
    fn a_bundle_that_was_made_here_is_named_by_the_digest_of_its_bytes_and_other_bytes_leave_nothing() {
        let (bed, bundle) = (bed(MOST), bundle(b"print(1)"));
        let take = |bytes: &[u8]| bed.bundles.take(&mut &*bytes, &BTreeSet::new(), bed.now);
        let mut forged = bundle.bytes.clone();
        *forged.last_mut().unwrap() ^= 1;
        for bytes in [&forged[..], &bundle.bytes[..20], b"", b"no bundle"] {
            assert!(matches!(take(bytes), Err(PutError::Wrong(_))));
            assert_eq!(bed.files(), 0);
        }
        let (digest, bytes) = take(&bundle.bytes).unwrap();
        assert_eq!((digest, bytes), (bundle.digest, bundle.bytes.len() as u64));
        // Twice is once.
        take(&bundle.bytes).unwrap();
        assert_eq!(bed.files(), 1);
        assert_eq!(
            fs::read(path_of(&bed.bundles.folder, digest)).unwrap(),
            bundle.bytes
        );
    }

    #[test]
    fn bytes_without_end_are_given_up_where_there_is_no_room_for_more() {
        let bed = bed(3 << 20);
        let taken = bed.bundles.take(&mut io::repeat(b'x'), &BTreeSet::new(), bed.now);
        assert!(matches!(taken, Err(PutError::NoRoom(_))), "{taken:?}");
        assert_eq!(bed.files(), 0);
    }

    #[test]
    fn a_bundle_that_is_larger_than_any_is_refused_before_a_byte_is_kept() {
        let bed = bed(MOST);
        let part = Part {
            digest: bundle(b"").digest,
            bytes: u64::MAX,
            offset: 0,
            data: b"x",
        };
        let taken = bed.bundles.put(part, &BTreeSet::new(), bed.now);
        assert!(matches!(taken, Err(PutError::TooLarge(u64::MAX))));
        assert_eq!(bed.files(), 0);
    }

    #[test]
    fn what_was_not_whole_when_the_agent_ended_is_gone_when_it_starts() {
        let (bed, whole, half) = (bed(MOST), bundle(b"print(1)"), bundle(b"print(2)"));
        bed.put_all(&whole).unwrap();
        bed.put(&half, 0, 10).unwrap();
        assert_eq!(bed.files(), 2);
        let bundles = Bundles::open(bed.folder.path().join("bundles"), MOST).unwrap();
        assert_eq!(bed.files(), 1);
        assert!(bundles.has(whole.digest, bed.now).unwrap());
        assert_eq!(bed.put(&half, 0, 0).unwrap(), Progress::Upto(0));
    }

    #[test]
    fn the_bundle_that_was_not_used_for_longest_makes_room_and_one_that_a_run_needs_does_not() {
        let names = [&b"1"[..], b"2", b"3", b"4"].map(bundle);
        let mut bed = bed(names[0].bytes.len() as u64 * 2);
        bed.put_all(&names[0]).unwrap();
        bed.put_all(&names[1]).unwrap();
        let full = bed.put_all(&names[2]);
        assert!(
            matches!(full, Err(PutError::NoRoom(_))),
            "both were used lately: {full:?}"
        );
        bed.now += IN_USE * 2;
        // The first one is used again, so the second one goes.
        assert!(bed.bundles.has(names[0].digest, bed.now).unwrap());
        assert_eq!(bed.put_all(&names[2]).unwrap(), Progress::Whole);
        assert_eq!(
            names.each_ref().map(|one| bed.has(one)),
            [true, false, true, false]
        );
        bed.now += IN_USE * 2;
        let part = Part {
            digest: names[3].digest,
            bytes: names[3].bytes.len() as u64,
            offset: 0,
            data: &names[3].bytes,
        };
        // The third one is the oldest by now, and stays.
        let wanted = [names[2].digest.hex()].into();
        assert_eq!(bed.bundles.put(part, &wanted, bed.now).unwrap(), Progress::Whole);
        assert_eq!(
            names.each_ref().map(|one| bed.has(one)),
            [false, false, true, true]
        );
    }
}
