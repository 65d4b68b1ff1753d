//! The rights that calls need, as a custom role names them.

use super::Gcp;
use crate::core::cloud::Refusal;
use crate::core::http::Answer;
use crate::core::rest::RestApi;

/// The rights that a call needs whatever it asks for.
pub(super) fn of(call: &str) -> &'static [&'static str] {
    match call {
        "project.get" => &["compute.projects.get"],
        "zones.list" => &["compute.zones.list"],
        "regions.list" => &["compute.regions.list"],
        "regions.get" => &["compute.regions.get"],
        "types.list" => &["compute.machineTypes.list"],
        "accelerators.list" => &["compute.acceleratorTypes.list"],
        "networks.get" => &["compute.networks.get"],
        "firewalls.list" => &["compute.firewalls.list"],
        "firewalls.get" => &["compute.firewalls.get"],
        "firewalls.create" => &["compute.firewalls.create", "compute.networks.updatePolicy"],
        "firewalls.delete" => &["compute.firewalls.delete", "compute.networks.updatePolicy"],
        "operations.list" => &["compute.zoneOperations.list"],
        "operations.get" | "operations.wait" => &["compute.zoneOperations.get"],
        "global-operations.get" | "global-operations.wait" => &["compute.globalOperations.get"],
        "instances.list" => &["compute.instances.list"],
        "instances.get" => &["compute.instances.get"],
        "instances.create" => &["compute.instances.create", "compute.disks.create"],
        "instances.delete" => &["compute.instances.delete"],
        // Everybody may use the images of Google's projects.
        _ => &[],
    }
}

/// The answer to a call whose account lacks the first of these rights.
pub(super) fn denied(rights: &[&str], target: &str) -> Answer {
    let right = rights.first().unwrap_or(&"compute.images.useReadOnly");
    let text = format!("Required '{right}' permission for '{target}'");
    Gcp::problem(403, "forbidden", &text)
}

/// The same as a refusal.
pub(super) fn lacks(rights: &[&str], target: &str) -> Refusal {
    Refusal::Answer(denied(rights, target))
}
