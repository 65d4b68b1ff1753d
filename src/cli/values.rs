//! Return values that are no JSON: an object with a header and the bytes in Base64, as the function runner writes it
//! (`python/skyward/_values.py`). Here the header is shown and the bytes are written to a file. Nothing here reads what
//! the bytes say: a pickle is a program, and who wrote it is known to the person who loads it. The return value of a
//! generator is an object of ours, too: how much it has yielded.

use std::io::{self, Write};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::Value;

/// What the text of such a value begins with.
const MARK: &[u8] = br#"{"skyward.dev/value":"#;
/// What stands between the header and the bytes.
const DATA: &[u8] = br#","skyward.dev/value.data":""#;
/// What the return value of a generator begins with.
const YIELDED: &[u8] = br#"{"skyward.dev/values":"#;
/// A longer beginning has no header of ours.
pub(crate) const HEAD: usize = 16 * 1024;
/// Letters of a name that are shown.
const NAME: usize = 128;

/// The header, and what stands behind it; `None` for a value that is JSON, or while the text is too short.
fn header(text: &[u8]) -> Option<(Value, &[u8])> {
    behind(MARK, text)
}

/// The object behind that beginning, and what stands behind the object.
fn behind<'text>(mark: &[u8], text: &'text [u8]) -> Option<(Value, &'text [u8])> {
    let rest = text.strip_prefix(mark)?;
    let mut values = serde_json::Deserializer::from_slice(rest).into_iter::<Value>();
    let header = values.next()?.ok().filter(Value::is_object)?;
    Some((header, &rest[values.byte_offset()..]))
}

/// The type and size of a value that is no JSON, from the beginning of its text.
pub(crate) fn described(text: &[u8]) -> Option<String> {
    if let Some((yielded, _)) = behind(YIELDED, text) {
        let number = |field: &str| yielded[field].as_u64().unwrap_or_default();
        let (count, bytes) = (number("count"), number("bytes"));
        return Some(format!("{count} values yielded ({bytes} bytes)"));
    }
    let (header, _) = header(text)?;
    let name = |field: &str| -> String {
        let text = header[field].as_str().unwrap_or("?");
        text.chars()
            .map(|letter| if letter.is_control() { '?' } else { letter })
            .take(NAME)
            .collect()
    };
    let bytes = header["bytes"].as_u64().unwrap_or_default();
    Some(format!("{} ({}, {bytes} bytes)", name("type"), name("codec")))
}

/// How many values a generator has yielded, from its return value.
pub(crate) fn yielded_count(value: &Value) -> Option<u64> {
    value["skyward.dev/values"]["count"].as_u64()
}

/// Writes the bytes of a value as its text comes in: those behind the header, or the JSON itself.
#[derive(Debug)]
pub(crate) struct Writer<W> {
    to: W,
    state: State,
}

#[derive(Debug)]
enum State {
    /// It is not known yet what it is.
    Head(Vec<u8>),
    /// Base64 that makes no whole bytes yet, how many bytes are to come, and how many came.
    Data {
        letters: Vec<u8>,
        promised: Option<u64>,
        written: u64,
    },
    Json,
    /// The bytes are at their end.
    Done,
}

impl<W: Write> Writer<W> {
    pub(crate) const fn new(to: W) -> Self {
        Self {
            to,
            state: State::Head(Vec::new()),
        }
    }

    /// Takes a piece of the text.
    pub(crate) fn take(&mut self, piece: &[u8]) -> io::Result<()> {
        match &mut self.state {
            State::Done => Ok(()),
            State::Json => self.to.write_all(piece),
            State::Head(text) => {
                text.extend_from_slice(piece);
                let is_short = text.len() < MARK.len() && MARK.starts_with(text);
                if is_short {
                    return Ok(());
                }
                let text = std::mem::take(text);
                self.begin(text)
            }
            State::Data { .. } => self.decode(piece),
        }
    }

    fn begin(&mut self, text: Vec<u8>) -> io::Result<()> {
        let found = header(&text).and_then(|(header, rest)| {
            let rest = rest.strip_prefix(DATA)?.to_vec();
            Some((header["bytes"].as_u64(), rest))
        });
        if let Some((promised, rest)) = found {
            self.state = State::Data {
                letters: Vec::new(),
                promised,
                written: 0,
            };
            return self.decode(&rest);
        }
        if text.starts_with(MARK) && text.len() < HEAD {
            self.state = State::Head(text);
            return Ok(());
        }
        self.state = State::Json;
        self.to.write_all(&text)
    }

