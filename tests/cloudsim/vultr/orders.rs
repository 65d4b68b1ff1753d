//! Orders of instances and of bare metal.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use super::texts::{KEY, SCRIPT, own};
use super::{Vultr, catalogue, firewalls, machines, missing, uuid};
use crate::backend::{Boot, Start};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::machine::Mark;
use crate::core::rest::{Rental, RestApi, body};

/// The body of an order.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Order {
    region: String,
    plan: String,
    os_id: Option<u64>,
    image_id: Option<String>,
    app_id: Option<Value>,
    snapshot_id: Option<Value>,
    iso_id: Option<Value>,
    #[serde(default)]
    label: String,
    hostname: Option<String>,
    #[serde(default)]
    tags: Vec<String>,
    tag: Option<String>,
    #[serde(default)]
    sshkey_id: Vec<String>,
    user_data: Option<String>,
    script_id: Option<String>,
    user_scheme: Option<String>,
    firewall_group_id: Option<String>,
    #[serde(default)]
    enable_ipv6: bool,
    #[serde(default)]
    enable_vpc: bool,
    #[serde(default)]
    enable_private_network: bool,
    #[serde(default, rename = "activation_email")]
    _activation_email: bool,
    #[serde(default, rename = "persistent_pxe")]
    _persistent_pxe: bool,
    backups: Option<String>,
    #[serde(default)]
    ddos_protection: bool,
    #[serde(default)]
    attach_vpc: Vec<String>,
    #[serde(default)]
    attach_private_network: Vec<String>,
    reserved_ipv4: Option<Value>,
    ipxe_chain_url: Option<Value>,
}

/// The image that images of the marketplace are named by; there is one.
const DOCKER: &str = "docker";

impl Order {
    /// What the simulator does not have, or bare metal does not.
    fn outside(&self, metal: bool) -> Result<(), Refusal> {
        let backups = self.backups.as_deref().unwrap_or("disabled");
        if !["enabled", "disabled"].contains(&backups) {
            return bad("Invalid backups: enabled or disabled.");
        }
        let private = self.enable_vpc || self.enable_private_network;
        if metal && (private || self.firewall_group_id.is_some() || self.backups.is_some()) {
            return bad("Bare metal has no backups, firewall groups and VPCs.");
        }
        let networks = self.attach_vpc.len() + self.attach_private_network.len();
        let parts = [
            (backups == "enabled", "backups"),
            (self.ddos_protection, "DDoS protection"),
            (networks > 0, "VPCs by their id"),
            (self.reserved_ipv4.is_some(), "reserved addresses"),
            (self.ipxe_chain_url.is_some(), "iPXE"),
            (self.app_id.is_some(), "applications by number"),
            (self.snapshot_id.is_some(), "snapshots"),
            (self.iso_id.is_some(), "ISO images"),
            (
                self.user_data.is_some() && self.script_id.is_some(),
                "user data beside a startup script",
            ),
        ];
        let absent = parts.iter().find(|(asked, _)| *asked);
        absent.map_or(Ok(()), |(_, what)| Err(Vultr::not_simulated(what)))
    }

    /// Number and name of the system, and the id of the image.
    fn image(&self) -> Result<(u64, String, String), Refusal> {
        let others = [&self.app_id, &self.snapshot_id, &self.iso_id];
        let others = others.into_iter().flatten().count();
        match (self.os_id, &self.image_id, others) {
            (Some(id), None, 0) => match catalogue::system(id) {
                Some(name) => Ok((id, name.to_owned(), String::new())),
                None => Err(missing("OS")),
            },
            (None, Some(image), 0) if image == DOCKER => Ok((0, "Application".to_owned(), image.clone())),
            (None, Some(_), 0) => Err(missing("image")),
            (None, None, 1) => Ok(Default::default()),
            _ => bad("Give one of os_id, image_id, app_id, snapshot_id and iso_id."),
        }
    }

