//! The spot market: prices in each zone with their past, requests and their status.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use rust_decimal::Decimal;
use serde_json::{Value, json};

use super::catalogue::{self, InstanceType, TYPES};
use super::context::{Context, moment};
use super::failure::{Failure, Outcome};
use super::groups;
use super::input::{Pages, filtered, flag, int, page, tag_set, tag_values, text, texts};
use super::instances::groups_of;
use super::network::zone_id;
use super::parts;
use crate::core::machine::{Cause, Machine, Phase};
use crate::core::market::Market;

/// How far the price history goes back.
const PAST: SignedDuration = SignedDuration::from_hours(90 * 24);

/// Prices that tests have set, with the time since when they hold.
#[derive(Debug, Default)]
pub struct SpotMarket(BTreeMap<(String, String), Vec<(Timestamp, Decimal)>>);

impl SpotMarket {
    /// Sets the price of a type in a zone from now on.
    pub fn set(&mut self, kind: &str, zone: &str, price: Decimal, now: Timestamp) {
        self.0
            .entry((kind.to_owned(), zone.to_owned()))
            .or_default()
            .push((now, price));
    }

    /// The price now.
    pub fn price(&self, kind: &InstanceType, zone: &str) -> Decimal {
        let set = self
            .0
            .get(&(kind.name.to_owned(), zone.to_owned()))
            .and_then(|prices| prices.last());
        set.map_or_else(|| kind.usual_spot_price(zone), |(_, price)| *price)
    }

    /// Prices with their times, newest first: the ones of the period, and the one
    /// that held when it began.
    fn history(
        &self,
        kind: &InstanceType,
        zone: &str,
        from: Timestamp,
        to: Timestamp,
    ) -> Vec<(Timestamp, Decimal)> {
        let usual = kind.usual_spot_price(zone);
        let day = SignedDuration::from_hours(24);
        // Without help the price moves a little each day; the newest is the usual one.
        let anchor = Timestamp::from_second(to.as_second() / 86_400 * 86_400).unwrap_or(to);
        // What tests have set comes first where the times are the same.
        let set = self.0.get(&(kind.name.to_owned(), zone.to_owned()));
        let mut all: Vec<(Timestamp, Decimal)> = set.into_iter().flatten().rev().copied().collect();
        all.extend((0..90_i32).map(|days| {
            let wobble = Decimal::new(1_000 + i64::from(days % 7) * 10, 3);
            (anchor - day * days, (usual * wobble).round_dp(6).normalize())
        }));
        all.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        all.retain(|(at, _)| *at <= to);
        let inside = all.iter().take_while(|(at, _)| *at > from).count();
        all.truncate(inside + 1);
        all
    }
}

/// `DescribeSpotPriceHistory`.
pub fn describe_prices(context: &Context<'_, '_>, input: &Value) -> Outcome {
    let now = context.visit.now();
    let moment_of = |name: &str| text(input, name).and_then(|text| text.parse::<Timestamp>().ok());
    let from = moment_of("StartTime").unwrap_or(now - PAST).min(now);
    let to = moment_of("EndTime").unwrap_or(now).min(now);
    let named = texts(input, "InstanceTypes");
    for name in &named {
        if catalogue::instance_type(name).is_none() {
            return Err(Failure::value(format!(
                "Invalid value '{name}' for instanceType."
            )));
        }
    }
    let products = texts(input, "ProductDescriptions");
    let linux = products.is_empty() || products.iter().any(|product| product.starts_with("Linux/UNIX"));
    let mut all: Vec<(&InstanceType, String, Timestamp, Decimal)> = Vec::new();
    for kind in TYPES
        .iter()
        .filter(|kind| linux && kind.spot && (named.is_empty() || named.iter().any(|name| name == kind.name)))
    {
        for zone in catalogue::zones(&context.region) {
            let wanted = text(input, "AvailabilityZone").is_none_or(|wanted| wanted == zone)
                && text(input, "AvailabilityZoneId").is_none_or(|wanted| wanted == zone_id(&zone));
            if !wanted || !kind.carried_in(&zone) {
                continue;
            }
            if let Some(price) = context
                .visit
                .world
                .types
                .get(kind.name)
                .and_then(|current| current.spot)
            {
                all.push((kind, zone, now, price));
                continue;
            }
            for (at, price) in context.state.spot.history(kind, &zone, from, to) {
                all.push((kind, zone.clone(), at, price));
            }
        }
    }
    all.sort_by_key(|(_, _, at, _)| std::cmp::Reverse(*at));
    let known = [
        "availability-zone",
        "availability-zone-id",
        "instance-type",
        "product-description",
        "spot-price",
        "timestamp",
    ];
    let found = filtered(input, &known, false, all, |(kind, zone, at, price), filter| {
        vec![match filter {
            "availability-zone" => zone.clone(),
            "availability-zone-id" => zone_id(zone),
            "instance-type" => kind.name.to_owned(),
            "spot-price" => price.to_string(),
            "timestamp" => moment(*at),
            _ => "Linux/UNIX".to_owned(),
        }]
    })?;
    let (found, next) = page(
        input,
        Pages {
            least: 1,
            most: 1_000,
            usual: Some(1_000),
        },
        context.visit.keep,
        found,
    )?;
    let prices: Vec<Value> = found
        .into_iter()
        .map(|(kind, zone, at, price)| {
            json!({
                "InstanceType": kind.name,
                "AvailabilityZone": zone,
                "AvailabilityZoneId": zone_id(&zone),
                "ProductDescription": "Linux/UNIX",
                "SpotPrice": format!("{price:.6}"),
                "Timestamp": moment(at),
            })
        })
        .collect();
    // This call ends its pages with an empty token.
    Ok(json!({"SpotPriceHistory": prices, "NextToken": next.unwrap_or_default()}))
}

