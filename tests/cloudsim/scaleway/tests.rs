//! Tests with hand-written requests, after the facts about the cloud.

mod lists;
mod sdk;

use http::Method;
use rust_decimal::Decimal;
use serde_json::{Value, json};

use super::Scaleway;
use crate::backend::Start;
use crate::core::client::{Client, Reply};
use crate::core::rest::Rest;
use crate::{
    Account, BootEnd, BootPlan, Builder, Cause, Fault, Happening, Left, Market, Rule, Shelf, Sim, Simulator,
    When,
};

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIF3d8JVnY8w3V0Q1yTzHn0y2jJ1YQG3hVYwJ0m3p6p2a me";
const INSTANCES: &str = "/instance/v1/zones/fr-par-2";
const BLOCK: &str = "/block/v1alpha1/zones/fr-par-2";
const KEYS: &str = "/iam/v1alpha1/ssh-keys";

struct World(Simulator, Client);

async fn world() -> World {
    let simulator = Builder::manual()
        .cloud(Rest::new(Scaleway::default()))
        .start()
        .await
        .unwrap();
    let sim = simulator.cloud("scaleway");
    sim.world(|world| world.add_account(Account::with_key("acme", "secret")));
    let client = Client::new(simulator.url("scaleway")).with("x-auth-token", "secret");
    World(simulator, client)
}

impl World {
    fn sim(&self) -> &Sim {
        self.0.cloud("scaleway")
    }

    async fn get(&self, path: &str) -> Reply {
        self.1.get(path).await.unwrap()
    }

    async fn post(&self, path: &str, body: Value) -> Reply {
        self.1.json(Method::POST, path, body).await.unwrap()
    }

    async fn delete(&self, path: &str) -> Reply {
        self.1.call(Method::DELETE, path).await.unwrap()
    }

    async fn order(&self, order: Value) -> String {
        let made = self.post(&format!("{INSTANCES}/servers"), order).await;
        assert_eq!(made.status, 201, "{}", made.body);
        made.json()["server"]["id"].as_str().unwrap().to_owned()
    }

    /// An order that is started.
    async fn start(&self, order: Value) -> String {
        let id = self.order(order).await;
        assert_eq!(self.act(&id, "poweron").await.status, 202);
        id
    }

    async fn act(&self, id: &str, action: &str) -> Reply {
        let path = format!("{INSTANCES}/servers/{id}/action");
        self.post(&path, json!({ "action": action })).await
    }

    async fn server(&self, id: &str) -> Value {
        self.get(&format!("{INSTANCES}/servers/{id}")).await.json()["server"].clone()
    }

    async fn volumes(&self) -> Value {
        self.get(&format!("{BLOCK}/volumes?project_id=p")).await.json()["volumes"].clone()
    }

    /// Status and type of an order that is refused for one of its fields.
    async fn refused(&self, name: &str, value: Value) -> (u16, String) {
        let mut order = order();
        order[name] = value;
        refusal(&self.post(&format!("{INSTANCES}/servers"), order).await)
    }

    fn is_content(&self) {
        assert_eq!(self.sim().complaints(), Vec::<String>::new());
    }
}

fn refusal(reply: &Reply) -> (u16, String) {
    let body = reply.json();
    assert!(body["message"].is_string(), "{}", reply.body);
    (reply.status, body["type"].as_str().unwrap_or_default().to_owned())
}

fn is(status: u16, kind: &str) -> (u16, String) {
    (status, kind.to_owned())
}

fn order() -> Value {
    json!({
        "name": "pool-0", "commercial_type": "L4-1-24G", "image": "ubuntu_noble_gpu_os_13_nvidia", "project": "p",
        "dynamic_ip_required": true, "volumes": {}, "tags": ["skyward", "pool=p"], "security_group": null,
    })
}

