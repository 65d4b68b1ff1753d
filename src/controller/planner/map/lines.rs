//! Items in a file with one JSON value in each line. The file comes in pieces and may be large: only the line
//! that is being read is kept. The result is the position of each item in the file, not the item.

use std::{fmt, ops::Range};

use serde_json::Value;
use skyward_api::for_each::{ALL_BYTES, ITEM_BYTES, MOST_ITEMS};

/// What some editors put before the first line of a file in UTF-8: it is no part of the first item.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// A file of items that is being read.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    /// Bytes that were read.
    offset: u64,
    /// The beginning of a line.
    begun: Vec<u8>,
    /// Number of that line, from 0.
    line: u64,
    items: u64,
}

/// What is wrong with a file of items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadLines {
    /// A line is longer than an item may be.
    TooLong(u64),
    /// A line is no JSON; why.
    NotJson(u64, String),
    /// There are more items than a Task may have.
    TooMany,
    /// The file is larger than all items of a Task may be.
    TooLarge,
}

impl fmt::Display for BadLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong(line) => write!(
                f,
                "line {line} of the items is longer than {} KiB: write what is large into files, and name these in the items",
                ITEM_BYTES / 1024
            ),
            Self::NotJson(line, why) => write!(
                f,
                "line {line} of the items is no JSON ({why}): write one JSON value in each line, text in quotes"
            ),
            Self::TooMany => write!(f, "there are more than {MOST_ITEMS} items: make several Tasks"),
            Self::TooLarge => write!(
                f,
                "the items take more than {} MiB together, which is the most of one Task: make several Tasks, each with a part \
                 of the items, or write what is large into files, and name these in the items",
                ALL_BYTES >> 20
            ),
        }
    }
}

impl std::error::Error for BadLines {}

