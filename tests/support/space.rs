//! One story's namespace: creates objects in it, and waits for their states.

use std::{fmt::Debug, time::Duration};

use anyhow::{Context as _, bail};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        coordination::v1::Lease,
        core::v1::{Event, Namespace, ServiceAccount},
    },
};
use kube::{
    Api, Resource, ResourceExt as _,
    api::{
        ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
        PostParams, WatchEvent, WatchParams,
    },
    runtime::wait::await_condition,
};
use serde::de::DeserializeOwned;
use serde_json::json;
use skyward_api::{Machine, MachinePhase, Pool, Provider, Task};
use tokio::time::Instant;

use crate::{Cluster, OPERATOR_NAMESPACE, Output, Result, cleanup};

/// Longest wait for the objects of a story, in seconds. Other stories kill the controller twenty
/// times meanwhile, and all of them share two processors: late is not wrong.
pub const PATIENCE: u64 = 300;

/// A step of the bootstrap that puts the agent's home on a disk of 160 MB, of which 16 are its reserve. It
/// takes the place of the real one before the agent starts; the machine must be a privileged Pod.
pub const SMALL_DISK: &str = "set -e
mountpoint -q /opt/skyward && exit
mkdir -p /mnt/small
mount -t tmpfs -o size=160m,mode=755 tmpfs /mnt/small
cp -a /opt/skyward/. /mnt/small/
mount --bind /mnt/small /opt/skyward";

/// One story's namespace. A story that ends otherwise than by [`Space::finish`] has
/// failed: then it is looked at and deleted by the destructor.
pub struct Space {
    /// The cluster it is in.
    pub cluster: Cluster,
    /// Its name.
    pub name: String,
    /// Who led the operator when the story began.
    epoch: Option<i32>,
    /// Whether it is gone.
    finished: bool,
}

impl Drop for Space {
    fn drop(&mut self) {
        if !self.finished {
            cleanup::after_failure(&self.cluster, &self.name);
        }
    }
}

