//! Offers, their counts and prices; lists of instances; other forms of answers.

use serde_json::{Value, json};

use super::{World, furnished, order, usd, world};
use crate::{Fault, Left, Market, Rule, Shelf};

impl World {
    /// The rows of the offers of a GPU in a region.
    async fn rows(&self, gpu: &str, region: &str) -> Vec<Value> {
        let offers = self.get("/misc/server_meta").await.json();
        let rows = offers["server_meta"].as_array().unwrap().iter();
        rows.filter(|row| row["gpu_type"] == gpu && row["region"] == region)
            .cloned()
            .collect()
    }
}

#[tokio::test]
async fn the_same_gpu_is_in_several_rows_and_a_row_says_for_which_kind_and_at_which_price_of_one_gpu() {
    let world = world().await;
    let rows = world.rows("H100", "india-noida-01").await;
    let told: Vec<[&Value; 3]> = rows
        .iter()
        .map(|row| [&row["workload_type"], &row["price_per_hour"], &row["spot_price"]])
        .collect();
    assert_eq!(
        json!(told),
        json!([
            ["container", 2.69, 1.34],
            ["container", 2.69, null],
            ["vm", 2.69, null]
        ])
    );
    let europe = &world.rows("H200", "europe-01").await[0];
    assert_eq!(
        (&europe["workload_type"], &europe["vram"]),
        (&Value::Null, &json!("141"))
    );
    let untold = &world.rows("RTX6000Ada", "india-noida-01").await[0];
    assert_eq!(untold["price_per_hour"], Value::Null);
    assert_eq!(world.rows("L4", "india-01").await.len(), 1, "an unknown region");
    world.is_content();
}

#[tokio::test]
async fn counts_are_numbers_texts_or_nothing_and_those_of_spot_are_told_apart() {
    let world = world().await;
    let a100 = |market| Shelf::new("01-A100", "india-noida-01", market);
    world.sim().world(|world| {
        world.stock.set(a100(Market::OnDemand), Left::Count(5));
        world.stock.set(a100(Market::Spot), Left::Count(2));
        let sold_out = Shelf::new("03-H100", "india-noida-01", Market::Spot);
        world.stock.set(sold_out, Left::Count(0));
    });
    let text = &world.rows("A100", "india-noida-01").await[0];
    assert_eq!(
        (
            &text["effective_num_free_devices"],
            &text["num_free_devices"],
            &text["spot_num_free_devices"]
        ),
        (&json!("5"), &json!("2"), &json!(2))
    );
    let h100 = world.rows("H100", "india-noida-01").await;
    assert_eq!(
        (
            &h100[0]["effective_num_free_devices"],
            &h100[0]["num_free_devices"]
        ),
        (&json!(8), &json!(""))
    );
    let only_on_demand = h100[1].as_object().unwrap();
    assert_eq!(only_on_demand["num_free_devices"], "8");
    assert!(!only_on_demand.contains_key("effective_num_free_devices"));
    let sold_out = &world.rows("A6000", "india-chennai-01").await[0];
    assert_eq!(sold_out["num_free_devices"], Value::Null);
    world.is_content();
}

#[tokio::test]
async fn an_account_in_india_sees_and_pays_rupees() {
    let world = furnished().await;
    let currency = async || world.get("/misc/").await.json()["success"].clone();
    assert_eq!(currency().await, false);
    drop(world.sim().control("currency", &json!({"inr": true})));
    assert_eq!(currency().await, true);
    let row = &world.rows("H200", "europe-01").await[0];
    assert_eq!(row["price_per_hour"], 334.4);
    world.order("pytorch", order()).await;
    assert_eq!(world.hourly(), usd("237.9256"));
    world.is_content();
}

#[tokio::test]
async fn templates_are_told_by_their_ids() {
    let world = world().await;
    let told = world.get("/misc/frameworks").await.json();
    let ids: Vec<&Value> = told["frameworks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|template| &template["id"])
        .collect();
    assert_eq!(ids, ["pytorch", "tensorflow", "jax", "vm"]);
    world.is_content();
}

#[tokio::test]
async fn a_list_that_lags_or_is_cut_short_shows_fewer_instances_than_there_are() {
    let world = furnished().await;
    world
        .sim()
        .world(|world| world.lag.created = jiff::SignedDuration::from_secs(60));
    world.order("pytorch", order()).await;
    world.0.advance(30);
    let second = world.order("pytorch", order()).await;
    assert_eq!(world.listed().await.len(), 0);
    world.0.advance(40);
    assert_eq!(world.listed().await.len(), 1);
    assert_eq!(world.status(&second).await, "Running", "by its id it is known");
    world.0.advance(30);
    assert_eq!(world.listed().await.len(), 2);
    world
        .sim()
        .fault(Rule::once("instances.list", Fault::PartialPage { keep: 1 }));
    assert_eq!(world.listed().await.len(), 1);
    world.is_content();
}

#[tokio::test]
async fn every_other_instance_may_have_other_names_of_its_fields_and_be_gone_without_a_404() {
    let world = furnished().await;
    drop(world.sim().control("answers", &json!({"mixed": true})));
    let even = world.running("pytorch", order()).await;
    let odd = world.running("pytorch", order()).await;
    let is_odd = |id: &str| id.parse::<u64>().unwrap() % 2 == 1;
    assert!(!is_odd(&even) && is_odd(&odd), "{even} {odd}");
    let instance = world.instance(&odd).await;
    assert_eq!(
        (&instance["name"], &instance["storage_gb"]),
        (&json!("pool a-0"), &json!(100))
    );
    assert!(instance["ssh_command"].is_string() && instance.get("ssh_str").is_none());
    assert_eq!(world.instance(&even).await["instance_name"], "pool a-0");
    let told = world.get(&format!("/misc/status?machine_id={odd}")).await.json();
    assert_eq!(told["error"], "None");
    for id in [&even, &odd] {
        assert_eq!(world.act("destroy", id).await.status, 200);
    }
    world.0.advance(10);
    let gone = world.get(&format!("/users/fetch/{odd}")).await;
    assert_eq!(
        (gone.status, gone.json()),
        (200, json!({"success": false, "message": "Instance not found"}))
    );
    assert_eq!(world.get(&format!("/users/fetch/{even}")).await.status, 404);
    world.is_content();
}

#[tokio::test]
async fn what_is_not_simulated_is_told_apart_from_what_there_is_not() {
    let world = world().await;
    for path in [
        "/filesystem/list",
        "/vpc/list",
        "/users/user_info",
        "/misc/resource_metrics",
    ] {
        assert_eq!(world.get(path).await.status, 501, "{path}");
    }
    assert_eq!(world.get("/v1/instances").await.status, 404);
}
