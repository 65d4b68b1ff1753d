//! Templates and registry credentials, and the pods that refer to them.

use serde_json::{Value, json};

use super::{GPU, order, world};

fn template(name: &str) -> Value {
    json!({
        "name": name, "image": "runpod/base:1", "disk": 30, "ports": ["22/tcp"], "env": {"A": "1", "B": "2"},
        "registry": "reg-docker-hub", "mounts": {"persistent": {"size": 15, "path": "/data"}},
        "allowedCudaVersions": ["12.8"],
    })
}

#[tokio::test]
async fn a_template_gives_what_an_order_leaves_out_and_variables_one_by_one() {
    let world = world().await;
    let id = world.made("/v2/templates", template("t")).await;
    let order = json!({"name": "a", "gpu": {"id": GPU}, "templateId": id, "disk": 40, "env": {"B": "3"}});
    let created = world.post("/v2/pods", order).await;
    assert_eq!(created.status, 201, "{}", created.body);
    let pod = created.json();
    assert_eq!(
        (&pod["image"], &pod["disk"], &pod["registry"]),
        (&json!("runpod/base:1"), &json!(40), &json!("reg-docker-hub"))
    );
    assert_eq!(pod["env"], json!({"A": "1", "B": "3"}));
    assert_eq!(
        pod["mounts"],
        json!({"persistent": {"size": 15, "path": "/data"}})
    );
    // The settings are taken once, and no reference is kept.
    let path = format!("/v2/templates/{id}");
    let patched = world.patch(&path, json!({"disk": 99})).await.json();
    assert_eq!(
        (&patched["disk"], &patched["ports"]),
        (&json!(99), &json!(["22/tcp"]))
    );
    let pod = world.pod(pod["id"].as_str().unwrap()).await;
    assert_eq!((&pod["disk"], &pod["template"]), (&json!(40), &Value::Null));
    assert_eq!(world.delete(&path).await.status, 204);
    assert_eq!(world.delete(&path).await.status, 404);
    world.all_as_described();
}

#[tokio::test]
async fn a_cpu_pod_takes_no_disk_from_its_template() {
    let world = world().await;
    let id = world.made("/v2/templates", template("t")).await;
    let order = json!({"name": "a", "cpu": {"id": "cpu3c", "vcpuCount": 4}, "templateId": id});
    let pod = world.post("/v2/pods", order.clone()).await;
    assert_eq!(pod.status, 201, "{}", pod.body);
    assert_eq!(pod.json()["mounts"], json!({}));
    let mut with_disk = order;
    with_disk["mounts"] = json!({"persistent": {"size": 20, "path": "/data"}});
    assert_eq!(world.post("/v2/pods", with_disk).await.status, 400);
    world.all_as_described();
}

#[tokio::test]
async fn a_template_that_is_unknown_is_404_and_a_serverless_one_422() {
    let world = world().await;
    let order = |id: &str| json!({"name": "a", "gpu": {"id": GPU}, "templateId": id});
    assert_eq!(world.post("/v2/pods", order("none")).await.status, 404);
    let mut serverless = template("s");
    serverless["serverless"] = true.into();
    let id = world.made("/v2/templates", serverless).await;
    assert_eq!(world.post("/v2/pods", order(&id)).await.status, 422);
    assert_eq!(world.sim().world(|world| world.machines.len()), 0);
    world.all_as_described();
}

#[tokio::test]
async fn a_template_needs_a_name_of_its_own_and_a_credential_that_there_is() {
    let world = world().await;
    let id = world.made("/v2/templates", template("t")).await;
    assert_eq!(world.post("/v2/templates", template("t")).await.status, 400);
    let mut stranger = template("u");
    stranger["registry"] = "none".into();
    assert_eq!(world.post("/v2/templates", stranger).await.status, 400);
    let same = world
        .patch(&format!("/v2/templates/{id}"), json!({"name": "t"}))
        .await;
    assert_eq!(same.status, 200, "{}", same.body);
    let listed = world.get("/v2/templates").await.json();
    assert_eq!(listed["templates"].as_array().unwrap().len(), 1);
    world.all_as_described();
}