impl Space {
    pub(crate) async fn create(cluster: &Cluster, story: &str) -> Result<Self> {
        let stamp = jiff::Timestamp::now().as_millisecond() % 100_000_000;
        let name = format!("t-{story}-{stamp}");
        let labels = json!({"skyward-test": "true", cleanup::STORY: name});
        let object = serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}}))?;
        Api::<Namespace>::all(cluster.client.clone())
            .create(&PostParams::default(), &object)
            .await?;
        let space = Self {
            cluster: cluster.clone(),
            name,
            epoch: epoch(cluster).await,
            finished: false,
        };
        space
            .wait::<ServiceAccount>("default", "exists", PATIENCE, |_| true)
            .await?;
        Ok(space)
    }

    /// A typed client for this namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope>,
        <K as Resource>::DynamicType: Default,
    {
        Api::namespaced(self.cluster.client.clone(), &self.name)
    }

    /// `kubectl -n <this namespace> …`.
    pub async fn kubectl(&self, args: &[&str]) -> Result<Output> {
        let mut all = vec!["-n", self.name.as_str()];
        all.extend_from_slice(args);
        self.cluster.kubectl(&all).await
    }

    /// Applies YAML into this namespace.
    pub async fn apply(&self, yaml: &str) -> Result<Output> {
        let args = ["-n", self.name.as_str(), "apply", "-f", "-"];
        self.cluster
            .run("kubectl", &args, Some(yaml), Duration::from_secs(180))
            .await
    }

    /// Applies the object of a file into this namespace, with a patch merged over it.
    pub async fn apply_patched(&self, file: &str, patch: &serde_json::Value) -> Result {
        let patch = patch.to_string();
        let args = [
            "patch",
            "--local",
            "-f",
            file,
            "--type=merge",
            "-p",
            &patch,
            "-o",
            "json",
        ];
        let object = self.cluster.kubectl(&args).await?.ok()?;
        self.apply(&object).await?.ok().map(drop)
    }

    /// What `kubectl skyward …` prints in this namespace. kubectl itself, which only starts the plugin, is left out.
    pub async fn plugin(&self, arguments: &[&str]) -> Result<String> {
        let mut all = vec!["-n", self.name.as_str()];
        all.extend_from_slice(arguments);
        let limit = Duration::from_secs(330);
        self.cluster.run("kubectl-skyward", &all, None, limit).await?.ok()
    }

    /// Creates an object from JSON, or changes it to that. As `kubectl apply --server-side` does, and without it: stories
    /// make hundreds of objects, and each kubectl takes a third of a second of a processor.
    pub async fn create_json(&self, object: serde_json::Value) -> Result {
        let object: DynamicObject = serde_json::from_value(object)?;
        let kind = object.types.as_ref().context("an object without a kind")?;
        let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(kind)?);
        let client = self.cluster.client.clone();
        let api: Api<DynamicObject> = match kind.kind.as_str() {
            "Provider" => Api::all_with(client, &resource),
            _ => Api::namespaced_with(client, &self.name, &resource),
        };
        let params = PatchParams::apply("skyward-story").force();
        api.patch(&object.name_any(), &params, &Patch::Apply(&object))
            .await?;
        Ok(())
    }

    /// Creates a Pool of the test Provider; `spec` is merged over provider and nodes.
    pub async fn pool(&self, name: &str, nodes: u32, spec: serde_json::Value) -> Result {
        let mut whole = json!({"provider": crate::PROVIDER, "nodes": {"desired": nodes}});
        merge(&mut whole, spec);
        self.create_json(json!({"apiVersion": "skyward.dev/v1alpha1", "kind": "Pool",
            "metadata": {"name": name}, "spec": whole}))
            .await
    }

    /// Creates a Provider of this story's own and gives its name. It goes with the story.
    pub async fn provider(&self, suffix: &str, spec: serde_json::Value) -> Result<String> {
        let name = format!("{}-{suffix}", self.name);
        let mut whole = json!({"allowedNamespaces": {}});
        merge(&mut whole, spec);
        self.create_json(json!({"apiVersion": "skyward.dev/v1alpha1", "kind": "Provider",
            "metadata": {"name": name, "labels": {cleanup::STORY: self.name}}, "spec": whole}))
            .await?;
        Ok(name)
    }

    /// Creates a Task for a Pool; `spec` says what it does.
    pub async fn task(&self, name: &str, pool: &str, spec: serde_json::Value) -> Result {
        let mut whole = json!({"pool": pool});
        merge(&mut whole, spec);
        self.create_json(json!({"apiVersion": "skyward.dev/v1alpha1", "kind": "Task",
            "metadata": {"name": name}, "spec": whole}))
            .await
    }

    /// Waits until the Pool is Ready.
    pub async fn pool_ready(&self, name: &str) -> Result<Pool> {
        self.wait(name, "Ready", PATIENCE, |p: &Pool| {
            p.status.as_ref().is_some_and(|s| {
                skyward_api::condition::is_true(&s.conditions, "Ready")
                    && s.observed_generation == p.metadata.generation
            })
        })
        .await
    }

    /// Waits until the Task ended, either way.
    pub async fn task_ended(&self, name: &str) -> Result<Task> {
        self.task_ended_within(name, PATIENCE).await
    }

    /// Waits until the Task ended, either way.
    pub async fn task_ended_within(&self, name: &str, seconds: u64) -> Result<Task> {
        self.wait(name, "ended", seconds, |t: &Task| {
            t.status
                .as_ref()
                .and_then(|s| s.phase)
                .is_some_and(skyward_api::TaskPhase::is_finished)
        })
        .await
    }

    /// Waits until the Task is in that phase.
    pub async fn task_phase(&self, name: &str, phase: skyward_api::TaskPhase) -> Result<Task> {
        self.wait(name, phase.as_str(), PATIENCE, |t: &Task| {
            t.status.as_ref().and_then(|s| s.phase) == Some(phase)
        })
        .await
    }

    /// Waits until a condition of an object has that reason.
    pub async fn condition<K>(&self, name: &str, type_: &str, reason: &str) -> Result<String>
    where
        K: Resource<Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Debug
            + Send
            + 'static
            + serde::Serialize,
        <K as Resource>::DynamicType: Default,
    {
        let mut message = String::new();
        self.wait(name, &format!("{type_}/{reason}"), PATIENCE, |object: &K| {
            let value = serde_json::to_value(object).unwrap_or_default();
            let conditions = value["status"]["conditions"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            conditions.iter().any(|c| {
                let hit = c["type"] == type_ && c["reason"] == reason;
                if hit {
                    c["message"].as_str().unwrap_or_default().clone_into(&mut message);
                }
                hit
            })
        })
        .await?;
        Ok(message)
    }

    /// Machines of a Pool that are Ready now, by slot.
    pub async fn ready_machines(&self, pool: &str) -> Result<Vec<Machine>> {
        let mut machines: Vec<Machine> = self
            .api::<Machine>()
            .list(&Default::default())
            .await?
            .items
            .into_iter()
            .filter(|m| {
                m.spec.pool == pool && m.status.as_ref().and_then(|s| s.phase) == Some(MachinePhase::Ready)
            })
            .collect();
        machines.sort_by_key(|m| m.spec.slot);
        Ok(machines)
    }

    /// Waits until the namespace has Events with these reasons: they are written soon after
    /// what they tell of, not with it. An operator that another story killed in between has not written them.
    pub async fn told(&self, reasons: &[&str]) -> Result {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let events = self.api::<Event>().list(&ListParams::default()).await?.items;
            let events: Vec<String> = events
                .into_iter()
                .map(|event| {
                    format!(
                        "{}: {}",
                        event.reason.unwrap_or_default(),
                        event.message.unwrap_or_default()
                    )
                })
                .collect();
            let events = events.join("\n");
            let missing: Vec<&str> = reasons
                .iter()
                .copied()
                .filter(|reason| !events.contains(reason))
                .collect();
            if missing.is_empty() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                if epoch(&self.cluster).await != self.epoch {
                    return Ok(());
                }
                bail!("no Event tells of {missing:?}:\n{events}");
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Waits, by a watch, until an object fulfils a predicate.
    pub async fn wait<K>(
        &self,
        name: &str,
        what: &str,
        seconds: u64,
        mut predicate: impl FnMut(&K) -> bool,
    ) -> Result<K>
    where
        K: Resource<Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug + Send + 'static,
        <K as Resource>::DynamicType: Default,
    {
        let api = self.api::<K>();
        let deadline = Instant::now() + Duration::from_secs(seconds);
        let mut last: Option<K> = None;
        let params = WatchParams::default()
            .fields(&format!("metadata.name={name}"))
            .timeout(290);
        while Instant::now() < deadline {
            // A watch that breaks (the API server restarts, a version expires) is opened again.
            let Ok(stream) = api.watch(&params, "").await else {
                tokio::time::sleep(Duration::from_millis(200)).await;
                continue;
            };
            let mut events = stream.boxed();
            loop {
                match tokio::time::timeout_at(deadline, events.try_next()).await {
                    Ok(Ok(Some(WatchEvent::Added(object) | WatchEvent::Modified(object)))) => {
                        if predicate(&object) {
                            return Ok(object);
                        }
                        last = Some(object);
                    }
                    Ok(Ok(Some(WatchEvent::Deleted(_)))) => last = None,
                    Ok(Ok(Some(_))) => {}
                    Ok(Ok(None) | Err(_)) | Err(_) => break,
                }
            }
        }
        let last = last.map_or_else(
            || "it does not exist".to_owned(),
            |object| {
                let meta = object.meta();
                format!("deleted at {:?}, last seen: {object:#?}", meta.deletion_timestamp)
            },
        );
        bail!(
            "\"{}/{name}\" was not \"{what}\" within {seconds} s; {last}",
            self.name
        )
    }

    /// Waits until an object no longer exists.
    pub async fn wait_gone<K>(&self, name: &str, seconds: u64) -> Result
    where
        K: Resource<Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug + Send + 'static,
        <K as Resource>::DynamicType: Default,
    {
        let api = self.api::<K>();
        if is_gone_within(seconds, &api, name).await {
            return Ok(());
        }
        let last = api.get_opt(name).await;
        bail!(
            "\"{}/{name}\" still exists after {seconds} s: {last:#?}",
            self.name
        )
    }

    /// How many objects of a kind are in the namespace.
    pub async fn count<K>(&self) -> Result<usize>
    where
        K: Resource<Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
        <K as Resource>::DynamicType: Default,
    {
        Ok(self
            .api::<K>()
            .list_metadata(&Default::default())
            .await?
            .items
            .len())
    }

    /// Deletes the Providers of this story and waits until they are gone.
    async fn delete_providers(&self) -> Result {
        let providers: Api<Provider> = Api::all(self.cluster.client.clone());
        let ours = ListParams::default().labels(&format!("{}={}", cleanup::STORY, self.name));
        // The last machine may have gone a moment ago, and stand in a status still.
        let allow = json!({"metadata": {"annotations": {"skyward.dev/allow-deletion": "true"}}});
        let as_is = PatchParams::default();
        let names: Vec<String> = providers
            .list(&ours)
            .await?
            .items
            .iter()
            .map(Provider::name_any)
            .collect();
        for name in &names {
            let allowed = providers.patch(name, &as_is, &Patch::Merge(&allow)).await;
            let ordered = match allowed {
                Ok(_) => providers.delete(name, &DeleteParams::default()).await.map(drop),
                Err(error) => Err(error),
            };
            match ordered {
                // The story itself may have deleted it.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                other => other?,
            }
        }
        for name in &names {
            if !is_gone_within(PATIENCE, &providers, name).await {
                bail!("Provider {name} was not gone {PATIENCE} s after its deletion");
            }
        }
        Ok(())
    }

    /// Deletes the namespace and waits until it is gone: nothing of ours may hold it. The
    /// story's Providers go after it.
    pub async fn finish(mut self) -> Result {
        let namespaces: Api<Namespace> = Api::all(self.cluster.client.clone());
        namespaces.delete(&self.name, &DeleteParams::default()).await?;
        if is_gone_within(PATIENCE, &namespaces, &self.name).await {
            self.delete_providers().await?;
            self.finished = true;
            return Ok(());
        }
        let left = self.kubectl(&["get", "skyward,pods", "-o", "yaml"]).await?;
        let namespace = namespaces.get_opt(&self.name).await?;
        let status = namespace
            .map(|n| (n.name_any(), n.status))
            .context("it is gone after all")?;
        bail!(
            "namespace \"{}\" was not gone {PATIENCE} s after its deletion: {status:?}\n{}",
            self.name,
            left.stdout
        )
    }
}

/// Waits, by a watch, until no object has that name.
async fn is_gone_within<K>(seconds: u64, api: &Api<K>, name: &str) -> bool
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let gone = async {
        let is_gone = |object: Option<&K>| object.is_none();
        // A busy API server refuses now and then.
        while await_condition(api.clone(), name, is_gone).await.is_err() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(seconds), gone)
        .await
        .is_ok()
}

/// Another one with each process that leads the operator.
async fn epoch(cluster: &Cluster) -> Option<i32> {
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), OPERATOR_NAMESPACE);
    leases
        .get_opt("skyward-controller")
        .await
        .ok()??
        .spec?
        .lease_transitions
}

/// As a merge patch does: null takes a field away.
fn merge(into: &mut serde_json::Value, from: serde_json::Value) {
    match (into, from) {
        (serde_json::Value::Object(into), serde_json::Value::Object(from)) => {
            for (key, value) in from {
                if value.is_null() {
                    into.remove(&key);
                } else {
                    merge(into.entry(key).or_insert(serde_json::Value::Null), value);
                }
            }
        }
        (into, from) => *into = from,
    }
}
