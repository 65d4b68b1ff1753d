//! The protocol with the Python that runs a function for each item (`python/skyward/_items.py`). This Python runs as the
//! work's user, with the user's code in it: each length that it sends is checked before it is used, and a malformed
//! message ends this Python.

use bytes::{Buf, Bytes, BytesMut};

use super::queue::{Ended, Item};
use crate::protocol::{MESSAGE_BYTES, finished::Ending};

/// Index, ending, and the lengths of message, class and value.
const HEADER: usize = 4 + 1 + 4 + 4 + 4;
/// Longest message, and longest name of a class: the runner cuts them at 4,000 letters.
const LONGEST_TEXT: usize = 16 * 1024;

const BEGAN: u8 = 0;
const RETURNED: u8 = 1;
const RAISED: u8 = 2;
const BAD_SOURCE: u8 = 3;
const NOT_JSON: u8 = 4;
const TOO_LARGE: u8 = 5;
const NO_ROOM: u8 = 6;
const DIED: u8 = 7;
const WAITS: u8 = 8;

/// The order to run an item.
pub(crate) fn order(index: u32, json: &Bytes) -> Bytes {
    let mut bytes = Vec::with_capacity(8 + json.len());
    bytes.extend_from_slice(&index.to_le_bytes());
    // Items are at most 256 KiB.
    bytes.extend_from_slice(&(json.len() as u32).to_le_bytes());
    bytes.extend_from_slice(json);
    bytes.into()
}

/// What the runner said.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Said {
    /// An item that runs has a process of its own: its index, and the number of the process.
    Began(u32, i32),
    /// The number of the process in which the next item will begin, unless that says otherwise.
    Waits(i32),
    /// An item that ran has ended; how long it ran is not the runner's to say.
    Ended(Ended),
}

/// Why the runner cannot be believed any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Garbage;

/// Bytes of the runner, until they are whole.
#[derive(Debug)]
pub(crate) struct Heard {
    bytes: BytesMut,
    value_limit: usize,
}

impl Heard {
    /// With the largest value that an item may return.
    pub(crate) fn new(value_limit: usize) -> Self {
        Self {
            bytes: BytesMut::new(),
            value_limit,
        }
    }

    /// Takes in what was read.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next thing that was said about an item that runs, once it is whole. `running`: which attempt of that index runs.
    pub(crate) fn next(&mut self, running: impl Fn(u32) -> Option<Item>) -> Result<Option<Said>, Garbage> {
        let Some(mut header) = self.bytes.get(..HEADER) else {
            return Ok(None);
        };
        let (index, kind) = (header.get_u32_le(), header.get_u8());
        let [message, exception, value] = [(); 3].map(|()| header.get_u32_le() as usize);
        let item = running(index).ok_or(Garbage)?;
        if message.max(exception) > LONGEST_TEXT || value > self.value_limit {
            return Err(Garbage);
        }
        if self.bytes.len() < HEADER + message + exception + value {
            return Ok(None);
        }
        self.bytes.advance(HEADER);
        let message = text(&self.bytes.split_to(message));
        let exception = text(&self.bytes.split_to(exception));
        let value = self.bytes.split_to(value).freeze();
        if matches!(kind, BEGAN | WAITS) {
            let pid = message
                .parse::<i32>()
                .ok()
                .filter(|pid| *pid > 1)
                .ok_or(Garbage)?;
            return Ok(Some(match kind {
                BEGAN => Said::Began(index, pid),
                _ => Said::Waits(pid),
            }));
        }
        let (ending, code, signal, message) = judge(kind, message)?;
        Ok(Some(Said::Ended(Ended {
            index,
            attempt: item.attempt,
            ending: ending.into(),
            exit_code: code,
            signal,
            message: shorten(message),
            microseconds: 0,
            value: if kind == RETURNED { value } else { Bytes::new() },
            exception: shorten(exception),
        })))
    }
}

