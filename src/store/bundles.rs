//! Bundles that users uploaded, or machines fetched from git. They belong to a namespace, by its UID, so that a
//! digest opens nothing in another one:
//!
//! ```text
//! _bundles/<namespace uid>/namespace                  the name of that namespace
//! _bundles/<namespace uid>/<bundle>/<upload>/<offset> a part of an upload, from that offset
//! _bundles/<namespace uid>/<bundle>/whole             the upload whose parts are the bundle
//! _bundles/<namespace uid>/<bundle>/leaving           the sweep is deciding whether to delete it
//! _bundles/<namespace uid>/<bundle>/wanted-<hour>     somebody asked for it in that hour since 1970
//! ```
//!
//! - An upload belongs to one user or machine, so that nobody's wrong bytes end up in another's upload. A part is
//!   never written over.
//! - The store does not know what a bundle is: [`Store::seal_bundle`] asks its caller whether the bytes are
//!   right before it notes that the bundle is whole. Nothing is copied then: the parts stay where they are.
//! - All changes of a bundle are made one at a time (`writers.rs`), apart from those of runs: looking
//!   through a bundle takes seconds.
//! - Bundles take room as logs do, and few uploads of a namespace may be unfinished at a time.
//!
//! No id of a Task begins with `_`, so a search for Tasks never finds a bundle.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt, TryStreamExt, stream::BoxStream};
use object_store::{ObjectMeta, ObjectStoreExt, path::Path};

use crate::{
    Error, Piece, Store,
    bootstraps::folder,
    checked, if_there,
    ledger::{Class, Held},
    segment_path,
    segments::Segment,
};

/// The folder of all bundles.
pub(crate) const BUNDLES: &str = "_bundles";
/// The object that says which upload is the bundle.
const WHOLE: &str = "whole";
/// The mark of a bundle that the sweep may delete.
const LEAVING: &str = "leaving";
/// The beginning of the names of marks that say when somebody asked for a bundle.
const WANTED: &str = "wanted-";
/// Uploads of a namespace that are not finished. One more takes the place of one that nobody went on with.
const UNFINISHED: usize = 8;
/// An unfinished upload that has not changed for so long makes room for another one.
const ABANDONED: Duration = Duration::from_mins(15);
/// How often it is noted that somebody asked for a bundle.
const RENEWED: Duration = Duration::from_hours(1);

/// The name of a bundle in the store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BundleId {
    namespace_uid: String,
    bundle: String,
}

/// A bundle whose bytes were found to be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholeBundle {
    /// Its bytes.
    pub bytes: u64,
    upload: String,
}

/// What a look through the bytes of an upload finds, and what became of the upload then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sealed {
    /// It is the bundle now, or another upload was.
    Whole,
    /// The bytes are right so far, but the bundle goes on behind them: they stay.
    Unfinished,
    /// The bytes are wrong, and were deleted; why.
    Refused(String),
}

/// A bundle that the sweep finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredBundle {
    /// Which.
    pub id: BundleId,
    /// Since when nobody uploaded it.
    pub age: Duration,
    /// Whether an earlier sweep has marked it.
    pub leaving: bool,
    /// What is stored of it, with its marks and what other uploads of it left.
    pub bytes: u64,
}

impl BundleId {
    /// The bundle of that digest, as letters and digits, in the namespace of that UID.
    pub fn new(namespace_uid: &str, bundle: &str) -> Result<Self, Error> {
        Ok(Self {
            namespace_uid: checked(namespace_uid)?.to_owned(),
            bundle: checked(bundle)?.to_owned(),
        })
    }

    /// The digest.
    pub fn bundle(&self) -> &str {
        &self.bundle
    }

    fn owner(&self) -> String {
        owner(&self.namespace_uid)
    }

    fn object(&self, name: &str) -> Path {
        Path::from_iter([BUNDLES, self.namespace_uid.as_str(), self.bundle.as_str(), name])
    }

    fn lock(&self) -> String {
        format!("{}/{}", self.namespace_uid, self.bundle)
    }
}

/// The name of a namespace's bundles in the accounts.
fn owner(namespace_uid: &str) -> String {
    format!("{BUNDLES}/{namespace_uid}")
}

