//! Changes of pods, and calls that are not simulated.

use http::Method;
use rust_decimal::Decimal;
use serde_json::{Value, json};

use super::{GPU, order, world};

#[tokio::test]
async fn a_template_in_a_patch_is_applied_once_and_the_patch_itself_wins() {
    let world = world().await;
    let id = world.running("a").await;
    let template = json!({"name": "t", "image": "runpod/base:2", "disk": 30, "env": {"A": "1", "POOL": "t"}});
    let template = world.made("/v2/templates", template).await;
    let path = format!("/v2/pods/{id}");
    let patch = json!({"templateId": template, "disk": 60, "env": {"POOL": "q"}});
    let pod = world.patch(&path, patch).await;
    assert_eq!(pod.status, 200, "{}", pod.body);
    let pod = pod.json();
    assert_eq!(
        (&pod["image"], &pod["disk"], &pod["template"]),
        (&json!("runpod/base:2"), &json!(60), &Value::Null)
    );
    assert_eq!(pod["env"], json!({"A": "1", "POOL": "q"}));
    let unknown = world.patch(&path, json!({"templateId": "none"})).await;
    assert_eq!(unknown.status, 404);
    world.all_as_described();
}

#[tokio::test]
async fn the_kind_of_a_mount_is_fixed_and_its_size_is_not() {
    let world = world().await;
    let id = world.running("a").await;
    let path = format!("/v2/pods/{id}");
    for mounts in [
        json!({"network": []}),
        json!({"network": [{"volumeId": "v", "path": "/a"}]}),
    ] {
        let refused = world.patch(&path, json!({ "mounts": mounts })).await;
        assert_eq!(refused.status, 400, "{}", refused.body);
    }
    let mut bare = order("b");
    bare.as_object_mut().unwrap().remove("mounts");
    let bare = world.made("/v2/pods", bare).await;
    let larger = json!({"mounts": {"persistent": {"size": 50, "path": "/workspace"}}});
    let refused = world.patch(&format!("/v2/pods/{bare}"), larger.clone()).await;
    assert_eq!(refused.status, 400);
    world.delete(&format!("/v2/pods/{bare}")).await;
    // A stopped pod costs its disks as they are.
    world
        .post(&format!("{path}/action"), json!({"action": "stop"}))
        .await;
    assert_eq!(world.patch(&path, larger).await.status, 200);
    let hourly = world.sim().meter(|meter| meter.hourly("acme"));
    assert_eq!(hourly, Decimal::new(3, 2), "100 GB");
    world.all_as_described();
}

#[tokio::test]
async fn a_locked_pod_is_not_stopped_and_can_be_deleted() {
    let world = world().await;
    let id = world.running("a").await;
    let path = format!("/v2/pods/{id}");
    let locked = world.patch(&path, json!({"locked": true})).await;
    assert_eq!(locked.json()["locked"], true);
    let stop = json!({"action": "stop"});
    let refused = world.post(&format!("{path}/action"), stop.clone()).await;
    assert_eq!(refused.status, 409);
    let query = format!("mutation {{ podStop(input: {{ podId: \"{id}\" }}) {{ id }} }}");
    assert!(world.graphql(&query, json!({})).await.json()["errors"].is_array());
    world.patch(&path, json!({"locked": false})).await;
    let stopped = world.post(&format!("{path}/action"), stop).await;
    assert_eq!(stopped.status, 200);
    world.patch(&path, json!({"locked": true})).await;
    assert_eq!(world.delete(&path).await.status, 204);
    world.all_as_described();
}

#[tokio::test]
async fn global_networking_comes_where_there_is_some() {
    let world = world().await;
    let mut order = order("a");
    order["dataCenterIds"] = json!(["CA-MTL-1"]);
    let without = world.made("/v2/pods", order.clone()).await;
    order["dataCenterIds"] = json!(["EU-RO-1"]);
    let with = world.made("/v2/pods", order).await;
    let networked = json!({"globalNetworking": true});
    let refused = world
        .patch(&format!("/v2/pods/{without}"), networked.clone())
        .await;
    assert_eq!(refused.status, 400);
    let changed = world.patch(&format!("/v2/pods/{with}"), networked).await;
    assert_eq!(changed.json()["globalNetworking"]["enabled"], true);
    world.all_as_described();
}

#[tokio::test]
async fn what_boots_again_is_what_was_patched() {
    let world = world().await;
    let id = world.running("a").await;
    let path = format!("/v2/pods/{id}");
    world
        .patch(&path, json!({"image": "nvidia/cuda:12", "args": "sleep 1"}))
        .await;
    let boot = world.sim().world(|world| world.machines[&id].boot.clone());
    assert_eq!(boot.image, "nvidia/cuda:12");
    assert!(boot.env["RUNPOD_API_KEY"].starts_with("rpa_"));
    world.all_as_described();
}

#[tokio::test]
async fn what_is_left_out_says_so_and_is_a_violation_all_the_same() {
    let world = world().await;
    let endpoint = json!({"name": "e", "image": "runpod/worker:1", "gpu": {"pools": ["ADA_24"]}});
    let answers = [
        world.get("/v2/serverless").await,
        world.post("/v2/serverless", endpoint).await,
        world.get("/v2/billing/serverless").await,
        world.get("/v2/registries/delegations").await,
        world.get("/v2/pods/some/logs").await,
        world
            .graphql(
                "mutation { saveEndpoint(input: { name: \"e\" }) { id } }",
                json!({}),
            )
            .await,
        world
            .graphql("query { myself { endpoints { id } } }", json!({}))
            .await,
    ];
    for answer in &answers {
        assert_eq!(answer.status, 501, "{}", answer.body);
        assert!(answer.body.contains("leaves that out"), "{}", answer.body);
    }
    assert_eq!(world.sim().violations().len(), answers.len());
    assert_eq!(world.sim().mistakes().len(), 0);
    // What RunPod does not have either is another matter.
    let unknown = world.client.call(Method::GET, "/v2/nothing").await.unwrap();
    assert_eq!(unknown.status, 404);
    let field = format!("query {{ gpuTypes(input: {{ id: \"{GPU}\" }}) {{ nothing }} }}");
    assert_eq!(world.graphql(&field, json!({})).await.status, 400);
}
