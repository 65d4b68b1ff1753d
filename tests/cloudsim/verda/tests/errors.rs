//! Errors, and requests that are not allowed.

use http::Method;
use serde_json::json;

use super::{Verda, id, login, order, world};
use crate::core::account::CredentialState;
use crate::core::client::Client;
use crate::core::world::Lag;
use crate::{Account, Builder, Fault, Rule, When};
use jiff::SignedDuration;

#[tokio::test]
async fn a_wrong_secret_and_a_revoked_credential_get_no_token() {
    let simulator = Builder::manual().cloud(Verda::new()).start().await.unwrap();
    let sim = simulator.cloud("verda");
    sim.world(|world| world.add_account(Account::with_pair("acme", "id", "secret")));
    let client = Client::new(simulator.url("verda"));
    let grant = |secret: &str| json!({"grant_type": "client_credentials", "client_id": "id", "client_secret": secret});
    let reply = client
        .json(Method::POST, "/v1/oauth2/token", grant("wrong"))
        .await
        .unwrap();
    assert_eq!(
        (reply.status, reply.json()["message"].as_str()),
        (401, Some("Invalid client id or client secret"))
    );
    let token = login(&simulator, "id", "secret").await;
    sim.world(|world| {
        world.accounts.get_mut("acme").unwrap().credentials[0].state = CredentialState::Revoked;
    });
    assert_eq!(token.get("/v1/instances").await.unwrap().status, 401);
    assert_eq!(
        client
            .json(Method::POST, "/v1/oauth2/token", grant("secret"))
            .await
            .unwrap()
            .status,
        401
    );
}

#[tokio::test]
async fn a_token_ends_after_an_hour_and_its_refresh_token_gives_another() {
    let simulator = Builder::manual().cloud(Verda::new()).start().await.unwrap();
    simulator
        .cloud("verda")
        .world(|world| world.add_account(Account::with_pair("acme", "id", "secret")));
    let client = Client::new(simulator.url("verda"));
    let grant = json!({"grant_type": "client_credentials", "client_id": "id", "client_secret": "secret"});
    let first = client
        .json(Method::POST, "/v1/oauth2/token", grant)
        .await
        .unwrap()
        .json();
    assert_eq!(
        (&first["expires_in"], &first["scope"]),
        (&json!(3600), &json!("cloud-api-v1"))
    );
    let with = |token: &serde_json::Value| {
        client
            .clone()
            .with("authorization", &format!("Bearer {}", token.as_str().unwrap()))
    };
    simulator.advance(3_599);
    assert_eq!(
        with(&first["access_token"])
            .get("/v1/instances")
            .await
            .unwrap()
            .status,
        200
    );
    simulator.advance(1);
    assert_eq!(
        with(&first["access_token"])
            .get("/v1/instances")
            .await
            .unwrap()
            .status,
        401
    );
    let refresh = json!({"grant_type": "refresh_token", "refresh_token": first["refresh_token"]});
    let second = client
        .json(Method::POST, "/v1/oauth2/token", refresh)
        .await
        .unwrap()
        .json();
    assert_eq!(
        with(&second["access_token"])
            .get("/v1/instances")
            .await
            .unwrap()
            .status,
        200
    );
}

#[tokio::test]
async fn more_than_60_calls_of_a_path_in_a_minute_are_refused_until_the_window_has_moved() {
    let world = world().await;
    for _ in 0..60 {
        assert_eq!(world.get("/v1/locations").await.status, 200);
    }
    let refused = world.get("/v1/locations").await;
    assert_eq!(
        (refused.status, refused.json()["code"].as_str()),
        (429, Some("rate_limit_exceeded"))
    );
    assert_eq!(refused.header("retry-after"), Some("61"));
    assert_eq!(
        world.get("/v1/instances").await.status,
        200,
        "another path has its own limit"
    );
    world.simulator.advance(61);
    assert_eq!(world.get("/v1/locations").await.status, 200);
}

#[tokio::test]
async fn a_field_that_is_not_described_is_a_violation_and_a_400() {
    let world = world().await;
    let mut wrong = order("a");
    wrong["userdata"] = "#!/bin/sh".into();
    let reply = world.post("/v1/instances", wrong).await;
    assert_eq!(
        (reply.status, reply.json()["code"].as_str()),
        (400, Some("invalid_request"))
    );
    assert!(
        world.sim().violations()[0].what.contains("userdata"),
        "{:?}",
        world.sim().violations()
    );
    assert_eq!(world.sim().world(|world| world.machines.len()), 0);
    world.sim().forget();
    assert_eq!(
        world.get("/v1/instances?page=2").await.status,
        if world.sim().violations().is_empty() {
            200
        } else {
            400
        }
    );
    assert_eq!(world.get("/v2/instances").await.status, 404);
    assert!(!world.sim().violations().is_empty());
}

#[tokio::test]
async fn an_order_without_a_location_is_a_violation() {
    let world = world().await;
    let mut wrong = order("a");
    wrong.as_object_mut().unwrap().remove("location_code");
    assert_eq!(world.post("/v1/instances", wrong).await.status, 400);
    assert!(world.sim().violations()[0].what.contains("location_code"));
}

