//! The bytes of one object of a map's log, or of a page of its results. Pure.
//!
//! ```text
//! skymap1\n  writer (16)  first (8)  last (8)     which records, and who wrote them
//! bodies                                          values and endings, one after the other
//! heads                                           the records in their order, without their bodies
//! length of the heads (4)  checksum (4)  skyend1\n
//! ```
//!
//! A reader takes the end of an object first: the heads say all that a leader needs, and where the bodies are. Numbers
//! are little-endian, and checksums the first four bytes of a SHA-256. What is read here lies in a volume or a bucket
//! of others, so each length is looked at before it is used.

use bytes::{BufMut, Bytes, BytesMut};
use sha2::{Digest, Sha256};

use super::Writer;

const BEGIN: &[u8; 8] = b"skymap1\n";
const END: &[u8; 8] = b"skyend1\n";
/// Bytes before the bodies.
pub(super) const HEADER: usize = 8 + 16 + 8 + 8;
/// Bytes after the heads.
pub(super) const TAIL: usize = 4 + 4 + 8;
/// Longest text of a note.
pub const NOTE_BYTES: usize = 1024;

const LEADER: u8 = 1;
const NOTE: u8 = 2;
const ENDED: u8 = 3;

/// One record, to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A leader of that epoch begins.
    Leader(u64),
    /// What the store does not look into.
    Note(String),
    /// The end of one attempt of an item, with its body.
    Ended(Ended, Bytes),
}

/// The end of one attempt of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Which item.
    pub index: u32,
    /// Which attempt, from 1.
    pub attempt: u32,
    /// How it ended; the store does not look into it.
    pub cause: u8,
    /// Whether no other attempt follows.
    pub is_final: bool,
}

/// One record without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Head {
    /// A leader of that epoch begins.
    Leader(u64),
    /// What the store does not look into.
    Note(String),
    /// The end of one attempt of an item, and where its body is.
    Ended(Ended, Body),
}

/// Where a body is in its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Body {
    pub(super) start: u32,
    pub(super) length: u32,
    pub(super) checksum: [u8; 4],
}

impl Body {
    /// How many bytes it has.
    pub const fn len(self) -> u32 {
        self.length
    }

    /// Whether it has none.
    pub const fn is_empty(self) -> bool {
        self.length == 0
    }

    /// Whether these are its bytes.
    pub(super) fn is(self, bytes: &[u8]) -> bool {
        bytes.len() == self.length as usize && checksum(bytes) == self.checksum
    }
}

/// The object of these records. `None`: they are too many for one object.
pub(super) fn encode(writer: Writer, (first, last): (u64, u64), records: &[Record]) -> Option<Bytes> {
    let mut bytes = BytesMut::new();
    put_header(&mut bytes, writer, (first, last));
    let mut heads = BytesMut::new();
    for record in records {
        match record {
            Record::Leader(epoch) => put_head(&mut heads, &Head::Leader(*epoch))?,
            Record::Note(text) => put_head(&mut heads, &Head::Note(text.clone()))?,
            Record::Ended(ended, body) => {
                let place = Body {
                    start: u32::try_from(bytes.len()).ok()?,
                    length: u32::try_from(body.len()).ok()?,
                    checksum: checksum(body),
                };
                bytes.extend_from_slice(body);
                put_head(&mut heads, &Head::Ended(*ended, place))?;
            }
        }
    }
    finish(bytes, &heads)
}

/// One object with the records of several whole ones, in that order. No part of it depends on who makes it.
/// `None`: one of them is not whole.
pub(super) fn join((first, last): (u64, u64), parts: &[Bytes]) -> Option<Bytes> {
    let mut bytes = BytesMut::new();
    put_header(&mut bytes, Writer::default(), (first, last));
    let mut heads = BytesMut::new();
    for part in parts {
        let bodies = part.len().checked_sub(TAIL + heads_length(part)? as usize)?;
        let moved = u32::try_from(bytes.len()).ok()?.checked_sub(HEADER as u32)?;
        for mut head in decode(part)? {
            if let Head::Ended(_, body) = &mut head {
                body.start = body.start.checked_add(moved)?;
            }
            put_head(&mut heads, &head)?;
        }
        bytes.extend_from_slice(part.get(HEADER..bodies)?);
    }
    finish(bytes, &heads)
}

