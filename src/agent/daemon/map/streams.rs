//! Which stream of a map may give items to its workers: the one that was opened last, and only as long as no leader of a
//! newer epoch has commanded this machine. A leader believes that a chunk which it sent over an older stream is lost once it
//! has opened a new one, and may give these items to another machine: so no later message of the older stream counts.

use std::collections::BTreeMap;

/// One stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stream {
    /// UID of the Task.
    map: String,
    epoch: u64,
    number: u64,
}

/// Why a stream was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stale;

/// The streams that were opened last. The caller holds a lock over the answer and what follows from it.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    newest: BTreeMap<String, (u64, u64)>,
    opened: u64,
}

impl Streams {
    /// Opens a stream and closes all others of the map. `commanding`: the newest epoch that has commanded this machine.
    pub(crate) fn open(&mut self, map: &str, epoch: u64, commanding: u64) -> Result<Stream, Stale> {
        let known = self.newest.get(map).map_or(0, |(epoch, _)| *epoch);
        if epoch < known.max(commanding) {
            return Err(Stale);
        }
        self.opened += 1;
        let number = self.opened;
        self.newest.insert(map.to_owned(), (epoch, number));
        Ok(Stream {
            map: map.to_owned(),
            epoch,
            number,
        })
    }

    /// Whether what comes over a stream counts.
    pub(crate) fn counts(&self, stream: &Stream, commanding: u64) -> bool {
        let newest = self.newest.get(&stream.map);
        stream.epoch >= commanding && newest == Some(&(stream.epoch, stream.number))
    }

    /// A stream has ended. A newer one of its map stays.
    pub(crate) fn close(&mut self, stream: &Stream) {
        if self.newest.get(&stream.map) == Some(&(stream.epoch, stream.number)) {
            self.newest.remove(&stream.map);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_newer_stream_closes_older_ones_of_its_map_and_of_no_other() {
        let mut streams = Streams::default();
        let first = streams.open("a", 1, 1).unwrap();
        let other = streams.open("b", 1, 1).unwrap();
        let second = streams.open("a", 1, 1).unwrap();
        assert!(!streams.counts(&first, 1) && streams.counts(&second, 1) && streams.counts(&other, 1));
        streams.close(&first);
        assert!(streams.counts(&second, 1));
        assert!(!streams.counts(&second, 2), "another leader commands");
        assert_eq!(streams.open("a", 1, 2), Err(Stale));
        let third = streams.open("a", 3, 2).unwrap();
        assert_eq!(streams.open("a", 2, 2), Err(Stale), "an older leader comes late");
        assert!(streams.counts(&third, 3));
        streams.close(&third);
        streams.close(&other);
        assert!(streams.newest.is_empty());
    }

    proptest! {
        #[test]
        fn at_most_one_stream_of_a_map_counts(
            steps in proptest::collection::vec((0_usize..2, 1_u64..4, any::<bool>()), 0..40),
        ) {
            let mut streams = Streams::default();
            let (mut all, mut commanding): (Vec<Stream>, u64) = (Vec::new(), 0);
            for (map, epoch, close) in steps {
                if close && !all.is_empty() {
                    let stream = all.remove(epoch as usize % all.len());
                    streams.close(&stream);
                } else if let Ok(stream) = streams.open(["a", "b"][map], epoch, commanding) {
                    commanding = commanding.max(epoch);
                    all.push(stream);
                }
                for map in ["a", "b"] {
                    let counting = all.iter().filter(|stream| stream.map == map && streams.counts(stream, commanding));
                    prop_assert!(counting.count() <= 1);
                }
            }
        }
    }
}
