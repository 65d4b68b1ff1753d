//! What a Pool names in its namespace and cannot do without: Secrets and ConfigMaps. They are
//! looked up at most every some seconds.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Resource};
use skyward_api::pool::PoolSpec;
use tokio::time::{Instant, timeout};

use super::observe::PoolFacts;
use crate::context::Context;

/// References of a Pool, as last looked up.
#[derive(Clone, Debug)]
pub struct ReferenceCheck {
    uid: String,
    generation: i64,
    at: Instant,
    missing: Vec<String>,
}

/// How long a look at references that were all there is good for.
pub const REFERENCES_EVERY: Duration = Duration::from_secs(30);
/// How long one that found something missing is.
pub const MISSING_EVERY: Duration = Duration::from_secs(3);
/// Longest wait for one answer.
const DEADLINE: Duration = Duration::from_secs(10);

/// Kind and name of every object of its namespace that a Pool cannot do without.
pub fn named_references(spec: &PoolSpec) -> BTreeSet<(&'static str, String)> {
    let Some(image) = &spec.image else {
        return BTreeSet::new();
    };
    let mut names = BTreeSet::new();
    for source in &image.env_from {
        if let Some(secret) = source.secret_ref.as_ref().filter(|r| !r.optional) {
            names.insert(("Secret", secret.name.clone()));
        }
        if let Some(map) = source.config_map_ref.as_ref().filter(|r| !r.optional) {
            names.insert(("ConfigMap", map.name.clone()));
        }
    }
    if let Some(bundle) = image.ca_bundle_ref.as_ref().filter(|r| !r.optional) {
        names.insert(("ConfigMap", bundle.name.clone()));
    }
    names
}

/// Those of them that are missing, by a look that is young enough.
pub(super) async fn missing_references(
    context: &Context,
    pool: &PoolFacts,
    last: &mut Option<ReferenceCheck>,
) -> Result<Vec<String>, String> {
    if let Some(check) = last.as_ref() {
        let good_for = if check.missing.is_empty() {
            REFERENCES_EVERY
        } else {
            MISSING_EVERY
        };
        if check.uid == pool.uid && check.generation == pool.generation && check.at.elapsed() < good_for {
            return Ok(check.missing.clone());
        }
    }
    let mut missing = Vec::new();
    for (kind, name) in named_references(&pool.spec) {
        let exists = match kind {
            "Secret" => exists::<Secret>(context, &pool.namespace, &name).await,
            _ => exists::<ConfigMap>(context, &pool.namespace, &name).await,
        }
        .map_err(|error| format!("{kind} \"{name}\" could not be looked up: {error}"))?;
        if !exists {
            missing.push(format!("{kind} \"{name}\""));
        }
    }
    let bundle = pool
        .spec
        .image
        .as_ref()
        .and_then(|image| image.ca_bundle_ref.as_ref())
        .filter(|bundle| !bundle.optional && !missing.contains(&format!("ConfigMap \"{}\"", bundle.name)));
    if let Some(bundle) = bundle
        && !has_certificates(context, &pool.namespace, &bundle.name)
            .await
            .map_err(|error| format!("ConfigMap \"{}\" could not be read: {error}", bundle.name))?
    {
        missing.push(format!("Key \"ca.crt\" of ConfigMap \"{}\"", bundle.name));
    }
    *last = Some(ReferenceCheck {
        uid: pool.uid.clone(),
        generation: pool.generation,
        at: Instant::now(),
        missing: missing.clone(),
    });
    Ok(missing)
}

async fn exists<K>(context: &Context, namespace: &str, name: &str) -> Result<bool, String>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(context.client.clone(), namespace);
    match timeout(DEADLINE, api.get_metadata_opt(name)).await {
        Ok(Ok(found)) => Ok(found.is_some()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("the API server did not answer in time".to_owned()),
    }
}

/// Whether a ConfigMap has the certificates that machines shall trust.
async fn has_certificates(context: &Context, namespace: &str, name: &str) -> Result<bool, String> {
    let api: Api<ConfigMap> = Api::namespaced(context.client.clone(), namespace);
    match timeout(DEADLINE, api.get_opt(name)).await {
        Ok(Ok(map)) => Ok(map
            .and_then(|map| map.data)
            .is_some_and(|data| data.contains_key("ca.crt"))),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("the API server did not answer in time".to_owned()),
    }
}
