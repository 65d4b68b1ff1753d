//! An order becomes a request to JarvisLabs, an instance becomes a machine. Pure.

use serde_json::{Value, json};
use skyward_api::shared::{Disk, whole_gb};
use skyward_core::{
    Mark, Market, Order, ProviderError, ProviderMachine, ProviderPhase,
    machine::{Endpoint, FailureKind, Rental},
};
use skyward_provider_kit::{cut, lookup::Listed, owners::Named, ssh};

use super::{
    config::{EU1, Region, Settings},
    wire::{Machine, VM},
};

/// The disk of machines for which nobody names another size, in GB.
const DISK: u32 = 50;
/// The least disk in GB.
const LEAST: u32 = 20;
/// The same in EU1 and of virtual machines.
const LARGE: u32 = 100;
const NOT_MADE: &str =
    "JarvisLabs accepted the order and could not make the machine; the console has the reason";
const PAUSED: &str =
    "it is paused, by a person or for an empty wallet; until it is destroyed JarvisLabs bills its disk";

impl Listed for Machine {
    fn id(&self) -> String {
        self.id.to_string()
    }

    fn mark(&self) -> Option<Mark> {
        self.mark.clone()
    }

    fn gone(&self) -> bool {
        self.text("status") == "Destroyed"
    }
}

impl Machine {
    /// SSH, while it runs: what is told of a machine that does not run is from before.
    fn endpoint(&self) -> Option<Endpoint> {
        let user = if self.is_vm() { "cloud" } else { "root" };
        let address = Some(self.text("public_ip")).filter(|_| self.is_vm());
        let told = ssh::endpoint(self.text("ssh_str"), user).or_else(|| Endpoint::ssh(user, address));
        told.filter(|_| self.text("status") == "Running")
    }
}

/// The body that orders so many of these GPUs in a region. All fields that JarvisLabs' Python client sends are in it:
/// which of them are needed is not published.
pub fn body(order: &Order, of: ((u32, &str), &Region), settings: &Settings) -> Result<Value, ProviderError> {
    let ((count, gpu), region) = of;
    let usual = settings.storage.as_ref().map_or(DISK, Disk::gb);
    let disk = order.disk_bytes.map_or(usual, whole_gb);
    let is_large = region.code == EU1 || settings.template() == VM;
    Ok(json!({
        "gpu_type": gpu, "num_gpus": count, "region": region.id, "name": Named::write(&order.mark)?,
        "hdd": disk.max(if is_large { LARGE } else { LEAST }), "disk_type": "ssd",
        "is_spot": order.market == Market::Spot, "duration": "hour", "http_ports": "", "fs_id": null, "arguments": "",
        "script_id": settings.script_id, "script_args": settings.script_args.as_deref().unwrap_or_default(),
    }))
}

/// The machine that an instance is; `None` when it does not carry our mark. `is_ended` where its end was ordered.
pub fn machine(machine: &Machine, is_ended: bool) -> Option<ProviderMachine> {
    let endpoint = machine.endpoint();
    let phase = phase(machine, endpoint.is_some(), is_ended);
    Some(ProviderMachine {
        rental: Rental {
            region: machine.region().map(|region| region.code.to_owned()),
            hourly_price: machine.price,
            ..Rental::default()
        },
        ..ProviderMachine::public(machine.id(), machine.mark()?, phase, endpoint)
    })
}

fn phase(machine: &Machine, reachable: bool, is_ended: bool) -> ProviderPhase {
    let failed = ProviderPhase::failed;
    let taken = machine.market() == Market::Spot && !is_ended;
    match machine.text("status") {
        "Running" if reachable => ProviderPhase::Running,
        "Running" => ProviderPhase::starting("waits for its address"),
        "Creating" | "Pending" | "Resuming" => ProviderPhase::starting("JarvisLabs makes it"),
        "Failed" if machine.text("ssh_str").is_empty() => failed(FailureKind::NoCapacity, NOT_MADE),
        // How JarvisLabs takes a spot machine back is not published.
        "Paused" | "Pausing" | "Failed" | "Destroying" | "Destroyed" if taken => {
            failed(FailureKind::Reclaimed, "JarvisLabs took the spot machine back")
        }
        "Failed" => failed(FailureKind::Lost, "JarvisLabs says that the machine failed"),
        "Paused" | "Pausing" => ProviderPhase::Stopped(PAUSED.into()),
        "Destroying" | "Destroyed" => ProviderPhase::Stopping,
        // The Machine's own timeout ends the wait.
        other => ProviderPhase::starting(format!("JarvisLabs: {}", cut(other, 64))),
    }
}

#[cfg(test)]
#[path = "tests/map.rs"]
mod tests;
