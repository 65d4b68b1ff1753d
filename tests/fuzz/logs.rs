//! Logs: what a run prints is encoded and decoded, and any bytes in the place of a log are read by the agent,
//! by the readers of logs, and out of the store.

use skyward_agent::log::{self, Encoder, MAX_CONTENT, Stream};
use skyward_store::hostile::{layout, map};
use skyward_subresources::{
    options::Position,
    records::{self, Decoder, Framed, Item, Mark},
    text::{Joiner, MAX_HELD, Style},
    values::Values,
};

use crate::input::{Input, Maker};

const WORD: &str = "0123456789abcdef0123456789abcdef";

pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    match input.u8() % 4 {
        0 => written(input),
        1 => read(input),
        2 => framed(input),
        _ => stored(input),
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mark = Mark::parse(WORD).expect("a word of 32 digits");
    let log = [
        b"1763675510123 o F first line\n1763675510124 e P the beginning".as_slice(),
        b" of a line\n1763675510124 e F and its end\n",
        &mark.line(99, 5000, "limit"),
        b"7 o F behind a gap\n8 v P 0 9 [1,\n9 o F between\n9 v F 2, 3]\n",
    ]
    .concat();
    let mut framed = Vec::new();
    records::frame_attempt(&mut framed, 1, 2);
    records::frame_position(&mut framed, 1, 0, 77);
    framed.extend_from_slice(b"1 0 99 1763675510123 o F first line\n~ 1 0 99 5000 limit\n! a notice\n");
    vec![
        Maker::default()
            .u8(0)
            .u8(1)
            .sized("a line\nand a part")
            .u8(3)
            .sized("of stderr\n")
            .u8(5)
            .sized("0 1 7\n")
            .end([]),
        Maker::default().u8(1).u64(0).u8(3).end(&log),
        Maker::default().u8(1).u64(50).u8(2).end(&log),
        Maker::default().u8(2).end(framed),
        Maker::default()
            .u8(3)
            .sized("0000000000000000")
            .u64(10)
            .sized("0000000000000010-0000000000000050-limit")
            .u64(0)
            .sized("0000000000000000-0000000000000030")
            .u64(30)
            .end([]),
    ]
}

/// What is encoded comes back as it was, in records of the size that is promised.
fn written(mut input: Input<'_>) {
    let mut encoder = Encoder::new();
    let (mut encoded, mut printed) = (Vec::new(), <[Vec<u8>; Stream::ALL.len()]>::default());
    while !input.is_empty() {
        let how = input.u8();
        let stream = Stream::ALL[usize::from((how >> 1) & 3).min(2)];
        let bytes = input.sized().repeat(1 + usize::from(how >> 4));
        printed[stream as usize].extend_from_slice(&bytes);
        encoder.push(stream, &bytes, input.u64(), &mut encoded);
        if how & 1 == 1 {
            encoder.flush(0, &mut encoded);
        }
    }
    encoder.flush(1, &mut encoded);
    for stream in Stream::ALL {
        assert_eq!(log::decode(&encoded, Some(stream)), printed[stream as usize]);
    }
    let longest = log::records(&encoded, 0).map(|record| record.content.len()).max();
    assert!(longest.unwrap_or_default() <= MAX_CONTENT);
}

/// Any bytes as a log, whole and in pieces.
fn read(mut input: Input<'_>) {
    let (start, pieces) = (input.u64() >> 1, usize::from(input.u8()) + 1);
    let bytes = input.rest();
    assert!(log::decode(bytes, None).len() <= bytes.len());
    assert!(log::tail(bytes, pieces).len() <= pieces);
    let decoder = || {
        let mark = Mark::parse(WORD).expect("a word of 32 digits");
        if start.is_multiple_of(2) {
            Decoder::at(start).with(mark)
        } else {
            Decoder::seeking(start).with(mark)
        }
    };
    let (mut whole, mut cut) = (decoder(), decoder());
    whole.push(bytes);
    let mut joiner = Joiner::new(Style {
        ranks: start & 2 == 0,
        timestamps: start & 4 == 0,
    });
    let (mut text, mut first) = (Vec::new(), Vec::new());
    let (mut values, mut yielded) = (Values::default(), 0);
    for item in std::iter::from_fn(|| whole.next_item()) {
        match &item {
            Item::Record(record) => {
                joiner.push(0, record, &mut text);
                yielded += values.push(0, record).map_or(0, |value| value.json.len());
            }
            Item::Gap(gap) => {
                joiner.gap(0, gap, &mut text);
                values.gap(0);
            }
        }
        first.push(item);
    }
    assert!(yielded <= bytes.len());
    joiner.idle(&mut text);
    joiner.finish(&mut text);
    // A line of one byte has a prefix and a time in front of it, and a gap is told in words.
    assert!(text.len() <= 64 * bytes.len() + MAX_HELD, "{} bytes", text.len());
    let mut second = Vec::new();
    for piece in bytes.chunks(bytes.len() / pieces + 1) {
        cut.push(piece);
        second.extend(std::iter::from_fn(|| cut.next_item()));
    }
    // A line that is too long to be a record is given up where it was cut.
    if bytes.len() <= MAX_CONTENT {
        assert_eq!(first, second);
        assert_eq!(whole.position(), cut.position());
    }
}

/// Lines as a client gets them that asked for records.
fn framed(mut input: Input<'_>) {
    for line in input.rest().split_inclusive(|byte| *byte == b'\n') {
        let line = bytes::Bytes::copy_from_slice(line);
        let mut again = Vec::new();
        match records::parse_framed(&line) {
            Some(Framed::Record {
                attempt,
                rank,
                record,
            }) => records::frame(&mut again, attempt, rank, &record),
            Some(Framed::Attempt { attempt, runs }) => records::frame_attempt(&mut again, attempt, runs),
            Some(Framed::Position(Position {
                attempt,
                rank,
                offset,
            })) => records::frame_position(&mut again, attempt, rank, offset),
            Some(Framed::Gap { attempt, rank, gap }) => {
                assert!(gap.and(gap).text().len() < 200);
                records::frame_gap(&mut again, attempt, rank, &gap);
            }
            Some(Framed::Notice(text)) => records::frame_notice(&mut again, &text),
            Some(Framed::More) => again.extend_from_slice(records::MORE),
            None => continue,
        }
        let again = bytes::Bytes::from(again);
        if line.ends_with(b"\n") {
            assert_eq!(records::parse_framed(&again), records::parse_framed(&line));
        }
    }
}

/// Any names and sizes of objects as the parts of a log.
fn stored(mut input: Input<'_>) {
    let mut objects = Vec::new();
    let mut offsets = Vec::new();
    while !input.is_empty() {
        let name = input.text();
        let size = input.u64();
        offsets.push(size);
        objects.push((name, size));
    }
    if let Some((bytes, size)) = objects.first() {
        let (_, records) = map(&objects, bytes.as_bytes(), *size);
        // A record takes some bytes.
        assert!(records.is_none_or(|records| records <= bytes.len()));
    }
    let (end, bytes, found) = layout(&objects, &offsets);
    assert!(i64::try_from(end).is_ok() && bytes <= end);
    for (offset, part) in offsets.iter().zip(found) {
        // The parts join, and each holds the offset that was asked for.
        assert!(part.is_none_or(|(start, size)| start <= *offset && *offset < start + size));
    }
}
