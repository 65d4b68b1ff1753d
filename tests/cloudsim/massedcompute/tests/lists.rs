//! The inventory, images, keys, lists that lag or are cut short.

use jiff::SignedDuration;
use serde_json::{Value, json};

use super::{KEY, furnished, order, refusal, world};
use crate::{Fault, Rule};

const OTHER: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ2Hq6vIvOaT0nUqGrXvUqWy8n1Zq6e8o0i1c2b3d4e5 other";
const NOT_CREATED: &str = "Failed to create SSH key";

#[tokio::test]
async fn the_inventory_is_a_map_by_the_names_of_products_blanks_at_their_ends_included() {
    let world = world().await;
    let inventory = world.get("gpu-inventory").await.json()["gpu_inventory"].clone();
    for (name, product) in inventory.as_object().unwrap() {
        assert_eq!(product["instance_type"]["name"], *name);
    }
    assert!(inventory["gpu_1x_a5000 "].is_object() && inventory["gpu_1x_a5000"].is_null());
    let a6000 = &inventory["gpu_1x_a6000"];
    assert_eq!(
        a6000["instance_type"],
        json!({
            "name": "gpu_1x_a6000", "description": "1x RTX A6000", "price_cents_per_hour": 57,
            "specs": {"vcpu_count": 6, "memory_gib": 48, "storage_gb": 256},
        })
    );
    assert_eq!(a6000["capacity_available"], 20, "it is sold in two regions");
    let none = &inventory["gpu_1x_h200_nvl"];
    assert_eq!(
        (
            &none["capacity_available"],
            &none["regions_with_capacity_available"]
        ),
        (&json!(0), &json!([]))
    );
    world.is_content();
}

#[tokio::test]
async fn images_have_numbers_that_launches_name() {
    let world = furnished().await;
    let images = world.get("images").await.json()["images"].clone();
    let mut images = images.as_array().unwrap().iter();
    let default = images.find(|image| image["vm_image_id"] == 184).unwrap();
    assert_eq!(default["vm_image_name"], "Ubuntu Server 24.04");
    let id = world.running(order()).await;
    assert_eq!(world.instance(&id).await["image"], *default);
    world.is_content();
}

#[tokio::test]
async fn a_key_is_there_once_by_its_name_and_by_its_text_and_one_text_says_what_is_not_taken() {
    let world = furnished().await;
    let create = async |name: &str, text: &str| {
        world
            .post("ssh-keys", json!({"name": name, "publicKey": text}))
            .await
    };
    let failure = (400, NOT_CREATED.to_owned());
    for (name, text) in [("mine", OTHER), ("other", KEY), ("other", "no key")] {
        assert_eq!(refusal(&create(name, text).await), failure, "{name} {text}");
    }
    let made = create("other", OTHER).await.json()["sshKey"].clone();
    let listed = world.get("ssh-keys").await.json();
    let mut keys = listed["sshKeys"].as_array().unwrap().iter();
    let shown = keys.find(|key| key["name"] == "other").unwrap();
    assert_eq!((&shown["id"], &shown["public_key"]), (&made["id"], &json!(OTHER)));

    let path = format!("ssh-keys/{}", made["id"].as_str().unwrap());
    for _ in 0..2 {
        let deleted = world.delete(&path).await;
        assert_eq!(
            (deleted.status, deleted.json()),
            (200, json!({})),
            "or there is none"
        );
    }
    assert_eq!(world.sim().meter(|meter| meter.leftovers("acme").len()), 1);
    world.sim().world(|world| {
        let account = world.accounts.get_mut("acme").unwrap();
        account.quotas.insert("ssh-key".to_owned(), 1);
    });
    assert_eq!(refusal(&create("other", OTHER).await), failure, "none is taken");
    world.is_content();
    assert_eq!(create("not-a-name", OTHER).await.status, 400);
}

#[tokio::test]
async fn an_instance_keeps_the_key_that_it_was_launched_with() {
    let world = furnished().await;
    let id = world.running(order()).await;
    let key = world.get("ssh-keys").await.json()["sshKeys"][0]["id"].clone();
    let path = format!("ssh-keys/{}", key.as_str().unwrap());
    assert_eq!(world.delete(&path).await.status, 200);
    assert_eq!(world.instance(&id).await["os_booted"], 1);
    assert_eq!(
        world.post("instance/launch", order()).await.status,
        400,
        "it is gone"
    );
    world.is_content();
}

#[tokio::test]
async fn a_new_instance_is_unknown_to_the_list_and_by_its_uuid_as_long_as_lists_lag() {
    let world = furnished().await;
    world
        .sim()
        .world(|world| world.lag.created = SignedDuration::from_secs(30));
    let id = world.launch(order()).await;
    let shown = async || {
        let listed = world.get("instance").await.json()["runningInstances"].clone();
        (
            listed.as_array().unwrap().len(),
            world.instance(&id).await != Value::Null,
        )
    };
    assert_eq!(shown().await, (0, false));
    world.0.advance(30);
    assert_eq!(shown().await, (1, true));
    world.is_content();
}

#[tokio::test]
async fn a_list_may_forget_instances_and_so_may_the_call_for_a_single_one() {
    let world = furnished().await;
    let id = world.running(order()).await;
    for call in ["instances.list", "instances.get"] {
        world
            .sim()
            .fault(Rule::once(call, Fault::PartialPage { keep: 0 }));
    }
    for path in ["instance".to_owned(), format!("instance/{id}")] {
        assert_eq!(
            world.get(&path).await.json(),
            json!({"runningInstances": []}),
            "{path}"
        );
        let again = world.get(&path).await.json();
        assert_eq!(again["runningInstances"][0]["uuid"], id, "{path}");
    }
    world.is_content();
}

#[tokio::test]
async fn an_instance_that_is_renamed_is_shown_with_its_new_name() {
    let world = furnished().await;
    let id = world.running(order()).await;
    world.sim().world(|world| {
        let machine = world.machines.get_mut(&id).unwrap();
        machine.mark.name = "pool".to_owned();
    });
    assert_eq!(world.instance(&id).await["name"], "pool");
    let listed = world.get("instance").await.json();
    assert_eq!(listed["runningInstances"][0]["name"], "pool");
    world.is_content();
}
