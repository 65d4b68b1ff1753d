//! Pods and clusters by REST v2.

use http::Method;
use jiff::SignedDuration;
use rust_decimal::Decimal;
use serde_json::{Value, json};

use super::{GPU, order, world};
use crate::backend::Start;
use crate::core::account::CredentialState;
use crate::core::client::Client;
use crate::{Fault, Left, Market, Rule, Shelf, When};

#[tokio::test]
async fn a_pod_is_provisioned_started_and_runs_some_time_before_it_has_direct_ssh() {
    let world = world().await;
    let created = world.post("/v2/pods", order("a")).await;
    assert_eq!(
        (created.status, created.json()["status"].as_str()),
        (201, Some("PROVISIONING"))
    );
    let id = created.json()["id"].as_str().unwrap().to_owned();
    world.simulator.advance(12);
    assert_eq!(world.pod(&id).await["status"], "STARTING");
    world.simulator.advance(8);
    let pod = world.pod(&id).await;
    assert_eq!(
        (&pod["status"], &pod["ssh"]["direct"]),
        (&json!("RUNNING"), &Value::Null)
    );
    world.simulator.advance(3);
    let pod = world.pod(&id).await;
    assert_eq!(pod["ssh"]["direct"]["username"], "root");
    assert_ne!(pod["ssh"]["direct"]["port"], 22);
    assert_eq!(pod["env"]["POOL"], "p");
    assert_eq!(pod["cost"], json!(0.69));
    assert!(created.header("ratelimit").is_some() && created.header("ratelimit-policy").is_some());
    world.all_as_described();
}

#[tokio::test]
async fn a_pod_without_22_tcp_never_has_direct_ssh() {
    let world = world().await;
    let mut order = order("a");
    order["ports"] = json!(["8888/http"]);
    let id = world.post("/v2/pods", order).await.json()["id"]
        .as_str()
        .unwrap()
        .to_owned();
    world.simulator.advance(600);
    let pod = world.pod(&id).await;
    assert_eq!(
        (&pod["status"], &pod["ssh"]["direct"]),
        (&json!("RUNNING"), &Value::Null)
    );
    assert!(pod["ssh"]["proxy"].is_object());
    world.all_as_described();
}

#[tokio::test]
async fn a_deleted_pod_is_204_once_and_404_after_that_and_costs_nothing_more() {
    let world = world().await;
    let id = world.running("a").await;
    world.simulator.advance(3_577);
    assert_eq!(world.delete(&format!("/v2/pods/{id}")).await.status, 204);
    assert_eq!(world.delete(&format!("/v2/pods/{id}")).await.status, 404);
    assert_eq!(world.get("/v2/pods").await.json(), json!({"pods": []}));
    world.simulator.advance(2);
    assert_eq!(world.get(&format!("/v2/pods/{id}")).await.status, 404);
    world.simulator.advance(1_000);
    assert_eq!(world.sim().meter(|meter| meter.bill("acme")), Decimal::new(69, 2));
    assert!(world.sim().meter(|meter| meter.billed_now().is_empty()));
    world.all_as_described();
}

#[tokio::test]
async fn a_stopped_pod_exits_and_its_disks_stay_on_the_bill() {
    let world = world().await;
    let id = world.running("a").await;
    let stopped = world
        .post(&format!("/v2/pods/{id}/action"), json!({"action": "stop"}))
        .await;
    assert_eq!(
        (stopped.status, stopped.json()["status"].as_str()),
        (200, Some("EXITED"))
    );
    assert_eq!(stopped.json()["cost"], json!(0.0));
    let billed = world.sim().meter(|meter| {
        meter
            .billed_now()
            .iter()
            .map(|pod| pod.tab.rate())
            .collect::<Vec<_>>()
    });
    assert_eq!(billed, [Decimal::new(21, 3)], "70 GB");
    let again = world
        .post(&format!("/v2/pods/{id}/action"), json!({"action": "stop"}))
        .await;
    assert_eq!(again.status, 409);
    assert_eq!(
        world
            .post(&format!("/v2/pods/{id}/action"), json!({"action": "start"}))
            .await
            .status,
        200
    );
    world.simulator.advance(20);
    assert_eq!(world.pod(&id).await["status"], "RUNNING");
    world.all_as_described();
}

