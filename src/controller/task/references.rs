//! Reads Secrets and ConfigMaps that Tasks and Pools name. What was read counts for some
//! seconds, so that a thousand Tasks of one Secret do not read it a thousand times.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Client};
use skyward_api::shared::EnvFrom;
use tokio::time::{Instant, timeout};

use crate::task::message::Resolved;

/// How long what was read counts.
const FRESH: Duration = Duration::from_secs(5);
/// Longest wait for the API server.
const DEADLINE: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Secret,
    ConfigMap,
}

impl Kind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Secret => "Secret",
            Self::ConfigMap => "ConfigMap",
        }
    }
}

/// The texts of an object; `None`: there is no such object.
type Found = Option<Arc<BTreeMap<String, String>>>;

type CacheKey = (String, Kind, String);

/// Reads Secrets and ConfigMaps.
pub(crate) struct References {
    client: Client,
    recent: Mutex<HashMap<CacheKey, (Instant, Found)>>,
}

impl References {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            recent: Mutex::default(),
        }
    }

    /// The environment of these references; the error is for the user.
    pub(crate) async fn resolve(&self, namespace: &str, refs: &[EnvFrom]) -> Result<Resolved, String> {
        let mut resolved = Resolved::default();
        for reference in refs {
            let named = [
                (Kind::Secret, reference.secret_ref.as_ref()),
                (Kind::ConfigMap, reference.config_map_ref.as_ref()),
            ];
            for (kind, local) in named {
                let Some(local) = local else { continue };
                let what = kind.as_str();
                match self.read(namespace, kind, &local.name).await {
                    Ok(Some(texts)) => add(&mut resolved, kind, &reference.prefix, &texts),
                    Ok(None) if local.optional => {}
                    Ok(None) => {
                        return Err(format!(
                            "there is no {what} \"{}\" in namespace \"{namespace}\"; create it, and the Task \
                             goes on by itself",
                            local.name
                        ));
                    }
                    Err(error) => {
                        return Err(format!(
                            "{what} \"{}\" in namespace \"{namespace}\" cannot be read: {error}",
                            local.name
                        ));
                    }
                }
            }
        }
        Ok(resolved)
    }

    async fn read(&self, namespace: &str, kind: Kind, name: &str) -> Result<Found, String> {
        let key = (namespace.to_owned(), kind, name.to_owned());
        {
            let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((at, found)) = recent.get(&key)
                && at.elapsed() < FRESH
                && found.is_some()
            {
                return Ok(found.clone());
            }
        }
        let found = timeout(DEADLINE, self.fetch(namespace, kind, name))
            .await
            .map_err(|_| "the API server does not answer".to_owned())?
            .map_err(|error| match error {
                kube::Error::Api(status) => status.message.clone(),
                other => other.to_string(),
            })?
            .map(Arc::new);
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.retain(|_, (at, _)| at.elapsed() < FRESH);
        recent.insert(key, (Instant::now(), found.clone()));
        Ok(found)
    }

    async fn fetch(
        &self,
        namespace: &str,
        kind: Kind,
        name: &str,
    ) -> Result<Option<BTreeMap<String, String>>, kube::Error> {
        Ok(match kind {
            Kind::Secret => {
                let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
                let texts = |secret: Secret| {
                    let data = secret.data.unwrap_or_default().into_iter();
                    data.filter_map(|(key, value)| Some((key, String::from_utf8(value.0).ok()?)))
                        .collect()
                };
                api.get_opt(name).await?.map(texts)
            }
            Kind::ConfigMap => {
                let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
                api.get_opt(name).await?.map(|map| map.data.unwrap_or_default())
            }
        })
    }
}

/// As Pods have it: keys that cannot be names of variables are left out.
fn add(resolved: &mut Resolved, kind: Kind, prefix: &str, texts: &BTreeMap<String, String>) {
    for (key, value) in texts {
        if key.contains('=') || value.contains('\0') {
            continue;
        }
        if kind == Kind::Secret {
            resolved.secrets.push(value.clone());
        }
        resolved.env.insert(format!("{prefix}{key}"), value.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_secrets_are_known_as_such_and_later_ones_win() {
        let mut resolved = Resolved::default();
        add(
            &mut resolved,
            Kind::ConfigMap,
            "X_",
            &[("a".to_owned(), "plain".to_owned())].into(),
        );
        add(
            &mut resolved,
            Kind::Secret,
            "X_",
            &[
                ("a".to_owned(), "canary".to_owned()),
                ("b".to_owned(), "nul\0".to_owned()),
            ]
            .into(),
        );
        assert_eq!(resolved.env, [("X_a".to_owned(), "canary".to_owned())].into());
        assert_eq!(resolved.secrets, ["canary"]);
        assert!(!format!("{resolved:?}").contains("canary"));
    }
}
