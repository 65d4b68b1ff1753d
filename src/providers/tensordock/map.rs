//! An order becomes a request to TensorDock, a virtual machine becomes a machine. Pure.

use serde_json::{Value, json};
use skyward_core::{
    Mark, Order, ProviderError, ProviderMachine, ProviderPhase, Usd,
    machine::{Endpoint, FailureKind, Rental},
};
use skyward_provider_kit::{Amount, boot, lookup::Listed, marks::Name, said};

use super::{config::Settings, offers::Shape, wire::Machine};

/// Beginning of the names of machines.
const PREFIX: &str = "skyward";
/// Marks are names, which are all that a machine can carry. What a name may have is not published, so it has no more
/// than letters, digits and hyphens.
const NAME: Name = Name::new(PREFIX, '-', 128);
/// The port of SSH on a machine.
const SSH: u64 = 22;
/// The script of the first boot: in memory, and removed by itself.
const BOOT: &str = "/run/skyward-boot";
const STOPPED: &str =
    "it was stopped; until it is deleted TensorDock bills its disk, and its GPUs while it keeps them";

impl Listed for Machine {
    fn id(&self) -> String {
        self.id.clone()
    }

    fn mark(&self) -> Option<Mark> {
        NAME.read(self.name.as_deref()?)
    }

    fn gone(&self) -> bool {
        matches!(self.state().as_str(), "deleted" | "terminated")
    }

    fn is_brief(&self) -> bool {
        self.rate.is_none() || self.address.is_none()
    }
}

impl Machine {
    /// Where it is in its life, in the one form that all forms of it have in common.
    fn state(&self) -> String {
        let status = self.status.as_deref().unwrap_or_default();
        let letters = status.chars().filter(|c| !matches!(c, '_' | '-' | ' '));
        letters.flat_map(char::to_lowercase).collect()
    }

    /// Whether it is what this order asked for.
    pub fn answers(&self, order: &Order) -> bool {
        !self.gone() && self.mark().is_some_and(|mark| mark.is(&order.mark))
    }

    /// Whether TensorDock is about to delete it.
    pub fn is_ending(&self) -> bool {
        self.state() == "deleting"
    }

    /// Whether a list shows its name not at all, or one of ours in part.
    pub fn is_in_doubt(&self) -> bool {
        self.name.as_ref().is_none_or(|name| name.starts_with(PREFIX)) && self.mark().is_none()
    }

    /// SSH: the port of the public address that leads to it. Without one that address is its host's, or another
    /// machine's.
    fn endpoint(&self) -> Option<Endpoint> {
        let mut forwards = self.forwards.as_array()?.iter();
        let ssh = forwards.find(|one| one["internal_port"].as_u64() == Some(SSH))?;
        let port = u16::try_from(ssh["external_port"].as_u64()?).ok()?;
        Endpoint::ssh_at("root", self.address.as_deref(), port)
    }
}

/// The body that orders a machine of this hardware.
pub fn body(order: &Order, settings: &Settings, shape: &Shape) -> Result<Value, ProviderError> {
    let content = format!("rm -f {BOOT}\n{}", boot::script(order));
    let attributes = json!({
        "name": NAME.write(&order.mark)?,
        "type": "virtualmachine",
        "image": settings.system(),
        "location_id": shape.location,
        "resources": {
            "vcpu_count": shape.vcpus, "ram_gb": shape.ram_gb, "storage_gb": shape.storage_gb,
            "gpus": { shape.gpu.as_str(): { "count": shape.count } },
        },
        // 0: TensorDock chooses the port, since it chooses the host too.
        "port_forwards": [{ "internal_port": SSH, "external_port": 0 }],
        // Images let it in as `user`. The script lets it in as `root`.
        "ssh_key": order.authorized_key.trim(),
        "cloud_init": {
            "package_update": false, "package_upgrade": false,
            // A command stands in the list of processes, and the script may have a token.
            "write_files": [{ "path": BOOT, "owner": "root:root", "permissions": "0600", "content": content }],
            "runcmd": [format!("sh {BOOT}")],
        },
    });
    Ok(json!({ "data": { "type": "virtualmachine", "attributes": attributes } }))
}

/// The name of a machine that was just ordered, where that is not the name it was ordered with: nothing else tells whose
/// the machine is.
pub fn other_name<'a>(made: &'a Machine, order: &Order) -> Option<&'a str> {
    let name = made.name.as_deref().filter(|name| !name.is_empty());
    name.filter(|_| !made.answers(order))
}

/// The machine that a virtual machine is; `None` when it does not carry our mark.
pub fn machine(machine: &Machine) -> Option<ProviderMachine> {
    let endpoint = machine.endpoint();
    let price = machine.rate.map(Amount::usd);
    let phase = phase(machine, endpoint.is_some());
    Some(ProviderMachine {
        // TensorDock tells neither its place nor since when it is billed.
        rental: Rental {
            hourly_price: price.filter(|price| *price > Usd::ZERO),
            ..Rental::default()
        },
        ..ProviderMachine::public(machine.id.clone(), machine.mark()?, phase, endpoint)
    })
}

fn phase(machine: &Machine, reachable: bool) -> ProviderPhase {
    let failed = ProviderPhase::failed;
    match machine.state().as_str() {
        "running" if reachable => ProviderPhase::Running,
        "running" => ProviderPhase::starting("waits for its address and the port that leads to it"),
        "" | "starting" | "creating" => ProviderPhase::starting("TensorDock makes it"),
        // The last one has lost its GPUs.
        "stopping" | "stopped" | "stoppeddisassociated" => ProviderPhase::Stopped(STOPPED.into()),
        "error" if !reachable => failed(FailureKind::NoCapacity, "TensorDock could not make the machine"),
        "error" => failed(FailureKind::Lost, "TensorDock reports an error of the machine"),
        "deleting" | "deleted" | "terminated" => ProviderPhase::Stopping,
        // The Machine's own timeout ends the wait.
        other => ProviderPhase::starting(format!("TensorDock: {}", said(other))),
    }
}

#[cfg(test)]
#[path = "tests/map.rs"]
mod tests;