impl Lines {
    /// Takes in the next bytes of the file, and tells where in the file each item is that ends in them.
    pub fn push(&mut self, mut bytes: &[u8], found: &mut impl FnMut(Range<u64>)) -> Result<(), BadLines> {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.add(&bytes[..end])?;
            self.end_line(found)?;
            self.offset += 1;
            bytes = &bytes[end + 1..];
        }
        self.add(bytes)
    }

    /// The file has ended, with or without the end of a line. Answers how many items it has.
    pub fn finish(mut self, found: &mut impl FnMut(Range<u64>)) -> Result<u32, BadLines> {
        self.end_line(found)?;
        u32::try_from(self.items).map_err(|_| BadLines::TooMany)
    }

    fn add(&mut self, bytes: &[u8]) -> Result<(), BadLines> {
        self.offset += bytes.len() as u64;
        if self.offset > ALL_BYTES {
            return Err(BadLines::TooLarge);
        }
        if self.begun.len() + bytes.len() > ITEM_BYTES {
            return Err(BadLines::TooLong(self.line + 1));
        }
        self.begun.extend_from_slice(bytes);
        Ok(())
    }

    /// A line that is empty is no item. The space around an item, such as the CR of a line that ends with CR and LF, is no
    /// part of it: a command is given what the place has.
    fn end_line(&mut self, found: &mut impl FnMut(Range<u64>)) -> Result<(), BadLines> {
        self.line += 1;
        let mark = if self.line == 1 { BYTE_ORDER_MARK } else { &[] };
        let text = self.begun.strip_prefix(mark).unwrap_or(&self.begun);
        let item = text.trim_ascii();
        if !item.is_empty() {
            if let Err(error) = serde_json::from_slice::<Value>(text) {
                // The line of the file is told already.
                let why = error.to_string().replace("line 1 column", "column");
                return Err(BadLines::NotJson(self.line, why));
            }
            if self.items == MOST_ITEMS {
                return Err(BadLines::TooMany);
            }
            self.items += 1;
            let start = self.offset - text.trim_ascii_start().len() as u64;
            found(start..start + item.len() as u64);
        }
        self.begun.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(pieces: &[&[u8]]) -> Result<Vec<Range<u64>>, BadLines> {
        let mut found = Vec::new();
        let mut lines = Lines::default();
        for piece in pieces {
            lines.push(piece, &mut |item| found.push(item))?;
        }
        let count = lines.finish(&mut |item| found.push(item))?;
        assert_eq!(count as usize, found.len());
        Ok(found)
    }

    #[test]
    fn each_line_with_a_value_is_an_item() {
        assert_eq!(read(&[b""]), Ok(vec![]));
        assert_eq!(read(&[b"\n\n \r\n"]), Ok(vec![]));
        assert_eq!(read(&[b"1\n\"a\"\r\n{\"b\": 2}"]), Ok(vec![0..1, 2..5, 7..15]));
        assert_eq!(
            read(&[b"1\n2\n"]),
            Ok(vec![0..1, 2..3]),
            "with and without the last end of a line"
        );
    }

    #[test]
    fn what_windows_writes_around_items_is_no_part_of_them() {
        let file = b"\xef\xbb\xbf5\r\n {\"b\": 2}\t\r\n\r\n";
        let items: Vec<&[u8]> = read(&[file])
            .unwrap()
            .into_iter()
            .map(|place| &file[place.start as usize..place.end as usize])
            .collect();
        assert_eq!(items, [&b"5"[..], b"{\"b\": 2}"]);
        assert_eq!(read(&[b"\xef\xbb\xbf\r\n"]), Ok(vec![]));
        assert!(matches!(
            read(&[b"1\n\xef\xbb\xbf2"]),
            Err(BadLines::NotJson(2, _))
        ));
    }

    #[test]
    fn an_item_may_take_all_that_an_item_may_take_and_not_a_byte_more() {
        let largest = format!("\"{}\"", "x".repeat(ITEM_BYTES - 2));
        assert_eq!(read(&[largest.as_bytes(), b"\n1"]).unwrap().len(), 2);
        assert_eq!(read(&[b"1\n ", largest.as_bytes()]), Err(BadLines::TooLong(2)));
    }

    #[test]
    fn a_line_that_is_no_item_is_named() {
        let error = read(&[b"1\n\nabc\n"]).unwrap_err();
        assert!(matches!(&error, BadLines::NotJson(3, _)), "{error:?}");
        assert!(
            error
                .to_string()
                .starts_with("line 3 of the items is no JSON (expected value at column 1)"),
            "{error}"
        );
        assert!(matches!(read(&[b"1 2"]), Err(BadLines::NotJson(1, _))));
        assert!(matches!(read(&[b"\"\xff\""]), Err(BadLines::NotJson(1, _))));
    }

    #[test]
    fn a_line_without_an_end_takes_no_more_memory_than_an_item() {
        let piece = vec![b' '; 64 * 1024];
        let mut lines = Lines::default();
        let mut told = 0;
        let mut pushed = 0;
        let error = loop {
            match lines.push(&piece, &mut |_| told += 1) {
                Ok(()) => pushed += piece.len(),
                Err(error) => break error,
            }
        };
        assert_eq!((error, pushed, told), (BadLines::TooLong(1), ITEM_BYTES, 0));
        assert!(lines.begun.capacity() <= 2 * ITEM_BYTES);
    }

    #[test]
    fn too_many_items_are_refused() {
        let mut lines = Lines::default();
        let many = b"1\n".repeat(100_000);
        for _ in 0..10 {
            lines.push(&many, &mut |_| {}).unwrap();
        }
        assert_eq!(lines.clone().finish(&mut |_| {}), Ok(1_000_000));
        assert_eq!(lines.push(b"1\n", &mut |_| {}), Err(BadLines::TooMany));
    }

    #[test]
    fn items_that_are_too_large_together_are_refused_with_the_limit_and_the_ways_around_it() {
        let mut lines = Lines {
            offset: ALL_BYTES - 1,
            ..Lines::default()
        };
        lines.push(b"1", &mut |_| {}).unwrap();
        let error = lines.push(b"2", &mut |_| {}).unwrap_err();
        assert_eq!(error, BadLines::TooLarge);
        let message = error.to_string();
        for part in [
            "more than 64 MiB together",
            "several Tasks",
            "name these in the items",
        ] {
            assert!(message.contains(part), "{part}: {message}");
        }
    }

    proptest! {
        #[test]
        fn where_a_file_is_cut_into_pieces_makes_no_difference(
            text in "([0-9]{1,3}|\"[a-c]{0,3}\"|\r| |\n){0,30}",
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..5),
        ) {
            let bytes = text.as_bytes();
            let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            at.extend([0, bytes.len()]);
            at.sort_unstable();
            let pieces: Vec<&[u8]> = at.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            prop_assert_eq!(read(&pieces), read(&[bytes]));
        }
    }
}
