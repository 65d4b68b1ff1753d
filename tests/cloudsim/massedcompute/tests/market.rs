//! Shortages, money, and spot products.

use rust_decimal::Decimal;
use serde_json::{Value, json};

use super::{LAUNCH_FAILED, furnished, order, refusal, usd};
use crate::{Fault, Left, Market, Rule, Shelf};

fn spot() -> Value {
    let mut order = order();
    order["productName"] = "gpu_1x_h100_spot".into();
    order
}

#[tokio::test]
async fn a_shortage_and_a_quota_have_the_same_thin_text_and_money_has_a_status_of_its_own() {
    let world = furnished().await;
    let thin = (400, LAUNCH_FAILED.to_owned());
    assert_eq!(world.refused("productName", "gpu_1x_h200_nvl".into()).await, thin);
    world
        .sim()
        .fault(Rule::once("instances.create", Fault::NoCapacity));
    assert_eq!(refusal(&world.post("instance/launch", order()).await), thin);
    world.answers(&["shortage"]);
    let told = world.refused("productName", "gpu_1x_h200_nvl".into()).await;
    assert!(told.0 == 400 && told.1.contains("capacity"), "{told:?}");
    world.answers(&[]);
    world.sim().world(|world| {
        let account = world.accounts.get_mut("acme").unwrap();
        account.quotas.insert("instances".to_owned(), 0);
    });
    assert_eq!(refusal(&world.post("instance/launch", order()).await), thin);
    let paid = async || world.get("account/billing").await.json()["billing"]["recharge_amount"].clone();
    assert!(paid().await.is_string());
    world.sim().world(|world| {
        let account = world.accounts.get_mut("acme").unwrap();
        account.balance = Some(Decimal::ZERO);
    });
    assert_eq!(refusal(&world.post("instance/launch", order()).await).0, 402);
    assert!(paid().await.is_null());
    assert_eq!(world.sim().world(|world| world.machines.len()), 0);
    world.is_content();
}

#[tokio::test]
async fn an_instance_is_placed_where_some_are_left_until_none_are() {
    let world = furnished().await;
    for (region, count) in [("us-central-1", 0), ("us-central-2", 1)] {
        let shelf = Shelf::new("gpu_1x_h100", region, Market::OnDemand);
        world
            .sim()
            .world(|world| world.stock.set(shelf, Left::Count(count)));
    }
    let inventory = async || world.get("gpu-inventory").await.json()["gpu_inventory"]["gpu_1x_h100"].clone();
    let shown = inventory().await;
    assert_eq!(shown["capacity_available"], 1);
    assert_eq!(
        shown["regions_with_capacity_available"],
        json!([{"name": "us-central-2", "description": "Des Moines, IA, USA"}])
    );
    let id = world.running(order()).await;
    assert_eq!(world.instance(&id).await["region"]["name"], "us-central-2");
    assert_eq!(inventory().await["capacity_available"], 0);
    assert_eq!(world.post("instance/launch", order()).await.status, 400);
    world.terminate(&[&id]).await;
    world.0.advance(5);
    assert_eq!(inventory().await["capacity_available"], 1);
    world.is_content();
}

#[tokio::test]
async fn a_spot_product_is_sold_on_that_market_at_its_own_price() {
    let world = furnished().await;
    let inventory = world.get("gpu-inventory").await.json()["gpu_inventory"].clone();
    let kind = &inventory["gpu_1x_h100_spot"]["instance_type"];
    assert_eq!(kind["price_cents_per_hour"], 198);
    let id = world.running(spot()).await;
    let machine = world.sim().world(|world| world.machines[&id].clone());
    assert_eq!((machine.market, machine.price), (Market::Spot, usd("1.98")));
    assert_eq!(world.instance(&id).await["product"]["price_hr"], "1.98");
    world.is_content();
}

#[tokio::test]
async fn a_spot_instance_that_is_taken_back_is_stopped_and_costs_until_it_is_terminated_or_is_gone() {
    let world = furnished().await;
    let taken = async || {
        let id = world.running(spot()).await;
        world
            .sim()
            .world(|world| world.reclaim(&id, jiff::SignedDuration::ZERO));
        world.0.advance(1);
        id
    };
    let stopped = taken().await;
    assert_eq!(
        (world.status(&stopped).await, world.hourly()),
        (json!("Stopped"), usd("1.98"))
    );
    assert_eq!(world.terminate(&[&stopped]).await.status, 200);
    assert_eq!(world.hourly(), Decimal::ZERO);
    world.answers(&["gone"]);
    let gone = taken().await;
    assert_eq!(
        (world.status(&gone).await, world.hourly()),
        (Value::Null, Decimal::ZERO)
    );
    world.is_content();
}
