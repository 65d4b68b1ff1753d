//! The files of one run's log on its machine, which take no more room than the run's limit.
//!
//! The file `log` holds the first quarter. Further output goes into `tail/`, to files that are
//! named by the offset of their first byte; the oldest files are deleted while the newest still
//! hold the other three quarters. So offsets are those of the whole log, and between the first
//! quarter and the newest rest there may be a gap. Files begin and end with whole records, so a
//! decoder can go on behind the gap.
//!
//! Names and sizes of files hold the whole state: the shim writes, the daemon reads at the same
//! time, and either may be killed between any two steps.

use std::{
    collections::VecDeque,
    fs::{self, File},
    io::{self, ErrorKind, Seek, SeekFrom, Write},
    os::unix::fs::FileExt,
    path::PathBuf,
};

use super::{files, home::RunFolder};
use crate::{log::MAX_VALUE, protocol::PIECE_BYTES};

/// Bytes kept of one run, unless its spec says otherwise.
const DEFAULT_LIMIT: u64 = 2 * 1024 * 1024 * 1024;
/// A file of the tail is the 64th part of the limit, and at most this.
const LARGEST_FILE: u64 = 8 * 1024 * 1024;
/// Most looks at the folder for one read. The shim can replace all files of the tail between two
/// looks only while this process stands still, as on a machine that has too few cores.
const LOOKS: u32 = 16;

/// The log of a run that is being written.
#[derive(Debug)]
pub(super) struct LogWriter {
    folder: RunFolder,
    /// The newest file.
    file: File,
    /// Offset of its first byte.
    start: u64,
    /// Offset after the last byte of the log.
    end: u64,
    /// Older files of the tail, the oldest first, by the offset of their first byte.
    older: VecDeque<u64>,
    in_tail: bool,
    head_limit: u64,
    tail_limit: u64,
    file_limit: u64,
    deleted: u64,
}

/// Most bytes of a log that are kept; `limit` in bytes, 0 = the default.
const fn limit_of(limit: u64) -> u64 {
    if limit == 0 { DEFAULT_LIMIT } else { limit }
}

/// Most bytes of one value that a function yields: an eighth of what is kept of its log, so that no value alone
/// pushes the others out.
pub(super) fn value_limit(limit: u64) -> u64 {
    (limit_of(limit) / 8).min(MAX_VALUE as u64)
}

impl LogWriter {
    /// An empty log; `limit` in bytes, 0 = the default.
    pub(super) fn create(folder: &RunFolder, limit: u64) -> io::Result<Self> {
        let limit = limit_of(limit);
        Ok(Self {
            folder: folder.clone(),
            file: files::create(folder.log())?,
            start: 0,
            end: 0,
            older: VecDeque::new(),
            in_tail: false,
            head_limit: limit / 4,
            tail_limit: limit - limit / 4,
            file_limit: (limit / 64).clamp(1, LARGEST_FILE),
            deleted: 0,
        })
    }

    /// Offset after the last byte of the log.
    pub(super) const fn end(&self) -> u64 {
        self.end
    }

    /// Bytes of the log that were written and are not kept any more.
    pub(super) const fn deleted(&self) -> u64 {
        self.deleted
    }

    /// Writes whole records, and answers how many bytes of them; fewer than all of them when
    /// the disk takes no more.
    pub(super) fn write(&mut self, records: &[u8]) -> usize {
        let mut done = 0;
        while done < records.len() {
            let Ok(count) = self.write_some(&records[done..]) else {
                // Half a record must not stay: the next one would continue it.
                let size = self.end - self.start;
                let _ = self.file.set_len(size);
                let _ = self.file.seek(SeekFrom::Start(size));
                break;
            };
            done += count;
        }
        done
    }

    /// Writes the records that fit into one file, at least one.
    fn write_some(&mut self, records: &[u8]) -> io::Result<usize> {
        let mut count = 0;
        if !self.in_tail {
            count = whole_within(records, self.head_limit - self.end.min(self.head_limit));
            if self.end == 0 {
                // The file `log` is never empty when there is a tail.
                count = count.max(whole_up_to(records, 1));
            }
        }
        if count == 0 {
            if !self.in_tail || self.end - self.start >= self.file_limit {
                self.next_file()?;
            }
            count = whole_up_to(records, self.file_limit - (self.end - self.start));
            self.make_room(count as u64)?;
        }
        self.file.write_all(&records[..count])?;
        self.end += count as u64;
        Ok(count)
    }

    fn next_file(&mut self) -> io::Result<()> {
        files::make_folder(&self.folder.log_tail(), 0o700)?;
        self.file = files::create_new(path(&self.folder, self.end))?;
        if self.in_tail {
            self.older.push_back(self.start);
        }
        self.in_tail = true;
        self.start = self.end;
        Ok(())
    }

    /// Deletes the oldest files of the tail that are not needed once so much more is written.
    fn make_room(&mut self, more: u64) -> io::Result<()> {
        while let Some(&oldest) = self.older.front() {
            let next = self.older.get(1).copied().unwrap_or(self.start);
            if self.end + more - next < self.tail_limit {
                break;
            }
            match fs::remove_file(path(&self.folder, oldest)) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            self.older.pop_front();
            self.deleted += next - oldest;
        }
        Ok(())
    }
}

/// Length of the whole records at the beginning that take at most `room`.
fn whole_within(records: &[u8], room: u64) -> usize {
    let room = usize::try_from(room).map_or(records.len(), |room| room.min(records.len()));
    records[..room]
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |end| end + 1)
}

