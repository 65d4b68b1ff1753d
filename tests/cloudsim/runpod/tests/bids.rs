//! Spot pods by GraphQL.

use serde_json::{Value, json};

use rust_decimal::Decimal;

use super::{GPU, RENT, bid, world};
use crate::{Fault, Rule};

#[tokio::test]
async fn a_spot_pod_costs_its_bid_and_is_wanted_running_before_it_runs() {
    let world = world().await;
    let reply = world.graphql(RENT, json!({"input": bid(0.4)})).await;
    assert_eq!(reply.status, 200);
    let pod = &reply.json()["data"]["podRentInterruptable"];
    assert_eq!(
        (&pod["desiredStatus"], &pod["costPerHr"]),
        (&json!("RUNNING"), &json!(0.8))
    );
    let id = pod["id"].as_str().unwrap().to_owned();
    let query = "query { myself { pods { id desiredStatus runtime { ports { ip privatePort publicPort type isIpPublic } } } } }";
    let runtime =
        async || world.graphql(query, json!({})).await.json()["data"]["myself"]["pods"][0]["runtime"].clone();
    assert_eq!(runtime().await, Value::Null);
    world.simulator.advance(23);
    assert_eq!(runtime().await["ports"][0]["privatePort"], 22);
    assert_eq!(
        world.pod(&id).await["ssh"]["direct"]["port"],
        runtime().await["ports"][0]["publicPort"]
    );
    world.all_as_described();
}

#[tokio::test]
async fn an_out_bid_pod_exits_and_its_disks_stay_on_the_bill_until_it_is_deleted() {
    let world = world().await;
    let id = world.spot(0.4).await;
    let higher = world.spot(0.6).await;
    world
        .sim()
        .control("market", &json!({"gpu": GPU, "bid": "0.5"}))
        .unwrap()
        .unwrap();
    assert_eq!(world.pod(&id).await["status"], "EXITED");
    assert_eq!(world.pod(&higher).await["status"], "RUNNING");
    assert_eq!(world.sim().meter(|meter| meter.billed_now().len()), 2);
    world.delete(&format!("/v2/pods/{id}")).await;
    assert_eq!(world.sim().meter(|meter| meter.billed_now().len()), 1);
    world.all_as_described();
}

#[tokio::test]
async fn a_floor_that_moves_in_one_cloud_leaves_the_other_alone() {
    let world = world().await;
    let secure = world.spot(0.4).await;
    let community = json!({"gpu": GPU, "bid": "9", "cloud": "COMMUNITY"});
    let moved = world.sim().control("market", &community).unwrap().unwrap();
    assert_eq!(moved, json!({"outBid": []}));
    assert_eq!(world.pod(&secure).await["status"], "RUNNING");
    let mut order = bid(0.4);
    order["cloudType"] = "COMMUNITY".into();
    let refused = world.graphql(RENT, json!({"input": order})).await;
    assert!(refused.json()["errors"].is_array());
    world.all_as_described();
}

#[tokio::test]
async fn an_exited_pod_is_resumed_by_a_bid_that_reaches_the_floor() {
    let world = world().await;
    let id = world.spot(0.4).await;
    world
        .sim()
        .control("market", &json!({"gpu": GPU, "bid": "0.5"}))
        .unwrap()
        .unwrap();
    let resume = "mutation($input: PodBidResumeInput!) { podBidResume(input: $input) { id costPerHr } }";
    let low = world
        .graphql(
            resume,
            json!({"input": {"podId": id, "bidPerGpu": 0.45, "gpuCount": 2}}),
        )
        .await;
    assert!(low.json()["errors"].is_array());
    let enough = world
        .graphql(
            resume,
            json!({"input": {"podId": id, "bidPerGpu": 0.55, "gpuCount": 2}}),
        )
        .await;
    assert_eq!(enough.json()["data"]["podBidResume"]["costPerHr"], json!(1.1));
    world.simulator.advance(20);
    assert_eq!(world.pod(&id).await["status"], "RUNNING");
    assert_eq!(
        world.sim().meter(|meter| meter.hourly("acme")),
        Decimal::new(11, 1)
    );
    world.all_as_described();
}

#[tokio::test]
async fn no_capacity_is_a_200_with_errors_with_or_without_a_code() {
    let world = world().await;
    let mut codes = 0;
    for _ in 0..20 {
        let reply = world.graphql(RENT, json!({"input": bid(0.01)})).await;
        assert_eq!(reply.status, 200);
        let error = reply.json()["errors"][0].clone();
        assert!(
            error["message"]
                .as_str()
                .unwrap()
                .contains("There are no longer any instances available")
        );
        codes += usize::from(error["extensions"]["code"] == "SUPPLY_CONSTRAINT");
    }
    assert!(codes > 0 && codes < 20, "{codes}");
    world.sim().fault(Rule::once("create", Fault::NoCapacity));
    let reply = world.graphql(RENT, json!({"input": bid(0.4)})).await;
    assert_eq!(
        reply.json()["errors"][0]["extensions"]["code"],
        "SUPPLY_CONSTRAINT"
    );
    world.all_as_described();
}

