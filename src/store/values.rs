//! Return values. A small one is a single object. A large one comes in pieces, as a log
//! does, so that an interrupted transfer goes on where it was; readers see it only once it is
//! sealed with its size.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use object_store::{ObjectStoreExt, path::Path};

use crate::{Error, MOST_WHOLE, Piece, READ_PIECE, Store, StoredResult, if_there, ledger::Class, run_path};

impl Store {
    /// Stores a return value. One that is stored already stays.
    pub async fn put_result(&self, task_uid: &str, run_id: &str, json: Bytes) -> Result<(), Error> {
        let class = Class::of_value(json.len() as u64);
        self.put_once((task_uid, run_id), result_path(task_uid, run_id)?, json, class)
            .await
    }

    /// The size of a return value that was stored in one piece, if one was.
    pub async fn whole_result(&self, task_uid: &str, run_id: &str) -> Result<Option<u64>, Error> {
        let found = if_there(self.objects.head(&result_path(task_uid, run_id)?).await)?;
        Ok(found.map(|meta| meta.size))
    }

    /// Adds a piece of a large return value of `size` bytes and answers the next offset.
    /// Readers see nothing of it before [`Store::seal_result`].
    pub async fn put_result_piece(
        self: &Arc<Self>,
        task_uid: &str,
        run_id: &str,
        start: u64,
        bytes: Bytes,
        size: u64,
    ) -> Result<u64, Error> {
        let folder = value_folder(task_uid, run_id)?;
        self.append(
            (task_uid, run_id),
            folder,
            Some(start),
            bytes,
            Class::of_value(size),
        )
        .await
    }

    /// The next offset of a return value in pieces; 0 when there is none.
    pub async fn result_end(&self, task_uid: &str, run_id: &str) -> Result<u64, Error> {
        Ok(self.layout(&value_folder(task_uid, run_id)?).await?.end())
    }

    /// Seals a return value: all its pieces are stored. That is looked at, past what is remembered: a process
    /// that led before may have given the value up.
    pub async fn seal_result(&self, task_uid: &str, run_id: &str, size: u64) -> Result<(), Error> {
        let folder = value_folder(task_uid, run_id)?;
        let end = self.layout(&folder).await?.end();
        if end != size {
            self.remembered.forget(&folder);
            return Err(Error::Gap { start: size, end });
        }
        let text = Bytes::from(size.to_string());
        self.put_once((task_uid, run_id), size_path(task_uid, run_id)?, text, Class::End)
            .await
    }

    /// Gives up a return value of which some pieces are there.
    pub async fn drop_result(self: &Arc<Self>, task_uid: &str, run_id: &str) -> Result<(), Error> {
        let folder = value_folder(task_uid, run_id)?;
        let of = (task_uid.to_owned(), run_id.to_owned());
        self.alone(run_id, |store| async move {
            store.remembered.take(&folder);
            let listing = store.objects.list_with_delimiter(Some(&folder)).await?;
            for meta in listing.objects {
                store.free(&of.0, &of.1, &meta.location, meta.size).await?;
            }
            Ok(())
        })
        .await
    }

    /// A return value from an offset, if there is one.
    pub async fn get_result(
        self: &Arc<Self>,
        task_uid: &str,
        run_id: &str,
        offset: u64,
    ) -> Result<Option<StoredResult>, Error> {
        let path = result_path(task_uid, run_id)?;
        let Some(size) = self.whole_result(task_uid, run_id).await? else {
            return self.in_pieces(task_uid, run_id, offset).await;
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

    async fn in_pieces(
        self: &Arc<Self>,
        task_uid: &str,
        run_id: &str,
        offset: u64,
    ) -> Result<Option<StoredResult>, Error> {
        let sealed = self.read_small(&size_path(task_uid, run_id)?).await?;
        let Some(size) = sealed.as_deref().and_then(number) else {
            return Ok(None);
        };
        // A value has no gaps.
        let pieces = self.read_from(value_folder(task_uid, run_id)?, offset);
        let bytes = pieces.try_filter_map(async |piece| {
            Ok(match piece {
                Piece::Bytes(bytes) => Some(bytes),
                Piece::Gap(_) => None,
            })
        });
        let bytes = bytes.boxed();
        Ok(Some(StoredResult { size, bytes }))
    }

    /// Since when the log and result of a run wait for room: the time of the first such call, even
    /// in another process.
    pub async fn waits_since(
        &self,
        task_uid: &str,
        run_id: &str,
        now: SystemTime,
    ) -> Result<SystemTime, Error> {
        let path = run_path(task_uid, run_id, "waits-since")?;
        let known = self.read_small(&path).await?;
        if let Some(seconds) = known.as_deref().and_then(number) {
            return Ok((UNIX_EPOCH + Duration::from_secs(seconds)).min(now));
        }
        let seconds = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let text = Bytes::from(seconds.to_string());
        self.put_once((task_uid, run_id), path, text, Class::End).await?;
        Ok(now)
    }

    /// The content of a small object, if there is one.
    pub(crate) async fn read_small(&self, path: &Path) -> Result<Option<Bytes>, Error> {
        self.read_whole(path, MOST_WHOLE).await
    }

    /// The content of an object of at most that size, if there is one.
    pub(crate) async fn read_whole(&self, path: &Path, most: u64) -> Result<Option<Bytes>, Error> {
        match if_there(self.objects.get(path).await)? {
            Some(found) if found.meta.size > most => Err(Error::Strange(path.to_string())),
            Some(found) => Ok(Some(found.bytes().await?)),
            None => Ok(None),
        }
    }
}

fn number(text: &[u8]) -> Option<u64> {
    // A number larger than any time or size of ours was not written by us.
    let number: u64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    (number < 1 << 40).then_some(number)
}

fn result_path(task_uid: &str, run_id: &str) -> Result<Path, Error> {
    run_path(task_uid, run_id, "result.json")
}

fn size_path(task_uid: &str, run_id: &str) -> Result<Path, Error> {
    run_path(task_uid, run_id, "result.size")
}

fn value_folder(task_uid: &str, run_id: &str) -> Result<Path, Error> {
    run_path(task_uid, run_id, "result")
}
