//! Writes the statuses of Tasks. The statuses of all Pools share a bounded number of writes at a time, in fair turns:
//! a namespace whose writes stand still, as behind a webhook of its own, delays no Task of another one, and a Pool
//! that places thousands of Tasks at once delays another Pool by one write.
//!
//! The outcome of a write is told as it is; whether the write is tried again is decided elsewhere.

use std::sync::Arc;

use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use skyward_api::{Task, TaskStatus};
use skyward_planner::{
    base::key::Key,
    task::{message::WriteError, status},
};
use skyward_remote::turns::{Turn, Turns};

use crate::{deadline::words, metrics::Metrics};

/// Writes to the API server at once, over all Pools.
const AT_ONCE: usize = 64;
/// Writes to the API server at once of one namespace. A write takes some milliseconds, so this is no limit while the
/// API server answers.
const EACH: usize = 16;

/// A status, and the object that it is of.
#[derive(Clone, Copy)]
pub(crate) struct Written<'a> {
    /// UID of the Task.
    pub(crate) uid: &'a str,
    /// Its name.
    pub(crate) name: &'a str,
    /// The version that the status was decided on.
    pub(crate) version: &'a str,
    /// The whole status.
    pub(crate) status: &'a TaskStatus,
}

/// The turns of all writes.
pub(crate) struct Writes(Arc<Turns>);

impl Default for Writes {
    fn default() -> Self {
        Self(Turns::new(AT_ONCE, EACH))
    }
}

impl Writes {
    /// Waits until the turn of that Pool has come, for a write of another kind.
    pub(crate) async fn turn(&self, pool: &Key) -> Turn {
        self.0.wait(&pool.namespace, &pool.name).await
    }

    /// Writes a status when the turn of its Pool has come, if nobody changed the object since that version.
    pub(crate) async fn write(
        &self,
        client: &Client,
        metrics: &Metrics,
        pool: &Key,
        written: Written<'_>,
    ) -> Result<Arc<Task>, WriteError> {
        let Written {
            uid,
            name,
            version,
            status,
        } = written;
        let patch = match serde_json::from_value(status::patch(uid, version, status)) {
            Ok(patch) => Patch::Json::<()>(patch),
            Err(error) => return Err(WriteError::Invalid(error.to_string())),
        };
        let _turn = self.turn(pool).await;
        metrics.api_write("Task");
        let api: Api<Task> = Api::namespaced(client.clone(), &pool.namespace);
        match api.patch_status(name, &PatchParams::default(), &patch).await {
            Ok(task) => Ok(Arc::new(task)),
            Err(kube::Error::Api(answer)) => Err(match answer.code {
                404 => WriteError::Gone,
                409 => WriteError::Conflict,
                400 | 413 | 422 => WriteError::Invalid(answer.message.clone()),
                code => {
                    tracing::warn!(%pool, task = name, code, error = %answer.message,
                        "a status could not be written");
                    WriteError::Unknown(answer.message.clone())
                }
            }),
            Err(error) => {
                tracing::warn!(%pool, task = name, %error, "a status could not be written");
                Err(WriteError::Unknown(words(&error)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::http::{Request, Response};
    use futures::FutureExt;
    use kube::client::Body;
    use serde_json::json;
    use tower::service_fn;

    use super::*;

    /// An API server that never answers to writes of the namespace "stuck".
    fn server() -> Client {
        let service = service_fn(|request: Request<Body>| async move {
            if request.uri().path().contains("/namespaces/stuck/") {
                std::future::pending::<()>().await;
            }
            let task = json!({
                "apiVersion": "skyward.dev/v1alpha1", "kind": "Task", "metadata": { "name": "t", "namespace": "team" },
                "spec": { "pool": "p", "command": ["true"] },
            });
            Ok::<_, Infallible>(Response::new(Body::from(task.to_string().into_bytes())))
        });
        Client::new(service, "team")
    }

    #[tokio::test]
    async fn a_namespace_whose_writes_stand_still_delays_no_other_one() {
        let (client, metrics, writes) = (server(), Metrics::default(), Writes::default());
        let status = TaskStatus::default();
        let written = Written {
            uid: "u",
            name: "t",
            version: "1",
            status: &status,
        };
        let stuck = Key::new("stuck", "p");
        let mut waiting: Vec<_> = (0..1000)
            .map(|_| Box::pin(writes.write(&client, &metrics, &stuck, written)))
            .collect();
        for write in &mut waiting {
            assert!(write.as_mut().now_or_never().is_none(), "it stands still");
        }
        let team = Key::new("team", "p");
        let write = writes.write(&client, &metrics, &team, written);
        let task = tokio::time::timeout(std::time::Duration::from_secs(10), write).await;
        assert!(task.expect("it has its turn").is_ok());
    }
}
