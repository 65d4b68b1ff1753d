//! The state that all Container providers of one process share: a client, one watch of our Pods,
//! and the host keys read from their logs. Decides nothing.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use futures::{AsyncBufReadExt, FutureExt, Stream, StreamExt, TryStreamExt, stream::BoxStream};
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::{
    Api, Client, ResourceExt,
    api::LogParams,
    runtime::{
        WatchStreamExt,
        reflector::{self, ObjectRef},
        watcher,
    },
};
use parking_lot::Mutex;
use skyward_api::labels;
use tokio::{sync::broadcast, task::AbortHandle};
use tracing::{debug, warn};

use super::{MACHINE, Options, state};

/// Changes that a slow reader may be behind before it must look at everything.
const CHANGES: usize = 1024;
/// Longest wait for the host key within one look at a machine.
const KEY_DEADLINE: Duration = Duration::from_secs(3);
/// A machine that runs this long without a readable host key will not get one; whether
/// it is trusted at first contact is the Provider's `hostKeyPolicy`.
const KEY_PATIENCE: Duration = Duration::from_secs(30);
/// The host key stands in the first lines; a log is never read further.
const LOG_HEAD: i64 = 16 * 1024;

/// The cluster and the watches of our Pods, which end when this is dropped.
pub struct Cluster {
    /// Client of the API server.
    pub client: Client,
    /// The options of every provider.
    pub options: Options,
    watched: Vec<Watched>,
    changed: broadcast::Sender<(String, String)>,
}

/// The Pods of one namespace, or of all.
struct Watched {
    /// `None` = all.
    namespace: Option<String>,
    pods: reflector::Store<Pod>,
    host_keys: Arc<HostKeys>,
    watch: AbortHandle,
}

/// Host keys by the UID of their Pod; a key stays for the life of the Pod.
type HostKeys = Mutex<HashMap<String, String>>;

/// The state of a machine's host key.
pub enum HostKey {
    /// Read over the API server's own verified connection.
    Known(String),
    /// The machine has not printed it yet.
    NotYet,
    /// It cannot be read.
    Unreadable,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl Cluster {
    /// Begins the watches. Needs a tokio runtime.
    pub fn start(client: Client, options: Options) -> Arc<Self> {
        let (changed, _) = broadcast::channel(CHANGES);
        let begin = |api: Api<Pod>| {
            let (pods, writer) = reflector::store();
            let host_keys = Arc::<HostKeys>::default();
            let namespace = api.namespace().map(str::to_owned);
            let cluster = options.cluster.clone();
            let watch = tokio::spawn(watch(api, cluster, writer, changed.clone(), host_keys.clone()));
            Watched {
                namespace,
                pods,
                host_keys,
                watch: watch.abort_handle(),
            }
        };
        let watched = options.pods(&client, None).into_iter().map(begin).collect();
        Arc::new(Self {
            client,
            options,
            watched,
            changed,
        })
    }

    /// The watch of that namespace, if there is one.
    fn watched(&self, namespace: &str) -> Option<&Watched> {
        self.watched
            .iter()
            .find(|watched| watched.namespace.as_deref().is_none_or(|name| name == namespace))
    }

    /// The Pod as the watch last saw it; `None` also when the watch is not synced.
    pub fn cached(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        let pods = &self.watched(namespace)?.pods;
        let synced = pods
            .wait_until_ready()
            .now_or_never()
            .is_some_and(|ready| ready.is_ok());
        synced
            .then(|| pods.get(&ObjectRef::new(name).within(namespace)))
            .flatten()
    }

    fn host_keys(&self, pod: &Pod) -> Option<&HostKeys> {
        let watched = self.watched(pod.metadata.namespace.as_deref()?)?;
        Some(&watched.host_keys)
    }

    /// The host key if it was read before.
    pub fn known_host_key(&self, pod: &Pod) -> Option<String> {
        let uid = pod.metadata.uid.as_deref()?;
        self.host_keys(pod)?.lock().get(uid).cloned()
    }

    /// The host key, read from the log at the first call.
    pub async fn host_key(&self, pod: &Pod) -> HostKey {
        let (Some(uid), Some(host_keys)) = (pod.metadata.uid.as_deref(), self.host_keys(pod)) else {
            return HostKey::NotYet;
        };
        if let Some(key) = self.known_host_key(pod) {
            return HostKey::Known(key);
        }
        match tokio::time::timeout(KEY_DEADLINE, self.read_host_key(pod)).await {
            Ok(Ok(Some(key))) => {
                host_keys.lock().insert(uid.to_owned(), key.clone());
                return HostKey::Known(key);
            }
            Ok(Ok(None)) | Err(_) => {}
            Ok(Err(error)) => debug!(pod = pod.name_any(), %error, "the host key cannot be read yet"),
        }
        if running_for(pod).is_some_and(|time| time > KEY_PATIENCE) {
            HostKey::Unreadable
        } else {
            HostKey::NotYet
        }
    }

    /// Follows the log until the line with the key, or until it ends.
    async fn read_host_key(&self, pod: &Pod) -> Result<Option<String>, kube::Error> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
        let mut lines = pods.log_stream(&pod.name_any(), &log_head()).await?.lines();
        while let Some(line) = lines.try_next().await.map_err(kube::Error::ReadEvents)? {
            if let Some(key) = state::host_key(&line) {
                return Ok(Some(key));
            }
        }
        Ok(None)
    }

