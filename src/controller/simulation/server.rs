//! The API server: objects with versions; a deletion waits for finalizers.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Resource, ResourceExt};
use skyward_api::{Machine, Pool, Provider};

/// Why a write is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// The object changed meanwhile.
    Conflict,
    /// There is no such object.
    NotFound,
    /// There is one already.
    Exists,
    /// The answer is lost: the write may have happened.
    Lost,
}

/// Everything that is stored.
#[derive(Clone, Default)]
pub(super) struct Server {
    /// Grows with each write.
    pub(super) version: u64,
    pub(super) pools: Shelf<Pool>,
    pub(super) machines: Shelf<Machine>,
    pub(super) providers: Shelf<Provider>,
    /// SSH keys of Pools: UID of the Pool, UID of the Secret.
    pub(super) keys: BTreeMap<String, String>,
}

/// Objects of one kind, by name.
#[derive(Clone)]
pub(super) struct Shelf<K>(pub(super) BTreeMap<String, Arc<K>>);

impl<K> Default for Shelf<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Resource<DynamicType = ()> + Clone> Shelf<K> {
    pub(super) fn get(&self, name: &str) -> Option<Arc<K>> {
        self.0.get(name).cloned()
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    pub(super) fn create(
        &mut self,
        clock: &mut u64,
        mut object: K,
        now: Timestamp,
    ) -> Result<Arc<K>, Refused> {
        let name = object.name_any();
        if self.0.contains_key(&name) {
            return Err(Refused::Exists);
        }
        *clock += 1;
        let meta = object.meta_mut();
        meta.uid = Some(format!("{clock:05}"));
        meta.resource_version = Some(clock.to_string());
        meta.generation = Some(1);
        meta.creation_timestamp = Some(Time(now));
        let object = Arc::new(object);
        self.0.insert(name, object.clone());
        Ok(object)
    }

    /// A write with the version that its writer has seen.
    pub(super) fn write(
        &mut self,
        clock: &mut u64,
        base: &K,
        change: impl FnOnce(&mut K),
    ) -> Result<Arc<K>, Refused> {
        let name = base.name_any();
        let stored = self
            .0
            .get(&name)
            .filter(|stored| stored.uid() == base.uid())
            .ok_or(Refused::NotFound)?;
        if stored.resource_version() != base.resource_version() {
            return Err(Refused::Conflict);
        }
        self.change(clock, &name, change)
    }

    /// A write without a version, as people make it.
    pub(super) fn change(
        &mut self,
        clock: &mut u64,
        name: &str,
        change: impl FnOnce(&mut K),
    ) -> Result<Arc<K>, Refused> {
        let mut object = (**self.0.get(name).ok_or(Refused::NotFound)?).clone();
        change(&mut object);
        *clock += 1;
        object.meta_mut().resource_version = Some(clock.to_string());
        let object = Arc::new(object);
        let is_over = object.meta().deletion_timestamp.is_some() && object.finalizers().is_empty();
        if is_over {
            self.0.remove(name);
        } else {
            self.0.insert(name.to_owned(), object.clone());
        }
        Ok(object)
    }

    /// Asks for its deletion; with a UID only of the object with that UID.
    pub(super) fn delete(&mut self, clock: &mut u64, name: &str, uid: Option<&str>, now: Timestamp) {
        let is_meant = |object: &Arc<K>| uid.is_none_or(|uid| object.uid().as_deref() == Some(uid));
        let is_new = |object: &Arc<K>| object.meta().deletion_timestamp.is_none();
        if self
            .0
            .get(name)
            .is_some_and(|object| is_meant(object) && is_new(object))
        {
            let _gone = self.change(clock, name, |object| {
                object.meta_mut().deletion_timestamp = Some(Time(now));
            });
        }
    }
}
