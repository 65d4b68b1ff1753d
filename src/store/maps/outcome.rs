//! Final outcomes of items, and their bodies in the objects of the log.

use std::{collections::BTreeMap, ops::Range};

use bytes::Bytes;

use super::{Body, Ended, Head, MapError, Place, log_path};
use crate::{Store, if_there};

/// The final outcome of an item, and where its body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What is on record.
    pub ended: Ended,
    /// The object with its body.
    pub place: Place,
    /// Where in the object.
    pub body: Body,
}

impl Store {
    /// The bodies of these outcomes, each object being read once.
    pub async fn map_bodies(&self, task_uid: &str, outcomes: &[Outcome]) -> Result<Vec<Bytes>, MapError> {
        let mut by_object: BTreeMap<Place, Vec<usize>> = BTreeMap::new();
        for (position, outcome) in outcomes.iter().enumerate() {
            if !outcome.body.is_empty() {
                by_object.entry(outcome.place).or_default().push(position);
            }
        }
        let mut bodies = vec![Bytes::new(); outcomes.len()];
        for (place, positions) in by_object {
            let path = log_path(task_uid, place.0)?;
            let wanted: Vec<&Outcome> = positions.iter().map(|position| &outcomes[*position]).collect();
            let ranges: Vec<Range<u64>> = wanted.iter().map(|outcome| range(outcome.body)).collect();
            let read = match if_there(self.objects.get_ranges(&path, &ranges).await)? {
                Some(read) => read,
                None => self.merged_bodies(task_uid, place, &wanted).await?,
            };
            for (position, bytes) in positions.into_iter().zip(read) {
                if !outcomes[position].body.is(&bytes) {
                    return Err(MapError::Damaged(path.to_string()));
                }
                bodies[position] = bytes;
            }
        }
        Ok(bodies)
    }

    /// Bodies whose object was merged meanwhile: they are in the object around it.
    async fn merged_bodies(
        &self,
        task_uid: &str,
        place: Place,
        wanted: &[&Outcome],
    ) -> Result<Vec<Bytes>, MapError> {
        let first = place.0.first;
        let found = self.find_map_object(task_uid, first).await?;
        let (span, size) = found.ok_or(MapError::Missing(first))?;
        let heads = self.read_heads(task_uid, span, size).await?;
        let heads = heads.ok_or(MapError::Missing(first))?;
        // Many bodies may have the same checksum, and no two ends are of the same attempt of an item.
        let there: BTreeMap<(u32, u32), Body> = heads
            .into_iter()
            .filter_map(|head| match head {
                Head::Ended(ended, body) => Some(((ended.index, ended.attempt), body)),
                Head::Leader(_) | Head::Note(_) => None,
            })
            .collect();
        let path = log_path(task_uid, span)?;
        let ranges: Option<Vec<Range<u64>>> = wanted
            .iter()
            .map(|outcome| Some(range(*there.get(&(outcome.ended.index, outcome.ended.attempt))?)))
            .collect();
        let ranges = ranges.ok_or_else(|| MapError::Damaged(path.to_string()))?;
        Ok(self.objects.get_ranges(&path, &ranges).await?)
    }
}

fn range(body: Body) -> Range<u64> {
    let start = u64::from(body.start);
    start..start + u64::from(body.length)
}
