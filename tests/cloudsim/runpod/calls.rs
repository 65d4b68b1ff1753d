//! All calls: where they are, and their names in the log and in rules of faults.

use crate::core::cloud::{Call, Effect};
use crate::core::http::Request;

/// Method, path (`*` is any one part of it), name and effect.
type Row = (&'static str, &'static str, &'static str, Effect);

#[rustfmt::skip]
const V2: &[Row] = &[
    ("GET", "v2/pods", "pods.list", Effect::Read),
    ("POST", "v2/pods", "pods.create", Effect::Create),
    ("GET", "v2/pods/*", "pods.get", Effect::Read),
    ("PATCH", "v2/pods/*", "pods.update", Effect::Change),
    ("DELETE", "v2/pods/*", "pods.delete", Effect::Delete),
    ("POST", "v2/pods/*/action", "pods.action", Effect::Delete),
    ("GET", "v2/clusters", "clusters.list", Effect::Read),
    ("POST", "v2/clusters", "clusters.create", Effect::Create),
    ("GET", "v2/clusters/*", "clusters.get", Effect::Read),
    ("GET", "v2/clusters/*/pods", "clusters.pods", Effect::Read),
    ("DELETE", "v2/clusters/*", "clusters.delete", Effect::Delete),
    ("GET", "v2/catalog/gpus", "gpus.list", Effect::Read),
    ("GET", "v2/catalog/gpus/*", "gpus.get", Effect::Read),
    ("GET", "v2/catalog/cpus", "cpus.list", Effect::Read),
    ("GET", "v2/catalog/cpus/*", "cpus.get", Effect::Read),
    ("GET", "v2/catalog/datacenters", "datacenters.list", Effect::Read),
    ("GET", "v2/catalog/datacenters/*", "datacenters.get", Effect::Read),
    ("GET", "v2/catalog/templates", "templates.public", Effect::Read),
    ("GET", "v2/templates", "templates.list", Effect::Read),
    ("POST", "v2/templates", "templates.create", Effect::Change),
    ("GET", "v2/templates/*", "templates.get", Effect::Read),
    ("PATCH", "v2/templates/*", "templates.update", Effect::Change),
    ("DELETE", "v2/templates/*", "templates.delete", Effect::Change),
    ("GET", "v2/network-volumes", "volumes.list", Effect::Read),
    ("POST", "v2/network-volumes", "volumes.create", Effect::Change),
    ("GET", "v2/network-volumes/*", "volumes.get", Effect::Read),
    ("PATCH", "v2/network-volumes/*", "volumes.update", Effect::Change),
    ("DELETE", "v2/network-volumes/*", "volumes.delete", Effect::Change),
    ("GET", "v2/registries", "registries.list", Effect::Read),
    ("POST", "v2/registries", "registries.create", Effect::Change),
    ("GET", "v2/registries/*", "registries.get", Effect::Read),
    ("DELETE", "v2/registries/*", "registries.delete", Effect::Change),
    ("GET", "v2/billing", "billing.all", Effect::Read),
    ("GET", "v2/billing/pods", "billing.pods", Effect::Read),
    ("GET", "v2/billing/clusters", "billing.clusters", Effect::Read),
    ("GET", "v2/billing/network-volumes", "billing.volumes", Effect::Read),
    ("GET", "v2/account/ssh-keys", "keys.get", Effect::Read),
    ("PUT", "v2/account/ssh-keys", "keys.replace", Effect::Change),
];

#[rustfmt::skip]
const V1: &[Row] = &[
    ("GET", "v1/pods", "v1.pods.list", Effect::Read),
    ("POST", "v1/pods", "v1.pods.create", Effect::Create),
    ("GET", "v1/pods/*", "v1.pods.get", Effect::Read),
    ("PATCH", "v1/pods/*", "v1.pods.update", Effect::Change),
    ("POST", "v1/pods/*/update", "v1.pods.update", Effect::Change),
    ("DELETE", "v1/pods/*", "v1.pods.delete", Effect::Delete),
    ("POST", "v1/pods/*/start", "v1.pods.start", Effect::Change),
    ("POST", "v1/pods/*/stop", "v1.pods.stop", Effect::Delete),
    ("POST", "v1/pods/*/reset", "v1.pods.reset", Effect::Change),
    ("POST", "v1/pods/*/restart", "v1.pods.restart", Effect::Change),
    ("GET", "v1/templates", "v1.templates.list", Effect::Read),
    ("POST", "v1/templates", "v1.templates.create", Effect::Change),
    ("GET", "v1/templates/*", "v1.templates.get", Effect::Read),
    ("PATCH", "v1/templates/*", "v1.templates.update", Effect::Change),
    ("POST", "v1/templates/*/update", "v1.templates.update", Effect::Change),
    ("DELETE", "v1/templates/*", "v1.templates.delete", Effect::Change),
    ("GET", "v1/networkvolumes", "v1.volumes.list", Effect::Read),
    ("POST", "v1/networkvolumes", "v1.volumes.create", Effect::Change),
    ("GET", "v1/networkvolumes/*", "v1.volumes.get", Effect::Read),
    ("PATCH", "v1/networkvolumes/*", "v1.volumes.update", Effect::Change),
    ("POST", "v1/networkvolumes/*/update", "v1.volumes.update", Effect::Change),
    ("DELETE", "v1/networkvolumes/*", "v1.volumes.delete", Effect::Change),
    ("GET", "v1/containerregistryauth", "v1.registries.list", Effect::Read),
    ("POST", "v1/containerregistryauth", "v1.registries.create", Effect::Change),
    ("GET", "v1/containerregistryauth/*", "v1.registries.get", Effect::Read),
    ("DELETE", "v1/containerregistryauth/*", "v1.registries.delete", Effect::Change),
    ("GET", "v1/billing/pods", "v1.billing.pods", Effect::Read),
    ("GET", "v1/billing/networkvolumes", "v1.billing.volumes", Effect::Read),
];

/// A first field of a query, name and effect.
#[rustfmt::skip]
const GRAPHQL: &[(&str, &str, Effect)] = &[
    ("gpuTypes", "graphql.gpuTypes", Effect::Read),
    ("cpuFlavors", "graphql.cpuFlavors", Effect::Read),
    ("countryCodes", "graphql.countryCodes", Effect::Read),
    ("dataCenters", "graphql.dataCenters", Effect::Read),
    ("myself", "graphql.myself", Effect::Read),
    ("pod", "graphql.pod", Effect::Read),
    ("podTemplates", "graphql.podTemplates", Effect::Read),
    ("podTemplate", "graphql.podTemplate", Effect::Read),
    ("podFindAndDeployOnDemand", "graphql.podFindAndDeployOnDemand", Effect::Create),
    ("podRentInterruptable", "graphql.podRentInterruptable", Effect::Create),
    ("deployCpuPod", "graphql.deployCpuPod", Effect::Create),
    ("podEditJob", "graphql.podEditJob", Effect::Change),
    ("podStop", "graphql.podStop", Effect::Change),
    ("podResume", "graphql.podResume", Effect::Change),
    ("podBidResume", "graphql.podBidResume", Effect::Change),
    ("podTerminate", "graphql.podTerminate", Effect::Delete),
    ("createCluster", "graphql.createCluster", Effect::Create),
    ("deleteCluster", "graphql.deleteCluster", Effect::Delete),
    ("saveTemplate", "graphql.saveTemplate", Effect::Change),
    ("deleteTemplate", "graphql.deleteTemplate", Effect::Change),
    ("saveRegistryAuth", "graphql.saveRegistryAuth", Effect::Change),
    ("updateRegistryAuth", "graphql.updateRegistryAuth", Effect::Change),
    ("deleteRegistryAuth", "graphql.deleteRegistryAuth", Effect::Change),
    ("createNetworkVolume", "graphql.createNetworkVolume", Effect::Change),
    ("updateNetworkVolume", "graphql.updateNetworkVolume", Effect::Change),
    ("deleteNetworkVolume", "graphql.deleteNetworkVolume", Effect::Change),
    ("updateUserSettings", "graphql.updateUserSettings", Effect::Change),
];

/// All of them.
pub(super) fn all() -> Vec<Call> {
    let rest = V2
        .iter()
        .chain(V1)
        .map(|(_, _, name, effect)| Call::new(name, *effect));
    let graphql = GRAPHQL.iter().map(|(_, name, effect)| Call::new(name, *effect));
    rest.chain(graphql).collect()
}

/// Which call by REST this is; v1 has none unless it is served.
pub(super) fn rest(request: &Request, v1: bool) -> Option<Call> {
    if is_left_out(request) {
        return None;
    }
    let parts = request.segments();
    let rows = match parts.first().map(String::as_str) {
        Some("v2") => V2,
        Some("v1") if v1 => V1,
        _ => return None,
    };
    rows.iter()
        .find(|(method, path, ..)| request.method.as_str() == *method && fits(path, &parts))
        .map(|(_, _, name, effect)| Call::new(name, *effect))
}

fn fits(path: &str, parts: &[String]) -> bool {
    let wanted: Vec<&str> = path.split('/').collect();
    wanted.len() == parts.len()
        && wanted
            .iter()
            .zip(parts)
            .all(|(wanted, part)| *wanted == "*" || *wanted == part.as_str())
}

/// Which call a query is whose first field is this.
pub(super) fn graphql(field: &str) -> Call {
    GRAPHQL
        .iter()
        .find(|(known, ..)| *known == field)
        .map_or(Call::new("graphql", Effect::Read), |(_, name, effect)| {
            Call::new(name, *effect)
        })
}

/// Calls that RunPod has and this simulator leaves out, most of them serverless, which this project
/// does not use. They are told apart from calls that RunPod does not have either.
pub(super) fn is_left_out(request: &Request) -> bool {
    let parts = request.segments();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    match parts.as_slice() {
        ["v2", "serverless", ..]
        | ["v2", "billing", "serverless" | "endpoints"]
        | ["v2", "pods", _, "logs"]
        | ["v2", "registries", "delegations", ..]
        | ["v1", "endpoints", ..]
        | ["v1", "billing", "endpoints"] => true,
        ["v2", "clusters", _] => request.method == http::Method::PATCH,
        _ => false,
    }
}