    fn decode(&mut self, piece: &[u8]) -> io::Result<()> {
        let State::Data {
            letters,
            promised,
            written,
        } = &mut self.state
        else {
            return Ok(());
        };
        let end = piece.iter().position(|byte| *byte == b'"');
        letters.extend_from_slice(&piece[..end.unwrap_or(piece.len())]);
        let whole = letters.len() / 4 * 4;
        let broken = || {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "the value is not written as its header says",
            )
        };
        let bytes = STANDARD.decode(&letters[..whole]).map_err(|_| broken())?;
        letters.drain(..whole);
        self.to.write_all(&bytes)?;
        *written += bytes.len() as u64;
        if end.is_some() {
            if !letters.is_empty() || promised.is_none_or(|promised| promised != *written) {
                return Err(broken());
            }
            self.state = State::Done;
        }
        Ok(())
    }

    /// The text is at its end.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        match &self.state {
            State::Head(text) => self.to.write_all(text)?,
            State::Json | State::Done => {}
            State::Data { .. } => {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the value ends early",
                ));
            }
        }
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARRAY: &str = r#"{"skyward.dev/value":{"codec":"npy","type":"numpy.ndarray","bytes":5,"sha256":"x","python":"3.12.1","packages":{}},"skyward.dev/value.data":"aGVsbG8="}"#;

    fn written(text: &str, piece: usize) -> io::Result<String> {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes);
        for piece in text.as_bytes().chunks(piece) {
            writer.take(piece)?;
        }
        writer.finish()?;
        Ok(String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn the_bytes_of_a_value_are_written_however_its_text_is_cut() {
        let line = format!("{ARRAY}\n");
        for piece in 1..=line.len() {
            assert_eq!(written(&line, piece).unwrap(), "hello", "pieces of {piece}");
        }
    }

    #[test]
    fn what_is_json_is_written_as_it_is() {
        for text in [
            "1",
            "{\"skyward.dev/value\":1}\n",
            "{\"a\":2}",
            "{\"skyward",
            "[]",
            "",
        ] {
            for piece in [1, 3, 100] {
                assert_eq!(written(text, piece).unwrap(), text);
            }
        }
    }

    #[test]
    fn a_value_that_is_not_what_its_header_says_is_an_error() {
        for (from, to) in [
            ("\"bytes\":5", "\"bytes\":6"),
            ("\"bytes\":5", "\"bytes\":\"5\""),
            ("aGVsbG8=", "aGVsbG8"),
            ("aGVsbG8=", "a!!!bG8="),
            ("aGVsbG8=\"}", "aGVsbG8="),
        ] {
            for piece in [1, 7, 1000] {
                written(&ARRAY.replace(from, to), piece).unwrap_err();
            }
        }
    }

    #[test]
    fn the_value_of_a_generator_says_how_much_it_has_yielded() {
        let text = r#"{"skyward.dev/values":{"bytes":57,"count":3},"skyward.dev/returned":1}"#;
        assert_eq!(described(text.as_bytes()).unwrap(), "3 values yielded (57 bytes)");
        assert_eq!(yielded_count(&serde_json::from_str(text).unwrap()), Some(3));
        for other in ["1", "{}", r#"{"skyward.dev/values":3}"#, "[3]"] {
            assert_eq!(
                yielded_count(&serde_json::from_str(other).unwrap()),
                None,
                "{other}"
            );
        }
    }

    #[test]
    fn type_and_size_are_known_from_the_beginning_and_harm_no_terminal() {
        let expected = Some("numpy.ndarray (npy, 5 bytes)".to_owned());
        assert_eq!(described(ARRAY.as_bytes()), expected);
        let beginning = &ARRAY[..ARRAY.len() - 12];
        assert_eq!(described(beginning.as_bytes()), expected);
        assert_eq!(described(&ARRAY.as_bytes()[..40]), None);
        assert_eq!(described(b"{\"a\":1}"), None);
        assert_eq!(described(b"{\"skyward.dev/value\":7}"), None);
        let hostile = ARRAY.replace("numpy.ndarray", "\\u001b[2J");
        assert_eq!(described(hostile.as_bytes()).unwrap(), "?[2J (npy, 5 bytes)");
    }
}
