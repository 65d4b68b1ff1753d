//! What every controller shares. Nothing here decides anything.

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Resource as _, ResourceExt, runtime::reflector};
use skyward_api::{Provider as ProviderObject, machine::MachineSpec, offer::Architecture};
use skyward_core::{Capabilities, CredentialKey, Credentials, Provider, ProviderError};
use skyward_remote::sessions::Sessions;
use skyward_store::Store;
use tokio::{
    sync::{Semaphore, SemaphorePermit, watch},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{
    base::{broadcast::Broadcast, key::Key, queue::WorkQueue},
    caches::Caches,
    config::Config,
    events::Events,
    health::Health,
    hints::pool_loads::PoolLoads,
    leadership::step_down::StepDown,
    metrics::{Metrics, Sources},
    panics::Panics,
    pool::fleet::Fleet,
    provider::{offers::Offers, shortage::Remembered},
    references::References,
    restore::{Holds, seal::Seal},
};

/// Makes the client of an account from its Provider object (given by `main.rs`, the
/// only place that knows both the registry of clouds and the controllers).
pub type ProviderFactory =
    Arc<dyn Fn(&ProviderObject, &Credentials) -> Result<Arc<dyn Provider>, ProviderError> + Send + Sync>;

/// What a kind of provider can do, which is known before an account of it answers.
pub type KnownCapabilities = fn(&str) -> Option<&'static Capabilities>;

/// Keys of the Secret of a kind of provider, which are known before there is one.
pub type KnownKeys = fn(&str) -> &'static [CredentialKey];

/// Shared by all controllers of one process, while it leads.
#[derive(Clone)]
pub struct Context {
    /// Client of the API server.
    pub client: kube::Client,
    /// Settings.
    pub config: Arc<Config>,
    /// This installation: UID of the kube-system namespace, or what was set.
    pub cluster: String,
    /// The id of installations that set none, and of records that name none.
    pub unnamed_cluster: String,
    /// The leader's epoch: grows with each new leader; agents refuse older ones.
    pub epoch: u64,
    /// What proves our epochs to later leaders.
    pub seal: Seal,
    /// Evidence that this cluster has forgotten machines, and the Providers that are held for that.
    pub holds: Arc<Holds>,
    /// Connections to machines.
    pub sessions: Arc<Sessions>,
    /// Logs and results.
    pub store: Arc<Store>,
    /// What dispatchers know.
    pub loads: Arc<PoolLoads>,
    /// Where Tasks run now: written by dispatchers, read for logs.
    pub live: Arc<crate::hints::live::Live>,
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
    /// Pools of which the session of a machine changed: their dispatchers look at it.
    pub session_wakeups: Arc<WorkQueue<Key>>,
    /// What the probes and the debug endpoint answer from.
    pub health: Arc<Health>,
    /// Told by any task that notices that another process leads.
    pub step_down: StepDown,
    /// The Offers, as the watch shows them.
    pub offers: Arc<Offers>,
    /// Reads Secrets and ConfigMaps that Tasks and Pools name.
    pub references: Arc<References>,
    /// Offers that were refused lately.
    pub shortages: Arc<Remembered>,
    /// Architectures for whose machines there is an agent.
    pub architectures: Arc<[Architecture]>,
    /// Catches the panics of one object's turn.
    pub panics: Arc<Panics>,
    /// Cancelled when the process shall end.
    pub shutdown: CancellationToken,
}

impl Context {
    /// What the metrics are read from.
    pub(crate) fn metric_sources(&self) -> Sources {
        Sources {
            caches: self.caches.clone(),
            fleet: self.fleet.clone(),
            sessions: self.sessions.clone(),
            store: self.store.clone(),
            loads: self.loads.clone(),
        }
    }

    /// The Provider object of that name, for Events; one that is gone has only that.
    pub(crate) fn provider_reference(&self, name: &str) -> ObjectReference {
        let known = self
            .caches
            .providers
            .get(&reflector::ObjectRef::<ProviderObject>::new(name));
        known.map_or_else(
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

    /// Whether proof that this cluster has forgotten something would be known by now.
    pub fn remembers_all(&self) -> bool {
        self.holds.is_settled(self.provider_names().iter())
    }

    /// Whether a Machine was recorded by this installation. One of another is foreign, as in a
    /// copy of a cluster: it is never dialled, leased, ordered or ended.
    pub fn is_ours(&self, spec: &MachineSpec) -> bool {
        is_of(spec, &self.cluster, &self.unnamed_cluster)
    }
}

/// Whether a record is of that installation; `unnamed`: the installation of records that name none.
pub fn is_of(spec: &MachineSpec, cluster: &str, unnamed: &str) -> bool {
    spec.installation.as_deref().unwrap_or(unnamed) == cluster
}

/// Longest wait for a turn at an account.
const TURN: Duration = Duration::from_secs(1);

/// An account that answered at least once.
#[derive(Clone)]
pub struct Account {
    /// Its client, behind the gate of what is held.
    pub provider: Arc<dyn Provider>,
    /// The same without that gate: for what a person decided after a restore.
    pub ungated: Arc<dyn Provider>,
    /// What it was made from.
    pub origin: Origin,
    /// Orders and returns under way at the same time; more wait for their turn.
    pub turns: Arc<Semaphore>,
}

impl Account {
    /// A turn, if one comes soon; a caller that gets none must look again, for what it would order
    /// or return may be wanted no longer.
    pub async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        // Never closed, so there is no other error.
        timeout(TURN, self.turns.acquire()).await.ok()?.ok()
    }
}

/// What a client of an account was made from: with another one it is another client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// UID of the Provider object: one of the same name may be another account.
    pub uid: String,
    /// Generation of its spec.
    pub generation: i64,
    /// Version of the Secret; `""` without one.
    pub secret: String,
}

impl Origin {
    /// Of a Provider object as it is, and that version of its Secret.
    pub fn of(provider: &ProviderObject, secret: &str) -> Self {
        Self {
            uid: provider.metadata.uid.clone().unwrap_or_default(),
            generation: provider.metadata.generation.unwrap_or_default(),
            secret: secret.to_owned(),
        }
    }
}

/// Clients of the accounts, by name of the Provider object.
pub struct Accounts {
    known: RwLock<BTreeMap<String, Account>>,
    changed: watch::Sender<u64>,
}

impl Default for Accounts {
    fn default() -> Self {
        Self {
            known: RwLock::default(),
            changed: watch::Sender::new(0),
        }
    }
}

impl Accounts {
    /// The account of that name, if its Provider was seen by its controller.
    pub fn get(&self, name: &str) -> Option<Account> {
        self.known
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(name)
            .cloned()
    }

    /// Adds or replaces an account.
    pub fn set(&self, name: &str, account: Account) {
        self.known
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(name.to_owned(), account);
        self.changed.send_modify(|n| *n += 1);
    }

    /// Removes an account.
    pub fn remove(&self, name: &str) {
        let removed = self
            .known
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(name);
        if removed.is_some() {
            self.changed.send_modify(|n| *n += 1);
        }
    }

    /// All accounts, by name.
    pub fn all(&self) -> BTreeMap<String, Account> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Woken at each change.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_made_anew_under_the_same_name_is_another_account() {
        let provider = |uid: &str| -> ProviderObject {
            serde_json::from_value(serde_json::json!({
                "apiVersion": "skyward.dev/v1alpha1", "kind": "Provider",
                "metadata": { "name": "gpu", "uid": uid, "generation": 1 },
                "spec": { "container": {}, "allowedNamespaces": {} }
            }))
            .unwrap()
        };
        let origin = Origin::of(&provider("a"), "");
        assert_eq!(origin, Origin::of(&provider("a"), ""));
        assert_ne!(origin, Origin::of(&provider("b"), ""), "both are of generation 1");
        assert_ne!(origin, Origin::of(&provider("a"), "rotated"));
    }
}
