//! What dstack, gpuhunt, SkyPilot and RunPod's command line tool ask by GraphQL, in their words.

use http::Method;
use serde_json::{Value, json};

use super::{GPU, world};
use crate::core::client::Client;

const H100: &str = "NVIDIA H100 80GB HBM3";

#[tokio::test]
async fn prices_of_cpus_are_asked_without_a_key_by_data_center() {
    let world = world().await;
    let stranger = Client::new(world.simulator.url("runpod"));
    let query = "query CpuFlavors($dataCenterId: String!) { cpuFlavors { id displayName groupId minVcpu maxVcpu \
        ramMultiplier diskLimitPerVcpu specifics(input: { dataCenterId: $dataCenterId }) { stockStatus securePrice } } }";
    let body = json!({"query": query, "variables": {"dataCenterId": "EU-RO-1"}});
    let reply = stranger.json(Method::POST, "/graphql", body).await.unwrap();
    assert_eq!(reply.status, 200, "{}", reply.body);
    let flavor = reply.json()["data"]["cpuFlavors"][0].clone();
    assert_eq!(
        (&flavor["id"], &flavor["minVcpu"], &flavor["ramMultiplier"]),
        (&json!("cpu3c"), &json!(2), &json!(2))
    );
    // The price is that of the smallest.
    assert_eq!(
        flavor["specifics"],
        json!({"stockStatus": "High", "securePrice": 0.06})
    );
    let one = "query SecureCpuTypes { cpuFlavors(input: {id: \"cpu5c\"}) { id groupId displayName \
        specifics(input: {instanceId: \"cpu5c-4-8\", dataCenterId: \"US-TX-3\"}) { stockStatus securePrice slsPrice } } }";
    let found = world.asked(one).await["cpuFlavors"].clone();
    assert_eq!(found.as_array().unwrap().len(), 1);
    assert_eq!(found[0]["specifics"]["securePrice"], json!(0.14));
    world.all_as_described();
}

#[tokio::test]
async fn a_cpu_pod_is_ordered_with_its_highest_price_or_a_template() {
    let world = world().await;
    let order = |more: &str| {
        format!(
            "mutation {{ deployCpuPod(input: {{ name: \"c\", imageName: \"python:3.11-slim\", \
             instanceId: \"cpu3c-2-4\", cloudType: SECURE, containerDiskInGb: 5, ports: \"22/tcp\", {more} }}) \
             {{ id lastStatusChange imageName templateId machine {{ podHostId }} }} }}"
        )
    };
    world.asked(&order("deployCost: 0.06, startSsh: true")).await;
    let pod = world.asked(&order("templateId: \"runpod-ubuntu\"")).await["deployCpuPod"].clone();
    assert_eq!(
        (&pod["imageName"], &pod["templateId"]),
        (&json!("python:3.11-slim"), &json!("runpod-ubuntu"))
    );
    let refused = world.graphql(&order("startSsh: true"), json!({})).await.json();
    assert_eq!(refused["errors"][0]["message"], "deployCost is required");
    let unknown = order("templateId: \"none\", deployCost: 1");
    let refused = world.graphql(&unknown, json!({})).await.json();
    assert_eq!(refused["errors"][0]["message"], "Template not found");
    world.all_as_described();
}

