//! An order becomes a request to Lambda, an instance becomes a machine. Pure.

use serde_json::{Value, json};
use skyward_core::{
    Mark, Order, ProviderMachine, ProviderPhase,
    machine::{Endpoint, FailureKind, Rental},
};
use skyward_provider_kit::{
    boot, cut,
    lookup::Listed,
    marks::{self, Tags},
};

use super::{config::Settings, wire::Instance};

const TAGS: Tags = Tags::new("skyward-", 128);

impl Listed for Instance {
    fn id(&self) -> String {
        self.id.clone()
    }

    fn mark(&self) -> Option<Mark> {
        TAGS.read(&self.tags)
    }

    fn gone(&self) -> bool {
        matches!(self.status.as_str(), "terminated" | "preempted")
    }
}

/// The body that orders a machine, with the name of its key. Images let the key in as `ubuntu` only,
/// and installing packages and choosing users need `root`: hence the script.
pub fn body(order: &Order, settings: &Settings, key: &str) -> Value {
    let hostname = marks::hostname(&order.mark);
    let mut body = json!({
        "region_name": order.region,
        "instance_type_name": order.instance_type,
        "ssh_key_names": [key],
        "name": cut(&hostname, 64),
        "hostname": hostname,
        "user_data": boot::script(order),
        "tags": TAGS.write(&order.mark),
    });
    if let Some(family) = &settings.image_family {
        body["image"] = json!({ "family": family });
    }
    body
}

/// The machine that an instance is; `None` when it does not carry our mark.
pub fn machine(instance: &Instance) -> Option<ProviderMachine> {
    let endpoint = Endpoint::ssh("root", instance.ip.as_deref());
    Some(ProviderMachine {
        id: instance.id.clone(),
        mark: instance.mark()?,
        phase: phase(instance, endpoint.is_some()),
        endpoint,
        // A private address exists, but the firewall blocks it.
        private_address: None,
        private_interface: None,
        host_key: None,
        // Lambda does not say since when it bills.
        rental: Rental {
            region: Some(instance.region.name.clone()),
            hourly_price: Some(instance.instance_type.price()),
            ..Rental::default()
        },
    })
}

fn phase(instance: &Instance, reachable: bool) -> ProviderPhase {
    let failed = ProviderPhase::failed;
    match instance.status.as_str() {
        "active" if reachable => ProviderPhase::Running,
        "active" => ProviderPhase::starting("waits for its address"),
        "booting" => ProviderPhase::starting("it boots; large machines take a quarter of an hour"),
        "unhealthy" => failed(
            FailureKind::Lost,
            "Lambda cannot reach it any more, and bills it until it is deleted",
        ),
        "terminating" => ProviderPhase::Stopping,
        "terminated" => failed(FailureKind::Lost, "the machine was deleted at Lambda"),
        "preempted" => failed(FailureKind::Reclaimed, "Lambda took the machine back"),
        // The Machine's own timeout ends the wait.
        other => ProviderPhase::starting(format!("Lambda: {other}")),
    }
}

#[cfg(test)]
#[path = "tests/map.rs"]
mod tests;