#[tokio::test]
async fn cross_field_rules_and_the_lack_of_a_gpu_are_both_400() {
    let world = world().await;
    let mut both = order("a");
    both["cpu"] = json!({"id": "cpu5c", "vcpuCount": 4});
    assert_eq!(world.post("/v2/pods", both).await.status, 400);
    let mut many = order("a");
    many["gpu"]["count"] = 9.into();
    assert_eq!(world.post("/v2/pods", many).await.status, 400);
    let mut newer = order("a");
    newer["gpu"]["minCudaVersion"] = "14.0".into();
    let refused = world.post("/v2/pods", newer).await;
    assert_eq!(refused.header("content-type"), Some("application/problem+json"));
    assert!(
        refused.json()["detail"]
            .as_str()
            .unwrap()
            .contains("no longer any instances")
    );
    world.all_as_described();
}

#[tokio::test]
async fn a_body_that_violates_the_contract_is_422_and_a_violation() {
    let world = world().await;
    let mut wrong = order("a");
    wrong["gpu"]["bid"] = json!(0.2);
    let reply = world.post("/v2/pods", wrong).await;
    assert_eq!(reply.status, 422);
    assert!(!world.sim().violations().is_empty());
    assert_eq!(world.sim().world(|world| world.machines.len()), 0);
}

#[tokio::test]
async fn rest_v1_is_retired() {
    let world = world().await;
    assert_eq!(world.get("/v1/pods").await.status, 410);
    assert_eq!(world.sim().violations().len(), 1);
}

#[tokio::test]
async fn the_last_gpu_is_rented_once() {
    let world = world().await;
    world.sim().world(|world| {
        for place in world.regions.clone() {
            world
                .stock
                .set(Shelf::new(GPU, &place, Market::OnDemand), Left::Count(0));
        }
        world
            .stock
            .set(Shelf::new(GPU, "EU-RO-1", Market::OnDemand), Left::Count(1));
    });
    let id = world.running("a").await;
    assert_eq!(world.pod(&id).await["dataCenterId"], "EU-RO-1");
    assert_eq!(world.post("/v2/pods", order("b")).await.status, 400);
    world.all_as_described();
}

#[tokio::test]
async fn a_cluster_has_all_its_pods_at_once_and_they_end_with_it() {
    let world = world().await;
    let cluster = json!({
        "name": "c", "type": "TRAINING", "image": "runpod/pytorch:1.0.2", "ports": ["22/tcp"], "disk": 50, "startSsh": true,
        "compute": {"gpuTypeId": "NVIDIA H100 80GB HBM3", "gpuCountPerPod": 8, "podCount": 2},
        "env": {"PUBLIC_KEY": "ssh-ed25519 AAAA test"},
    });
    let created = world.post("/v2/clusters", cluster).await;
    assert_eq!(created.status, 201, "{}", created.body);
    let id = created.json()["id"].as_str().unwrap().to_owned();
    world.simulator.advance(30);
    assert_eq!(world.get("/v2/pods").await.json()["pods"], json!([]));
    let pods = world.get("/v2/pods?includeClusterPods=true").await.json();
    assert_eq!(pods["pods"].as_array().unwrap().len(), 2);
    let members = world.get(&format!("/v2/clusters/{id}/pods")).await.json();
    assert_eq!(
        members["pods"][1]["cluster"],
        json!({"id": id, "rank": 1, "ip": "10.65.0.3"})
    );
    let member = members["pods"][0]["id"].as_str().unwrap();
    assert_eq!(world.delete(&format!("/v2/pods/{member}")).await.status, 409);
    assert!(world.get(&format!("/v2/clusters/{id}")).await.json()["primary"]["sshEndpoint"].is_string());
    assert_eq!(
        world.sim().meter(|meter| meter.hourly("acme")),
        Decimal::new(4784, 2)
    );
    assert_eq!(world.delete(&format!("/v2/clusters/{id}")).await.status, 204);
    assert_eq!(world.delete(&format!("/v2/clusters/{id}")).await.status, 404);
    assert!(world.sim().meter(|meter| meter.billed_now().is_empty()));
    world.all_as_described();
}

