//! How the daemon reads the share of a place: it reports each end with its position, and deletes files that the controller
//! has acknowledged. Another process writes the share at the same time: half a frame is one that is still being written.
//!
//! An end is flushed before it is reported. So an end that the controller knows survives a restart of the machine.

use std::{
    fs::{self, File},
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};

use super::{
    queue::{Ended, Event},
    share::{files_of, path, read, read_file},
};

/// Read at once, unless one frame is larger.
const READ_BYTES: usize = 256 * 1024;
/// No frame is larger: values of items are not.
const LARGEST: usize = 16 * 1024 * 1024;

/// The end of an item, and the position after it in the share.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Told {
    pub(crate) position: u64,
    pub(crate) ended: Ended,
}

/// The way through one share.
#[derive(Debug)]
pub(crate) struct Outbox {
    folder: PathBuf,
    /// Up to here every end was reported.
    position: u64,
    /// The file whose name is on the disk.
    named: Option<u64>,
}

impl Outbox {
    /// From the oldest end in the share: ends that the controller knows are reported and acknowledged again.
    pub(crate) fn open(folder: &Path) -> io::Result<Self> {
        let first = files_of(folder)?.first().map_or(0, |(start, _)| *start);
        Ok(Self {
            folder: folder.to_owned(),
            position: first,
            named: None,
        })
    }

