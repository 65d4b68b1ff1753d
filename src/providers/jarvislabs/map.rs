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
        let (command, address) = (self.text("ssh_str"), self.text("public_ip"));
        match (self.text("status"), self.is_vm()) {
            ("Running", true) if command.is_empty() => Endpoint::ssh("cloud", Some(address)),
            ("Running", true) => ssh::endpoint(command, "cloud"),
            ("Running", false) => ssh::endpoint(command, "root"),
            _ => None,
        }
    }
}

/// The body that orders so many of these GPUs. All fields that JarvisLabs' Python client sends are in it: which of them
/// are needed is not published.
pub fn body(
    order: &Order,
    (count, gpu): (u32, &str),
    region: &Region,
    settings: &Settings,
) -> Result<Value, ProviderError> {
    let disk = order
        .disk_bytes
        .map(whole_gb)
        .or_else(|| settings.storage.as_ref().map(Disk::gb));
    let is_large = region.code == EU1 || settings.template() == VM;
    Ok(json!({
        "gpu_type": gpu,
        "num_gpus": count,
        "hdd": disk.unwrap_or(DISK).max(if is_large { LARGE } else { LEAST }),
        "region": region.id,
        "name": Named::write(&order.mark)?,
        "is_spot": order.market == Market::Spot,
        "duration": "hour",
        "disk_type": "ssd",
        "http_ports": "",
        "script_id": settings.script_id,
        "script_args": settings.script_args.as_deref().unwrap_or_default(),
        "fs_id": null,
        "arguments": "",
    }))
}

/// The machine that an instance is; `None` when it does not carry our mark. `is_ended` where its end was ordered.
pub fn machine(machine: &Machine, is_ended: bool) -> Option<ProviderMachine> {
    let endpoint = machine.endpoint();
    Some(ProviderMachine {
        id: machine.id(),
        mark: machine.mark()?,
        phase: phase(machine, endpoint.is_some(), is_ended),
        endpoint,
        private_address: None,
        private_interface: None,
        host_key: None,
        rental: Rental {
            region: machine.region().map(|region| region.code.to_owned()),
            hourly_price: machine.price,
            ..Rental::default()
        },
    })
}

fn phase(machine: &Machine, reachable: bool, is_ended: bool) -> ProviderPhase {
    let failed = ProviderPhase::failed;
    let taken = machine.market() == Market::Spot && !is_ended;
    match machine.text("status") {
        "Running" if reachable => ProviderPhase::Running,
        "Running" => ProviderPhase::starting("waits for its address"),
        "Creating" | "Pending" | "Resuming" => ProviderPhase::starting("JarvisLabs makes it"),
        "Failed" if machine.text("ssh_str").is_empty() => failed(
            FailureKind::NoCapacity,
            "JarvisLabs accepted the order and could not make the machine; the console has the reason",
        ),
        // How JarvisLabs takes a spot machine back is not published.
        "Paused" | "Pausing" | "Failed" | "Destroying" | "Destroyed" if taken => {
            failed(FailureKind::Reclaimed, "JarvisLabs took the spot machine back")
        }
        "Failed" => failed(FailureKind::Lost, "JarvisLabs says that the machine failed"),
        "Paused" | "Pausing" => ProviderPhase::Stopped(
            "it is paused, by a person or for an empty wallet; until it is destroyed JarvisLabs bills its disk".into(),
        ),
        "Destroying" | "Destroyed" => ProviderPhase::Stopping,
        // The Machine's own timeout ends the wait.
        other => ProviderPhase::starting(format!("JarvisLabs: {}", cut(other, 64))),
    }
}

#[cfg(test)]
#[path = "tests/map.rs"]
mod tests;
