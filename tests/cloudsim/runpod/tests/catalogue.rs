//! Offers.

use serde_json::{Value, json};

use super::{GPU, world};
use crate::{Left, Market, Shelf};

fn find(list: &Value, id: &str) -> Value {
    list.as_array()
        .unwrap()
        .iter()
        .find(|item| item["id"] == id)
        .cloned()
        .unwrap_or(Value::Null)
}

#[tokio::test]
async fn the_catalogue_has_prices_for_one_gpu_by_cloud_and_stock_by_data_center() {
    let world = world().await;
    world.sim().world(|world| {
        world
            .stock
            .set(Shelf::new(GPU, "US-TX-3", Market::OnDemand), Left::Count(2));
        world
            .stock
            .set(Shelf::new(GPU, "US-KS-2", Market::OnDemand), Left::Count(0));
    });
    let gpus = world
        .get("/v2/catalog/gpus?include=AVAILABILITY&product=POD&count=1&cloud=SECURE")
        .await
        .json();
    let gpu = find(&gpus["gpus"], GPU);
    assert_eq!(gpu["price"], json!({"secure": 0.69, "community": 0.34}));
    assert_eq!(gpu["maxCount"], json!({"secure": 8, "community": 6}));
    assert_eq!(gpu["availability"], "HIGH");
    assert_eq!(find(&gpu["dataCenters"], "US-TX-3")["availability"], "LOW");
    assert_eq!(find(&gpu["dataCenters"], "US-KS-2")["availability"], "NONE");
    assert!(
        gpu["cudaVersions"]
            .as_array()
            .unwrap()
            .iter()
            .any(|version| version["version"] == "12.8")
    );
    let amd = find(&gpus["gpus"], "AMD Instinct MI300X OAM");
    assert_eq!(
        (&amd["manufacturer"], &amd["community"], &amd["pool"]),
        (&json!("AMD"), &json!(false), &Value::Null)
    );
    world.all_as_described();
}

#[tokio::test]
async fn availability_and_product_belong_together() {
    let world = world().await;
    assert_eq!(
        world.get("/v2/catalog/gpus?include=AVAILABILITY").await.status,
        400
    );
    assert_eq!(world.get("/v2/catalog/gpus?product=POD").await.status, 400);
    assert_eq!(world.get("/v2/catalog/gpus?count=2").await.status, 400);
    let plain = world.get("/v2/catalog/gpus").await.json();
    assert_eq!(find(&plain["gpus"], GPU)["availability"], Value::Null);
    let cuda = "cudaVersions=12.8&minCudaVersion=12.4";
    assert_eq!(
        world
            .get(&format!(
                "/v2/catalog/gpus?include=AVAILABILITY&product=POD&{cuda}"
            ))
            .await
            .status,
        400
    );
    world.all_as_described();
}

#[tokio::test]
async fn more_gpus_than_a_host_has_are_not_available() {
    let world = world().await;
    let path = "/v2/catalog/gpus?include=AVAILABILITY&product=POD&cloud=COMMUNITY&count=7";
    assert_eq!(
        find(&world.get(path).await.json()["gpus"], GPU)["availability"],
        "NONE"
    );
    let one = world.get("/v2/catalog/gpus/NVIDIA%20H200").await;
    assert_eq!(one.json()["memory"], 141);
    assert_eq!(world.get("/v2/catalog/gpus/none").await.status, 404);
    world.all_as_described();
}

#[tokio::test]
async fn data_centers_say_where_global_networking_is() {
    let world = world().await;
    let all = world
        .get("/v2/catalog/datacenters?include=GPU_AVAILABILITY")
        .await
        .json();
    assert_eq!(find(&all["dataCenters"], "EU-RO-1")["globalNetwork"], true);
    assert_eq!(
        find(&find(&all["dataCenters"], "EU-RO-1")["gpuAvailability"], GPU)["availability"],
        "HIGH"
    );
    let mut order = super::order("a");
    order["globalNetworking"] = true.into();
    let id = world.post("/v2/pods", order.clone()).await.json()["id"]
        .as_str()
        .unwrap()
        .to_owned();
    world.simulator.advance(30);
    let pod = world.pod(&id).await;
    assert_eq!(
        pod["globalNetworking"]["internalDns"],
        format!("{id}.runpod.internal")
    );
    order["dataCenterIds"] = json!(["CA-MTL-1"]);
    assert_eq!(world.post("/v2/pods", order).await.status, 400);
    world.all_as_described();
}

#[tokio::test]
async fn floors_of_bids_are_in_graphql_only_and_null_where_nothing_is() {
    let world = world().await;
    let query = "query($secure: Boolean) { gpuTypes { id displayName memoryInGb maxGpuCountSecureCloud \
        lowest: lowestPrice(input: {gpuCount: 1, secureCloud: $secure}) { minimumBidPrice uninterruptablePrice stockStatus } } }";
    let secure = world.graphql(query, json!({"secure": true})).await.json();
    let gpu = find(&secure["data"]["gpuTypes"], GPU);
    assert_eq!(
        gpu["lowest"],
        json!({"minimumBidPrice": 0.35, "uninterruptablePrice": 0.69, "stockStatus": "High"})
    );
    let v100 = find(&secure["data"]["gpuTypes"], "Tesla V100-FHHL-16GB");
    assert_eq!(
        v100["lowest"],
        json!({"minimumBidPrice": null, "uninterruptablePrice": null, "stockStatus": null})
    );
    let community = world.graphql(query, json!({"secure": false})).await.json();
    assert_eq!(
        find(&community["data"]["gpuTypes"], GPU)["lowest"]["minimumBidPrice"],
        json!(0.2)
    );
    world.all_as_described();
}
