//! Takes room before anything is written: the effects around `ledger.rs`.

use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use parking_lot::Mutex;

use crate::{
    Error, Store,
    bootstraps::{folder, is_task},
    bundles::is_mark,
    ledger::{Class, Found, Held, Ledger, RUN, Refusal, Space, TASK},
    quota::Quota,
    volume::Volume,
};

/// The file that names the namespace of a Task.
const LABEL: &str = "namespace";
/// Owners whose objects are listed at the same time: a bucket answers after some ten milliseconds.
const LISTS: usize = 16;
/// Files that one write takes at most, with the folders of its run and Task.
const LITTLE: u64 = TASK.files + RUN.files + 1;

/// The accounts, and the room of the volume.
pub(crate) struct Room {
    ledger: Arc<Mutex<Ledger>>,
    pub(crate) quota: Quota,
    pub(crate) volume: Option<Arc<dyn Volume>>,
    /// Most bytes in a bucket, which has no size of its own.
    pub(crate) size: Option<u64>,
}

impl Room {
    pub(crate) fn new(volume: Option<Arc<dyn Volume>>) -> Self {
        Self {
            ledger: Arc::default(),
            quota: Quota::default(),
            volume,
            size: None,
        }
    }

    /// `None`: not known, so nothing is refused for want of it.
    async fn space(&self) -> Option<Space> {
        if let Some(total) = self.size {
            let written = self.ledger.lock().written();
            return Some(Space {
                total,
                free: total.saturating_sub(written.bytes),
                files: 0,
                files_free: 0,
            });
        }
        let volume = self.volume.clone()?;
        tokio::task::spawn_blocking(move || volume.space())
            .await
            .ok()?
            .ok()
    }
}

/// Room that was taken for a write. Dropped before [`Taken::written`], it stays counted until
/// the Task's files are looked at again: a write whose answer is lost may have happened.
pub(crate) struct Taken {
    ledger: Arc<Mutex<Ledger>>,
    task: Box<str>,
    run: Box<str>,
    object: Held,
    written: bool,
}

impl Taken {
    pub(crate) fn written(mut self) {
        self.written = true;
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.ledger
            .lock()
            .settle((&self.task, &self.run), self.object, self.written);
    }
}

impl Store {
    /// Notes the namespace of a Task, before its data is written: that namespace is charged. The
    /// call is cheap, and may be repeated.
    pub fn charge(&self, task_uid: &str, namespace: &str) {
        self.room.ledger.lock().charge(task_uid, namespace);
    }

    /// Bytes that each namespace holds, as far as is known.
    pub fn usage(&self) -> std::collections::BTreeMap<String, u64> {
        let usage = self.room.ledger.lock().usage();
        usage
            .into_iter()
            .map(|(namespace, held)| (namespace, held.bytes))
            .collect()
    }

    /// Bytes that each namespace holds in one of the folders beside those of Tasks.
    pub(crate) fn usage_in(&self, folder: &str) -> std::collections::BTreeMap<String, u64> {
        self.room.ledger.lock().usage_in(folder)
    }

    /// Tasks of a namespace of which something is stored, as far as is known.
    pub fn tasks_of(&self, namespace: &str) -> Vec<String> {
        let mut owners = self.room.ledger.lock().tasks_of(namespace);
        owners.retain(|owner| is_task(owner));
        owners
    }

    /// Whether the store would take so many more bytes of a run now.
    pub async fn has_room(
        &self,
        task_uid: &str,
        run_id: &str,
        bytes: u64,
        class: Class,
    ) -> Result<(), Error> {
        if self.room.ledger.lock().due(task_uid).count {
            self.look_at(task_uid).await?;
        }
        let space = self.room.space().await;
        let looked = self.room.ledger.lock().look(
            (task_uid, run_id),
            Held::object(bytes),
            class,
            self.room.quota,
            space,
        );
        Ok(looked?)
    }

    /// Takes room for an object of a run that is about to be written, or for the growth of one.
    pub(crate) async fn take(
        &self,
        task_uid: &str,
        run_id: &str,
        object: Held,
        class: Class,
    ) -> Result<Taken, Error> {
        if self.room.ledger.lock().due(task_uid).count {
            self.look_at(task_uid).await?;
        }
        let space = self.room.space().await;
        self.room
            .ledger
            .lock()
            .take((task_uid, run_id), object, class, self.room.quota, space)?;
        let taken = Taken {
            ledger: self.room.ledger.clone(),
            task: task_uid.into(),
            run: run_id.into(),
            object,
            written: false,
        };
        self.label(task_uid).await?;
        Ok(taken)
    }

