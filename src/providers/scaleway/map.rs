//! An order becomes a request to Scaleway, a server or what is left of it becomes a machine. Pure.

use serde_json::{Value, json};
use skyward_core::{
    Mark, Order, ProviderMachine, ProviderPhase,
    machine::{Endpoint, FailureKind, Rental},
};
use skyward_provider_kit::{
    lookup::Listed,
    marks::{self, Tags},
    mentions, time,
};

use super::{
    config::Settings,
    wire::{Disk, Image, Machine, Server},
};

const TAGS: Tags = Tags::new("skyward-", 128);
/// Between key and value of a mark in a tag, which is a plain text.
const BETWEEN: char = '=';
/// Disks are sold in GB.
const GB: u64 = 1_000_000_000;
/// The organization that Scaleway's own images belong to.
const SCALEWAY: &str = "51b656e3-4865-41e8-adbc-0c45bdd780db";

impl Listed for Machine {
    fn id(&self) -> String {
        match self {
            Self::Server(server) => server.id.clone(),
            Self::Disk(disk) => disk.id.clone(),
        }
    }

    fn mark(&self) -> Option<Mark> {
        let tags = match self {
            Self::Server(server) => &server.tags,
            Self::Disk(disk) => &disk.tags,
        };
        TAGS.read_texts(tags.as_deref()?, BETWEEN)
    }

    fn gone(&self) -> bool {
        matches!(self, Self::Disk(disk) if disk.status.as_deref() == Some("deleted"))
    }

    /// A server that was made and is not switched on yet, or a disk.
    fn unfinished(&self) -> bool {
        match self {
            Self::Server(server) => server.state == "stopped",
            Self::Disk(_) => true,
        }
    }
}

/// What exists for machines: servers, and marked disks that no server has. One list may be newer than the other, so
/// a disk may have a server all the same; then Scaleway refuses to delete it.
pub fn machines(servers: Vec<Server>, disks: Vec<Disk>) -> Vec<Machine> {
    let root = |server: &Server| server.volumes["0"]["id"].as_str().map(str::to_owned);
    let had: Vec<String> = servers.iter().filter_map(root).collect();
    let left = disks.into_iter().filter(|disk| !had.contains(&disk.id));
    let left = left.map(Machine::Disk).filter(|disk| disk.mark().is_some());
    servers.into_iter().map(Machine::Server).chain(left).collect()
}

/// The body that makes a server of this image.
pub fn body(order: &Order, settings: &Settings, project: &str, image: &str) -> Value {
    let mut tags = TAGS.write_texts(&order.mark, BETWEEN);
    // The system of the machine fetches its keys at each boot: those of the project, and this one.
    let key: Vec<&str> = order.authorized_key.split_whitespace().take(2).collect();
    tags.push(format!("AUTHORIZED_KEY={}", key.join("_")));
    let usual = settings.disk.as_ref().map(skyward_api::shared::Disk::bytes);
    let disk = order.disk_bytes.or(usual).unwrap_or(125 * GB);
    let disk = disk.div_ceil(GB).saturating_mul(GB);
    let mut body = json!({
        "name": marks::hostname(&order.mark),
        "commercial_type": order.instance_type,
        "image": image,
        "project": project,
        "tags": tags,
        // Scaleway takes such an address back by itself.
        "dynamic_ip_required": true,
        // Scaleway names it after the image, whatever stands here.
        "volumes": { "0": { "size": disk, "volume_type": "sbs_volume" } },
    });
    if let Some(group) = &settings.security_group {
        body["security_group"] = json!(group);
    }
    body
}

/// The id of the disk that was made with a server, with the body that marks the disk; `None` while the
/// server does not show both. The name is for people.
pub fn disk(server: &Server) -> Option<(&str, Value)> {
    let mark = TAGS.read_texts(server.tags.as_deref()?, BETWEEN)?;
    let names = json!({ "name": marks::hostname(&mark), "tags": TAGS.write_texts(&mark, BETWEEN) });
    Some((server.volumes["0"]["id"].as_str()?, names))
}

/// The newest Ubuntu with drivers among Scaleway's own images: people publish images, too. Machines with GPUs have no
/// disk but one of block storage.
pub fn image(images: &[Image]) -> Option<String> {
    let will_do = |image: &&Image| {
        image.organization.as_deref() == Some(SCALEWAY)
            && image.state.as_deref() == Some("available")
            && image.root_volume["volume_type"] == "sbs_snapshot"
            && mentions(&image.name, &["ubuntu"])
            && mentions(&image.name, &["gpu", "cuda", "nvidia"])
    };
    let made = |image: &&Image| time(image.creation_date.as_deref());
    let newest = images
        .iter()
        .filter(will_do)
        .max_by_key(|image| (system(&image.name), made(image), image.id.clone()))?;
    Some(newest.id.clone())
}

/// The number of an image's system: 13 of `Ubuntu Noble GPU OS 13 (Nvidia)`. An older one may be published again.
fn system(name: &str) -> Option<u32> {
    let name = name.to_lowercase();
    let mut words = name.split(' ').skip_while(|word| *word != "os");
    words.nth(1)?.parse().ok()
}

/// The machine that a server or a disk is; `None` when it does not carry our mark.
pub fn machine(machine: &Machine) -> Option<ProviderMachine> {
    let (Machine::Server(Server { zone, .. }) | Machine::Disk(Disk { zone, .. })) = machine;
    // A disk is not on its way out by itself: the sweep ends it.
    let left = "its server is gone, and Scaleway bills its disk until the disk is deleted";
    let mut found = ProviderMachine {
        id: machine.id(),
        mark: machine.mark()?,
        phase: ProviderPhase::Stopped(left.into()),
        endpoint: None,
        private_address: None,
        private_interface: None,
        host_key: None,
        rental: Rental {
            region: Some(zone.clone()),
            ..Rental::default()
        },
    };
    if let Machine::Server(server) = machine {
        found.endpoint = Endpoint::ssh("root", server.address());
        found.phase = phase(server, found.endpoint.is_some());
        found.rental.hourly_price = server.price;
        found.rental.billed_since = time(server.creation_date.as_deref());
    }
    Some(found)
}

impl Server {
    /// Its first address of IPv4.
    fn address(&self) -> Option<&str> {
        let mut all = self.public_ips.as_array()?.iter();
        all.find(|address| address["family"] != "inet6")?["address"].as_str()
    }
}

fn phase(server: &Server, reachable: bool) -> ProviderPhase {
    let detail = server.state_detail.as_deref().unwrap_or_default();
    match server.state.as_str() {
        "running" if reachable => ProviderPhase::Running,
        "running" => ProviderPhase::starting("waits for its address"),
        // It was just switched on.
        "stopped" if mentions(detail, &["allocating", "provisioning"]) => {
            ProviderPhase::starting("Scaleway looks for a place for it")
        }
        // A new one that found no place is switched off, too.
        "stopped" | "stopped in place" => ProviderPhase::Stopped(
            "it is switched off, and Scaleway bills it or its disk until it is deleted".into(),
        ),
        "stopping" => ProviderPhase::Stopping,
        "locked" => ProviderPhase::failed(
            FailureKind::Lost,
            "Scaleway locked it, over a bill or a complaint; the console has the reason",
        ),
        // The Machine's own timeout ends the wait.
        other => ProviderPhase::starting(format!("Scaleway: {other}")),
    }
}

#[cfg(test)]
#[path = "tests/map.rs"]
mod tests;
