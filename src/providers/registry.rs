//! The single list of kinds of provider. If adding one means touching another place
//! than this list and its own folder, this list is missing something.

use std::sync::Arc;

use skyward_api::provider::ProviderSpec;
use skyward_core::{ErrorKind, Provider, ProviderError};

use crate::{
    container,
    instrumented::{CallSink, Instrumented},
};

/// What every kind of provider may need besides its Provider object.
#[derive(Clone)]
pub struct Options {
    /// This installation: UID of the kube-system namespace.
    pub cluster: String,
    /// Image of Container machines where the Provider names none.
    pub node_image: String,
    /// How Pods are reached.
    pub pod_network: container::PodNetwork,
    /// Who is told of every call.
    pub sink: Option<Arc<dyn CallSink>>,
}

/// What the kinds share within one process: connections and watches.
struct Shared {
    options: Options,
    container: container::Cluster,
}

type Connected = Result<Arc<dyn Provider>, ProviderError>;

/// One kind of provider.
struct Kind {
    name: &'static str,
    configured: fn(&ProviderSpec) -> bool,
    connect: fn(&Shared, &skyward_api::Provider) -> Connected,
}

/// The list.
const KINDS: &[Kind] = &[Kind {
    name: container::KIND,
    configured: |spec| spec.container.is_some(),
    connect: |shared, object| container::connect(&shared.container, object),
}];

/// Names of the kinds that exist.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    KINDS.iter().map(|kind| kind.name)
}

/// Makes clients of accounts from Provider objects. What they share (such as the watch
/// of Pods) starts with the first client that needs it and ends with the factory and
/// its last client. Call it inside a tokio runtime.
pub fn factory(
    client: kube::Client,
    options: Options,
) -> impl Fn(&skyward_api::Provider) -> Connected + Send + Sync + 'static {
    let container = container::Cluster::new(
        client,
        container::Options {
            cluster: options.cluster.clone(),
            node_image: options.node_image.clone(),
            pod_network: options.pod_network,
        },
    );
    let shared = Shared { options, container };
    move |object| {
        let kind = KINDS.iter().find(|kind| (kind.configured)(&object.spec)).ok_or_else(|| {
            ProviderError::new(
                ErrorKind::Unsupported,
                "use the Provider",
                format!(
                    "this version knows no such kind of account; it knows: {}. Upgrade the operator, or write one of these",
                    kinds().collect::<Vec<_>>().join(", ")
                ),
            )
        })?;
        let provider = (kind.connect)(&shared, object)?;
        Ok(match &shared.options.sink {
            Some(sink) => Arc::new(Instrumented::new(provider, sink.clone())),
            None => provider,
        })
    }
}
