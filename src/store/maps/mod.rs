//! The log of a map: what became of the items of a Task with `forEach`, and their values. Two leaders that write it
//! at once cannot both go on (`docs/decisions/0024-maps.md` says why).
//!
//! ```text
//! <task uid>/_map/log/<first>-<last>              the records of these writes
//! <task uid>/_map/items                           the items, where they were read from elsewhere, as JSON lines
//! <task uid>/_map/items-<digest>/<offset>         pieces of them before the last one (see `items.rs`)
//! ```
//!
//! - Objects are made, with a create-only write, and never changed. The number of the next write is the fence: a
//!   writer that finds it taken by another one never writes again.
//! - The object that begins with the mark of a leader is never merged and never deleted: it is where the leader
//!   before, however long it slept, finds its number taken.
//! - A write whose answer was lost is made again with the same bytes, and an object that is there already is known by
//!   its writer.
//! - No listing needs to be complete or new. A number that a listing lacks is looked for by name, and only when no
//!   object can have it does the log end there.
//!
//! `_map` is no id of a run. Room is taken as for logs of runs (`room.rs`).

mod items;
mod layout;
mod object;
mod outcome;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use futures::StreamExt;
use object_store::{ObjectStoreExt, path::Path};

use self::layout::{Layout, Span};
pub use self::{
    items::{MapItems, Reading},
    object::{Body, Ended, Head, NOTE_BYTES, Record},
    outcome::Outcome,
};
use crate::{
    Error, Store, checked, if_there,
    ledger::{Class, Held},
};

/// The folder of a map in that of its Task.
const MAP: &str = "_map";
/// Read from the end of an object at once: more than most heads take.
const END_BYTES: u64 = 64 * 1024;
/// Objects that are read at once.
const READS: usize = 16;
/// How often a reader looks for objects that merges take away.
const TRIES: usize = 16;

/// Names the process that writes: random bytes that no other one has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Writer(pub [u8; 16]);

/// Why a call to the log of a map failed.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// As any other call to the store.
    #[error(transparent)]
    Store(#[from] Error),
    /// Another leader writes the log now. This writer never writes again.
    #[error("another leader writes the log of this map now")]
    Superseded,
    /// An object is not what was written.
    #[error("the result store has \"{0}\", which is damaged: delete the Task and create it again")]
    Damaged(String),
    /// Records are missing in the middle of the log.
    #[error(
        "write {0} of the log of this map is missing in the result store: delete the Task and create it again"
    )]
    Missing(u64),
    /// The records take more room than one object has.
    #[error("the records are too many for one object of the log of a map")]
    TooLarge,
}

impl From<object_store::Error> for MapError {
    fn from(error: object_store::Error) -> Self {
        Self::Store(error.into())
    }
}

/// Where an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place(Span);

/// The records of one object, in the order in which they were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Where the bodies are.
    pub place: Place,
    /// The records.
    pub heads: Arc<[Head]>,
    /// The number of the first write in it.
    pub first: u64,
}

/// The log of one map, as its only writer has it.
#[derive(Debug)]
pub struct MapLog {
    store: Arc<Store>,
    task_uid: String,
    writer: Writer,
    layout: Layout,
    /// Objects that are marks of leaders.
    marks: BTreeSet<u64>,
    /// The number of the next write.
    next: u64,
    /// A write without an answer: the next call makes it again before anything else.
    unsettled: Option<(Bytes, Class)>,
    superseded: bool,
}

impl MapLog {
    /// How many writes the log has.
    pub const fn len(&self) -> u64 {
        self.next
    }

    /// Whether nothing is in the log.
    pub const fn is_empty(&self) -> bool {
        self.next == 0
    }

    /// Writes these records. When this returns, they are in the log, and there was no other writer before them. After
    /// an error other than [`MapError::Superseded`] they may be there or not: [`MapLog::settle`] writes them again.
    pub async fn append(&mut self, records: &[Record]) -> Result<(), MapError> {
        self.settle().await?;
        let number = self.next;
        let bytes = object::encode(self.writer, (number, number), records).ok_or(MapError::TooLarge)?;
        // Without values a record takes little, and the map could not end without it.
        let has_bodies = records
            .iter()
            .any(|record| matches!(record, Record::Ended(_, body) if !body.is_empty()));
        let class = if has_bodies { Class::Bulk } else { Class::End };
        self.unsettled = Some((bytes, class));
        self.settle().await
    }

    /// Makes the last write again, if it had no answer.
    pub async fn settle(&mut self) -> Result<(), MapError> {
        if self.superseded {
            return Err(MapError::Superseded);
        }
        let Some((bytes, class)) = self.unsettled.clone() else {
            return Ok(());
        };
        let span = Span::single(self.next);
        let size = bytes.len() as u64;
        match self
            .store
            .put_map_object(&self.task_uid, span, bytes, class, self.writer)
            .await
        {
            Ok(true) => {
                self.unsettled = None;
                self.layout.insert(span, size);
                self.next += 1;
                Ok(())
            }
            Ok(false) => {
                self.unsettled = None;
                self.superseded = true;
                Err(MapError::Superseded)
            }
            Err(error) => Err(error),
        }
    }

