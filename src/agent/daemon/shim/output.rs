//! The log file of a run while it grows: bounded in size, indifferent to what is in it, and
//! never a reason for the work to stop. Output that is not kept is still read, and counted.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    time::Instant,
};

use super::FLUSH_AFTER;
use crate::{
    log::{self, Encoder, Stream, Tail},
    protocol::TAIL_BYTES,
};

/// Kept of one run, unless its spec says otherwise.
const DEFAULT_LIMIT: u64 = 2 * 1024 * 1024 * 1024;

/// Why output is not kept any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closed {
    AtLimit,
    NoRoom,
}

/// The open log of a run.
#[derive(Debug)]
pub(super) struct Output {
    file: File,
    encoder: Encoder,
    /// Encoded and not written yet; empty between calls.
    buffer: Vec<u8>,
    written: u64,
    limit: u64,
    dropped: u64,
    closed: Option<Closed>,
    tail: Tail,
    flush_at: Option<Instant>,
}

/// The log of an ended run.
#[derive(Clone, Debug, Default)]
pub(super) struct Ended {
    pub(super) bytes: u64,
    pub(super) dropped: u64,
    pub(super) tail: Vec<u8>,
    /// Output was lost because the disk was full.
    pub(super) no_room: bool,
}

impl Output {
    pub(super) fn create(path: &Path, limit: u64) -> io::Result<Self> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(path)?;
        Ok(Self {
            file,
            encoder: Encoder::new(),
            buffer: Vec::new(),
            written: 0,
            limit: if limit == 0 { DEFAULT_LIMIT } else { limit },
            dropped: 0,
            closed: None,
            tail: Tail::new(TAIL_BYTES),
            flush_at: None,
        })
    }

    /// When [`Output::flush`] is due.
    pub(super) fn flush_at(&self) -> Option<Instant> {
        self.flush_at
    }

    /// Takes what was read from a pipe.
    pub(super) fn push(&mut self, stream: Stream, bytes: &[u8], unix_ms: u64) {
        self.tail.push(bytes);
        if self.closed.is_some() {
            self.dropped += bytes.len() as u64;
            return;
        }
        self.encoder.push(stream, bytes, unix_ms, &mut self.buffer);
        self.write();
        if !self.encoder.holds_any() {
            self.flush_at = None;
        } else if self.flush_at.is_none() {
            self.flush_at = Some(Instant::now() + FLUSH_AFTER);
        }
    }

    /// Writes unfinished lines, as far as they are.
    pub(super) fn flush(&mut self, unix_ms: u64) {
        self.flush_at = None;
        self.encoder.flush(unix_ms, &mut self.buffer);
        self.write();
    }

    /// Ends the log; where output is missing, its last record says so.
    pub(super) fn finish(mut self) -> Ended {
        let now = super::unix_ms();
        self.flush(now);
        let (dropped, limit) = (self.dropped, self.limit);
        let notice = match self.closed {
            None => None,
            Some(Closed::AtLimit) => Some(format!(
                "[skyward] {dropped} bytes of output are missing: the log reached its limit of {limit} bytes\n"
            )),
            Some(Closed::NoRoom) => Some(format!(
                "[skyward] {dropped} bytes of output are missing: the disk was full\n"
            )),
        };
        let no_room = self.closed == Some(Closed::NoRoom);
        if let Some(notice) = notice {
            self.closed = None;
            self.limit = u64::MAX;
            self.encoder
                .push(Stream::Stderr, notice.as_bytes(), now, &mut self.buffer);
            self.write();
        }
        Ended {
            bytes: self.written,
            dropped,
            tail: self.tail.as_bytes().to_vec(),
            no_room,
        }
    }

    /// Writes the buffer, as far as limit and disk allow, and empties it.
    fn write(&mut self) {
        let mut keep = self.buffer.len();
        if self.closed.is_some() {
            keep = 0;
        } else if self.written + keep as u64 > self.limit {
            self.closed = Some(Closed::AtLimit);
            let room = (self.limit - self.written) as usize;
            keep = self.buffer[..room]
                .iter()
                .rposition(|byte| *byte == b'\n')
                .map_or(0, |end| end + 1);
        }
        if keep != 0 {
            if self.file.write_all(&self.buffer[..keep]).is_ok() {
                self.written += keep as u64;
            } else {
                // Half a record must not stay: what comes later would continue it.
                let _ = self.file.set_len(self.written);
                let _ = io::Seek::seek(&mut self.file, io::SeekFrom::Start(self.written));
                self.closed = Some(Closed::NoRoom);
                keep = 0;
            }
        }
        let lost = log::records(&self.buffer[keep..], 0);
        self.dropped += lost
            .map(|record| record.content.len() as u64 + u64::from(!record.partial))
            .sum::<u64>();
        self.buffer.clear();
        self.buffer.shrink_to(4 * super::READ_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(limit: u64) -> (tempfile::TempDir, Output) {
        let folder = tempfile::tempdir().unwrap();
        let output = Output::create(&folder.path().join("log"), limit).unwrap();
        (folder, output)
    }

    #[test]
    fn beyond_its_limit_output_is_counted_and_the_last_record_says_so() {
        let (folder, mut output) = output(300);
        let line = [b'x'; 99];
        for _ in 0..10 {
            output.push(Stream::Stdout, &[&line[..], b"\n"].concat(), 1_763_675_510_123);
        }
        let ended = output.finish();
        let encoded = std::fs::read(folder.path().join("log")).unwrap();
        assert_eq!(ended.bytes, encoded.len() as u64);
        assert_eq!(ended.dropped, 800);
        let text = String::from_utf8(log::decode(&encoded, None)).unwrap();
        assert_eq!(text.lines().count(), 3);
        assert!(
            text.ends_with("800 bytes of output are missing: the log reached its limit of 300 bytes\n"),
            "{text}"
        );
        assert_eq!(ended.tail.len(), 1000);
    }

    #[test]
    fn a_full_disk_loses_output_but_nothing_else() {
        // Every write to this device fails for want of room.
        let mut output = Output::create(Path::new("/dev/full"), 0).unwrap();
        output.push(Stream::Stdout, b"one\ntwo\n", 1);
        output.push(Stream::Stdout, b"three\n", 1);
        let ended = output.finish();
        assert!(ended.no_room);
        assert_eq!((ended.bytes, ended.dropped), (0, 14));
        assert_eq!(ended.tail, b"one\ntwo\nthree\n");
    }

    #[test]
    fn an_unfinished_line_is_written_when_it_is_due_and_at_the_end() {
        let (folder, mut output) = output(0);
        output.push(Stream::Stdout, b"10%", 1_763_675_510_123);
        assert!(output.flush_at().is_some());
        output.flush(1_763_675_510_223);
        output.push(Stream::Stdout, b" 20%", 1_763_675_510_323);
        output.finish();
        let encoded = std::fs::read(folder.path().join("log")).unwrap();
        assert_eq!(log::decode(&encoded, None), b"10% 20%");
    }
}
