//! The state that all controllers share. Nothing here decides anything.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Resource as _, ResourceExt};
use skyward_api::{Provider as ProviderObject, machine::MachineSpec, offer::Architecture};
use skyward_core::{Capabilities, CredentialKey, Credentials, Provider, ProviderError, Scope};
use skyward_planner::{base::key::Key, pool::resolved::ResolvedPools, records::is_of};
use skyward_remote::Connections;
use skyward_store::Store;
use tokio_util::sync::CancellationToken;

use crate::{
    accounts::{clients::Accounts, fleet::Fleet, offers::Offers, unavailable::UnavailableCache},
    base::{broadcast::Broadcast, queue::WorkQueue},
    caches::Caches,
    config::Config,
    events::Events,
    health::Health,
    hints::pool_loads::PoolLoads,
    leadership::step_down::StepDown,
    metrics::{Metrics, Sources},
    panics::Panics,
    references::References,
    restore::{Holds, seal::Seal},
    uploads::Uploads,
};

/// Makes the client of an account from its Provider object (given by `main.rs`, the
/// only place that knows both the registry of clouds and the controllers).
pub type ProviderFactory =
    Arc<dyn Fn(&ProviderObject, &Credentials) -> Result<Arc<dyn Provider>, ProviderError> + Send + Sync>;

/// The capabilities of a kind of provider, known before an account of it answers.
pub type KnownCapabilities = fn(&str) -> Option<&'static Capabilities>;

/// Keys of the Secret of a kind of provider, known before a Secret exists.
pub type KnownKeys = fn(&str) -> &'static [CredentialKey];

/// Shared by all controllers of one process, while it leads.
#[derive(Clone)]
pub struct Context {
    /// Client of the API server.
    pub client: kube::Client,
    /// Settings.
    pub config: Arc<Config>,
    /// Id of this installation: `--installation-id`, else the UID of the namespace kube-system.
    pub cluster: String,
    /// The id of installations that set none, and of records that name none.
    pub unnamed_cluster: String,
    /// The leader's epoch: grows with each new leader; agents refuse older ones.
    pub epoch: u64,
    /// Makes and checks the proofs of our epochs.
    pub seal: Seal,
    /// Evidence that this cluster has forgotten machines, and the Providers that are held for it.
    pub holds: Arc<Holds>,
    /// Connections to machines.
    pub sessions: Arc<dyn Connections>,
    /// Logs and results.
    pub store: Arc<Store>,
    /// What dispatchers know.
    pub loads: Arc<PoolLoads>,
    /// Where Tasks run now: written by dispatchers, read for logs.
    pub live: Arc<crate::hints::live::Live>,
    /// Tasks that other Tasks wait for: written by the router of Tasks, read before a Task is deleted.
    pub awaited: Arc<crate::hints::awaited::Awaited>,
    /// Clients of the accounts, by name of the Provider object.
    pub providers: Arc<Accounts>,
    /// Makes such clients.
    pub factory: ProviderFactory,
    /// What kinds of provider can do.
    pub capabilities: KnownCapabilities,
    /// Keys of their Secrets.
    pub credential_keys: KnownKeys,
    /// Kubernetes Events.
    pub events: Events,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Caches, filled by watches.
    pub caches: Caches,
    /// Tells what the watches saw, after the caches have it.
    pub feed: Broadcast,
    /// The Machines of all Pools, including new ones that no watch has shown yet.
    pub fleet: Arc<Fleet>,
    /// Machines to look at again, from any task that knows that something changed.
    pub machine_wakeups: Arc<WorkQueue<Key>>,
    /// CronTasks to look at again: one of their Tasks came or ended.
    pub cron_wakeups: Arc<WorkQueue<Key>>,
    /// Pools with a machine whose session changed, for their dispatchers.
    pub session_wakeups: Arc<WorkQueue<Key>>,
    /// The state that the probes and the debug endpoint show.
    pub health: Arc<Health>,
    /// Notified by any task that suspects that another process leads.
    pub step_down: StepDown,
    /// Pools with all defaults of their specs.
    pub resolved: Arc<ResolvedPools>,
    /// The Offers, as the watch shows them.
    pub offers: Arc<Offers>,
    /// Reads Secrets and ConfigMaps that Tasks and Pools name.
    pub references: Arc<References>,
    /// When namespaces without room in the result store were last looked at.
    pub(crate) looked: Arc<crate::hints::looked::Looked>,
    /// Takes bundles into the result store.
    pub(crate) uploads: Arc<Uploads>,
    /// Offers that were refused lately.
    pub unavailable: Arc<UnavailableCache>,
    /// Architectures for whose machines there is an agent.
    pub architectures: Arc<[Architecture]>,
    /// Catches panics in the turn of one object.
    pub panics: Arc<Panics>,
    /// Cancelled when the process shall end.
    pub shutdown: CancellationToken,
}

impl Context {
    /// The sources that metrics are read from.
    pub(crate) fn metric_sources(&self) -> Sources {
        Sources {
            caches: self.caches.clone(),
            fleet: self.fleet.clone(),
            sessions: self.sessions.clone(),
            store: self.store.clone(),
            loads: self.loads.clone(),
        }
    }

    /// The Provider `name` as Events refer to it; a Provider that is gone has its name alone.
    pub(crate) fn provider_reference(&self, name: &str) -> ObjectReference {
        self.caches.provider(name).map_or_else(
            || ObjectReference {
                kind: Some("Provider".into()),
                name: Some(name.into()),
                ..Default::default()
            },
            |object| object.object_ref(&()),
        )
    }

    /// Names of all Providers, connected or not.
    pub fn provider_names(&self) -> Vec<String> {
        let providers = self.caches.providers.state();
        providers.iter().map(|provider| provider.name_any()).collect()
    }

    /// Whether a proof that this cluster has forgotten machines would be known by now.
    pub fn remembers_all(&self) -> bool {
        self.holds.is_settled(self.provider_names().iter())
    }

    /// What an account lists of ours in these regions, for all Pools.
    pub(crate) fn scope(&self, regions: impl IntoIterator<Item = String>) -> Scope {
        Scope {
            cluster: self.cluster.clone(),
            pool_uid: None,
            namespace: None,
            regions: regions.into_iter().collect(),
        }
    }

    /// Whether this installation recorded a Machine. A Machine of another, as in a copy of a
    /// cluster, is foreign: it is never dialled, leased, ordered or ended.
    pub fn is_ours(&self, spec: &MachineSpec) -> bool {
        is_of(spec, &self.cluster, &self.unnamed_cluster)
    }
}
