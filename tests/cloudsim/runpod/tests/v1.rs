//! REST v1 as before its end, with what RunPod's command line tool, SkyPilot and the provider
//! for Terraform send.

use serde_json::{Value, json};

use super::{GPU, World, world};

async fn served() -> World {
    let world = world().await;
    let told = world.sim().control("v1", &json!({"served": true}));
    assert_eq!(told, Some(Ok(json!({"served": true}))));
    world
}

/// What the provider for Terraform sends of its own accord.
fn pod(name: &str) -> Value {
    json!({
        "name": name, "imageName": "runpod/base:1.0.3", "computeType": "GPU", "cloudType": "SECURE", "gpuCount": 1,
        "gpuTypeIds": ["NVIDIA A40", GPU], "containerDiskInGb": 50, "volumeInGb": 20,
        "volumeMountPath": "/workspace", "ports": ["8888/http", "22/tcp"], "interruptible": false, "locked": false,
        "minVCPUPerGPU": 2, "minRAMPerGPU": 8, "globalNetworking": false, "gpuTypePriority": "availability",
        "cpuFlavorPriority": "availability", "dataCenterPriority": "availability",
        "env": {"PUBLIC_KEY": "ssh-ed25519 AAAA test"}, "dataCenterIds": ["EU-RO-1", "EU-NL-1"],
    })
}

#[tokio::test]
async fn it_ends_again_when_the_control_says_so() {
    let world = served().await;
    assert_eq!(world.get("/v1/pods").await.json(), json!([]));
    world.all_as_described();
    drop(world.sim().control("v1", &json!({"served": false})));
    assert_eq!(world.get("/v1/pods").await.status, 410);
}

#[tokio::test]
async fn a_pod_is_one_under_both_versions() {
    let world = served().await;
    let id = world.made("/v1/pods", pod("a")).await;
    let path = format!("/v1/pods/{id}");
    let young = world.get(&path).await.json();
    assert_eq!(
        (
            &young["desiredStatus"],
            &young["publicIp"],
            &young["portMappings"]
        ),
        (&json!("RUNNING"), &json!(""), &Value::Null)
    );
    world.simulator.advance(23);
    let shown = world.get(&format!("{path}?includeMachine=true")).await.json();
    let other = world.pod(&id).await;
    assert_eq!(shown["portMappings"]["22"], other["ssh"]["direct"]["port"]);
    assert_eq!(
        (&shown["machine"]["dataCenterId"], &shown["gpu"]["id"]),
        (&json!("EU-RO-1"), &json!(GPU))
    );
    assert_eq!(shown["costPerHr"], json!(0.69));
    let named = world.get("/v1/pods?name=a&computeType=GPU").await.json();
    assert_eq!(named.as_array().unwrap().len(), 1);
    assert_eq!(world.get("/v1/pods?name=b").await.json(), json!([]));
    let patched = world.patch(&path, json!({"name": "b", "dockerStartCmd": ["sleep", "1"]}));
    let patched = patched.await;
    assert_eq!(patched.json()["dockerStartCmd"], json!(["sleep", "1"]));
    assert_eq!(world.pod(&id).await["name"], "b");
    for (action, desired) in [("stop", "EXITED"), ("start", "RUNNING")] {
        let reply = world.post(&format!("{path}/{action}"), json!({})).await;
        assert_eq!(
            (reply.status, reply.json()["desiredStatus"].as_str()),
            (200, Some(desired))
        );
    }
    assert_eq!(world.delete(&path).await.status, 204);
    let gone = world.delete(&path).await;
    assert_eq!(
        gone.json(),
        json!({"error": "pod not found to terminate", "status": 404})
    );
    world.simulator.advance(2);
    assert_eq!(world.get(&path).await.status, 404);
    world.all_as_described();
}

#[tokio::test]
async fn spot_pods_pay_the_floor_and_what_cannot_be_had_is_a_500() {
    let world = served().await;
    let mut spot = pod("s");
    spot["interruptible"] = true.into();
    let id = world.made("/v1/pods", spot).await;
    let shown = world.get(&format!("/v1/pods/{id}")).await.json();
    assert_eq!(
        (&shown["interruptible"], &shown["costPerHr"]),
        (&json!(true), &json!(0.35))
    );
    let mut absent = pod("x");
    absent["gpuTypeIds"] = json!(["NVIDIA A40"]);
    let refused = world.post("/v1/pods", absent).await;
    assert_eq!(
        refused.json(),
        json!({"error": "create pod: There are no instances currently available", "status": 500})
    );
    let mut wrong = pod("w");
    wrong["bidPerGpu"] = json!(0.2);
    world.all_as_described();
    assert_eq!(world.post("/v1/pods", wrong).await.status, 400);
    assert!(!world.sim().violations().is_empty());
}

