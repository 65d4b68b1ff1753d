//! How an object comes into being: once, whole, and never changed afterwards.
//!
//! - Of several processes that create one object exactly one may succeed. So what was decided
//!   once stays, and a process that led before and goes on after a pause writes over nothing.
//! - A bucket's answer may be lost, and the client's next try then finds the object that its first try made. So
//!   each object in a bucket carries a mark of the write that made it; a writer that finds an object there compares the mark.
//! - S3 answers 409 to a create beside another one, also where that one fails. So an object that "exists" and is
//!   not there is tried again.
//! - Some stores with the API of S3 let several such writes succeed, or refuse all of them. So before its first
//!   write to a bucket a process races against itself ([`Exclusion`]).
//!
//! A directory needs none of that: its answers are not lost, and hard links are exact. Where its file system
//! has no hard links, objects are looked for and then renamed into place.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use futures::{TryStreamExt, future::join_all};
use object_store::{
    Attribute, Attributes, GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
    path::Path,
};
use tokio::{sync::OnceCell, time::sleep};

use crate::{Error, Store, if_there};

/// The folder of the objects that are raced for.
const RACES: &str = "_races";
/// Writes of one race.
const RACERS: usize = 8;
/// Races, of which each must have one winner.
const ROUNDS: u32 = 3;
/// What a race left is deleted by a later one once it is so old: nobody races for it any more.
const LEFT: Duration = Duration::from_hours(1);
/// Tries of a create that is refused although nothing is there.
const TRIES: u32 = 6;
/// The pause after the first of them; it doubles.
const PAUSE: Duration = Duration::from_millis(50);
/// The name of the mark among an object's attributes: Azure takes letters only.
const WRITER: Attribute = Attribute::Metadata(std::borrow::Cow::Borrowed("writer"));

/// How many of several writes that create the same object succeed at the place of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exclusion {
    /// Exactly one.
    One,
    /// Several, or none.
    Several,
    /// The store does not know such writes.
    Unsupported,
}

impl Exclusion {
    /// The word for it, in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Several => "several",
            Self::Unsupported => "unsupported",
        }
    }
}

/// How a store creates objects.
#[derive(Debug)]
pub(crate) struct Creates {
    /// A random word for this process.
    process: String,
    writes: AtomicU64,
    /// Whether objects carry marks; those of a directory cannot.
    marks: bool,
    found: OnceCell<Exclusion>,
}

impl Creates {
    /// For a bucket: it is not known yet what it promises.
    pub(crate) fn of_a_bucket() -> Self {
        Self::new(true, OnceCell::new())
    }

    /// For a directory.
    pub(crate) fn of_a_directory(has_hard_links: bool) -> Self {
        let found = if has_hard_links {
            Exclusion::One
        } else {
            Exclusion::Unsupported
        };
        Self::new(false, OnceCell::new_with(Some(found)))
    }

    /// For objects in memory.
    pub(crate) fn exact() -> Self {
        Self::new(true, OnceCell::new_with(Some(Exclusion::One)))
    }

    fn new(marks: bool, found: OnceCell<Exclusion>) -> Self {
        Self {
            process: format!("{:016x}{:016x}", random(), random()),
            writes: AtomicU64::new(0),
            marks,
            found,
        }
    }

    /// Another mark for each write.
    fn mark(&self) -> String {
        let write = self.writes.fetch_add(1, Ordering::Relaxed);
        format!("{}-{write}", self.process)
    }

    /// Tries once to create an object: whether this write made it; `None`: it was refused, and nothing is there.
    async fn attempt(
        &self,
        objects: &Arc<dyn ObjectStore>,
        path: &Path,
        bytes: &Bytes,
    ) -> object_store::Result<Option<bool>> {
        let mark = self.mark();
        let mut options = PutOptions::from(PutMode::Create);
        if self.marks {
            options.attributes = Attributes::from_iter([(WRITER, mark.clone())]);
        }
        let written = objects.put_opts(path, PutPayload::from_bytes(bytes.clone()), options);
        match written.await {
            Ok(_) => Ok(Some(true)),
            Err(object_store::Error::AlreadyExists { .. }) if self.marks => {
                match objects.get_opts(path, GetOptions::new().with_head(true)).await {
                    Ok(found) => {
                        let writer = found.attributes.get(&WRITER);
                        Ok(Some(writer.is_some_and(|writer| **writer == *mark)))
                    }
                    Err(object_store::Error::NotFound { .. }) => Ok(None),
                    Err(error) => Err(error),
                }
            }
            Err(object_store::Error::AlreadyExists { .. }) => Ok(Some(false)),
            Err(error) => Err(error),
        }
    }

