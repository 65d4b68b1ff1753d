//! `CreateFleet` of the types instant and request. The failures of an instant fleet are part of an
//! answer with status 200; those of other fleets are shown by `fleets`.

use std::collections::{BTreeMap, BTreeSet};

use rust_decimal::Decimal;
use serde_json::{Value, json};

use super::context::Context;
use super::failure::{Failure, Outcome};
use super::input::{client_token, flag, int, list, tags_for, text};
use super::launch::{self, Launch, Order};
use super::network::{self, Subnet};
use super::{room, templates};
use crate::core::market::Market;
use crate::core::resource::Resource;

/// Most overrides of one fleet.
const OVERRIDES: usize = 300;

/// One way to fulfil a fleet: a template with one override.
struct Way {
    shown: Value,
    template: Resource,
    launch: Result<(Launch, Subnet), Failure>,
    price: Decimal,
    priority: f64,
    weight: f64,
}

/// `CreateFleet`.
pub fn create(context: &mut Context<'_, '_>, input: &Value) -> Outcome {
    let token = client_token(input)?;
    let compared = compared(context, input)?;
    if let Some(answer) = context.remembered("CreateFleet", token.as_deref(), &compared)? {
        return Ok(answer);
    }
    let kind = text(input, "Type").unwrap_or("maintain");
    // The default is a fleet that launches again whatever ends: no test wants that.
    if kind == "maintain" {
        return Err(Failure::client(
            "Unsupported",
            "the simulator has no fleets of the type maintain",
        ));
    }
    let tags = tags_for(
        input,
        "fleet",
        &[
            "fleet",
            "instance",
            "launch-template",
            "volume",
            "spot-instances-request",
            "network-interface",
        ],
    )?;
    if !list(input, "TagSpecifications").is_empty() {
        context.may("ec2:CreateTags")?;
    }
    let capacity = &input["TargetCapacitySpecification"];
    let total = int(capacity, "TotalTargetCapacity").unwrap_or(0);
    if !(1..=10_000).contains(&total) {
        return Err(Failure::value(
            "TotalTargetCapacity has to be between 1 and 10000",
        ));
    }
    let usual = text(capacity, "DefaultTargetCapacityType").unwrap_or("on-demand");
    if usual == "capacity-block" || usual == "reserved-capacity" {
        return Err(Failure::client(
            "Unsupported",
            format!("{usual} needs a reservation, which nobody has here"),
        ));
    }
    let (spot, on_demand) = (
        int(capacity, "SpotTargetCapacity"),
        int(capacity, "OnDemandTargetCapacity"),
    );
    if spot.unwrap_or(0) + on_demand.unwrap_or(0) > total {
        return Err(Failure::client(
            "InvalidTargetCapacitySpecification",
            "The parts exceed TotalTargetCapacity.",
        ));
    }
    let rest = total - spot.unwrap_or(0) - on_demand.unwrap_or(0);
    let on_demand = on_demand.unwrap_or(0) + if usual == "on-demand" { rest } else { 0 };
    let spot = spot.unwrap_or(0) + if usual == "spot" { rest } else { 0 };
    let specs = specifications(context, input)?;
    let fleet = format!("fleet-{}", context.visit.world.chance.uuid());
    let mut instances = Vec::new();
    let mut errors = Vec::new();
    let parts = [(Market::OnDemand, on_demand), (Market::Spot, spot)];
    for (market, wanted) in parts.into_iter().filter(|(_, wanted)| *wanted > 0) {
        let options = match market {
            Market::Spot => &input["SpotOptions"],
            Market::OnDemand => &input["OnDemandOptions"],
        };
        let ways = specs
            .iter()
            .map(|(template, overrides)| way(context, input, template, overrides, market))
            .collect();
        fulfil(
            context,
            &fleet,
            market,
            wanted,
            options,
            ways,
            &mut instances,
            &mut errors,
        );
    }
    context.visit.subject.get_or_insert_with(|| fleet.clone());
    // Only the answer for an instant fleet has its instances and failures.
    let answer = if kind == "instant" {
        json!({"FleetId": fleet, "Errors": errors, "Instances": instances})
    } else {
        json!({"FleetId": fleet})
    };
    let record = json!({
        "account": context.visit.account,
        "region": context.region,
        "created": context.moment(),
        "token": token,
        "tags": tags,
        "type": kind,
        "total": total,
        "onDemand": on_demand,
        "spot": spot,
        "usual": usual,
        "errors": errors,
        "instances": instances,
    });
    context.state.fleets.insert(fleet, record);
    context.remember("CreateFleet", token.as_deref(), &compared, &answer);
    Ok(answer)
}

