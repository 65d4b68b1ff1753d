//! Environments, keys, lists and what they filter, flavors, stock, prices, images.

use serde_json::{Value, json};

use super::{IMAGE, KEY, furnished, order, refusal, world};
use crate::{Fault, Left, Market, Rule, Shelf};

/// The items of all groups of a list.
fn flat<'a>(list: &'a Value, groups: &str, items: &str) -> Vec<&'a Value> {
    let groups = list[groups].as_array().unwrap().iter();
    groups
        .flat_map(|group| group[items].as_array().unwrap())
        .collect()
}

#[tokio::test]
async fn an_environment_is_there_once_and_is_deleted_after_its_vms_and_its_keys() {
    let world = furnished().await;
    let again = json!({"name": "env", "region": "NORWAY-1"});
    assert_eq!(world.post("environments", again).await.status, 409);
    let nowhere = json!({"name": "nowhere", "region": "MARS-1"});
    assert_eq!(world.post("environments", nowhere).await.status, 404);
    let listed = world.get("environments?search=en").await.json();
    let environment = &listed["environments"][0];
    assert_eq!(
        (&listed["count"], &environment["region"]),
        (&json!(1), &json!("CANADA-1"))
    );
    let path = format!("environments/{}", environment["id"]);
    assert_eq!(world.get(&path).await.json()["environment"], *environment);
    let id = world.running(order()).await;
    assert_eq!(refusal(&world.delete(&path).await).0, 400);
    world.delete(&format!("virtual-machines/{id}")).await;
    assert_eq!(
        refusal(&world.delete(&path).await).0,
        400,
        "its VM is there still"
    );
    world.0.advance(5);
    assert_eq!(world.get(&format!("virtual-machines/{id}")).await.status, 404);
    assert_eq!(refusal(&world.delete(&path).await).0, 400, "its VM just left");
    world.0.advance(5);
    assert_eq!(world.sim().meter(|meter| meter.leftovers("acme").len()), 2);
    assert_eq!(
        refusal(&world.delete(&path).await).0,
        400,
        "its key is there still"
    );
    let key = world.get("keypairs").await.json()["keypairs"][0]["id"].clone();
    assert_eq!(world.delete(&format!("keypair/{key}")).await.status, 200);
    assert_eq!(world.delete(&path).await.status, 200);
    assert!(world.sim().meter(|meter| meter.leftovers("acme").is_empty()));
    assert_eq!(world.delete(&path).await.status, 404);
    world.is_content();
}

#[tokio::test]
async fn an_environment_tells_its_network_and_how_many_vms_are_in_it() {
    let world = furnished().await;
    let id = world.get("environments").await.json()["environments"][0]["id"].clone();
    let quota = async || world.get(&format!("environments/{id}/vm-quota")).await.json();
    let empty = quota().await;
    assert_eq!(
        (&empty["cidr"], &empty["current_vms"]),
        (&json!("10.0.0.0/24"), &json!(0))
    );
    world.order(order()).await;
    let one = quota().await;
    assert_eq!(
        (&one["current_vms"], &one["available_vms"]),
        (&json!(1), &json!(249))
    );
    assert_eq!(world.get("environments/7/vm-quota").await.status, 404);
    world.is_content();
}

#[tokio::test]
async fn a_key_has_its_name_once_in_an_environment_and_is_deleted_by_another_path() {
    let world = furnished().await;
    let key = |environment: &str, text: &str| json!({"name": "mine", "environment_name": environment, "public_key": text});
    assert_eq!(world.post("keypairs", key("env", KEY)).await.status, 409);
    assert_eq!(world.post("keypairs", key("none", KEY)).await.status, 404);
    assert_eq!(world.post("keypairs", key("env", "text")).await.status, 400);
    let other = json!({"name": "other", "region": "NORWAY-1"});
    world.post("environments", other).await;
    let made = world.post("keypairs", key("other", KEY)).await.json()["keypair"].clone();
    assert_eq!(made["fingerprint"].as_str().unwrap().split(':').count(), 16);
    assert_eq!(
        (&made["environment"]["name"], &made["public_key"]),
        (&json!("other"), &json!(KEY))
    );
    let listed = world.get("keypairs?pageSize=100").await.json();
    assert_eq!((&listed["count"], &listed["keypairs"][1]), (&json!(2), &made));
    assert_eq!(world.delete(&format!("keypair/{}", made["id"])).await.status, 200);
    assert_eq!(world.delete(&format!("keypair/{}", made["id"])).await.status, 404);
    assert_eq!(world.get("keypairs").await.json()["count"], 1);
    world.is_content();
}