/// Who wrote an object, and the numbers of its records.
pub(super) fn header(bytes: &[u8]) -> Option<(Writer, u64, u64)> {
    let mut rest = Reader(bytes.get(..HEADER)?);
    if rest.take(8)? != BEGIN {
        return None;
    }
    let writer = Writer(rest.take(16)?.try_into().ok()?);
    Some((writer, rest.u64()?, rest.u64()?))
}

/// The length of the heads, from the end of an object.
pub(super) fn heads_length(end: &[u8]) -> Option<u32> {
    let mut tail = Reader(end.get(end.len().checked_sub(TAIL)?..)?);
    let length = tail.u32()?;
    tail.take(4)?;
    (tail.take(8)? == END).then_some(length)
}

/// The heads, from a part of an object that reaches from somewhere before them to its end. `size` is that of the
/// object. `None`: they are not whole.
pub(super) fn decode_end(end: &[u8], size: u64) -> Option<Vec<Head>> {
    let length = heads_length(end)? as usize;
    let tail = end.len().checked_sub(TAIL)?;
    let heads = end.get(tail.checked_sub(length)?..tail)?;
    if checksum(heads) != end.get(tail + 4..tail + 8)? {
        return None;
    }
    let bodies_end = size.checked_sub((TAIL + length) as u64)?;
    let mut rest = Reader(heads);
    let mut found = Vec::new();
    while !rest.0.is_empty() {
        let head = read_head(&mut rest)?;
        if let Head::Ended(_, body) = &head {
            let end = u64::from(body.start) + u64::from(body.length);
            if (body.start as usize) < HEADER || end > bodies_end {
                return None;
            }
        }
        found.push(head);
    }
    Some(found)
}

/// The heads of a whole object.
pub(super) fn decode(bytes: &[u8]) -> Option<Vec<Head>> {
    header(bytes)?;
    decode_end(bytes, bytes.len() as u64)
}

fn put_header(bytes: &mut BytesMut, writer: Writer, (first, last): (u64, u64)) {
    bytes.extend_from_slice(BEGIN);
    bytes.extend_from_slice(&writer.0);
    bytes.put_u64_le(first);
    bytes.put_u64_le(last);
}

fn put_head(heads: &mut BytesMut, head: &Head) -> Option<()> {
    match head {
        Head::Leader(epoch) => {
            heads.put_u8(LEADER);
            heads.put_u64_le(*epoch);
        }
        Head::Note(text) => {
            if text.len() > NOTE_BYTES {
                return None;
            }
            heads.put_u8(NOTE);
            heads.put_u16_le(u16::try_from(text.len()).ok()?);
            heads.extend_from_slice(text.as_bytes());
        }
        Head::Ended(ended, body) => {
            heads.put_u8(ENDED);
            heads.put_u8(u8::from(ended.is_final));
            heads.put_u8(ended.cause);
            heads.put_u32_le(ended.index);
            heads.put_u32_le(ended.attempt);
            heads.put_u32_le(body.start);
            heads.put_u32_le(body.length);
            heads.extend_from_slice(&body.checksum);
        }
    }
    Some(())
}

fn finish(mut bytes: BytesMut, heads: &[u8]) -> Option<Bytes> {
    bytes.extend_from_slice(heads);
    bytes.put_u32_le(u32::try_from(heads.len()).ok()?);
    bytes.extend_from_slice(&checksum(heads));
    bytes.extend_from_slice(END);
    Some(bytes.freeze())
}

fn read_head(rest: &mut Reader<'_>) -> Option<Head> {
    Some(match rest.u8()? {
        LEADER => Head::Leader(rest.u64()?),
        NOTE => {
            let length = usize::from(rest.u16()?);
            if length > NOTE_BYTES {
                return None;
            }
            Head::Note(std::str::from_utf8(rest.take(length)?).ok()?.to_owned())
        }
        ENDED => {
            let is_final = match rest.u8()? {
                0 => false,
                1 => true,
                _ => return None,
            };
            let cause = rest.u8()?;
            let ended = Ended {
                cause,
                is_final,
                index: rest.u32()?,
                attempt: rest.u32()?,
            };
            let body = Body {
                start: rest.u32()?,
                length: rest.u32()?,
                checksum: rest.take(4)?.try_into().ok()?,
            };
            Head::Ended(ended, body)
        }
        // Of a newer version: what it means is not known, so nothing may follow from the rest.
        _ => return None,
    })
}

