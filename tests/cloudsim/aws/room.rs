//! Whether there is room for a launch: what zones carry, stock, quotas, and prices.

use rust_decimal::Decimal;

use super::catalogue::{self, InstanceType, Quota};
use super::context::Context;
use super::failure::Failure;
use super::instances;
use super::launch::Launch;
use crate::core::market::{Left, Market, Shelf};

/// Whether the type, at its price, is sold in a zone.
pub fn sold(context: &Context<'_, '_>, launch: &Launch, zone: &str) -> Result<(), Failure> {
    let kind = launch.kind;
    if !kind.carried_in(zone) {
        let others: Vec<String> = catalogue::zones(&context.region)
            .into_iter()
            .filter(|other| kind.carried_in(other))
            .collect();
        return Err(Failure::client(
            "Unsupported",
            format!(
                "Your requested instance type ({}) is not supported in your requested Availability Zone ({zone}). Please retry your request by not specifying an Availability Zone or choosing {}.",
                kind.name,
                others.join(", ")
            ),
        ));
    }
    if launch.market == Market::Spot {
        if !kind.spot {
            return Err(Failure::client(
                "Unsupported",
                format!(
                    "The instance type {} is not supported by the spot market.",
                    kind.name
                ),
            ));
        }
        let price = spot_price(context, kind, zone);
        if launch.max_price.is_some_and(|most| most < price) {
            return Err(Failure::client(
                "SpotMaxPriceTooLow",
                format!(
                    "Your Spot request price of {} is lower than the minimum required Spot request fulfillment price of {price}.",
                    launch.max_price.unwrap_or_default()
                ),
            ));
        }
    }
    Ok(())
}

/// How many more vCPUs of a kind the account may run in the region, as machines.
pub fn quota_left(context: &Context<'_, '_>, kind: &InstanceType, market: Market) -> Result<u64, Failure> {
    let name = quota_name(kind.quota, market);
    let Some(limit) = context
        .visit
        .world
        .accounts
        .get(&context.visit.account)
        .and_then(|account| account.quotas.get(name))
    else {
        return Ok(u64::MAX);
    };
    let used: u64 = context
        .visit
        .world
        .machines_of(&context.visit.account)
        .filter(|machine| {
            machine.market == market
                && instances::counts(machine)
                && machine.region.starts_with(&context.region)
        })
        .filter_map(|machine| catalogue::instance_type(&machine.instance_type))
        .filter(|other| other.quota == kind.quota)
        .map(|other| u64::from(other.vcpus))
        .sum();
    let left = limit.saturating_sub(used) / u64::from(kind.vcpus);
    if left > 0 {
        return Ok(left);
    }
    Err(match market {
        Market::OnDemand => Failure::client(
            "VcpuLimitExceeded",
            format!(
                "You have requested more vCPU capacity than your current vCPU limit of {limit} allows for the instance bucket that the specified instance type belongs to. Please visit http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit."
            ),
        ),
        Market::Spot => Failure::client("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded"),
    })
}

/// The name of a quota as Service Quotas has it; tests put it on an account.
pub fn quota_name(quota: Quota, market: Market) -> &'static str {
    match (quota, market) {
        (Quota::Standard, Market::OnDemand) => {
            "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances"
        }
        (Quota::G, Market::OnDemand) => "Running On-Demand G and VT instances",
        (Quota::P, Market::OnDemand) => "Running On-Demand P instances",
        (Quota::Inf, Market::OnDemand) => "Running On-Demand Inf instances",
        (Quota::Trn, Market::OnDemand) => "Running On-Demand Trn instances",
        (Quota::Standard, Market::Spot) => "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests",
        (Quota::G, Market::Spot) => "All G and VT Spot Instance Requests",
        (Quota::P, Market::Spot) => "All P4, P3 and P2 Spot Instance Requests",
        (Quota::Inf, Market::Spot) => "All Inf Spot Instance Requests",
        (Quota::Trn, Market::Spot) => "All Trn Spot Instance Requests",
    }
}

/// How many machines a zone has left.
pub fn stock_left(context: &Context<'_, '_>, kind: &InstanceType, zone: &str, market: Market) -> u64 {
    match context
        .visit
        .world
        .stock
        .left(&Shelf::new(kind.name, zone, market))
    {
        Left::Plenty => u64::MAX,
        Left::Count(count) => count,
    }
}

/// The failure of a zone that has none left.
pub fn no_capacity(kind: &InstanceType, zone: &str, market: Market) -> Failure {
    let message = match market {
        Market::OnDemand => format!(
            "We currently do not have sufficient {} capacity in the Availability Zone you requested ({zone}). Our system will be working on provisioning additional capacity.",
            kind.name
        ),
        Market::Spot => "There is no Spot capacity available that matches your request.".to_owned(),
    };
    Failure::new(500, "InsufficientInstanceCapacity", message)
}

/// The on-demand price of a type in the context's region.
pub fn on_demand_price(context: &Context<'_, '_>, kind: &InstanceType) -> Decimal {
    let level = Decimal::new(catalogue::price_level(&context.region), 2);
    match context.visit.world.types.get(kind.name) {
        Some(current) => (current.on_demand * level).normalize(),
        None => kind.on_demand_price(&context.region),
    }
}

/// The spot price of a type in a zone.
pub fn spot_price(context: &Context<'_, '_>, kind: &InstanceType, zone: &str) -> Decimal {
    let everywhere = context
        .visit
        .world
        .types
        .get(kind.name)
        .and_then(|current| current.spot);
    everywhere.unwrap_or_else(|| context.state.spot.price(kind, zone))
}
