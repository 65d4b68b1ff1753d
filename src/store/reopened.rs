//! A bucket whose keys change while the operator runs: the folder with them is looked at again every few seconds, and the
//! bucket is opened anew when its files are others. Calls that are under way end with the keys that they began with.
//!
//! Keys that cannot be read, or with which the bucket cannot be opened, change nothing: the bucket's own answer says
//! that the old ones no longer hold.

use std::{fmt, ops::Range, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, path::Path,
};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::Error;

/// Between two looks at the keys.
const LOOK: Duration = Duration::from_secs(10);

/// Reads keys.
type Read<K> = Box<dyn Fn() -> Result<K, Error> + Send + Sync>;
/// Opens the bucket with keys.
type Open<K> = Box<dyn Fn(&K) -> Result<Arc<dyn ObjectStore>, Error> + Send + Sync>;

/// The bucket with the keys that were read last.
pub(crate) struct Reopened<K> {
    read: Read<K>,
    open: Open<K>,
    last: Mutex<Last<K>>,
}

struct Last<K> {
    keys: K,
    looked: Instant,
    objects: Arc<dyn ObjectStore>,
}

impl<K: PartialEq> Reopened<K> {
    /// Reads the keys and opens the bucket.
    pub(crate) fn new(read: Read<K>, open: Open<K>) -> Result<Self, Error> {
        let keys = read()?;
        let objects = open(&keys)?;
        let looked = Instant::now();
        Ok(Self {
            read,
            open,
            last: Mutex::new(Last {
                keys,
                looked,
                objects,
            }),
        })
    }

    fn objects(&self) -> Arc<dyn ObjectStore> {
        let mut last = self.last.lock();
        if last.looked.elapsed() >= LOOK {
            last.looked = Instant::now();
            if let Ok(keys) = (self.read)()
                && keys != last.keys
                && let Ok(objects) = (self.open)(&keys)
            {
                last.keys = keys;
                last.objects = objects;
            }
        }
        last.objects.clone()
    }
}

// Keys are shown nowhere.
impl<K> fmt::Debug for Reopened<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reopened").finish_non_exhaustive()
    }
}

impl<K> fmt::Display for Reopened<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.last.lock().objects)
    }
}

#[async_trait]
impl<K: PartialEq + Send + Sync + 'static> ObjectStore for Reopened<K> {
    async fn put_opts(&self, path: &Path, bytes: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.objects().put_opts(path, bytes, options).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.objects().put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.objects().get_opts(path, options).await
    }

    async fn get_ranges(&self, path: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.objects().get_ranges(path, ranges).await
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.objects().delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.objects().list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.objects().list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.objects().copy_opts(from, to, options).await
    }
}

#[cfg(test)]
mod tests {
    use object_store::{ObjectStoreExt, memory::InMemory};
    use tokio::time::advance;

    use super::*;

    /// Buckets with keys of that number; none is opened with 0, and a negative number cannot be read.
    fn with(keys: &Arc<Mutex<i32>>) -> (Reopened<i32>, Arc<Mutex<Vec<i32>>>) {
        let opened: Arc<Mutex<Vec<i32>>> = Arc::default();
        let (file, log) = (keys.clone(), opened.clone());
        let read: Read<i32> = Box::new(move || match *file.lock() {
            number if number < 0 => Err(Error::Misnamed("it cannot be read".to_owned())),
            number => Ok(number),
        });
        let open: Open<i32> = Box::new(move |number: &i32| {
            if *number == 0 {
                return Err(Error::Misnamed("no keys".to_owned()));
            }
            log.lock().push(*number);
            Ok(Arc::new(InMemory::new()) as Arc<dyn ObjectStore>)
        });
        (Reopened::new(read, open).unwrap(), opened)
    }

    #[tokio::test(start_paused = true)]
    async fn a_bucket_is_opened_again_when_its_keys_are_others_and_not_more_often() {
        let keys = Arc::new(Mutex::new(1));
        let (bucket, opened) = with(&keys);
        let path = Path::from("a");
        bucket.put(&path, "x".into()).await.unwrap();
        advance(LOOK).await;
        bucket.head(&path).await.unwrap();
        assert_eq!(*opened.lock(), [1], "they are the same");
        *keys.lock() = 2;
        bucket.head(&path).await.unwrap();
        assert_eq!(*opened.lock(), [1], "it was looked at a moment ago");
        advance(LOOK).await;
        assert!(bucket.head(&path).await.is_err(), "that is another one");
        assert_eq!(*opened.lock(), [1, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn keys_that_cannot_be_read_or_used_leave_the_bucket_as_it_is() {
        let keys = Arc::new(Mutex::new(1));
        let (bucket, opened) = with(&keys);
        let path = Path::from("a");
        bucket.put(&path, "x".into()).await.unwrap();
        for wrong in [-1, 0] {
            *keys.lock() = wrong;
            advance(LOOK).await;
            bucket.head(&path).await.unwrap();
        }
        *keys.lock() = 3;
        advance(LOOK).await;
        assert!(bucket.head(&path).await.is_err());
        assert_eq!(*opened.lock(), [1, 3]);
    }

    #[test]
    fn keys_are_shown_nowhere() {
        let (bucket, _) = with(&Arc::new(Mutex::new(424_242)));
        assert!(!format!("{bucket:?} {bucket}").contains("424242"));
    }
}
