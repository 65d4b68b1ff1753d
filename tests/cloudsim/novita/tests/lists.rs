//! Products, clusters, pages of instances.

use serde_json::{Value, json};

use super::{order, world};
use crate::{Left, Market, Shelf};

/// The rows of a list of the catalogue.
async fn rows(world: &super::World, path: &str) -> Vec<Value> {
    let listed = world.get(path).await;
    assert_eq!(listed.status, 200, "{}", listed.body);
    listed.json()["data"].as_array().unwrap().clone()
}

fn of<'a>(rows: &'a [Value], id: &str) -> &'a Value {
    rows.iter().find(|row| row["id"] == id).unwrap()
}

#[tokio::test]
async fn products_tell_prices_of_one_gpu_in_hundred_thousandths_and_spot_prices_as_texts() {
    let world = world().await;
    let rows = rows(&world, "products").await;
    assert_eq!(rows.len(), 5);
    for (id, price, spot, sells_spot) in [
        ("prod-4090", 35_000, "18000", true),
        ("prod-5090", 63_000, "32000", false),
        ("prod-a100", 160_000, "0", true),
        ("prod-h100", 256_000, "128000", true),
        ("prod-l40s", 55_000, "", false),
    ] {
        let row = of(&rows, id);
        assert_eq!(
            (&row["price"], &row["spotPrice"]),
            (&json!(price), &json!(spot)),
            "{id}"
        );
        let mut methods = row["billingMethods"].as_array().unwrap().iter();
        assert_eq!(methods.any(|method| method == "spot"), sells_spot, "{id}");
    }
    let first = of(&rows, "prod-4090");
    assert_eq!(first["regions"], json!(["EU-RO-01", "US-CA-06"]));
    assert_eq!(
        (&first["name"], &first["minRootFS"], &first["maxRootFS"]),
        (&json!("RTX 4090 24GB"), &json!(10), &json!(500))
    );
    world.is_content();
}

#[tokio::test]
async fn what_can_be_deployed_at_once_and_what_is_left_are_told_apart() {
    let world = world().await;
    let told = async |path: &str, id: &str| {
        let rows = rows(&world, path).await;
        let row = of(&rows, id);
        (row["availableDeploy"].clone(), row["inventoryState"].clone())
    };
    assert_eq!(
        told("products?gpuNum=4", "prod-5090").await,
        (json!(true), json!("high"))
    );
    assert_eq!(
        told("products?gpuNum=8", "prod-5090").await,
        (json!(false), json!("high"))
    );
    assert_eq!(
        told("products", "prod-l40s").await,
        (json!(true), json!("none")),
        "it is sold out"
    );
    for (left, word) in [(0, "none"), (1, "low"), (5, "normal")] {
        let shelf = Shelf::new("prod-4090", "US-CA-06", Market::Spot);
        world
            .sim()
            .world(|world| world.stock.set(shelf, Left::Count(left)));
        let path = "products?clusterId=5&billingMethod=spot";
        assert_eq!(told(path, "prod-4090").await.1, word);
        assert_eq!(told("products?clusterId=5", "prod-4090").await.1, "high");
    }
    world.is_content();
}

#[tokio::test]
async fn products_are_filtered_by_what_a_call_asks_for() {
    let world = world().await;
    for (query, count) in [
        ("productName=rtx", 2),
        ("clusterId=12", 2),
        ("clusterId=99", 0),
        ("billingMethod=spot", 3),
        ("minCpuPerGpu=20", 1),
        ("minMemoryPerGpu=100", 2),
        ("minRootFSSize=501", 0),
    ] {
        let found = rows(&world, &format!("products?{query}")).await;
        assert_eq!(found.len(), count, "{query}");
    }
    let clusters = rows(&world, "clusters").await;
    assert_eq!(
        of(&clusters, "12")["availableGpuType"],
        json!(["RTX 4090 24GB", "L40S 48GB"])
    );
    assert_eq!(of(&clusters, "5")["name"], "US-CA-06");
    world.is_content();
}

#[tokio::test]
async fn prices_and_regions_have_another_form_where_a_control_says_so() {
    let world = world().await;
    world.forms(&["prices-are-texts", "regions-are-objects"]);
    let rows = rows(&world, "products").await;
    let row = of(&rows, "prod-4090");
    assert_eq!(
        (&row["price"], &row["regions"][0]),
        (&json!("35000"), &json!({"id": "12", "name": "EU-RO-01"}))
    );
    let wrong = json!({ "forms": ["upside-down"] });
    assert!(world.sim().control("answers", &wrong).unwrap().is_err());
    world.is_content();
}

#[tokio::test]
async fn pages_begin_at_0_and_total_counts_what_is_on_all_of_them() {
    let world = world().await;
    for _ in 0..5 {
        world.order(order()).await;
    }
    let page = async |number: usize| {
        let path = format!("gpu/instances?pageSize=2&pageNum={number}");
        let page = world.get(&path).await.json();
        assert_eq!(page["total"], 5);
        let instances = page["instances"].as_array().unwrap().clone();
        let ids = instances
            .iter()
            .map(|instance| instance["id"].as_str().unwrap().to_owned());
        ids.collect::<Vec<_>>()
    };
    let mut all = [page(0).await, page(1).await, page(2).await, page(3).await].concat();
    assert_eq!(all.len(), 5);
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 5, "none twice");
    world.forms(&["pages-begin-twice"]);
    assert_eq!(page(0).await, page(1).await);
    assert_ne!(page(1).await, page(2).await);
    assert_eq!(
        world.get("gpu/instances?pageSize=101&pageNum=0").await.status,
        400
    );
    world.is_content();
}

#[tokio::test]
async fn a_list_has_the_instances_of_its_account_by_name_product_and_status() {
    let world = world().await;
    let mut other = order();
    other["name"] = "other".into();
    other["productId"] = "prod-h100".into();
    world.order(other).await;
    let id = world.running(order()).await;
    for (query, count) in [
        ("", 2),
        ("&name=ool", 1),
        ("&name=none", 0),
        ("&productName=h100", 1),
        ("&status=running", 2),
        ("&status=exited", 0),
    ] {
        let listed = world
            .get(&format!("gpu/instances?pageSize=20&pageNum=0{query}"))
            .await
            .json();
        assert_eq!(listed["total"], count, "{query}");
    }
    world.sim().world(|world| {
        world.lag.ended = jiff::SignedDuration::from_secs(10);
        world.add_account(crate::Account::with_key("foe", "their"));
    });
    let their = crate::core::client::Client::new(world.0.url("novita")).with("authorization", "Bearer their");
    let path = format!("/gpu-instance/openapi/v1/gpu/instance?instanceId={id}");
    assert_eq!(their.get(&path).await.unwrap().status, 404);
    world.ask("delete", &id).await;
    world.0.advance(8);
    let path = "gpu/instances?pageSize=20&pageNum=0&name=pool";
    let listed = world.get(path).await.json();
    assert_eq!(listed["instances"][0]["status"], "running", "lists lag");
    assert_eq!(world.status(&id).await, "removed");
    world.0.advance(30);
    assert_eq!(world.get(path).await.json()["total"], 0);
    world.is_content();
}
