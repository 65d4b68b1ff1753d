//! Machines that are Pods of this cluster: no cloud account, no bill, the same path over
//! SSH as everywhere else.
//!
//! - [`config`]: settings of the Provider with every default applied.
//! - [`map`]: an order becomes a Pod; [`state`]: a Pod becomes a machine.
//! - [`offers`]: nodes become offers; [`errors`]: answers become kinds of error.
//! - [`cluster`]: the state that all Container providers of a process share: one watch of Pods and
//!   the host keys read from their logs.
//! - `start.sh`: the first process of each machine.

pub mod cluster;
pub mod config;
pub mod errors;
pub mod map;
pub mod offers;
mod quantity;
pub mod state;

use std::{future::Future, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Secret};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, PostParams, Preconditions},
};
use skyward_api::labels;
use skyward_core::{
    Accepted, Capabilities, Deletion, ErrorKind, MachineRef, Offer, Order, Provider, ProviderError,
    ProviderMachine, ProviderPhase, Scope,
    order::Owner,
    provider::{Halted, HostKeys, Idempotency, MarkWriters, Marking, Regions, SelfStop},
};
use skyward_provider_kit::http::Effect;

pub use cluster::Cluster;
use config::Settings;
use errors::{provider_error, timed_out};

/// Name of this kind of provider.
pub const KIND: &str = "container";
/// The container of a Pod that is the machine: others may be put beside it, such as those of a
/// service mesh.
const MACHINE: &str = "machine";
/// Port on which machines answer SSH: above 1024, so that an ordinary user can listen.
pub const SSH_PORT: u16 = 2222;
/// Extended resource of NVIDIA's device plugin.
const GPU: &str = "nvidia.com/gpu";
/// Label by which NVIDIA's feature discovery names the GPUs of a node.
const PRODUCT_LABEL: &str = "nvidia.com/gpu.product";
/// Label with which every kubelet names its node's operating system.
const OS_LABEL: &str = "kubernetes.io/os";
/// The operating system of a machine's node.
const LINUX: &str = "linux";
/// Longest wait for one answer of the API server.
const DEADLINE: Duration = Duration::from_secs(15);
/// Objects in one page of a list.
const PAGE: u32 = 500;

/// How Pods are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodNetwork {
    /// By their addresses: the controller runs inside the cluster.
    Direct,
    /// Through the API server: it runs outside.
    PortForward,
}

/// Options of Container providers besides their Provider objects.
#[derive(Clone, Debug)]
pub struct Options {
    /// Id of this installation; by default the UID of the namespace kube-system.
    pub cluster: String,
    /// Image where the Provider names none.
    pub node_image: String,
    /// How Pods are reached.
    pub pod_network: PodNetwork,
    /// Namespaces in which Pods may be looked at; none named = all.
    pub namespaces: Vec<String>,
}

impl Options {
    /// The namespaces, or the whole cluster, with Pods of ours: each needs a list and a watch of
    /// its own. A named namespace, served or not, is one.
    fn pods(&self, client: &Client, namespace: Option<&str>) -> Vec<Api<Pod>> {
        if let Some(namespace) = namespace {
            return vec![Api::namespaced(client.clone(), namespace)];
        }
        if self.namespaces.is_empty() {
            return vec![Api::all(client.clone())];
        }
        self.namespaces
            .iter()
            .map(|namespace| Api::namespaced(client.clone(), namespace))
            .collect()
    }
}

/// The client of a Provider object of this kind.
pub fn connect(
    cluster: &Arc<Cluster>,
    object: &skyward_api::Provider,
) -> Result<Arc<dyn Provider>, ProviderError> {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let Some(spec) = &object.spec.container else {
        return Err(ProviderError::new(
            ErrorKind::Unsupported,
            "use the Provider",
            "it is not of kind container",
        ));
    };
    Ok(Arc::new(Container {
        cluster: cluster.clone(),
        provider_label: config::label_value(name),
        settings: config::resolve(spec, &cluster.options),
    }))
}

