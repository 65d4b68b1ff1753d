//! Credentials that change: which Providers must look at their account again, because their Secret
//! changed. A rotated key is used at once and a revoked one is noticed at once, without a restart
//! and without asking more often.
//!
//! The watch sees only the metadata of Secrets, and not of Secrets that hold keys of Pools;
//! [`super::credentials`] reads the Secret for the Provider that names it. While the watch is
//! broken, the refresh interval decides.

use std::collections::BTreeMap;

use futures::{Stream, StreamExt, stream};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client, Resource, ResourceExt,
    core::PartialObjectMeta,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event},
    },
};
use parking_lot::Mutex;
use skyward_api::{Provider as ProviderObject, labels};

/// A Secret that the watch saw, and which version; `""` when it was deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub secret: String,
    pub version: String,
}

/// Version of a Secret: its UID and resource version, since a Secret that is made anew may count
/// from the beginning.
pub(super) fn version(secret: &impl Resource) -> String {
    let meta = secret.meta();
    format!(
        "{}/{}",
        meta.uid.as_deref().unwrap_or_default(),
        meta.resource_version.as_deref().unwrap_or_default()
    )
}

/// Secrets of the operator's namespace, as they are and whenever they change.
pub(super) fn watch(client: Client, namespace: &str) -> impl Stream<Item = Seen> + Send + 'static {
    let secrets: Api<PartialObjectMeta<Secret>> = Api::namespaced(client, namespace);
    let others = watcher::Config::default().labels(&format!("!{}", labels::POOL_UID));
    watcher::watcher(secrets, others)
        .default_backoff()
        .flat_map(|event| {
            stream::iter(match event {
                Ok(event) => seen(&event),
                Err(error) => {
                    tracing::warn!(%error, "the watch of Secrets broke; it begins again, and until then credentials are read at each refresh");
                    None
                }
            })
        })
}

fn seen(event: &Event<PartialObjectMeta<Secret>>) -> Option<Seen> {
    let (secret, version) = match event {
        Event::Apply(secret) | Event::InitApply(secret) => (secret, version(secret)),
        Event::Delete(secret) => (secret, String::new()),
        Event::Init | Event::InitDone => return None,
    };
    Some(Seen {
        secret: secret.name_any(),
        version,
    })
}

/// Providers whose Secret changed since their last look, each with the version.
#[derive(Debug, Default)]
pub(super) struct Rotated(Mutex<BTreeMap<String, String>>);

impl Rotated {
    /// Notes the Providers that name the Secret; returns their names.
    pub(super) fn note<'a>(
        &self,
        seen: &Seen,
        providers: impl IntoIterator<Item = &'a ProviderObject>,
    ) -> Vec<String> {
        let mut rotated = self.0.lock();
        let concerned: Vec<String> = providers
            .into_iter()
            .filter(|provider| {
                let named = provider.spec.credentials_secret_ref.as_ref();
                named.is_some_and(|named| named.name == seen.secret)
            })
            .map(ResourceExt::name_any)
            .collect();
        for name in &concerned {
            rotated.insert(name.clone(), seen.version.clone());
        }
        concerned
    }

    /// The version that a Provider must look at, once.
    pub(super) fn take(&self, provider: &str) -> Option<String> {
        self.0.lock().remove(provider)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn provider(name: &str, secret: Option<&str>) -> ProviderObject {
        serde_json::from_value(serde_json::json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Provider", "metadata": { "name": name },
            "spec": {
                "container": {}, "allowedNamespaces": {},
                "credentialsSecretRef": secret.map(|name| serde_json::json!({ "name": name })),
            },
        }))
        .unwrap()
    }

    #[test]
    fn only_the_providers_that_name_a_secret_look_again_and_each_once() {
        let all = [
            provider("one", Some("shared")),
            provider("two", Some("shared")),
            provider("other", Some("own")),
            provider("none", None),
        ];
        let rotated = Rotated::default();
        let seen = Seen {
            secret: "shared".into(),
            version: "u/7".into(),
        };
        assert_eq!(rotated.note(&seen, &all), ["one", "two"]);
        assert_eq!(rotated.take("one").as_deref(), Some("u/7"));
        assert_eq!(rotated.take("one"), None);
        assert_eq!(rotated.take("two").as_deref(), Some("u/7"));
        assert_eq!(rotated.take("other"), None);
    }

    #[test]
    fn a_secret_that_was_deleted_has_no_version_and_one_made_anew_another() {
        let secret = |uid: &str| -> PartialObjectMeta<Secret> {
            serde_json::from_value(serde_json::json!({
                "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
                "metadata": { "name": "keys", "uid": uid, "resourceVersion": "7" },
            }))
            .unwrap()
        };
        let version = |event| seen(&event).map(|seen| seen.version);
        assert_eq!(version(Event::Delete(secret("a"))).as_deref(), Some(""));
        assert_ne!(
            version(Event::Apply(secret("a"))),
            version(Event::Apply(secret("b")))
        );
        assert_eq!(version(Event::InitDone), None);
    }
}
