//! What is seen of the cluster meanwhile. It is looked at each second, so that happenings find their
//! targets also while no API server answers.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt as _, api::ListParams};
use skyward_api::{MachinePhase, Task, TaskPhase, TaskStatus};
use skyward_testkit::{OPERATOR_NAMESPACE, Result, Space};
use tokio::task::JoinHandle;

use crate::ledger::Mark;

/// A machine that was Ready when it was looked at last.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) name: String,
    pub(crate) slot: u32,
    /// UID of its Pod.
    pub(crate) uid: String,
    pub(crate) ip: String,
}

/// What was seen last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scene {
    pub(crate) controller_uid: String,
    pub(crate) controller_ip: String,
    pub(crate) machines: Vec<Machine>,
    /// Tasks that ended: the first status that said so, and how long the ledger was then.
    pub(crate) ended: BTreeMap<String, (TaskStatus, usize)>,
}

/// What several tasks of this program share.
pub(crate) type Shared<T> = Arc<Mutex<T>>;

/// A copy of what is shared.
pub(crate) fn copy<T: Clone>(shared: &Shared<T>) -> T {
    shared.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Changes what is shared.
pub(crate) fn with<T, R>(shared: &Shared<T>, change: impl FnOnce(&mut T) -> R) -> R {
    change(&mut shared.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Ends a task of this program with its owner.
pub(crate) struct Owned(pub(crate) JoinHandle<()>);

impl Drop for Owned {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Looks at the namespace until it is dropped.
pub(crate) fn watch(space: &Space, scene: Shared<Scene>, marks: Shared<Vec<Mark>>) -> Owned {
    let (client, namespace) = (space.cluster.client.clone(), space.name.clone());
    Owned(tokio::spawn(async move {
        loop {
            // What does not answer is asked again.
            let _ =
                tokio::time::timeout(Duration::from_secs(5), look(&client, &namespace, &scene, &marks)).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }))
}

async fn look(client: &Client, namespace: &str, scene: &Shared<Scene>, marks: &Shared<Vec<Mark>>) -> Result {
    let tasks: Api<Task> = Api::namespaced(client.clone(), namespace);
    for task in tasks.list(&ListParams::default()).await?.items {
        let name = task.name_any();
        let Some(status) = task.status.filter(has_ended) else {
            continue;
        };
        let seen_at = with(marks, |marks| marks.len());
        with(scene, |scene| {
            scene.ended.entry(name).or_insert((status, seen_at));
        });
    }
    let machines: Api<skyward_api::Machine> = Api::namespaced(client.clone(), namespace);
    let ready: BTreeMap<String, u32> = machines
        .list(&ListParams::default())
        .await?
        .items
        .into_iter()
        .filter(|machine| {
            machine.status.as_ref().and_then(|status| status.phase) == Some(MachinePhase::Ready)
        })
        .map(|machine| (machine.name_any(), machine.spec.slot))
        .collect();
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let pods = pods.list(&ListParams::default()).await?;
    let machines = pods.items.iter().filter_map(|pod| {
        let name = pod.name_any();
        Some(Machine {
            slot: *ready.get(&name)?,
            uid: pod.uid()?,
            ip: address(pod)?,
            name,
        })
    });
    let machines = machines.collect();
    let pods: Api<Pod> = Api::namespaced(client.clone(), OPERATOR_NAMESPACE);
    let controllers = ListParams::default().labels("app.kubernetes.io/component=controller");
    let controller = pods.list(&controllers).await?.items.into_iter().next();
    with(scene, |scene| {
        scene.machines = machines;
        if let Some(controller) = controller {
            scene.controller_uid = controller.uid().unwrap_or_default();
            scene.controller_ip = address(&controller).unwrap_or_default();
        }
    });
    Ok(())
}

fn address(pod: &Pod) -> Option<String> {
    pod.status.as_ref()?.pod_ip.clone()
}

/// Whether a Task ended.
pub(crate) fn has_ended(status: &TaskStatus) -> bool {
    status.phase.is_some_and(TaskPhase::is_finished)
}
