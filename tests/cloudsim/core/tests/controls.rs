//! `/_sim/…`, as a test in another process uses it.

use http::Method;
use serde_json::{Value, json};

use crate::core::client::Client;
use crate::verda::Verda;
use crate::{Account, Builder, Simulator};

async fn world() -> (Simulator, Client) {
    let simulator = Builder::manual().cloud(Verda::new()).start().await.unwrap();
    let client = Client::new(simulator.url("verda"));
    let account = json!({"id": "acme", "credentials": [{"id": "id", "secret": "secret"}]});
    let reply = client
        .json(Method::POST, "/_sim/accounts", account)
        .await
        .unwrap();
    assert_eq!(reply.status, 200, "{}", reply.body);
    let grant = json!({"grant_type": "client_credentials", "client_id": "id", "client_secret": "secret"});
    let token = client
        .json(Method::POST, "/v1/oauth2/token", grant)
        .await
        .unwrap()
        .json();
    let header = format!("Bearer {}", token["access_token"].as_str().unwrap());
    (simulator, client.with("authorization", &header))
}

async fn order(client: &Client) -> u16 {
    let order = json!({
        "instance_type": "CPU.4V.16G", "image": "ubuntu-24.04", "hostname": "a", "location_code": "FIN-01", "is_spot": true,
    });
    client
        .json(Method::POST, "/v1/instances", order)
        .await
        .unwrap()
        .status
}

#[tokio::test]
async fn stock_prices_boots_and_the_clock_are_set_from_outside() {
    let (_simulator, client) = world().await;
    let post = async |name: &str, body: Value| {
        let reply = client
            .json(Method::POST, &format!("/_sim/{name}"), body)
            .await
            .unwrap();
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply.json()
    };
    let get = async |name: &str| client.get(&format!("/_sim/{name}")).await.unwrap().json();
    post(
        "stock",
        json!({"type": "CPU.4V.16G", "region": "FIN-01", "market": "spot", "count": 1}),
    )
    .await;
    post("price", json!({"type": "CPU.4V.16G", "spot": "3.6"})).await;
    post("boot", json!({"takesSeconds": 100})).await;
    post("intruder", json!({"account": "acme", "answers": "copied"})).await;
    assert_eq!(order(&client).await, 202);
    assert_eq!(get("machines").await[0]["boot"]["intruder"], "copied");
    assert_eq!(order(&client).await, 503);
    post("clock", json!({"advanceSeconds": 99})).await;
    assert_eq!(get("machines").await[0]["phase"], "pending");
    post("clock", json!({"advanceSeconds": 901})).await;
    let machine = get("billed").await[0].clone();
    assert_eq!(machine["phase"], "running");
    assert_eq!(get("bill?account=acme").await["amount"], "1.0");
    assert_eq!(get("doubled?by=name").await, json!({}));
    post("reclaim", json!({"machine": machine["id"]})).await;
    assert_eq!(get("billed").await, json!([]));
    assert_eq!(get("leftovers?account=acme").await[0]["kind"], "volume");
    assert_eq!(get("violations").await, json!([]));
    assert_eq!(get("requests").await.as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn faults_and_credentials_are_set_from_outside() {
    let (_simulator, client) = world().await;
    let rule = json!({"call": "create", "fault": {"server": {"status": 500, "when": "after"}}, "times": 1});
    assert_eq!(
        client
            .json(Method::POST, "/_sim/faults", rule)
            .await
            .unwrap()
            .status,
        200
    );
    assert_eq!(
        client
            .get("/_sim/faults")
            .await
            .unwrap()
            .json()
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert_eq!(order(&client).await, 500);
    assert_eq!(client.get("/_sim/faults").await.unwrap().json(), json!([]));
    assert_eq!(
        client
            .get("/_sim/billed")
            .await
            .unwrap()
            .json()
            .as_array()
            .unwrap()
            .len(),
        1
    );
    let revoke = json!({"id": "id", "state": "revoked"});
    assert_eq!(
        client
            .json(Method::POST, "/_sim/credentials", revoke)
            .await
            .unwrap()
            .status,
        200
    );
    assert_eq!(client.get("/v1/instances").await.unwrap().status, 401);
}

#[tokio::test]
async fn a_control_that_is_mistyped_says_so() {
    let (_simulator, client) = world().await;
    assert_eq!(client.get("/_sim/bills").await.unwrap().status, 404);
    let wrong = client
        .json(Method::POST, "/_sim/stock", json!({"tpye": "x"}))
        .await
        .unwrap();
    assert_eq!(wrong.status, 400);
    assert!(wrong.json()["error"].as_str().unwrap().contains("tpye"));
    let nobody = client
        .json(Method::POST, "/_sim/die", json!({"machine": "x"}))
        .await
        .unwrap();
    assert_eq!(nobody.status, 400);
    let own = client
        .json(Method::POST, "/_sim/cloud/rate-limits", json!({"on": false}))
        .await
        .unwrap();
    assert_eq!(own.json(), json!({"on": false}));
    assert_eq!(
        client
            .json(Method::POST, "/_sim/cloud/none", json!({}))
            .await
            .unwrap()
            .status,
        404
    );
}

#[tokio::test]
async fn the_record_names_no_credentials() {
    let simulator = Builder::manual().cloud(Verda::new()).start().await.unwrap();
    let sim = simulator.cloud("verda");
    sim.world(|world| world.add_account(Account::with_pair("acme", "id", "canary-secret")));
    let client = Client::new(simulator.url("verda")).with("authorization", "Bearer canary-token");
    client.get("/v1/instances?api_key=canary-key").await.unwrap();
    let written = serde_json::to_string(&(sim.requests(), sim.violations())).unwrap();
    assert!(
        written.contains("instances") && !written.contains("canary"),
        "{written}"
    );
}