/// What Pods can do.
pub const CAPABILITIES: Capabilities = Capabilities {
    // The API server answers lists from its own store.
    settle_time: Duration::ZERO,
    poll_interval: Duration::from_secs(2),
    self_stop: SelfStop::EndsBilling,
    connected: true,
    marking: Marking::Tags,
    mark_writers: MarkWriters::Namespaces,
    idempotency: Idempotency::Token,
    host_keys: HostKeys::Reported,
    halted: Halted::Nothing,
    regions: Regions::None,
    ..Capabilities::of(KIND)
};

/// Pods of this cluster as machines, as one Provider object wants them.
struct Container {
    cluster: Arc<Cluster>,
    /// Label of the Provider object on its Pods.
    provider_label: String,
    /// Settings that contradict each other stop orders; machines that exist must still be
    /// found and deleted.
    settings: Result<Settings, ProviderError>,
}

/// One call that may be repeated, with its deadline and its error mapped.
async fn call<T>(
    operation: &'static str,
    answer: impl Future<Output = Result<T, kube::Error>> + Send,
) -> Result<T, ProviderError> {
    call_with(operation, Effect::Repeatable, answer).await
}

/// The same for any call.
async fn call_with<T>(
    operation: &'static str,
    effect: Effect,
    answer: impl Future<Output = Result<T, kube::Error>> + Send,
) -> Result<T, ProviderError> {
    match tokio::time::timeout(DEADLINE, answer).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(provider_error(operation, effect, &error)),
        Err(_) => Err(timed_out(operation, effect, DEADLINE)),
    }
}

impl Container {
    fn settings(&self) -> Result<&Settings, ProviderError> {
        self.settings.as_ref().map_err(Clone::clone)
    }

    fn user(&self) -> &str {
        self.settings
            .as_ref()
            .map_or("root", |settings| settings.user.as_str())
    }

    fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.cluster.client.clone(), namespace)
    }

    /// The Pod as the API server has it now.
    async fn look(&self, machine: &MachineRef) -> Result<Option<Pod>, ProviderError> {
        let namespace = &machine.mark.namespace;
        let pods = self.pods(namespace);
        let looked = call("look at the Pod", pods.get_opt(&machine.mark.machine)).await;
        match looked {
            Err(error) if self.goes(namespace, &error).await => Ok(None),
            looked => looked,
        }
    }

    /// Whether a refused namespace is being deleted, or is gone. Our RoleBinding is deleted with
    /// it, perhaps first; its Pods go too, and cannot be looked at any more. A refusal in a
    /// namespace that stays says nothing about its Pods.
    async fn goes(&self, namespace: &str, refused: &ProviderError) -> bool {
        if refused.kind != ErrorKind::Permission {
            return false;
        }
        let namespaces: Api<Namespace> = Api::all(self.cluster.client.clone());
        let found = call("look at the namespace", namespaces.get_metadata_opt(namespace)).await;
        match found {
            Ok(found) => found.is_none_or(|found| found.metadata.deletion_timestamp.is_some()),
            Err(error) => {
                tracing::debug!(namespace, %error, "whether the namespace goes is not known");
                false
            }
        }
    }

    /// The machines whose Pods a list shows, to its last page.
    async fn machines(&self, pods: &Api<Pod>, selector: &str) -> Result<Vec<ProviderMachine>, ProviderError> {
        let network = self.cluster.options.pod_network;
        let mut machines = Vec::new();
        let mut parameters = ListParams::default().labels(selector).limit(PAGE);
        loop {
            let page = call("list the Pods", pods.list(&parameters)).await?;
            machines.extend(page.items.iter().filter_map(|pod| {
                state::machine(pod, self.user(), network, self.cluster.known_host_key(pod))
            }));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => parameters = parameters.continue_token(&token),
                None => return Ok(machines),
            }
        }
    }

    /// The machine of a Pod, with its host key once that is known.
    async fn machine(&self, pod: &Pod) -> Option<ProviderMachine> {
        let mut machine = state::machine(pod, self.user(), self.cluster.options.pod_network, None)?;
        if machine.phase == ProviderPhase::Running {
            match self.cluster.host_key(pod).await {
                cluster::HostKey::Known(key) => machine.host_key = Some(key),
                cluster::HostKey::NotYet => {
                    machine.phase = ProviderPhase::Starting(Some("its SSH server starts".to_owned()));
                }
                cluster::HostKey::Unreadable => {}
            }
        }
        Some(machine)
    }

    /// Refuses an order whose Pod could never pull its image; a failed look does not refuse it.
    async fn check_pull_secrets(&self, settings: &Settings, namespace: &str) -> Result<(), ProviderError> {
        let secrets: Api<Secret> = Api::namespaced(self.cluster.client.clone(), namespace);
        for (name, _) in settings.pull_secrets.iter().filter(|(_, optional)| !optional) {
            let found = call("look at the pull Secret", secrets.get_metadata_opt(name)).await;
            if matches!(found, Ok(None)) {
                return Err(ProviderError::new(
                    ErrorKind::InvalidOrder,
                    "create the Pod",
                    format!(
                        "Secret \"{name}\" with the registry's credentials does not exist in namespace \"{namespace}\". Create it there (kubectl create secret docker-registry), or remove it from imagePullSecrets of the Provider, or mark it optional"
                    ),
                ));
            }
        }
        Ok(())
    }
}

