//! Orders of Droplets.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{DigitalOcean, base, catalogue, droplets, missing, things};
use crate::backend::{Boot, Start};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::machine::Mark;
use crate::core::market::{InstanceType, Market, Shelf};
use crate::core::rest::{Rental, RestApi, bad, body};

/// The most bytes of user data.
const USER_DATA: usize = 64 << 10;

/// The body of an order, without what `NOT_SIMULATED_FIELDS` names.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Order {
    name: String,
    region: Option<String>,
    size: String,
    image: Value,
    #[serde(default)]
    ssh_keys: Vec<Value>,
    tags: Option<Vec<String>>,
    user_data: Option<String>,
    vpc_uuid: Option<String>,
    public_networking: Option<bool>,
    #[serde(rename = "monitoring")]
    _monitoring: Option<bool>,
    #[serde(rename = "private_networking")]
    _private_networking: Option<bool>,
    #[serde(rename = "with_droplet_agent")]
    _with_droplet_agent: Option<bool>,
}

impl Order {
    /// The first region with the asked prefix that has the size.
    fn region(&self, visit: &Visit<'_>) -> Result<String, Refusal> {
        let prefix = self.region.as_deref().unwrap_or_default();
        let fits = |region: &&String| region.starts_with(prefix);
        let mut known = visit.world.regions.iter().filter(fits);
        let shelf = |region: &str| Shelf::new(&self.size, region, Market::OnDemand);
        let stocked = known.clone().find(|region| visit.world.stock.has(&shelf(region)));
        match stocked.or_else(|| known.next()) {
            Some(region) => Ok(region.clone()),
            None => bad("Region is not available"),
        }
    }

    /// The public keys of the order.
    fn keys(&self, visit: &Visit<'_>) -> Result<Vec<String>, Refusal> {
        let text = |named: &Value| {
            let key = things::own(visit, things::KEY, &text(named))
                .and_then(|key| key.detail["public_key"].as_str());
            let unknown = format!("{named} are invalid key identifiers for Droplet creation.");
            key.map(str::to_owned).ok_or(Refusal::Bad(unknown))
        };
        self.ssh_keys.iter().map(text).collect()
    }
}

/// Letters, digits, dots and hyphens, which are at no edge.
fn is_hostname(name: &str) -> bool {
    let allowed = |letter: char| letter.is_ascii_alphanumeric() || "-.".contains(letter);
    (1..=255).contains(&name.len()) && name.chars().all(allowed) && name.trim_matches(['-', '.']) == name
}

/// An id or name in JSON.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// GPUs as their driver names them; other makers than NVIDIA have no such driver.
fn gpus(size: &InstanceType) -> Vec<String> {
    let name = size.gpu.strip_prefix("nvidia_");
    let name = name.map(|name| format!("NVIDIA {}", name.replace('_', " ").to_uppercase()));
    name.map_or_else(Vec::new, |name| vec![name; size.gpus as usize])
}

pub(super) fn create(api: &mut DigitalOcean, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let order: Order = body(visit.request)?;
    if !is_hostname(&order.name) {
        return bad("Only valid hostname characters are allowed. (a-z, A-Z, 0-9, . and -)");
    }
    let Some(size) = visit.world.types.get(&order.size).cloned() else {
        return bad("You specified an invalid size for Droplet creation.");
    };
    let image = text(&order.image);
    if catalogue::image(&image).is_none() {
        return bad("You specified an invalid image for Droplet creation.");
    }
    let region = order.region(visit)?;
    if order
        .vpc_uuid
        .as_ref()
        .is_some_and(|id| *id != catalogue::vpc(&region))
    {
        return bad("You specified an invalid VPC for Droplet creation.");
    }
    if order.public_networking == Some(false) {
        return Err(DigitalOcean::not_simulated("Droplets without an address"));
    }
    if order
        .user_data
        .as_ref()
        .is_some_and(|text| text.len() > USER_DATA)
    {
        return bad("User data is too long (maximum is 65536 bytes).");
    }
    let authorized_keys = order.keys(visit)?;
    let tags = api.named_tags(&visit.account, order.tags.as_deref().unwrap_or_default())?;
    let id = (100_000_000 + visit.world.chance.below(900_000_000)).to_string();
    let host = visit.world.chance.below(1 << 12);
    let rental = Rental {
        id: id.clone(),
        region,
        mark: Mark::of_texts(&order.name, &tags),
        detail: json!({
            "image": image, "tags": tags, "private": format!("10.100.{}.{}", host >> 8, host & 255),
        }),
        boot: Boot {
            hostname: order.name,
            image,
            user: "root".to_owned(),
            authorized_keys,
            start: order.user_data.map_or(Start::Nothing, Start::UserData),
            gpus: gpus(&size),
            ..Boot::default()
        },
    };
    visit.rent(&size, rental)?;
    api.keep_tags(&visit.account, &tags);
    let action = droplets::action_of(&id);
    let href = format!("{}/v2/actions/{action}", base(visit));
    let links = json!({ "actions": [{ "id": action, "rel": "create", "href": href }] });
    let droplet = droplets::shown_now(visit, &id).ok_or_else(missing)?;
    Ok(Answer::json(202, &json!({ "droplet": droplet, "links": links })))
}
