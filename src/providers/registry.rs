//! The single list of kinds of provider. A new kind is its own folder and one line here, and
//! nothing else.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use skyward_api::{Duration as Lasting, crd::AccountKind, provider::ProviderSpec};
use skyward_core::{Account, CredentialKey, Credentials, Endpoints, ErrorKind, Fence, ProviderError};
pub use skyward_core::{
    Capabilities,
    provider::{Halted, Idempotency, ReclaimNotice, Regions},
};
pub use skyward_provider_kit::http::Rule;
use skyward_provider_kit::{Cloud, Connected};

use crate::{
    container, digitalocean, gcp, hyperstack,
    instrumented::{CallSink, Instrumented},
    jarvislabs, lambda, massedcompute, novita, runpod, scaleway, tensordock, vastai, verda, vultr,
};

/// The parts that every kind of provider may need besides its Provider object.
#[derive(Clone)]
pub struct Options {
    /// Options of Container providers.
    pub containers: container::Options,
    /// Addresses of APIs that differ from the clouds' own.
    pub endpoints: Endpoints,
    /// The receiver that is told of every call.
    pub sink: Option<Arc<dyn CallSink>>,
    /// Closed when nothing may be changed at a cloud any more. The API server's client, which
    /// Container machines are made with, has it as a layer.
    pub fence: Fence,
}

/// The list; `container` alone is not in it.
const CLOUDS: &[Cloud] = &[
    #[cfg(feature = "aws")]
    skyward_provider_aws::AWS,
    Cloud::of::<digitalocean::DigitalOcean>(),
    Cloud::of::<gcp::Gcp>(),
    Cloud::of::<hyperstack::Hyperstack>(),
    Cloud::of::<jarvislabs::JarvisLabs>(),
    Cloud::of::<lambda::Lambda>(),
    Cloud::of::<massedcompute::MassedCompute>(),
    Cloud::of::<novita::Novita>(),
    Cloud::of::<runpod::RunPod>(),
    Cloud::of::<scaleway::Scaleway>(),
    Cloud::of::<tensordock::TensorDock>(),
    Cloud::of::<vastai::VastAi>(),
    Cloud::of::<verda::Verda>(),
    Cloud::of::<vultr::Vultr>(),
];

/// Every kind that is reached over HTTP.
pub fn clouds() -> &'static [Cloud] {
    CLOUDS
}

fn cloud(kind: &str) -> Option<&'static Cloud> {
    CLOUDS.iter().find(|cloud| cloud.name == kind)
}

/// Names of the kinds that exist.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    std::iter::once(container::KIND).chain(CLOUDS.iter().map(|cloud| cloud.name))
}

/// What a kind can do, which is known without an account of it.
pub fn capabilities(kind: &str) -> Option<&'static Capabilities> {
    if kind == container::KIND {
        return Some(&container::CAPABILITIES);
    }
    cloud(kind).map(|cloud| cloud.capabilities)
}

/// How often a client of an account of a kind calls at most; `container` has no limit of its own.
pub fn limits(kind: &str) -> &'static [Rule] {
    cloud(kind).map_or(&[], |cloud| cloud.limits)
}

/// Keys of the Secret of a kind; `container` has none.
pub fn credential_keys(kind: &str) -> &'static [CredentialKey] {
    cloud(kind).map_or(&[], |cloud| cloud.credentials)
}

/// The kinds besides `container` with the schemas of their settings, for the CRD.
pub fn account_kinds() -> Vec<AccountKind> {
    CLOUDS
        .iter()
        .map(|cloud| AccountKind {
            name: cloud.name,
            schema: (cloud.schema)(),
            fixed: cloud.fixed,
        })
        .collect()
}

/// Makes clients of accounts from Provider objects and the content of their Secrets.
/// Shared parts (such as the watch of Pods) start with the first client that needs them and end
/// with the factory and its last client. Call it inside a tokio runtime.
pub fn factory(
    client: kube::Client,
    options: Options,
) -> impl Fn(&skyward_api::Provider, &Credentials) -> Connected + Send + Sync + 'static {
    let Options {
        containers,
        endpoints,
        sink,
        fence,
    } = options;
    let pods = LazyLock::new(|| container::Cluster::start(client, containers));
    move |object, credentials| {
        let Some((kind, _)) = object.spec.account() else {
            return Err(unknown(&object.spec));
        };
        let provider = if kind == container::KIND {
            container::connect(&pods, object)?
        } else {
            connect(object, credentials, &endpoints, &fence)?
        };
        Ok(Arc::new(Instrumented::new(provider, sink.clone())))
    }
}

/// The client of an account at a cloud, which needs no cluster: of every kind but `container`.
pub fn connect(
    object: &skyward_api::Provider,
    credentials: &Credentials,
    endpoints: &Endpoints,
    fence: &Fence,
) -> Connected {
    let account = object.spec.account();
    let known = account.and_then(|(kind, settings)| Some((cloud(kind)?, settings)));
    let (cloud, settings) = known.ok_or_else(|| unknown(&object.spec))?;
    (cloud.connect)(Account {
        provider: object.metadata.name.clone().unwrap_or_default(),
        settings,
        request_timeout: request_timeout(&object.spec, cloud.request_timeout),
        credentials: credentials.clone(),
        endpoints: endpoints.clone(),
        fence: fence.clone(),
    })
}

/// Longest wait for one answer, bounded also for an object from before a stricter rule.
fn request_timeout(spec: &ProviderSpec, default: Duration) -> Duration {
    Lasting::or(spec.request_timeout.as_ref(), default).clamp(Duration::from_secs(1), Duration::from_mins(5))
}

fn unknown(spec: &ProviderSpec) -> ProviderError {
    let written: Vec<&str> = spec.clouds.keys().map(String::as_str).collect();
    let written = if written.is_empty() {
        String::new()
    } else {
        format!(" (it says: {})", written.join(", "))
    };
    ProviderError::new(
        ErrorKind::Unsupported,
        "use the Provider",
        format!(
            "it must be exactly one kind of account that this version knows: {}{written}. Upgrade the operator, or write one of these",
            kinds().collect::<Vec<_>>().join(", ")
        ),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn waits_are_of_the_provider_and_a_kind_has_their_defaults_alone() {
        for (kind, said, expected) in [
            ("verda", None, Duration::from_secs(30)),
            ("tensordock", None, Duration::from_mins(2)),
            ("verda", Some("44s"), Duration::from_secs(44)),
            ("tensordock", Some("44s"), Duration::from_secs(44)),
            ("verda", Some("1ms"), Duration::from_secs(1)),
            ("verda", Some("1h"), Duration::from_mins(5)),
        ] {
            let spec = json!({ kind: {}, "allowedNamespaces": {}, "requestTimeout": said });
            let spec: ProviderSpec = serde_json::from_value(spec).unwrap();
            let default = cloud(kind).unwrap().request_timeout;
            assert_eq!(request_timeout(&spec, default), expected, "{kind} {said:?}");
        }
        for kind in account_kinds() {
            for wait in ["requestTimeout", "instanceTimeout"] {
                assert_eq!(
                    kind.schema["properties"][wait],
                    serde_json::Value::Null,
                    "{}",
                    kind.name
                );
                assert!(!kind.fixed.contains(&wait), "{}", kind.name);
            }
        }
    }
}
