//! Looks up the required Secrets and ConfigMaps that a Pool names in its namespace, at most once in
//! some seconds.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Resource};
use skyward_api::{condition::reason, pool::PoolSpec};
use skyward_planner::pool::facts::{MISSING_EVERY, PoolFacts, REFERENCES_EVERY};
use tokio::time::Instant;

use crate::{
    context::Context,
    deadline::words,
    references::{CERTIFICATES, Kind, PASSWORD},
};

/// References of a Pool, as last looked up.
#[derive(Clone, Debug)]
pub struct ReferenceCheck {
    uid: String,
    generation: i64,
    at: Instant,
    found: Unusable,
}

/// The references of a Pool that keep it from having machines.
#[derive(Clone, Debug, Default)]
pub struct Unusable {
    /// Secrets and ConfigMaps that do not exist.
    pub missing: Vec<String>,
    /// Set when the Secrets and ConfigMaps for its steps are too large: why.
    pub too_large: Option<String>,
    /// Versions of all objects that it names, as one text that changes with each.
    pub versions: String,
}

/// Kind and name of every object of its namespace that a Pool names, and whether it is required.
pub fn all_references(spec: &PoolSpec) -> BTreeMap<(&'static str, String), bool> {
    let Some(image) = &spec.image else {
        return BTreeMap::new();
    };
    let sources = || image.env_from.iter().chain(&image.steps_env_from);
    let indexes = image.pip_indexes.iter();
    let secrets = sources()
        .filter_map(|source| source.secret_ref.as_ref())
        .chain(indexes.filter_map(|index| index.credentials_secret_ref.as_ref()));
    let maps = sources()
        .filter_map(|source| source.config_map_ref.as_ref())
        .chain(&image.ca_bundle_ref);
    let all = secrets
        .map(|secret| ("Secret", secret))
        .chain(maps.map(|map| ("ConfigMap", map)));
    let mut names = BTreeMap::new();
    for (kind, local) in all {
        *names.entry((kind, local.name.clone())).or_default() |= !local.optional;
    }
    names
}

/// A key without which an object is of no use to a machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamedKey {
    /// Kind of the object.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// The key.
    pub key: &'static str,
}

/// All such keys: a machine that was ordered without one would be paid for and never be prepared.
pub fn named_keys(spec: &PoolSpec) -> BTreeSet<NamedKey> {
    let Some(image) = &spec.image else {
        return BTreeSet::new();
    };
    let credentials = image
        .pip_indexes
        .iter()
        .filter_map(|index| index.credentials_secret_ref.as_ref())
        // An optional one may be missing altogether; credentials without a password are a
        // mistake in any case.
        .map(|secret| NamedKey {
            kind: Kind::Secret,
            name: secret.name.clone(),
            key: PASSWORD,
        });
    let bundle = image.ca_bundle_ref.iter().filter(|bundle| !bundle.optional);
    let certificates = bundle.map(|bundle| NamedKey {
        kind: Kind::ConfigMap,
        name: bundle.name.clone(),
        key: CERTIFICATES,
    });
    credentials.chain(certificates).collect()
}

/// The references that are missing or too large, from a recent look.
pub(super) async fn unusable_references(
    context: &Context,
    pool: &PoolFacts,
    last: &mut Option<ReferenceCheck>,
) -> Result<Unusable, String> {
    if let Some(check) = last.as_ref() {
        let good_for = if check.found.missing.is_empty() && check.found.too_large.is_none() {
            REFERENCES_EVERY
        } else {
            MISSING_EVERY
        };
        if check.uid == pool.uid && check.generation == pool.generation && check.at.elapsed() < good_for {
            return Ok(check.found.clone());
        }
    }
    let mut missing = Vec::new();
    let mut versions = Vec::new();
    for ((kind, name), is_needed) in all_references(&pool.spec) {
        let version = match kind {
            "Secret" => version::<Secret>(context, &pool.namespace, &name).await,
            _ => version::<ConfigMap>(context, &pool.namespace, &name).await,
        }
        .map_err(|error| format!("{kind} \"{name}\" could not be looked up: {error}"))?;
        if version.is_none() && is_needed {
            missing.push(format!("{kind} \"{name}\""));
        }
        versions.push(format!("{kind}/{name}@{}", version.unwrap_or_default()));
    }
    for NamedKey { kind, name, key } in named_keys(&pool.spec) {
        let what = format!("{} \"{name}\"", kind.as_str());
        if missing.contains(&what) {
            continue;
        }
        let texts = context.references.fetch(&pool.namespace, kind, &name).await;
        let texts = texts.map_err(|error| format!("{what} could not be read: {}", words(&error)))?;
        // `None`: an optional object is missing.
        if texts.is_some_and(|texts| !texts.contains_key(key)) {
            missing.push(format!("Key \"{key}\" of {what}"));
        }
    }
    let too_large = too_large(context, pool).await;
    let found = Unusable {
        missing,
        too_large,
        versions: versions.join("\n"),
    };
    *last = Some(ReferenceCheck {
        uid: pool.uid.clone(),
        generation: pool.generation,
        at: Instant::now(),
        found: found.clone(),
    });
    Ok(found)
}

