//! Remembers objects that we wrote while the cache still shows their older versions.
//!
//! A watch lags behind a write by some milliseconds. A reconcile that starts in between
//! would plan on the old object and be refused with a conflict; with this it goes on from
//! the answer to its own write. Only a hint: losing it costs a refused write.

use std::{collections::HashMap, sync::Arc};

use kube::{Resource, ResourceExt};
use parking_lot::Mutex;
use skyward_planner::base::key::{Key, key_of};

/// Versions that are remembered as replaced, for each object.
const REMEMBERED: usize = 32;

/// Our latest write of each object.
pub struct Newest<K>(Mutex<HashMap<Key, Written<K>>>);

struct Written<K> {
    object: Arc<K>,
    replaced: Vec<String>,
}

impl<K> Default for Newest<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Resource<DynamicType = ()>> Newest<K> {
    /// The newer of what the cache shows and what we wrote.
    pub fn of(&self, cached: Arc<K>) -> Arc<K> {
        let mut written = self.0.lock();
        let key = key_of(cached.as_ref());
        let version = cached.resource_version().unwrap_or_default();
        match written.get(&key) {
            Some(ours) if ours.object.uid() == cached.uid() && ours.replaced.contains(&version) => {
                ours.object.clone()
            }
            Some(_) => {
                written.remove(&key);
                cached
            }
            None => cached,
        }
    }

    /// The newer of the two, to be written from.
    pub(crate) fn record(&self, cached: Arc<K>) -> Record<'_, K> {
        Record {
            object: self.of(cached),
            newest: self,
        }
    }

    /// We replaced `before` by `after`.
    pub fn wrote(&self, before: &K, after: Arc<K>) {
        let mut written = self.0.lock();
        let key = key_of(before);
        let mut replaced = written.remove(&key).map(|ours| ours.replaced).unwrap_or_default();
        replaced.extend(before.resource_version());
        if replaced.len() > REMEMBERED {
            replaced.remove(0);
        }
        written.insert(
            key,
            Written {
                object: after,
                replaced,
            },
        );
    }

    /// The object is gone.
    pub fn forget(&self, key: &Key) {
        self.0.lock().remove(key);
    }
}

/// An object while it is reconciled: as it was read, or as we wrote it last.
pub(crate) struct Record<'a, K> {
    object: Arc<K>,
    newest: &'a Newest<K>,
}

impl<K: Resource<DynamicType = ()>> Record<'_, K> {
    /// The newest version that is known.
    pub(crate) const fn object(&self) -> &Arc<K> {
        &self.object
    }

    /// We replaced it by this.
    pub(crate) fn wrote(&mut self, fresh: K) {
        let fresh = Arc::new(fresh);
        self.newest.wrote(&self.object, fresh.clone());
        self.object = fresh;
    }
}

#[cfg(test)]
mod tests {
    use skyward_api::Pool;

    use super::*;

    fn pool(version: &str) -> Arc<Pool> {
        let spec = serde_json::from_value(serde_json::json!({ "provider": "local" })).unwrap();
        let mut pool = Pool::new("train", spec);
        pool.metadata.namespace = Some("team".into());
        pool.metadata.uid = Some("uid".into());
        pool.metadata.resource_version = Some(version.into());
        Arc::new(pool)
    }

    #[test]
    fn a_lagging_cache_shows_our_write_and_a_newer_one_wins() {
        let newest: Newest<Pool> = Newest::default();
        newest.wrote(pool("1").as_ref(), pool("2"));
        newest.wrote(pool("2").as_ref(), pool("3"));
        assert_eq!(newest.of(pool("1")).resource_version().as_deref(), Some("3"));
        assert_eq!(newest.of(pool("2")).resource_version().as_deref(), Some("3"));
        assert_eq!(newest.of(pool("7")).resource_version().as_deref(), Some("7"));
    }
}
