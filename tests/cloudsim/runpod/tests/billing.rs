//! The bill as the account can read it.

use rust_decimal::Decimal;
use serde_json::{Value, json};

use super::world;

#[tokio::test]
async fn a_pods_bill_is_in_buckets_with_gpu_and_disk_apart() {
    let world = world().await;
    let id = world.running("a").await;
    world.simulator.advance(3_577);
    world
        .post(&format!("/v2/pods/{id}/action"), json!({"action": "stop"}))
        .await;
    world.simulator.advance(3_600);
    let bill = world.get("/v2/billing/pods?bucketSize=hour").await.json();
    let records = bill["records"].as_array().unwrap();
    assert_eq!(records.len(), 2, "{bill}");
    assert_eq!(
        records[0],
        json!({
            "startTime": "2026-11-21T00:00:00Z", "endTime": "2026-11-21T01:00:00Z", "podId": id,
            "totalAmount": 0.69, "gpuAmount": 0.69, "cpuAmount": 0.0, "diskAmount": 0.0,
        })
    );
    assert_eq!(
        (&records[1]["gpuAmount"], &records[1]["diskAmount"]),
        (&json!(0.0), &json!(0.021))
    );
    assert_eq!(bill["metadata"]["totals"]["totalAmount"], json!(0.711));
    assert_eq!(bill["metadata"]["uniquePodCount"], 1);
    assert_eq!(
        world.sim().meter(|meter| meter.bill("acme")),
        Decimal::new(711, 3)
    );
    let none = world.get("/v2/billing/pods?podId=none").await.json();
    assert_eq!(none["records"], json!([]));
    let last = world.get("/v2/billing/pods?bucketSize=hour&lastN=2").await.json();
    assert_eq!(
        (
            &last["metadata"]["query"]["startTime"],
            &last["metadata"]["recordCount"]
        ),
        (&json!("2026-11-21T01:00:00Z"), &json!(1))
    );
    let both = "/v2/billing/pods?lastN=2&startTime=2026-11-20T00:00:00Z";
    assert_eq!(world.get(both).await.status, 400);
    world.all_as_described();
}

#[tokio::test]
async fn buckets_begin_where_the_calendar_says() {
    let world = world().await;
    world.running("a").await;
    let begin = async |size: &str| -> Value {
        let path = format!("/v2/billing/pods?bucketSize={size}&startTime=2026-11-21T00:00:00Z");
        let bill = world.get(&path).await.json();
        let record = &bill["records"][0];
        json!([record["startTime"], record["endTime"]])
    };
    assert_eq!(
        begin("week").await,
        json!(["2026-11-16T00:00:00Z", "2026-11-23T00:00:00Z"])
    );
    assert_eq!(
        begin("month").await,
        json!(["2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z"])
    );
    assert_eq!(
        begin("year").await,
        json!(["2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"])
    );
    world.all_as_described();
}

#[tokio::test]
async fn the_whole_bill_has_pods_clusters_and_volumes() {
    let world = world().await;
    let volume = json!({"name": "data", "size": 730, "dataCenter": "EU-RO-1"});
    let volume = world.made("/v2/network-volumes", volume).await;
    let cluster = json!({
        "name": "c", "type": "TRAINING", "image": "runpod/pytorch:1",
        "compute": {"gpuTypeId": "NVIDIA H100 80GB HBM3", "gpuCountPerPod": 8, "podCount": 2},
    });
    let cluster = world.made("/v2/clusters", cluster).await;
    world.running("a").await;
    world.simulator.advance(3_577);
    let volumes = world.get("/v2/billing/network-volumes").await.json();
    assert_eq!(volumes["records"][0]["networkVolumeId"], volume);
    assert_eq!(volumes["records"][0]["standardAmount"], json!(0.07));
    let clusters = world.get("/v2/billing/clusters").await.json();
    assert_eq!(clusters["records"][0]["clusterId"], cluster);
    assert_eq!(clusters["metadata"]["totals"]["gpuAmount"], json!(47.84));
    let all = world.get("/v2/billing").await.json();
    let totals = &all["metadata"]["totals"];
    assert_eq!(
        (
            &totals["podGpuAmount"],
            &totals["clusterGpuAmount"],
            &totals["storageStandardAmount"],
            &totals["totalAmount"]
        ),
        (&json!(0.69), &json!(47.84), &json!(0.07), &json!(48.6))
    );
    world.all_as_described();
}