/// The objects of one bundle.
#[derive(Debug, Default)]
struct Listed {
    whole: Option<ObjectMeta>,
    leaving: bool,
    objects: Vec<ObjectMeta>,
    /// Seconds since 1970 of the newest one.
    newest: i64,
    /// Of the newest mark that somebody asked for it.
    asked: Option<i64>,
    /// When something of each upload changed last.
    uploads: BTreeMap<String, i64>,
}

fn age(seconds: i64) -> Duration {
    let at = UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
    SystemTime::now().duration_since(at).unwrap_or_default()
}

impl Store {
    /// The bundle, if it is whole.
    pub async fn bundle(&self, id: &BundleId) -> Result<Option<WholeBundle>, Error> {
        let Some(text) = self.read_small(&id.object(WHOLE)).await? else {
            return Ok(None);
        };
        if if_there(self.objects.head(&id.object(LEAVING)).await)?.is_some() {
            return Ok(None);
        }
        Ok(parse(&text))
    }

    /// The offset at which an upload goes on; 0 when nothing of it is there.
    pub async fn upload_end(&self, id: &BundleId, upload: &str) -> Result<u64, Error> {
        Ok(self.layout(&id.object(checked(upload)?)).await?.end())
    }

    /// Adds a part to an upload and answers the offset at which it goes on, which is another one than
    /// the end of the part when its bytes do not join or are there already.
    pub async fn put_upload(
        self: &Arc<Self>,
        namespace: &str,
        id: &BundleId,
        upload: &str,
        start: u64,
        bytes: Bytes,
    ) -> Result<u64, Error> {
        let folder = id.object(checked(upload)?);
        self.charge(&id.owner(), namespace);
        let (id, of) = (id.clone(), upload.to_owned());
        self.alone_with(&self.bundle_writers, &id.lock(), |store| async move {
            let end = store.layout(&folder).await?.end();
            let known = usize::try_from(end.saturating_sub(start)).unwrap_or(usize::MAX);
            if start > end || known >= bytes.len() {
                return Ok(end);
            }
            if end == 0 {
                store.begin_upload(&id, &of).await?;
            }
            let new = bytes.slice(known..);
            // Parts are never merged, so each offset has one.
            let part = Segment {
                old: true,
                ..Segment::piece(end, new.len() as u64)
            };
            let taken = store
                .take(&id.owner(), &id.bundle, Held::object(part.size), Class::Bulk)
                .await?;
            let path = segment_path(&folder, part);
            if !store.create(&path, new).await? {
                // Another process, which led before, wrote it.
                return Ok(store.layout(&folder).await?.end());
            }
            taken.written();
            Ok(part.end())
        })
        .await
    }