#[tokio::test]
async fn a_server_is_ordered_started_with_every_key_of_the_project_and_terminated() {
    let world = world().await;
    for (name, project) in [("ours", "p"), ("of somebody", "p"), ("elsewhere", "q")] {
        let key = json!({"name": name, "public_key": format!("{KEY}-{name}"), "project_id": project});
        assert_eq!(world.post(KEYS, key).await.status, 200);
    }
    let id = world.order(order()).await;
    let stopped = world.server(&id).await;
    assert_eq!(
        (&stopped["state"], &stopped["public_ips"]),
        (&json!("stopped"), &json!([]))
    );
    assert_eq!(stopped["volumes"]["0"]["volume_type"], "sbs_volume");
    let script = "#!/bin/sh\n";
    let path = format!("{INSTANCES}/servers/{id}/user_data/cloud-init");
    let set = world
        .1
        .send(Method::PATCH, &path, "text/plain", script)
        .await
        .unwrap();
    assert_eq!(set.status, 204, "{}", set.body);
    let task = world.act(&id, "poweron").await;
    assert_eq!(
        (task.status, &task.json()["task"]["status"]),
        (202, &json!("pending"))
    );
    assert_eq!(world.server(&id).await["state"], "starting");
    assert_eq!(
        refusal(&world.act(&id, "terminate").await),
        is(409, "transient_state")
    );
    assert_eq!(
        refusal(&world.act(&id, "poweron").await),
        is(409, "transient_state")
    );

    world.0.advance(20);
    let running = world.server(&id).await;
    assert_eq!(running["state"], "running");
    assert_eq!(running["public_ip"], running["public_ips"][0]);
    assert_eq!(
        (&running["public_ip"]["family"], &running["public_ip"]["dynamic"]),
        (&json!("inet"), &json!(true))
    );
    let boot = world.sim().world(|world| world.machines[&id].boot.clone());
    let keys: Vec<String> = ["of somebody", "ours"]
        .map(|name| format!("{KEY}-{name}"))
        .to_vec();
    let mut on_it = boot.authorized_keys.clone();
    on_it.sort();
    assert_eq!((boot.user.as_str(), on_it), ("root", keys));
    assert_eq!(
        (boot.start, boot.gpus),
        (Start::UserData(script.to_owned()), vec!["NVIDIA L4".to_owned()])
    );

    assert_eq!(
        refusal(&world.delete(&format!("{INSTANCES}/servers/{id}")).await),
        is(400, "invalid_request_error")
    );
    assert_eq!(world.act(&id, "terminate").await.status, 202);
    assert_eq!(world.server(&id).await["state"], "stopping");
    world.0.advance(5);
    assert_eq!(
        refusal(&world.get(&format!("{INSTANCES}/servers/{id}")).await),
        is(404, "not_found")
    );
    assert_eq!(refusal(&world.act(&id, "terminate").await), is(404, "not_found"));
    assert!(world.sim().meter(|meter| meter.billed_now().is_empty()));
    world.is_content();
}

#[tokio::test]
async fn the_root_volume_outlives_its_server_and_is_not_deleted_while_it_is_attached() {
    let world = world().await;
    let mut named = order();
    named["volumes"] =
        json!({"0": {"name": "root-of-pool-0", "size": 100_000_000_000_u64, "volume_type": "sbs_volume"}});
    let id = world.start(named).await;
    world.0.advance(20);
    let volume = world.volumes().await[0].clone();
    let of_the_image = "Ubuntu Noble GPU OS 13 (NVIDIA)_sbs_volume_0";
    assert_eq!(
        (&volume["name"], &volume["status"]),
        (&json!(of_the_image), &json!("in_use")),
        "whatever the order says"
    );
    assert_eq!(volume["references"][0]["product_resource_id"], id);
    assert_eq!(world.server(&id).await["volumes"]["0"]["id"], volume["id"]);
    let path = format!("{BLOCK}/volumes/{}", volume["id"].as_str().unwrap());
    for (names, name) in [
        (json!({"tags": ["ours"]}), of_the_image),
        (json!({"name": "root"}), "root"),
    ] {
        let named = world.1.json(Method::PATCH, &path, names).await.unwrap();
        let shown = named.json();
        assert_eq!(
            (named.status, &shown["name"], &shown["tags"]),
            (200, &json!(name), &json!(["ours"]))
        );
    }
    assert_eq!(
        refusal(&world.delete(&path).await),
        is(412, "precondition_failed")
    );
    world.act(&id, "terminate").await;
    world.0.advance(5);
    assert_eq!(world.server(&id).await, Value::Null);
    assert_eq!(
        refusal(&world.delete(&path).await),
        is(412, "precondition_failed"),
        "it is detached later"
    );
    world.0.advance(3);
    let left = world.get(&path).await.json();
    assert_eq!(
        (&left["status"], &left["references"]),
        (&json!("available"), &json!([]))
    );
    assert_eq!(
        world.sim().meter(|meter| meter.hourly("acme")),
        Decimal::new(1, 2)
    );
    assert_eq!(world.delete(&path).await.status, 204);
    assert_eq!(world.delete(&path).await.status, 404);
    assert!(world.sim().meter(|meter| meter.leftovers("acme").is_empty()));
    world.is_content();
}