fn requests<'a>(context: &'a Context<'_, '_>) -> Vec<(&'a str, &'a Machine)> {
    context
        .visit
        .world
        .machines_of(&context.visit.account)
        .filter(|machine| {
            machine.market == Market::Spot && machine.detail["region"] == context.region.as_str()
        })
        .filter_map(|machine| Some((text(&machine.detail, "spotRequest")?, machine)))
        .collect()
}

fn request_state(machine: &Machine) -> (&'static str, &'static str) {
    let cancelled = flag(&machine.detail, "spotCancelled");
    match machine.phase {
        Phase::Ending | Phase::Ended => match machine.cause {
            Some(Cause::Reclaimed) => ("closed", "instance-terminated-no-capacity"),
            _ => ("closed", "instance-terminated-by-user"),
        },
        _ if cancelled => ("cancelled", "request-canceled-and-instance-running"),
        Phase::Halted => ("disabled", "instance-stopped-no-capacity"),
        Phase::Pending | Phase::Running | Phase::Failed if machine.noticed.is_some() => {
            ("active", "marked-for-termination")
        }
        Phase::Pending | Phase::Running | Phase::Failed => ("active", "fulfilled"),
    }
}

fn find<'a>(context: &'a Context<'_, '_>, ids: &[String]) -> Result<Vec<(&'a str, &'a Machine)>, Failure> {
    let all = requests(context);
    if let Some(unknown) = ids
        .iter()
        .find(|id| !all.iter().any(|(request, _)| request == id))
    {
        return Err(Failure::client(
            "InvalidSpotInstanceRequestID.NotFound",
            format!("The spot instance request ID '{unknown}' does not exist"),
        ));
    }
    Ok(all
        .into_iter()
        .filter(|(request, _)| ids.is_empty() || ids.iter().any(|id| id == request))
        .collect())
}

/// Filters, each with the field of the description that it is compared with. Filters on fields that
/// no request here has match nothing.
const FILTERS: [(&str, &str); 22] = [
    ("availability-zone-group", "/AvailabilityZoneGroup"),
    ("create-time", "/CreateTime"),
    ("fault-code", "/Fault/Code"),
    ("fault-message", "/Fault/Message"),
    ("instance-id", "/InstanceId"),
    ("launch-group", "/LaunchGroup"),
    ("launch.group-id", "/LaunchSpecification/SecurityGroups/0/GroupId"),
    (
        "launch.group-name",
        "/LaunchSpecification/SecurityGroups/0/GroupName",
    ),
    ("launch.image-id", "/LaunchSpecification/ImageId"),
    ("launch.instance-type", "/LaunchSpecification/InstanceType"),
    ("launch.key-name", "/LaunchSpecification/KeyName"),
    ("launched-availability-zone", "/LaunchedAvailabilityZone"),
    ("launched-availability-zone-id", "/LaunchedAvailabilityZoneId"),
    ("network-interface.subnet-id", "/LaunchSpecification/SubnetId"),
    ("product-description", "/ProductDescription"),
    ("spot-instance-request-id", "/SpotInstanceRequestId"),
    ("spot-price", "/SpotPrice"),
    ("state", "/State"),
    ("status-code", "/Status/Code"),
    ("status-message", "/Status/Message"),
    ("type", "/Type"),
    ("valid-until", "/ValidUntil"),
];