    /// Notes that an upload is the bundle, if `check` finds its bytes to be right; bytes that are wrong are deleted.
    pub async fn seal_bundle<C, F>(
        self: &Arc<Self>,
        id: &BundleId,
        upload: &str,
        check: C,
    ) -> Result<Sealed, Error>
    where
        C: FnOnce(BoxStream<'static, Result<Bytes, Error>>) -> F + Send + 'static,
        F: Future<Output = Result<Sealed, Error>> + Send + 'static,
    {
        let folder = id.object(checked(upload)?);
        let (id, of) = (id.clone(), upload.to_owned());
        self.alone_with(&self.bundle_writers, &id.lock(), |store| async move {
            if store.bundle(&id).await?.is_some() {
                return Ok(Sealed::Whole);
            }
            let bytes = store.layout(&folder).await?.end();
            let found = check(store.parts(folder.clone(), 0).boxed()).await?;
            if matches!(found, Sealed::Refused(_)) {
                let listed = store.listed(&id).await?;
                store
                    .free_all(&id, listed.objects, |path| path.prefix_matches(&folder))
                    .await?;
            }
            if found != Sealed::Whole {
                return Ok(found);
            }
            store.delete_if_there(&id.object(LEAVING)).await?;
            let text = Bytes::from(format!("{bytes} {of}"));
            let room = Held::object(text.len() as u64);
            let taken = store.take(&id.owner(), &id.bundle, room, Class::Small).await?;
            if store.create(&id.object(WHOLE), text).await? {
                taken.written();
            }
            // The same bytes of others are not needed; the sweep deletes what stays here after a failure.
            if let Some(kept) = store.kept(&id).await? {
                let listed = store.listed(&id).await?;
                store
                    .free_all(&id, listed.objects, |path| is_other_upload(path, &kept))
                    .await?;
            }
            Ok(Sealed::Whole)
        })
        .await
    }

    /// Notes that somebody wants the bundle, so that it is kept for a while.
    pub async fn renew_bundle(self: &Arc<Self>, id: &BundleId) -> Result<(), Error> {
        let id = id.clone();
        self.alone_with(&self.bundle_writers, &id.lock(), |store| async move {
            store.delete_if_there(&id.object(LEAVING)).await?;
            let listed = store.listed(&id).await?;
            let Some(wanted) = listed.wanted() else {
                return Ok(());
            };
            if age(wanted) < RENEWED {
                return Ok(());
            }
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let mark = id.object(&format!("{WANTED}{}", now.as_secs() / RENEWED.as_secs()));
            // It is there already where the clock was set back.
            store.create(&mark, Bytes::new()).await?;
            store
                .free_all(&id, listed.objects, |path| is_wanted(path) && *path != mark)
                .await
        })
        .await
    }

    /// Bytes of a bundle; `None`: it was deleted meanwhile.
    pub async fn read_bundle(
        self: &Arc<Self>,
        id: &BundleId,
        whole: &WholeBundle,
        range: Range<u64>,
    ) -> Result<Option<Bytes>, Error> {
        let length = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX);
        let mut read = BytesMut::new();
        let mut parts = Box::pin(self.parts(id.object(checked(&whole.upload)?), range.start));
        while read.len() < length {
            let Some(part) = parts.try_next().await? else {
                return Ok(None);
            };
            read.extend_from_slice(&part[..part.len().min(length - read.len())]);
        }
        Ok(Some(read.freeze()))
    }

    /// UIDs of the namespaces of which bundles or uploads are stored.
    pub async fn bundle_namespaces(&self) -> Result<Vec<String>, Error> {
        self.ids_in(Some(&Path::from(BUNDLES))).await
    }

    /// How long nothing of a namespace's bundles has changed; `None` when there are none.
    pub async fn bundles_age(&self, namespace_uid: &str) -> Result<Option<Duration>, Error> {
        self.age_of(&owner(checked(namespace_uid)?)).await
    }

    /// Deletes all bundles of a namespace. Done already is fine.
    pub async fn delete_bundles_of(&self, namespace_uid: &str) -> Result<(), Error> {
        self.delete_owned(&owner(checked(namespace_uid)?)).await
    }

    /// All bundles of a namespace that are whole.
    pub async fn bundles(&self, namespace_uid: &str) -> Result<Vec<StoredBundle>, Error> {
        let all = self.listed_bundles(namespace_uid).await?;
        let whole = all.into_iter().filter_map(|(id, listed)| {
            Some(StoredBundle {
                age: age(listed.wanted()?),
                leaving: listed.leaving,
                bytes: listed.objects.iter().map(|meta| meta.size).sum(),
                id,
            })
        });
        Ok(whole.collect())
    }

    /// Deletes uploads of a namespace that have not changed for so long, and what is left of bundles whose
    /// deletion was interrupted; answers how many.
    pub async fn drop_uploads(
        self: &Arc<Self>,
        namespace_uid: &str,
        unchanged: Duration,
    ) -> Result<usize, Error> {
        let mut dropped = 0;
        for (id, listed) in self.listed_bundles(namespace_uid).await? {
            let is_clean = listed.whole.is_some() && listed.uploads.len() < 2;
            if is_clean || age(listed.newest) < unchanged {
                continue;
            }
            let of = id.clone();
            self.alone_with(&self.bundle_writers, &id.lock(), |store| async move {
                let listed = store.listed(&of).await?;
                let kept = store.kept(&of).await?;
                let is_stale = |path: &Path| match &kept {
                    Some(kept) => is_other_upload(path, kept),
                    None => true,
                };
                if age(listed.newest) >= unchanged {
                    store.free_all(&of, listed.objects, is_stale).await?;
                }
                Ok(())
            })
            .await?;
            dropped += 1;
        }
        Ok(dropped)
    }