    /// Creates an object; answers whether it was not there yet.
    async fn create(&self, objects: &Arc<dyn ObjectStore>, path: &Path, bytes: Bytes) -> Result<bool, Error> {
        let exclusion = *self.found.get_or_try_init(|| self.race(objects)).await?;
        // Where creates are not exact, a look keeps all but two writes at the same moment apart.
        if exclusion != Exclusion::One && if_there(objects.head(path).await)?.is_some() {
            return Ok(false);
        }
        if exclusion == Exclusion::Unsupported {
            objects.put(path, PutPayload::from_bytes(bytes)).await?;
            return Ok(true);
        }
        for attempt in 0..TRIES {
            if let Some(is_ours) = self.attempt(objects, path, &bytes).await? {
                return Ok(is_ours);
            }
            sleep(PAUSE * 2_u32.pow(attempt)).await;
        }
        Err(Error::Contended)
    }

    /// Lets several writes create the same object, a few times over.
    async fn race(&self, objects: &Arc<dyn ObjectStore>) -> Result<Exclusion, Error> {
        for _ in 0..ROUNDS {
            // Another name for each round: a write of a race before, which had no answer, may still be on its way.
            let path = Path::from_iter([RACES, self.mark().as_str()]);
            let bytes = Bytes::from_static(b"race");
            let racers = (0..RACERS).map(|_| self.attempt(objects, &path, &bytes));
            let (mut winners, mut is_unknown, mut failure) = (0, false, None);
            for outcome in join_all(racers).await {
                match outcome {
                    Ok(Some(true)) => winners += 1,
                    Ok(Some(false) | None) => {}
                    Err(error) => {
                        is_unknown |= is_unsupported(&error);
                        failure = Some(error);
                    }
                }
            }
            // A failure leaves a few bytes, which a later race deletes.
            let _ = objects.delete(&path).await;
            match (winners, failure) {
                (1, _) => {}
                (0, Some(_)) if is_unknown => return Ok(Exclusion::Unsupported),
                // Nobody won because the store did not answer: nothing is known.
                (0, Some(error)) => return Err(error.into()),
                _ => return Ok(Exclusion::Several),
            }
        }
        clear(objects).await;
        Ok(Exclusion::One)
    }
}

/// Deletes what races left whose answers were lost. What stays here goes after the next start.
async fn clear(objects: &Arc<dyn ObjectStore>) {
    let races = Path::from(RACES);
    let mut listed = objects.list(Some(&races));
    while let Ok(Some(left)) = listed.try_next().await {
        let seconds = u64::try_from(left.last_modified.timestamp()).unwrap_or_default();
        let age = SystemTime::now().duration_since(UNIX_EPOCH + Duration::from_secs(seconds));
        if age.is_ok_and(|age| age > LEFT) && objects.delete(&left.location).await.is_err() {
            return;
        }
    }
}

fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Whether the store says that it does not know writes that only create.
fn is_unsupported(error: &object_store::Error) -> bool {
    matches!(error, object_store::Error::NotImplemented { .. }) || crate::error::status(error) == Some(501)
}

impl Store {
    /// Writes an object that is never changed; answers whether it was not there yet.
    pub(crate) async fn create(&self, path: &Path, bytes: Bytes) -> Result<bool, Error> {
        self.creates.create(&self.objects, path, bytes).await
    }

    /// How many of several writes that create the same object succeed here. The first call finds out, by a race.
    pub async fn exclusion(&self) -> Result<Exclusion, Error> {
        let race = || self.creates.race(&self.objects);
        self.creates.found.get_or_try_init(race).await.copied()
    }

    /// The same, if it is known already.
    pub fn known_exclusion(&self) -> Option<Exclusion> {
        self.creates.found.get().copied()
    }
}
