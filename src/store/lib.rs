//! Where logs and results live after a run: an object store with a small layout of our own.
//!
//! There are no indexes and no metadata objects; names and sizes hold everything:
//!
//! ```text
//! <task uid>/namespace                           the namespace of the Task
//! <task uid>/<run id>/log/<offset>-<offset>      the encoded log from the one offset to the other
//! <task uid>/<run id>/log/<offset>-<offset>-<why>    the log between them is missing; empty
//! <task uid>/<run id>/result.json                the function's return value
//! <task uid>/<run id>/result/<offset>-<offset>   a piece of a large one, and in
//! <task uid>/<run id>/result.size                its size, once all of it is there
//! <task uid>/<run id>/outcome.json               the run's outcome, while its Task cannot say it
//! <task uid>/<run id>/waits-since                when its log and result began to wait for room
//! <task uid>/_map/…                              items of a map and their values (see `maps/mod.rs`)
//! _pools/…                                       output of bootstraps (see `bootstraps.rs`)
//! _bundles/…                                     uploaded bundles (see `bundles.rs`)
//! _races/…                                       races for one object in a bucket (see `creates.rs`)
//! ```
//!
//! - Offsets have 16 digits. Versions that wrote over objects named a piece by its first offset alone; such pieces
//!   are read, and merged with what is new.
//! - The place is a local directory, or a bucket (`bucket.rs`). Both have this layout.
//! - An object appears whole or not at all, and is on disk before a call returns: after a
//!   crash the log ends where [`Store::log_end`] says, and the collector goes on from there.
//! - An object is created once and never written over (`creates.rs`). So nothing is renamed, no order of a listing
//!   matters, and what a process writes that no longer leads takes nothing away.
//! - Many pieces are merged (see `segments.rs`): the merged object is created under a name of its own, then the
//!   pieces are deleted. A crash between the two leaves objects that lie within another one; readers skip
//!   them, the next write deletes them.
//! - Room is taken before anything is written (`room.rs`, `ledger.rs`): each namespace has a
//!   quota, and a tenth of the volume is kept for ends of runs and small values.
//! - The pieces of a run are changed one change at a time (`writers.rs`). Writing
//!   the same bytes twice is harmless.
//! - Ids come from users of the aggregated API too; anything but `[a-z0-9-]` is refused, so
//!   that no id names another path.

mod bootstraps;
mod bucket;
mod bundles;
mod creates;
mod discard;
mod error;
#[doc(hidden)]
pub mod hostile;
mod ledger;
pub mod maps;
mod quota;
mod remembered;
mod reopened;
mod retention;
mod room;
mod segments;
mod values;
mod volume;
mod writers;

use std::{
    io::ErrorKind,
    path::{Path as FilePath, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use object_store::{ObjectStore, ObjectStoreExt, local::LocalFileSystem, path::Path};
use tokio::sync::Semaphore;

use crate::{
    bootstraps::folder,
    creates::Creates,
    discard::Quiet,
    ledger::Held,
    remembered::Remembered,
    room::Room,
    segments::{Layout, MAX_OFFSET, Segment},
    writers::Writers,
};
pub use crate::{
    bucket::{Access, Bucket},
    bundles::{BundleId, Sealed, StoredBundle, WholeBundle},
    creates::Exclusion,
    error::{Cause, Error},
    ledger::{Class, SMALL, Space},
    quota::{Quota, amount, parse_amount},
    segments::Missing,
    volume::Volume,
};

/// Most bytes that one step of a reading stream holds.
const READ_PIECE: u64 = 256 * 1024;
/// The object of a run with its outcome.
const OUTCOME: &str = "outcome.json";
/// Merges at the same time; each holds at most 1 MiB.
const MERGES: usize = 4;
/// How often a piece meets what another process wrote before it gives up.
const ROUNDS: usize = 8;
/// Most bytes of an object that is read as a whole.
const MOST_WHOLE: u64 = 4 * 1024 * 1024;
/// Most bytes of one log or value, whatever size a machine tells: the agent keeps no more of a log.
pub const MOST: u64 = 2 * 1024 * 1024 * 1024;

/// A value that is read piece by piece.
pub struct StoredResult {
    /// Its whole size in bytes.
    pub size: u64,
    /// Its bytes from the offset, a few at a time.
    pub bytes: BoxStream<'static, Result<Bytes, Error>>,
}

/// A part of a log that is missing, by the offsets of its first byte and of the one after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Where it begins.
    pub start: u64,
    /// Where the log goes on.
    pub end: u64,
    /// Why.
    pub why: Missing,
}

/// The next part of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// The next bytes.
    Bytes(Bytes),
    /// The log goes on behind a gap.
    Gap(Gap),
}

