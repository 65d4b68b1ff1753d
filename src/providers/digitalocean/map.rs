//! An order becomes a request to DigitalOcean, a Droplet becomes a machine. Pure.

use serde_json::{Value, json};
use skyward_core::{
    Mark, Order, ProviderError, ProviderMachine, ProviderPhase,
    machine::{Endpoint, Rental},
};
use skyward_provider_kit::{
    boot,
    lookup::Listed,
    marks::{self, Name},
    time,
};

use super::{
    config::Settings,
    offers,
    wire::{Droplet, Size},
};

/// Marks are one tag each: an account keeps its tags, and eight for each machine would be many.
const MARK: Name = Name::new("skyward", ':', 255);
/// Most bytes of user data.
const USER_DATA: usize = 64 << 10;

/// What the firewall of a Pool lets in: SSH, and its own machines where they must reach each other.
const SSH: &str = "SSH";
const POOL: &str = "SSH and the Pool";

impl Listed for Droplet {
    fn id(&self) -> String {
        self.id.to_string()
    }

    fn mark(&self) -> Option<Mark> {
        self.tags.iter().flatten().find_map(|tag| MARK.read(tag))
    }

    /// DigitalOcean does not show machines that are gone.
    fn gone(&self) -> bool {
        false
    }
}

/// The tag that carries a mark. Names in it are for people, and tags have an alphabet.
pub fn mark_tag(mark: &Mark) -> Result<String, ProviderError> {
    let tag = MARK.write(mark)?;
    let admitted = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | ':');
    Ok(tag.chars().map(|c| if admitted(c) { c } else { '-' }).collect())
}

/// What the firewall of the order's Pool lets in.
pub fn admitted(order: &Order) -> &'static str {
    if order.pool.connected { POOL } else { SSH }
}

/// The tag of the machines behind a firewall of this name, which may have points.
pub fn tag_of(firewall: &str) -> String {
    firewall.replace('.', ":")
}

/// UID of the Pool of a tag of this installation.
pub fn pool_of(cluster: &str, tag: &str) -> Option<String> {
    let marked = MARK.read(tag).filter(|mark| mark.cluster == cluster);
    marked.map_or_else(
        || marks::pool_of(cluster, &tag.replace(':', ".")),
        |mark| Some(mark.pool_uid),
    )
}

/// The body that makes the firewall of a Pool.
pub fn firewall(name: &str, admitted: &str) -> Value {
    let tag = tag_of(name);
    let everywhere = json!({ "addresses": ["0.0.0.0/0", "::/0"] });
    let mut inbound = vec![json!({ "protocol": "tcp", "ports": "22", "sources": everywhere })];
    let mut outbound = Vec::new();
    for protocol in ["tcp", "udp", "icmp"] {
        // "0" means all ports.
        outbound.push(json!({ "protocol": protocol, "ports": "0", "destinations": everywhere }));
        if admitted == POOL {
            inbound.push(json!({ "protocol": protocol, "ports": "0", "sources": { "tags": [tag] } }));
        }
    }
    json!({ "name": name, "inbound_rules": inbound, "outbound_rules": outbound, "tags": [tag] })
}

/// The image for a size: the drivers of eight GPUs that are joined need one of their own.
pub fn image(size: &Size) -> &'static str {
    match &size.gpu_info {
        Some(gpus) if gpus.model.starts_with("amd") => "gpu-amd-base",
        Some(gpus) if gpus.count >= 8 => "gpu-h100x8-base",
        _ => "gpu-h100x1-base",
    }
}

/// The body that orders a machine of this size with the key of its Pool, behind the firewall of this name.
pub fn body(
    order: &Order,
    settings: &Settings,
    size: &Size,
    key: &str,
    firewall: &str,
) -> Result<Value, ProviderError> {
    let image = settings.image.as_deref().unwrap_or_else(|| image(size));
    let mut body = json!({
        "name": marks::hostname(&order.mark),
        "region": order.region,
        "size": order.instance_type,
        "image": number_or_text(image),
        "ssh_keys": [number_or_text(key)],
        "tags": [mark_tag(&order.mark)?, tag_of(firewall)],
        "user_data": boot::at_most(USER_DATA, "DigitalOcean", boot::script(order))?,
        // The agent lets people of the team in through the control panel.
        "with_droplet_agent": false,
    });
    if let Some(vpc) = &settings.vpc_uuid {
        body["vpc_uuid"] = json!(vpc);
    }
    Ok(body)
}

/// Ids are numbers, slugs and fingerprints are texts.
fn number_or_text(text: &str) -> Value {
    text.parse::<u64>()
        .map_or_else(|_| json!(text), |number| json!(number))
}

/// The machine that a Droplet is; `None` when it does not carry our mark.
pub fn machine(droplet: &Droplet) -> Option<ProviderMachine> {
    let networks = droplet.networks.v4.iter();
    let address = |kind: &str| {
        let mut its = networks.clone().filter(|network| network["type"] == kind);
        its.find_map(|network| network["ip_address"].as_str().filter(|ip| !ip.is_empty()))
    };
    let endpoint = Endpoint::ssh("root", address("public"));
    Some(ProviderMachine {
        id: droplet.id(),
        mark: droplet.mark()?,
        phase: phase(droplet, endpoint.is_some()),
        endpoint,
        private_address: address("private").map(str::to_owned),
        private_interface: None,
        host_key: None,
        rental: Rental {
            region: droplet.region["slug"].as_str().map(str::to_owned),
            hourly_price: offers::price(droplet.size.price_hourly),
            billed_since: time(droplet.created_at.as_deref()),
            ..Rental::default()
        },
    })
}

fn phase(droplet: &Droplet, reachable: bool) -> ProviderPhase {
    match droplet.status.as_str() {
        "active" if reachable => ProviderPhase::Running,
        "active" => ProviderPhase::starting("waits for its address"),
        "new" => ProviderPhase::starting("DigitalOcean makes it"),
        // An archived one needs a person before it runs again.
        "off" | "archive" => {
            ProviderPhase::Stopped("it is switched off, and DigitalOcean bills it until it is deleted".into())
        }
        // The Machine's own timeout ends the wait.
        other => ProviderPhase::starting(format!("DigitalOcean: {other}")),
    }
}

#[cfg(test)]
#[path = "tests/map.rs"]
mod tests;
