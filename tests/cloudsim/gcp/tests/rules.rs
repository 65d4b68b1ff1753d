//! What orders, labels and firewalls must be like.

use http::Method;
use serde_json::{Value, json};

use super::{Market, Shelf, ZONE, order, refusal, spot, world};

#[tokio::test]
async fn an_order_names_what_there_is_by_its_address() {
    let world = world().await;
    let image = "/disks/0/initializeParams/sourceImage";
    let disk = "/disks/0/initializeParams/diskType";
    for (pointer, value, status) in [
        ("/machineType", "a2-highgpu-1g".to_owned(), 400),
        (
            "/machineType",
            "zones/us-central1-b/machineTypes/a2-highgpu-1g".to_owned(),
            400,
        ),
        (
            "/machineType",
            format!("zones/{ZONE}/machineTypes/a2-highgpu-3g"),
            404,
        ),
        (
            "/machineType",
            format!("zones/{ZONE}/machineTypes/a4-highgpu-8g"),
            404,
        ),
        (disk, "pd-balanced".to_owned(), 400),
        (disk, format!("zones/{ZONE}/diskTypes/hyperdisk-balanced"), 400),
        (
            image,
            "projects/ubuntu-os-cloud/global/images/family/ubuntu-1804-lts".to_owned(),
            400,
        ),
        (
            image,
            "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-arm64".to_owned(),
            400,
        ),
        ("/disks/0/initializeParams/diskSizeGb", "20".to_owned(), 400),
        (
            "/networkInterfaces/0/network",
            "global/networks/none".to_owned(),
            400,
        ),
        (
            "/networkInterfaces/0/network",
            "global/networks/research".to_owned(),
            400,
        ),
        ("/name", "Pool-0".to_owned(), 400),
        ("/name", "x".repeat(64), 400),
        ("/labels/pool", "Upper".to_owned(), 400),
        ("/scheduling/onHostMaintenance", "MIGRATE".to_owned(), 400),
        ("/metadata/items/1/value", "x".repeat(262_145), 400),
    ] {
        assert_eq!(
            world.refused(pointer, value.as_str().into()).await.0,
            status,
            "{pointer} {}",
            &value[..value.len().min(80)]
        );
    }
    assert_eq!(world.sim().world(|world| world.machines.len()), 0);
    let mut full = order();
    full["machineType"] = format!(
        "https://www.googleapis.com/compute/v1/projects/acme/zones/{ZONE}/machineTypes/a2-highgpu-1g"
    )
    .into();
    assert_eq!(world.order(full).await.status, 200);
    world.is_content();
}

#[tokio::test]
async fn a_body_that_the_description_does_not_have_is_a_violation_and_what_is_not_simulated_is_said() {
    let world = world().await;
    let mut wrong = order();
    wrong["colour"] = "red".into();
    assert_eq!(refusal(&world.order(wrong).await).0, 400);
    assert!(!world.sim().violations().is_empty());
    world.sim().forget();
    let mut reserved = order();
    reserved["reservationAffinity"] = json!({ "consumeReservationType": "ANY_RESERVATION" });
    assert_eq!(world.order(reserved).await.status, 501);
    assert_eq!(world.get("global/instanceTemplates").await.status, 501);
}

#[tokio::test]
async fn spot_instances_do_not_restart_and_small_h100_are_sold_as_spot_alone() {
    let world = world().await;
    let mut restarts = spot();
    restarts["scheduling"]["automaticRestart"] = true.into();
    assert_eq!(refusal(&world.order(restarts).await).0, 400);
    let small = |mut order: Value| {
        order["machineType"] = format!("zones/{ZONE}/machineTypes/a3-highgpu-1g").into();
        order
    };
    assert_eq!(refusal(&world.order(small(order())).await).0, 400);
    assert_eq!(world.order(small(spot())).await.status, 200);
    let mut ends = order();
    ends["scheduling"]["instanceTerminationAction"] = "DELETE".into();
    assert_eq!(refusal(&world.order(ends).await).0, 400, "it has no end");
    world.is_content();
}

