//! Tests with hand-written requests, after the facts about the cloud.

use http::Method;
use serde_json::{Value, json};

use super::Lambda;
use crate::core::client::{Client, Reply};
use crate::core::rest::Rest;
use crate::{Account, Builder, Simulator};

async fn world() -> (Simulator, Client) {
    let simulator = Builder::manual().cloud(Rest::new(Lambda)).start().await.unwrap();
    simulator
        .cloud("lambda")
        .world(|world| world.add_account(Account::with_key("acme", "key")));
    let client = Client::new(simulator.url("lambda")).with("authorization", "Bearer key");
    (simulator, client)
}

/// Sends a request a while after the one before: there are limits.
async fn send(world: &(Simulator, Client), method: Method, path: &str, body: Option<Value>) -> Reply {
    world.0.advance(13);
    let path = format!("/api/v1/{path}");
    match body {
        Some(body) => world.1.json(method, &path, body).await.unwrap(),
        None => world.1.call(method, &path).await.unwrap(),
    }
}

fn order(key: &str) -> Value {
    json!({
        "region_name": "us-west-1", "instance_type_name": "gpu_1x_a10", "ssh_key_names": [key],
        "tags": [{"key": "pool", "value": "p"}],
    })
}

#[tokio::test]
async fn a_machine_is_launched_with_a_key_by_its_name_and_terminated_by_its_id() {
    let world = world().await;
    let refused = send(
        &world,
        Method::POST,
        "instance-operations/launch",
        Some(order("mine")),
    )
    .await;
    assert_eq!(
        (refused.status, code(&refused)),
        (400, "global/object-does-not-exist".into())
    );
    let key = json!({"name": "mine", "public_key": "ssh-ed25519 AAAA me"});
    let added = send(&world, Method::POST, "ssh-keys", Some(key.clone())).await;
    assert_eq!(added.status, 200, "{}", added.body);
    let again = send(&world, Method::POST, "ssh-keys", Some(key)).await;
    assert_eq!(
        (again.status, code(&again)),
        (400, "global/invalid-parameters".into())
    );

    let launched = send(
        &world,
        Method::POST,
        "instance-operations/launch",
        Some(order("mine")),
    )
    .await;
    assert_eq!(launched.status, 200, "{}", launched.body);
    let id = launched.json()["data"]["instance_ids"][0]
        .as_str()
        .unwrap()
        .to_owned();
    world.0.advance(60);
    let listed = send(&world, Method::GET, "instances", None).await.json();
    assert_eq!(listed["data"][0]["status"], "active");
    assert_eq!(listed["data"][0]["tags"], json!([{"key": "pool", "value": "p"}]));
    assert!(listed["data"][0]["ip"].is_string());

    let ids = json!({"instance_ids": [id]});
    let ended = send(
        &world,
        Method::POST,
        "instance-operations/terminate",
        Some(ids.clone()),
    )
    .await
    .json();
    assert_eq!(ended["data"]["terminated_instances"][0]["status"], "terminating");
    let listed = send(&world, Method::GET, "instances", None).await.json();
    assert_eq!(listed["data"], json!([]));
    let known = send(&world, Method::GET, &format!("instances/{id}"), None)
        .await
        .json();
    assert_eq!(known["data"]["status"], "terminated");
    let again = send(&world, Method::POST, "instance-operations/terminate", Some(ids)).await;
    assert_eq!(
        (again.status, code(&again)),
        (404, "global/object-does-not-exist".into())
    );
    let sim = world.0.cloud("lambda");
    assert_eq!(sim.complaints(), Vec::<String>::new());
    assert_eq!(sim.meter(|meter| meter.billed_now().len()), 0);
}

#[tokio::test]
async fn what_is_sold_out_is_refused_with_a_code_and_costs_nothing() {
    let world = world().await;
    let key = json!({"name": "mine", "public_key": "ssh-ed25519 AAAA me"});
    send(&world, Method::POST, "ssh-keys", Some(key)).await;
    let types = send(&world, Method::GET, "instance-types", None).await.json();
    let big = &types["data"]["gpu_8x_h100_sxm5"];
    assert_eq!(big["regions_with_capacity_available"], json!([]));
    assert_eq!(big["instance_type"]["price_cents_per_hour"], 2392);
    let mut order = order("mine");
    order["instance_type_name"] = "gpu_8x_h100_sxm5".into();
    let refused = send(&world, Method::POST, "instance-operations/launch", Some(order)).await;
    assert_eq!(
        (refused.status, code(&refused)),
        (400, "instance-operations/launch/insufficient-capacity".into())
    );
    assert_eq!(world.0.cloud("lambda").complaints(), Vec::<String>::new());
}

