//! Types and their stock, images, security groups, keys, pages.

use serde_json::{Value, json};

use super::{INSTANCES, KEY, KEYS, world};
use crate::{Left, Market, Shelf};

#[tokio::test]
async fn types_are_a_map_for_each_zone_with_prices_in_euros_and_stock_is_told_apart() {
    let world = world().await;
    let products = format!("{INSTANCES}/products/servers");
    let types = world.get(&format!("{products}?per_page=100")).await;
    assert_eq!(types.header("x-total-count"), Some("6"));
    let types = types.json()["servers"].clone();
    let eight = &types["H100-SXM-8-80G"];
    assert_eq!(
        (&eight["gpu"], &eight["hourly_price"]),
        (&json!(8), &json!(23.028))
    );
    assert_eq!(eight["gpu_info"]["gpu_memory"], 80_u64 << 30);
    assert_eq!(
        (&types["POP2-2C-8G"]["gpu_info"], &types["RENDER-S"]),
        (&Value::Null, &Value::Null)
    );
    let gone = world
        .get("/instance/v1/zones/fr-par-1/products/servers")
        .await
        .json();
    assert_eq!(gone["servers"]["RENDER-S"]["end_of_service"], true);
    let page = world.get(&format!("{products}?per_page=4&page=2")).await.json();
    assert_eq!(page["servers"].as_object().unwrap().len(), 2);

    for (left, word) in [
        (Left::Plenty, "available"),
        (Left::Count(1), "scarce"),
        (Left::Count(0), "shortage"),
    ] {
        let shelf = Shelf::new("L4-2-24G", "fr-par-2", Market::OnDemand);
        world.sim().world(|world| world.stock.set(shelf, left));
        let stock = world.get(&format!("{products}/availability")).await.json();
        assert_eq!(stock["servers"]["L4-2-24G"]["availability"], word);
    }
    world.is_content();
}

#[tokio::test]
async fn images_have_another_id_in_each_zone_and_groups_let_everything_in() {
    let world = world().await;
    let of_zone = async |zone: &str| {
        let listed = world
            .get(&format!(
                "/instance/v1/zones/{zone}/images?arch=x86_64&name=GPU&public=true"
            ))
            .await;
        let images = listed.json()["images"].clone();
        assert_eq!(images.as_array().unwrap().len(), 1, "{images}");
        images[0].clone()
    };
    let (one, other) = (of_zone("fr-par-1").await, of_zone("fr-par-2").await);
    assert_ne!(one["id"], other["id"]);
    let root = &one["root_volume"];
    assert_eq!(
        (&root["volume_type"], &root["size"]),
        (&json!("sbs_snapshot"), &json!(0))
    );
    for query in ["public=false", "arch=arm64"] {
        assert_eq!(
            world.get(&format!("{INSTANCES}/images?{query}")).await.json()["images"],
            json!([]),
            "{query}"
        );
    }
    let groups = world
        .get(&format!("{INSTANCES}/security_groups?project=p"))
        .await
        .json();
    let group = &groups["security_groups"][0];
    assert_eq!(
        (&group["inbound_default_policy"], &group["project_default"]),
        (&json!("accept"), &json!(true))
    );
    world.is_content();
}

#[tokio::test]
async fn the_same_key_may_be_there_twice_and_lists_of_a_project_come_in_pages() {
    let world = world().await;
    for project in ["p", "p", "p", "q"] {
        let key = json!({"name": "ours", "public_key": KEY, "project_id": project});
        let made = world.post(KEYS, key).await.json();
        let print = made["fingerprint"].as_str().unwrap();
        assert!(
            print.starts_with("256 MD5:") && print.ends_with(" me (ssh-ed25519)"),
            "{print}"
        );
        let found = world
            .get(&format!("{KEYS}/{}", made["id"].as_str().unwrap()))
            .await
            .json();
        assert_eq!(found, made);
    }
    let page = async |number: u32| {
        let listed = world
            .get(&format!("{KEYS}?project_id=p&name=our&page_size=2&page={number}"))
            .await;
        assert_eq!(listed.header("x-total-count"), None);
        listed.json()
    };
    let (first, second) = (page(1).await, page(2).await);
    assert_eq!(
        (
            &first["total_count"],
            second["ssh_keys"].as_array().unwrap().len()
        ),
        (&json!(3), 1)
    );
    for key in first["ssh_keys"].as_array().unwrap() {
        let path = format!("{KEYS}/{}", key["id"].as_str().unwrap());
        assert_eq!(world.delete(&path).await.status, 204);
        assert_eq!(world.delete(&path).await.status, 404);
    }
    assert_eq!(world.get(KEYS).await.json()["total_count"], 2);
    world.is_content();
    let wrong = json!({"name": "n", "public_key": "text", "project_id": "p"});
    assert_eq!(world.post(KEYS, wrong).await.status, 400);
}

#[tokio::test]
async fn what_is_not_simulated_is_told_from_what_is_no_call() {
    let world = world().await;
    for (path, status) in [
        ("/instance/v1/zones/fr-par-2/snapshots", 501),
        ("/iam/v1alpha1/users", 501),
        ("/nothing", 404),
    ] {
        assert_eq!(world.get(path).await.status, status, "{path}");
    }
    let path = format!("{INSTANCES}/servers/none/action");
    assert_eq!(
        world.post(&path, json!({"action": "reboot"})).await.json()["type"],
        "not_simulated"
    );
}