#[tokio::test]
async fn a_connection_cut_after_the_effect_leaves_a_machine_and_one_before_it_none() {
    let world = world().await;
    world
        .sim()
        .fault(Rule::once("instances.create", Fault::Cut { when: When::Before }));
    assert!(
        world
            .send(Method::POST, "/v1/instances", order("a"))
            .await
            .is_err()
    );
    assert_eq!(world.sim().world(|world| world.machines.len()), 0);
    world
        .sim()
        .fault(Rule::once("create", Fault::Cut { when: When::After }));
    assert!(
        world
            .send(Method::POST, "/v1/instances", order("a"))
            .await
            .is_err()
    );
    assert_eq!(world.sim().meter(|meter| meter.billed_now().len()), 1);
    let entry = world.sim().requests().pop().unwrap();
    assert_eq!(
        (entry.effect, entry.status, entry.fault.as_deref()),
        (true, None, Some("cut"))
    );
    assert!(entry.subject.is_some());
    world.running(order("a")).await;
    assert_eq!(world.sim().meter(|meter| meter.doubled("name").len()), 1);
    world.all_as_described();
}

#[tokio::test]
async fn a_500_may_come_before_or_after_the_effect() {
    let world = world().await;
    for (when, machines) in [(When::Before, 0), (When::After, 1)] {
        world.sim().fault(Rule::once(
            "instances.create",
            Fault::Server { status: 500, when },
        ));
        let reply = world.post("/v1/instances", order("a")).await;
        assert_eq!(
            (reply.status, reply.json()["code"].as_str()),
            (500, Some("server_error"))
        );
        assert_eq!(world.sim().world(|world| world.machines.len()), machines);
    }
    world.all_as_described();
}

#[tokio::test]
async fn a_list_that_lags_shows_new_machines_late_and_ended_ones_as_they_were() {
    let world = world().await;
    let seconds = SignedDuration::from_secs;
    world.sim().world(|world| {
        world.lag = Lag {
            created: seconds(30),
            ended: seconds(60),
        }
    });
    let id = id(&world.post("/v1/instances", order("a")).await);
    world.simulator.advance(29);
    assert_eq!(world.get("/v1/instances").await.json(), json!([]));
    assert_eq!(world.instance(&id).await["status"], "running");
    world.simulator.advance(1);
    assert_eq!(world.get("/v1/instances").await.json()[0]["status"], "running");
    world.put(json!({"action": "delete", "id": id})).await;
    world.simulator.advance(59);
    assert_eq!(world.instance(&id).await["status"], "discontinued");
    assert_eq!(world.get("/v1/instances").await.json()[0]["status"], "running");
    world.simulator.advance(10);
    assert_eq!(world.get("/v1/instances").await.json(), json!([]));
    world.all_as_described();
}

#[tokio::test]
async fn what_is_scripted_befalls_the_machine_that_the_call_makes() {
    let world = world().await;
    world
        .sim()
        .fault(Rule::once("create", Fault::Halts { after: 60 }));
    let halts = world.running(order("a")).await;
    world.sim().fault(Rule::once("create", Fault::Dies { after: 60 }));
    let dies = world.running(order("b")).await;
    world
        .sim()
        .fault(Rule::once("create", Fault::Reclaim { after: 60, notice: 0 }));
    let taken = world.running(super::spot("c", "delete_permanently")).await;
    world.simulator.advance(60);
    assert_eq!(world.instance(&halts).await["status"], "offline");
    assert_eq!(world.instance(&dies).await["status"], "error");
    assert_eq!(world.instance(&taken).await["status"], "discontinued");
    world.all_as_described();
}

#[tokio::test]
async fn another_account_sees_and_touches_nothing_of_this_one() {
    let world = world().await;
    let id = world.running(order("a")).await;
    world
        .sim()
        .world(|world| world.add_account(Account::with_pair("other", "id2", "secret2")));
    let other = login(&world.simulator, "id2", "secret2").await;
    assert_eq!(other.get("/v1/instances").await.unwrap().json(), json!([]));
    assert_eq!(
        other.get(&format!("/v1/instances/{id}")).await.unwrap().status,
        404
    );
    let delete = other
        .json(
            Method::PUT,
            "/v1/instances",
            json!({"action": "delete", "id": id}),
        )
        .await
        .unwrap();
    assert_eq!(delete.status, 404);
    assert_eq!(world.sim().meter(|meter| meter.billed_now().len()), 1);
}

#[tokio::test]
async fn an_instance_that_is_not_there_is_an_invalid_id() {
    let world = world().await;
    let unknown = world
        .get("/v1/instances/00000000-0000-4000-8000-000000000000")
        .await;
    assert_eq!(unknown.status, 404);
    assert_eq!(
        unknown.json(),
        json!({"code": "not_found", "message": "Invalid instance id"})
    );
    world.all_as_described();
}

#[tokio::test]
async fn a_list_of_one_that_fails_is_refused_as_the_one() {
    let world = world().await;
    let fresh = id(&world.post("/v1/instances", order("a")).await);
    let early = world.put(json!({"action": "delete", "id": [fresh]})).await;
    assert_eq!(
        (early.status, early.json()["message"].as_str()),
        (400, Some("Can't discontinue a provisioning instance"))
    );
    let nobody = json!(["00000000-0000-4000-8000-000000000000"]);
    let unknown = world.put(json!({"action": "delete", "id": nobody})).await;
    assert_eq!(unknown.status, 404);
    world.simulator.advance(20);
    let ended = world.put(json!({"action": "delete", "id": [fresh]})).await;
    assert_eq!(
        (ended.status, &ended.json()[0]["status"]),
        (202, &json!("success"))
    );
    world.all_as_described();
}