#[tokio::test]
async fn on_demand_by_graphql_takes_its_input_nullable_or_not() {
    let world = world().await;
    let mut input = bid(0.4);
    input.as_object_mut().unwrap().remove("bidPerGpu");
    for bang in ["", "!"] {
        let query = format!(
            "mutation M($input: PodFindAndDeployOnDemandInput{bang}) {{ podFindAndDeployOnDemand(input: $input) {{ id costPerHr }} }}"
        );
        let reply = world.graphql(&query, json!({"input": input.clone()})).await;
        assert_eq!(
            reply.json()["data"]["podFindAndDeployOnDemand"]["costPerHr"],
            json!(1.38),
            "{}",
            reply.body
        );
    }
    world.all_as_described();
}

#[tokio::test]
async fn what_the_schema_does_not_have_is_a_400_and_a_violation() {
    let world = world().await;
    let cases = [
        ("query { gpuTypes { id spotPrice } }", json!({}), "spotPrice"),
        (
            "query { gpuTypes(filter: {id: \"x\"}) { id } }",
            json!({}),
            "filter",
        ),
        ("query { gpuTypes { id lowestPrice } }", json!({}), "lowestPrice"),
        ("query { gpuTypes { id { x } } }", json!({}), "id"),
        ("query { gpuTypes { id ", json!({}), "parsed"),
        ("mutation { podTerminate(input: {}) }", json!({}), "podId"),
        ("mutation { podTerminate(input: {podId: 3}) }", json!({}), "podId"),
        (
            "mutation($i: String!) { podRentInterruptable(input: $i) { id } }",
            json!({"i": "x"}),
            "PodRentInterruptableInput",
        ),
        (RENT, json!({"input": {"gpuCount": 1.5}}), "gpuCount"),
        (RENT, json!({"input": {"bid": 1}}), "bid"),
        (RENT, json!({"input": {"ports": ["22/tcp"]}}), "ports"),
        (RENT, json!({"input": {"cloudType": "secure"}}), "cloudType"),
        (RENT, json!({}), "input"),
        (
            "mutation { podRentInterruptable(input: {cloudType: \"SECURE\"}) { id } }",
            json!({}),
            "cloudType",
        ),
    ];
    for (query, variables, word) in cases {
        world.sim().forget();
        let reply = world.graphql(query, variables).await;
        assert_eq!(reply.status, 400, "{query}: {}", reply.body);
        let violations = world.sim().violations();
        assert!(
            violations.iter().any(|found| found.what.contains(word)),
            "{query}: {violations:?}"
        );
    }
    assert_eq!(world.sim().world(|world| world.machines.len()), 0);
    let key_in_address = world
        .post(
            "/graphql?api_key=rpa_key",
            json!({"query": "query { myself { id } }"}),
        )
        .await;
    assert_eq!(key_in_address.status, 400);
    assert!(
        world
            .sim()
            .requests()
            .iter()
            .all(|entry| !entry.path.contains("rpa_key"))
    );
}

#[tokio::test]
async fn a_dead_mans_switch_at_the_server_ends_the_pod() {
    let world = world().await;
    let mut input = bid(0.4);
    input["terminateAfter"] = "2026-11-21T01:00:00Z".into();
    let id = world.graphql(RENT, json!({"input": input})).await.json()["data"]["podRentInterruptable"]["id"]
        .clone();
    world.simulator.advance(3_599);
    assert_eq!(world.pod(id.as_str().unwrap()).await["status"], "RUNNING");
    world.simulator.advance(1);
    assert_eq!(
        world
            .get(&format!("/v2/pods/{}", id.as_str().unwrap()))
            .await
            .status,
        404
    );
    assert!(world.sim().meter(|meter| meter.billed_now().is_empty()));
}

#[tokio::test]
async fn terminating_twice_says_not_found() {
    let world = world().await;
    let id = world.spot(0.4).await;
    let query = "mutation($id: String!) { podTerminate(input: {podId: $id}) }";
    assert_eq!(
        world.graphql(query, json!({"id": id})).await.json()["data"],
        json!({"podTerminate": null})
    );
    assert!(world.graphql(query, json!({"id": id})).await.json()["errors"].is_array());
    world.all_as_described();
}