#[tokio::test]
async fn a_shortage_and_a_boot_that_fails_leave_a_stopped_server_that_costs_its_volume_alone() {
    let world = world().await;
    let shelf = Shelf::new("L4-1-24G", "fr-par-2", Market::OnDemand);
    let left = |left| world.sim().world(|world| world.stock.set(shelf.clone(), left));
    left(Left::Count(0));
    let id = world.order(order()).await;
    assert_eq!(refusal(&world.act(&id, "poweron").await), is(503, "out_of_stock"));
    assert_eq!(world.server(&id).await["state"], "stopped");
    assert_eq!(
        world.sim().meter(|meter| meter.hourly("acme")),
        Decimal::new(2, 3)
    );
    assert_eq!(
        refusal(&world.act(&id, "terminate").await),
        is(400, "invalid_request_error")
    );
    left(Left::Count(1));
    let ends = BootEnd::Fails(Cause::NoCapacity);
    let plan = BootPlan {
        ends,
        ..BootPlan::takes(5)
    };
    world.sim().fault(Rule::once("servers.create", Fault::Boot(plan)));
    let failed = world.start(order()).await;
    assert_eq!(
        refusal(&world.act(&id, "poweron").await),
        is(503, "out_of_stock"),
        "the other one has it"
    );
    world.0.advance(6);
    assert_eq!(world.server(&failed).await["state"], "stopped");
    assert_eq!(
        world.sim().meter(|meter| meter.hourly("acme")),
        Decimal::new(4, 3)
    );
    for server in [&id, &failed] {
        assert_eq!(
            world
                .delete(&format!("{INSTANCES}/servers/{server}"))
                .await
                .status,
            204
        );
        assert_eq!(world.server(server).await, Value::Null);
    }
    assert_eq!(
        world.act(&world.order(order()).await, "poweron").await.status,
        202
    );
    world.is_content();
}

#[tokio::test]
async fn minutes_begun_are_billed_with_the_dynamic_address_and_a_guest_that_halts_costs_on() {
    let world = world().await;
    let id = world.order(order()).await;
    world.0.advance(3_600);
    let bill = || world.sim().meter(|meter| meter.bill_of(&id).unwrap());
    assert_eq!(bill(), Decimal::ZERO, "it was not started");
    world.act(&id, "poweron").await;
    world.0.advance(61);
    assert_eq!(
        bill(),
        Decimal::new(754, 3) * Decimal::from(2) / Decimal::from(60)
    );
    world
        .sim()
        .world(|world| world.happen(Happening::HaltedItself(id.clone())));
    let halted = world.server(&id).await;
    assert_eq!(
        (&halted["state"], &halted["public_ip"]),
        (&json!("stopped in place"), &Value::Null)
    );
    assert_eq!(world.sim().meter(|meter| meter.billed_now().len()), 1);
    assert_eq!(
        world.delete(&format!("{INSTANCES}/servers/{id}")).await.status,
        400
    );
    assert_eq!(world.act(&id, "terminate").await.status, 202);
    world.0.advance(5);
    assert!(world.sim().meter(|meter| meter.billed_now().is_empty()));

    let lost = world.start(order()).await;
    world.0.advance(20);
    world
        .sim()
        .world(|world| world.happen(Happening::Died(lost.clone())));
    assert_eq!(world.server(&lost).await["state"], "stopped");
    world.is_content();
}

