//! The way in for tests that make up what lies in a volume. Nothing else uses it.

use crate::segments::{Layout, MAX_OFFSET, Segment};

/// What names and sizes of objects say about a log: its end, its stored bytes, and the part that holds
/// each of these offsets, as start and size.
pub fn layout(objects: &[(String, u64)], offsets: &[u64]) -> (u64, u64, Vec<Option<(u64, u64)>>) {
    let listed = objects
        .iter()
        .filter_map(|(name, size)| Segment::parse(name, *size));
    let layout = Layout::of(listed.collect());
    for piece in offsets {
        // The size of a piece is no word of others.
        layout.merge_with((*piece).min(MAX_OFFSET));
    }
    let at = |offset: &u64| layout.at(*offset).map(|segment| (segment.start, segment.size));
    (layout.end(), layout.bytes(), offsets.iter().map(at).collect())
}
