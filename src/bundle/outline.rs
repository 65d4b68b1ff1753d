//! A bundle without its contents: which bytes of it come from where. So a bundle is sent, or a part of a
//! stored one is sent as a bundle of its own, without ever being held whole.

use std::ops::Range;

use crate::{Error, MAGIC, MANIFEST_BYTES, Manifest};

/// Bytes at the beginning of a bundle that tell how long its head is.
pub const START: usize = MAGIC.len() + 4;

/// A part of a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Bytes of [`Outline::head`].
    Head(Range<usize>),
    /// Bytes of the content of a file, by its place in the manifest.
    Content {
        /// Which file.
        file: usize,
        /// Which of its bytes.
        range: Range<u64>,
    },
}

/// The head of a bundle, and where each content lies behind it.
#[derive(Clone, Debug)]
pub struct Outline {
    head: Vec<u8>,
    /// The offset behind each content.
    ends: Vec<u64>,
}

impl Outline {
    /// The outline of the bundle that this manifest describes.
    pub fn of(manifest: &Manifest) -> Self {
        let head = manifest.head();
        let mut end = head.len() as u64;
        let ends = manifest.entries().iter().map(|entry| {
            end += entry.size;
            end
        });
        Self {
            ends: ends.collect(),
            head,
        }
    }

    /// All that stands in front of the contents.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// Bytes of the whole bundle.
    pub fn bytes(&self) -> u64 {
        self.ends.last().copied().unwrap_or(self.head.len() as u64)
    }

    /// The offset at which the content of a file begins.
    pub fn begin(&self, file: usize) -> u64 {
        let before = file.checked_sub(1).and_then(|before| self.ends.get(before));
        before.copied().unwrap_or(self.head.len() as u64)
    }

    /// The pieces that make up these bytes of the bundle, in order; none of them is empty.
    pub fn pieces(&self, range: Range<u64>) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let head = self.head.len() as u64;
        let end = range.end.min(self.bytes());
        let mut at = range.start;
        if at < end.min(head) {
            // Both are within the head, which is in memory.
            pieces.push(Piece::Head(at as usize..end.min(head) as usize));
            at = end.min(head);
        }
        let mut file = self.ends.partition_point(|behind| *behind <= at);
        while at < end {
            let begin = self.begin(file);
            let until = end.min(self.ends[file]);
            if at < until {
                pieces.push(Piece::Content {
                    file,
                    range: at - begin..until - begin,
                });
            }
            at = until;
            file += 1;
        }
        pieces
    }
}

/// Bytes of the head of a bundle that starts with these [`START`] bytes.
pub fn head_bytes(start: &[u8]) -> Result<u64, Error> {
    let length = start.strip_prefix(MAGIC).and_then(|length| length.first_chunk());
    let Some(length) = length.map(|length| u32::from_be_bytes(*length)) else {
        return Err(Error::Refused(
            "the bytes are no bundle, or one of a later version".to_owned(),
        ));
    };
    if length > MANIFEST_BYTES {
        return Err(Error::Refused("the bundle's manifest is too long".to_owned()));
    }
    Ok(START as u64 + u64::from(length))
}

#[cfg(test)]
mod tests {
    use proptest::{collection::btree_map, prelude::*};

    use super::*;
    use crate::{File, LIMITS, Reader, Selection, pack};

    proptest! {
        #[test]
        fn the_pieces_of_any_part_of_a_bundle_are_its_bytes(
            files in btree_map("[a-d]{1,3}", prop::collection::vec(any::<u8>(), 0..6), 1..8),
            at in 0_u64..800, length in 0_u64..800,
        ) {
            let made = pack(files.iter().map(|(path, content)| File { path, executable: false, content }), LIMITS).unwrap();
            let manifest = Reader::open(&*made.bytes, LIMITS).unwrap().manifest().clone();
            let outline = Outline::of(&manifest);
            prop_assert_eq!(outline.bytes(), made.bytes.len() as u64);
            prop_assert_eq!(head_bytes(&made.bytes[..START]).unwrap(), outline.head().len() as u64);
            let contents: Vec<&Vec<u8>> = files.values().collect();
            let mut bytes = Vec::new();
            for piece in outline.pieces(at..at + length) {
                match piece {
                    Piece::Head(range) => bytes.extend_from_slice(&outline.head()[range]),
                    Piece::Content { file, range } => {
                        prop_assert!(!range.is_empty());
                        bytes.extend_from_slice(&contents[file][range.start as usize..range.end as usize]);
                    }
                }
            }
            let from = (at as usize).min(made.bytes.len());
            let to = (from + length as usize).min(made.bytes.len());
            prop_assert_eq!(&bytes[..], &made.bytes[from..to]);
        }

        #[test]
        fn the_outline_of_a_selection_is_that_of_the_bundle_of_these_files(
            files in btree_map("[a-d]{1,3}", prop::collection::vec(any::<u8>(), 0..6), 1..8), pattern in "[a-d]\\*",
        ) {
            let all = pack(files.iter().map(|(path, content)| File { path, executable: false, content }), LIMITS).unwrap();
            let manifest = Reader::open(&*all.bytes, LIMITS).unwrap().manifest().clone();
            let selection = Selection::new(&[], &[pattern]).unwrap();
            let some = files.iter().filter(|(path, _)| selection.takes(path));
            let some = pack(some.map(|(path, content)| File { path, executable: false, content }), LIMITS);
            match (manifest.select(&selection), some) {
                (Ok(manifest), Ok(some)) => {
                    prop_assert_eq!(manifest.digest(), some.digest);
                    let outline = Outline::of(&manifest);
                    prop_assert_eq!(outline.head(), &some.bytes[..outline.head().len()]);
                    prop_assert_eq!(outline.bytes(), some.bytes.len() as u64);
                }
                (Err(_), Err(_)) => {}
                (one, other) => prop_assert!(false, "{one:?} {other:?}"),
            }
        }
    }

    #[test]
    fn bytes_that_begin_no_bundle_have_no_head() {
        for start in [
            &b""[..],
            b"skyward-bundle 2\n\0\0\0\0",
            b"skyward-bundle 1\n\0\0\0",
        ] {
            assert!(head_bytes(start).is_err(), "{start:?}");
        }
        assert!(head_bytes(b"skyward-bundle 1\n\xff\0\0\0").is_err());
    }
}