#[tokio::test]
async fn lists_of_vms_come_in_pages_of_an_environment_and_oldest_first() {
    let world = furnished().await;
    let near = json!({"name": "env-2", "region": "CANADA-1"});
    world.post("environments", near).await;
    for number in 0..12 {
        let mut order = order();
        order["name"] = format!("vm-{number}").into();
        world.order(order).await;
    }
    let page = async |query: &str| world.get(&format!("virtual-machines?{query}")).await.json();
    let first = page("").await;
    assert_eq!(
        (
            &first["count"],
            &first["page"],
            &first["page_size"],
            first["instances"].as_array().unwrap().len()
        ),
        (&json!(12), &json!(1), &json!(10), 10)
    );
    assert_eq!(
        (&first["instances"][0]["name"], &first["instances"][9]["name"]),
        (&json!("vm-0"), &json!("vm-9"))
    );
    assert_eq!(page("page=2").await["instances"].as_array().unwrap().len(), 2);
    assert_eq!(page("page=3").await["instances"], json!([]));
    for (query, count) in [
        ("search=vm-1", 3),
        ("environment=env", 12),
        ("environment=en", 12),
        ("environment=env-2", 0),
        ("environment=en&exact_environment_match=true", 0),
        ("environment=env&exact_environment_match=true", 12),
    ] {
        assert_eq!(
            page(&format!("{query}&pageSize=100")).await["count"],
            count,
            "{query}"
        );
    }
    world.sim().world(|world| world.page = Some(3));
    let short = page("pageSize=100").await;
    assert_eq!(
        (&short["page_size"], short["instances"].as_array().unwrap().len()),
        (&json!(3), 3)
    );
    world
        .sim()
        .fault(Rule::once("vms.list", Fault::PartialPage { keep: 1 }));
    assert_eq!(page("").await["instances"].as_array().unwrap().len(), 1);
    world.is_content();
    assert_eq!(world.get("virtual-machines?pageSize=101").await.status, 400);
}

