//! Locations, hosts, what is left there, and refusals of orders.

use rust_decimal::Decimal;
use serde_json::{Value, json};

use super::{MODEL, order, refusal, usd, world};
use crate::backend::SshWay;
use crate::tensordock::catalogue::{CHICAGO, MANASSAS, WARSAW};
use crate::{Fault, Left, Market, Rule, Shelf};

/// What a location says of a GPU; null where the GPU is not sold.
fn gpu(locations: &Value, location: &str, model: &str) -> Value {
    let all = locations["data"]["locations"].as_array().unwrap();
    let location = all.iter().find(|found| found["id"] == location).unwrap();
    let mut gpus = location["gpus"].as_array().unwrap().iter();
    let found = gpus.find(|gpu| gpu["v0Name"] == model);
    found.cloned().unwrap_or_default()
}

#[tokio::test]
async fn the_same_gpu_has_another_price_in_another_location() {
    let world = world().await;
    let locations = world.get("locations").await.json();
    let (near, far) = (
        gpu(&locations, CHICAGO.id, MODEL),
        gpu(&locations, WARSAW.id, MODEL),
    );
    assert_eq!(
        (&near["price_per_hr"], &far["price_per_hr"]),
        (&json!(0.35), &json!(0.315))
    );
    assert_eq!(
        near["pricing"],
        json!({ "per_vcpu_hr": 0.003, "per_gb_ram_hr": 0.002, "per_gb_storage_hr": 0.00005 })
    );
    assert_eq!(far["pricing"]["per_vcpu_hr"], 0.0027);
    let mut cheap = order();
    cheap["location_id"] = WARSAW.id.into();
    let id = world.order(cheap).await;
    assert_eq!(
        (world.hourly(), &world.machine(&id).await["rateHourly"]),
        (usd("0.3591"), &json!(0.3591))
    );
    world.is_content();
}

#[tokio::test]
async fn a_location_sells_as_many_gpus_as_one_host_has_while_some_are_left() {
    let world = world().await;
    let locations = world.get("locations").await.json();
    let found = gpu(&locations, CHICAGO.id, MODEL);
    assert_eq!(
        (&found["max_count"], &found["resources"]["max_ram_gb"]),
        (&json!(4), &json!(256))
    );
    assert_eq!(gpu(&locations, MANASSAS.id, "v100-sxm2-16gb"), Value::Null);
    let with = |name: &str, value: Value| {
        let mut order = order();
        order["resources"][name] = value;
        order
    };
    for attributes in [
        with("gpus", json!({ MODEL: { "count": 5 } })),
        with("gpus", json!({ "h100-sxm5-80gb": { "count": 1 } })),
        with("ram_gb", 512.into()),
    ] {
        let refused = refusal(&world.try_order(attributes).await);
        assert_eq!(
            refused,
            (
                400,
                "No available hostnode has the requested resources".to_owned()
            )
        );
    }
    let shelf = Shelf::new(MODEL, CHICAGO.id, Market::OnDemand);
    world.sim().world(|world| world.stock.set(shelf, Left::Count(1)));
    let id = world.order(order()).await;
    assert_eq!(refusal(&world.try_order(order()).await).0, 400);
    let locations = world.get("locations").await.json();
    assert_eq!(gpu(&locations, CHICAGO.id, MODEL), Value::Null);
    world.delete(&format!("instances/{id}")).await;
    world.0.advance(5);
    world.order(order()).await;
    world.is_content();
}

#[tokio::test]
async fn sizes_come_in_steps() {
    let world = world().await;
    for (name, value, status) in [
        ("vcpu_count", 5, 400),
        ("ram_gb", 12, 400),
        ("storage_gb", 120, 400),
        ("vcpu_count", 2, 200),
        ("ram_gb", 4, 200),
        ("storage_gb", 300, 200),
    ] {
        let mut order = order();
        order["resources"][name] = value.into();
        assert_eq!(world.try_order(order).await.status, status, "{name} {value}");
    }
    world.is_content();
}

#[tokio::test]
async fn a_location_needs_a_gpu_and_takes_one_model_for_a_machine() {
    let world = world().await;
    for (gpus, status) in [
        (json!({}), 400),
        (
            json!({ MODEL: { "count": 1 }, "a100-pcie-80gb": { "count": 1 } }),
            501,
        ),
    ] {
        let mut order = order();
        order["resources"]["gpus"] = gpus;
        assert_eq!(world.try_order(order).await.status, status);
    }
    world.is_content();
}

#[tokio::test]
async fn a_location_may_have_no_addresses_or_forward_no_ports() {
    let world = world().await;
    let locations = world.get("locations").await.json();
    let features = &gpu(&locations, WARSAW.id, MODEL)["network_features"];
    assert_eq!(features["dedicated_ip_available"], false);
    let features = &gpu(&locations, MANASSAS.id, "a100-pcie-80gb")["network_features"];
    assert_eq!(features["port_forwarding_available"], false);
    let mut dedicated = order();
    dedicated["location_id"] = WARSAW.id.into();
    dedicated["useDedicatedIp"] = true.into();
    assert_eq!(
        refusal(&world.try_order(dedicated).await),
        (400, "No dedicated IP is available".to_owned())
    );
    let mut forwarded = order();
    forwarded["location_id"] = MANASSAS.id.into();
    forwarded["resources"]["gpus"] = json!({ "a100-pcie-80gb": { "count": 1 } });
    assert_eq!(
        refusal(&world.try_order(forwarded.clone()).await),
        (400, "Port forwarding is not available".to_owned())
    );
    forwarded["port_forwards"] = json!([]);
    forwarded["useDedicatedIp"] = true.into();
    world.running(forwarded).await;
    world.is_content();
}

