//! Network volumes, and pods that have one.

use rust_decimal::Decimal;
use serde_json::{Value, json};

use super::{World, order, world};

/// A volume of 100 GB where a fast one could be too.
async fn volume(world: &World) -> String {
    let given = json!({"name": "data", "size": 100, "dataCenter": "EU-RO-1"});
    world.made("/v2/network-volumes", given).await
}

fn at(id: &str, name: &str) -> Value {
    let mut order = order(name);
    order["mounts"] = json!({"network": [{"volumeId": id, "path": "/workspace"}]});
    order
}

/// What an hour costs, without the digits that a division leaves.
fn hourly(world: &World) -> Decimal {
    world.sim().meter(|meter| meter.hourly("acme").round_dp(6))
}

#[tokio::test]
async fn a_volume_costs_until_it_is_deleted_and_only_grows() {
    let world = world().await;
    let id = volume(&world).await;
    let path = format!("/v2/network-volumes/{id}");
    assert_eq!(
        world.get(&path).await.json(),
        json!({"id": id, "name": "data", "size": 100, "dataCenter": "EU-RO-1", "type": "STANDARD"})
    );
    assert_eq!(hourly(&world), Decimal::new(9_589, 6), "7 a month");
    assert_eq!(world.patch(&path, json!({"size": 99})).await.status, 400);
    let grown = world.patch(&path, json!({"size": 2_000, "name": "more"})).await;
    assert_eq!((grown.status, grown.json()["name"].as_str()), (200, Some("more")));
    assert_eq!(hourly(&world), Decimal::new(164_384, 6), "70 and 50 a month");
    let listed = world.get("/v2/network-volumes").await.json();
    assert_eq!(listed["networkVolumes"].as_array().unwrap().len(), 1);
    assert_eq!(world.sim().meter(|meter| meter.leftovers("acme").len()), 1);
    assert_eq!(world.delete(&path).await.status, 204);
    assert_eq!(world.delete(&path).await.status, 404);
    assert_eq!(hourly(&world), Decimal::ZERO);
    assert!(world.sim().meter(|meter| meter.leftovers("acme").is_empty()));
    world.all_as_described();
}

#[tokio::test]
async fn a_pod_is_where_its_volume_is_and_has_no_other_disk() {
    let world = world().await;
    let id = volume(&world).await;
    let pod = world.made("/v2/pods", at(&id, "a")).await;
    world.simulator.advance(30);
    let shown = world.pod(&pod).await;
    assert_eq!(shown["dataCenterId"], "EU-RO-1");
    assert_eq!(
        shown["mounts"],
        json!({"network": [{"volumeId": id, "path": "/workspace"}]})
    );
    let mut elsewhere = at(&id, "b");
    elsewhere["dataCenterIds"] = json!(["US-TX-3"]);
    assert_eq!(world.post("/v2/pods", elsewhere).await.status, 400);
    let mut community = at(&id, "c");
    community["cloud"] = "COMMUNITY".into();
    assert_eq!(world.post("/v2/pods", community).await.status, 400);
    assert_eq!(world.post("/v2/pods", at("none", "d")).await.status, 400);
    let path = format!("/v2/network-volumes/{id}");
    assert_eq!(world.delete(&path).await.status, 400, "a pod has it");
    world.delete(&format!("/v2/pods/{pod}")).await;
    assert_eq!(hourly(&world), Decimal::new(9_589, 6), "the volume stays");
    assert_eq!(world.delete(&path).await.status, 204);
    world.all_as_described();
}

#[tokio::test]
async fn fast_volumes_are_in_some_data_centers() {
    let world = world().await;
    let fast =
        |place: &str| json!({"name": "f", "size": 10, "dataCenter": place, "type": "HIGH_PERFORMANCE"});
    assert_eq!(
        world.post("/v2/network-volumes", fast("US-TX-3")).await.status,
        400
    );
    assert_eq!(world.post("/v2/network-volumes", fast("XX-1")).await.status, 400);
    assert_eq!(
        world.post("/v2/network-volumes", fast("EU-RO-1")).await.status,
        201
    );
    let path = "/v2/catalog/datacenters?networkVolumeTypes=STANDARD,HIGH_PERFORMANCE";
    let centers = world.get(path).await.json()["dataCenters"].clone();
    assert_eq!(centers.as_array().unwrap().len(), 1);
    assert_eq!(centers[0]["id"], "EU-RO-1");
    world.all_as_described();
}

#[tokio::test]
async fn a_cluster_is_where_its_volume_is() {
    let world = world().await;
    let id = volume(&world).await;
    let cluster = json!({
        "name": "c", "type": "TRAINING", "image": "runpod/pytorch:1",
        "compute": {"gpuTypeId": "NVIDIA H100 80GB HBM3", "gpuCountPerPod": 8, "podCount": 2},
        "mounts": {"network": [{"volumeId": id, "path": "/shared"}]},
    });
    let made = world.made("/v2/clusters", cluster.clone()).await;
    world.simulator.advance(30);
    let members = world.get(&format!("/v2/clusters/{made}/pods")).await.json();
    for pod in members["pods"].as_array().unwrap() {
        assert_eq!(pod["dataCenterId"], "EU-RO-1");
        assert_eq!(pod["mounts"]["network"][0]["path"], "/shared");
    }
    let mut elsewhere = cluster;
    elsewhere["dataCenterIds"] = json!(["US-TX-3"]);
    assert_eq!(world.post("/v2/clusters", elsewhere).await.status, 400);
    assert_eq!(world.delete(&format!("/v2/clusters/{made}")).await.status, 204);
    world.all_as_described();
}
