//! An order becomes a request to Vultr, an instance becomes a machine. Pure.

use serde_json::{Value, json};
use skyward_core::{
    Mark, Order, ProviderMachine, ProviderPhase,
    machine::{Endpoint, FailureKind, Rental},
};
use skyward_provider_kit::{
    boot,
    lookup::Listed,
    marks::{self, Tags},
    time,
};

use super::{
    config::{Mode, Settings, UBUNTU},
    wire::Instance,
};

const TAGS: Tags = Tags::new("skyward-", 128);
/// Between key and value of a mark in a tag, which is a plain text.
const BETWEEN: char = ':';

/// Vultr's Ubuntu lets only SSH in by itself. This lets private addresses in, which a VPC has and
/// the Internet does not.
const OPEN: &str =
    "for net in 10.0.0.0/8 172.16.0.0/12 192.168.0.0/16; do ufw allow from $net; done || true\n";

impl Listed for Instance {
    fn id(&self) -> String {
        self.id.clone()
    }

    fn mark(&self) -> Option<Mark> {
        TAGS.read_texts(&self.tags, BETWEEN)
    }

    /// Vultr does not show machines that are gone.
    fn gone(&self) -> bool {
        false
    }
}

/// The body that orders a machine at one of the APIs, with the id of its key.
pub fn body(order: &Order, settings: &Settings, mode: Mode, key: &str) -> Value {
    let hostname = marks::hostname(&order.mark);
    let mut body = json!({
        "region": order.region,
        "plan": order.instance_type,
        "label": hostname,
        "hostname": hostname,
        "tags": TAGS.write_texts(&order.mark, BETWEEN),
        "sshkey_id": [key],
        "activation_email": false,
    });
    match (&settings.snapshot_id, &settings.image_id) {
        (Some(snapshot), _) => body["snapshot_id"] = json!(snapshot),
        (None, Some(image)) => body["image_id"] = json!(image),
        (None, None) => body["os_id"] = json!(settings.os_id.unwrap_or(UBUNTU)),
    }
    let mut script = boot::bare_script(order).unwrap_or_else(|| "#!/bin/sh\n".to_owned());
    // Bare metal has no VPC.
    if order.pool.connected && mode == Mode::Cloud {
        body["enable_vpc"] = json!(true);
        script += OPEN;
    }
    body["user_data"] = json!(boot::base64(&script));
    body
}

/// The machine that an instance is; `None` when it does not carry our mark.
pub fn machine(instance: &Instance) -> Option<ProviderMachine> {
    let endpoint = Endpoint::ssh("root", instance.main_ip.as_deref());
    Some(ProviderMachine {
        id: instance.id.clone(),
        mark: instance.mark()?,
        phase: phase(instance, endpoint.is_some()),
        endpoint,
        private_address: instance.internal_ip.clone().filter(|address| !address.is_empty()),
        private_interface: None,
        host_key: None,
        rental: Rental {
            region: Some(instance.region.clone()),
            hourly_price: instance.price,
            billed_since: time(instance.date_created.as_deref()),
            ..Rental::default()
        },
    })
}

fn phase(instance: &Instance, reachable: bool) -> ProviderPhase {
    let power = instance.power_status.as_deref().unwrap_or("running");
    let server = instance.server_status.as_deref().unwrap_or("ok");
    match (instance.status.as_str(), power, server) {
        ("active", "stopped", _) => {
            ProviderPhase::Stopped("it is switched off, and Vultr bills it until it is deleted".into())
        }
        ("active", _, "ok") if reachable => ProviderPhase::Running,
        ("active", _, "ok") => ProviderPhase::starting("waits for its address"),
        ("active", _, server) => ProviderPhase::starting(format!("its system is being installed ({server})")),
        ("pending", ..) => ProviderPhase::starting("Vultr makes it; bare metal takes up to half an hour"),
        ("suspended", ..) => ProviderPhase::failed(
            FailureKind::Lost,
            "Vultr suspended it, over a bill or a complaint; the customer portal has the reason",
        ),
        ("failed", ..) => ProviderPhase::failed(FailureKind::Other, "Vultr could not make it"),
        // The Machine's own timeout ends the wait.
        (other, ..) => ProviderPhase::starting(format!("Vultr: {other}")),
    }
}

#[cfg(test)]
#[path = "tests/map.rs"]
mod tests;
