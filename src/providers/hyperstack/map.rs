//! An order becomes a request to Hyperstack, a virtual machine becomes a machine. Pure.

use std::net::Ipv4Addr;

use serde_json::{Value, json};
use skyward_core::{
    Mark, Order, ProviderError, ProviderMachine, ProviderPhase,
    machine::{Endpoint, FailureKind, Rental},
};
use skyward_provider_kit::{
    boot,
    lookup::Listed,
    marks::{self, Tags},
    mentions, time,
};

use super::{
    offers,
    wire::{Group, Image, Machine},
};

/// Marks are labels, which are plain texts of an alphabet that is not published.
const TAGS: Tags = Tags::new("skyward-", 60).only(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
/// Between key and value of a mark in a label.
const BETWEEN: char = '=';
/// Most characters of a machine's name.
const NAME: usize = 50;
/// Most bytes of user data: in base64 they are the 64 KiB that OpenStack takes.
const USER_DATA: usize = 48_000;

impl Listed for Machine {
    fn id(&self) -> String {
        self.id.to_string()
    }

    fn mark(&self) -> Option<Mark> {
        TAGS.read_texts(self.labels.as_deref()?, BETWEEN)
    }

    fn gone(&self) -> bool {
        self.status == "DELETED"
    }
}

impl Machine {
    /// Whether it is of the spot market.
    pub fn is_spot(&self) -> bool {
        self.flavor["gpu"].as_str().is_some_and(offers::is_spot)
    }

    /// Whether it keeps the environment of this id from being removed.
    pub fn is_in(&self, environment: &str) -> bool {
        !self.gone()
            && self.environment["id"]
                .as_u64()
                .is_some_and(|id| environment.parse() == Ok(id))
    }

    /// SSH, once the public address leads to it.
    fn endpoint(&self) -> Option<Endpoint> {
        let status = self.floating_ip_status.as_deref();
        let leads_to_it = status.is_none_or(|status| status.eq_ignore_ascii_case("attached"));
        Endpoint::ssh("root", self.floating_ip.as_deref().filter(|_| leads_to_it))
    }
}

/// The body that orders a machine of this image in the environment and with the key of its Pool, which lets in
/// the machines of a network, where the Pool's must reach each other.
pub fn body(
    order: &Order,
    environment: &str,
    key: &str,
    image: &str,
    network: Option<&str>,
) -> Result<Value, ProviderError> {
    Ok(json!({
        // Hyperstack may refuse a name that is taken.
        "name": marks::unique_name(&order.mark, NAME),
        "environment_name": environment,
        "flavor_name": order.instance_type,
        "image_name": image,
        "key_name": key,
        "count": 1,
        "assign_floating_ip": true,
        // Otherwise SSH might answer at another port, which the API does not tell.
        "enable_port_randomization": false,
        // Such a disk is billed by itself, and outlives its machine.
        "create_bootable_volume": false,
        "labels": TAGS.write_texts(&order.mark, BETWEEN),
        "security_rules": rules(network),
        "user_data": boot::at_most(USER_DATA, "Hyperstack", boot::script(order))?,
    }))
}

/// What is let in: SSH from everywhere, and what comes from the network.
fn rules(network: Option<&str>) -> Vec<Value> {
    let rule = |protocol: &str, from: &str, first: u16, last: u16| {
        json!({
            "direction": "ingress", "ethertype": "IPv4", "protocol": protocol,
            "remote_ip_prefix": from, "port_range_min": first, "port_range_max": last,
        })
    };
    let mut rules = vec![rule("tcp", "0.0.0.0/0", 22, 22)];
    if let Some(from) = network {
        rules.extend(["tcp", "udp"].map(|protocol| rule(protocol, from, 1, 65_535)));
    }
    rules
}

/// The network of an environment, where it is a private one: no rule may let in anybody else.
pub fn network(cidr: &str) -> Option<String> {
    let (address, bits) = cidr.trim().split_once('/')?;
    let (address, bits): (Ipv4Addr, u8) = (address.parse().ok()?, bits.parse().ok()?);
    (address.is_private() && (16..=32).contains(&bits)).then(|| format!("{address}/{bits}"))
}

/// The newest Ubuntu with CUDA among public images that a flavor may have. Their numbers decide, of which those of
/// Ubuntu stand before those of the driver and of CUDA: the API tells no dates.
pub fn image(images: &[Group<Image>], flavor: &str) -> Option<String> {
    let will_do = |image: &&Image| {
        let has = |word| mentions(&image.name, &[word]);
        image.is_public != Some(false) && has("ubuntu") && has("cuda") && fits(image, flavor)
    };
    let numbers = |name: &str| -> Vec<u64> {
        let numbers = name.split(|c: char| !c.is_ascii_digit());
        numbers.filter_map(|number| number.parse().ok()).collect()
    };
    let names = images
        .iter()
        .flat_map(|group| &group.flavors)
        .filter(will_do)
        .map(|image| &image.name);
    names.max_by_key(|name| (numbers(name), *name)).cloned()
}

/// Whether a flavor may have an image.
fn fits(image: &Image, flavor: &str) -> bool {
    let restrictions = &image.flavor_restrictions;
    // A soft restriction is a recommendation.
    let binds = restrictions["has_flavor_restrictions"] == true && restrictions["restriction_type"] != "soft";
    let flavors = restrictions["compatible_flavors"].as_array();
    let is_it = |one: &Value| one["flavor_name"] == *flavor;
    !binds || flavors.is_none_or(|all| all.iter().any(is_it))
}

/// The machine that a virtual machine is; `None` when it does not carry our mark. `is_ended` where its end was
/// ordered.
pub fn machine(machine: &Machine, is_ended: bool) -> Option<ProviderMachine> {
    let endpoint = machine.endpoint();
    Some(ProviderMachine {
        id: machine.id(),
        mark: machine.mark()?,
        phase: phase(machine, endpoint.is_some(), is_ended),
        endpoint,
        private_address: machine.fixed_ip.clone().filter(|address| !address.is_empty()),
        private_interface: None,
        host_key: None,
        rental: Rental {
            region: machine.environment["region"].as_str().map(str::to_owned),
            hourly_price: machine.price,
            billed_since: time(machine.created_at.as_deref()),
            ..Rental::default()
        },
    })
}

fn phase(machine: &Machine, reachable: bool, is_ended: bool) -> ProviderPhase {
    let failed = ProviderPhase::failed;
    match machine.status.as_str().unwrap_or_default() {
        "ACTIVE" if reachable => ProviderPhase::Running,
        "ACTIVE" => ProviderPhase::starting("waits for its public address"),
        "CREATING" | "BUILD" => ProviderPhase::starting("Hyperstack makes it"),
        "ERROR" if !reachable => failed(
            FailureKind::NoCapacity,
            "Hyperstack accepted the order and could not make the machine; its events in the console say why",
        ),
        // How Hyperstack takes a spot machine back is not published.
        "STOPPING" | "SHUTOFF" | "HIBERNATING" | "HIBERNATED" | "DELETING" | "DELETED" | "ERROR"
            if machine.is_spot() && !is_ended =>
        {
            failed(FailureKind::Reclaimed, "Hyperstack took the spot machine back")
        }
        "ERROR" => failed(FailureKind::Lost, "Hyperstack reports an error of the machine"),
        "STOPPING" | "SHUTOFF" | "HIBERNATING" | "HIBERNATED" => ProviderPhase::Stopped(
            "it is halted; until it is deleted Hyperstack bills it, or its disk and address if it hibernates"
                .into(),
        ),
        "DELETING" | "DELETED" => ProviderPhase::Stopping,
        // The Machine's own timeout ends the wait.
        other => ProviderPhase::starting(format!("Hyperstack: {other}")),
    }
}

#[cfg(test)]
#[path = "tests/map.rs"]
mod tests;