    /// Makes one object of eight neighbours, where there are such. Answers whether there were.
    pub async fn merge(&mut self) -> Result<bool, MapError> {
        let Some((whole, parts)) = self.layout.to_join(|first| self.marks.contains(&first)) else {
            return Ok(false);
        };
        let store = Arc::clone(&self.store);
        let permit = store.merges.acquire().await;
        let mut read = Vec::new();
        for (span, size) in &parts {
            let path = log_path(&self.task_uid, *span)?;
            let Some(bytes) = self.store.read_whole(&path, *size).await? else {
                // A leader that does not know yet that it leads no more has merged them.
                self.layout.remove(*span);
                self.find_around(*span).await?;
                return Ok(true);
            };
            read.push(bytes);
        }
        let Some(bytes) = object::join((whole.first, whole.last), &read) else {
            return Err(MapError::Damaged(whole.name()));
        };
        drop(read);
        let size = bytes.len() as u64;
        let taken = self
            .store
            .take(&self.task_uid, MAP, Held::object(size), Class::Bulk)
            .await?;
        let made = self
            .store
            .create(&log_path(&self.task_uid, whole)?, bytes)
            .await?;
        taken.written();
        if !made {
            self.store.give_back(&self.task_uid, MAP, Held::object(size));
        }
        drop(permit);
        self.layout.insert(whole, size);
        for (span, size) in parts {
            let path = log_path(&self.task_uid, span)?;
            self.store.free(&self.task_uid, MAP, &path, size).await?;
        }
        Ok(true)
    }

    /// Takes note of the wider object that has taken the place of this one.
    async fn find_around(&mut self, span: Span) -> Result<(), MapError> {
        match self.store.find_map_object(&self.task_uid, span.first).await? {
            Some((found, size)) => {
                self.layout.insert(found, size);
                Ok(())
            }
            None => Err(MapError::Missing(span.first)),
        }
    }
}

impl Store {
    /// Makes this process the writer of a map's log, and reads what is in it. The log begins with the first call.
    pub async fn lead_map(
        self: &Arc<Self>,
        task_uid: &str,
        writer: Writer,
        epoch: u64,
    ) -> Result<(MapLog, Vec<Heads>), MapError> {
        for _ in 0..TRIES {
            let layout = self.map_layout(task_uid).await?;
            let next = layout.end();
            let mark = object::encode(writer, (next, next), &[Record::Leader(epoch)]);
            let mark = mark.ok_or(MapError::TooLarge)?;
            let span = Span::single(next);
            if !self
                .put_map_object(task_uid, span, mark, Class::End, writer)
                .await?
            {
                // Somebody wrote meanwhile.
                continue;
            }
            let layout = self.map_layout(task_uid).await?;
            for (span, size) in &layout.obsolete {
                let path = log_path(task_uid, *span)?;
                self.free(task_uid, MAP, &path, *size).await?;
            }
            let (layout, records) = self.read_map(task_uid, layout, 0, &[]).await?;
            let mut log = MapLog {
                store: Arc::clone(self),
                task_uid: task_uid.to_owned(),
                writer,
                layout,
                marks: BTreeSet::new(),
                next: next + 1,
                unsettled: None,
                superseded: false,
            };
            let marks = records
                .iter()
                .filter(|part| matches!(part.heads.first(), Some(Head::Leader(_))));
            log.marks.extend(marks.map(|part| part.first));
            return Ok((log, records));
        }
        Err(MapError::Superseded)
    }

    /// The records of a map's log, for readers: from the object on that holds the write `from`. Objects never change,
    /// so objects that are `known` from an earlier call are not read again.
    pub async fn map_records(
        &self,
        task_uid: &str,
        from: u64,
        known: &[Heads],
    ) -> Result<Vec<Heads>, MapError> {
        let layout = self.map_layout(task_uid).await?;
        Ok(self.read_map(task_uid, layout, from, known).await?.1)
    }

    /// Writes an object of the log; `false`: there is one of another writer.
    async fn put_map_object(
        &self,
        task_uid: &str,
        span: Span,
        bytes: Bytes,
        class: Class,
        writer: Writer,
    ) -> Result<bool, MapError> {
        let path = log_path(task_uid, span)?;
        let object = Held::object(bytes.len() as u64);
        let taken = self.take(task_uid, MAP, object, class).await?;
        if self.create(&path, bytes.clone()).await? {
            taken.written();
            return Ok(true);
        }
        taken.written();
        self.give_back(task_uid, MAP, object);
        let there = if_there(self.objects.head(&path).await)?;
        if there.is_none_or(|meta| meta.size != bytes.len() as u64) {
            return Ok(false);
        }
        let there = self.read_whole(&path, bytes.len() as u64).await?;
        // The same writer makes each number once, with the same bytes however often.
        let is_own = there.is_some_and(|there| {
            object::header(&there).is_some_and(|(found, ..)| found == writer) && there == bytes
        });
        Ok(is_own)
    }

