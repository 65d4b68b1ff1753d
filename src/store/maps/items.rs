//! The items of a map that were read from a file, a ConfigMap or a result, as JSON lines: written once, when the map
//! begins, so that all its leaders have the same items even if their source changes. And the deletion of all objects of a
//! map.
//!
//! Items are written in pieces, each of which a slow bucket takes in the time of one request. The last piece has a
//! name of its own and is written last: it ends with the digest and the size of all pieces, and without it there are no
//! items. The names of the other pieces have the digest. So a leader that writes the same items after a crash goes on
//! behind the pieces that are stored, and a leader that has read other items meanwhile writes pieces of its own. Pieces
//! without a last piece are deleted with the map.

use std::{ops::Range, sync::Arc};

use bytes::{Bytes, BytesMut};
use futures::TryStreamExt;
use object_store::{ObjectStoreExt, path::Path};
use sha2::{Digest, Sha256};

use super::{MAP, MapError, map_folder};
use crate::{Error, Store, if_there, ledger::Class};

/// Bytes of a piece; the last one has as many or fewer. Tests have small ones.
pub(super) const PIECE: u64 = if cfg!(test) { 64 } else { 8 * 1024 * 1024 };
/// Bytes that are hashed, or read, at once where all items are looked through.
const STEP: u64 = PIECE / 8;
/// Hexadecimal digits of the digest.
const DIGEST: usize = 64;
/// Behind the last piece: the digest, and the size as sixteen hexadecimal digits.
const FOOTER: usize = DIGEST + 16;

/// The items that are kept of a map.
#[derive(Clone, Debug)]
pub struct MapItems {
    store: Arc<Store>,
    task_uid: String,
    digest: String,
    size: u64,
}

/// All items of a map, from the first one on.
#[derive(Debug)]
pub struct Reading<'a> {
    items: &'a MapItems,
    at: u64,
    hash: Sha256,
}

impl MapItems {
    /// Bytes of all items.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Some bytes of the items. They are in memory at once.
    pub async fn read(&self, range: Range<u64>) -> Result<Bytes, MapError> {
        let mut read = BytesMut::new();
        let (mut at, end) = (range.start, range.end.min(self.size));
        while at < end {
            let begin = at / PIECE * PIECE;
            let path = if begin == before_last(self.size) {
                items_path(&self.task_uid)?
            } else {
                piece_path(&self.task_uid, &self.digest, begin)?
            };
            let to = end.min(begin + PIECE);
            let bytes = self
                .store
                .objects
                .get_range(&path, at - begin..to - begin)
                .await?;
            if bytes.len() as u64 != to - at {
                return Err(MapError::Damaged(path.to_string()));
            }
            if at == range.start && to == end {
                return Ok(bytes);
            }
            read.extend_from_slice(&bytes);
            at = to;
        }
        Ok(read.freeze())
    }

    /// Looks through all items.
    pub fn reading(&self) -> Reading<'_> {
        Reading {
            items: self,
            at: 0,
            hash: Sha256::new(),
        }
    }
}

impl Reading<'_> {
    /// The next bytes; `None`: there are no more, and all of them are what was written.
    pub async fn more(&mut self) -> Result<Option<Bytes>, MapError> {
        let items = self.items;
        if self.at < items.size {
            let to = items.size.min(self.at + STEP);
            let bytes = items.read(self.at..to).await?;
            self.hash.update(&bytes);
            self.at = to;
            return Ok(Some(bytes));
        }
        if format!("{:x}", self.hash.clone().finalize()) == items.digest {
            return Ok(None);
        }
        Err(MapError::Damaged(items_path(&items.task_uid)?.to_string()))
    }
}

