//! Tests with hand-written requests, after the facts about the cloud.

mod lists;
mod orders;
mod sdk;

use http::Method;
use rust_decimal::Decimal;
use serde_json::{Value, json};

use super::JarvisLabs;
use crate::backend::{SshWay, Start};
use crate::core::client::{Client, Reply};
use crate::core::rest::Rest;
use crate::{Account, BootEnd, BootPlan, Cause, Fault, Happening, Rule, Sim, Simulator};

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIF3d8JVnY8w3V0Q1yTzHn0y2jJ1YQG3hVYwJ0m3p6p2a me";

struct World(Simulator, Client);

async fn world() -> World {
    let cloud = Rest::new(JarvisLabs::default());
    let simulator = crate::Builder::manual().cloud(cloud).start().await.unwrap();
    let sim = simulator.cloud("jarvislabs");
    sim.world(|world| world.add_account(Account::with_key("acme", "token")));
    let client = Client::new(simulator.url("jarvislabs")).with("authorization", "Bearer token");
    World(simulator, client)
}

/// A world with a key.
async fn furnished() -> World {
    let world = world().await;
    let added = world
        .post("/ssh/", json!({"ssh_key": KEY, "key_name": "mine"}))
        .await;
    assert_eq!(added.status, 200);
    world
}

impl World {
    fn sim(&self) -> &Sim {
        self.0.cloud("jarvislabs")
    }

    /// The client at the host of a region.
    fn at(&self, host: &str) -> Client {
        self.1.clone().with("host", host)
    }

    async fn get(&self, path: &str) -> Reply {
        self.1.get(path).await.unwrap()
    }

    async fn post(&self, path: &str, body: Value) -> Reply {
        self.1.json(Method::POST, path, body).await.unwrap()
    }

    /// A call without a body.
    async fn call(&self, method: Method, path: &str) -> Reply {
        self.1.call(method, path).await.unwrap()
    }

    /// Does something with a container.
    async fn act(&self, what: &str, id: &str) -> Reply {
        self.call(Method::POST, &format!("/misc/{what}?machine_id={id}"))
            .await
    }

    /// Orders an instance. Returns its id.
    async fn order(&self, template: &str, order: Value) -> String {
        let made = self.post(&format!("/templates/{template}/create"), order).await;
        assert_eq!(made.status, 200, "{}", made.body);
        let id = made.json()["machine_id"].as_u64();
        id.unwrap_or_else(|| panic!("{}", made.body)).to_string()
    }

    /// Orders an instance and waits until it tells its command for SSH.
    async fn running(&self, template: &str, order: Value) -> String {
        let id = self.order(template, order).await;
        self.0.advance(20);
        self.0.advance(3);
        assert_eq!(self.status(&id).await, "Running");
        id
    }

    async fn instance(&self, id: &str) -> Value {
        self.get(&format!("/users/fetch/{id}")).await.json()["instance"].clone()
    }

    async fn status(&self, id: &str) -> Value {
        self.instance(id).await["status"].clone()
    }

    /// The listed instances.
    async fn listed(&self) -> Vec<Value> {
        let list = self.get("/users/fetch").await.json();
        assert_eq!(list["success"], true);
        list["instances"].as_array().unwrap().clone()
    }

    /// Status and text of an order that is refused for one of its fields.
    async fn refused(&self, template: &str, name: &str, value: Value) -> (u16, String) {
        let mut order = order();
        order[name] = value;
        refusal(&self.post(&format!("/templates/{template}/create"), order).await)
    }

    /// What an hour costs now.
    fn hourly(&self) -> Decimal {
        self.sim().meter(|meter| meter.hourly("acme"))
    }

    fn is_content(&self) {
        assert_eq!(self.sim().complaints(), Vec::<String>::new());
    }
}

/// Status and text of an answer that is a failure.
fn refusal(reply: &Reply) -> (u16, String) {
    let body = reply.json();
    assert!(
        body.get("machine_id").is_none() && body["success"] != true,
        "{body}"
    );
    let texts = [
        &body["message"],
        &body["error"],
        &body["detail"],
        &body["detail"][0]["msg"],
    ];
    let text = texts.into_iter().find_map(Value::as_str);
    (reply.status, text.unwrap_or_else(|| panic!("{body}")).to_owned())
}