/// The owner of the Pod with a machine's name (P11). A Pod without our labels is another owner's,
/// unless its UID is the recorded one.
fn owner(pod: &Pod, machine: &MachineRef) -> Owner {
    match machine.mark.owner_of(map::mark(pod).as_ref()) {
        Owner::Nobody if machine.id.is_none() || machine.id != pod.metadata.uid => Owner::Another,
        owner => owner,
    }
}

/// Whether a Pod is that machine: names may be used again, UIDs are not.
fn is_machine(pod: &Pod, machine_uid: &str, cluster: &str) -> bool {
    map::mark(pod).is_some_and(|mark| mark.machine_uid == machine_uid && mark.cluster == cluster)
}

#[async_trait]
impl Provider for Container {
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    async fn account(&self) -> Result<String, ProviderError> {
        let namespaces: Api<Namespace> = Api::all(self.cluster.client.clone());
        let system = call(
            "read the kube-system namespace",
            namespaces.get_metadata("kube-system"),
        )
        .await?;
        system.metadata.uid.ok_or_else(|| {
            ProviderError::new(
                ErrorKind::Transient,
                "read the kube-system namespace",
                "it has no UID",
            )
        })
    }

    async fn offers(&self) -> Result<Vec<Offer>, ProviderError> {
        let settings = self.settings()?;
        let nodes: Api<Node> = Api::all(self.cluster.client.clone());
        // The API server's cache is good enough for what changes this slowly.
        let list = call("list the nodes", nodes.list(&ListParams::default().match_any())).await?;
        Ok(offers::offers(&list.items, settings))
    }

    async fn create(&self, order: &Order) -> Result<Accepted, ProviderError> {
        let settings = self.settings()?;
        let pod = map::pod(order, settings, &self.provider_label)?;
        self.check_pull_secrets(settings, &order.mark.namespace).await?;
        let pods = self.pods(&order.mark.namespace);
        let parameters = PostParams {
            field_manager: Some(labels::MANAGER.to_owned()),
            ..PostParams::default()
        };
        let made = call_with("create the Pod", Effect::Creates, pods.create(&parameters, &pod)).await;
        let pod = match made {
            Ok(pod) => pod,
            Err(error) if error.kind == ErrorKind::AlreadyExists => {
                let there = call("look at the Pod", pods.get_opt(&order.mark.machine)).await?;
                match there {
                    Some(pod) if is_machine(&pod, &order.mark.machine_uid, &order.mark.cluster) => pod,
                    Some(_) => {
                        return Err(ProviderError::new(
                            ErrorKind::InvalidOrder,
                            "create the Pod",
                            format!(
                                "a Pod \"{}\" that is not this Machine's is in namespace \"{}\" already; delete it",
                                order.mark.machine, order.mark.namespace
                            ),
                        ));
                    }
                    // The Pod went between the two answers.
                    None => {
                        return Err(ProviderError::new(
                            ErrorKind::Transient,
                            "create the Pod",
                            "a Pod of that name was just deleted",
                        ));
                    }
                }
            }
            Err(error) => return Err(error),
        };
        Ok(Accepted {
            id: pod.metadata.uid.unwrap_or_default(),
        })
    }

