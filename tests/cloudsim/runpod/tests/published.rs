//! What the Python package that RunPod publishes asks, in its words.

use http::Method;
use serde_json::{Value, json};

use super::{GPU, world};
use crate::core::client::Client;

const POD: &str = "id containerDiskInGb containerRegistryAuthId costPerHr desiredStatus dockerArgs dockerId env \
    gpuCount imageName lastStatusChange machineId memoryInGb name podType port ports uptimeSeconds vcpuCount \
    volumeInGb volumeMountPath runtime { ports { ip isIpPublic privatePort publicPort type } } \
    machine { gpuDisplayName }";

#[tokio::test]
async fn a_gpu_is_described_with_its_prices_in_both_clouds() {
    let world = world().await;
    let query = format!(
        "query GpuTypes {{ gpuTypes(input: {{id: \"{GPU}\"}}) {{ maxGpuCount id displayName manufacturer memoryInGb \
         cudaCores secureCloud communityCloud securePrice communityPrice oneMonthPrice threeMonthPrice oneWeekPrice \
         communitySpotPrice secureSpotPrice \
         lowestPrice(input: {{gpuCount: 1}}) {{ minimumBidPrice uninterruptablePrice }} }} }}"
    );
    let gpu = world.asked(&query).await["gpuTypes"][0].clone();
    assert_eq!(
        (&gpu["securePrice"], &gpu["communityPrice"], &gpu["manufacturer"]),
        (&json!(0.69), &json!(0.34), &json!("Nvidia"))
    );
    assert_eq!(
        (&gpu["secureSpotPrice"], &gpu["communitySpotPrice"]),
        (&json!(0.35), &json!(0.2))
    );
    assert_eq!(gpu["oneMonthPrice"], Value::Null);
    world.all_as_described();
}

#[tokio::test]
async fn a_pod_on_demand_is_stopped_and_resumed() {
    let world = world().await;
    let deploy = format!(
        "mutation {{ podFindAndDeployOnDemand(input: {{ name: \"t\", imageName: \"runpod/stack\", cloudType: ALL, \
         startSsh: true, gpuTypeId: \"{GPU}\", supportPublicIp: true, gpuCount: 1, volumeInGb: 20, minVcpuCount: 1, \
         minMemoryInGb: 1, dataCenterId: null, dockerArgs: \"\", containerDiskInGb: 10, ports: \"22/tcp,8888/http\", \
         volumeMountPath: \"/runpod-volume\" }}) {{ id imageName env machineId machine {{ podHostId }} }} }}"
    );
    let made = world.asked(&deploy).await["podFindAndDeployOnDemand"]["id"].clone();
    let id = made.as_str().unwrap();
    world.simulator.advance(23);
    let list = format!("query myPods {{ myself {{ networkVolumes {{ id }} pods {{ {POD} }} }} }}");
    let listed = world.asked(&list).await["myself"].clone();
    assert_eq!(listed["networkVolumes"], json!([]));
    let pod = &listed["pods"][0];
    assert_eq!(
        (
            &pod["containerDiskInGb"],
            &pod["volumeInGb"],
            &pod["volumeMountPath"]
        ),
        (&json!(10), &json!(20), &json!("/runpod-volume"))
    );
    assert_eq!(
        (&pod["ports"], &pod["podType"]),
        (&json!("22/tcp,8888/http"), &json!("RESERVED"))
    );
    let stop = format!("mutation {{ podStop(input: {{ podId: \"{id}\" }}) {{ id desiredStatus }} }}");
    assert_eq!(
        world.asked(&stop).await["podStop"],
        json!({"id": id, "desiredStatus": "EXITED"})
    );
    assert_eq!(world.pod(id).await["status"], "EXITED");
    let resume = format!(
        "mutation {{ podResume(input: {{ podId: \"{id}\", gpuCount: 1 }}) {{ id desiredStatus imageName }} }}"
    );
    assert_eq!(
        world.asked(&resume).await["podResume"]["desiredStatus"],
        "RUNNING"
    );
    let again = world.graphql(&resume, json!({})).await.json();
    assert_eq!(again["errors"][0]["message"], "Pod is not stopped");
    world.all_as_described();
}

