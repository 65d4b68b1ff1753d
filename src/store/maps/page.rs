//! Outcomes by index: which records of the log count, and pages, which are outcomes in the order of their items. A
//! page is a copy: without it a reader looks through the whole log, and finds the same.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use bytes::Bytes;
use object_store::path::Path;

use super::{
    Body, Ended, Head, Heads, Kind, MAP, MapError, MapLog, Place, Record, layout::MOST_BYTES, map_folder,
    object, place_path,
};
use crate::{
    Error, Store, if_there,
    ledger::{Class, Held},
};

/// Items of a page.
pub const BLOCK: u32 = 4096;
/// Outcomes in no more objects than this are read quickly without a page.
const FEW: usize = 8;

/// The name of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    block: u32,
    /// How many writes the log had when the page was made.
    records: u64,
}

impl Name {
    fn parse(name: &str) -> Option<Self> {
        let (block, records) = name.split_once('-')?;
        let name = Self {
            block: block.parse().ok()?,
            records: records.parse().ok()?,
        };
        Some(name)
    }
}

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

/// The final outcomes of these items, in their order. Of two with the same attempt the first one counts, and an
/// outcome of a later attempt counts more.
pub fn outcomes(records: &[Heads], items: &Range<u32>) -> Vec<Outcome> {
    let mut found: BTreeMap<u32, Outcome> = BTreeMap::new();
    for part in records {
        for head in &part.heads {
            let Head::Ended(ended, body) = head else { continue };
            let is_newer = found
                .get(&ended.index)
                .is_none_or(|known| known.ended.attempt < ended.attempt);
            if ended.is_final && items.contains(&ended.index) && is_newer {
                let outcome = Outcome {
                    ended: *ended,
                    place: part.place,
                    body: *body,
                };
                found.insert(ended.index, outcome);
            }
        }
    }
    found.into_values().collect()
}

/// Whether a page of these outcomes makes reading quicker, and is one object.
fn is_worth(outcomes: &[Outcome]) -> bool {
    let objects: BTreeSet<Place> = outcomes.iter().map(|outcome| outcome.place).collect();
    let bytes: u64 = outcomes.iter().map(|outcome| u64::from(outcome.body.len())).sum();
    objects.len() > FEW && bytes <= MOST_BYTES
}

impl MapLog {
    /// Writes the page of a block all of whose items have these final outcomes, in order. Answers whether it did:
    /// some pages are not worth it.
    pub async fn write_page(&self, block: u32, outcomes: &[Outcome]) -> Result<bool, MapError> {
        if !is_worth(outcomes) {
            return Ok(false);
        }
        let store = &self.store;
        let bodies = store.bodies(&self.task_uid, outcomes).await?;
        let records: Vec<Record> = outcomes
            .iter()
            .zip(bodies)
            .map(|(outcome, body)| Record::Ended(outcome.ended, body))
            .collect();
        let name = Name {
            block,
            records: self.next,
        };
        let bytes =
            object::encode(self.writer, (u64::from(block), self.next), &records).ok_or(MapError::TooLarge)?;
        let object = Held::object(bytes.len() as u64);
        let taken = store.take(&self.task_uid, MAP, object, Class::Bulk).await?;
        let made = store.create(&path(&self.task_uid, name)?, bytes).await?;
        taken.written();
        if !made {
            store.give_back(&self.task_uid, MAP, object);
        }
        for (older, size) in store.pages(&self.task_uid, block).await? {
            if older.records < name.records {
                store
                    .free(&self.task_uid, MAP, &path(&self.task_uid, older)?, size)
                    .await?;
            }
        }
        Ok(made)
    }
}

impl Store {
    /// The outcomes of a block, if it has a page that knows more of the log than its first `reopened` writes: those
    /// up to the newest one after which an item of the block was to run again.
    pub async fn map_page(
        &self,
        task_uid: &str,
        block: u32,
        reopened: u64,
    ) -> Result<Option<Vec<Outcome>>, MapError> {
        let newest = self.pages(task_uid, block).await?.into_iter().max();
        let Some((name, size)) = newest.filter(|(name, _)| name.records > reopened) else {
            return Ok(None);
        };
        let place = Place(Kind::Page(name));
        let Some(heads) = self.read_end(&place_path(task_uid, place)?, size).await? else {
            return Ok(None);
        };
        let first = name.records;
        let items = block.saturating_mul(BLOCK)..block.saturating_add(1).saturating_mul(BLOCK);
        Ok(Some(outcomes(&[Heads { place, heads, first }], &items)))
    }

    /// The pages of a block, with their sizes.
    async fn pages(&self, task_uid: &str, block: u32) -> Result<Vec<(Name, u64)>, MapError> {
        let folder = map_folder(task_uid)?.join("page");
        let listing = self.objects.list_with_delimiter(Some(&folder)).await?;
        let all = listing
            .objects
            .iter()
            .filter_map(|meta| Some((Name::parse(meta.location.filename()?)?, meta.size)));
        Ok(all.filter(|(name, _)| name.block == block).collect())
    }

    /// The bodies of these outcomes, each object being read once.
    pub async fn map_bodies(&self, task_uid: &str, outcomes: &[Outcome]) -> Result<Vec<Bytes>, MapError> {
        self.bodies(task_uid, outcomes).await
    }

    async fn bodies(&self, task_uid: &str, outcomes: &[Outcome]) -> Result<Vec<Bytes>, MapError> {
        let mut by_object: BTreeMap<Place, Vec<usize>> = BTreeMap::new();
        for (position, outcome) in outcomes.iter().enumerate() {
            if !outcome.body.is_empty() {
                by_object.entry(outcome.place).or_default().push(position);
            }
        }
        let mut bodies = vec![Bytes::new(); outcomes.len()];
        for (place, positions) in by_object {
            let path = place_path(task_uid, place)?;
            let ranges: Vec<Range<u64>> = positions
                .iter()
                .map(|position| {
                    let body = outcomes[*position].body;
                    let start = u64::from(body.start);
                    start..start + u64::from(body.len())
                })
                .collect();
            let Some(read) = if_there(self.objects.get_ranges(&path, &ranges).await)? else {
                // It was merged meanwhile.
                for position in positions {
                    bodies[position] = self.map_body(task_uid, place, outcomes[position].body).await?;
                }
                continue;
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
}

pub(super) fn path(task_uid: &str, name: Name) -> Result<Path, Error> {
    let Name { block, records } = name;
    Ok(map_folder(task_uid)?
        .join("page")
        .join(format!("{block:06}-{records:016}")))
}