fn checksum(bytes: &[u8]) -> [u8; 4] {
    let digest = Sha256::digest(bytes);
    [digest[0], digest[1], digest[2], digest[3]]
}

/// Bytes that are taken from the front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        Some(*self.take(1)?.first()?)
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.take(2)?.try_into().ok()?))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WRITER: Writer = Writer([7; 16]);

    fn any_record() -> impl Strategy<Value = Record> {
        let ended = (any::<u32>(), any::<u32>(), any::<u8>(), any::<bool>()).prop_map(
            |(index, attempt, cause, is_final)| Ended {
                index,
                attempt,
                cause,
                is_final,
            },
        );
        let body = proptest::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from);
        prop_oneof![
            any::<u64>().prop_map(Record::Leader),
            "[a-z 0-9äß-]{0,30}".prop_map(Record::Note),
            (ended, body).prop_map(|(ended, body)| Record::Ended(ended, body)),
        ]
    }

    fn read(object: &Bytes) -> Vec<Record> {
        let heads = decode(object).unwrap();
        heads
            .into_iter()
            .map(|head| match head {
                Head::Leader(epoch) => Record::Leader(epoch),
                Head::Note(text) => Record::Note(text),
                Head::Ended(ended, body) => {
                    let start = body.start as usize;
                    let bytes = object.slice(start..start + body.length as usize);
                    assert!(body.is(&bytes));
                    Record::Ended(ended, bytes)
                }
            })
            .collect()
    }

    proptest! {
        #[test]
        fn records_come_back_as_they_were_written_from_one_object_and_from_a_joined_one(
            parts in proptest::collection::vec(proptest::collection::vec(any_record(), 0..8), 1..5),
        ) {
            let objects: Vec<Bytes> = (0..)
                .zip(&parts)
                .map(|(number, records)| encode(WRITER, (number, number), records).unwrap())
                .collect();
            for (number, (object, records)) in (0..).zip(objects.iter().zip(&parts)) {
                prop_assert_eq!(header(object), Some((WRITER, number, number)));
                prop_assert_eq!(&read(object), records);
            }
            let joined = join((0, 4), &objects).unwrap();
            prop_assert_eq!(header(&joined), Some((Writer::default(), 0, 4)));
            prop_assert_eq!(read(&joined), parts.concat());
        }

        #[test]
        fn an_object_that_is_cut_or_changed_is_not_whole(
            records in proptest::collection::vec(any_record(), 1..6),
            cut in any::<prop::sample::Index>(),
            flip in any::<prop::sample::Index>(),
        ) {
            let whole = encode(WRITER, (3, 3), &records).unwrap();
            prop_assert_eq!(decode(&whole[..cut.index(whole.len())]), None);
            let mut changed = whole.to_vec();
            let at = flip.index(changed.len());
            changed[at] ^= 0x10;
            let found = decode(&changed);
            let bodies = whole.len() - TAIL - heads_length(&whole).unwrap() as usize;
            if at < 8 || at >= bodies {
                prop_assert_eq!(found, None);
            } else if let Some(heads) = found {
                // A changed body is found by its own checksum; the writer and the numbers are none of the records.
                let broken = heads.iter().any(|head| matches!(head, Head::Ended(_, body)
                    if !body.is(&changed[body.start as usize..(body.start + body.length) as usize])));
                prop_assert!(broken || at < HEADER);
            }
        }

        #[test]
        fn no_bytes_make_a_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), size: u64) {
            decode(&bytes);
            decode_end(&bytes, size);
            let mut framed = bytes.clone();
            framed.extend_from_slice(&u32::try_from(bytes.len()).unwrap().to_le_bytes());
            framed.extend_from_slice(&checksum(&bytes));
            framed.extend_from_slice(END);
            decode_end(&framed, size);
        }
    }

    #[test]
    fn a_note_that_is_too_long_makes_no_object() {
        let long = Record::Note("x".repeat(NOTE_BYTES + 1));
        assert_eq!(encode(WRITER, (0, 0), &[long]), None);
    }
}
