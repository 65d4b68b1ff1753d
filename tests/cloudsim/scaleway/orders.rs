//! Orders of servers: each is stopped at first, and has its root volume.

use std::collections::BTreeMap;

use rust_decimal::Decimal;
use serde::Deserialize;
use serde_json::json;

use super::catalogue::{self, GB};
use super::things::add_volume;
use super::{Scaleway, missing, servers, zone};
use crate::backend::Boot;
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::machine::Mark;
use crate::core::rest::{Rental, RestApi, bad, body};

/// What an address costs an hour, in thousandths of a euro.
const PRICE_OF_ADDRESS: i64 = 4;

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
    volumes: BTreeMap<String, Wanted>,
    #[serde(default)]
    tags: Vec<String>,
    security_group: Option<String>,
}

/// A volume of an order.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    size: Option<u64>,
    volume_type: Option<String>,
    #[serde(rename = "name")]
    _name: Option<String>,
    #[serde(rename = "boot")]
    _boot: Option<bool>,
}

pub(super) fn create(api: &mut Scaleway, visit: &mut Visit<'_>, _: &str) -> Result<Answer, Refusal> {
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
    let least = catalogue::least(&image);
    let size = root.size.unwrap_or(least);
    if size < least {
        return bad("volumes: the root volume is smaller than the image");
    }
    let dynamic = order.dynamic_ip_required.unwrap_or(true);
    let pays = dynamic && !api.servers_alone;
    kind.on_demand += Decimal::new(PRICE_OF_ADDRESS * i64::from(pays), 3);
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
    let name = format!("{}_sbs_volume_0", image["name"].as_str().unwrap_or_default());
    // A GB costs a ten thousandth of a euro in an hour.
    let price = Decimal::from(size * u64::from(!api.servers_alone)) / Decimal::from(10 * GB);
    add_volume(visit, &id, &name, [size.into(), order.project.into()], price);
    servers::shown_now(visit, 201, &id)
}
