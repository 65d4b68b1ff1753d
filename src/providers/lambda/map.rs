//! An order becomes a request to Lambda, an instance becomes a machine. Pure.

use serde_json::{Value, json};
use skyward_core::{
    Mark, Order, ProviderMachine, ProviderPhase,
    machine::{Dial, Endpoint, FailureKind, Rental},
};

use super::{config::Settings, wire::Instance};
use skyward_provider_kit::{cut, dns_label, marks, quoted};

/// Longest value of a tag.
const TAG_VALUE: usize = 128;

/// Whose an instance is, if it is ours.
pub fn mark(instance: &Instance) -> Option<Mark> {
    marks::from_tags(|key| {
        let found = instance.tags.iter().find(|tag| tag.key == key);
        found.map(|tag| tag.value.clone())
    })
}

/// What a machine is told at its first boot. Images let the key in as `ubuntu` only, and
/// `root` is who installs packages and lets Pools choose their users.
fn user_data(order: &Order) -> String {
    format!(
        "#!/bin/sh\n\
         mkdir -p -m 700 /root/.ssh\n\
         printf '%s\\n' {key} >/root/.ssh/authorized_keys\n\
         chmod 600 /root/.ssh/authorized_keys\n\
         {boot}",
        key = quoted(order.authorized_key.trim()),
        boot = order.boot_script,
    )
}

/// The body that orders a machine, with the name of its key.
pub fn body(order: &Order, settings: &Settings, key: &str) -> Value {
    let tags: Vec<Value> = marks::tags(&order.mark, TAG_VALUE)
        .into_iter()
        .map(|(key, value)| json!({ "key": key, "value": value }))
        .collect();
    let hostname = dns_label(&format!("skyward-{}", order.mark.machine));
    let mut body = json!({
        "region_name": order.region,
        "instance_type_name": order.instance_type,
        "ssh_key_names": [key],
        "name": cut(&hostname, 64),
        "hostname": hostname,
        "user_data": user_data(order),
        "tags": tags,
    });
    if let Some(family) = &settings.image_family {
        body["image"] = json!({ "family": family });
    }
    body
}

/// Whether the instance exists no more; lists may show it for a while.
pub fn gone(instance: &Instance) -> bool {
    matches!(instance.status.as_str(), "terminated" | "preempted")
}

/// The machine that an instance is; `None` when it does not carry our mark.
pub fn machine(instance: &Instance) -> Option<ProviderMachine> {
    let endpoint = instance
        .ip
        .as_deref()
        .and_then(|ip| ip.trim().parse::<std::net::IpAddr>().ok())
        .map(|ip| Endpoint {
            dial: Dial::Address((ip, 22).into()),
            user: "root".to_owned(),
        });
    Some(ProviderMachine {
        id: instance.id.clone(),
        mark: mark(instance)?,
        phase: phase(instance, endpoint.is_some()),
        endpoint,
        // There is one, but the firewall lets nothing through to it.
        private_address: None,
        private_interface: None,
        host_key: None,
        rental: Rental {
            region: Some(instance.region.name.clone()),
            hourly_price: Some(instance.instance_type.price()),
            // Lambda does not say since when.
            billed_since: None,
            reclaim_at: None,
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