#[tokio::test]
async fn dstack_makes_and_deletes_volumes_and_knows_when_one_is_gone() {
    let world = world().await;
    let create = "mutation { createNetworkVolume( input: { name: \"v\", size: 100, dataCenterId: \"EU-RO-1\" } ) { id } }";
    let id = world.asked(create).await["createNetworkVolume"]["id"].clone();
    let id = id.as_str().unwrap();
    let list = "query getMyVolumes { myself { networkVolumes { id, name, size, dataCenter { id name } } } }";
    assert_eq!(
        world.asked(list).await["myself"]["networkVolumes"],
        json!([{"id": id, "name": "v", "size": 100, "dataCenter": {"id": "EU-RO-1", "name": "Romania 1"}}])
    );
    let order = format!(
        "mutation {{ podFindAndDeployOnDemand( input: {{ name: \"p\", imageName: \"dstackai/base:1\", \
         gpuTypeId: \"{GPU}\", cloudType: SECURE, minCudaVersion: \"12.8\", startSsh: true, supportPublicIp: true, \
         gpuCount: 1, volumeInGb: 0, networkVolumeId: \"{id}\", volumeMountPath: \"/data\" }} ) {{ id }} }}"
    );
    let pod = world.asked(&order).await["podFindAndDeployOnDemand"]["id"].clone();
    let used =
        "query Pods { myself { pods { id name networkVolumeId volumeMountPath machine { dataCenterId } } } }";
    let listed = world.asked(used).await["myself"]["pods"][0].clone();
    assert_eq!(
        (&listed["networkVolumeId"], &listed["volumeMountPath"]),
        (&json!(id), &json!("/data"))
    );
    assert_eq!(listed["machine"]["dataCenterId"], "EU-RO-1");
    let delete = format!("mutation {{ deleteNetworkVolume( input: {{ id: \"{id}\" }} ) }}");
    assert!(world.graphql(&delete, json!({})).await.json()["errors"].is_array());
    let terminate = format!(
        "mutation {{ podTerminate(input: {{ podId: \"{}\" }}) }}",
        pod.as_str().unwrap()
    );
    world.asked(&terminate).await;
    world.asked(&delete).await;
    let gone = world.graphql(&delete, json!({})).await.json();
    assert_eq!(
        gone["errors"][0]["message"],
        "Tried to delete nonexistent network volume"
    );
    let gone = world.graphql(&terminate, json!({})).await.json();
    assert_eq!(gone["errors"][0]["message"], "pod not found to terminate");
    let missing = "query pod { pod(input: {podId: \"none\"}) { id runtime { ports { ip } } } }";
    assert_eq!(world.asked(missing).await, json!({"pod": null}));
    world.all_as_described();
}

#[tokio::test]
async fn dstack_gives_its_credentials_to_the_members_of_a_cluster() {
    let world = world().await;
    let who = "query myself { myself { id authId email } }";
    assert_eq!(world.asked(who).await["myself"]["id"], "acme");
    let save =
        "mutation { saveRegistryAuth( input: { name: \"c1\", username: \"u\", password: \"p\" } ) { id } }";
    let auth = world.asked(save).await["saveRegistryAuth"]["id"].clone();
    let auth = auth.as_str().unwrap();
    let order = |cost: &str| {
        format!(
            "mutation {{ createCluster( input: {{ clusterName: \"c\", gpuTypeId: \"{H100}\", podCount: 2, \
             imageName: \"dstackai/base:1\", type: TRAINING, gpuCountPerPod: 8, {cost} dataCenterId: \"US-TX-3\", \
             containerDiskInGb: 100, dockerArgs: \"sleep 1\", ports: \"10022/tcp\" }} ) \
             {{ id name pods {{ id clusterIp clusterIdx lastStatusChange imageName machine {{ podHostId }} }} }} }}"
        )
    };
    for dear in ["", "deployCost: 47.83,"] {
        let refused = world.graphql(&order(dear), json!({})).await.json();
        assert!(
            refused["errors"][0]["message"]
                .as_str()
                .unwrap()
                .contains("no longer any instances"),
            "{refused}"
        );
    }
    let cluster = world.asked(&order("deployCost: 47.84,")).await["createCluster"].clone();
    assert_eq!(cluster["pods"][1]["clusterIp"], "10.65.0.3");
    for pod in cluster["pods"].as_array().unwrap() {
        let pod = pod["id"].as_str().unwrap();
        let edit = format!(
            "mutation {{ podEditJob(input: {{ podId: \"{pod}\" containerRegistryAuthId: \"{auth}\" }}) {{ id }} }}"
        );
        assert_eq!(world.asked(&edit).await["podEditJob"]["id"], pod);
        assert_eq!(world.pod(pod).await["registry"], auth);
    }
    let forget = format!("mutation {{ deleteRegistryAuth( registryAuthId: \"{auth}\" ) }}");
    assert!(world.graphql(&forget, json!({})).await.json()["errors"].is_array());
    let id = cluster["id"].as_str().unwrap();
    let delete = format!("mutation {{ deleteCluster( input: {{ id: \"{id}\" }} ) }}");
    assert_eq!(world.asked(&delete).await["deleteCluster"], true);
    let gone = world.graphql(&delete, json!({})).await.json();
    assert_eq!(gone["errors"][0]["extensions"]["code"], "Cluster not found");
    assert_eq!(world.asked(&forget).await["deleteRegistryAuth"], Value::Null);
    let creds = "query myself { myself { containerRegistryCreds { id, name } } }";
    assert_eq!(
        world.asked(creds).await["myself"]["containerRegistryCreds"],
        json!([{"id": "reg-docker-hub", "name": "docker hub"}])
    );
    assert!(world.sim().meter(|meter| meter.billed_now().is_empty()));
    world.all_as_described();
}

