//! Caches of our objects, filled by watches that `runtime` starts.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;
use kube::{
    core::PartialObjectMeta,
    runtime::reflector::{self, ObjectRef},
};
use skyward_api::{CronTask, Machine, Offer, Pool, Provider as ProviderObject};
use skyward_planner::base::key::Key;

use crate::guard::Unreadable;

/// The caches.
#[derive(Clone)]
pub struct Caches {
    /// Pools.
    pub pools: reflector::Store<Pool>,
    /// Machines.
    pub machines: reflector::Store<Machine>,
    /// Providers.
    pub providers: reflector::Store<ProviderObject>,
    /// Offers.
    pub offers: reflector::Store<Offer>,
    /// CronTasks.
    pub cron_tasks: reflector::Store<CronTask>,
    /// Namespaces.
    pub namespaces: reflector::Store<PartialObjectMeta<Namespace>>,
    /// Machines whose records cannot be read.
    pub unreadable: Arc<Unreadable>,
}

impl Caches {
    /// The Pool of that namespace and name.
    pub fn pool(&self, key: &Key) -> Option<Arc<Pool>> {
        self.pools.get(&ObjectRef::new(&key.name).within(&key.namespace))
    }

    /// The Machine of that namespace and name.
    pub fn machine(&self, key: &Key) -> Option<Arc<Machine>> {
        self.machines
            .get(&ObjectRef::new(&key.name).within(&key.namespace))
    }

    /// The UID of that namespace.
    pub fn namespace_uid(&self, name: &str) -> Option<String> {
        self.namespaces.get(&ObjectRef::new(name))?.metadata.uid.clone()
    }

    /// Returns the Provider with that name, as the watch showed it last.
    pub fn provider(&self, name: &str) -> Option<Arc<ProviderObject>> {
        self.providers.get(&ObjectRef::new(name))
    }

    /// The Machines of a Provider, also those of other installations.
    pub fn machines_at(&self, provider: &str) -> Vec<Arc<Machine>> {
        self.machines
            .state_filter(|machine| machine.spec.provider == provider)
    }
}