/// What must be the same for a token to be of the same order.
fn compared(context: &Context<'_, '_>, input: &Value) -> Outcome {
    let mut compared = input.clone();
    if context.state.compares_templates {
        let configs = list(input, "LaunchTemplateConfigs");
        let named = configs
            .iter()
            .map(|config| templates::named(context, &config["LaunchTemplateSpecification"]));
        let ids: Result<Vec<String>, Failure> = named.map(|found| Ok(found?.id)).collect();
        compared["templates"] = json!(ids?);
    }
    Ok(compared)
}

/// Templates with their overrides, one by one.
fn specifications(context: &Context<'_, '_>, input: &Value) -> Result<Vec<(Resource, Value)>, Failure> {
    let mut all = Vec::new();
    for config in list(input, "LaunchTemplateConfigs") {
        let specification = config
            .get("LaunchTemplateSpecification")
            .ok_or_else(|| Failure::missing("LaunchTemplateSpecification"))?;
        if text(specification, "Version").is_none() {
            return Err(Failure::missing("LaunchTemplateSpecification.Version"));
        }
        let template = templates::named(context, specification)?;
        let overrides = list(config, "Overrides");
        if overrides.is_empty() {
            all.push((template.clone(), json!({})));
        }
        for one in overrides {
            if one.get("InstanceRequirements").is_some() {
                return Err(Failure::client(
                    "Unsupported",
                    "attribute-based selection is not simulated",
                ));
            }
            all.push((template.clone(), one.clone()));
        }
    }
    if all.len() > OVERRIDES {
        return Err(Failure::client(
            "InvalidFleetConfig",
            format!("More than {OVERRIDES} overrides."),
        ));
    }
    Ok(all)
}

fn way(
    context: &Context<'_, '_>,
    input: &Value,
    template: &Resource,
    overrides: &Value,
    market: Market,
) -> Way {
    let launch = check_way(context, input, template, overrides, market);
    let price = match &launch {
        Ok((launch, subnet)) if market == Market::Spot => {
            room::spot_price(context, launch.kind, &subnet.zone)
        }
        Ok((launch, _)) => room::on_demand_price(context, launch.kind),
        Err(_) => Decimal::MAX,
    };
    let weight = overrides
        .get("WeightedCapacity")
        .and_then(Value::as_f64)
        .unwrap_or(1.0);
    let priority = overrides
        .get("Priority")
        .and_then(Value::as_f64)
        .unwrap_or(f64::MAX);
    let names = [
        "InstanceType",
        "MaxPrice",
        "SubnetId",
        "AvailabilityZone",
        "WeightedCapacity",
        "Priority",
        "ImageId",
    ];
    let shown: serde_json::Map<String, Value> = overrides
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(name, _)| names.contains(&name.as_str()))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let shown = json!({
        "LaunchTemplateSpecification": {"LaunchTemplateId": template.id, "Version": "1"},
        "Overrides": shown,
    });
    Way {
        shown,
        template: template.clone(),
        launch,
        price,
        priority,
        weight,
    }
}