    /// The way through a share that was never made.
    pub(crate) fn nothing(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            position: 0,
            named: None,
        }
    }

    /// The next ends, which are on the disk when this returns; none: all ends were reported.
    ///
    /// Files may go meanwhile: the way of an older stream deletes what its controller had acknowledged. What is left
    /// has to be told all the same, before it is said that all was told.
    pub(crate) fn next(&mut self) -> io::Result<Vec<Told>> {
        loop {
            let files = match files_of(&self.folder) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
                files => files?,
            };
            if let Some((first, _)) = files.first() {
                self.position = self.position.max(*first);
            }
            let at = files.partition_point(|(start, _)| *start <= self.position);
            let Some((start, _)) = at.checked_sub(1).and_then(|at| files.get(at)).copied() else {
                return Ok(Vec::new());
            };
            let told = match self.read_from(start) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                told => told?,
            };
            if !told.is_empty() {
                return Ok(told);
            }
            // Nothing more in this file: go on in the next one, which begins where this one ends.
            let goes_on = files.get(at).is_some_and(|(next, _)| *next == self.position);
            if !goes_on {
                return Ok(Vec::new());
            }
        }
    }

    /// The ends in one file from the position on.
    fn read_from(&mut self, start: u64) -> io::Result<Vec<Told>> {
        let mut told = Vec::new();
        let mut most = READ_BYTES;
        loop {
            let bytes = read_file(&self.folder, start, self.position - start, most)?;
            let mut used = 0;
            while let Some((entry, size)) = read(&bytes[used..]) {
                used += size;
                if let Some(Event::Ended(ended)) = entry.event {
                    let position = self.position + used as u64;
                    told.push(Told { position, ended });
                }
            }
            if used == 0 && bytes.len() == most && most < LARGEST {
                most = LARGEST;
                continue;
            }
            if !told.is_empty() {
                self.flush(start)?;
            }
            self.position += used as u64;
            // Other events alone are nothing to tell: what follows them may be.
            if told.is_empty() && used > 0 {
                continue;
            }
            return Ok(told);
        }
    }

    /// Puts a file on the disk, and its name before its first end is told: those of the folders above it too.
    fn flush(&mut self, start: u64) -> io::Result<()> {
        File::open(path(&self.folder, start))?.sync_data()?;
        if self.named != Some(start) {
            // The share, the folder of its run, and that of all runs.
            for folder in self.folder.ancestors().take(3) {
                File::open(folder)?.sync_all()?;
            }
            self.named = Some(start);
        }
        Ok(())
    }

    /// The controller has all ends up to this position: files that hold no later one are deleted. The newest file
    /// stays: it says what the place holds.
    pub(crate) fn acknowledge(&mut self, position: u64) -> io::Result<()> {
        let files = match files_of(&self.folder) {
            // The run was forgotten, which follows the last acknowledgement.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            files => files?,
        };
        for pair in files.windows(2) {
            let [(start, _), (next, length)] = pair else {
                continue;
            };
            if *next > position || *next > self.position {
                break;
            }
            // A successor that says nothing yet cannot take its place.
            let has_frame = *length > 0 && read(&read_file(&self.folder, *next, 0, READ_BYTES)?).is_some();
            if !has_frame {
                break;
            }
            match fs::remove_file(path(&self.folder, *start)) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::map::share::{
        Share,
        tests::{began, ended, took},
    };

    fn indices(told: &[Told]) -> Vec<u32> {
        told.iter().map(|told| told.ended.index).collect()
    }

    fn drain(outbox: &mut Outbox) -> Vec<Told> {
        let mut all = Vec::new();
        loop {
            let told = outbox.next().unwrap();
            if told.is_empty() {
                return all;
            }
            all.extend(told);
        }
    }

    #[test]
    fn each_end_is_told_once_in_order_while_the_place_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("0");
        let mut share = Share::create(&place).unwrap();
        let mut outbox = Outbox::open(&place).unwrap();
        assert_eq!(outbox.next().unwrap(), []);
        share.write(&[took(0, 3), began(0)]).unwrap();
        assert_eq!(outbox.next().unwrap(), []);
        share.write(&[ended(0, b"zero"), began(1)]).unwrap();
        share.write(&[ended(1, b"one"), began(2)]).unwrap();
        let told = outbox.next().unwrap();
        assert_eq!(indices(&told), [0, 1]);
        assert_eq!(told[1].ended.value, "one");
        assert_eq!(outbox.next().unwrap(), []);
        share.write(&[ended(2, b"two")]).unwrap();
        assert_eq!(indices(&outbox.next().unwrap()), [2]);
        // Another daemon tells all of them again, with the same positions.
        let again = Outbox::open(&place).unwrap().next().unwrap();
        assert_eq!(again[..2], told);
    }

    #[test]
    fn half_a_frame_is_told_when_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("0");
        let mut share = Share::create(&place).unwrap();
        let before = files_of(&place).unwrap()[0].1 as usize;
        share.write(&[took(0, 1), began(0), ended(0, b"value")]).unwrap();
        let whole = fs::read(path(&place, 0)).unwrap();
        let mut outbox = Outbox::open(&place).unwrap();
        for cut in before..whole.len() {
            fs::write(path(&place, 0), &whole[..cut]).unwrap();
            assert_eq!(outbox.next().unwrap(), [], "cut at {cut}");
        }
        fs::write(path(&place, 0), &whole).unwrap();
        assert_eq!(indices(&outbox.next().unwrap()), [0]);
    }

    #[test]
    fn what_another_stream_deletes_meanwhile_keeps_no_later_end_from_being_told() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("0");
        let mut share = Share::create(&place).unwrap();
        share.write(&[took(0, 100)]).unwrap();
        let value = vec![7; 1024 * 1024];
        for index in 0..10 {
            share.write(&[began(index)]).unwrap();
            share.write(&[ended(index, &value)]).unwrap();
        }
        let mut older = Outbox::open(&place).unwrap();
        let all = drain(&mut older);
        // The newer stream has begun before the older one ends.
        let mut newer = Outbox::open(&place).unwrap();
        older.acknowledge(all[9].position).unwrap();
        let left = files_of(&place).unwrap()[0].0;
        assert!(left > 0);
        share.write(&[began(10), ended(10, b"later")]).unwrap();
        let expected: Vec<u32> = all
            .iter()
            .filter(|told| told.position > left)
            .map(|told| told.ended.index)
            .chain([10])
            .collect();
        assert_eq!(indices(&drain(&mut newer)), expected);
        // A run that is forgotten has nothing to tell, which is no error.
        fs::remove_dir_all(&place).unwrap();
        assert_eq!(newer.next().unwrap(), []);
        newer.acknowledge(u64::MAX).unwrap();
    }

    #[test]
    fn what_is_acknowledged_goes_file_by_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("0");
        let mut share = Share::create(&place).unwrap();
        share.write(&[took(0, 100)]).unwrap();
        let value = vec![7; 1024 * 1024];
        for index in 0..20 {
            share.write(&[began(index)]).unwrap();
            share.write(&[ended(index, &value)]).unwrap();
        }
        let mut outbox = Outbox::open(&place).unwrap();
        let all = drain(&mut outbox);
        assert_eq!(indices(&all), (0..20).collect::<Vec<_>>());
        let files = files_of(&place).unwrap();
        assert!(files.len() > 3, "{files:?}");
        outbox.acknowledge(0).unwrap();
        assert_eq!(files_of(&place).unwrap(), files);
        let half = all[9].position;
        outbox.acknowledge(half).unwrap();
        let left = drain(&mut Outbox::open(&place).unwrap());
        assert!(left.len() < 20 && indices(&left).ends_with(&(10..20).collect::<Vec<_>>()));
        outbox.acknowledge(all[19].position).unwrap();
        assert_eq!(files_of(&place).unwrap().len(), 1);
        assert_eq!(
            &crate::daemon::map::share::replay(&place).unwrap().0,
            share.queue()
        );
        share.write(&[began(20), ended(20, b"on")]).unwrap();
        assert_eq!(indices(&outbox.next().unwrap()), [20]);
    }
}
