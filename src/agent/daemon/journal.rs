//! The agent's memory: an append-only file of checksummed entries. It knows files and crashes,
//! not runs; [`super::ledger`] gives the entries their meaning.
//!
//! A durable append returns only when the disk has it. The file is allocated ahead,
//! so that the next entries fit even when a task has filled the disk, and where that is not
//! enough the reserve is given up. Bytes after the last whole entry, from a crash in mid-write, are
//! ignored. Compaction replaces the file by a shorter one in one rename.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use nix::fcntl::{FallocateFlags, fallocate};
use prost::Message;

use super::{files, frame, reserve::Reserve};
use crate::protocol::{Finished, RunSpec, Started};

/// Allocated ahead of the last entry.
const AHEAD: u64 = 2 * 1024 * 1024;

/// One entry.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Entry {
    /// Number of the fact it is; 0 where it is none.
    #[prost(uint64, tag = "1")]
    pub(crate) seq: u64,
    #[prost(oneof = "Event", tags = "2, 3, 4, 5, 6, 7, 8")]
    pub(crate) event: Option<Event>,
}

impl Entry {
    pub(crate) fn new(seq: u64, event: Event) -> Self {
        let event = Some(event);
        Self { seq, event }
    }
}

/// What happened.
#[derive(Clone, PartialEq, prost::Oneof)]
#[expect(clippy::large_enum_variant, reason = "they live only between two queues")]
pub(crate) enum Event {
    /// The daemon started, or the journal was compacted.
    #[prost(message, tag = "2")]
    Opened(Opened),
    /// A leader of a newer epoch gave a command.
    #[prost(uint64, tag = "3")]
    Epoch(u64),
    /// A run was promised to the controller.
    #[prost(message, tag = "4")]
    Accepted(Accepted),
    #[prost(message, tag = "5")]
    Started(RunStarted),
    #[prost(message, tag = "6")]
    Finished(RunFinished),
    /// The controller has everything of these runs.
    #[prost(message, tag = "7")]
    Forgotten(Forgotten),
    /// The controller that commands, and the proof of its epoch.
    #[prost(message, tag = "8")]
    Commander(Commander),
}

