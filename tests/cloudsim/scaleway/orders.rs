//! Orders of servers: each is stopped at first, and has its root volume.

use std::collections::BTreeMap;

use rust_decimal::Decimal;
use serde::Deserialize;
use serde_json::{Value, json};

use super::catalogue::{self, GB};
use super::things::{ADDRESS, PRICE_OF_ADDRESS, add_volume};
use super::{Scaleway, missing, servers, things, zone};
use crate::backend::Boot;
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::machine::Mark;
use crate::core::rest::{Rental, RestApi, bad, body};

/// The body of an order, without what `NOT_SIMULATED_FIELDS` names.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Order {
    name: String,
    commercial_type: String,
    image: String,
    project: String,
    dynamic_ip_required: Option<bool>,
    #[serde(rename = "routed_ip_enabled")]
    _routed_ip_enabled: Option<bool>,
    #[serde(default)]
    volumes: BTreeMap<String, Volume>,
    #[serde(default)]
    public_ips: Vec<String>,
    #[serde(default)]
    tags: Vec<String>,
    security_group: Option<String>,
}

/// A volume of an order.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Volume {
    size: Option<u64>,
    volume_type: Option<String>,
    name: Option<String>,
    #[serde(rename = "boot")]
    _boot: Option<bool>,
}

pub(super) fn create(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let mut order: Order = body(visit.request)?;
    let zone = zone(visit)?;
    let Some(mut kind) = catalogue::find(visit.world, &zone, &order.commercial_type) else {
        return bad("commercial_type: not sold in this zone");
    };
    let image = catalogue::image(&zone, &order.image).ok_or_else(|| missing("instance_image"))?;
    let group = catalogue::group(&zone);
    if order.security_group.is_some_and(|id| id != group) {
        return Err(missing("instance_security_group"));
    }
    let root = order.volumes.remove("0").unwrap_or_default();
    if !order.volumes.is_empty() {
        return Err(Scaleway::not_simulated("volumes beside the root"));
    }
    let snapshot = &image["root_volume"];
    if snapshot["volume_type"] == "l_ssd" || root.volume_type.is_some_and(|kind| kind != "sbs_volume") {
        return bad("volumes: the total size of local volumes must be 0 for this type");
    }
    let least = snapshot["size"].as_u64().unwrap_or(GB);
    let size = root.size.unwrap_or(least);
    if size < least {
        return bad("volumes: the root volume is smaller than the image");
    }
    for id in &order.public_ips {
        if things::server_of(things::own(visit, ADDRESS, id)?).is_some() {
            return bad("public_ips: attached to another server");
        }
    }
    let dynamic = order.dynamic_ip_required.unwrap_or(true);
    let has_dynamic = dynamic && order.public_ips.is_empty();
    kind.on_demand += Decimal::new(PRICE_OF_ADDRESS * i64::from(has_dynamic), 3);
    let id = visit.world.chance.uuid();
    // A boot that a test scripted for the order is that of the first start.
    let plan = (visit.boot != visit.world.boot).then(|| visit.boot.clone());
    let rental = Rental {
        id: id.clone(),
        region: zone,
        mark: Mark::of_texts(&order.name, &order.tags),
        detail: json!({
            "project": order.project, "tags": order.tags, "image": image, "plan": plan, "dynamic": dynamic,
        }),
        boot: Boot {
            hostname: order.name,
            image: image["name"].as_str().unwrap_or_default().to_owned(),
            user: "root".to_owned(),
            gpus: vec![format!("NVIDIA {}", kind.gpu); kind.gpus as usize],
            ..Boot::default()
        },
    };
    visit.reserve(&kind, rental)?;
    let name = root.name.map_or(image["name"].clone(), Value::from);
    add_volume(visit, &id, &name, size, &order.project);
    for address in &order.public_ips {
        things::attach(visit.world, address, &id);
    }
    servers::shown_now(visit, 201, &id)
}
