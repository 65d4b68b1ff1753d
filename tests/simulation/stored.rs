//! The result store as one process uses it. Writes of the logs of maps wait for their turn, may be lost, and are looked
//! at: only the process whose mark is the newest in a log appends to it, and no object of a log is written over.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use futures::stream::BoxStream;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt as _, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
    memory::InMemory, path::Path,
};

use crate::{
    calls::{Luck, To, Way},
    planted::Fault,
};

/// Objects in memory, for one process.
pub(crate) struct Stored {
    way: Arc<Way>,
    objects: Arc<InMemory>,
}

impl Stored {
    pub(crate) fn new(way: Arc<Way>) -> Arc<Self> {
        let objects = way.world.store.clone();
        Arc::new(Self { way, objects })
    }
}

impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stored")
    }
}

impl fmt::Display for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("objects in memory")
    }
}

fn lost() -> object_store::Error {
    object_store::Error::Generic {
        store: "simulated",
        source: "no answer".into(),
    }
}

/// The map and the number of the write whose object has that path; `None`: it has several writes, or is of no log.
fn write_of(path: &Path) -> Option<(String, u64)> {
    let text = path.to_string();
    let parts: Vec<&str> = text.split('/').collect();
    let [uid, "_map", "log", name] = parts[..] else {
        return None;
    };
    let (first, last) = name.split_once('-')?;
    if first != last {
        return None;
    }
    Some((uid.to_owned(), first.parse().ok()?))
}

#[async_trait]
impl ObjectStore for Stored {
    async fn put_opts(&self, path: &Path, bytes: PutPayload, mut options: PutOptions) -> Result<PutResult> {
        let Some((map, number)) = write_of(path) else {
            return self.objects.put_opts(path, bytes, options).await;
        };
        let turn = self
            .way
            .turn(format!("write {number} of map {map}"), To::Store, true);
        let (name, luck) = turn.await;
        let world = &self.way.world;
        if matches!(luck, Luck::Refused(_) | Luck::LostBefore) {
            world.truth().tell(format!("{name} is lost"));
            return Err(lost());
        }
        let planted = world.truth().planted;
        if planted == Some(Fault::LogOverwritten) {
            options.mode = PutMode::Overwrite;
        }
        let is_there = self.objects.head(path).await.is_ok();
        let done = if planted == Some(Fault::LogUnwritten) && number > 0 {
            let elsewhere = Path::from("unwritten");
            self.objects
                .put_opts(&elsewhere, bytes, PutOptions::default())
                .await
        } else {
            self.objects.put_opts(path, bytes, options).await
        };
        let words = if done.is_ok() { "" } else { ": it is there" };
        world.truth().tell(format!("{name}{words}{}", luck.words()));
        if done.is_ok() {
            world.may_append(self.way.process, &map, number, is_there);
        }
        if self.way.answered(luck).await {
            return Err(lost());
        }
        done
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.objects.get_opts(path, options).await
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.objects.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.objects.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.objects.copy_opts(from, to, options).await
    }
}
