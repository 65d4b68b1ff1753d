use proptest::prelude::*;

use super::*;
use crate::{daemon::home::Home, log};

/// A log on disk, and a copy of everything that was written to it.
struct Bed {
    writer: LogWriter,
    whole: Vec<u8>,
    limit: u64,
    largest: u64,
    home: tempfile::TempDir,
}

impl Bed {
    fn new(limit: u64) -> Self {
        let home = tempfile::tempdir().unwrap();
        let folder = Home::new(home.path()).run("r");
        fs::create_dir_all(folder.path()).unwrap();
        Self {
            writer: LogWriter::create(&folder, limit).unwrap(),
            whole: Vec::new(),
            limit,
            largest: 0,
            home,
        }
    }

    fn folder(&self) -> RunFolder {
        Home::new(self.home.path()).run("r")
    }

    fn print(&mut self, lines: &[usize]) {
        let mut records = Vec::new();
        for length in lines {
            let number = self.whole.len() + records.len();
            let record = format!("{number} o F {}\n", "x".repeat(*length));
            self.largest = self.largest.max(record.len() as u64);
            records.extend_from_slice(record.as_bytes());
        }
        assert_eq!(self.writer.write(&records), records.len());
        self.whole.extend_from_slice(&records);
    }

    fn on_disk(&self) -> u64 {
        let folder = self.folder();
        let sizes = starts(&folder).unwrap().into_iter();
        sizes
            .map(|start| fs::metadata(path(&folder, start)).unwrap().len())
            .sum()
    }

    fn files(&self) -> usize {
        starts(&self.folder()).unwrap().len()
    }

    /// All that is read from an offset on: pieces with their offsets.
    fn read(&self, mut offset: u64) -> Vec<(u64, Vec<u8>)> {
        let mut reader = LogReader::new(self.folder());
        let mut pieces: Vec<(u64, Vec<u8>)> = Vec::new();
        while let Some((at, data)) = reader.read(offset).unwrap() {
            assert!(at >= offset, "{at} was sent after {offset}");
            offset = at + data.len() as u64;
            match pieces.last_mut() {
                Some((before, bytes)) if *before + bytes.len() as u64 == at => bytes.extend(data),
                _ => pieces.push((at, data)),
            }
        }
        pieces
    }

    /// Reading gives what was printed: the first quarter, the newest rest, and between them a gap
    /// of the size of the missing part.
    fn check(&self, from: u64) {
        let length = self.whole.len() as u64;
        assert_eq!(end(&self.folder()), length);
        let pieces = self.read(from);
        let mut covered = 0;
        for (at, bytes) in &pieces {
            let at = usize::try_from(*at).unwrap();
            assert_eq!(bytes[..], self.whole[at..at + bytes.len()]);
            covered += bytes.len() as u64;
        }
        let mut next = from;
        let mut missing = 0;
        for (at, bytes) in &pieces {
            if *at > next {
                missing += at - next;
                let cut = usize::try_from(*at).unwrap();
                assert_eq!(
                    self.whole[cut - 1],
                    b'\n',
                    "the gap ends in the middle of a record"
                );
            }
            next = at + bytes.len() as u64;
        }
        if from <= length {
            assert_eq!(next.max(from), length);
            assert_eq!(covered + missing, length - from);
        }
        assert!(pieces.len() <= 2, "there is one gap at most");
        if length <= self.limit {
            assert_eq!(missing, 0, "nothing is missing below the limit");
        }
        if from == 0 {
            assert_eq!(missing, self.writer.deleted());
            if missing > 0 {
                let first = pieces[0].1.len() as u64;
                assert!(first + self.largest > self.limit / 4, "{first} of the beginning");
                let last = pieces[1].1.len() as u64;
                assert!(last >= self.limit - self.limit / 4, "{last} of the end");
            }
        }
    }