#[tokio::test]
async fn an_image_with_sshd_gets_the_key_and_another_one_only_its_command() {
    let world = world().await;
    let own = world.running("a").await;
    let mut plain = order("b");
    plain["image"] = "nvidia/cuda:12.8.0-cudnn-runtime-ubuntu24.04".into();
    plain["args"] = "bash -c 'apt-get install -y openssh-server && sleep infinity'".into();
    let other = world.post("/v2/pods", plain).await.json()["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let (own, other) = world.sim().world(|world| {
        (
            world.machines[&own].boot.clone(),
            world.machines[&other].boot.clone(),
        )
    });
    assert_eq!(
        (own.authorized_keys, own.start),
        (
            vec!["ssh-ed25519 AAAA test".to_owned()],
            Start::OnStart(String::new())
        )
    );
    let command = [
        "bash",
        "-c",
        "apt-get install -y openssh-server && sleep infinity",
    ]
    .map(str::to_owned)
    .to_vec();
    assert_eq!(
        (other.authorized_keys, other.start),
        (vec![], Start::Command(command))
    );
    assert!(other.env["RUNPOD_API_KEY"].starts_with("rpa_"));
}

#[tokio::test]
async fn a_pod_ends_itself_with_its_own_key_and_can_do_nothing_else_with_it() {
    let world = world().await;
    let (a, b) = (world.running("a").await, world.running("b").await);
    let key = world
        .sim()
        .world(|world| world.machines[&a].boot.env["RUNPOD_API_KEY"].clone());
    let inside = Client::new(world.simulator.url("runpod")).with("authorization", &format!("Bearer {key}"));
    assert_eq!(inside.get("/v2/pods").await.unwrap().status, 403);
    assert_eq!(
        inside
            .call(Method::DELETE, &format!("/v2/pods/{b}"))
            .await
            .unwrap()
            .status,
        403
    );
    assert_eq!(
        inside
            .call(Method::DELETE, &format!("/v2/pods/{a}"))
            .await
            .unwrap()
            .status,
        204
    );
    assert_eq!(world.sim().meter(|meter| meter.billed_now().len()), 1);
}

#[tokio::test]
async fn keys_of_the_account_are_replaced_as_a_whole() {
    let world = world().await;
    let put = async |keys: Value| {
        world
            .client
            .json(Method::PUT, "/v2/account/ssh-keys", json!({ "keys": keys }))
            .await
            .unwrap()
            .status
    };
    assert_eq!(
        put(json!(["ssh-ed25519 AAAA one", "ssh-ed25519 AAAB two"])).await,
        200
    );
    assert_eq!(put(json!(["ssh-ed25519 AAAC three"])).await, 200);
    let keys = world.get("/v2/account/ssh-keys").await.json();
    assert_eq!(keys, json!({"keys": ["ssh-ed25519 AAAC three"]}));
    let update =
        "mutation($input: UpdateUserSettingsInput) { updateUserSettings(input: $input) { id pubKey } }";
    let both = "ssh-ed25519 AAAA one\nssh-ed25519 AAAB two";
    let updated = world
        .graphql(update, json!({"input": {"pubKey": both}}))
        .await
        .json();
    assert_eq!(updated["data"]["updateUserSettings"]["pubKey"], both);
    assert_eq!(
        world.get("/v2/account/ssh-keys").await.json()["keys"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    assert_eq!(
        put(json!(["no key"])).await,
        if std::env::var_os("SKYWARD_SPECS").is_some() {
            422
        } else {
            200
        }
    );
}

#[tokio::test]
async fn a_revoked_key_is_401_and_a_lost_answer_leaves_a_pod_behind() {
    let world = world().await;
    world.sim().fault(Rule::once(
        "pods.create",
        Fault::Server {
            status: 502,
            when: When::After,
        },
    ));
    assert_eq!(world.post("/v2/pods", order("a")).await.status, 502);
    assert_eq!(world.get("/v2/pods").await.json()["pods"][0]["name"], "a");
    world.sim().world(|world| {
        world.accounts.get_mut("acme").unwrap().credentials[0].state = CredentialState::Revoked;
    });
    assert_eq!(world.get("/v2/pods").await.status, 401);
    assert_eq!(
        world.graphql("query { myself { id } }", json!({})).await.status,
        401
    );
    assert_eq!(world.sim().meter(|meter| meter.billed_now().len()), 1);
    world.all_as_described();
}

#[tokio::test]
async fn too_many_requests_carry_retry_after() {
    let world = world().await;
    world
        .sim()
        .fault(Rule::once("pods.list", Fault::TooMany { retry_after: Some(7) }));
    let refused = world.get("/v2/pods").await;
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("7")));
    for _ in 0..600 {
        world.get("/v2/pods").await;
    }
    let refused = world.get("/v2/pods").await;
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("61")));
    world.simulator.advance(61);
    assert_eq!(world.get("/v2/pods").await.status, 200);
    world.all_as_described();
}