fn check_way(
    context: &Context<'_, '_>,
    input: &Value,
    template: &Resource,
    overrides: &Value,
    market: Market,
) -> Result<(Launch, Subnet), Failure> {
    let mut above = overrides.clone();
    if let Some(fields) = above.as_object_mut() {
        if let Some(zone) = fields.remove("AvailabilityZone") {
            fields.insert("Placement".to_owned(), json!({"AvailabilityZone": zone}));
        }
        let tags: Vec<Value> = list(input, "TagSpecifications")
            .iter()
            .filter(|specification| text(specification, "ResourceType") == Some("instance"))
            .cloned()
            .collect();
        fields.insert("TagSpecifications".to_owned(), Value::Array(tags));
    }
    let mut below = template.detail.clone();
    if below.get("InstanceMarketOptions").is_some() {
        return Err(Failure::combination(
            "The launch template of a fleet must not have InstanceMarketOptions",
        ));
    }
    if market == Market::Spot {
        let interruption = text(&input["SpotOptions"], "InstanceInterruptionBehavior").unwrap_or("terminate");
        let mut options = json!({"MarketType": "spot", "SpotOptions": {"SpotInstanceType": "one-time"}});
        if interruption != "terminate" {
            return Err(Failure::combination(format!(
                "{interruption} is not supported by fleets of the type instant"
            )));
        }
        if let Some(price) = text(overrides, "MaxPrice") {
            options["SpotOptions"]["MaxPrice"] = json!(price);
        }
        below["InstanceMarketOptions"] = options;
    }
    let launch = launch::check(context, &launch::overlay(&below, &above))?;
    let subnet = match (&launch.subnet, &launch.zone) {
        (Some(subnet), _) => subnet.clone(),
        (None, zone) => network::subnets(&context.region)
            .into_iter()
            .filter(|subnet| subnet.default && zone.as_ref().is_none_or(|zone| subnet.zone == *zone))
            .find(|subnet| zone.is_some() || launch.kind.carried_in(&subnet.zone))
            .ok_or_else(|| Failure::client("InvalidFleetConfig", "No default subnet in the zone."))?,
    };
    room::sold(context, &launch, &subnet.zone)?;
    Ok((launch, subnet))
}

#[expect(
    clippy::too_many_arguments,
    reason = "one part of one call; a struct would only rename them"
)]
fn fulfil(
    context: &mut Context<'_, '_>,
    fleet: &str,
    market: Market,
    wanted: i64,
    options: &Value,
    mut ways: Vec<Way>,
    instances: &mut Vec<Value>,
    errors: &mut Vec<Value>,
) {
    let lifecycle = if market == Market::Spot {
        "spot"
    } else {
        "on-demand"
    };
    let by_priority = matches!(
        text(options, "AllocationStrategy"),
        Some("prioritized" | "capacity-optimized-prioritized")
    );
    ways.sort_by(|left, right| {
        let priority = if by_priority {
            left.priority.total_cmp(&right.priority)
        } else {
            std::cmp::Ordering::Equal
        };
        priority.then(left.price.cmp(&right.price))
    });
    let (single_type, single_zone) = (
        flag(options, "SingleInstanceType"),
        flag(options, "SingleAvailabilityZone"),
    );
    let least = int(options, "MinTargetCapacity").unwrap_or(0);
    let mut failed: BTreeMap<usize, Failure> = BTreeMap::new();
    // For fleets of one type or zone, each possible one is tried as a whole.
    let groups: Vec<Vec<usize>> = if single_type || single_zone {
        let key = |way: &Way| {
            let (launch, subnet) = way.launch.as_ref().ok()?;
            Some((
                single_type.then_some(launch.kind.name),
                single_zone.then(|| subnet.zone.clone()),
            ))
        };
        let mut seen = BTreeSet::new();
        let mut groups = Vec::new();
        for way in &ways {
            let Some(key_of_way) = key(way) else { continue };
            if seen.insert(key_of_way.clone()) {
                groups.push(
                    (0..ways.len())
                        .filter(|index| key(&ways[*index]).as_ref() == Some(&key_of_way))
                        .collect(),
                );
            }
        }
        groups
    } else {
        vec![(0..ways.len()).collect()]
    };
    let mut plans: Vec<Vec<(usize, u64)>> = Vec::new();
    for group in groups {
        plans.push(plan(context, &ways, &group, market, wanted, &mut failed));
    }
    for (index, way) in ways.iter().enumerate() {
        if let Err(failure) = &way.launch {
            failed.insert(index, failure.clone());
        }
    }
    let size = |plan: &Vec<(usize, u64)>| {
        plan.iter()
            .map(|(index, count)| ways[*index].weight * *count as f64)
            .sum::<f64>()
    };
    let best = plans
        .into_iter()
        .reduce(|best, other| if size(&other) > size(&best) { other } else { best });
    let chosen = best
        .filter(|plan| size(plan) > 0.0 && size(plan) >= least as f64)
        .unwrap_or_default();
    for (index, count) in &chosen {
        let way = &ways[*index];
        let Ok((launch, subnet)) = &way.launch else {
            continue;
        };
        let order = Order {
            reservation: context.id("r"),
            // Not the token of the call: instances of a fleet have their own.
            client_token: format!("{fleet}-{index}"),
            service_tags: BTreeMap::from([
                ("aws:ec2:fleet-id".to_owned(), fleet.to_owned()),
                ("aws:ec2launchtemplate:id".to_owned(), way.template.id.clone()),
                ("aws:ec2launchtemplate:version".to_owned(), "1".to_owned()),
            ]),
        };
        let ids: Vec<String> = (0..*count as usize)
            .map(|number| launch::start(context, launch, subnet, &order, number))
            .collect();
        instances.push(json!({
            "LaunchTemplateAndOverrides": way.shown,
            "Lifecycle": lifecycle,
            "InstanceIds": ids,
            "InstanceType": launch.kind.name,
        }));
    }
    if size(&chosen) >= wanted as f64 {
        return;
    }
    let mut told = |shown: &Value, failure: &Failure| {
        errors.push(json!({
            "LaunchTemplateAndOverrides": shown,
            "Lifecycle": lifecycle,
            "ErrorCode": failure.code,
            "ErrorMessage": failure.message,
        }));
    };
    for (index, failure) in &failed {
        told(&ways[*index].shown, failure);
    }
    if failed.is_empty()
        && let Some(way) = ways.first()
    {
        told(
            &way.shown,
            &Failure::client(
                "UnfulfillableCapacity",
                "Unable to fulfill capacity due to your request configuration.",
            ),
        );
    }
}