    fn check_disk(&self) {
        let file = (self.limit / 64).clamp(1, LARGEST_FILE) + self.largest;
        // One record is kept at the beginning even where the limit is below its size.
        let head = (self.limit / 4).max(self.largest);
        let most = head + (self.limit - self.limit / 4) + file;
        assert!(self.on_disk() <= most, "{} of {most} bytes", self.on_disk());
        assert!(self.files() <= 80, "{} files", self.files());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_first_quarter_and_the_newest_rest_are_kept_whatever_is_printed(
        limit in 1_u64..6000,
        writes in prop::collection::vec(prop::collection::vec(prop_oneof![9 => 0_usize..60, 1 => 0_usize..900], 1..8), 1..40),
        offsets in prop::collection::vec(any::<prop::sample::Index>(), 40),
    ) {
        let mut bed = Bed::new(limit);
        for (lines, offset) in writes.iter().zip(&offsets) {
            bed.print(lines);
            bed.check_disk();
            bed.check(0);
            bed.check(offset.index(bed.whole.len() + 10) as u64);
        }
    }

    /// A machine that loses power leaves files shorter than they were, or without their end.
    #[test]
    fn a_damaged_log_is_read_as_far_as_it_is_there(
        limit in 100_u64..3000,
        lines in prop::collection::vec(0_usize..80, 1..120),
        damage in any::<prop::sample::Index>(),
        keep in any::<prop::sample::Index>(),
    ) {
        let mut bed = Bed::new(limit);
        bed.print(&lines);
        let starts = starts(&bed.folder()).unwrap();
        let victim = path(&bed.folder(), starts[damage.index(starts.len())]);
        let size = fs::metadata(&victim).unwrap().len();
        let kept = keep.index(usize::try_from(size).unwrap() + 1) as u64;
        fs::OpenOptions::new().write(true).open(&victim).unwrap().set_len(kept).unwrap();
        for (at, bytes) in bed.read(0) {
            let at = usize::try_from(at).unwrap();
            prop_assert_eq!(&bytes[..], &bed.whole[at..at + bytes.len()]);
        }
    }
}

#[test]
fn a_reader_sees_no_gap_in_a_log_that_grows_while_it_reads() {
    let bed = Bed::new(1 << 20);
    let folder = bed.folder();
    let mut writer = bed.writer;
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Below the limit, with many files: every byte that the reader misses was there.
        scope.spawn(|| {
            let record = format!("1 o F {}\n", "y".repeat(93));
            for _ in 0..(1 << 20) / record.len() {
                assert_eq!(writer.write(record.as_bytes()), record.len());
            }
            done.store(true, std::sync::atomic::Ordering::SeqCst);
        });
        let mut reader = LogReader::new(folder);
        let mut offset = 0;
        loop {
            let ended = done.load(std::sync::atomic::Ordering::SeqCst);
            match reader.read(offset).unwrap() {
                Some((at, data)) => {
                    assert_eq!(at, offset);
                    offset = at + data.len() as u64;
                }
                None if ended => break,
                None => std::thread::yield_now(),
            }
        }
        assert_eq!(offset, ((1 << 20) / 100) * 100);
    });
}

#[test]
fn a_reader_that_is_overtaken_goes_on_behind_the_gap_with_whole_records() {
    let mut bed = Bed::new(6400);
    bed.print(&[40; 60]);
    let mut reader = LogReader::new(bed.folder());
    let mut decoded = Vec::new();
    let mut offset = 0;
    let mut gaps = 0;
    for _ in 0..200 {
        if let Some((at, data)) = reader.read(offset).unwrap() {
            gaps += u32::from(at > offset);
            offset = at + data.len() as u64;
            let mut records = log::records(&data, at);
            decoded.extend(records.by_ref().map(|record| record.offset));
            assert_eq!(records.offset(), offset, "a record was cut");
        }
        bed.print(&[40; 200]);
    }
    assert!(gaps > 10, "it was never overtaken");
    assert!(decoded.is_sorted());
}

#[test]
fn a_reader_that_finds_other_files_at_each_look_gives_up_for_now_and_reads_on_later() {
    let mut bed = Bed::new(6400);
    bed.print(&[40; 2000]);
    let mut reader = LogReader::new(bed.folder());
    let mut newest = 1 << 40;
    // Each of these files is replaced before it can be opened.
    let read = reader.read_of(1, || {
        newest += 1000;
        Ok(vec![newest])
    });
    assert_eq!(read.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    assert!(reader.read(1).unwrap().is_some());
}

#[test]
fn the_end_of_a_log_is_found_over_several_files() {
    let mut bed = Bed::new(2000);
    bed.print(&[30; 200]);
    let last = last_bytes(&bed.folder(), 500);
    assert_eq!(last, bed.whole[bed.whole.len() - 500..]);
    let tail = log::tail(&last, 60);
    assert_eq!(tail.len(), 60);
}

#[test]
fn names_that_are_no_offsets_are_passed_over() {
    let mut bed = Bed::new(2000);
    bed.print(&[30; 200]);
    let before = bed.read(0);
    for name in ["18446744073709551615", "x", "-1", "0", "9223372036854775808"] {
        fs::write(bed.folder().log_tail().join(name), "1 o F forged\n").unwrap();
    }
    assert_eq!(bed.read(0), before);
}

#[test]
fn no_value_takes_more_than_an_eighth_of_its_log() {
    assert_eq!(value_limit(8000), 1000);
    assert_eq!(value_limit(1 << 30), 16 << 20);
    assert_eq!(value_limit(0), 16 << 20);
}
