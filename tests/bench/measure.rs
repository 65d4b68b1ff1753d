//! What the benchmarks share: a namespace, objects, clocks, percentiles, counters.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, PostParams, WatchEvent, WatchParams},
};
use serde_json::json;
use skyward_api::{Machine, MachinePhase, Pool, Task, task::TaskPhase};
use skyward_testkit::{Clouds, Cluster, Machines, PROVIDER, install, install_with};
use tokio::task::JoinHandle;

/// Longest wait for the next event of a watch.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// The namespace of one run of the benchmarks and clients for it.
pub(crate) struct Bench {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    /// Simulated clouds, if the benchmark uses any.
    pub(crate) clouds: Option<Clouds>,
    cluster: Cluster,
}

impl Bench {
    /// Installs the operator; `clouds` are simulated, and the operator is pointed at the
    /// simulators.
    pub(crate) async fn start(clouds: &[(&str, Machines)]) -> anyhow::Result<Self> {
        let cluster = Cluster::connect().await?;
        let clouds = if clouds.is_empty() {
            install(&cluster).await?;
            None
        } else {
            let clouds = Clouds::start(&cluster, clouds).await?;
            install_with(&cluster, &clouds.operator_values()).await?;
            Some(clouds)
        };
        let client = cluster.client.clone();
        let namespace = format!("bench-{}", std::process::id());
        let object = serde_json::from_value(json!({"metadata": {"name": namespace}}))?;
        Api::<Namespace>::all(client.clone())
            .create(&PostParams::default(), &object)
            .await?;
        Ok(Self {
            client,
            namespace,
            clouds,
            cluster,
        })
    }

    /// Points the operator at the real clouds again, and deletes the namespace without waiting for
    /// its end.
    pub(crate) async fn finish(&self) -> anyhow::Result<()> {
        if self.clouds.is_some() {
            install_with(&self.cluster, &[]).await?;
        }
        Api::<Namespace>::all(self.client.clone())
            .delete(&self.namespace, &DeleteParams::default())
            .await
            .context("delete the namespace of the benchmarks")?;
        Ok(())
    }

