//! The way in for tests that make up what lies in a volume. Nothing else uses it.

use crate::{
    maps,
    segments::{Layout, Segment},
};

/// What names and sizes of objects say about a log: its end, its stored bytes, and the part that holds
/// each of these offsets, as start and size.
pub fn layout(objects: &[(String, u64)], offsets: &[u64]) -> (u64, u64, Vec<Option<(u64, u64)>>) {
    let listed = objects
        .iter()
        .filter_map(|(name, size)| Segment::parse(name, *size));
    let layout = Layout::of(listed.collect());
    // What is merged next is looked for as well.
    let _ = layout.due();
    let at = |offset: &u64| layout.at(*offset).map(|segment| (segment.start, segment.size));
    (layout.end(), layout.bytes(), offsets.iter().map(at).collect())
}

/// What names and sizes of objects say about the log of a map: with how many writes it begins; and how many records an
/// object of that size has whose end these bytes are, if it is whole.
pub fn map(objects: &[(String, u64)], end: &[u8], size: u64) -> (u64, Option<usize>) {
    maps::hostile(objects, end, size)
}