fn judge(kind: u8, message: String) -> Result<(Ending, i32, i32, String), Garbage> {
    let plain = |ending: Ending| Ok((ending, 0, 0, message.clone()));
    match kind {
        RETURNED => plain(Ending::Exited),
        RAISED => plain(Ending::FunctionRaised),
        BAD_SOURCE => plain(Ending::BadSource),
        NOT_JSON => plain(Ending::ResultNotJson),
        TOO_LARGE => plain(Ending::ResultTooLarge),
        NO_ROOM => plain(Ending::DiskFull),
        DIED => {
            let (how, number) = message.split_once(' ').ok_or(Garbage)?;
            let number: i32 = number.parse().map_err(|_| Garbage)?;
            match how {
                "exited" if number == 0 => {
                    let why = "the process exited with 0 before the function returned";
                    // Not `Exited` with 0, which is a success: the item has no value.
                    Ok((Ending::FunctionRaised, 0, 0, why.to_owned()))
                }
                "exited" => Ok((Ending::Exited, number, 0, format!("it exited with code {number}"))),
                "signaled" => {
                    let why = format!("it was killed by signal {number}");
                    Ok((Ending::Signaled, 0, number, why))
                }
                _ => Err(Garbage),
            }
        }
        _ => Err(Garbage),
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn shorten(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MESSAGE_BYTES));
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ITEM: Item = Item { index: 7, attempt: 2 };

    fn said(index: u32, kind: u8, message: &str, exception: &str, value: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&index.to_le_bytes());
        bytes.push(kind);
        for length in [message.len(), exception.len(), value.len()] {
            bytes.extend_from_slice(&(length as u32).to_le_bytes());
        }
        [&bytes[..], message.as_bytes(), exception.as_bytes(), value].concat()
    }

    fn hear(bytes: &[u8]) -> Result<Option<Said>, Garbage> {
        let mut heard = Heard::new(100);
        heard.push(bytes);
        heard.next(item)
    }

    fn item(index: u32) -> Option<Item> {
        (index == ITEM.index).then_some(ITEM)
    }

    trait Ends {
        fn ending(&self) -> Ending;
    }

    impl Ends for Ended {
        fn ending(&self) -> Ending {
            Ending::try_from(self.ending).unwrap()
        }
    }

    fn ended(bytes: &[u8]) -> Ended {
        match hear(bytes) {
            Ok(Some(Said::Ended(ended))) => ended,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_order_is_the_index_and_the_item() {
        assert_eq!(&order(258, &Bytes::from("[1]"))[..], b"\x02\x01\0\0\x03\0\0\0[1]");
        assert_eq!(&order(0, &Bytes::new())[..], [0; 8]);
    }

    #[test]
    fn each_way_to_end_has_its_word() {
        let returned = ended(&said(7, RETURNED, "", "", b"[1]"));
        assert_eq!((returned.index, returned.attempt), (7, 2));
        assert_eq!(
            (returned.ending(), &returned.value[..]),
            (Ending::Exited, &b"[1]"[..])
        );
        let raised = ended(&said(7, RAISED, "job.Odd: 1", "job.Odd", b"not a value"));
        assert_eq!(
            (raised.ending(), raised.exception.as_str()),
            (Ending::FunctionRaised, "job.Odd")
        );
        assert!(raised.value.is_empty());
        let exited = ended(&said(7, DIED, "exited 3", "", b""));
        assert_eq!((exited.ending(), exited.exit_code), (Ending::Exited, 3));
        let signaled = ended(&said(7, DIED, "signaled 9", "", b""));
        assert_eq!((signaled.ending(), signaled.signal), (Ending::Signaled, 9));
        let quiet = ended(&said(7, DIED, "exited 0", "", b""));
        assert_eq!(quiet.ending(), Ending::FunctionRaised, "no success");
        for (kind, ending) in [
            (BAD_SOURCE, Ending::BadSource),
            (NOT_JSON, Ending::ResultNotJson),
            (TOO_LARGE, Ending::ResultTooLarge),
            (NO_ROOM, Ending::DiskFull),
        ] {
            assert_eq!(ended(&said(7, kind, "why", "", b"")).ending(), ending);
        }
        assert_eq!(
            hear(&said(7, BEGAN, "4242", "", b"")),
            Ok(Some(Said::Began(7, 4242)))
        );
        assert_eq!(
            hear(&said(7, WAITS, "4242", "", b"")),
            Ok(Some(Said::Waits(4242)))
        );
    }

    #[test]
    fn a_runner_that_says_what_it_cannot_is_not_believed() {
        let long = "x".repeat(LONGEST_TEXT + 1);
        for bytes in [
            said(8, RETURNED, "", "", b"1"),
            said(7, 9, "", "", b""),
            said(7, RETURNED, "", "", &[b'1'; 101]),
            said(7, RAISED, &long, "", b""),
            said(7, RAISED, "", &long, b""),
            said(7, BEGAN, "1", "", b""),
            said(7, BEGAN, "-5", "", b""),
            said(7, WAITS, "0", "", b""),
            said(7, DIED, "exited", "", b""),
            said(7, DIED, "left 3", "", b""),
        ] {
            assert_eq!(hear(&bytes), Err(Garbage), "{bytes:?}");
        }
        let huge = [&7_u32.to_le_bytes()[..], &[RETURNED], &[0xff; 12]].concat();
        assert_eq!(hear(&huge), Err(Garbage), "before so many bytes are waited for");
    }

    proptest! {
        #[test]
        fn where_the_bytes_are_cut_makes_no_difference(
            value in proptest::collection::vec(any::<u8>(), 0..100),
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..4),
        ) {
            let bytes = [said(7, BEGAN, "42", "", b""), said(7, RETURNED, "", "", &value)].concat();
            let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len())).collect();
            at.extend([0, bytes.len()]);
            at.sort_unstable();
            let (mut heard, mut all) = (Heard::new(100), Vec::new());
            for pair in at.windows(2) {
                heard.push(&bytes[pair[0]..pair[1]]);
                while let Some(said) = heard.next(item).unwrap() {
                    all.push(said);
                }
            }
            prop_assert_eq!(all.len(), 2);
            prop_assert!(matches!(&all[1], Said::Ended(ended) if ended.value == value));
        }

        #[test]
        fn no_bytes_make_it_panic(pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..8)) {
            let mut heard = Heard::new(100);
            for piece in pieces {
                heard.push(&piece);
                while let Ok(Some(_)) = heard.next(item) {}
            }
        }
    }
}