/// `DescribeSpotInstanceRequests`.
pub fn describe_requests(context: &Context<'_, '_>, input: &Value) -> Outcome {
    let found = find(context, &texts(input, "SpotInstanceRequestIds"))?;
    let known = FILTERS.map(|(name, _)| name);
    let found = filtered(input, &known, true, found, |(request, machine), filter| {
        let place = FILTERS.iter().find(|(name, _)| *name == filter);
        match place {
            Some((_, place)) => {
                let described = describe_one(context, request, machine);
                let value = described.pointer(place).cloned().unwrap_or_default();
                value.as_str().map(str::to_owned).into_iter().collect()
            }
            None => tag_values(&parts::tags_of(machine, request), filter),
        }
    })?;
    let (found, next) = page(
        input,
        Pages {
            least: 5,
            most: 1_000,
            usual: None,
        },
        context.visit.keep,
        found,
    )?;
    let requests: Vec<Value> = found
        .into_iter()
        .map(|(request, machine)| describe_one(context, request, machine))
        .collect();
    Ok(json!({"SpotInstanceRequests": requests, "NextToken": next}))
}

/// A request as answers have it.
fn describe_one(context: &Context<'_, '_>, request: &str, machine: &Machine) -> Value {
    let (state, code) = request_state(machine);
    let detail = &machine.detail;
    let groups: Vec<Value> = groups_of(machine)
        .into_iter()
        .map(|id| {
            let name = groups::group(context, &id).map(|(name, _)| name);
            json!({"GroupId": id, "GroupName": name})
        })
        .collect();
    json!({
        "SpotInstanceRequestId": request,
        "InstanceId": machine.id,
        "State": state,
        "Status": {"Code": code, "Message": code, "UpdateTime": moment(machine.created())},
        "Type": detail["spotType"],
        "SpotPrice": text(detail, "maxPrice").map_or_else(|| machine.on_demand_price.to_string(), str::to_owned),
        "CreateTime": moment(machine.created()),
        "LaunchSpecification": {
            "ImageId": detail["image"],
            "InstanceType": machine.instance_type,
            "KeyName": detail["key"],
            "SubnetId": detail["subnet"],
            "SecurityGroups": groups,
            "Placement": {"AvailabilityZone": machine.region},
            "Monitoring": {"Enabled": false},
        },
        "LaunchedAvailabilityZone": machine.region,
        "LaunchedAvailabilityZoneId": zone_id(&machine.region),
        "ProductDescription": "Linux/UNIX",
        "InstanceInterruptionBehavior": detail["interruption"],
        "Tags": tag_set(&parts::tags_of(machine, request)),
    })
}

/// `CancelSpotInstanceRequests`. The instances go on.
pub fn cancel_requests(context: &mut Context<'_, '_>, input: &Value) -> Outcome {
    let ids: Vec<(String, String)> = find(context, &texts(input, "SpotInstanceRequestIds"))?
        .into_iter()
        .map(|(request, machine)| (request.to_owned(), machine.id.clone()))
        .collect();
    let mut cancelled = Vec::new();
    for (request, machine) in ids {
        if let Some(machine) = context.visit.world.machines.get_mut(&machine) {
            machine.detail["spotCancelled"] = json!(true);
        }
        cancelled.push(json!({"SpotInstanceRequestId": request, "State": "cancelled"}));
    }
    Ok(json!({"CancelledSpotInstanceRequests": cancelled}))
}

/// `GetSpotPlacementScores`.
pub fn placement_scores(context: &Context<'_, '_>, input: &Value) -> Outcome {
    let target = int(input, "TargetCapacity").unwrap_or(1).max(1) as u64;
    let kinds: Vec<&InstanceType> = texts(input, "InstanceTypes")
        .iter()
        .filter_map(|name| catalogue::instance_type(name))
        .filter(|kind| kind.spot)
        .collect();
    let regions = texts(input, "RegionNames");
    let single = flag(input, "SingleAvailabilityZone");
    let mut scores = Vec::new();
    for (region, ..) in catalogue::REGIONS
        .iter()
        .filter(|(name, ..)| regions.is_empty() || regions.iter().any(|region| region == name))
    {
        let left = |zone: &str| -> u64 {
            kinds
                .iter()
                .map(|kind| super::room::stock_left(context, kind, zone, Market::Spot))
                .fold(0, u64::saturating_add)
        };
        let score = |left: u64| (left.min(target) * 9 / target).max(1) as i64;
        let zones = catalogue::zones(region);
        if single {
            for zone in zones {
                let score = score(left(&zone));
                scores.push((
                    score,
                    json!({"Region": region, "AvailabilityZoneId": zone_id(&zone), "Score": score}),
                ));
            }
        } else {
            let score = score(zones.iter().map(|zone| left(zone)).fold(0, u64::saturating_add));
            scores.push((score, json!({"Region": region, "Score": score})));
        }
    }
    scores.sort_by_key(|(score, _)| std::cmp::Reverse(*score));
    let scores: Vec<Value> = scores.into_iter().take(10).map(|(_, score)| score).collect();
    Ok(json!({"SpotPlacementScores": scores}))
}