#[tokio::test]
async fn a_template_stays_while_a_pod_refers_to_it() {
    let world = world().await;
    let save = "mutation { saveTemplate(input: { name: \"t\", imageName: \"runpod/base:1\", dockerArgs: \"\", \
        containerDiskInGb: 10, volumeInGb: 0, ports: \"22/tcp\", env: [{ key: \"A\", value: \"1\" }] }) \
        { id name ports env { key value } isServerless } }";
    let saved = world.asked(save).await["saveTemplate"].clone();
    assert_eq!(saved["env"], json!([{"key": "A", "value": "1"}]));
    let id = saved["id"].as_str().unwrap();
    let order = format!(
        "mutation {{ podFindAndDeployOnDemand(input: {{ name: \"a\", gpuTypeId: \"{GPU}\", cloudType: SECURE, \
         templateId: \"{id}\" }}) {{ id imageName templateId env }} }}"
    );
    let pod = world.asked(&order).await["podFindAndDeployOnDemand"].clone();
    assert_eq!(
        (&pod["imageName"], &pod["env"]),
        (&json!("runpod/base:1"), &json!(["A=1"]))
    );
    let pod = pod["id"].as_str().unwrap();
    assert_eq!(world.pod(pod).await["template"], id);
    let path = format!("/v2/templates/{id}");
    assert_eq!(world.delete(&path).await.status, 400);
    let delete = "mutation { deleteTemplate(templateName: \"t\") }";
    let refused = world.graphql(delete, json!({})).await.json();
    assert!(refused["errors"][0]["message"].is_string(), "{refused}");
    world.delete(&format!("/v2/pods/{pod}")).await;
    assert_eq!(world.asked(delete).await, json!({"deleteTemplate": null}));
    assert_eq!(world.get(&path).await.status, 404);
    assert!(world.sim().meter(|meter| meter.leftovers("acme").is_empty()));
    world.all_as_described();
}

#[tokio::test]
async fn templates_of_others_can_be_read_and_not_changed() {
    let world = world().await;
    let ids = async |source: &str| -> Vec<String> {
        let path = format!("/v2/catalog/templates{source}");
        let all = world.get(&path).await.json()["templates"].clone();
        let all = all.as_array().unwrap().iter();
        all.map(|found| found["id"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(ids("").await, ["30zmvf89kd", "runpod-ubuntu"]);
    assert_eq!(ids("?source=community").await, ["c0ffeec0ff"]);
    assert_eq!(ids("?source=verified").await, Vec::<String>::new());
    let path = "/v2/templates/30zmvf89kd";
    assert_eq!(world.get(path).await.json()["public"], true);
    assert_eq!(world.patch(path, json!({"disk": 1})).await.status, 404);
    assert_eq!(world.delete(path).await.status, 404);
    assert_eq!(world.get("/v2/templates").await.json(), json!({"templates": []}));
    world.all_as_described();
}

#[tokio::test]
async fn a_credential_is_never_shown_and_stays_while_a_pod_pulls_with_it() {
    let world = world().await;
    let given = json!({"name": "mine", "username": "u", "password": "secret"});
    let stored = world.post("/v2/registries", given.clone()).await;
    assert_eq!(stored.status, 201, "{}", stored.body);
    let id = stored.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(stored.json(), json!({"id": id, "name": "mine"}));
    assert_eq!(world.post("/v2/registries", given).await.status, 400);
    let listed = world.get("/v2/registries").await.json();
    assert_eq!(
        listed["registries"],
        json!([{"id": "reg-docker-hub", "name": "docker hub"}, {"id": id, "name": "mine"}])
    );
    let mut order = order("a");
    order["registry"] = id.clone().into();
    let pod = world.made("/v2/pods", order).await;
    let mut template = template("t");
    template["registry"] = id.clone().into();
    let template = world.made("/v2/templates", template).await;
    let path = format!("/v2/registries/{id}");
    assert_eq!(world.delete(&path).await.status, 400);
    world.delete(&format!("/v2/pods/{pod}")).await;
    assert_eq!(world.delete(&path).await.status, 204);
    assert_eq!(world.get(&path).await.status, 404);
    let template = world.get(&format!("/v2/templates/{template}")).await.json();
    assert_eq!(template["registry"], Value::Null);
    world.all_as_described();
}
