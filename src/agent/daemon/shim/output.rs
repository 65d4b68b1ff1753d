//! The log of a run while it grows: bounded in size, for any content, and never a reason for the
//! work to stop. Output that the disk does not take is still read, and counted.

use std::{io, time::Instant};

use super::FLUSH_AFTER;
use crate::{
    daemon::{home::RunFolder, log_files::LogWriter},
    log::{self, Encoder, Stream, Tail},
    protocol::TAIL_BYTES,
};

/// The open log of a run.
#[derive(Debug)]
pub(super) struct Output {
    files: LogWriter,
    encoder: Encoder,
    /// Encoded and not written yet; empty between calls.
    buffer: Vec<u8>,
    /// Bytes of output that were never written.
    lost: u64,
    /// Whether the disk was full; from then on nothing is written.
    no_room: bool,
    tail: Tail,
    flush_at: Option<Instant>,
}

/// The log of an ended run.
#[derive(Clone, Debug, Default)]
pub(super) struct Ended {
    /// Its size, with the part that is not kept any more.
    pub(super) bytes: u64,
    /// Bytes that are not kept any more, and output that was never written.
    pub(super) dropped: u64,
    pub(super) tail: Vec<u8>,
    /// Whether output was lost because the disk was full.
    pub(super) no_room: bool,
}

impl Output {
    pub(super) fn create(folder: &RunFolder, limit: u64) -> io::Result<Self> {
        Ok(Self {
            files: LogWriter::create(folder, limit)?,
            encoder: Encoder::new(),
            buffer: Vec::new(),
            lost: 0,
            no_room: false,
            tail: Tail::new(TAIL_BYTES),
            flush_at: None,
        })
    }

    /// When [`Output::flush`] is due.
    pub(super) fn flush_at(&self) -> Option<Instant> {
        self.flush_at
    }

    /// Takes bytes that were read from a pipe.
    pub(super) fn push(&mut self, stream: Stream, bytes: &[u8], unix_ms: u64) {
        if stream.is_output() {
            self.tail.push(bytes);
        }
        if self.no_room {
            self.lost += bytes.len() as u64;
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

    /// Writes unfinished lines.
    pub(super) fn flush(&mut self, unix_ms: u64) {
        self.flush_at = None;
        self.encoder.flush(unix_ms, &mut self.buffer);
        self.write();
    }

    /// Ends the log; where the disk was full, its last record says so.
    pub(super) fn finish(mut self) -> Ended {
        let now = super::unix_ms();
        self.flush(now);
        let (lost, no_room) = (self.lost, self.no_room);
        if no_room {
            self.no_room = false;
            let notice = format!("[skyward] {lost} bytes of output are missing: the disk was full\n");
            self.encoder
                .push(Stream::Stderr, notice.as_bytes(), now, &mut self.buffer);
            self.write();
        }
        Ended {
            bytes: self.files.end(),
            dropped: self.files.deleted() + lost,
            tail: self.tail.as_bytes().to_vec(),
            no_room,
        }
    }

    /// Writes the buffer, as far as the disk takes it, and empties it.
    fn write(&mut self) {
        let kept = if self.no_room {
            0
        } else {
            self.files.write(&self.buffer)
        };
        self.no_room |= kept < self.buffer.len();
        self.lost += log::records(&self.buffer[kept..], 0)
            .map(|record| record.content.len() as u64 + u64::from(!record.partial))
            .sum::<u64>();
        self.buffer.clear();
        self.buffer.shrink_to(4 * super::READ_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::home::Home;

    fn folder() -> (tempfile::TempDir, RunFolder) {
        let home = tempfile::tempdir().unwrap();
        let folder = Home::new(home.path()).run("r");
        std::fs::create_dir_all(folder.path()).unwrap();
        (home, folder)
    }

    #[test]
    fn beyond_its_limit_a_log_grows_on_and_the_middle_of_it_is_counted_as_missing() {
        let (_home, folder) = folder();
        let mut output = Output::create(&folder, 1200).unwrap();
        let line = [&[b'x'; 77][..], b"\n"].concat();
        for _ in 0..100 {
            output.push(Stream::Stdout, &line, 1_763_675_510_123);
        }
        let ended = output.finish();
        assert_eq!(ended.bytes, 100 * (78 + 18));
        assert!(!ended.no_room);
        let head = std::fs::metadata(folder.log()).unwrap().len();
        let tail: u64 = std::fs::read_dir(folder.log_tail())
            .unwrap()
            .map(|entry| entry.unwrap().metadata().unwrap().len())
            .sum();
        assert_eq!(head + tail + ended.dropped, ended.bytes);
        assert_eq!(ended.tail.len(), TAIL_BYTES);
    }

    #[test]
    fn a_full_disk_loses_output_but_nothing_else() {
        let (_home, folder) = folder();
        // Every write to this device fails for want of room.
        std::os::unix::fs::symlink("/dev/full", folder.log()).unwrap();
        let mut output = Output::create(&folder, 0).unwrap();
        output.push(Stream::Stdout, b"one\ntwo\n", 1);
        output.push(Stream::Stdout, b"three\n", 1);
        let ended = output.finish();
        assert!(ended.no_room);
        assert_eq!((ended.bytes, ended.dropped), (0, 14));
        assert_eq!(ended.tail, b"one\ntwo\nthree\n");
    }

    #[test]
    fn what_a_function_yields_is_in_the_log_and_not_in_the_tail_of_its_output() {
        let (_home, folder) = folder();
        let mut output = Output::create(&folder, 0).unwrap();
        output.push(Stream::Stdout, b"one\n", 1);
        output.push(Stream::Values, b"0 1 7\n", 2);
        assert_eq!(output.finish().tail, b"one\n");
        assert_eq!(std::fs::read(folder.log()).unwrap(), b"1 o F one\n2 v F 0 1 7\n");
    }

    #[test]
    fn an_unfinished_line_is_written_when_it_is_due_and_at_the_end() {
        let (_home, folder) = folder();
        let mut output = Output::create(&folder, 0).unwrap();
        output.push(Stream::Stdout, b"10%", 1_763_675_510_123);
        assert!(output.flush_at().is_some());
        output.flush(1_763_675_510_223);
        output.push(Stream::Stdout, b" 20%", 1_763_675_510_323);
        output.finish();
        let encoded = std::fs::read(folder.log()).unwrap();
        assert_eq!(log::decode(&encoded, None), b"10% 20%");
    }
}
