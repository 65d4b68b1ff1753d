//! The file of one place: all that happened there, in order, as frames with checksums. Its writer is the shim of the
//! place, or the daemon once that shim is gone.
//!
//! - A write into the page cache survives the kill of every process of ours, so an event counts once it is written.
//!   Only events that are reported to the controller must survive a restart of the machine: the daemon flushes before it
//!   reports (`outbox.rs`).
//! - The end of an item and the beginning of the next one are one write. Where only a part of it was written, the next
//!   item has not begun.
//! - Bytes that a full disk did not take are written later, before any others: half a frame becomes a whole one.
//! - A file that is long enough gets a successor, which begins with everything that the place holds then, so that older
//!   files can be deleted. The name of a file is the offset of its first byte in the whole share.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use prost::Message;

use super::queue::{Ended, Event, Item, Queue};
use crate::daemon::{files, frame};

/// A file of this length gets a successor.
const FILE_BYTES: u64 = 4 * 1024 * 1024;

/// One frame.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Entry {
    #[prost(oneof = "Event", tags = "1, 2, 3, 4, 5")]
    pub(crate) event: Option<Event>,
}

/// The file of a place, for its only writer.
#[derive(Debug)]
pub(crate) struct Share {
    folder: PathBuf,
    file: File,
    /// Offset of the file's first byte.
    start: u64,
    /// Offset after the last byte that is in the file.
    end: u64,
    /// What follows.
    unwritten: Vec<u8>,
    queue: Queue,
}

impl Share {
    /// The share of a place that begins.
    pub(crate) fn create(folder: &Path) -> io::Result<Self> {
        files::make_folder(folder, 0o700)?;
        let mut share = Self {
            folder: folder.to_owned(),
            file: files::create_new(path(folder, 0))?,
            start: 0,
            end: 0,
            unwritten: Vec::new(),
            queue: Queue::default(),
        };
        share.write(&[Event::Holds(share.queue.holds())])?;
        Ok(share)
    }

    /// The share of a place that begins, also where an earlier watcher has made it and begun nothing.
    pub(crate) fn open(folder: &Path) -> io::Result<Self> {
        match Self::create(folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Self::take_over(folder),
            made => made,
        }
    }

    /// The share that a watcher left which is gone. What it had written half is cut off: it never counted.
    pub(crate) fn take_over(folder: &Path) -> io::Result<Self> {
        let (queue, start, length) = replay(folder)?;
        // A successor that was just being made.
        for (empty, _) in files_of(folder)?.iter().filter(|(empty, _)| *empty > start) {
            fs::remove_file(path(folder, *empty))?;
        }
        let file = files::append(path(folder, start))?;
        file.set_len(length)?;
        Ok(Self {
            folder: folder.to_owned(),
            file,
            start,
            end: start + length,
            unwritten: Vec::new(),
            queue,
        })
    }

    /// What the place has still to run. It counts only while nothing waits to be written.
    pub(crate) const fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Writes these events at once. After an error, they are written with the next call, which may have no events of
    /// its own; until a call succeeds nothing of them counts.
    pub(crate) fn write(&mut self, events: &[Event]) -> io::Result<()> {
        for event in events {
            self.queue.apply(event);
            let event = Some(event.clone());
            frame::write(&Entry { event }.encode_to_vec(), &mut self.unwritten);
        }
        self.write_rest()?;
        if self.end - self.start >= FILE_BYTES {
            self.next_file();
        }
        Ok(())
    }

