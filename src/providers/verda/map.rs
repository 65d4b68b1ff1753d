//! An order becomes a request to Verda, an instance becomes a machine. Pure.

use serde_json::{Value, json};
use skyward_api::shared::whole_gb;
use skyward_core::{
    Mark, Market, Order, ProviderMachine, ProviderPhase,
    machine::{Endpoint, FailureKind, Rental},
};
use skyward_provider_kit::{
    Amount, cut,
    lookup::Listed,
    marks::{self, Tags},
    time,
};

use super::{
    config::Settings,
    wire::{Instance, InstanceType},
};

/// User of every image.
const USER: &str = "root";

/// The tags of machines and their disks.
pub const TAGS: Tags = Tags::new("skyward-", 127);

impl Listed for Instance {
    fn id(&self) -> String {
        self.id.clone()
    }

    fn mark(&self) -> Option<Mark> {
        TAGS.read(&self.tags)
    }

    fn gone(&self) -> bool {
        matches!(self.status.as_str(), "discontinued" | "notfound" | "deleted")
    }
}

/// The body that orders a machine.
pub fn body(order: &Order, settings: &Settings, image: &str, key: &str, script: Option<&str>) -> Value {
    let tags = TAGS.write(&order.mark);
    let hostname = marks::hostname(&order.mark);
    let spot = order.market == Market::Spot;
    let mut volume = json!({
        "name": format!("{hostname}-os"),
        "size": order.disk_bytes.map_or_else(|| settings.disk_gb(), whole_gb),
        "tags": tags,
    });
    if spot {
        // Otherwise the disk of an evicted machine is kept, and billed.
        volume["on_spot_discontinue"] = "delete_permanently".into();
    }
    let mut body = json!({
        "instance_type": order.instance_type,
        "image": image,
        "hostname": hostname,
        "description": cut(&format!("Skyward: Pool {}/{}", order.mark.namespace, order.mark.pool), 200),
        "location_code": order.region,
        "ssh_key_ids": [key],
        "is_spot": spot,
        "os_volume": volume,
        "tags": tags,
    });
    if let Some(script) = script {
        body["startup_script_id"] = script.into();
    }
    body
}

/// The image of a machine type: the newest Ubuntu that it supports, with CUDA and the
/// open driver where it has GPUs.
pub fn image(kind: &InstanceType) -> String {
    let gpus = kind.gpu.number_of_gpus > 0.0;
    let newest = |accepts: &dyn Fn(&str) -> bool| {
        let fits = kind
            .supported_os
            .iter()
            .map(String::as_str)
            .filter(|os| accepts(os));
        fits.max_by(|a, b| numbers(a).cmp(&numbers(b))).map(str::to_owned)
    };
    let plain = |os: &str| os.starts_with("ubuntu-") && !os.contains("docker") && !os.contains("jupyter");
    let cuda = |os: &str| plain(os) && os.contains("cuda");
    let open = |os: &str| cuda(os) && os.ends_with("-open");
    if gpus {
        newest(&open)
            .or_else(|| newest(&cuda))
            .unwrap_or_else(|| "ubuntu-24.04-cuda-13.0-open".to_owned())
    } else {
        newest(&|os| plain(os) && !os.contains("cuda")).unwrap_or_else(|| "ubuntu-24.04".to_owned())
    }
}

/// The numbers in a name, to find the newest.
fn numbers(name: &str) -> Vec<u32> {
    name.split(|c: char| !c.is_ascii_digit())
        .filter_map(|digits| digits.parse().ok())
        .collect()
}

/// The machine that an instance is; `None` when it does not carry our mark.
pub fn machine(instance: &Instance) -> Option<ProviderMachine> {
    let mark = instance.mark()?;
    let address = instance.ip.clone().filter(|ip| !ip.trim().is_empty());
    let endpoint = Endpoint::ssh(USER, address.as_deref());
    Some(ProviderMachine {
        id: instance.id.clone(),
        mark,
        phase: phase(instance, endpoint.is_some()),
        endpoint,
        // Verda has no private network: machines reach each other by public addresses.
        private_address: address,
        private_interface: None,
        host_key: None,
        rental: Rental {
            region: instance.location.clone(),
            hourly_price: instance.price_per_hour.map(Amount::usd),
            billed_since: time(instance.created_at.as_deref()),
            reclaim_at: None,
        },
    })
}

fn phase(instance: &Instance, reachable: bool) -> ProviderPhase {
    let failed = ProviderPhase::failed;
    match instance.status.as_str() {
        "running" if reachable => ProviderPhase::Running,
        "running" => ProviderPhase::starting("waits for its address"),
        "offline" => {
            ProviderPhase::Stopped("it was shut down; Verda bills it until it is deleted".to_owned())
        }
        "no_capacity" => failed(
            FailureKind::NoCapacity,
            "Verda accepted the order but had no such machine",
        ),
        "installation_failed" => failed(
            FailureKind::Other,
            "Verda could not install the image on the machine",
        ),
        "error" => failed(FailureKind::Other, "Verda reports an error of the machine"),
        "starting_hibernation" | "hibernating" | "restoring" => {
            failed(FailureKind::Lost, "somebody hibernated the machine")
        }
        "deleting" => ProviderPhase::Stopping,
        "discontinued" | "notfound" | "deleted" if instance.is_spot => {
            failed(FailureKind::Reclaimed, "Verda took the spot machine back")
        }
        "discontinued" | "notfound" | "deleted" => {
            failed(FailureKind::Lost, "the machine was deleted at Verda")
        }
        // New values may come, says Verda; the Machine's own timeout ends the wait.
        other => ProviderPhase::starting(format!("Verda: {other}")),
    }
}

#[cfg(test)]
#[path = "tests/map.rs"]
mod tests;