fn order() -> Value {
    json!({
        "gpu_type": "H100", "num_gpus": 1, "hdd": 100, "region": "india-noida-01", "name": "pool a-0",
        "is_spot": false, "duration": "hour", "disk_type": "ssd", "http_ports": "", "script_id": null,
        "script_args": "", "fs_id": null, "arguments": "",
    })
}

/// The order with another value in a field.
fn order_with(name: &str, value: impl Into<Value>) -> Value {
    let mut order = order();
    order[name] = value.into();
    order
}

/// A price in dollars, as it is written.
fn usd(text: &str) -> Decimal {
    text.parse().unwrap()
}

#[tokio::test]
async fn a_container_is_unknown_at_first_then_created_runs_tells_how_to_log_in_and_is_destroyed() {
    let world = furnished().await;
    let id = world.order("pytorch", order()).await;
    let path = format!("/users/fetch/{id}");
    let status = format!("/misc/status?machine_id={id}");
    assert_eq!(world.listed().await[0]["status"], "Pending");
    assert_eq!(
        (world.get(&path).await.status, world.get(&status).await.status),
        (404, 404)
    );
    world.0.advance(3);
    let made = world.instance(&id).await;
    assert_eq!(
        (&made["status"], &made["ssh_str"]),
        (&json!("Creating"), &Value::Null)
    );
    assert_eq!(
        (&made["instance_name"], &made["framework"], &made["hdd"]),
        (&json!("pool a-0"), &json!("pytorch"), &json!(100))
    );
    let told = world.get(&status).await.json();
    assert_eq!(
        (&told["status"], &told["error"]),
        (&json!("Creating"), &Value::Null)
    );
    world.0.advance(17);
    let ran = world.instance(&id).await;
    assert_eq!(
        (&ran["status"], &ran["ssh_str"]),
        (&json!("Running"), &Value::Null)
    );
    assert_eq!(world.get(&status).await.json()["status"], "Running");
    world.0.advance(3);
    let instance = world.instance(&id).await;
    let ssh = instance["ssh_str"].as_str().unwrap();
    assert!(
        ssh.starts_with("ssh -o StrictHostKeyChecking=no -p 1") && ssh.ends_with(" root@198.19.0.1"),
        "{ssh}"
    );
    assert_eq!(
        (&instance["public_ip"], &instance["region"]),
        (&Value::Null, &json!("india-noida-01"))
    );
    assert_eq!(world.listed().await, [instance]);
    let boot = world.sim().world(|world| world.machines[&id].boot.clone());
    assert_eq!(
        (boot.user.as_str(), boot.ssh, boot.start),
        ("root", SshWay::Mapped, Start::Nothing)
    );
    assert_eq!(
        (boot.authorized_keys.as_slice(), boot.gpus.as_slice()),
        (&[KEY.to_owned()][..], &["NVIDIA H100".to_owned()][..])
    );

    let destroyed = world.act("destroy", &id).await;
    assert_eq!(
        (destroyed.status, &destroyed.json()["sucess"]),
        (200, &json!("True"))
    );
    assert_eq!(world.status(&id).await, "Destroying");
    world.0.advance(5);
    assert_eq!(world.get(&path).await.status, 404);
    assert_eq!(world.listed().await[0]["status"], "Destroyed");
    world.0.advance(5);
    assert_eq!(world.listed().await, Vec::<Value>::new());
    assert_eq!(world.act("destroy", &id).await.status, 404);
    assert!(world.sim().meter(|meter| meter.billed_now().is_empty()));
    world.is_content();
}

#[tokio::test]
async fn a_vm_needs_a_key_has_an_address_and_is_ended_by_its_own_path_alone() {
    let world = world().await;
    assert_eq!(
        world.refused("vm", "name", "v".into()).await,
        (400, "Add an SSH key before you create a VM".to_owned())
    );
    world
        .post("/ssh/", json!({"ssh_key": KEY, "key_name": "mine"}))
        .await;
    let id = world.running("vm", order()).await;
    let vm = world.instance(&id).await;
    let address = vm["public_ip"].as_str().unwrap();
    assert_eq!(
        vm["ssh_str"],
        format!("ssh -o StrictHostKeyChecking=no cloud@{address}")
    );
    for what in ["destroy", "pause"] {
        let refused = refusal(&world.act(what, &id).await);
        assert_eq!(refused, (200, "This is no such instance".to_owned()), "{what}");
    }
    assert_eq!(world.status(&id).await, "Running");
    let own = format!("/templates/vm/destroy?machine_id={id}");
    assert_eq!(world.call(Method::POST, &own).await.status, 200);
    assert_eq!(world.status(&id).await, "Destroying");
    let of_container = world.running("pytorch", order()).await;
    let wrong = format!("/templates/vm/destroy?machine_id={of_container}");
    assert_eq!(refusal(&world.call(Method::POST, &wrong).await).0, 200);
    assert_eq!(world.status(&of_container).await, "Running");
    let cpu = format!("/templates/vm/cpu/destroy?machine_id={of_container}");
    assert_eq!(world.call(Method::POST, &cpu).await.status, 501);
}

