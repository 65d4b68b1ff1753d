//! Orders of VMs.

use rust_decimal::Decimal;
use serde::Deserialize;
use serde_json::json;

use super::things::{ENVIRONMENT, KEY, environment, key};
use super::{Hyperstack, catalogue, machines, missing, ok};
use crate::backend::{Boot, SshWay, Start};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::machine::Mark;
use crate::core::rest::{Rental, RestApi, body};

/// The body of an order, without what `NOT_SIMULATED_FIELDS` names.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Order {
    name: String,
    environment_name: String,
    key_name: String,
    flavor_name: String,
    image_name: Option<String>,
    count: u64,
    assign_floating_ip: Option<bool>,
    enable_port_randomization: Option<bool>,
    user_data: Option<String>,
    #[serde(default)]
    security_rules: Vec<machines::Rule>,
    #[serde(default)]
    labels: Vec<String>,
}

pub(super) fn create(api: &mut Hyperstack, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let order: Order = body(visit.request)?;
    if order.count != 1 {
        return Err(Hyperstack::not_simulated("several VMs at once"));
    }
    let around = environment(visit, &order.environment_name)?;
    let region = around.detail["region"].as_str().unwrap_or_default().to_owned();
    let mut flavor = catalogue::find(visit.world, &region, &order.flavor_name)?;
    let image = order.image_name.unwrap_or_default();
    catalogue::check_image(&image, &flavor.name)?;
    let key = key(visit, &around.id, &order.key_name).ok_or_else(|| missing(KEY))?;
    let public_key = key.detail["public_key"].as_str().unwrap_or_default().to_owned();
    let around = around.id.clone();
    let has_address = order.assign_floating_ip == Some(true);
    let randomized = has_address && order.enable_port_randomization != Some(false);
    let address = catalogue::ADDRESS * Decimal::from(u8::from(has_address));
    flavor.on_demand += address;
    flavor.spot = flavor.spot.map(|price| price + address);
    let card = format!("NVIDIA {}", flavor.gpu.trim_end_matches(catalogue::SPOT));
    let rules = order.security_rules.iter();
    let rules: Vec<_> = rules.map(|rule| machines::made_rule(api, visit, rule)).collect();
    let id = api.id();
    let rental = Rental {
        id: id.clone(),
        region,
        mark: Mark::of_texts(&order.name, &order.labels),
        detail: json!({
            ENVIRONMENT: around, "image": image, "key": order.key_name, "tags": order.labels, "rules": rules,
            "address": has_address.then_some(visit.now().as_second()), "randomized": randomized, "kept": null,
            "fixed": format!("10.0.0.{}", 2 + api.last % 250),
        }),
        boot: Boot {
            hostname: order.name,
            image,
            user: "ubuntu".to_owned(),
            authorized_keys: vec![public_key],
            start: order.user_data.map_or(Start::Nothing, Start::UserData),
            ssh: [SshWay::Direct, SshWay::Mapped][usize::from(randomized)],
            gpus: vec![card; flavor.gpus as usize],
            ..Boot::default()
        },
    };
    visit.rent_on(catalogue::market(&flavor.name), &flavor, rental)?;
    ok(json!({ "instances": [machines::shown_now(visit, &id)?] }))
}
