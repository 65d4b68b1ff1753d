//! Orders of instances and of bare metal.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::json;

use super::texts::{KEY, SCRIPT, own};
use super::{Vultr, catalogue, machines, missing};
use crate::backend::{Boot, Start};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::machine::Mark;
use crate::core::rest::{Rental, RestApi, bad, body};

/// The body of an order, without what `NOT_SIMULATED_FIELDS` names.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Order {
    region: String,
    plan: String,
    os_id: Option<u64>,
    image_id: Option<String>,
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
    #[serde(default)]
    enable_ipv6: bool,
    #[serde(default, alias = "enable_private_network")]
    enable_vpc: bool,
    #[serde(default, rename = "activation_email")]
    _activation_email: bool,
}

impl Order {
    /// Number and name of the system, and the id of the image. Of images there is `docker`.
    fn image(&self) -> Result<(u64, &str, &str), Refusal> {
        match (self.os_id, self.image_id.as_deref()) {
            (Some(id), None) => {
                let system = catalogue::system(id).ok_or_else(|| missing("OS"))?;
                Ok((id, system, ""))
            }
            (None, Some(image @ "docker")) => Ok((0, "Application", image)),
            (None, Some(_)) => Err(missing("image")),
            _ => bad("Give one of os_id, image_id, app_id, snapshot_id and iso_id."),
        }
    }

    /// What runs at the first boot.
    fn start(&self, visit: &Visit<'_>) -> Result<Start, Refusal> {
        let text = match (&self.user_data, &self.script_id) {
            (None, None) => return Ok(Start::Nothing),
            (Some(_), Some(_)) => return Err(Vultr::not_simulated("user data beside a startup script")),
            (Some(text), None) => Some(text.as_str()),
            (None, Some(id)) => own(visit, SCRIPT, id)?.detail["script"].as_str(),
        };
        let bytes = text.and_then(|text| STANDARD.decode(text).ok());
        match bytes.and_then(|bytes| String::from_utf8(bytes).ok()) {
            Some(text) => Ok(Start::UserData(text)),
            None => bad("Invalid user_data: not text in base64."),
        }
    }
}

/// Letters, digits, dots, and hyphens that are not at an edge.
fn is_hostname(name: &str) -> bool {
    let allowed = |letter: char| letter.is_ascii_alphanumeric() || "-.".contains(letter);
    name.chars().all(allowed) && !name.is_empty() && name.trim_matches(['-', '.']) == name
}

pub(super) fn create(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let order: Order = body(visit.request)?;
    let metal = machines::asks_for_metal(visit);
    let plan = visit.world.types.get(&order.plan).cloned();
    let Some(plan) = plan.filter(|plan| catalogue::is_metal(&plan.name) == metal) else {
        return bad("Invalid plan chosen.");
    };
    if !visit.world.regions.contains(&order.region) {
        return Err(missing("region"));
    }
    if metal && order.enable_vpc {
        return bad("Bare metal has no VPC.");
    }
    let hostname = order.hostname.clone().unwrap_or_else(|| "vultr".to_owned());
    if !is_hostname(&hostname) {
        return bad("Invalid hostname.");
    }
    let (os_id, os, image) = order.image()?;
    let start = order.start(visit)?;
    let mut keys = Vec::new();
    for id in &order.sshkey_id {
        keys.extend(own(visit, KEY, id)?.detail["ssh_key"].as_str().map(str::to_owned));
    }
    let tags: Vec<&String> = order.tags.iter().chain(&order.tag).collect();
    let id = visit.world.chance.uuid();
    let host = 3 + visit.world.chance.below(250);
    let internal = order.enable_vpc.then(|| format!("10.1.96.{host}"));
    let rental = Rental {
        id: id.clone(),
        detail: json!({
            "os": os, "os_id": os_id, "image_id": image, "hostname": hostname, "tags": tags,
            "features": Vec::from_iter(order.enable_ipv6.then_some("ipv6")),
            "internal_ip": internal.unwrap_or_default(),
        }),
        mark: Mark::of_texts(&order.label, tags.iter().copied()),
        boot: Boot {
            hostname,
            image: os.to_owned(),
            user: "root".to_owned(),
            authorized_keys: keys,
            start,
            gpus: vec![plan.gpu.replace('_', " "); plan.gpus as usize],
            ..Boot::default()
        },
        region: order.region,
    };
    visit.rent(&plan, rental)?;
    let password = visit.world.chance.hex(16);
    let mut value = machines::shown_now(visit, &id)?;
    value["default_password"] = password.into();
    Ok(Answer::json(202, &json!({ machines::member(metal): value })))
}