#[tokio::test]
async fn runpodctl_finds_templates_of_runpod_of_others_and_by_id() {
    let world = world().await;
    let list = "query PodTemplates($input: PodTemplateInput) { podTemplates(input: $input) { id name imageName \
        isServerless isPublic isRunpod category containerDiskInGb volumeInGb volumeMountPath } }";
    let ids = async |official: bool| -> Vec<Value> {
        let reply = world
            .graphql(list, json!({"input": {"isRunpod": official}}))
            .await;
        let all = reply.json()["data"]["podTemplates"].clone();
        let all = all.as_array().unwrap().iter();
        all.map(|found| found["id"].clone()).collect()
    };
    assert_eq!(ids(true).await, ["30zmvf89kd", "runpod-ubuntu"]);
    assert_eq!(ids(false).await, ["c0ffeec0ff"]);
    let one = "query GetTemplate($id: String!) { podTemplate(id: $id) { id name imageName isServerless isPublic \
        isRunpod category ports portsConfig { port name } env { key value } containerDiskInGb \
        containerRegistryAuthId volumeInGb volumeMountPath readme } }";
    let found = world.graphql(one, json!({"id": "runpod-ubuntu"})).await.json();
    assert_eq!(found["data"]["podTemplate"]["ports"], "8888/http,22/tcp");
    let none = world.graphql(one, json!({"id": "none"})).await.json();
    assert_eq!(none["data"], json!({"podTemplate": null}));
    world.all_as_described();
    let without = world.graphql("{ podTemplate { id } }", json!({})).await;
    assert_eq!(without.status, 400, "{}", without.body);
}

#[tokio::test]
async fn a_template_is_changed_under_its_id_and_its_registry_credential_too() {
    let world = world().await;
    let save = |more: &str| {
        format!(
            "mutation {{ saveTemplate(input: {{ {more} containerDiskInGb: 10, imageName: \"ubuntu:latest\", \
             name: \"My GPU Template\", volumeInGb: 20 }}) {{ id readme volumeInGb volumeMountPath dockerArgs }} }}"
        )
    };
    let first = world.asked(&save("dockerArgs: \"sleep 1\",")).await["saveTemplate"].clone();
    let again = world.graphql(&save(""), json!({})).await.json();
    assert_eq!(again["errors"][0]["message"], "Template name must be unique");
    let id = first["id"].as_str().unwrap();
    let changed = world
        .asked(&save(&format!("id: \"{id}\", readme: \"## new\",")))
        .await["saveTemplate"]
        .clone();
    assert_eq!(
        changed,
        json!({
            "id": id, "readme": "## new", "volumeInGb": 20, "volumeMountPath": "/workspace", "dockerArgs": "sleep 1",
        })
    );
    let update = "mutation UpdateRegistryAuth { updateRegistryAuth(input: {id: \"reg-docker-hub\", username: \"u\", \
        password: \"p\"}) { id name } }";
    assert_eq!(
        world.asked(update).await["updateRegistryAuth"]["name"],
        "docker hub"
    );
    let serverless = save("isServerless: true,").replace("My GPU", "Other");
    assert!(world.graphql(&serverless, json!({})).await.json()["errors"].is_array());
    world.all_as_described();
}