#[tokio::test]
async fn accelerators_are_attached_to_n1_in_numbers_that_it_can_have() {
    let world = world().await;
    let with = |kind: &str, card: &str, count: u32| {
        let mut order = order();
        order["machineType"] = format!("zones/{ZONE}/machineTypes/{kind}").into();
        order["guestAccelerators"] = json!([{
            "acceleratorType": format!("zones/{ZONE}/acceleratorTypes/{card}"), "acceleratorCount": count,
        }]);
        order
    };
    for (kind, card, count) in [
        ("n1-standard-8", "nvidia-tesla-t4", 3),
        ("n1-standard-8", "nvidia-tesla-t4", 8),
        ("n1-standard-96", "nvidia-tesla-v100", 1),
        ("n1-standard-8", "nvidia-l4", 1),
        ("a2-highgpu-1g", "nvidia-tesla-t4", 1),
    ] {
        assert_eq!(
            refusal(&world.order(with(kind, card, count)).await).0,
            400,
            "{kind} {card} {count}"
        );
    }
    let id = world.running(with("n1-standard-8", "nvidia-tesla-t4", 2)).await;
    let machine = world.sim().world(|world| world.machines[&id].clone());
    assert_eq!(machine.boot.gpus, ["Tesla T4", "Tesla T4"]);
    assert_eq!(machine.price, super::usd("1.085"), "0.38 + 2 × 0.35 + 0.005");
    let instance = world.instance().await;
    assert!(
        instance["machineType"]
            .as_str()
            .unwrap()
            .ends_with("/n1-standard-8"),
        "{instance}"
    );
    assert_eq!(instance["guestAccelerators"][0]["acceleratorCount"], 2);
    let shelf = Shelf::new("n1-standard-8+nvidia-tesla-t4x2", ZONE, Market::Spot);
    assert!(world.sim().world(|world| world.stock.has(&shelf)));
    world.is_content();
}

#[tokio::test]
async fn a_network_of_ones_own_needs_its_subnetwork() {
    let world = world().await;
    let mut order = order();
    order["networkInterfaces"] = json!([{ "subnetwork": "regions/us-central1/subnetworks/research-us" }]);
    assert_eq!(world.order(order).await.status, 200);
    world.0.advance(30);
    let interface = world.instance().await["networkInterfaces"][0].clone();
    assert!(
        interface["network"]
            .as_str()
            .unwrap()
            .ends_with("/networks/research"),
        "{interface}"
    );
    assert_eq!(interface.get("accessConfigs"), None);
    world.is_content();
}

#[tokio::test]
async fn a_firewall_is_made_once_is_not_ready_at_once_and_is_a_leftover_until_it_goes() {
    let world = world().await;
    let rule = json!({
        "name": "sky-ssh", "network": "global/networks/default", "direction": "INGRESS",
        "allowed": [{ "IPProtocol": "tcp", "ports": ["22"] }], "sourceRanges": ["0.0.0.0/0"],
        "targetTags": ["skyward-node"],
    });
    let made = world.post("global/firewalls", rule.clone()).await;
    assert_eq!(made.json().get("zone"), None, "it is global");
    assert_eq!(
        refusal(&world.post("global/firewalls", rule.clone()).await),
        (409, "alreadyExists".to_owned())
    );
    let path = "global/firewalls/sky-ssh";
    assert_eq!(
        refusal(&world.call(Method::DELETE, path).await),
        (400, "resourceNotReady".to_owned())
    );
    world.0.advance(2);
    assert_eq!(world.operation(&made).await["status"], "DONE");
    let name = made.json()["name"].as_str().unwrap().to_owned();
    let waited = world
        .call(Method::POST, &format!("global/operations/{name}/wait"))
        .await;
    assert_eq!(waited.json()["status"], "DONE");
    assert_eq!(
        refusal(&world.get(&format!("zones/{ZONE}/operations/{name}")).await).0,
        404
    );
    let found = world.get(path).await.json();
    assert_eq!(
        (&found["allowed"], &found["targetTags"]),
        (&rule["allowed"], &rule["targetTags"])
    );
    assert_eq!(world.sim().meter(|meter| meter.leftovers("acme").len()), 1);
    assert_eq!(world.call(Method::DELETE, path).await.status, 200);
    assert_eq!(refusal(&world.get(path).await).0, 404);
    assert!(world.sim().meter(|meter| meter.leftovers("acme").is_empty()));
    world.is_content();
}