/// Why the Secrets and ConfigMaps for its steps are too large, if they are. Missing or unreadable
/// ones are reported elsewhere.
async fn too_large(context: &Context, pool: &PoolFacts) -> Option<String> {
    let sources = &pool.spec.image.as_ref()?.steps_env_from;
    if sources.is_empty() {
        return None;
    }
    let read = context
        .references
        .resolve(&pool.namespace, sources, "the Pool")
        .await;
    read.err()
        .filter(|error| error.reason == reason::REFERENCE_TOO_LARGE)
        .map(|error| error.message)
}

/// The version of an object; `None` where there is none.
async fn version<K>(context: &Context, namespace: &str, name: &str) -> Result<Option<String>, String>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(context.client.clone(), namespace);
    let found = api.get_metadata_opt(name).await.map_err(|error| words(&error))?;
    Ok(found.map(|found| found.metadata.resource_version.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::http::{Request, Response};
    use kube::{Client, client::Body};
    use serde_json::{Value, json};
    use tower::service_fn;

    use super::*;
    use crate::references::References;

    fn spec(optional: bool) -> PoolSpec {
        serde_json::from_value(json!({ "provider": "local", "image": {
            "pipIndexes": [{
                "url": "https://index.example/simple",
                "credentialsSecretRef": { "name": "index", "optional": optional },
                "packages": ["theirs"]
            }],
            "caBundleRef": { "name": "authorities", "optional": optional }
        }}))
        .unwrap()
    }

    #[test]
    fn a_pool_needs_the_password_of_its_index_and_the_certificates_of_its_bundle() {
        let keys = |optional| {
            let named = named_keys(&spec(optional)).into_iter();
            named
                .map(|named| (named.kind, named.name, named.key))
                .collect::<Vec<_>>()
        };
        let password = (Kind::Secret, "index".to_owned(), "password");
        let certificates = (Kind::ConfigMap, "authorities".to_owned(), "ca.crt");
        assert_eq!(keys(false), [certificates, password.clone()]);
        assert_eq!(
            keys(true),
            [password],
            "credentials without a password are a mistake"
        );
    }

    /// A cluster with one Secret, or none.
    async fn has_password(data: Option<Value>) -> Option<bool> {
        let service = service_fn(move |_: Request<Body>| {
            let (code, answer) = match &data {
                Some(data) => (
                    200,
                    json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "index" }, "data": data }),
                ),
                None => (
                    404,
                    json!({ "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": "not found" }),
                ),
            };
            let body = Body::from(answer.to_string().into_bytes());
            let answer = Response::builder().status(code).body(body).unwrap();
            std::future::ready(Ok::<_, Infallible>(answer))
        });
        let folder = tempfile::tempdir().unwrap();
        let store = std::sync::Arc::new(skyward_store::Store::local(folder.path()).unwrap().unmeasured());
        let references = References::new(Client::new(service, "default"), store);
        let texts = references.fetch("team", Kind::Secret, "index").await.unwrap();
        texts.map(|texts| texts.contains_key(PASSWORD))
    }

    #[tokio::test]
    async fn a_secret_of_an_index_without_password_is_as_good_as_none_before_an_order() {
        assert_eq!(
            has_password(Some(json!({ "password": "cA==" }))).await,
            Some(true)
        );
        assert_eq!(has_password(Some(json!({ "token": "cA==" }))).await, Some(false));
        // 0xff is no text.
        assert_eq!(
            has_password(Some(json!({ "password": "/w==" }))).await,
            Some(false)
        );
        assert_eq!(has_password(None).await, None);
    }
}