#[tokio::test]
async fn an_instance_is_ordered_told_and_ended_at_the_host_of_its_region_alone() {
    let world = furnished().await;
    let (noida, chennai) = (
        world.at("backendn.jarvislabs.net"),
        world.at("backendc.jarvislabs.net"),
    );
    let ordered = chennai
        .json(Method::POST, "/templates/jax/create", order())
        .await
        .unwrap();
    assert_eq!(refusal(&ordered).0, 400);
    let ordered = noida
        .json(Method::POST, "/templates/jax/create", order())
        .await
        .unwrap();
    let id = ordered.json()["machine_id"].to_string();
    world.0.advance(5);
    let status = format!("/misc/status?machine_id={id}");
    assert_eq!(chennai.get(&status).await.unwrap().status, 404);
    assert_eq!(noida.get(&status).await.unwrap().status, 200);
    let destroy = format!("/misc/destroy?machine_id={id}");
    assert_eq!(chennai.call(Method::POST, &destroy).await.unwrap().status, 404);
    assert_eq!(world.status(&id).await, "Creating");
    assert_eq!(noida.call(Method::POST, &destroy).await.unwrap().status, 200);
    assert_eq!(world.status(&id).await, "Destroying");
    world.is_content();
}

#[tokio::test]
async fn a_minute_that_was_begun_is_billed_from_the_order_on_with_the_disk() {
    let world = furnished().await;
    let id = world.order("pytorch", order()).await;
    let hour = usd("2.7037");
    assert_eq!(world.hourly(), hour);
    world.0.advance(61);
    let cost = world.instance(&id).await["cost"].as_f64().unwrap();
    assert!((cost - 0.090_123).abs() < 0.000_001, "two minutes: {cost}");
    world.act("destroy", &id).await;
    world.0.advance(3_600);
    let bill = world.sim().meter(|meter| meter.bill("acme"));
    assert_eq!(bill, hour / Decimal::from(30));
    let alone = world.sim().control("servers", &json!({"alone": true}));
    assert!(alone.is_some_and(|done| done.is_ok()));
    world.order("pytorch", order()).await;
    assert_eq!(world.hourly(), usd("2.69"), "without the disk");
    world.is_content();
}

#[tokio::test]
async fn a_paused_instance_and_a_spot_instance_that_is_taken_back_cost_their_disks_alone() {
    let world = furnished().await;
    let id = world.running("pytorch", order()).await;
    let spot = world.running("pytorch", order_with("is_spot", true)).await;
    assert_eq!(world.instance(&spot).await["is_spot"], true);
    assert_eq!(world.hourly(), usd("2.7037") + usd("1.3537"));
    let login = world.instance(&id).await["ssh_str"].clone();
    assert_eq!(world.act("pause", &id).await.status, 200);
    assert_eq!(refusal(&world.act("pause", &id).await).0, 200, "it does not run");
    world
        .sim()
        .world(|world| world.reclaim(&spot, jiff::SignedDuration::ZERO));
    world.0.advance(1);
    for id in [&id, &spot] {
        assert_eq!(world.status(id).await, "Pausing");
    }
    world.0.advance(3);
    let paused = world.instance(&id).await;
    assert_eq!(
        (&paused["status"], &paused["ssh_str"]),
        (&json!("Paused"), &login)
    );
    assert_eq!(world.status(&spot).await, "Paused");
    assert_eq!(world.hourly(), usd("0.0274"));
    for id in [&id, &spot] {
        assert_eq!(world.act("destroy", id).await.status, 200);
    }
    world.0.advance(10);
    assert_eq!(world.hourly(), Decimal::ZERO);
    world.is_content();
}