/// How much of a log is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// The offset at which the next piece must start.
    pub end: u64,
    /// Bytes that are stored: where there are gaps, fewer than `end`.
    pub bytes: u64,
    /// Notes of gaps, each of which takes an object.
    pub gaps: usize,
}

/// Logs and results of all Tasks, output of bootstraps, and uploaded bundles.
pub struct Store {
    objects: Arc<dyn ObjectStore>,
    /// Set where a local directory stands behind it: whole folders are deleted there.
    root: Option<PathBuf>,
    merges: Semaphore,
    room: Room,
    creates: Creates,
    remembered: Remembered,
    quiet: Quiet,
    writers: Writers,
    bundle_writers: Writers,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("objects", &self.objects.to_string())
            .finish_non_exhaustive()
    }
}

impl Store {
    /// A store in a local directory, which is created if need be.
    pub fn local(path: impl AsRef<FilePath>) -> Result<Self, Error> {
        std::fs::create_dir_all(&path)?;
        let root = path.as_ref().canonicalize()?;
        let objects = LocalFileSystem::new_with_prefix(&root)?
            .with_fsync(true)
            .with_automatic_cleanup(true);
        let creates = Creates::of_a_directory(volume::has_hard_links(&root));
        let room = Room::new(Some(Arc::new(volume::Directory(root.clone()))));
        Ok(Self {
            root: Some(root),
            ..Self::new(Arc::new(objects), room, creates)
        })
    }

    /// A store in anything that `object_store` knows, whose creates are exact.
    pub fn over(objects: Arc<dyn ObjectStore>) -> Self {
        Self::new(objects, Room::new(None), Creates::exact())
    }

    fn new(objects: Arc<dyn ObjectStore>, room: Room, creates: Creates) -> Self {
        Self {
            objects,
            root: None,
            merges: Semaphore::new(MERGES),
            room,
            creates,
            remembered: Remembered::default(),
            quiet: Quiet::default(),
            writers: Writers::new(),
            bundle_writers: Writers::new(),
        }
    }

    /// The same store with that quota for each namespace.
    #[must_use]
    pub fn with_quota(mut self, quota: Quota) -> Self {
        self.room.quota = quota;
        self
    }

    /// The same store on a volume with the room that `volume` tells.
    #[must_use]
    pub fn with_volume(mut self, volume: Arc<dyn Volume>) -> Self {
        self.room.volume = Some(volume);
        self
    }

    /// The same store without a look at the volume: a test must not depend on how full the disk
    /// of its machine is.
    #[must_use]
    pub fn unmeasured(mut self) -> Self {
        self.room.volume = None;
        self
    }

    /// Adds a piece of a run's encoded log and returns the offset at which the next one must start.
    /// Bytes that are stored already are not written again; a piece that does not join is refused.
    pub async fn put_log_segment(
        self: &Arc<Self>,
        task_uid: &str,
        run_id: &str,
        start: u64,
        bytes: Bytes,
    ) -> Result<u64, Error> {
        let folder = log_folder(task_uid, run_id)?;
        self.append((task_uid, run_id), folder, Some(start), bytes, Class::Bulk)
            .await
    }