#[tokio::test]
async fn a_host_gives_each_of_its_ports_to_one_machine() {
    let world = world().await;
    let host = async || {
        let hosts = world.get("hostnodes").await.json()["data"]["hostnodes"].clone();
        let mut hosts = hosts.as_array().unwrap().clone().into_iter();
        hosts
            .find(|host| {
                host["location_id"] == CHICAGO.id && host["available_resources"]["gpus"][0]["v0Name"] == MODEL
            })
            .unwrap()
    };
    let before = host().await;
    let resources = &before["available_resources"];
    let port = resources["available_ports"][0].clone();
    assert_eq!(
        (
            &resources["gpus"][0]["availableCount"],
            &before["location"]["country"]
        ),
        (&json!(4), &json!("United States"))
    );
    let placed = |port: &Value| {
        let mut order = order();
        order.as_object_mut().unwrap().remove("location_id");
        order["hostnode_id"] = before["id"].clone();
        order["port_forwards"] = json!([{ "internal_port": 22, "external_port": port }]);
        order
    };
    for port in [json!(0), json!(22)] {
        let refused = refusal(&world.try_order(placed(&port)).await);
        assert_eq!(refused, (400, format!("Port {port} is not available")));
    }
    let id = world.running(placed(&port)).await;
    let machine = world.machine(&id).await;
    assert_eq!(machine["portForwards"][0]["external_port"], port, "{machine}");
    assert_eq!(
        world.boot(&id).ssh,
        SshWay::At(u16::try_from(port.as_u64().unwrap()).unwrap())
    );
    let endpoint = world
        .sim()
        .world(|world| world.machines[&id].endpoint.clone().unwrap());
    assert_eq!(json!(endpoint.port), port);
    let after = host().await;
    let free = after["available_resources"]["available_ports"].clone();
    assert!(!free.as_array().unwrap().contains(&port), "{free}");
    assert_eq!(refusal(&world.try_order(placed(&port)).await).0, 400);
    world.is_content();
}

#[tokio::test]
async fn other_ports_than_the_one_to_ssh_are_forwarded_too() {
    let world = world().await;
    let mut order = order();
    order["port_forwards"] = json!([
        { "internal_port": 22, "external_port": 0 },
        { "internal_port": 80, "external_port": 0 },
        { "internal_port": 443, "external_port": 30_443 },
    ]);
    let id = world.running(order).await;
    let forwards = world.machine(&id).await["portForwards"].clone();
    assert_eq!(
        (&forwards[1]["internal_port"], &forwards[2]["external_port"]),
        (&json!(80), &json!(30_443))
    );
    assert_ne!(forwards[1]["external_port"], 0);
    assert_ne!(forwards[0]["external_port"], forwards[1]["external_port"]);
    world.is_content();
}

#[tokio::test]
async fn shortage_and_quota_are_400_and_an_order_needs_a_balance_of_one_dollar() {
    let world = world().await;
    world.sim().fault(Rule::once("create", Fault::NoCapacity));
    assert_eq!(refusal(&world.try_order(order()).await).0, 400);
    let balance = |amount: &str| {
        let amount = usd(amount);
        world.sim().world(|world| {
            let account = world.accounts.get_mut("acme").unwrap();
            account.balance = Some(amount);
        });
    };
    balance("0.99");
    let refused = world.try_order(order()).await;
    assert_eq!((refused.status, &refused.json()["status"]), (402, &json!(402)));
    balance("1");
    world.order(order()).await;
    world.sim().world(|world| {
        let account = world.accounts.get_mut("acme").unwrap();
        account.quotas.insert("instances".to_owned(), 1);
    });
    let refused = refusal(&world.try_order(order()).await);
    assert_eq!(
        refused,
        (
            400,
            "The organization has reached its limit of instances".to_owned()
        )
    );
    world.is_content();
}

#[tokio::test]
async fn a_machine_that_gave_its_gpus_back_may_find_none_again() {
    let world = world().await;
    let shelf = Shelf::new(MODEL, CHICAGO.id, Market::OnDemand);
    world.sim().world(|world| world.stock.set(shelf, Left::Count(1)));
    let id = world.running(order()).await;
    world
        .sim()
        .world(|world| world.reclaim(&id, jiff::SignedDuration::ZERO));
    world.0.advance(1);
    let other = world.order(order()).await;
    let start = format!("instances/{id}/start");
    assert_eq!(refusal(&world.call(&start).await).0, 400);
    world.delete(&format!("instances/{other}")).await;
    world.0.advance(5);
    assert_eq!(world.call(&start).await.status, 200);
    world.delete(&format!("instances/{id}")).await;
    assert_eq!(world.hourly(), Decimal::ZERO);
    world.is_content();
}