impl Store {
    /// Keeps the items of a map. Items that are stored already stay.
    pub async fn put_map_items(&self, task_uid: &str, lines: Bytes) -> Result<(), Error> {
        let last_path = items_path(task_uid)?;
        if if_there(self.objects.head(&last_path).await)?.is_some() {
            return Ok(());
        }
        let mut hash = Sha256::new();
        for step in lines.chunks(STEP as usize) {
            hash.update(step);
            // All of them take some tenths of a second.
            tokio::task::yield_now().await;
        }
        let digest = format!("{:x}", hash.finalize());
        let size = lines.len() as u64;
        let before = before_last(size);
        let mut at = 0;
        while at < before {
            let path = piece_path(task_uid, &digest, at)?;
            // A piece of that name has these bytes: it is not sent again.
            if if_there(self.objects.head(&path).await)?.is_none() {
                let piece = lines.slice(at as usize..(at + PIECE) as usize);
                self.put_once((task_uid, MAP), path, piece, Class::Bulk).await?;
            }
            at += PIECE;
        }
        let mut last = BytesMut::with_capacity((size - before) as usize + FOOTER);
        last.extend_from_slice(&lines[before as usize..]);
        last.extend_from_slice(footer(&digest, size).as_bytes());
        self.put_once((task_uid, MAP), last_path, last.freeze(), Class::Bulk)
            .await
    }

    /// The items that are kept of a map; `None`: none are, or not all of them.
    pub async fn map_items(self: &Arc<Self>, task_uid: &str) -> Result<Option<MapItems>, MapError> {
        let path = items_path(task_uid)?;
        let Some(found) = if_there(self.objects.head(&path).await)? else {
            return Ok(None);
        };
        let damaged = || MapError::Damaged(path.to_string());
        let last = found.size.checked_sub(FOOTER as u64).ok_or_else(damaged)?;
        let Some(end) = if_there(self.objects.get_range(&path, last..found.size).await)? else {
            return Ok(None);
        };
        let (digest, size) = parse_footer(&end).ok_or_else(damaged)?;
        if size - before_last(size) != last {
            return Err(damaged());
        }
        Ok(Some(MapItems {
            store: Arc::clone(self),
            task_uid: task_uid.to_owned(),
            digest: digest.to_owned(),
            size,
        }))
    }

    /// Deletes all that is kept of a map; answers whether there was anything. Fine if it is gone already.
    pub async fn drop_map(&self, task_uid: &str) -> Result<bool, Error> {
        let listed: Vec<_> = self
            .objects
            .list(Some(&map_folder(task_uid)?))
            .try_collect()
            .await?;
        for meta in &listed {
            self.free(task_uid, MAP, &meta.location, meta.size).await?;
        }
        Ok(!listed.is_empty())
    }
}

/// Bytes of the pieces before the last one.
const fn before_last(size: u64) -> u64 {
    size.saturating_sub(1) / PIECE * PIECE
}

fn footer(digest: &str, size: u64) -> String {
    format!("{digest}{size:016x}")
}

/// Digest and size; `None`: that is no end of items.
fn parse_footer(bytes: &[u8]) -> Option<(&str, u64)> {
    let text = std::str::from_utf8(bytes).ok()?;
    // The digest becomes a part of names.
    let is_hex = text.len() == FOOTER && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let (digest, size) = text.split_at_checked(DIGEST).filter(|_| is_hex)?;
    Some((digest, u64::from_str_radix(size, 16).ok()?))
}

/// The last piece.
fn items_path(task_uid: &str) -> Result<Path, Error> {
    Ok(map_folder(task_uid)?.join("items"))
}

/// Another piece, by the offset of its first byte.
fn piece_path(task_uid: &str, digest: &str, at: u64) -> Result<Path, Error> {
    let folder = map_folder(task_uid)?.join(format!("items-{digest}"));
    Ok(folder.join(format!("{at:016}")))
}

#[cfg(test)]
mod tests {
    use object_store::{ObjectStore, memory::InMemory};

    use super::*;
    use crate::maps::{Record, Writer};

    const TASK: &str = "0b5c6f5e-0000-4000-8000-000000000002";