/// The controller that commands: written before its epoch, so that no epoch is without one.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Commander {
    /// Id of the installation.
    #[prost(string, tag = "1")]
    pub(crate) installation: String,
    #[prost(uint64, tag = "2")]
    pub(crate) epoch: u64,
    /// Proof of that epoch, which only that installation can make.
    #[prost(string, tag = "3")]
    pub(crate) proof: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Opened {
    /// The number the next fact gets.
    #[prost(uint64, tag = "1")]
    pub(crate) next_seq: u64,
    #[prost(string, tag = "2")]
    pub(crate) boot_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Accepted {
    #[prost(string, tag = "1")]
    pub(crate) run_id: String,
    /// Kept until the work has started.
    #[prost(message, optional, tag = "2")]
    pub(crate) spec: Option<RunSpec>,
    #[prost(string, tag = "3")]
    pub(crate) boot_id: String,
    /// Its place on the machine, where places have numbers.
    #[prost(uint32, optional, tag = "4")]
    pub(crate) place: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RunStarted {
    #[prost(string, tag = "1")]
    pub(crate) run_id: String,
    #[prost(message, required, tag = "2")]
    pub(crate) started: Started,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RunFinished {
    #[prost(string, tag = "1")]
    pub(crate) run_id: String,
    #[prost(message, required, tag = "2")]
    pub(crate) finished: Finished,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Forgotten {
    #[prost(string, repeated, tag = "1")]
    pub(crate) run_ids: Vec<String>,
}

/// The open file.
#[derive(Debug)]
pub(crate) struct Journal {
    folder: PathBuf,
    file: File,
    /// End of the last whole entry.
    length: u64,
    /// The file's blocks reach to here.
    allocated: u64,
    /// Whether the disk may still have another file under our name.
    unsettled: bool,
    reserve: Reserve,
    /// Flushes a folder: what its names stand for.
    settle: fn(&Path) -> io::Result<()>,
}

impl Journal {
    /// Opens or creates the journal and returns what it holds.
    pub(crate) fn open(folder: &Path, reserve: Reserve) -> io::Result<(Self, Vec<Entry>)> {
        std::fs::create_dir_all(folder)?;
        // A compaction that did not get to its rename.
        let _ = std::fs::remove_file(folder.join("next"));
        let mut file = files::open(folder.join("journal"))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let (entries, length) = replay(&bytes);
        if bytes[length..].iter().any(|byte| *byte != 0) {
            tracing::warn!(
                at = length,
                of = bytes.len(),
                "the journal ends in an entry that is not whole: leaving it out"
            );
        }
        // The rest must be zeros, or a later crash could make an old entry whole again.
        file.set_len(length as u64)?;
        sync_folder(folder)?;
        let mut journal = Self {
            folder: folder.into(),
            file,
            length: length as u64,
            allocated: length as u64,
            unsettled: false,
            reserve,
            settle: sync_folder,
        };
        journal.allocate_ahead();
        Ok((journal, entries))
    }

    /// Bytes of entries.
    pub(crate) const fn length(&self) -> u64 {
        self.length
    }

    /// Appends entries, all or none; with `durable` it returns once they are on the disk.
    pub(crate) fn append(&mut self, entries: &[Entry], durable: bool) -> io::Result<()> {
        let bytes = encode(entries);
        let mut result = self.write(&bytes, durable);
        while matches!(&result, Err(error) if error.kind() == io::ErrorKind::StorageFull)
            && self.reserve.give_up()
        {
            tracing::warn!("the disk is full: the journal uses the reserve");
            result = self.write(&bytes, durable);
        }
        match result {
            Ok(()) => {
                self.length += bytes.len() as u64;
                self.allocate_ahead();
                Ok(())
            }
            Err(error) => {
                // A partly written entry is cut off, so that it cannot come back.
                let _ = self.file.set_len(self.length);
                self.allocated = self.length;
                Err(error)
            }
        }
    }

    /// Replaces the file by one with just these entries.
    pub(crate) fn compact(&mut self, entries: &[Entry]) -> io::Result<()> {
        let next = self.folder.join("next");
        let bytes = encode(entries);
        let mut file = files::create(&next)?;
        let written = file.write_all(&bytes).and_then(|()| file.sync_all());
        if let Err(error) = written {
            let _ = std::fs::remove_file(&next);
            return Err(error);
        }
        std::fs::rename(&next, self.folder.join("journal"))?;
        // From here on the former file has no name: later entries there would be lost.
        self.file = file;
        self.length = bytes.len() as u64;
        self.allocated = self.length;
        self.unsettled = true;
        self.allocate_ahead();
        self.reserve.restore();
        self.settle()
    }

    /// Until this succeeds, a machine that crashes may come back with the former file.
    fn settle(&mut self) -> io::Result<()> {
        if self.unsettled {
            (self.settle)(&self.folder)?;
            self.unsettled = false;
        }
        Ok(())
    }

    /// Takes the reserve back once the disk has room again.
    pub(crate) fn restore_reserve(&mut self) {
        self.reserve.restore();
    }

    fn write(&mut self, bytes: &[u8], durable: bool) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(self.length))?;
        self.file.write_all(bytes)?;
        if durable {
            self.file.sync_data()?;
            self.settle()?;
        }
        Ok(())
    }

    /// Best effort: not every file system can, and for a full disk there is the reserve.
    fn allocate_ahead(&mut self) {
        if self.allocated >= self.length + AHEAD / 2 {
            return;
        }
        let end = self.length + AHEAD;
        let more = (end - self.allocated) as i64;
        if fallocate(&self.file, FallocateFlags::empty(), self.allocated as i64, more).is_ok() {
            self.allocated = end;
        }
    }
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

pub(super) fn encode(entries: &[Entry]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in entries {
        frame::write(&entry.encode_to_vec(), &mut bytes);
    }
    bytes
}

/// The whole entries from the start, and where they end.
pub(super) fn replay(bytes: &[u8]) -> (Vec<Entry>, usize) {
    let mut entries = Vec::new();
    let mut length = 0;
    while let Some((payload, size)) = frame::read(&bytes[length..]) {
        let Ok(entry) = Entry::decode(payload) else { break };
        entries.push(entry);
        length += size;
    }
    (entries, length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(seq: u64) -> Entry {
        Entry {
            seq,
            event: Some(Event::Forgotten(Forgotten {
                run_ids: vec![format!("run-{seq}")],
            })),
        }
    }

    fn open(folder: &Path) -> (Journal, Vec<Entry>) {
        Journal::open(folder, Reserve::new(folder.join("reserve"), 4096)).unwrap()
    }

    #[test]
    fn what_was_appended_is_there_after_opening_again() {
        let folder = tempfile::tempdir().unwrap();
        let (mut journal, entries) = open(folder.path());
        assert!(entries.is_empty());
        journal.append(&[entry(1), entry(2)], true).unwrap();
        journal.append(&[entry(3)], false).unwrap();
        assert_eq!(open(folder.path()).1, [entry(1), entry(2), entry(3)]);
    }

    #[test]
    fn a_torn_tail_of_any_length_costs_only_the_torn_entry() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let whole = encode(&[entry(1), entry(2), entry(3)]);
        let two = encode(&[entry(1), entry(2)]).len();
        for cut in two..whole.len() {
            for padding in [0, 4096] {
                std::fs::write(&path, [&whole[..cut], &vec![0; padding]].concat()).unwrap();
                let (mut journal, entries) = open(folder.path());
                assert_eq!(entries, [entry(1), entry(2)], "cut at {cut}");
                journal.append(&[entry(4)], true).unwrap();
                assert_eq!(
                    open(folder.path()).1,
                    [entry(1), entry(2), entry(4)],
                    "cut at {cut}"
                );
            }
        }
    }

    #[test]
    fn bytes_after_a_torn_entry_do_not_come_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let mut bytes = encode(&[entry(1), entry(2), entry(3)]);
        let second = encode(&[entry(1)]).len();
        bytes[second + 9] ^= 0xff;
        std::fs::write(&path, &bytes).unwrap();
        let (mut journal, entries) = open(folder.path());
        assert_eq!(entries, [entry(1)]);
        // Just as long as the broken one, so that the old third entry would follow it.
        journal.append(&[entry(9)], true).unwrap();
        assert_eq!(open(folder.path()).1, [entry(1), entry(9)]);
    }

    #[test]
    fn compaction_leaves_only_what_it_was_given() {
        let folder = tempfile::tempdir().unwrap();
        let (mut journal, _) = open(folder.path());
        for seq in 0..100 {
            journal.append(&[entry(seq)], false).unwrap();
        }
        let before = journal.length();
        journal.compact(&[entry(99)]).unwrap();
        assert!(journal.length() < before / 50);
        journal.append(&[entry(100)], true).unwrap();
        assert_eq!(open(folder.path()).1, [entry(99), entry(100)]);
    }

    #[test]
    fn a_compaction_whose_folder_cannot_be_flushed_loses_nothing_and_promises_nothing_until_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let (mut journal, _) = open(folder.path());
        journal.append(&[entry(1), entry(2)], true).unwrap();
        journal.settle = |_| Err(io::Error::other("no descriptor left"));
        journal.compact(&[entry(2)]).unwrap_err();
        journal.append(&[entry(3)], false).unwrap();
        assert_eq!(open(folder.path()).1, [entry(2), entry(3)]);
        journal.append(&[entry(4)], true).unwrap_err();
        journal.settle = sync_folder;
        journal.append(&[entry(5)], true).unwrap();
        assert_eq!(open(folder.path()).1, [entry(2), entry(3), entry(5)]);
    }

    #[test]
    fn a_compaction_that_never_got_to_its_rename_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (mut journal, _) = open(folder.path());
        journal.append(&[entry(1)], true).unwrap();
        std::fs::write(folder.path().join("next"), b"half").unwrap();
        assert_eq!(open(folder.path()).1, [entry(1)]);
        assert!(!folder.path().join("next").exists());
    }
}