#[tokio::test]
async fn a_guest_that_halts_is_paused_and_costs_in_full_and_one_whose_host_is_lost_has_failed() {
    let world = furnished().await;
    let (halted, lost) = (
        world.running("pytorch", order()).await,
        world.running("pytorch", order()).await,
    );
    world.sim().world(|world| {
        world.happen(Happening::HaltedItself(halted.clone()));
        world.happen(Happening::Died(lost.clone()));
    });
    world.0.advance(4);
    assert_eq!(
        (world.status(&halted).await, world.status(&lost).await),
        (json!("Paused"), json!("Failed"))
    );
    assert_eq!(world.hourly(), usd("5.4074"));
    let told = world.get(&format!("/misc/status?machine_id={lost}")).await.json();
    assert_eq!(
        (&told["status"], &told["error"]),
        (&json!("Failed"), &json!("The server is lost"))
    );
    world.is_content();
}

#[tokio::test]
async fn a_boot_that_fails_says_why_and_one_that_never_ends_can_be_destroyed() {
    let world = furnished().await;
    let plan = |ends| BootPlan {
        takes: jiff::SignedDuration::from_secs(30),
        ends,
    };
    let fails = Fault::Boot(plan(BootEnd::Fails(Cause::NoCapacity)));
    world.sim().fault(Rule::once("create", fails));
    let id = world.order("pytorch", order()).await;
    world.0.advance(30);
    let told = world.get(&format!("/misc/status?machine_id={id}")).await.json();
    assert_eq!(
        (&told["status"], &told["error"]),
        (&json!("Failed"), &json!("No free GPUs"))
    );
    assert_eq!(world.act("destroy", &id).await.status, 200);
    let never = Fault::Boot(plan(BootEnd::Never));
    world.sim().fault(Rule::once("create", never));
    let stuck = world.order("pytorch", order()).await;
    world.0.advance(86_400);
    assert_eq!(world.status(&stuck).await, "Creating");
    assert_eq!(world.act("destroy", &stuck).await.status, 200);
    world.0.advance(10);
    assert_eq!(world.hourly(), Decimal::ZERO);
    world.is_content();
}

#[tokio::test]
async fn a_person_may_give_an_instance_another_name() {
    let world = furnished().await;
    let id = world.running("pytorch", order()).await;
    let rename = async |name: &str| {
        let path = format!("/machines/machine_name?machine_id={id}&machine_name={name}");
        world.call(Method::PUT, &path).await
    };
    assert_eq!(rename("my%20own").await.status, 200);
    assert_eq!(world.listed().await[0]["instance_name"], "my own");
    assert_eq!(refusal(&rename("a/b").await).0, 400);
    assert_eq!(refusal(&rename(&"x".repeat(41)).await).0, 400);
    let elsewhere = format!("/machines/machine_name?machine_id=7&machine_name={id}");
    assert_eq!(world.call(Method::PUT, &elsewhere).await.status, 404);
    world.is_content();
}

#[tokio::test]
async fn refusals_are_told_in_the_three_ways_of_the_service() {
    let world = furnished().await;
    let stranger = Client::new(world.0.url("jarvislabs")).with("authorization", "Bearer other");
    let refused = stranger.get("/users/fetch").await.unwrap();
    assert_eq!(
        (refused.status, refused.json()),
        (401, json!({"detail": "Invalid token"}))
    );
    for (fault, status, body) in [
        (Fault::Forbidden, 403, json!({"detail": "You may not do this"})),
        (
            Fault::TooMany { retry_after: None },
            429,
            json!({"message": "Too many requests"}),
        ),
        (
            Fault::Funds,
            403,
            json!({"detail": "Insufficient balance. Please recharge your wallet"}),
        ),
        (
            Fault::NoCapacity,
            200,
            json!({"success": false, "message": "No free GPUs of this type right now"}),
        ),
        (
            Fault::Quota {
                what: "gpus".to_owned(),
            },
            200,
            json!({"success": false, "message": "You have reached the limit of gpus"}),
        ),
    ] {
        world.sim().fault(Rule::once("instances.create", fault));
        let refused = world.post("/templates/pytorch/create", order()).await;
        assert_eq!((refused.status, refused.json()), (status, body));
    }
    assert!(world.sim().world(|world| world.machines.is_empty()));
    world.is_content();
    let wrong = world.post("/ssh/", json!({"name": "mine"})).await;
    assert_eq!(wrong.status, 422);
    assert_eq!(wrong.json()["detail"][0]["loc"], json!(["body"]));
}