    /// Adds our own last line to a log that ends here.
    pub async fn end_log(self: &Arc<Self>, task_uid: &str, run_id: &str, line: Bytes) -> Result<(), Error> {
        let folder = log_folder(task_uid, run_id)?;
        self.append((task_uid, run_id), folder, None, line, Class::End)
            .await?;
        Ok(())
    }

    /// Adds a piece that begins there, or at the end of the pieces that are stored.
    async fn append(
        self: &Arc<Self>,
        (task_uid, run_id): (&str, &str),
        folder: Path,
        start: Option<u64>,
        bytes: Bytes,
        class: Class,
    ) -> Result<u64, Error> {
        let of = (task_uid.to_owned(), run_id.to_owned());
        self.alone(run_id, |store| async move {
            let of = (of.0.as_str(), of.1.as_str());
            store.append_alone(of, &folder, start, bytes, class).await
        })
        .await
    }

    async fn append_alone(
        &self,
        (task_uid, run_id): (&str, &str),
        folder: &Path,
        start: Option<u64>,
        bytes: Bytes,
        class: Class,
    ) -> Result<u64, Error> {
        let mut layout = match self.remembered.take(folder) {
            Some(layout) => layout,
            None => self.layout(folder).await?,
        };
        for _ in 0..ROUNDS {
            let end = layout.end();
            let start = start.unwrap_or(end);
            if start > end {
                return Err(Error::Gap { start, end });
            }
            let known = usize::try_from(end - start).map_or(bytes.len(), |n| n.min(bytes.len()));
            let new = bytes.slice(known..);
            if new.is_empty() {
                self.remembered.keep(folder, layout);
                return Ok(end);
            }
            if class != Class::End && layout.bytes() + new.len() as u64 > MOST {
                return Err(Error::TooLarge);
            }
            let piece = Segment::piece(end, new.len() as u64);
            let taken = self
                .take(task_uid, run_id, Held::object(piece.size), class)
                .await?;
            if self.create(&segment_path(folder, piece), new).await? {
                taken.written();
                layout.push(piece);
                // The piece is stored. What fails here is done with a later piece, when the log was listed again.
                if self.tidy((task_uid, run_id), folder, &mut layout).await.is_ok() {
                    self.remembered.keep(folder, layout);
                } else {
                    self.recount(task_uid, run_id);
                }
                return Ok(piece.end());
            }
            // It is there: another process wrote it, or this one did and its answer was lost.
            drop(taken);
            layout = self.layout(folder).await?;
            self.free_obsolete((task_uid, run_id), folder, &mut layout)
                .await?;
        }
        Err(Error::Contended)
    }

    /// Deletes what merges left, and merges the last pieces where there are many.
    async fn tidy(&self, of: (&str, &str), folder: &Path, layout: &mut Layout) -> Result<(), Error> {
        self.free_obsolete(of, folder, layout).await?;
        let pieces = layout.due().to_vec();
        let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else {
            return Ok(());
        };
        let whole = Segment::piece(first.start, last.end() - first.start);
        let permit = self.merges.acquire().await;
        let mut bytes = BytesMut::with_capacity(usize::try_from(whole.size).unwrap_or_default());
        for piece in &pieces {
            let path = segment_path(folder, *piece);
            let read = self.objects.get_range(&path, 0..piece.size).await?;
            if read.len() as u64 != piece.size {
                return Err(Error::Strange(path.to_string()));
            }
            bytes.extend_from_slice(&read);
        }
        // If another process has merged the same pieces, the object is there.
        self.create(&segment_path(folder, whole), bytes.freeze()).await?;
        drop(permit);
        for piece in &pieces {
            self.delete_if_there(&segment_path(folder, *piece)).await?;
        }
        let before: Held = pieces.iter().map(|piece| Held::object(piece.size)).sum();
        self.give_back(of.0, of.1, before.less(Held::object(whole.size)));
        layout.replace(pieces.len(), whole);
        Ok(())
    }