    /// Machines whose Pods changed. A reader that fell behind gets all of them.
    pub fn changes(&self) -> BoxStream<'static, (String, String)> {
        let stores: Vec<_> = self.watched.iter().map(|watched| watched.pods.clone()).collect();
        changes(self.changed.subscribe(), move || {
            stores
                .iter()
                .flat_map(reflector::Store::state)
                .filter_map(|pod| Some((pod.namespace()?, pod.name_any())))
                .collect()
        })
        .boxed()
    }
}

fn changes(
    receiver: broadcast::Receiver<(String, String)>,
    all: impl Fn() -> Vec<(String, String)> + Send + 'static,
) -> impl Stream<Item = (String, String)> + Send {
    futures::stream::unfold((receiver, all), |(mut receiver, all)| async move {
        let batch = match receiver.recv().await {
            Ok(one) => vec![one],
            Err(broadcast::error::RecvError::Lagged(_)) => all(),
            Err(broadcast::error::RecvError::Closed) => return None,
        };
        Some((futures::stream::iter(batch), (receiver, all)))
    })
    .flatten()
}

/// Parameters for the head of a machine's log. The container is named: the API server refuses the
/// log of a Pod with several containers otherwise.
fn log_head() -> LogParams {
    LogParams {
        container: Some(MACHINE.to_owned()),
        follow: true,
        limit_bytes: Some(LOG_HEAD),
        ..LogParams::default()
    }
}

/// How long its container runs.
fn running_for(pod: &Pod) -> Option<Duration> {
    let container = state::container(pod.status.as_ref()?)?;
    let since = container.state.as_ref()?.running.as_ref()?.started_at.as_ref()?.0;
    Duration::try_from(Timestamp::now().duration_since(since)).ok()
}

/// Keeps a cache of our Pods filled and publishes each change, until it is aborted.
async fn watch(
    pods: Api<Pod>,
    cluster: String,
    mut writer: reflector::store::Writer<Pod>,
    changed: broadcast::Sender<(String, String)>,
    host_keys: Arc<HostKeys>,
) {
    let ours = format!(
        "{}={},{}={cluster}",
        labels::MANAGED_BY,
        labels::MANAGER,
        labels::CLUSTER
    );
    let config = watcher::Config::default().labels(&ours);
    let mut events = watcher(pods, config).default_backoff().modify(strip).boxed();
    let reader = writer.as_reader();
    // No receiver is no failure: Pools may all be off.
    let tell = |pod: &Pod| {
        if let Some(namespace) = pod.namespace() {
            drop(changed.send((namespace, pod.name_any())));
        }
    };
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                warn!(%error, "the watch of our Pods was interrupted and starts again");
                continue;
            }
        };
        // Pods that vanished while the watch was down must be published too.
        let before = matches!(event, watcher::Event::InitDone).then(|| reader.state());
        writer.apply_watcher_event(&event);
        match &event {
            watcher::Event::Apply(pod) => tell(pod),
            watcher::Event::Delete(pod) => {
                if let Some(uid) = pod.metadata.uid.as_deref() {
                    host_keys.lock().remove(uid);
                }
                tell(pod);
            }
            watcher::Event::InitDone => {
                let now = reader.state();
                for pod in before.iter().flatten().chain(&now) {
                    tell(pod);
                }
                let uids: HashSet<&String> = now.iter().filter_map(|pod| pod.metadata.uid.as_ref()).collect();
                host_keys.lock().retain(|uid, _| uids.contains(uid));
            }
            watcher::Event::Init | watcher::Event::InitApply(_) => {}
        }
    }
}

/// Drops unused fields: a Pod of ours is mostly its start script.
fn strip(pod: &mut Pod) {
    pod.metadata.managed_fields = None;
    pod.metadata.annotations = None;
    if let Some(spec) = &mut pod.spec {
        spec.volumes = None;
        spec.tolerations = None;
        for container in &mut spec.containers {
            container.command = None;
            container.env = None;
            container.volume_mounts = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container::map::{
        self,
        tests::{order, settings},
    };

    #[test]
    fn the_log_that_is_read_is_that_of_the_machine() {
        let pod = map::pod(&order(), &settings(Default::default()), "local").unwrap();
        let machine = pod.spec.unwrap().containers.remove(0);
        assert_eq!(log_head().container, Some(machine.name));
    }

    #[tokio::test]
    async fn a_reader_that_fell_behind_looks_at_everything() {
        let (sender, receiver) = broadcast::channel(2);
        let all = || vec![("ns".to_owned(), "everything".to_owned())];
        for n in 0..5 {
            sender.send(("ns".to_owned(), n.to_string())).unwrap();
        }
        drop(sender);
        let seen: Vec<String> = changes(receiver, all).map(|(_, name)| name).collect().await;
        assert_eq!(seen, ["everything", "3", "4"]);
    }
}
