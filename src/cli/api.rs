//! Connection to the cluster, and errors with their remedy.

use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow};
use futures::AsyncBufRead;
use hyper::Request;
use kube::{
    Api, Client, Config,
    api::ListParams,
    config::{KubeConfigOptions, Kubeconfig},
    core::{ApiResource, Object},
};
use serde::Deserialize;
use skyward_api::{
    Task,
    task::{Dependency, DependencyStatus},
};
use skyward_bundle::Digest;
use skyward_subresources::{GROUP, VERSION, uploads::State};

/// A cluster and a namespace of it.
pub(crate) struct Cluster {
    client: Client,
    pub(crate) namespace: String,
}

/// The name in `KIND/NAME`, if that is one of these kinds of ours.
pub(crate) fn name_of(text: &str, kinds: &[&str]) -> Option<String> {
    let (kind, name) = text.split_once('/')?;
    let kind = kind.to_ascii_lowercase();
    let (resource, group) = kind.split_once('.').unwrap_or((&kind, ""));
    let ours = ["", "skyward.dev", "v1alpha1.skyward.dev"];
    let is_such = kinds.contains(&resource) && ours.contains(&group) && !name.contains('/');
    is_such.then(|| name.to_owned())
}

/// Names of one page of a list.
const PAGE: u32 = 500;
/// Tasks of one page of a list: each may have more than a MiB.
const PAGE_OF_WHOLE: u32 = 50;
/// Tasks that neither run nor have ended.
const WAITING: &str = "status.phase!=Running,status.phase!=Succeeded,status.phase!=Failed";

/// A Task that waits, as far as the queue is concerned: one that an older or newer version wrote is read, too.
pub(crate) type Waiting = Object<Asked, Said>;

/// What its spec asks for.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Asked {
    /// Empty where a Pool is made for the Task, which has its name (`poolTemplate`).
    #[serde(default)]
    pub(crate) pool: String,
    pub(crate) priority: Option<i32>,
    pub(crate) suspend: Option<bool>,
    #[serde(default)]
    pub(crate) depends_on: Vec<Dependency>,
}

/// A Pool that is made for a Task has its name.
pub(crate) fn with_pool(mut task: Waiting) -> Waiting {
    if task.spec.pool.is_empty() {
        task.spec.pool = task.metadata.name.clone().unwrap_or_default();
    }
    task
}

/// What its status says.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Said {
    pub(crate) attempt: u32,
    pub(crate) dependencies: Vec<DependencyStatus>,
    pub(crate) conditions: Vec<Condition>,
}

/// A condition of a status.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Condition {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) reason: String,
    pub(crate) message: String,
}

/// Why a request failed.
pub(crate) enum Failure {
    /// Trying again may help.
    Passing(anyhow::Error),
    /// Trying again does not help.
    Lasting(anyhow::Error),
}

impl From<Failure> for anyhow::Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Passing(error) | Failure::Lasting(error) => error,
        }
    }
}

impl Cluster {
    /// The namespace of a test, behind an API server of its own.
    #[cfg(test)]
    pub(crate) fn of(client: Client) -> Self {
        Self {
            namespace: client.default_namespace().to_owned(),
            client,
        }
    }

