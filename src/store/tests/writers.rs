//! Two writers of one run: the copy of a running log and the collection of an ended one overlap.

use std::{collections::VecDeque, time::Duration};

use async_trait::async_trait;
use futures::stream::BoxStream;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, memory::InMemory, path::Path,
};
use parking_lot::Mutex;
use tokio::time::{sleep, timeout};

use super::*;

/// An object store in which each write takes the next of these times. As with a local directory, a write
/// goes on although nobody waits for it any more.
#[derive(Debug)]
struct Slow {
    objects: Arc<InMemory>,
    writes: Mutex<VecDeque<Duration>>,
}

impl std::fmt::Display for Slow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Slow")
    }
}

#[async_trait]
impl ObjectStore for Slow {
    async fn put_opts(&self, path: &Path, bytes: PutPayload, options: PutOptions) -> Result<PutResult> {
        let takes = self.writes.lock().pop_front().unwrap_or_default();
        let (objects, path) = (self.objects.clone(), path.clone());
        let write = async move {
            sleep(takes).await;
            objects.put_opts(&path, bytes, options).await
        };
        tokio::spawn(write).await.unwrap()
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

/// A store whose writes take so many seconds, one after the other.
fn slow(writes: &[u64]) -> Arc<Store> {
    Arc::new(Store::over(Arc::new(Slow {
        objects: Arc::default(),
        writes: Mutex::new(writes.iter().copied().map(Duration::from_secs).collect()),
    })))
}

async fn put(store: &Arc<Store>, bytes: &'static str) -> Result<u64, Error> {
    store.put_log_segment(TASK, RUN_ID, 0, bytes.into()).await
}

#[tokio::test(start_paused = true)]
async fn of_two_writers_at_once_neither_takes_away_what_the_other_stored() {
    for (one, two) in [("abc", "abcdef"), ("abcdef", "abc")] {
        // The write that begins first ends last.
        let store = slow(&[5, 1]);
        let (first, second) = tokio::join!(put(&store, one), put(&store, two));
        assert_eq!(first.unwrap().max(second.unwrap()), 6);
        assert_eq!(log(&store, 0).await, b"abcdef");
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_that_nobody_waits_for_any_more_ends_before_the_next_one_begins() {
    let store = slow(&[90, 0]);
    assert!(
        timeout(Duration::from_secs(60), put(&store, "abc"))
            .await
            .is_err()
    );
    assert_eq!(put(&store, "abcdef").await.unwrap(), 6);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(log(&store, 0).await, b"abcdef");
}
