//! One change of a run's pieces at a time. The copy of a running log and the collection of the ended
//! run overlap, and each change consists of a look at what is stored and writes that follow from it: of
//! two changes at once, one would replace pieces with shorter ones and leave a hole behind them.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use tokio::sync::Mutex;

use crate::{Error, Store};

/// Runs, and bundles apart from them, share this many locks.
const LOCKS: u64 = 256;

/// The locks of runs, or of bundles.
pub(crate) struct Writers(Vec<Arc<Mutex<()>>>);

impl Writers {
    pub(crate) fn new() -> Self {
        Self((0..LOCKS).map(|_| Arc::default()).collect())
    }

    fn lock_of(&self, id: &str) -> Arc<Mutex<()>> {
        let mut hasher = DefaultHasher::new();
        id.hash(&mut hasher);
        let at = usize::try_from(hasher.finish() % LOCKS).unwrap_or_default();
        self.0[at].clone()
    }
}

impl Store {
    /// Changes the pieces of a run when no other change of them is under way. A change that has begun
    /// goes on although its caller stops waiting, because its write to a directory does so too and
    /// must not meet the next one.
    pub(crate) async fn alone<T, F>(
        self: &Arc<Self>,
        run_id: &str,
        change: impl FnOnce(Arc<Self>) -> F,
    ) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        self.alone_with(&self.writers, run_id, change).await
    }

    /// The same for what else has locks.
    pub(crate) async fn alone_with<T, F>(
        self: &Arc<Self>,
        writers: &Writers,
        id: &str,
        change: impl FnOnce(Arc<Self>) -> F,
    ) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        // The wait for a turn ends with its caller: callers of a volume that hangs must not pile up.
        let turn = writers.lock_of(id).lock_owned().await;
        let change = change(Arc::clone(self));
        let changed = tokio::spawn(async move {
            let _turn = turn;
            change.await
        });
        changed.await.map_err(object_store::Error::from)?
    }
}