    /// Connects as kubectl would; `acting_as`: a user and groups to impersonate.
    pub(crate) async fn connect(
        file: Option<PathBuf>,
        context: Option<String>,
        namespace: Option<String>,
        acting_as: Option<(String, Vec<String>)>,
    ) -> Result<Self> {
        let options = KubeConfigOptions {
            context,
            ..KubeConfigOptions::default()
        };
        let read = match &file {
            Some(file) => Kubeconfig::read_from(file).with_context(|| format!("reading {}", file.display())),
            None => Kubeconfig::read().context("reading the kubeconfig"),
        };
        let mut config = match read {
            Ok(kubeconfig) => Config::from_custom_kubeconfig(kubeconfig, &options)
                .await
                .context("the kubeconfig cannot be used; check it with `kubectl config view`")?,
            Err(error) if file.is_some() || options.context.is_some() => return Err(error),
            // In a Pod there is no kubeconfig.
            Err(error) => Config::incluster()
                .map_err(|_| error.context("no cluster: give --kubeconfig, or set KUBECONFIG"))?,
        };
        // A log may be silent for hours.
        config.read_timeout = None;
        if let Some((user, groups)) = acting_as {
            config.auth_info.impersonate = Some(user);
            config.auth_info.impersonate_groups = Some(groups);
        }
        let namespace = namespace.unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).context("connecting to the cluster")?;
        Ok(Self { client, namespace })
    }

    /// The Task; `None` = there is none.
    pub(crate) async fn task(&self, name: &str) -> Result<Option<Task>, Failure> {
        let api: Api<Task> = Api::namespaced(self.client.clone(), &self.namespace);
        api.get_opt(name).await.map_err(|error| self.explain(error, name))
    }

    /// Names of all Tasks with these labels.
    pub(crate) async fn tasks_with(&self, selector: &str) -> Result<Vec<String>, Failure> {
        let api: Api<Task> = Api::namespaced(self.client.clone(), &self.namespace);
        let mut params = ListParams::default().labels(selector).limit(PAGE);
        let mut names = Vec::new();
        loop {
            let listed = api.list_metadata(&params).await;
            let page = listed.map_err(|error| self.explain(error, selector))?;
            names.extend(page.items.into_iter().filter_map(|task| task.metadata.name));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => return Ok(names),
            }
        }
    }

    /// Tasks that have not started or run again later, of all Pools or of one; only what the queue is made of.
    pub(crate) async fn waiting(&self, pool: Option<&str>) -> Result<Vec<Waiting>, Failure> {
        let resource = ApiResource::erase::<Task>(&());
        let api: Api<Waiting> = Api::namespaced_with(self.client.clone(), &self.namespace, &resource);
        let selectors = match pool {
            None => vec![WAITING.to_owned()],
            Some(pool) => vec![
                format!("{WAITING},spec.pool={pool}"),
                // The Task that the Pool of this name was made for names no Pool.
                format!("{WAITING},spec.pool=,metadata.name={pool}"),
            ],
        };
        let mut waiting = Vec::new();
        for selector in selectors {
            let mut params = ListParams::default().fields(&selector).limit(PAGE_OF_WHOLE);
            loop {
                let listed = api.list(&params).await;
                let page = listed.map_err(|error| self.explain(error, "tasks"))?;
                waiting.extend(page.items.into_iter().map(with_pool));
                match page.metadata.continue_.filter(|token| !token.is_empty()) {
                    Some(token) => params.continue_token = Some(token),
                    None => break,
                }
            }
        }
        Ok(waiting)
    }

    /// Streams a subresource, with its query: `log` of `tasks` and `machines`, `result`, `result/values` and `progress` of
    /// `tasks`.
    pub(crate) async fn stream(
        &self,
        resource: &str,
        name: &str,
        subresource: &str,
    ) -> Result<impl AsyncBufRead + use<>, Failure> {
        // The name becomes part of a path.
        if name.is_empty()
            || !name
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.')
        {
            return Err(Failure::Lasting(anyhow!("{name:?} is not a name of {resource}")));
        }
        let path = format!(
            "/apis/{GROUP}/{VERSION}/namespaces/{}/{resource}/{name}/{subresource}",
            self.namespace
        );
        let request = Request::get(path)
            .body(Vec::new())
            .map_err(|error| Failure::Lasting(anyhow!(error).context("building the request")))?;
        self.client
            .request_stream(request)
            .await
            .map_err(|error| self.explain(error, name))
    }

    /// Posts to a subresource, with its query; the answer is for the user.
    pub(crate) async fn create(
        &self,
        resource: &str,
        name: &str,
        subresource: &str,
    ) -> Result<String, Failure> {
        let path = format!(
            "/apis/{GROUP}/{VERSION}/namespaces/{}/{resource}/{name}/{subresource}",
            self.namespace
        );
        let request = Request::post(path)
            .body(Vec::new())
            .map_err(|error| Failure::Lasting(anyhow!(error).context("building the request")))?;
        self.client
            .request_text(request)
            .await
            .map_err(|error| self.explain(error, name))
    }

    /// Sends a part of a bundle from an offset on, or nothing to ask where the upload goes on.
    pub(crate) async fn put_part(
        &self,
        digest: Digest,
        offset: u64,
        size: u64,
        part: Vec<u8>,
    ) -> Result<State, Failure> {
        /// The object of the API.
        #[derive(serde::Deserialize)]
        struct Bundle {
            status: State,
        }
        let path = format!(
            "/apis/{GROUP}/{VERSION}/namespaces/{}/bundles/{digest}?offset={offset}&size={size}",
            self.namespace
        );
        let request = Request::put(path)
            .header("content-type", "application/octet-stream")
            .body(part)
            .map_err(|error| Failure::Lasting(anyhow!(error).context("building the request")))?;
        let bundle: Bundle = self
            .client
            .request(request)
            .await
            .map_err(|error| self.explain(error, &digest.to_string()))?;
        Ok(bundle.status)
    }

    fn explain(&self, error: kube::Error, name: &str) -> Failure {
        let namespace = &self.namespace;
        let kube::Error::Api(status) = error else {
            let lasting = matches!(error, kube::Error::Auth(_) | kube::Error::InferConfig(_));
            let error = anyhow!(error).context("the API server cannot be reached");
            return if lasting {
                Failure::Lasting(error)
            } else {
                Failure::Passing(error)
            };
        };
        let message = status.message.trim();
        match status.code {
            404 if message.contains(&format!("{name:?} not found")) => Failure::Lasting(anyhow!(
                "there is no Task {name:?} in the namespace {namespace:?}; `kubectl get tasks.skyward.dev -A` lists all"
            )),
            404 if is_not_served(message) => Failure::Lasting(anyhow!(
                "the cluster does not serve {GROUP}: install Skyward with the chart value subresources.enabled=true"
            )),
            403 => Failure::Lasting(anyhow!(
                "{message}\nAsk for a role with `get` on tasks/log, tasks/result, tasks/progress and machines/log of {GROUP}, or `update` on bundles to upload (the chart's role skyward-view has the former, skyward-edit the latter)"
            )),
            503 if is_not_available(message) => Failure::Passing(anyhow!(
                "the logs API is not available: its Pod is not ready yet, or has a problem; `kubectl get apiservice {VERSION}.{GROUP}` says which"
            )),
            429 | 500 | 502..=504 => Failure::Passing(anyhow!("{message}")),
            401 => Failure::Lasting(anyhow!("the cluster does not know you: {message}; log in again")),
            _ => Failure::Lasting(anyhow!("{message}")),
        }
    }
}

/// Whether the message means that the API server does not know the API.
fn is_not_served(message: &str) -> bool {
    message.is_empty()
        || message.contains("page not found")
        || message.contains("could not find the requested resource")
}

/// Whether the message means that the aggregated API does not answer.
fn is_not_available(message: &str) -> bool {
    message.is_empty() || message.contains("service unavailable")
}