    #[tokio::test]
    async fn items_stay_as_they_were_first_kept_and_go_with_the_results() {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::local(folder.path()).unwrap().unmeasured());
        store.charge(TASK, "team");
        assert!(store.map_items(TASK).await.unwrap().is_none());
        store.put_map_items(TASK, "1\n2\n".into()).await.unwrap();
        store.put_map_items(TASK, "other".into()).await.unwrap();
        let items = store.map_items(TASK).await.unwrap().unwrap();
        assert_eq!(items.size(), 4);
        assert_eq!(items.read(2..3).await.unwrap(), "2");
        let (mut log, _) = store.lead_map(TASK, Writer([1; 16]), 1).await.unwrap();
        log.append(&[Record::Note("cut 1-0".into())]).await.unwrap();
        assert!(
            !store.drop_logs(TASK).await.unwrap(),
            "the log of a map is no log of a run"
        );
        assert_eq!(store.map_records(TASK, 0, &[]).await.unwrap().len(), 2);
        assert!(store.drop_results(TASK).await.unwrap());
        assert_eq!(store.map_records(TASK, 0, &[]).await.unwrap(), []);
        assert!(store.map_items(TASK).await.unwrap().is_none());
        assert!(!store.drop_results(TASK).await.unwrap());
    }

    /// So many bytes, of which no two pieces are alike.
    fn lines(size: u64) -> Bytes {
        (0..size).map(|at| (at / PIECE + at % 251) as u8).collect()
    }

    fn in_memory() -> (Arc<InMemory>, Arc<Store>) {
        let objects: Arc<InMemory> = Arc::default();
        let store = Store::over(objects.clone());
        store.charge(TASK, "team");
        (objects, Arc::new(store))
    }

    async fn all(items: &MapItems) -> Result<Bytes, MapError> {
        let (mut reading, mut read) = (items.reading(), BytesMut::new());
        while let Some(bytes) = reading.more().await? {
            assert!(bytes.len() as u64 <= STEP);
            read.extend_from_slice(&bytes);
        }
        Ok(read.freeze())
    }

    #[tokio::test]
    async fn items_of_any_size_come_back_byte_by_byte_and_no_object_of_them_is_larger_than_a_piece() {
        for size in [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 7] {
            let (objects, store) = in_memory();
            let lines = lines(size);
            store.put_map_items(TASK, lines.clone()).await.unwrap();
            let items = store.map_items(TASK).await.unwrap().unwrap();
            assert_eq!(items.size(), size);
            assert!(all(&items).await.unwrap() == lines, "{size} bytes");
            let (from, to) = (size.saturating_sub(PIECE + 5), size.saturating_sub(2));
            let part = items.read(from..to).await.unwrap();
            assert!(part == lines.slice(from as usize..to as usize), "over two pieces");
            assert!(items.read(size..size + 9).await.unwrap().is_empty());
            let kept: Vec<_> = objects.list(None).try_collect().await.unwrap();
            assert!(
                kept.iter().all(|meta| meta.size <= PIECE + FOOTER as u64),
                "{kept:?}"
            );
            assert!(store.drop_map(TASK).await.unwrap());
            assert!(store.map_items(TASK).await.unwrap().is_none());
        }
    }

    #[tokio::test]
    async fn a_piece_that_is_not_what_was_written_is_an_error_when_all_are_looked_through() {
        let (objects, store) = in_memory();
        store.put_map_items(TASK, lines(PIECE + 1)).await.unwrap();
        let items = store.map_items(TASK).await.unwrap().unwrap();
        let path = piece_path(TASK, &items.digest, 0).unwrap();
        let mut other = vec![7_u8; PIECE as usize];
        objects.put(&path, other.clone().into()).await.unwrap();
        assert!(matches!(all(&items).await, Err(MapError::Damaged(_))));
        other.truncate(9);
        objects.put(&path, other.into()).await.unwrap();
        assert!(all(&items).await.is_err(), "a piece that is too short");
    }

    #[tokio::test]
    async fn an_object_that_does_not_end_as_items_do_is_an_error() {
        let (objects, store) = in_memory();
        let good = footer(&"a".repeat(DIGEST), 3);
        for bad in [
            "1\n2\n".to_owned(),
            "x".repeat(FOOTER),
            format!("12{good}"),
            format!("123{}", good.replace('a', "/")),
            format!("123{}+000000000000003", "a".repeat(DIGEST)),
            footer(&"a".repeat(DIGEST), u64::MAX),
        ] {
            let path = items_path(TASK).unwrap();
            objects.put(&path, bad.clone().into_bytes().into()).await.unwrap();
            let found = store.map_items(TASK).await;
            assert!(matches!(found, Err(MapError::Damaged(_))), "{bad}: {found:?}");
        }
    }
}