#[tokio::test]
async fn calls_keep_a_second_between_them_and_launches_twelve() {
    let world = world().await;
    let quick = |path: &'static str| world.1.get(path);
    world.0.advance(20);
    assert_eq!(quick("/api/v1/instances").await.unwrap().status, 200);
    assert_eq!(quick("/api/v1/instances").await.unwrap().status, 429);
    world.0.advance(1);
    assert_eq!(quick("/api/v1/instances").await.unwrap().status, 200);
    let launch = || {
        world
            .1
            .json(Method::POST, "/api/v1/instance-operations/launch", order("mine"))
    };
    world.0.advance(2);
    assert_eq!(launch().await.unwrap().status, 400);
    world.0.advance(5);
    assert_eq!(launch().await.unwrap().status, 429);
}

#[tokio::test]
async fn a_key_that_is_not_known_opens_nothing_and_a_field_that_is_not_described_is_a_violation() {
    let world = world().await;
    let stranger = Client::new(world.0.url("lambda")).with("authorization", "Bearer another");
    let refused = stranger.get("/api/v1/instances").await.unwrap();
    assert_eq!(
        (refused.status, code(&refused)),
        (401, "global/invalid-api-key".into())
    );
    let mut order = order("mine");
    order["quantity"] = 2.into();
    let refused = send(&world, Method::POST, "instance-operations/launch", Some(order)).await;
    assert_eq!(refused.status, 400);
    assert!(!world.0.cloud("lambda").violations().is_empty());
}

#[tokio::test]
async fn a_quantity_of_one_is_taken_and_so_is_a_body_without_its_type() {
    let world = world().await;
    let key = json!({"name": "mine", "public_key": "ssh-ed25519 AAAA me"});
    send(&world, Method::POST, "ssh-keys", Some(key)).await;
    let mut order = order("mine");
    order["quantity"] = 1.into();
    let launched = send(&world, Method::POST, "instance-operations/launch", Some(order)).await;
    assert_eq!(launched.status, 200, "{}", launched.body);
    world.0.advance(13);
    let named = json!({"instance_ids": launched.json()["data"]["instance_ids"]}).to_string();
    let path = "/api/v1/instance-operations/terminate";
    let ended = world.1.send(Method::POST, path, "", &named).await.unwrap();
    assert_eq!(ended.status, 200, "{}", ended.body);
    assert_eq!(world.0.cloud("lambda").complaints(), Vec::<String>::new());
}

#[tokio::test]
async fn the_key_may_be_the_user_of_basic_authentication() {
    let world = world().await;
    // `key:` in base64, and the key as it is.
    for (given, status) in [
        ("Basic a2V5Og==", 200),
        ("Basic key", 200),
        ("Basic b3RoZXI6", 401),
    ] {
        world.0.advance(2);
        let client = Client::new(world.0.url("lambda")).with("authorization", given);
        assert_eq!(
            client.get("/api/v1/instances").await.unwrap().status,
            status,
            "{given}"
        );
    }
    assert_eq!(world.0.cloud("lambda").complaints(), Vec::<String>::new());
}

#[tokio::test]
async fn images_are_listed_by_region_and_a_list_of_no_filesystems_is_allowed() {
    let world = world().await;
    let images = send(&world, Method::GET, "images", None).await.json();
    let in_west = images["data"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|image| image["region"]["name"] == "us-west-1");
    assert_eq!(in_west.count(), 3);
    let key = json!({"name": "mine", "public_key": "ssh-ed25519 AAAA me"});
    send(&world, Method::POST, "ssh-keys", Some(key)).await;
    let mut order = order("mine");
    order["file_system_names"] = json!(["data"]);
    let path = "instance-operations/launch";
    let refused = send(&world, Method::POST, path, Some(order.clone())).await;
    assert_eq!(
        (refused.status, code(&refused)),
        (400, "global/object-does-not-exist".into())
    );
    order["file_system_names"] = json!([]);
    let launched = send(&world, Method::POST, path, Some(order)).await;
    assert_eq!(launched.status, 200, "{}", launched.body);
    assert_eq!(world.0.cloud("lambda").complaints(), Vec::<String>::new());
}

fn code(reply: &Reply) -> String {
    reply.json()["error"]["code"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}