    /// Deletes an upload, unless it is the bundle.
    pub async fn drop_upload(self: &Arc<Self>, id: &BundleId, upload: &str) -> Result<(), Error> {
        let folder = id.object(checked(upload)?);
        let id = id.clone();
        self.alone_with(&self.bundle_writers, &id.lock(), |store| async move {
            if store.kept(&id).await?.as_ref() == Some(&folder) {
                return Ok(());
            }
            let listed = store.listed(&id).await?;
            store
                .free_all(&id, listed.objects, |path| path.prefix_matches(&folder))
                .await
        })
        .await
    }

    /// Marks a bundle that no Task names: from now on it is found no more, until [`Store::keep_bundle`].
    pub async fn mark_bundle(self: &Arc<Self>, id: &BundleId) -> Result<(), Error> {
        let id = id.clone();
        self.alone_with(&self.bundle_writers, &id.lock(), |store| async move {
            store.create(&id.object(LEAVING), Bytes::new()).await?;
            Ok(())
        })
        .await
    }

    /// Takes the mark away again.
    pub async fn keep_bundle(self: &Arc<Self>, id: &BundleId) -> Result<(), Error> {
        let id = id.clone();
        self.alone_with(&self.bundle_writers, &id.lock(), |store| async move {
            store.delete_if_there(&id.object(LEAVING)).await?;
            Ok(())
        })
        .await
    }

    /// Deletes a bundle that is marked still; answers whether it was.
    pub async fn delete_bundle(self: &Arc<Self>, id: &BundleId) -> Result<bool, Error> {
        let id = id.clone();
        self.alone_with(&self.bundle_writers, &id.lock(), |store| async move {
            let listed = store.listed(&id).await?;
            if !listed.leaving {
                return Ok(false);
            }
            let (whole, leaving) = (id.object(WHOLE), id.object(LEAVING));
            // In an order that leaves no bundle which seems to be whole and is not.
            let (first, rest): (Vec<_>, Vec<_>) = listed
                .objects
                .into_iter()
                .filter(|meta| meta.location != leaving)
                .partition(|meta| meta.location == whole);
            store.free_all(&id, first, |_| true).await?;
            store.free_all(&id, rest, |_| true).await?;
            store.delete_if_there(&leaving).await?;
            Ok(true)
        })
        .await
    }

    /// Bytes that the bundles of each namespace take, as far as is known.
    pub fn bundle_usage(&self) -> BTreeMap<String, u64> {
        self.usage_in(BUNDLES)
    }

    /// Takes the place of an abandoned upload, if there are too many.
    async fn begin_upload(&self, id: &BundleId, upload: &str) -> Result<(), Error> {
        let all = self.listed_bundles(&id.namespace_uid).await?;
        let mut unfinished: Vec<(i64, BundleId, String)> = all
            .into_iter()
            .filter(|(_, listed)| listed.whole.is_none())
            .flat_map(|(id, listed)| {
                let of = move |(upload, newest)| (newest, id.clone(), upload);
                listed.uploads.into_iter().map(of)
            })
            .filter(|(_, bundle, of)| bundle != id || of != upload)
            .collect();
        if unfinished.len() < UNFINISHED {
            return Ok(());
        }
        unfinished.sort();
        let Some((newest, old, of)) = unfinished.into_iter().next() else {
            return Ok(());
        };
        if age(newest) < ABANDONED {
            return Err(Error::TooManyUploads);
        }
        let folder = old.object(&of);
        let listed = self.listed(&old).await?;
        self.free_all(&old, listed.objects, |path| path.prefix_matches(&folder))
            .await
    }

    /// The folder of the upload that is the bundle: it may be another one than the last that was right.
    async fn kept(&self, id: &BundleId) -> Result<Option<Path>, Error> {
        let whole = self.read_small(&id.object(WHOLE)).await?;
        let whole = whole.as_deref().and_then(parse);
        Ok(whole.map(|whole| id.object(&whole.upload)))
    }