#[tokio::test]
async fn a_cpu_pod_with_a_volume_and_a_template_has_what_they_say() {
    let world = served().await;
    let volume = json!({"name": "v", "size": 50, "dataCenterId": "US-KS-2"});
    let volume = world.made("/v1/networkvolumes", volume).await;
    let auth = json!({"name": "mine", "username": "u", "password": "p"});
    let auth = world.made("/v1/containerregistryauth", auth).await;
    let template = json!({
        "name": "t", "imageName": "python:3", "isServerless": false, "ports": ["22/tcp"], "env": {"A": "1"},
        "containerDiskInGb": 15, "containerRegistryAuthId": auth, "dockerStartCmd": ["sleep", "infinity"],
    });
    let template = world.made("/v1/templates", template).await;
    let order = json!({
        "name": "c", "computeType": "CPU", "cpuFlavorIds": ["cpu5c"], "vcpuCount": 4, "templateId": template,
        "networkVolumeId": volume,
    });
    let id = world.made("/v1/pods", order).await;
    let shown = world
        .get(&format!("/v1/pods/{id}?includeNetworkVolume=true"))
        .await
        .json();
    assert_eq!(
        (&shown["image"], &shown["containerDiskInGb"], &shown["templateId"]),
        (&json!("python:3"), &json!(15), &json!(template))
    );
    assert_eq!(
        (&shown["cpuFlavorId"], &shown["containerRegistryAuthId"]),
        (&json!("cpu5c"), &json!(auth))
    );
    assert_eq!(shown["dockerStartCmd"], json!(["sleep", "infinity"]));
    assert_eq!(
        shown["networkVolume"],
        json!({"id": volume, "name": "v", "size": 50, "dataCenterId": "US-KS-2"})
    );
    let paths = [
        format!("/v1/networkvolumes/{volume}"),
        format!("/v1/containerregistryauth/{auth}"),
        format!("/v1/templates/{template}"),
    ];
    for path in &paths {
        assert_eq!(world.get(path).await.status, 200, "{path}");
        assert_eq!(world.delete(path).await.status, 400, "{path} is in use");
    }
    world.delete(&format!("/v1/pods/{id}")).await;
    for path in &paths {
        assert_eq!(world.delete(path).await.status, 204, "{path}");
        assert_eq!(world.get(path).await.status, 404, "{path}");
    }
    let again = world.delete(&paths[0]).await;
    assert_eq!(again.status, 500, "a volume that is gone is no 404 there");
    assert!(again.body.contains("Tried to delete nonexistent network volume"));
    assert!(world.sim().meter(|meter| meter.leftovers("acme").is_empty()));
    world.all_as_described();
}

#[tokio::test]
async fn templates_and_volumes_are_changed_and_listed() {
    let world = served().await;
    let template = json!({"name": "t", "imageName": "a:1", "readme": "r"});
    let template = world.made("/v1/templates", template).await;
    let path = format!("/v1/templates/{template}");
    let changed = world
        .patch(
            &path,
            json!({"imageName": "a:2", "containerRegistryAuthId": "reg-docker-hub"}),
        )
        .await
        .json();
    assert_eq!(
        (
            &changed["imageName"],
            &changed["containerDiskInGb"],
            &changed["volumeInGb"]
        ),
        (&json!("a:2"), &json!(50), &json!(20))
    );
    assert_eq!(changed["containerRegistryAuthId"], "reg-docker-hub");
    let cleared = world.patch(&path, json!({"containerRegistryAuthId": ""})).await;
    assert_eq!(cleared.json()["containerRegistryAuthId"], Value::Null);
    let count = async |query: &str| -> usize {
        let listed = world.get(&format!("/v1/templates{query}")).await.json();
        listed.as_array().unwrap().len()
    };
    assert_eq!(count("").await, 1);
    assert_eq!(count("?includeRunpodTemplates=true").await, 3);
    assert_eq!(
        count("?includeRunpodTemplates=true&includePublicTemplates=true").await,
        4
    );
    let volume = json!({"name": "v", "size": 50, "dataCenterId": "US-KS-2"});
    let volume = world.made("/v1/networkvolumes", volume).await;
    let path = format!("/v1/networkvolumes/{volume}");
    assert_eq!(world.patch(&path, json!({"size": 60})).await.json()["size"], 60);
    assert_eq!(world.patch(&path, json!({"size": 50})).await.status, 400);
    let listed = world.get("/v1/networkvolumes").await.json();
    assert_eq!(listed[0]["dataCenterId"], "US-KS-2");
    world.all_as_described();
}

#[tokio::test]
async fn the_bill_is_by_type_of_gpu_or_by_pod() {
    let world = served().await;
    let a = world.made("/v1/pods", pod("a")).await;
    world.made("/v1/pods", pod("b")).await;
    world.simulator.advance(3_600);
    let by_type = world.get("/v1/billing/pods").await.json();
    assert_eq!(
        by_type,
        json!([{
            "time": "2026-11-21T00:00:00Z", "amount": 1.38, "timeBilledMs": 7_200_000, "diskSpaceBilledGb": 140,
            "gpuTypeId": GPU,
        }])
    );
    let path = format!("/v1/billing/pods?grouping=podId&podId={a}&bucketSize=hour");
    let by_pod = world.get(&path).await.json();
    assert_eq!(
        (&by_pod[0]["podId"], &by_pod[0]["amount"]),
        (&json!(a), &json!(0.69))
    );
    assert_eq!(world.get("/v1/billing/networkvolumes").await.json(), json!([]));
    world.all_as_described();
    let left_out = world.get("/v1/endpoints").await;
    assert_eq!(left_out.status, 501);
    assert_eq!(left_out.json()["status"], 501);
}