#[tokio::test]
async fn a_spot_pod_is_resumed_by_a_bid_alone() {
    let world = world().await;
    let id = world.spot(0.4).await;
    let stop = format!("mutation {{ podStop(input: {{ podId: \"{id}\" }}) {{ id }} }}");
    world.asked(&stop).await;
    let resume = format!("mutation {{ podResume(input: {{ podId: \"{id}\", gpuCount: 1 }}) {{ id }} }}");
    let refused = world.graphql(&resume, json!({})).await.json();
    assert!(refused["errors"][0]["message"].is_string());
    assert_eq!(world.pod(&id).await["status"], "EXITED");
    world.all_as_described();
}

#[tokio::test]
async fn the_command_line_tool_of_runpod_sees_account_data_centers_and_machines() {
    let world = world().await;
    world.running("a").await;
    let account = "query { myself { id email clientBalance currentSpendPerHr spendLimit notifyPodsStale \
        notifyPodsGeneral notifyLowBalance pods { id machine { gpuDisplayName location } } } }";
    let myself = world.asked(account).await["myself"].clone();
    assert_eq!(myself["currentSpendPerHr"], json!(0.69));
    assert!(myself["pods"][0]["machine"]["location"].is_string(), "{myself}");
    let centers =
        "query { dataCenters { id name location gpuAvailability { gpuTypeId displayName stockStatus } } }";
    let centers = world.asked(centers).await["dataCenters"].clone();
    assert!(
        centers.as_array().is_some_and(|centers| centers.len() == 4),
        "{centers}"
    );
    let gpu = &centers[0]["gpuAvailability"][0];
    assert!(
        gpu["gpuTypeId"].is_string() && gpu["stockStatus"].is_string(),
        "{gpu}"
    );
    world.all_as_described();
}

#[tokio::test]
async fn lists_of_prices_are_made_without_a_key() {
    let world = world().await;
    let stranger = Client::new(world.simulator.url("runpod"));
    // What gpuhunt sends, with a variable that it does not declare.
    let centers = "query GpuTypes { countryCodes dataCenters { id name listed __typename } \
        gpuTypes { maxGpuCountCommunityCloud maxGpuCountSecureCloud minPodGpuCount id } }";
    let prices = "query GpuTypes($lowestPriceInput: GpuLowestPriceInput, $gpuTypesInput: GpuTypeFilter) { \
        gpuTypes(input: $gpuTypesInput) { id nodeGroupDatacenters { id } clusterPrice sixMonthPrice \
        lowestPrice(input: $lowestPriceInput) { uninterruptablePrice stockStatus compliance countryCode } } }";
    let asked = async |query: &str, variables: Value| {
        let body = json!({"query": query, "variables": variables});
        let reply = stranger.json(Method::POST, "/graphql", body).await.unwrap();
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply.json()["data"].clone()
    };
    let data = asked(centers, json!({})).await;
    assert_eq!(data["countryCodes"], json!(["CA", "RO", "US"]));
    assert_eq!(data["dataCenters"][0]["listed"], true);
    let stock = async |secure: bool, country: &str| {
        let input = json!({"secureCloud": secure, "countryCode": country, "gpuCount": 1, "minDisk": null});
        let variables = json!({"lowestPriceInput": input, "GpuTypeFilter": {"cluster": false}});
        let data = asked(prices, variables).await;
        let types = data["gpuTypes"].as_array().unwrap().clone();
        let found = types.into_iter().find(|found| found["id"] == GPU).unwrap();
        found["lowestPrice"]["stockStatus"].clone()
    };
    assert_eq!(stock(false, "US").await, "High");
    assert_eq!(stock(false, "RO").await, Value::Null);
    assert_eq!(stock(true, "RO").await, "High");
    world.all_as_described();
    for query in ["{ myself { id } }", "{ countryCodes myself { id } }"] {
        let body = json!({"query": query});
        let refused = stranger.json(Method::POST, "/graphql", body).await.unwrap();
        assert_eq!(refused.status, 401, "{}", refused.body);
    }
}

#[tokio::test]
async fn an_account_has_no_templates_which_skypilot_looks_for_when_it_ends_a_cluster() {
    let world = world().await;
    let query = "query myself { myself { podTemplates { name containerRegistryAuthId } } }";
    assert_eq!(world.asked(query).await["myself"], json!({"podTemplates": []}));
    world.all_as_described();
}
