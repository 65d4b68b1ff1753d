//! CPU types, which RunPod calls flavors: one price for each vCPU, and so much memory with it.

use rust_decimal::Decimal;
use serde_json::{Value, json};

use super::catalogue::{DATA_CENTERS, level, number, stock_status};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::market::{InstanceType, Left, Market, Shelf};
use crate::core::world::World;

/// Id, name, group and price of a vCPU in thousandths.
const CPUS: [(&str, &str, &str, i64); 2] = [
    ("cpu3c", "Compute-Optimized 3", "3c", 30),
    ("cpu5c", "Compute-Optimized 5", "5c", 35),
];

/// vCPUs that a pod can have.
const VCPUS: [u32; 2] = [2, 32];

/// GB of memory with each vCPU.
pub(super) const MEMORY: u32 = 2;

pub(super) fn furnish(world: &mut World) {
    for (id, name, group, thousandths) in CPUS {
        world.add_type(InstanceType {
            name: id.to_owned(),
            gpu: name.to_owned(),
            on_demand: Decimal::new(thousandths, 3),
            detail: json!({ "group": group }),
            ..InstanceType::default()
        });
        for (place, ..) in DATA_CENTERS {
            world
                .stock
                .set(Shelf::new(id, place, Market::OnDemand), Left::Plenty);
        }
    }
}

/// The CPU catalogue, or one of it.
pub(super) fn cpus(visit: &mut Visit<'_>, one: Option<&str>) -> Result<Answer, Refusal> {
    let availability = visit.request.parameter("include") == Some("AVAILABILITY");
    if availability != visit.request.parameter("product").is_some() {
        return Err(Refusal::Bad(
            "include=AVAILABILITY and product go together".to_owned(),
        ));
    }
    let mut cpus: Vec<Value> = visit
        .world
        .types
        .values()
        .filter(|cpu| cpu.gpus == 0 && one.is_none_or(|one| one == cpu.name))
        .map(|cpu| {
            let mut value = json!({
                "id": cpu.name, "name": cpu.gpu, "group": cpu.detail.get("group"),
                "vcpu": {"min": VCPUS[0], "max": VCPUS[1]}, "ramGbPerVcpu": f64::from(MEMORY),
                "price": {"securePerVcpu": number(cpu.on_demand), "serverlessPerVcpu": 0.0},
            });
            if let (true, Value::Object(fields)) = (availability, &mut value) {
                let level = level(visit.world, &cpu.name, &visit.world.regions, Market::OnDemand);
                fields.insert("availability".to_owned(), level.into());
            }
            value
        })
        .collect();
    if one.is_some() {
        let cpu = cpus
            .pop()
            .ok_or_else(|| Refusal::NotFound("CPU type not found".to_owned()))?;
        return Ok(Answer::json(200, &cpu));
    }
    Ok(Answer::json(200, &json!({ "cpus": cpus })))
}

/// `cpuFlavors` of GraphQL. GB of disk for each vCPU are what RunPod's pages say of the
/// smaller type.
pub(super) fn flavors(world: &World, input: &Value) -> Value {
    let wanted = input.get("id").and_then(Value::as_str);
    world
        .types
        .values()
        .filter(|cpu| cpu.gpus == 0 && wanted.is_none_or(|wanted| wanted == cpu.name))
        .map(|cpu| {
            json!({
                "id": cpu.name, "displayName": cpu.gpu, "groupId": cpu.detail.get("group"), "groupName": cpu.gpu,
                "minVcpu": VCPUS[0], "maxVcpu": VCPUS[1], "vcpuBurstable": false, "ramMultiplier": MEMORY,
                "diskLimitPerVcpu": 10, "specifics": null,
            })
        })
        .collect()
}

/// `specifics` of a flavor: the price of an instance, as `cpu3c-4-8`, or of the smallest one,
/// and its stock in a data center, or in the best of them.
pub(super) fn specifics(world: &World, flavor: &str, input: &Value) -> Value {
    let Some(cpu) = world.types.get(flavor) else {
        return Value::Null;
    };
    let given = |name: &str| {
        let text = input.get(name).and_then(Value::as_str);
        text.filter(|text| !text.is_empty())
    };
    let count = given("instanceId")
        .and_then(|instance| instance.split('-').nth(1))
        .and_then(|count| count.parse::<u32>().ok())
        .unwrap_or(VCPUS[0]);
    let places = match given("dataCenterId") {
        Some(place) => vec![place.to_owned()],
        None => world.regions.clone(),
    };
    let stock = stock_status(level(world, flavor, &places, Market::OnDemand));
    json!({
        "stockStatus": stock, "securePrice": number(cpu.on_demand * Decimal::from(count)), "slsPrice": null,
    })
}