    /// What runs at the first boot.
    fn start(&self, visit: &Visit<'_>) -> Result<Start, Refusal> {
        let text = if let Some(id) = &self.script_id {
            own(visit, SCRIPT, id)?.detail["script"]
                .as_str()
                .map(str::to_owned)
        } else {
            self.user_data.clone()
        };
        let Some(text) = text else {
            return Ok(Start::Nothing);
        };
        let bytes = STANDARD.decode(text).ok();
        let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
        match text {
            Some(text) => Ok(Start::UserData(text)),
            None => bad("Invalid user_data: not text in base64."),
        }
    }
}

fn bad<T>(what: &str) -> Result<T, Refusal> {
    Err(Refusal::Bad(what.to_owned()))
}

/// Letters, digits, dots and hyphens, beginning and ending with neither of the latter.
fn is_hostname(name: &str) -> bool {
    let inner = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
    let label = |label: &str| {
        let edges = label.starts_with('-') || label.ends_with('-');
        !label.is_empty() && label.len() < 64 && !edges && label.chars().all(inner)
    };
    name.split('.').all(label)
}

pub(super) fn create(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let order: Order = body(visit.request)?;
    let metal = machines::asks_for_metal(visit);
    let plan = visit.world.types.get(&order.plan).cloned();
    let plan = plan.filter(|plan| catalogue::is_metal(&plan.name) == metal);
    let Some(plan) = plan else {
        return bad("Invalid plan chosen.");
    };
    if !visit.world.regions.contains(&order.region) {
        return Err(missing("region"));
    }
    let (os_id, os, image) = order.image()?;
    order.outside(metal)?;
    let start = order.start(visit)?;
    let mut keys = Vec::new();
    for id in &order.sshkey_id {
        keys.extend(own(visit, KEY, id)?.detail["ssh_key"].as_str().map(str::to_owned));
    }
    let hostname = order.hostname.clone().unwrap_or_else(|| "vultr".to_owned());
    if !is_hostname(&hostname) {
        return bad("Invalid hostname.");
    }
    let user = match order.user_scheme.as_deref() {
        None | Some("root") => "root",
        Some("limited") => "linuxuser",
        Some(_) => return bad("Invalid user_scheme: root or limited."),
    };
    let firewall = order.firewall_group_id.clone().filter(|id| !id.is_empty());
    if let Some(group) = &firewall {
        uuid("firewall group", group)?;
        firewalls::own(visit, group)?;
    }
    let tags: Vec<String> = order.tags.into_iter().chain(order.tag).collect();
    // `NVIDIA_HGX_H100` is an `NVIDIA H100` to its driver.
    let gpu = plan.gpu.replace("HGX_", "").replace('_', " ");
    let id = visit.world.chance.uuid();
    let private = order.enable_vpc || order.enable_private_network;
    let internal = format!(
        "10.1.{}.{}",
        visit.world.chance.below(256),
        2 + visit.world.chance.below(250)
    );
    let detail = json!({
        "os": os, "os_id": os_id, "image_id": image, "hostname": hostname, "tags": tags, "user_scheme": user,
        "firewall_group_id": firewall.unwrap_or_default(), "features": order.enable_ipv6.then_some("ipv6"),
        "internal_ip": if private { internal } else { String::new() },
    });
    let boot = Boot {
        hostname,
        image: os,
        user: user.to_owned(),
        authorized_keys: keys,
        start,
        gpus: vec![gpu; plan.gpus as usize],
        ..Boot::default()
    };
    let mark = Mark {
        name: order.label,
        tags: machines::mark(&tags),
        ..Mark::default()
    };
    let rental = Rental {
        id: id.clone(),
        region: order.region,
        mark,
        boot,
        detail,
    };
    visit.rent(&plan, rental)?;
    let password = visit.world.chance.hex(16);
    let mut value = machines::shown_now(visit, &id)?;
    value["default_password"] = password.into();
    Ok(Answer::json(202, &json!({ machines::member(metal): value })))
}
