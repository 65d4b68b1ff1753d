//! Spot flavors, and stock that is given back and taken.

use rust_decimal::Decimal;
use serde_json::{Value, json};

use super::{furnished, order, refusal, usd};
use crate::{Left, Market, Shelf};

fn spot() -> Value {
    let mut order = order();
    order["flavor_name"] = "n3-H100x1-spot".into();
    order
}

#[tokio::test]
async fn a_spot_flavor_has_a_gpu_and_a_price_with_the_suffix_and_is_sold_on_that_market() {
    let world = furnished().await;
    let book = world.1.get("/v1/pricebook").await.unwrap().json();
    let mut rows = book.as_array().unwrap().iter();
    let row = rows.find(|row| row["name"] == "H100-80G-PCIe-spot").unwrap();
    assert_eq!(row["value"], 1.52);
    let id = world.running(spot()).await;
    let machine = world.sim().world(|world| world.machines[&id].clone());
    assert_eq!((machine.market, machine.price), (Market::Spot, usd("1.52672043")));
    assert_eq!(machine.boot.gpus, ["NVIDIA H100-80G-PCIe"]);
    world.is_content();
}

#[tokio::test]
async fn a_spot_vm_that_is_taken_back_is_gone() {
    let world = furnished().await;
    let id = world.running(spot()).await;
    world
        .sim()
        .world(|world| world.reclaim(&id, jiff::SignedDuration::ZERO));
    world.0.advance(1);
    assert_eq!(world.get(&format!("virtual-machines/{id}")).await.status, 404);
    assert_eq!(world.hourly(), Decimal::ZERO);
    world.is_content();
}

#[tokio::test]
async fn a_vm_that_hibernates_gives_its_place_back_and_may_find_none_again() {
    let world = furnished().await;
    let shelf = Shelf::new("n3-H100x1", "CANADA-1", Market::OnDemand);
    world.sim().world(|world| world.stock.set(shelf, Left::Count(1)));
    let id = world.running(order()).await;
    assert_eq!(refusal(&world.post("virtual-machines", order()).await).0, 400);
    let act = async |what: &str| world.get(&format!("virtual-machines/{id}/{what}")).await.status;
    assert_eq!(act("hibernate").await, 200);
    world.0.advance(5);
    let other = world.running(order()).await;
    assert_eq!(act("hibernate-restore").await, 400, "its place is taken");
    world.delete(&format!("virtual-machines/{other}")).await;
    world.0.advance(5);
    assert_eq!(act("hibernate-restore").await, 200);
    world.0.advance(20);
    // The bill goes on as it was, without the address.
    assert_eq!(
        (world.status(&id).await, world.hourly()),
        (json!("ACTIVE"), usd("1.9"))
    );
    world.is_content();
}
