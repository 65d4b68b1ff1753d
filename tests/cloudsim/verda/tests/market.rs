//! Offers, stock and money.

use rust_decimal::Decimal;
use serde_json::{Value, json};

use super::{Verda, id, order, spot, world};
use crate::core::client::Client;
use crate::{BootEnd, BootPlan, Builder, Cause, Fault, Left, Market, Rule, Shelf};

#[tokio::test]
async fn instance_types_need_no_credentials_and_their_prices_are_text() {
    let simulator = Builder::manual().cloud(Verda::new()).start().await.unwrap();
    let client = Client::new(simulator.url("verda"));
    let types = client
        .get("/v1/instance-types?currency=usd")
        .await
        .unwrap()
        .json();
    let h100 = types
        .as_array()
        .unwrap()
        .iter()
        .find(|found| found["instance_type"] == "1H100.80S.22V")
        .unwrap()
        .clone();
    assert_eq!(
        (&h100["price_per_hour"], &h100["spot_price"]),
        (&json!("3.17"), &json!("1.11"))
    );
    assert_eq!(h100["gpu"]["description"], "1x H100 SXM5 80GB");
    assert!(h100["description"].is_string() && h100["p2p"].is_string());
    assert!(h100["best_for"].is_array());
    assert!(
        types
            .as_array()
            .unwrap()
            .iter()
            .any(|found| found["gpu"]["number_of_gpus"] == 0)
    );
    assert_eq!(client.get("/v1/instances").await.unwrap().status, 401);
    assert_eq!(simulator.cloud("verda").violations(), []);
    assert_eq!(simulator.cloud("verda").mistakes(), []);
}

#[tokio::test]
async fn stock_is_by_location_and_spot_apart_from_on_demand() {
    let world = world().await;
    let has = async |query: &str, location: &str, wanted: &str| {
        let all = world
            .get(&format!("/v1/instance-availability?{query}"))
            .await
            .json();
        let place = all
            .as_array()
            .unwrap()
            .iter()
            .find(|place| place["location_code"] == location)
            .cloned();
        place.is_some_and(|place| {
            place["availabilities"]
                .as_array()
                .unwrap()
                .contains(&Value::from(wanted))
        })
    };
    assert!(has("is_spot=false", "FIN-03", "1A100.22V").await);
    assert!(!has("is_spot=true", "FIN-03", "1A100.22V").await);
    assert!(!has("is_spot=false", "FIN-02", "1A100.22V").await);
    assert!(!has("location_code=FIN-01", "FIN-03", "1A100.22V").await);
    let one = world
        .get("/v1/instance-availability/1A100.22V?is_spot=true&location_code=FIN-03")
        .await;
    assert_eq!(one.json(), Value::Bool(false));
    assert!(!has("locationCode=FIN-01", "FIN-03", "1A100.22V").await);
    world.all_as_described();
}

#[tokio::test]
async fn the_last_one_in_stock_is_taken_and_comes_back_when_it_is_deleted() {
    let world = world().await;
    let shelf = Shelf::new("1H100.80S.22V", "FIN-01", Market::OnDemand);
    world.sim().world(|world| world.stock.set(shelf, Left::Count(1)));
    let first = world.running(order("a")).await;
    let refused = world.post("/v1/instances", order("b")).await;
    assert_eq!(refused.status, 503);
    assert_eq!(
        refused.json(),
        json!({"code": "service_unavailable", "message": "No capacity available"})
    );
    assert_eq!(
        world.put(json!({"action": "delete", "id": first})).await.status,
        202
    );
    world.simulator.advance(5);
    assert_eq!(world.post("/v1/instances", order("b")).await.status, 202);
    world.all_as_described();
}

#[tokio::test]
async fn an_order_can_be_accepted_and_end_without_capacity_and_costs_nothing_then() {
    let world = world().await;
    let plan = BootPlan {
        ends: BootEnd::Fails(Cause::NoCapacity),
        ..BootPlan::takes(10)
    };
    world
        .sim()
        .fault(Rule::once("instances.create", Fault::Boot(plan)));
    let id = id(&world.post("/v1/instances", spot("a", "delete_permanently")).await);
    world.simulator.advance(10);
    assert_eq!(world.instance(&id).await["status"], "no_capacity");
    assert_eq!(
        world
            .sim()
            .meter(|meter| (meter.billed_now().len(), meter.bill("acme"))),
        (0, Decimal::ZERO)
    );
    world.all_as_described();
}

#[tokio::test]
async fn the_image_must_fit_the_type() {
    let world = world().await;
    let images = world.get("/v1/images?instance_type=1V100.6V").await.json();
    let names: Vec<&str> = images
        .as_array()
        .unwrap()
        .iter()
        .map(|image| image["image_type"].as_str().unwrap())
        .collect();
    let fitting = [
        "ubuntu-24.04",
        "ubuntu-22.04-cuda-12.0",
        "ubuntu-22.04-cuda-12.0-docker",
    ];
    assert_eq!(names, fitting);
    assert_eq!(world.get("/v1/images?instance_type=none").await.status, 404);
    let mut wrong = order("a");
    wrong["instance_type"] = "1V100.6V".into();
    let reply = world.post("/v1/instances", wrong.clone()).await;
    assert_eq!(
        reply.json()["message"],
        "Operating system is not valid for this instance type"
    );
    wrong["image"] = "ubuntu-22.04-cuda-12.0".into();
    assert_eq!(world.post("/v1/instances", wrong.clone()).await.status, 202);
    // By the id that dstack has for its newest image, and then for this type's.
    wrong["image"] = "2404f580-1300-1111-82b3-f199fb9b701b".into();
    assert_eq!(world.post("/v1/instances", wrong.clone()).await.status, 400);
    wrong["image"] = "2088da25-bb0d-41cc-a191-dccae45d96fd".into();
    assert_eq!(world.post("/v1/instances", wrong).await.status, 202);
    world.all_as_described();
}

#[tokio::test]
async fn an_account_without_money_or_beyond_its_quota_gets_nothing() {
    let world = world().await;
    world.sim().world(|world| {
        world
            .accounts
            .get_mut("acme")
            .unwrap()
            .quotas
            .insert("instances".to_owned(), 1);
    });
    world.running(order("a")).await;
    let over = world.post("/v1/instances", order("b")).await;
    assert_eq!(
        (over.status, over.json()["code"].as_str()),
        (403, Some("forbidden_action"))
    );
    world
        .sim()
        .world(|world| world.accounts.get_mut("acme").unwrap().balance = Some(Decimal::ZERO));
    let broke = world.post("/v1/instances", order("b")).await;
    assert_eq!(
        (broke.status, broke.json()["code"].as_str()),
        (402, Some("insufficient_funds"))
    );
    world.all_as_described();
}

#[tokio::test]
async fn the_price_is_frozen_at_the_order() {
    let world = world().await;
    let id = world.running(order("a")).await;
    world
        .sim()
        .world(|world| world.types.get_mut("1H100.80S.22V").unwrap().on_demand = Decimal::from(9));
    world.simulator.advance(3_580);
    assert_eq!(
        world.sim().meter(|meter| meter.bill_of(&id)),
        Some(Decimal::new(317, 2))
    );
    let balance = world.get("/v1/balance").await.json();
    assert_eq!(balance["amount"], json!(999_996.83));
    world.all_as_described();
}