    /// Deletes objects of a log that lie within others.
    async fn free_obsolete(
        &self,
        (task_uid, run_id): (&str, &str),
        folder: &Path,
        layout: &mut Layout,
    ) -> Result<(), Error> {
        for segment in std::mem::take(&mut layout.obsolete) {
            let path = segment_path(folder, segment);
            self.free(task_uid, run_id, &path, segment.stored()).await?;
        }
        Ok(())
    }

    /// Notes that a part of a run's log is missing and returns the offset at which the next piece
    /// must start. Bytes that are stored already stay; a gap that does not join is refused.
    pub async fn put_log_gap(self: &Arc<Self>, task_uid: &str, run_id: &str, gap: Gap) -> Result<u64, Error> {
        let folder = log_folder(task_uid, run_id)?;
        let of = (task_uid.to_owned(), run_id.to_owned());
        self.alone(run_id, |store| async move {
            let Gap { start, end, why } = gap;
            // The next piece lists the log again.
            store.remembered.take(&folder);
            let stored = store.layout(&folder).await?.end();
            if start > stored || end > MAX_OFFSET {
                return Err(Error::Gap { start, end: stored });
            }
            if end <= stored {
                return Ok(stored);
            }
            let note = segment_path(&folder, Segment::note(stored, end, why));
            let taken = store.take(&of.0, &of.1, Held::object(0), Class::Bulk).await?;
            if store.create(&note, Bytes::new()).await? {
                taken.written();
            }
            Ok(end)
        })
        .await
    }

    /// The offset at which the next piece of the log must start; 0 for an unknown run.
    pub async fn log_end(&self, task_uid: &str, run_id: &str) -> Result<u64, Error> {
        Ok(self.layout(&log_folder(task_uid, run_id)?).await?.end())
    }

    /// How much of a run's log is stored at least; nothing for an unknown run. A log that this process writes is not listed:
    /// the copy of a running log asks every few seconds, and each list of a bucket costs money. [`Store::log_end`] sees what
    /// another process wrote, too.
    pub async fn log_extent(&self, task_uid: &str, run_id: &str) -> Result<Extent, Error> {
        let folder = log_folder(task_uid, run_id)?;
        let extent = |layout: &Layout| Extent {
            end: layout.end(),
            bytes: layout.bytes(),
            gaps: layout.gaps,
        };
        if let Some(known) = self.remembered.look(&folder, extent) {
            return Ok(known);
        }
        let layout = self.layout(&folder).await?;
        if layout.live.is_empty() && layout.obsolete.is_empty() {
            self.remembered.keep_empty(&folder);
        }
        Ok(extent(&layout))
    }