    /// The bytes of an upload from an offset on; it has no gaps.
    fn parts(
        self: &Arc<Self>,
        folder: Path,
        offset: u64,
    ) -> impl Stream<Item = Result<Bytes, Error>> + use<> {
        self.read_from(folder, offset).try_filter_map(async |piece| {
            Ok(match piece {
                Piece::Bytes(bytes) => Some(bytes),
                Piece::Gap(_) => None,
            })
        })
    }

    async fn listed(&self, id: &BundleId) -> Result<Listed, Error> {
        let folder = Path::from_iter([BUNDLES, id.namespace_uid.as_str(), id.bundle.as_str()]);
        let mut listed = Listed::default();
        let mut objects = self.objects.list(Some(&folder));
        while let Some(meta) = objects.try_next().await? {
            listed.note(meta);
        }
        Ok(listed)
    }

    async fn listed_bundles(&self, namespace_uid: &str) -> Result<BTreeMap<BundleId, Listed>, Error> {
        let folder = folder(&owner(checked(namespace_uid)?))?;
        let mut all: BTreeMap<BundleId, Listed> = BTreeMap::new();
        let mut objects = self.objects.list(Some(&folder));
        while let Some(meta) = objects.try_next().await? {
            let names: Vec<String> = meta
                .location
                .parts()
                .map(|name| name.as_ref().to_owned())
                .collect();
            if let [_, _, bundle, _, ..] = names.as_slice()
                && let Ok(id) = BundleId::new(namespace_uid, bundle)
            {
                all.entry(id).or_default().note(meta);
            }
        }
        Ok(all)
    }

    /// Deletes those objects of a bundle.
    async fn free_all(
        &self,
        id: &BundleId,
        objects: Vec<ObjectMeta>,
        which: impl Fn(&Path) -> bool,
    ) -> Result<(), Error> {
        for meta in objects.iter().filter(|meta| which(&meta.location)) {
            if is_mark(&meta.location) {
                self.delete_if_there(&meta.location).await?;
            } else {
                self.free(&id.owner(), &id.bundle, &meta.location, meta.size)
                    .await?;
            }
        }
        Ok(())
    }
}

impl Listed {
    /// When somebody asked for the bundle last, in seconds since 1970; `None`: it is not whole.
    fn wanted(&self) -> Option<i64> {
        let whole = self.whole.as_ref()?.last_modified.timestamp();
        Some(self.asked.unwrap_or(whole).max(whole))
    }

    fn note(&mut self, meta: ObjectMeta) {
        let at = meta.last_modified.timestamp();
        self.newest = self.newest.max(at);
        let names = meta.location.parts().skip(3);
        let names: Vec<String> = names.map(|name| name.as_ref().to_owned()).collect();
        match names.as_slice() {
            [name] if name == WHOLE => self.whole = Some(meta.clone()),
            [name] if name == LEAVING => self.leaving = true,
            [name] if name.starts_with(WANTED) => self.asked = self.asked.max(Some(at)),
            [upload, _] => {
                let newest = self.uploads.entry(upload.clone()).or_default();
                *newest = at.max(*newest);
            }
            _ => {}
        }
        self.objects.push(meta);
    }
}

/// Whether an object is the mark of a bundle. Marks are not counted: they are set where there is no room.
pub(crate) fn is_mark(path: &Path) -> bool {
    (path.parts().count() == 4 && path.filename() == Some(LEAVING)) || is_wanted(path)
}

/// Whether an object says when somebody asked for a bundle.
fn is_wanted(path: &Path) -> bool {
    path.parts().count() == 4 && path.filename().is_some_and(|name| name.starts_with(WANTED))
}

/// Whether a part belongs to another upload of the same bundle.
fn is_other_upload(path: &Path, kept: &Path) -> bool {
    path.parts().count() == 5 && !path.prefix_matches(kept)
}

fn parse(text: &[u8]) -> Option<WholeBundle> {
    let (bytes, upload) = std::str::from_utf8(text).ok()?.split_once(' ')?;
    Some(WholeBundle {
        bytes: bytes.parse().ok()?,
        upload: checked(upload).ok()?.to_owned(),
    })
}