    fn write_rest(&mut self) -> io::Result<()> {
        while !self.unwritten.is_empty() {
            match self.file.write(&self.unwritten) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.unwritten.drain(..count);
                    self.end += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Without room for another file this one goes on.
    fn next_file(&mut self) {
        let name = path(&self.folder, self.end);
        let mut bytes = Vec::new();
        let holds = Some(Event::Holds(self.queue.holds()));
        frame::write(&Entry { event: holds }.encode_to_vec(), &mut bytes);
        let made = files::create_new(&name).and_then(|mut file| {
            file.write_all(&bytes)?;
            Ok(file)
        });
        match made {
            Ok(file) => {
                self.file = file;
                self.start = self.end;
                self.end += bytes.len() as u64;
            }
            Err(_) => drop(fs::remove_file(name)),
        }
    }
}

/// Ends the share of a place whose watcher is gone: the items that ran ended so, and the others never begin.
pub(crate) fn close(folder: &Path, ended: impl Fn(Item) -> Ended) -> io::Result<()> {
    let (queue, ..) = replay(folder)?;
    let events = queue.close(ended);
    if events.is_empty() {
        return Ok(());
    }
    let mut share = Share::take_over(folder)?;
    share.write(&events)
}

/// What the place of that share has still to run, as far as it is written; and the newest file with the length of
/// what is whole in it.
pub(crate) fn replay(folder: &Path) -> io::Result<(Queue, u64, u64)> {
    // A file that goes while it is read was acknowledged, and its successor says what the place holds. As an error it
    // would look like a share that was never made: a place that holds nothing.
    loop {
        let files = files_of(folder)?;
        match replay_files(folder, &files) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            replayed => return replayed,
        }
    }
}

fn replay_files(folder: &Path, files: &[(u64, u64)]) -> io::Result<(Queue, u64, u64)> {
    let mut queue = Queue::default();
    let mut last = (0, 0);
    for (start, _) in files.iter().copied() {
        let bytes = fs::read(path(folder, start))?;
        let mut length = 0;
        while let Some((entry, size)) = read(&bytes[length..]) {
            if let Some(event) = &entry.event {
                queue.apply(event);
            }
            length += size;
        }
        // A file without a whole frame was just being made: the one before it goes on.
        if length > 0 || start == 0 {
            last = (start, length as u64);
        }
    }
    Ok((queue, last.0, last.1))
}

/// The files of a share by their offsets, with their lengths, the oldest first.
pub(super) fn files_of(folder: &Path) -> io::Result<Vec<(u64, u64)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let start: Option<u64> = name.to_str().and_then(|name| name.parse().ok());
        // Nothing that is named otherwise, such as `+000000000000001`: by its number it would never be found.
        let Some(start) = start.filter(|start| path(folder, *start).file_name() == Some(name.as_os_str()))
        else {
            continue;
        };
        match entry.metadata() {
            Ok(metadata) => found.push((start, metadata.len())),
            // It was acknowledged meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// The frame at the start of these bytes, and its length.
pub(super) fn read(bytes: &[u8]) -> Option<(Entry, usize)> {
    let (payload, size) = frame::read(bytes)?;
    Some((Entry::decode(payload).ok()?, size))
}

/// Bytes of a file from an offset within it on, so many at most.
pub(super) fn read_file(folder: &Path, start: u64, from: u64, most: usize) -> io::Result<Vec<u8>> {
    let file = File::open(path(folder, start))?;
    let mut bytes = vec![0; most];
    let mut length = 0;
    while length < most {
        match file.read_at(&mut bytes[length..], from + length as u64) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(length);
    Ok(bytes)
}

pub(super) fn path(folder: &Path, start: u64) -> PathBuf {
    folder.join(format!("{start:016}"))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::daemon::map::queue::Chunk;

    pub(in crate::daemon::map) fn took(first: u32, count: u32) -> Event {
        let attempt = 1;
        Event::Took(Chunk {
            first,
            count,
            attempt,
        })
    }

    pub(in crate::daemon::map) fn began(index: u32) -> Event {
        Event::Began(Item { index, attempt: 1 })
    }

    pub(in crate::daemon::map) fn ended(index: u32, value: &[u8]) -> Event {
        Event::Ended(Ended {
            index,
            attempt: 1,
            value: bytes::Bytes::copy_from_slice(value),
            ..Ended::default()
        })
    }

    #[test]
    fn what_was_written_is_there_for_the_next_one_whatever_part_of_the_last_write_got_there() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("0");
        let mut share = Share::create(&place).unwrap();
        share.write(&[took(0, 5), began(0)]).unwrap();
        let before = fs::read(path(&place, 0)).unwrap();
        let at_first = share.queue().clone();
        share.write(&[ended(0, b"value"), began(1)]).unwrap();
        let whole = fs::read(path(&place, 0)).unwrap();
        let at_last = share.queue().clone();
        let first_ended = {
            let (_, size) = read(&whole[before.len()..]).unwrap();
            before.len() + size
        };
        for cut in before.len()..=whole.len() {
            fs::write(path(&place, 0), &whole[..cut]).unwrap();
            let (queue, start, length) = replay(&place).unwrap();
            assert_eq!(start, 0);
            if cut == whole.len() {
                assert_eq!(queue, at_last);
            } else if cut >= first_ended {
                assert_eq!(
                    (queue.running(), length),
                    (&[][..], first_ended as u64),
                    "cut at {cut}"
                );
            } else {
                assert_eq!(
                    (queue, length),
                    (at_first.clone(), before.len() as u64),
                    "cut at {cut}"
                );
            }
            let mut next = Share::take_over(&place).unwrap();
            let events = next.queue().close(|item| Ended {
                index: item.index,
                attempt: item.attempt,
                ..Ended::default()
            });
            next.write(&events).unwrap();
            assert!(replay(&place).unwrap().0.is_empty(), "cut at {cut}");
        }
    }

    #[test]
    fn bytes_that_are_no_frames_end_what_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("0");
        let mut share = Share::create(&place).unwrap();
        share.write(&[took(0, 5)]).unwrap();
        let whole = fs::read(path(&place, 0)).unwrap();
        // As after a crash of the machine: blocks that were never written.
        fs::write(path(&place, 0), [&whole[..], &[0; 4096]].concat()).unwrap();
        assert_eq!(
            replay(&place).unwrap(),
            (share.queue().clone(), 0, whole.len() as u64)
        );
    }

    #[test]
    fn a_long_share_goes_on_in_files_each_of_which_says_what_the_place_holds() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("0");
        let mut share = Share::create(&place).unwrap();
        share.write(&[took(0, 100)]).unwrap();
        let value = vec![7; 256 * 1024];
        for index in 0..40 {
            share.write(&[began(index)]).unwrap();
            share.write(&[ended(index, &value)]).unwrap();
        }
        let files = files_of(&place).unwrap();
        assert!(files.len() >= 2, "{files:?}");
        assert!(files.windows(2).all(|pair| pair[0].0 + pair[0].1 == pair[1].0));
        // Older files are not needed for what is left.
        for (start, _) in &files[..files.len() - 1] {
            fs::remove_file(path(&place, *start)).unwrap();
        }
        assert_eq!(&replay(&place).unwrap().0, share.queue());
        // A successor that was just made and has nothing yet.
        let end = files[files.len() - 1].0 + files[files.len() - 1].1;
        fs::write(path(&place, end), b"").unwrap();
        assert_eq!(Share::take_over(&place).unwrap().queue(), share.queue());
        assert_eq!(files_of(&place).unwrap().len(), 1);
    }
}
