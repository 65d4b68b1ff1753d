//! Writes to the API server: each is counted. What became of one that failed is the same for all
//! controllers.

use kube::{Resource, ResourceExt, api::Patch};
use serde_json::{Value, json};
use skyward_api::labels;

use crate::{deadline::is_late, metrics::Metrics};

/// Why a write did not succeed, with the words for what it was to do.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The object changed meanwhile, or is another one of that name: the plan was made from an old view.
    #[error("could not {0}")]
    Stale(&'static str, #[source] Box<kube::Error>),
    /// The API server refused or is away.
    #[error("could not {0}")]
    Api(&'static str, #[source] Box<kube::Error>),
    /// It did not answer.
    #[error("could not {0}: the API server did not answer in time")]
    Late(&'static str),
}

impl ApiError {
    /// Stable name for metrics.
    pub(crate) const fn category(&self) -> &'static str {
        match self {
            Self::Stale(..) => "conflict",
            Self::Api(..) => "api",
            Self::Late(_) => "api_late",
        }
    }

    /// What the API server answered: the HTTP status, and its message.
    pub(crate) fn refusal(&self) -> Option<(u16, &str)> {
        match self {
            Self::Stale(_, error) | Self::Api(_, error) => match error.as_ref() {
                kube::Error::Api(status) => Some((status.code, &status.message)),
                _ => None,
            },
            Self::Late(_) => None,
        }
    }

    /// Whether the object is not there.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self.refusal(), Some((404, _)))
    }
}

/// One write of an object of this kind, counted.
pub(crate) async fn write<T>(
    metrics: &Metrics,
    kind: &'static str,
    what: &'static str,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, ApiError> {
    metrics.api_write(kind);
    call.await.map_err(|error| match &error {
        kube::Error::Api(status) if status.code == 409 => ApiError::Stale(what, Box::new(error)),
        late if is_late(late) => ApiError::Late(what),
        _ => ApiError::Api(what, Box::new(error)),
    })
}

/// Puts our finalizer on an object, or takes it off, from the version that was decided on.
pub(crate) fn finalizer_patch(object: &impl Resource, on: bool) -> Patch<Value> {
    let mut finalizers = object.finalizers().to_vec();
    finalizers.retain(|name| name != labels::FINALIZER);
    if on {
        finalizers.push(labels::FINALIZER.to_owned());
    }
    Patch::Merge(json!({
        "metadata": { "resourceVersion": object.meta().resource_version, "finalizers": finalizers }
    }))
}