/// Length of the fewest records at the beginning that take at least `room`, or of all.
fn whole_up_to(records: &[u8], room: u64) -> usize {
    match usize::try_from(room) {
        Ok(room) if (1..=records.len()).contains(&room) => {
            let end = records[room - 1..].iter().position(|byte| *byte == b'\n');
            end.map_or(records.len(), |end| room + end)
        }
        _ => records.len(),
    }
}

/// The file that begins at that offset.
fn path(folder: &RunFolder, start: u64) -> PathBuf {
    if start == 0 {
        folder.log()
    } else {
        folder.log_tail().join(format!("{start:020}"))
    }
}

/// Where the files of the log begin, in order.
fn starts(folder: &RunFolder) -> io::Result<Vec<u64>> {
    let mut starts = Vec::new();
    if folder.log().exists() {
        starts.push(0);
    }
    match fs::read_dir(folder.log_tail()) {
        Ok(entries) => {
            for entry in entries {
                let start = entry?.file_name().to_str().and_then(|name| name.parse().ok());
                // An offset has to fit where offsets are signed, too.
                starts.extend(start.filter(|start| (1..=i64::MAX as u64).contains(start)));
            }
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    starts.sort_unstable();
    Ok(starts)
}

/// Where the log of a run ends, as far as its files tell.
pub(super) fn end(folder: &RunFolder) -> u64 {
    let newest = starts(folder).ok().and_then(|starts| starts.last().copied());
    newest.map_or(0, |start| {
        let size = fs::metadata(path(folder, start)).map_or(0, |metadata| metadata.len());
        start.saturating_add(size)
    })
}

/// The last bytes of a log, at most so many, and none from before a gap.
pub(super) fn last_bytes(folder: &RunFolder, most: u64) -> Vec<u8> {
    let mut offset = end(folder).saturating_sub(most);
    let mut reader = LogReader::new(folder.clone());
    let mut bytes = Vec::new();
    while let Ok(Some((at, data))) = reader.read(offset) {
        if at > offset {
            bytes.clear();
        }
        offset = at + data.len() as u64;
        bytes.extend_from_slice(&data);
        if bytes.len() as u64 > 2 * most {
            // The log grows as fast as it is read: this is enough.
            break;
        }
    }
    bytes
}

/// Reads the log of a run, also while it is written.
#[derive(Debug)]
pub(super) struct LogReader {
    folder: RunFolder,
    /// The file that was read last, and the offset of its first byte.
    open: Option<(u64, File)>,
}

impl LogReader {
    pub(super) const fn new(folder: RunFolder) -> Self {
        Self { folder, open: None }
    }

    /// The bytes at that offset, or the next bytes that are kept, with their offset; `None` at the
    /// present end. [`ErrorKind::WouldBlock`]: the run prints faster than its files are looked at, and
    /// a later read may succeed.
    pub(super) fn read(&mut self, offset: u64) -> io::Result<Option<(u64, Vec<u8>)>> {
        let folder = self.folder.clone();
        self.read_of(offset, || starts(&folder))
    }

    /// [`Self::read`] of the files that `starts` lists anew at each look.
    fn read_of(
        &mut self,
        offset: u64,
        mut starts: impl FnMut() -> io::Result<Vec<u64>>,
    ) -> io::Result<Option<(u64, Vec<u8>)>> {
        if let Some(data) = self.at(offset)? {
            return Ok(Some((offset, data)));
        }
        let mut newest_before = None;
        for _ in 0..LOOKS {
            let starts = starts()?;
            let behind = starts.partition_point(|start| *start <= offset);
            // Read after the look: a file later in the list was created when this one was complete.
            if let Some(&start) = starts[..behind].last()
                && self.turn_to(start)?
                && let Some(data) = self.at(offset)?
            {
                return Ok(Some((offset, data)));
            }
            let Some(&next) = starts.get(behind) else {
                return Ok(None);
            };
            // A list that is made while files are created may lack one of them, but no older file.
            if newest_before.is_some_and(|newest| next <= newest) && self.turn_to(next)? {
                return Ok(self.at(next)?.map(|data| (next, data)));
            }
            newest_before = starts.last().copied();
        }
        Err(io::Error::new(
            ErrorKind::WouldBlock,
            "its files change faster than they are read",
        ))
    }

    /// Opens the file that begins there; whether there is one.
    fn turn_to(&mut self, start: u64) -> io::Result<bool> {
        if self.open.as_ref().is_some_and(|(open, _)| *open == start) {
            return Ok(true);
        }
        match File::open(path(&self.folder, start)) {
            Ok(file) => {
                self.open = Some((start, file));
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The open file's bytes at that offset of the log.
    fn at(&self, offset: u64) -> io::Result<Option<Vec<u8>>> {
        let Some((start, file)) = &self.open else {
            return Ok(None);
        };
        let Some(from) = offset.checked_sub(*start) else {
            return Ok(None);
        };
        let data = read_chunk(file, from)?;
        Ok(Some(data).filter(|data| !data.is_empty()))
    }
}

/// One message's worth of a file from an offset on.
pub(super) fn read_chunk(file: &File, offset: u64) -> io::Result<Vec<u8>> {
    let mut data = vec![0; PIECE_BYTES];
    let mut filled = 0;
    while filled < data.len() {
        match file.read_at(&mut data[filled..], offset.saturating_add(filled as u64)) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    data.truncate(filled);
    Ok(data)
}

#[cfg(test)]
mod tests;
