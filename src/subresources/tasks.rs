//! Reading Tasks from the API server.

use std::time::Duration;

use async_trait::async_trait;
use kube::Api;
use skyward_api::Task;
use tokio::time::timeout;

/// How long the API server may take.
const DEADLINE: Duration = Duration::from_secs(10);

/// Where Tasks are read. Implemented by [`Cluster`]; tests bring their own.
#[async_trait]
pub trait Tasks: Send + Sync {
    /// The Task; `None` = there is none of that name.
    async fn get(&self, namespace: &str, name: &str) -> Result<Option<Task>, String>;
}

/// Reads from the API server.
pub struct Cluster(pub kube::Client);

#[async_trait]
impl Tasks for Cluster {
    async fn get(&self, namespace: &str, name: &str) -> Result<Option<Task>, String> {
        let api: Api<Task> = Api::namespaced(self.0.clone(), namespace);
        timeout(DEADLINE, api.get_opt(name))
            .await
            .map_err(|_| "the API server did not answer in time".to_owned())?
            .map_err(|error| error.to_string())
    }
}
