//! Where logs and results live after a run: an object store with a small layout of our own.
//!
//! There are no indexes and no metadata objects; all is in names and sizes:
//!
//! ```text
//! <task uid>/<run id>/log/<offset, 16 digits>    a piece of the encoded log from that offset
//! <task uid>/<run id>/result.json                the function's return value
//! <task uid>/<run id>/outcome.json               what the run came to, while its Task cannot say it
//! ```
//!
//! - An object appears whole or not at all, and is on disk before a call returns: after a
//!   crash the log ends where [`Store::log_end`] says, and the collector goes on from there.
//! - Pieces are merged as they arrive (see `segments.rs`): the merged object replaces the
//!   first of them under its name, then the others are deleted. A crash between the two
//!   leaves objects that lie within another one; readers skip them, the next write
//!   deletes them.
//! - A run has one writer at a time: its dispatcher's collector. Writing the same bytes
//!   twice is harmless.
//! - Ids come from users of the aggregated API too; anything but `[a-z0-9-]` is refused, so
//!   that no id names another path.
//!
//! Any `object_store` can stand behind it; today a local directory does.

mod segments;

use std::{
    io::ErrorKind,
    path::{Path as FilePath, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt, TryStreamExt, stream::BoxStream};
use object_store::{
    ObjectStore, ObjectStoreExt, PutPayload, WriteMultipart, local::LocalFileSystem, path::Path,
};
use tokio::sync::Semaphore;

use crate::segments::{Layout, Segment};

/// Most bytes that one step of a reading stream holds.
const READ_PIECE: u64 = 256 * 1024;
/// Merges at the same time; each holds at most 4 MiB.
const MERGES: usize = 4;

/// Why the store did not do it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No room; the operator's volume must grow or Tasks must be deleted.
    #[error("the result store is full; enlarge its volume or delete Tasks that are no longer needed")]
    Full(#[source] object_store::Error),
    /// Not an id of ours.
    #[error("\"{0}\" is not an id of a Task or run")]
    BadId(String),
    /// Bytes between the end of the log and this piece are missing.
    #[error("a piece of log starts at {start}, but {end} is wanted next")]
    Gap {
        /// Where the piece starts.
        start: u64,
        /// Where the log ends.
        end: u64,
    },
    /// The caller's stream failed; nothing was stored.
    #[error("the data did not arrive: {0}")]
    Source(String),
    /// The value is larger than the caller admits; nothing was stored.
    #[error("the value is larger than {limit} bytes")]
    TooLarge {
        /// The limit.
        limit: u64,
    },
    /// Anything else.
    #[error("the result store does not answer as it should")]
    Other(#[source] object_store::Error),
}

impl From<object_store::Error> for Error {
    fn from(error: object_store::Error) -> Self {
        let mut cause: Option<&dyn std::error::Error> = Some(&error);
        while let Some(current) = cause {
            if let Some(io) = current.downcast_ref::<std::io::Error>()
                && matches!(io.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
            {
                return Self::Full(error);
            }
            cause = current.source();
        }
        Self::Other(error)
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        object_store::Error::Generic {
            store: "directory",
            source: Box::new(error),
        }
        .into()
    }
}

/// A value that is read piece by piece.
pub struct StoredResult {
    /// Its whole size in bytes.
    pub size: u64,
    /// Its bytes from the offset, a few at a time.
    pub bytes: BoxStream<'static, Result<Bytes, Error>>,
}

/// Logs and results of all Tasks.
pub struct Store {
    objects: Arc<dyn ObjectStore>,
    /// Set where a local directory stands behind it: whole folders are deleted there.
    root: Option<PathBuf>,
    merges: Semaphore,
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
        Ok(Self {
            objects: Arc::new(objects),
            root: Some(root),
            merges: Semaphore::new(MERGES),
        })
    }

    /// A store in anything that `object_store` knows.
    pub fn over(objects: Arc<dyn ObjectStore>) -> Self {
        Self {
            objects,
            root: None,
            merges: Semaphore::new(MERGES),
        }
    }

    /// Adds a piece of a run's encoded log and answers the next offset that is wanted.
    /// What is there already is not written again; a piece that does not join is refused.
    pub async fn put_log_segment(
        &self,
        task_uid: &str,
        run_id: &str,
        start: u64,
        bytes: Bytes,
    ) -> Result<u64, Error> {
        let folder = log_folder(task_uid, run_id)?;
        let layout = self.layout(&folder).await?;
        let end = layout.end();
        if start > end {
            return Err(Error::Gap { start, end });
        }
        let new = bytes.slice(usize::try_from(end - start).map_or(bytes.len(), |n| n.min(bytes.len()))..);
        if new.is_empty() {
            return Ok(end);
        }
        let new_end = end + new.len() as u64;
        let merged = layout.merge_with(new.len() as u64).to_vec();
        match merged.first() {
            None => {
                self.objects
                    .put(&segment_path(&folder, end), PutPayload::from_bytes(new))
                    .await?;
            }
            Some(first) => {
                let permit = self.merges.acquire().await;
                let mut whole =
                    BytesMut::with_capacity(usize::try_from(new_end - first.start).unwrap_or_default());
                for segment in &merged {
                    whole.extend_from_slice(
                        &self
                            .objects
                            .get(&segment_path(&folder, segment.start))
                            .await?
                            .bytes()
                            .await?,
                    );
                }
                whole.extend_from_slice(&new);
                self.objects
                    .put(
                        &segment_path(&folder, first.start),
                        PutPayload::from_bytes(whole.freeze()),
                    )
                    .await?;
                drop(permit);
            }
        }
        for segment in merged.iter().skip(1).chain(&layout.obsolete) {
            self.delete_if_there(&segment_path(&folder, segment.start))
                .await?;
        }
        Ok(new_end)
    }

    /// The next offset of the log that is wanted; 0 for a run of which nothing is known.
    pub async fn log_end(&self, task_uid: &str, run_id: &str) -> Result<u64, Error> {
        Ok(self.layout(&log_folder(task_uid, run_id)?).await?.end())
    }

    /// The encoded log from an offset to where it ends now, a few bytes at a time.
    pub fn read_log(
        self: &Arc<Self>,
        task_uid: &str,
        run_id: &str,
        offset: u64,
    ) -> BoxStream<'static, Result<Bytes, Error>> {
        let store = Arc::clone(self);
        let folder = match log_folder(task_uid, run_id) {
            Ok(folder) => folder,
            Err(error) => return futures::stream::once(async { Err(error) }).boxed(),
        };
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
                let from = offset - segment.start;
                let to = segment.size.min(from + READ_PIECE);
                match store
                    .objects
                    .get_range(&segment_path(&folder, segment.start), from..to)
                    .await
                {
                    Ok(bytes) => {
                        let next = offset + bytes.len() as u64;
                        return Ok(Some((bytes, (store, folder, next, layout))));
                    }
                    Err(object_store::Error::NotFound { .. }) => layout = Layout::default(),
                    Err(error) => return Err(error.into()),
                }
            }
            // Deleted under our eyes, again and again: the Task is gone.
            Ok(None)
        })
        .boxed()
    }

    /// Ids of the runs of which something is stored, sorted.
    pub async fn runs(&self, task_uid: &str) -> Result<Vec<String>, Error> {
        let prefix = Path::from(checked(task_uid)?);
        let listing = self.objects.list_with_delimiter(Some(&prefix)).await?;
        let mut runs: Vec<String> = listing
            .common_prefixes
            .iter()
            .filter_map(Path::filename)
            .map(str::to_owned)
            .collect();
        runs.sort_unstable();
        Ok(runs)
    }

    /// Stores a return value.
    pub async fn put_result(&self, task_uid: &str, run_id: &str, json: Bytes) -> Result<(), Error> {
        self.objects
            .put(&result_path(task_uid, run_id)?, PutPayload::from_bytes(json))
            .await?;
        Ok(())
    }

    /// Stores a return value as it arrives, without ever holding it whole; it appears only
    /// when all of it is there. Answers its size.
    pub async fn put_result_stream<S, E>(
        &self,
        task_uid: &str,
        run_id: &str,
        limit: u64,
        mut pieces: S,
    ) -> Result<u64, Error>
    where
        S: Stream<Item = Result<Bytes, E>> + Unpin + Send,
        E: std::fmt::Display,
    {
        let upload = self
            .objects
            .put_multipart(&result_path(task_uid, run_id)?)
            .await?;
        let mut upload = WriteMultipart::new(upload);
        let mut size = 0;
        let stopped = loop {
            match pieces.next().await {
                None => break None,
                Some(Err(error)) => break Some(Error::Source(error.to_string())),
                Some(Ok(piece)) => {
                    size += piece.len() as u64;
                    if size > limit {
                        break Some(Error::TooLarge { limit });
                    }
                    if let Err(error) = upload.wait_for_capacity(1).await {
                        break Some(error.into());
                    }
                    upload.put(piece);
                }
            }
        };
        if let Some(error) = stopped {
            // What was uploaded is nothing to anybody; that it could not be taken back
            // matters less than why it was stopped.
            let _ = upload.abort().await;
            return Err(error);
        }
        upload.finish().await?;
        Ok(size)
    }

    /// Stores what a run came to; its log and result are stored before.
    pub async fn put_outcome(&self, task_uid: &str, run_id: &str, json: Bytes) -> Result<(), Error> {
        self.objects
            .put(&outcome_path(task_uid, run_id)?, PutPayload::from_bytes(json))
            .await?;
        Ok(())
    }

    /// What a run came to, if that was stored.
    pub async fn get_outcome(&self, task_uid: &str, run_id: &str) -> Result<Option<Bytes>, Error> {
        match self.objects.get(&outcome_path(task_uid, run_id)?).await {
            Ok(found) => Ok(Some(found.bytes().await?)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// A return value from an offset, if there is one.
    pub async fn get_result(
        &self,
        task_uid: &str,
        run_id: &str,
        offset: u64,
    ) -> Result<Option<StoredResult>, Error> {
        let path = result_path(task_uid, run_id)?;
        let size = match self.objects.head(&path).await {
            Ok(meta) => meta.size,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let objects = Arc::clone(&self.objects);
        let bytes = futures::stream::try_unfold(offset, move |offset| {
            let (objects, path) = (Arc::clone(&objects), path.clone());
            async move {
                if offset >= size {
                    return Ok(None);
                }
                let bytes = objects
                    .get_range(&path, offset..size.min(offset + READ_PIECE))
                    .await?;
                let next = offset + bytes.len() as u64;
                Ok(Some((bytes, next)))
            }
        })
        .boxed();
        Ok(Some(StoredResult { size, bytes }))
    }

    /// Deletes all that is stored of a Task. Done already is fine.
    pub async fn delete_task(&self, task_uid: &str) -> Result<(), Error> {
        let uid = checked(task_uid)?;
        if let Some(root) = &self.root {
            // Takes uploads with it that a crash left unfinished, which no listing shows.
            return match tokio::fs::remove_dir_all(root.join(uid)).await {
                Ok(()) => Ok(()),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                Err(error) => Err(error.into()),
            };
        }
        let listed = self
            .objects
            .list(Some(&Path::from(uid)))
            .map_ok(|meta| meta.location)
            .boxed();
        let mut deleted = self.objects.delete_stream(listed);
        while let Some(result) = deleted.next().await {
            match result {
                Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// UIDs of all Tasks of which something is stored, sorted.
    pub async fn task_uids(&self) -> Result<Vec<String>, Error> {
        let listing = self.objects.list_with_delimiter(None).await?;
        let mut uids: Vec<String> = listing
            .common_prefixes
            .iter()
            .filter_map(Path::filename)
            .map(str::to_owned)
            .collect();
        uids.sort_unstable();
        Ok(uids)
    }

    /// How long nothing of this Task has changed; `None` when nothing is stored of it.
    pub async fn age(&self, task_uid: &str) -> Result<Option<Duration>, Error> {
        let uid = checked(task_uid)?;
        let mut newest = None;
        let mut listed = self.objects.list(Some(&Path::from(uid)));
        while let Some(meta) = listed.try_next().await? {
            newest = newest.max(u64::try_from(meta.last_modified.timestamp()).ok());
        }
        if newest.is_none()
            && let Some(root) = &self.root
        {
            // A folder with nothing but unfinished uploads.
            let metadata = match tokio::fs::metadata(root.join(uid)).await {
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
        let segments = listing.objects.iter().filter_map(|meta| {
            Some(Segment {
                start: meta.location.filename()?.parse().ok()?,
                size: meta.size,
            })
        });
        Ok(Layout::of(segments.collect()))
    }

    async fn delete_if_there(&self, path: &Path) -> Result<(), Error> {
        match self.objects.delete(path).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// The id, if it is one.
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

fn log_folder(task_uid: &str, run_id: &str) -> Result<Path, Error> {
    Ok(Path::from_iter([checked(task_uid)?, checked(run_id)?, "log"]))
}

fn segment_path(folder: &Path, start: u64) -> Path {
    folder.clone().join(format!("{start:016}"))
}

fn result_path(task_uid: &str, run_id: &str) -> Result<Path, Error> {
    Ok(Path::from_iter([
        checked(task_uid)?,
        checked(run_id)?,
        "result.json",
    ]))
}

fn outcome_path(task_uid: &str, run_id: &str) -> Result<Path, Error> {
    Ok(Path::from_iter([
        checked(task_uid)?,
        checked(run_id)?,
        "outcome.json",
    ]))
}

#[cfg(test)]
mod tests;