#[tokio::test]
async fn a_list_may_be_cut_short_by_a_fault() {
    let world = world().await;
    world.running("a").await;
    world.running("b").await;
    world
        .sim()
        .fault(Rule::once("pods.list", Fault::PartialPage { keep: 1 }));
    assert_eq!(
        world.get("/v2/pods").await.json()["pods"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert_eq!(
        world.get("/v2/pods").await.json()["pods"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    world
        .sim()
        .world(|world| world.lag.created = SignedDuration::from_secs(3_600));
    assert_eq!(world.get("/v2/pods").await.json()["pods"], json!([]));
}

#[tokio::test]
async fn a_patch_changes_what_it_names_and_nothing_else() {
    let world = world().await;
    let id = world.running("a").await;
    let path = format!("/v2/pods/{id}");
    let patched = world
        .client
        .json(Method::PATCH, &path, json!({"name": "b", "registry": null}))
        .await
        .unwrap();
    assert_eq!(patched.status, 200, "{}", patched.body);
    let pod = world.pod(&id).await;
    assert_eq!((&pod["name"], &pod["env"]["POOL"]), (&json!("b"), &json!("p")));
    assert_eq!(pod["ports"], json!(["22/tcp"]));
    world.all_as_described();
}

#[tokio::test]
async fn one_of_a_catalogue_is_had_by_its_id() {
    let world = world().await;
    for path in [
        "/v2/catalog/cpus/cpu3c",
        "/v2/catalog/datacenters/EU-RO-1",
        "/v2/registries/reg-docker-hub",
    ] {
        let one = world.get(path).await;
        assert_eq!(one.status, 200, "{path}: {}", one.body);
        assert!(path.ends_with(one.json()["id"].as_str().unwrap()), "{}", one.body);
        assert_eq!(world.get(&format!("{path}-x")).await.status, 404);
    }
    world.all_as_described();
}

#[tokio::test]
async fn pods_are_listed_in_pages_where_that_is_asked_for() {
    let world = world().await;
    for name in ["a", "b", "c"] {
        world.running(name).await;
    }
    let all = world.get("/v2/pods").await.json();
    assert!(all["pagination"].is_null(), "{all}");
    let mut seen = Vec::new();
    let mut path = "/v2/pods?limit=2".to_owned();
    loop {
        let page = world.get(&path).await.json();
        seen.extend(page["pods"].as_array().unwrap().clone());
        let Some(cursor) = page["pagination"]["nextCursor"].as_str() else {
            assert_eq!(page["pagination"]["hasNextPage"], false);
            break;
        };
        path = format!("/v2/pods?limit=2&cursor={cursor}");
    }
    assert_eq!(json!(seen), all["pods"]);
    world.all_as_described();
}