/// How many machines each of these ways would give.
fn plan(
    context: &Context<'_, '_>,
    ways: &[Way],
    group: &[usize],
    market: Market,
    wanted: i64,
    failed: &mut BTreeMap<usize, Failure>,
) -> Vec<(usize, u64)> {
    let mut missing = wanted as f64;
    let mut planned: Vec<(usize, u64)> = Vec::new();
    let mut taken: BTreeMap<(&str, String), u64> = BTreeMap::new();
    let mut vcpus: BTreeMap<super::catalogue::Quota, u64> = BTreeMap::new();
    for index in group {
        if missing <= 0.0 {
            break;
        }
        let Ok((launch, subnet)) = &ways[*index].launch else {
            continue;
        };
        let quota = match room::quota_left(context, launch.kind, market) {
            Ok(quota) => quota.saturating_sub(
                vcpus
                    .get(&launch.kind.quota)
                    .copied()
                    .unwrap_or(0)
                    .div_ceil(u64::from(launch.kind.vcpus)),
            ),
            Err(failure) => {
                failed.insert(*index, failure);
                continue;
            }
        };
        let shelf = taken.entry((launch.kind.name, subnet.zone.clone())).or_default();
        let stock = room::stock_left(context, launch.kind, &subnet.zone, market).saturating_sub(*shelf);
        let needed = (missing / ways[*index].weight).ceil() as u64;
        let count = needed.min(quota).min(stock);
        if count < needed {
            let failure = if quota < stock {
                Failure::client(
                    "VcpuLimitExceeded",
                    "You have requested more vCPU capacity than your current vCPU limit allows.",
                )
            } else {
                room::no_capacity(launch.kind, &subnet.zone, market)
            };
            failed.insert(*index, failure);
        }
        if count > 0 {
            *shelf += count;
            *vcpus.entry(launch.kind.quota).or_default() += count * u64::from(launch.kind.vcpus);
            missing -= ways[*index].weight * count as f64;
            planned.push((*index, count));
        }
    }
    planned
}