    async fn get(&self, machine: &MachineRef) -> Result<Option<ProviderMachine>, ProviderError> {
        let matches = |pod: &Pod| {
            is_machine(pod, &machine.mark.machine_uid, &machine.mark.cluster)
                && machine
                    .id
                    .as_ref()
                    .is_none_or(|id| pod.metadata.uid.as_ref() == Some(id))
        };
        // The cache may lag: it is believed when it has the Pod, never when it does not.
        if let Some(pod) = self
            .cluster
            .cached(&machine.mark.namespace, &machine.mark.machine)
            && matches(&pod)
        {
            return Ok(self.machine(&pod).await);
        }
        match self.look(machine).await? {
            Some(pod) if matches(&pod) => Ok(self.machine(&pod).await),
            Some(pod) if owner(&pod, machine) == Owner::Nobody => Err(ProviderError::nobodys(
                CAPABILITIES.marking,
                &machine.mark.machine,
            )),
            _ => Ok(None),
        }
    }

    async fn list(&self, scope: &Scope) -> Result<Vec<ProviderMachine>, ProviderError> {
        let mut selector = format!(
            "{}={},{}={},{}={}",
            labels::MANAGED_BY,
            labels::MANAGER,
            labels::CLUSTER,
            scope.cluster,
            labels::PROVIDER,
            self.provider_label
        );
        if let Some(uid) = &scope.pool_uid {
            selector = format!("{selector},{}={uid}", labels::POOL_UID);
        }
        let (client, namespace) = (&self.cluster.client, scope.namespace.as_deref());
        let mut machines = Vec::new();
        for pods in self.cluster.options.pods(client, namespace) {
            match (self.machines(&pods, &selector).await, pods.namespace()) {
                (Ok(found), _) => machines.extend(found),
                (Err(error), Some(namespace)) if self.goes(namespace, &error).await => {}
                (Err(error), _) => return Err(error),
            }
        }
        Ok(machines)
    }

    fn namespaces(&self) -> &[String] {
        &self.cluster.options.namespaces
    }

    async fn delete(&self, machine: &MachineRef) -> Result<Deletion, ProviderError> {
        let Some(pod) = self.look(machine).await? else {
            return Ok(Deletion::Gone);
        };
        match owner(&pod, machine) {
            Owner::Ours => {}
            Owner::Another => return Ok(Deletion::Foreign),
            Owner::Nobody => {
                let name = &machine.mark.machine;
                return Err(ProviderError::nobodys(CAPABILITIES.marking, name));
            }
        }
        // The end is ordered already. A Pod on a dead node stays so until the node is back or
        // removed: it may still run there, so it is never deleted by force.
        if pod.metadata.deletion_timestamp.is_some() {
            return Ok(Deletion::InProgress);
        }
        let pods = self.pods(&machine.mark.namespace);
        let exactly = DeleteParams {
            preconditions: Some(Preconditions {
                uid: pod.metadata.uid.clone(),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        match call("delete the Pod", pods.delete(&machine.mark.machine, &exactly)).await {
            Ok(_) => {}
            Err(error) if error.kind == ErrorKind::NotFound => return Ok(Deletion::Gone),
            // Another Pod took the name: the next look says so.
            Err(error) if error.code.as_deref() == Some("Conflict") => return Ok(Deletion::InProgress),
            Err(error) => return Err(error),
        }
        // A Pod that no node has taken yet goes at once.
        let waits = pod.spec.as_ref().is_none_or(|spec| spec.node_name.is_none());
        if waits && self.look(machine).await?.is_none() {
            return Ok(Deletion::Gone);
        }
        Ok(Deletion::InProgress)
    }

    fn changes(&self) -> Option<BoxStream<'static, (String, String)>> {
        Some(self.cluster.changes())
    }
}

#[cfg(test)]
#[path = "tests/live.rs"]
mod live;
#[cfg(test)]
#[path = "tests/refused.rs"]
mod refused;
