//! Caches of our objects, filled by watches that `runtime` starts.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;
use kube::{core::PartialObjectMeta, runtime::reflector};
use skyward_api::{Machine, Offer, Pool, Provider as ProviderObject};

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
    /// Namespaces; the Pool controller watches them.
    pub namespaces: reflector::Store<PartialObjectMeta<Namespace>>,
    /// Machines whose records cannot be read.
    pub unreadable: Arc<Unreadable>,
}