    /// The encoded log from an offset to its present end, a few bytes at a time, with the gaps.
    pub fn read_log(
        self: &Arc<Self>,
        task_uid: &str,
        run_id: &str,
        offset: u64,
    ) -> BoxStream<'static, Result<Piece, Error>> {
        match log_folder(task_uid, run_id) {
            Ok(folder) => self.read_from(folder, offset),
            Err(error) => futures::stream::once(async { Err(error) }).boxed(),
        }
    }

    /// The content of a folder's segments from an offset on.
    fn read_from(self: &Arc<Self>, folder: Path, offset: u64) -> BoxStream<'static, Result<Piece, Error>> {
        let store = Arc::clone(self);
        // The listing is kept until it no longer holds: a merge may replace segments
        // meanwhile, but never changes the bytes at an offset.
        let state = (store, folder, offset, Layout::default());
        futures::stream::try_unfold(state, |(store, folder, offset, mut layout)| async move {
            for _ in 0..8 {
                if layout.at(offset).is_none() {
                    layout = store.layout(&folder).await?;
                }
                let Some(segment) = layout.at(offset) else {
                    return Ok(None);
                };
                if let Some(why) = segment.missing {
                    let (start, end) = (offset, segment.end());
                    let gap = Piece::Gap(Gap { start, end, why });
                    return Ok(Some((gap, (store, folder, end, layout))));
                }
                let from = offset - segment.start;
                let to = segment.size.min(from + READ_PIECE);
                let path = segment_path(&folder, segment);
                if let Some(bytes) = if_there(store.objects.get_range(&path, from..to).await)? {
                    if bytes.is_empty() {
                        // Else a reader would ask for the same bytes for ever.
                        return Err(Error::Strange(path.to_string()));
                    }
                    let next = offset + bytes.len() as u64;
                    return Ok(Some((Piece::Bytes(bytes), (store, folder, next, layout))));
                }
                layout = Layout::default();
            }
            // The segments were deleted while we read, again and again: the Task is gone.
            Ok(None)
        })
        .boxed()
    }

    /// Ids of the runs with stored data, sorted.
    pub async fn runs(&self, task_uid: &str) -> Result<Vec<String>, Error> {
        self.ids_in(Some(&Path::from(checked(task_uid)?))).await
    }

    /// Stores the outcome of a run; its log and result are stored before. An outcome that is stored stays.
    pub async fn put_outcome(&self, task_uid: &str, run_id: &str, json: Bytes) -> Result<(), Error> {
        let path = run_path(task_uid, run_id, OUTCOME)?;
        self.put_once((task_uid, run_id), path, json, Class::End).await
    }

    /// Writes a whole object, unless it is there already: then it stays as it is.
    async fn put_once(
        &self,
        (task_uid, run_id): (&str, &str),
        path: Path,
        bytes: Bytes,
        class: Class,
    ) -> Result<(), Error> {
        let object = Held::object(bytes.len() as u64);
        let taken = match self.take(task_uid, run_id, object, class).await {
            Ok(taken) => taken,
            Err(refused) => {
                // What is stored needs no room.
                let is_there = if_there(self.objects.head(&path).await)?.is_some();
                return if is_there { Ok(()) } else { Err(refused) };
            }
        };
        let is_new = self.create(&path, bytes).await?;
        taken.written();
        if !is_new {
            self.give_back(task_uid, run_id, object);
        }
        Ok(())
    }

    /// The outcome of a run, if it was stored.
    pub async fn get_outcome(&self, task_uid: &str, run_id: &str) -> Result<Option<Bytes>, Error> {
        self.read_small(&run_path(task_uid, run_id, OUTCOME)?).await
    }

    /// Deletes all stored data of a Task. Fine if it is gone already.
    pub async fn delete_task(&self, task_uid: &str) -> Result<(), Error> {
        self.delete_owned(checked(task_uid)?).await
    }

    /// Deletes all data of a Task or Pool.
    async fn delete_owned(&self, owner: &str) -> Result<(), Error> {
        let deleted = self.delete_objects_of(owner).await;
        match deleted {
            Ok(()) => self.forget(owner),
            // Some of it may be gone.
            Err(_) => self.recount(owner, ""),
        }
        deleted
    }

    async fn delete_objects_of(&self, owner: &str) -> Result<(), Error> {
        self.remembered.forget(&folder(owner)?);
        if let Some(root) = &self.root {
            // This also deletes uploads that a crash left unfinished, which no listing shows.
            return match tokio::fs::remove_dir_all(root.join(owner)).await {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
                Ok(()) | Err(_) => Ok(()),
            };
        }
        let listed = self
            .objects
            .list(Some(&folder(owner)?))
            .map_ok(|meta| meta.location)
            .boxed();
        let mut deleted = self.objects.delete_stream(listed);
        while let Some(result) = deleted.next().await {
            if_there(result)?;
        }
        Ok(())
    }

    /// UIDs of all Tasks with stored data, sorted.
    pub async fn task_uids(&self) -> Result<Vec<String>, Error> {
        self.ids_in(None).await
    }

    /// Folders there whose names are ids, sorted.
    async fn ids_in(&self, prefix: Option<&Path>) -> Result<Vec<String>, Error> {
        let listing = self.objects.list_with_delimiter(prefix).await?;
        let mut ids: Vec<String> = listing
            .common_prefixes
            .iter()
            .filter_map(Path::filename)
            // A file system may have folders of its own here, such as lost+found.
            .filter(|name| checked(name).is_ok())
            .map(str::to_owned)
            .collect();
        ids.sort_unstable();
        Ok(ids)
    }

    /// How long nothing of this Task has changed; `None` when nothing is stored of it.
    pub async fn age(&self, task_uid: &str) -> Result<Option<Duration>, Error> {
        self.age_of(checked(task_uid)?).await
    }

    /// How long nothing of a Task or Pool has changed.
    async fn age_of(&self, owner: &str) -> Result<Option<Duration>, Error> {
        let mut newest = None;
        let mut listed = self.objects.list(Some(&folder(owner)?));
        while let Some(meta) = listed.try_next().await? {
            newest = newest.max(u64::try_from(meta.last_modified.timestamp()).ok());
        }
        if newest.is_none()
            && let Some(root) = &self.root
        {
            // A folder with nothing but unfinished uploads.
            let metadata = match tokio::fs::metadata(root.join(owner)).await {
                Ok(metadata) => metadata,
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            return Ok(metadata.modified().ok().and_then(|at| at.elapsed().ok()));
        }
        Ok(newest.map(|seconds| {
            SystemTime::now()
                .duration_since(UNIX_EPOCH + Duration::from_secs(seconds))
                .unwrap_or_default()
        }))
    }

    async fn layout(&self, folder: &Path) -> Result<Layout, Error> {
        let listing = self.objects.list_with_delimiter(Some(folder)).await?;
        let segments = listing
            .objects
            .iter()
            .filter_map(|meta| Segment::parse(meta.location.filename()?, meta.size));
        Ok(Layout::of(segments.collect()))
    }

    /// Deletes an object of a run and gives its room back; fine if it is gone already.
    async fn free(&self, task_uid: &str, run_id: &str, path: &Path, size: u64) -> Result<(), Error> {
        match self.delete_if_there(path).await {
            Ok(true) => {
                self.give_back(task_uid, run_id, Held::object(size));
                Ok(())
            }
            // An answer was lost, now or before: whether its room is free shows at the next look.
            Ok(false) => {
                self.recount(task_uid, run_id);
                Ok(())
            }
            Err(error) => {
                self.recount(task_uid, run_id);
                Err(error)
            }
        }
    }

    /// Deletes an object; returns whether it existed.
    async fn delete_if_there(&self, path: &Path) -> Result<bool, Error> {
        Ok(if_there(self.objects.delete(path).await)?.is_some())
    }
}

/// The answer about an object; `None` if there is no such object.
fn if_there<T>(answer: object_store::Result<T>) -> Result<Option<T>, Error> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        // Where the bucket itself is missing nothing is known about the object.
        Err(error @ object_store::Error::NotFound { .. }) if !error::lacks_bucket(&error) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The id, if it is valid.
fn checked(id: &str) -> Result<&str, Error> {
    let ok = !id.is_empty()
        && id.len() <= 128
        && id
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if ok {
        Ok(id)
    } else {
        Err(Error::BadId(id.chars().take(64).collect()))
    }
}

/// An object or folder of a run.
fn run_path(task_uid: &str, run_id: &str, name: &str) -> Result<Path, Error> {
    Ok(Path::from_iter([checked(task_uid)?, checked(run_id)?, name]))
}

fn log_folder(task_uid: &str, run_id: &str) -> Result<Path, Error> {
    run_path(task_uid, run_id, "log")
}

fn segment_path(folder: &Path, segment: Segment) -> Path {
    folder.clone().join(segment.name())
}

#[cfg(test)]
mod tests;