    /// Counts the stored bytes of Tasks that this process has not counted yet, a few at a time,
    /// and forgets Tasks of which nothing is stored. Until then namespaces seem to hold less
    /// than they do. A Task that cannot be counted is skipped; one such error is returned.
    pub async fn count(&self) -> Result<(), Error> {
        self.room.ledger.lock().tidy();
        let mut owners = self.owners().await?;
        owners.retain(|uid| !self.room.ledger.lock().knows(uid));
        let counts = owners.into_iter().map(|uid| self.count_one(uid));
        let mut counted = futures::stream::iter(counts).buffer_unordered(LISTS);
        let mut result = Ok(());
        while let Some(one) = counted.next().await {
            if one.is_err() {
                result = one;
            }
        }
        result
    }

    async fn count_one(&self, uid: String) -> Result<(), Error> {
        self.look_at(&uid).await?;
        // Deleted while we looked: the files that we saw are gone.
        if matches!(self.age_of(&uid).await, Ok(None)) {
            self.room.ledger.lock().remove(&uid);
        }
        Ok(())
    }

    /// Whether an older version stored data of a Task without its namespace.
    pub fn is_nobodys(&self, task_uid: &str) -> bool {
        self.room.ledger.lock().is_nobodys(task_uid)
    }

    /// Stores the namespace of such a Task durably.
    pub async fn adopt(&self, task_uid: &str, namespace: &str) -> Result<(), Error> {
        self.charge(task_uid, namespace);
        self.label(task_uid).await
    }

    /// Gives back the room of a run's objects that were deleted.
    pub(crate) fn give_back(&self, task_uid: &str, run_id: &str, objects: Held) {
        self.room.ledger.lock().give_back((task_uid, run_id), objects);
    }

    /// A change of a run's objects failed half-way: they are looked at again before the next write.
    pub(crate) fn recount(&self, task_uid: &str, run_id: &str) {
        let nothing = Held::default();
        self.room.ledger.lock().settle((task_uid, run_id), nothing, false);
    }

    /// Forgets a Task whose stored data is gone.
    pub(crate) fn forget(&self, task_uid: &str) {
        self.room.ledger.lock().remove(task_uid);
    }

    /// Looks at the files of one Task.
    async fn look_at(&self, task_uid: &str) -> Result<(), Error> {
        let folder = folder(task_uid)?;
        let (uid, label) = (task_uid, label_path(task_uid)?);
        let runs_at = folder.parts().count();
        let mut found = Found::default();
        let mut listed = self.objects.list(Some(&folder));
        while let Some(meta) = listed.try_next().await? {
            if meta.location == label {
                found.label();
            } else if !is_mark(&meta.location) {
                let run = meta.location.parts().nth(runs_at);
                found.object(run.as_ref().map_or("", AsRef::as_ref), meta.size);
            }
        }
        if found.is_labelled() && self.room.ledger.lock().due(uid).label.is_none() {
            let name = self.read_small(&label).await?;
            if let Some(Ok(namespace)) = name.as_deref().map(std::str::from_utf8) {
                self.charge(uid, namespace);
            }
        }
        self.room.ledger.lock().counted(uid, &found);
        Ok(())
    }

    /// Writes the file that names a Task's namespace, if there is none yet.
    async fn label(&self, task_uid: &str) -> Result<(), Error> {
        let Some(namespace) = self.room.ledger.lock().due(task_uid).label else {
            return Ok(());
        };
        let name = Bytes::copy_from_slice(namespace.as_bytes());
        self.create(&label_path(task_uid)?, name).await?;
        self.room.ledger.lock().labelled(task_uid);
        Ok(())
    }
}

fn label_path(owner: &str) -> Result<Path, Error> {
    Ok(folder(owner)?.join(LABEL))
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        let Refusal::Namespace {
            namespace,
            used,
            quota,
        } = refusal
        else {
            return Self::Kept;
        };
        let namespace = namespace.to_string();
        if used.files.saturating_add(LITTLE) >= quota.files {
            let (used, quota) = (used.files, quota.files);
            Self::TooManyFiles {
                namespace,
                used,
                quota,
            }
        } else {
            let (used, quota) = (used.bytes, quota.bytes);
            Self::QuotaExceeded {
                namespace,
                used,
                quota,
            }
        }
    }
}
