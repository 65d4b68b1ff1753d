//! The single list of kinds of provider. A new kind is its own folder and one line here, and
//! nothing else.

use std::{sync::Arc, time::Duration};

use skyward_api::{Duration as Lasting, crd::AccountKind, provider::ProviderSpec};
use skyward_core::{
    Account, Capabilities, CredentialKey, Credentials, Endpoints, ErrorKind, Fence, ProviderError,
};
use skyward_provider_kit::{Connected, Kind, kind::settings_of};

use crate::{
    container,
    instrumented::{CallSink, Instrumented},
    lambda, runpod, vastai, verda, vultr,
};

/// Default of `requestTimeout` of every kind.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The parts that every kind of provider may need besides its Provider object.
#[derive(Clone)]
pub struct Options {
    /// Id of this installation; by default the UID of the namespace kube-system.
    pub cluster: String,
    /// Image of Container machines where the Provider names none.
    pub node_image: String,
    /// How Pods are reached.
    pub pod_network: container::PodNetwork,
    /// Namespaces that are served; none named = all.
    pub namespaces: Vec<String>,
    /// Addresses of APIs that differ from the clouds' own.
    pub endpoints: Endpoints,
    /// The receiver that is told of every call.
    pub sink: Option<Arc<dyn CallSink>>,
    /// Closed when nothing may be changed at a cloud any more. The API server's client, which
    /// Container machines are made with, has it as a layer.
    pub fence: Fence,
}

/// A kind of provider that is reached by its API over HTTP; `container` alone is not one.
pub struct Cloud {
    /// Name of the kind: its field in a Provider's spec.
    pub name: &'static str,
    /// Keys of its Secret.
    pub credentials: &'static [CredentialKey],
    /// Names of the addresses of its APIs, with the cloud's own.
    pub endpoints: &'static [(&'static str, &'static str)],
    /// What it can do.
    pub capabilities: &'static Capabilities,
    fixed: &'static [&'static str],
    schema: fn() -> serde_json::Value,
    connect: fn(Account<serde_json::Value>) -> Connected,
}

impl Cloud {
    /// Makes the client of an account of this kind; no call is made yet.
    pub fn connect(&self, account: Account<serde_json::Value>) -> Connected {
        (self.connect)(account)
    }
}

const fn cloud<K: Kind>() -> Cloud {
    Cloud {
        name: K::NAME,
        credentials: K::CREDENTIALS,
        endpoints: K::ENDPOINTS,
        capabilities: K::CAPABILITIES,
        fixed: K::FIXED,
        schema: skyward_api::crd::settings_schema::<K::Settings>,
        connect: |account| {
            let Account {
                cluster,
                provider,
                settings,
                request_timeout,
                credentials,
                endpoints,
                fence,
            } = account;
            let settings = settings_of(K::NAME, settings)?;
            K::connect(Account {
                cluster,
                provider,
                settings,
                request_timeout,
                credentials,
                endpoints,
                fence,
            })
        },
    }
}

/// The list.
const CLOUDS: &[Cloud] = &[
    #[cfg(feature = "aws")]
    cloud::<skyward_provider_aws::AwsKind>(),
    cloud::<lambda::LambdaKind>(),
    cloud::<runpod::RunPodKind>(),
    cloud::<vastai::VastAiKind>(),
    cloud::<verda::VerdaKind>(),
    cloud::<vultr::VultrKind>(),
];

/// Every kind that is reached over HTTP.
pub fn clouds() -> &'static [Cloud] {
    CLOUDS
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
    let cloud = CLOUDS.iter().find(|cloud| cloud.name == kind)?;
    Some(cloud.capabilities)
}

/// Keys of the Secret of a kind; `container` has none.
pub fn credential_keys(kind: &str) -> &'static [CredentialKey] {
    let cloud = CLOUDS.iter().find(|cloud| cloud.name == kind);
    cloud.map_or(&[], |cloud| cloud.credentials)
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
    let pods = container::Cluster::new(
        client,
        container::Options {
            cluster: options.cluster.clone(),
            node_image: options.node_image.clone(),
            pod_network: options.pod_network,
            namespaces: options.namespaces.clone(),
        },
    );
    move |object, credentials| {
        let provider = connect(&pods, &options, object, credentials)?;
        Ok(match &options.sink {
            Some(sink) => Arc::new(Instrumented::new(provider, sink.clone())),
            None => provider,
        })
    }
}

fn connect(
    pods: &container::Cluster,
    options: &Options,
    object: &skyward_api::Provider,
    credentials: &Credentials,
) -> Connected {
    let Some((kind, settings)) = object.spec.account() else {
        return Err(unknown(&object.spec));
    };
    if kind == container::KIND {
        return container::connect(pods, object);
    }
    let Some(cloud) = CLOUDS.iter().find(|cloud| cloud.name == kind) else {
        return Err(unknown(&object.spec));
    };
    (cloud.connect)(Account {
        cluster: options.cluster.clone(),
        provider: object.metadata.name.clone().unwrap_or_default(),
        settings,
        request_timeout: request_timeout(&object.spec),
        credentials: credentials.clone(),
        endpoints: options.endpoints.clone(),
        fence: options.fence.clone(),
    })
}

/// Longest wait for one answer, bounded also for an object from before a stricter rule.
fn request_timeout(spec: &ProviderSpec) -> Duration {
    Lasting::or(spec.request_timeout.as_ref(), REQUEST_TIMEOUT)
        .clamp(Duration::from_secs(1), Duration::from_mins(5))
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
    fn waits_are_of_the_provider_and_of_no_kind() {
        for (said, expected) in [
            (None, Duration::from_secs(30)),
            (Some("44s"), Duration::from_secs(44)),
            (Some("1ms"), Duration::from_secs(1)),
            (Some("1h"), Duration::from_mins(5)),
        ] {
            let spec = json!({ "verda": {}, "allowedNamespaces": {}, "requestTimeout": said });
            let spec: ProviderSpec = serde_json::from_value(spec).unwrap();
            assert_eq!(request_timeout(&spec), expected, "{said:?}");
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