#[tokio::test]
async fn an_order_that_is_wrong_says_of_what() {
    let world = world().await;
    let local = world.get(&format!("{INSTANCES}/images")).await.json();
    let images = local["images"].as_array().unwrap().iter();
    let local = images
        .clone()
        .find(|image| image["root_volume"]["volume_type"] == "l_ssd")
        .unwrap()["id"]
        .clone();
    let wrong = "invalid_arguments";
    for (name, value, status, kind) in [
        ("commercial_type", json!("H100-9-80G"), 400, wrong),
        ("image", json!("windows"), 404, "not_found"),
        ("image", local, 400, wrong),
        ("security_group", json!("another"), 404, "not_found"),
        ("public_ips", json!(["none"]), 501, "not_simulated"),
        ("volumes", json!({"0": {"size": 1}}), 400, wrong),
        ("volumes", json!({"0": {"volume_type": "l_ssd"}}), 400, wrong),
        (
            "volumes",
            json!({"1": {"size": 100_000_000_000_u64}}),
            501,
            "not_simulated",
        ),
        ("placement_group", json!("pg"), 501, "not_simulated"),
    ] {
        assert_eq!(
            world.refused(name, value.clone()).await,
            is(status, kind),
            "{name}: {value}"
        );
    }
    world.is_content();
    assert_eq!(world.refused("project", json!(null)).await, is(400, wrong));
    assert!(!world.sim().violations().is_empty(), "orders name a project");
    let path = "/instance/v1/zones/fr-par-9/servers";
    assert_eq!(refusal(&world.get(path).await), is(404, "not_found"));
    assert!(world.sim().meter(|meter| meter.leftovers("acme").is_empty()));
}

#[tokio::test]
async fn quota_and_keys_and_too_many_calls_are_told_by_their_types() {
    let world = world().await;
    world.sim().world(|world| {
        let account = world.accounts.get_mut("acme").unwrap();
        account.quotas.insert("instances".to_owned(), 1);
    });
    world.order(order()).await;
    assert_eq!(
        world.refused("name", json!("pool-1")).await,
        is(403, "quotas_exceeded")
    );
    let stranger = Client::new(world.0.url("scaleway")).with("authorization", "Bearer secret");
    let refused = refusal(&stranger.get(KEYS).await.unwrap());
    assert_eq!(refused, is(401, "denied_authentication"));
    for _ in 0..98 {
        assert_eq!(world.get(KEYS).await.status, 200);
    }
    let refused = world.get(KEYS).await;
    assert_eq!(
        (refusal(&refused), refused.header("retry-after")),
        (is(429, "too_many_requests"), None)
    );
    world.is_content();
}

#[tokio::test]
async fn an_order_whose_answer_is_lost_is_found_by_its_tags_and_name() {
    let world = world().await;
    let lost = Fault::Server {
        status: 502,
        when: When::After,
    };
    world.sim().fault(Rule::once("create", lost));
    assert_eq!(
        world.post(&format!("{INSTANCES}/servers"), order()).await.status,
        502
    );
    for (query, count) in [
        ("tags=skyward,pool%3Dp&project=p", 1),
        ("tags=skyward,other", 0),
        ("name=pool", 1),
        ("name=pool-00", 0),
        ("state=stopped", 1),
        ("project=q", 0),
    ] {
        let listed = world.get(&format!("{INSTANCES}/servers?{query}")).await;
        assert_eq!(listed.json()["total_count"], count, "{query}");
        assert_eq!(listed.header("x-total-count"), Some(count.to_string().as_str()));
    }
    let elsewhere = world.get("/instance/v1/zones/fr-par-1/servers").await;
    assert_eq!(elsewhere.json()["servers"], json!([]));
    world.is_content();
}