    pub(crate) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    pub(crate) fn tasks(&self) -> Api<Task> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) fn pools(&self) -> Api<Pool> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) fn machines(&self) -> Api<Machine> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Creates a Pool of the container provider.
    pub(crate) async fn create_pool(&self, name: &str, nodes: u32, concurrency: u32) -> anyhow::Result<()> {
        let worker = json!({"concurrency": concurrency});
        let spec = json!({"provider": PROVIDER, "nodes": {"desired": nodes}, "worker": worker});
        self.create_pool_of(name, spec).await
    }

    /// Creates a Pool.
    pub(crate) async fn create_pool_of(&self, name: &str, spec: serde_json::Value) -> anyhow::Result<()> {
        let pool = serde_json::from_value(json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Pool", "metadata": {"name": name}, "spec": spec,
        }))?;
        self.pools().create(&PostParams::default(), &pool).await?;
        Ok(())
    }

    /// Waits until so many Machines of the Pool are Ready.
    pub(crate) async fn wait_ready(&self, pool: &str, nodes: usize) -> anyhow::Result<()> {
        let machines = self.machines();
        let params = WatchParams::default().timeout(290);
        let deadline = Instant::now() + Duration::from_secs(180);
        let mut ready = BTreeMap::new();
        while Instant::now() < deadline {
            let mut events = machines.watch(&params, "0").await?.boxed();
            while let Some(event) =
                tokio::time::timeout(Duration::from_secs(120), events.try_next()).await??
            {
                if let WatchEvent::Added(m) | WatchEvent::Modified(m) = event {
                    if m.spec.pool != pool {
                        continue;
                    }
                    let phase = m.status.as_ref().and_then(|s| s.phase);
                    ready.insert(m.name_any(), phase == Some(MachinePhase::Ready));
                    if ready.values().filter(|r| **r).count() >= nodes {
                        return Ok(());
                    }
                }
            }
        }
        bail!("Pool \"{pool}\" did not get {nodes} Ready machines within 180 s");
    }

    /// Deletes a Pool and waits until it is gone.
    pub(crate) async fn delete_pool(&self, name: &str) -> anyhow::Result<()> {
        self.pools().delete(name, &DeleteParams::default()).await?;
        for _ in 0..600 {
            if self.pools().get_opt(name).await?.is_none() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        bail!("Pool \"{name}\" was not gone 120 s after its deletion");
    }

    /// Another namespace, which is another tenant's; gone with [`Bench::drop_tenant`].
    pub(crate) async fn tenant(&self, name: &str) -> anyhow::Result<String> {
        let name = format!("{}-{name}", self.namespace);
        let object = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        Api::<Namespace>::all(self.client.clone())
            .create(&PostParams::default(), &object)
            .await?;
        Ok(name)
    }

    /// Deletes it with all that is in it.
    pub(crate) async fn drop_tenant(&self, name: &str) -> anyhow::Result<()> {
        Api::<Namespace>::all(self.client.clone())
            .delete(name, &DeleteParams::default())
            .await
            .with_context(|| format!("delete the namespace {name}"))?;
        Ok(())
    }

    /// A Task object.
    pub(crate) fn task(name: &str, pool: &str, work: serde_json::Value) -> anyhow::Result<Task> {
        let mut spec = work;
        spec["pool"] = json!(pool);
        Ok(serde_json::from_value(json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Task", "metadata": {"name": name}, "spec": spec,
        }))?)
    }

    /// Creates a Task and waits until it ended; returns the time between and the Task. The watch is
    /// open before, so that its start is not measured.
    pub(crate) async fn run_task(&self, task: &Task) -> anyhow::Result<(Duration, Task)> {
        let (waited, mut history) = self.run_task_with_history(task).await?;
        let last = history.pop().context("the history of a Task that ended")?;
        Ok((waited, last))
    }

    /// The same, with every state that the watch showed, the last one at the end.
    pub(crate) async fn run_task_with_history(&self, task: &Task) -> anyhow::Result<(Duration, Vec<Task>)> {
        let tasks = self.tasks();
        let name = task.name_any();
        let params = WatchParams::default()
            .fields(&format!("metadata.name={name}"))
            .timeout(290);
        let mut events = tasks.watch(&params, "").await?.boxed();
        let ended = tokio::spawn(async move {
            let mut history = Vec::new();
            while let Some(event) = tokio::time::timeout(PATIENCE, events.try_next()).await?? {
                if let WatchEvent::Added(t) | WatchEvent::Modified(t) = event {
                    let phase = t.status.as_ref().and_then(|s| s.phase);
                    history.push(t);
                    match phase {
                        Some(TaskPhase::Succeeded) => return Ok((Instant::now(), history)),
                        Some(TaskPhase::Failed) => bail!("Task \"{name}\" failed: {:?}", history.last()),
                        _ => {}
                    }
                }
            }
            bail!("Task \"{name}\" did not end")
        });
        tasks.create(&PostParams::default(), task).await?;
        let created = Instant::now();
        let (at, history) = ended.await??;
        Ok((at.saturating_duration_since(created), history))
    }

    /// A future that ends when a watch has shown so many Tasks with this prefix as succeeded. The
    /// watch carries metadata alone, and is open when this function returns.
    pub(crate) async fn when_succeeded(
        &self,
        prefix: String,
        count: u32,
    ) -> anyhow::Result<JoinHandle<anyhow::Result<Instant>>> {
        let params = WatchParams::default()
            .fields("status.phase=Succeeded")
            .timeout(290);
        let tasks = self.tasks();
        let mut events = tasks.watch_metadata(&params, "").await?.boxed();
        Ok(tokio::spawn(async move {
            let deadline = Instant::now() + PATIENCE;
            let mut seen = BTreeSet::new();
            while Instant::now() < deadline {
                while let Ok(Some(event)) = tokio::time::timeout(PATIENCE, events.try_next()).await? {
                    if let WatchEvent::Added(t) | WatchEvent::Modified(t) = event {
                        let name = t.name_any();
                        if name.starts_with(&prefix) && seen.insert(name) && seen.len() >= count as usize {
                            return Ok(Instant::now());
                        }
                    }
                }
                // The API server ends watches as it likes; a new one begins with what there is.
                events = tasks.watch_metadata(&params, "").await?.boxed();
            }
            bail!("{} of {count} Tasks succeeded", seen.len())
        }))
    }

    /// Mutating requests for our objects so far, as the API server counts them.
    pub(crate) async fn writes(&self) -> anyhow::Result<BTreeMap<String, u64>> {
        let request = http::Request::get("/metrics").body(Vec::new())?;
        let text = self.client.request_text(request).await?;
        let mut counts = BTreeMap::new();
        for line in text.lines().filter(|l| l.starts_with("apiserver_request_total{")) {
            let label = |name: &str| {
                let start = line.find(&format!("{name}=\""))? + name.len() + 2;
                line.get(start..)?.split('"').next()
            };
            let verb = label("verb").unwrap_or_default();
            if label("group") == Some("skyward.dev")
                && ["POST", "PUT", "PATCH", "APPLY", "DELETE"].contains(&verb)
            {
                let key = format!(
                    "{} {}/{}",
                    verb,
                    label("resource").unwrap_or_default(),
                    label("subresource").unwrap_or_default()
                );
                let value: f64 = line.rsplit(' ').next().unwrap_or("0").parse().unwrap_or(0.0);
                *counts.entry(key).or_default() += value as u64;
            }
        }
        Ok(counts)
    }
}

/// The value below which that share of the sorted samples lies.
pub(crate) fn percentile(samples: &mut [Duration], share: f64) -> Duration {
    samples.sort_unstable();
    let index = ((samples.len() as f64 * share).ceil() as usize).clamp(1, samples.len().max(1)) - 1;
    samples.get(index).copied().unwrap_or_default()
}

/// The median.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Prints one figure.
pub(crate) fn figure(name: &str, value: f64, unit: &str, bar: &str, raw: &str) {
    println!("{name} {value:.1} {unit} bar:{bar} raw:{raw}");
}

/// Says what is not measured here, and why.
#[expect(clippy::print_stderr, reason = "said to the person who runs the benchmark")]
pub(crate) fn skipped(why: &str) {
    eprintln!("skipped: {why}");
}

/// Milliseconds as a number.
pub(crate) fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