#[tokio::test]
async fn flavors_are_grouped_by_region_and_gpu_and_say_whether_some_are_left() {
    let world = world().await;
    let all = world.get("flavors").await.json();
    let canada = world.get("flavors?region=CANADA-1").await.json();
    let names = |list: &Value| -> Vec<String> {
        let flavors = flat(list, "data", "flavors");
        flavors
            .into_iter()
            .map(|flavor| flavor["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert!(names(&all).len() > names(&canada).len());
    assert!(!names(&canada).contains(&"n3-L40x1".to_owned()));
    let group = canada["data"].as_array().unwrap().iter();
    let mut group = group.filter(|group| group["gpu"] == "H100-80G-PCIe");
    let flavors = group.next().unwrap()["flavors"].clone();
    assert_eq!(
        names(&json!({"data": [{"flavors": flavors}]})),
        ["n3-H100x1", "n3-H100x8"]
    );
    assert!(group.next().is_none());
    let one = &flavors[0];
    assert_eq!(
        (
            &one["ram"],
            &one["cpu"],
            &one["gpu_count"],
            &one["stock_available"]
        ),
        (&json!(180.0), &json!(28), &json!(1), &json!(true))
    );
    let labels = |list: &Value| flat(list, "data", "flavors")[0]["labels"].clone();
    assert_eq!(labels(&canada)[0]["label"], "network_optimised");
    let norway = world.get("flavors?region=NORWAY-1").await.json();
    assert_eq!(labels(&norway), json!([]));
    let cpu = flat(&canada, "data", "flavors")
        .into_iter()
        .find(|flavor| flavor["gpu"] == "");
    assert_eq!(cpu.unwrap()["gpu_count"], 0);

    let shelf = Shelf::new("n3-H100x1", "CANADA-1", Market::OnDemand);
    world.sim().world(|world| world.stock.set(shelf, Left::Count(0)));
    let canada = world.get("flavors?region=CANADA-1").await.json();
    let left: Vec<&Value> = flat(&canada, "data", "flavors")
        .into_iter()
        .filter(|flavor| flavor["gpu"] == "H100-80G-PCIe")
        .map(|flavor| &flavor["stock_available"])
        .collect();
    assert_eq!(left, [&json!(false), &json!(true)]);
    assert_eq!(world.get("flavors?region=MARS-1").await.status, 404);
    let regions = world.get("regions").await.json();
    assert_eq!(regions["regions"][1]["name"], "NORWAY-1");
    world.is_content();
}

#[tokio::test]
async fn stock_is_told_by_region_model_and_size() {
    let world = world().await;
    let shelf = Shelf::new("n3-H100x1", "CANADA-1", Market::OnDemand);
    world.sim().world(|world| world.stock.set(shelf, Left::Count(3)));
    let stocks = world.get("stocks").await.json();
    let canada = &stocks["stocks"][0];
    assert_eq!(canada["region"], "CANADA-1");
    let models = canada["models"].as_array().unwrap();
    let h100 = models
        .iter()
        .find(|model| model["model"] == "H100-80G-PCIe")
        .unwrap();
    assert_eq!(h100["configurations"], json!({"1x": 3, "8x": 10}));
    assert_eq!(h100["available"], "5+");
    let shelf = Shelf::new("n3-H100x8", "CANADA-1", Market::OnDemand);
    world.sim().world(|world| world.stock.set(shelf, Left::Count(0)));
    let few = world.get("stocks").await.json();
    let models = flat(&few, "stocks", "models");
    let h100 = models.iter().find(|model| model["model"] == "H100-80G-PCIe");
    assert_eq!(h100.unwrap()["available"], "3");
    let l40 = &flat(&stocks, "stocks", "models");
    let l40 = l40.iter().find(|model| model["model"] == "L40").unwrap();
    assert_eq!(
        (&l40["available"], &l40["configurations"]["1x"]),
        (&json!("0"), &json!(0))
    );
    world.is_content();
}

#[tokio::test]
async fn the_price_book_is_a_bare_list_of_prices_of_one_gpu_in_numbers_or_texts() {
    let world = world().await;
    let prices = async || world.1.get("/v1/pricebook").await.unwrap().json();
    let price = |list: &Value, name: &str| {
        let mut rows = list.as_array().unwrap().iter();
        rows.find(|row| row["name"] == name).unwrap()["value"].clone()
    };
    let book = prices().await;
    assert_eq!(
        (price(&book, "H100-80G-PCIe"), price(&book, "RTX-A6000")),
        (json!(1.9), json!(0.5))
    );
    assert_eq!(price(&book, "PublicIP"), json!(0.006_720_43));
    assert!(world.sim().control("answers", &json!({"mixed": true})).is_some());
    let mixed = prices().await;
    let texts = mixed
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| row["value"].is_string());
    let texts = texts.count();
    assert!(texts > 0 && texts < mixed.as_array().unwrap().len(), "{mixed}");
    world.is_content();
}

#[tokio::test]
async fn images_are_grouped_and_some_are_for_some_flavors_only() {
    let world = world().await;
    let canada = world.get("images?region=CANADA-1").await.json();
    let images = flat(&canada, "images", "images");
    assert_eq!((canada["images"].as_array().unwrap().len(), images.len()), (2, 4));
    let named = |name: &str| images.iter().find(|image| image["name"] == name).unwrap();
    let free = &named(IMAGE)["flavor_restrictions"];
    assert_eq!(
        (&free["has_flavor_restrictions"], &free["restriction_type"]),
        (&json!(false), &Value::Null)
    );
    let bound = &named("Ubuntu Server 24.04 LTS R580 CUDA 13.0 with Docker")["flavor_restrictions"];
    assert_eq!(
        (
            &bound["restriction_type"],
            &bound["compatible_flavors"][0]["flavor_name"]
        ),
        (&json!("hard"), &json!("n3-H100-SXM5x8"))
    );
    let all = world.get("images").await.json();
    assert_eq!(flat(&all, "images", "images").len(), 12);
    let found = world.get("images?search=Debian&region=US-1").await.json();
    assert_eq!(flat(&found, "images", "images").len(), 1);
    world.is_content();
}