    /// Which objects hold the log. What a listing lacks is looked for by name.
    async fn map_layout(&self, task_uid: &str) -> Result<Layout, MapError> {
        let folder = map_folder(task_uid)?.join("log");
        let listing = self.objects.list_with_delimiter(Some(&folder)).await?;
        let listed = listing
            .objects
            .iter()
            .filter_map(|meta| Some((Span::parse(meta.location.filename()?)?, meta.size)));
        let mut layout = Layout::of(listed.collect());
        loop {
            let number = layout.first_missing();
            match self.find_map_object(task_uid, number).await? {
                Some((span, size)) => layout.insert(span, size),
                None if number == layout.end() => return Ok(layout),
                None => return Err(MapError::Missing(number)),
            }
        }
    }

    /// The object that holds this write.
    async fn find_map_object(&self, task_uid: &str, number: u64) -> Result<Option<(Span, u64)>, MapError> {
        // Twice: what is looked for may be merged between two looks, from a narrow object into a wide one.
        for _ in 0..2 {
            for span in Span::around(number) {
                let path = log_path(task_uid, span)?;
                if let Some(meta) = if_there(self.objects.head(&path).await)? {
                    return Ok(Some((span, meta.size)));
                }
            }
        }
        Ok(None)
    }

    /// The records of these objects, from the one on that holds the write `from`, and which objects these are by now.
    async fn read_map(
        &self,
        task_uid: &str,
        mut layout: Layout,
        from: u64,
        known: &[Heads],
    ) -> Result<(Layout, Vec<Heads>), MapError> {
        let known = known.iter().map(|part| (part.place.0, Arc::clone(&part.heads)));
        let mut read: BTreeMap<Span, Arc<[Head]>> = known.collect();
        let live = layout.live().filter(|(span, _)| span.last >= from);
        let missing: Vec<(Span, u64)> = live.filter(|(span, _)| !read.contains_key(span)).collect();
        let mut reads = futures::stream::iter(missing)
            .map(|(span, size)| async move { (span, self.read_heads(task_uid, span, size).await) })
            .buffer_unordered(READS);
        while let Some((span, heads)) = reads.next().await {
            if let Some(heads) = heads? {
                read.insert(span, heads.into());
            }
        }
        let mut found = Vec::new();
        let mut next = layout.begin(from);
        let mut tries = 0;
        while next < layout.end() {
            let (span, size) = layout.at(next).ok_or(MapError::Missing(next))?;
            let heads = match read.get(&span) {
                Some(heads) => Some(Arc::clone(heads)),
                // It was merged meanwhile, or found after a merge.
                None => self.read_heads(task_uid, span, size).await?.map(Arc::from),
            };
            if let Some(heads) = heads {
                found.push(Heads {
                    place: Place(span),
                    heads,
                    first: span.first,
                });
                next = span.last + 1;
                continue;
            }
            tries += 1;
            let around = self.find_map_object(task_uid, next).await?;
            match around.filter(|_| tries < TRIES) {
                // The records before are in it too: they are read again.
                Some((wider, size)) => {
                    found.retain(|part: &Heads| part.first < wider.first);
                    next = wider.first;
                    layout.insert(wider, size);
                }
                None => return Err(MapError::Missing(next)),
            }
        }
        Ok((layout, found))
    }

    /// The records of one object; `None`: it is not there.
    async fn read_heads(&self, task_uid: &str, span: Span, size: u64) -> Result<Option<Vec<Head>>, MapError> {
        self.read_end(&log_path(task_uid, span)?, size).await
    }

    /// The records of an object of that size; `None`: it is not there.
    async fn read_end(&self, path: &Path, size: u64) -> Result<Option<Vec<Head>>, MapError> {
        let damaged = || MapError::Damaged(path.to_string());
        let mut wanted = size.min(END_BYTES);
        loop {
            let range = size - wanted..size;
            if range.is_empty() {
                return Err(damaged());
            }
            let Some(end) = if_there(self.objects.get_range(path, range).await)? else {
                return Ok(None);
            };
            let length = object::heads_length(&end).ok_or_else(damaged)?;
            let needed = u64::from(length) + object::TAIL as u64;
            if needed <= wanted {
                return object::decode_end(&end, size).ok_or_else(damaged).map(Some);
            }
            if needed > size {
                return Err(damaged());
            }
            wanted = needed;
        }
    }
}

fn map_folder(task_uid: &str) -> Result<Path, Error> {
    Ok(Path::from_iter([checked(task_uid)?, MAP]))
}

fn log_path(task_uid: &str, span: Span) -> Result<Path, Error> {
    Ok(map_folder(task_uid)?.join("log").join(span.name()))
}

/// What names and sizes say about the log of a map: how many writes it begins with. And how many records the end of an
/// object of that size has, if it is whole.
pub(crate) fn hostile(objects: &[(String, u64)], end: &[u8], size: u64) -> (u64, Option<usize>) {
    let listed = objects
        .iter()
        .filter_map(|(name, size)| Some((Span::parse(name)?, *size)));
    let layout = Layout::of(listed.collect());
    layout.to_join(|_| false);
    let heads = object::decode_end(end, size).map(|heads| heads.len());
    (layout.first_missing(), heads)
}

#[cfg(test)]
mod tests;
