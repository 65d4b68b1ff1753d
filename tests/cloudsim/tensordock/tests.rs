//! Tests with hand-written requests, after the facts about the cloud.

mod forms;
mod market;

use http::Method;
use jiff::SignedDuration;
use rust_decimal::Decimal;
use serde_json::{Value, json};

use super::TensorDock;
use super::catalogue::CHICAGO;
use crate::backend::{Boot, SshWay, Start};
use crate::core::client::{Client, Reply};
use crate::core::rest::Rest;
use crate::{Account, BootEnd, BootPlan, Builder, Cause, Fault, Happening, Rule, Sim, Simulator, When};

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIF3d8JVnY8w3V0Q1yTzHn0y2jJ1YQG3hVYwJ0m3p6p2a me";
const MODEL: &str = "geforcertx4090-pcie-24gb";

struct World(Simulator, Client);

async fn world() -> World {
    let cloud = Rest::new(TensorDock::default());
    let simulator = Builder::manual().cloud(cloud).start().await.unwrap();
    let sim = simulator.cloud("tensordock");
    sim.world(|world| world.add_account(Account::with_key("acme", "token")));
    let client = Client::new(simulator.url("tensordock")).with("authorization", "Bearer token");
    World(simulator, client)
}

impl World {
    fn sim(&self) -> &Sim {
        self.0.cloud("tensordock")
    }

    async fn get(&self, path: &str) -> Reply {
        self.1.get(&format!("/api/v2/{path}")).await.unwrap()
    }

    async fn post(&self, path: &str, body: Value) -> Reply {
        let path = format!("/api/v2/{path}");
        self.1.json(Method::POST, &path, body).await.unwrap()
    }

    /// A POST without a body.
    async fn call(&self, path: &str) -> Reply {
        let path = format!("/api/v2/{path}");
        self.1.call(Method::POST, &path).await.unwrap()
    }

    async fn delete(&self, path: &str) -> Reply {
        let path = format!("/api/v2/{path}");
        self.1.call(Method::DELETE, &path).await.unwrap()
    }

    async fn try_order(&self, attributes: Value) -> Reply {
        let order = json!({ "data": { "type": "virtualmachine", "attributes": attributes } });
        self.post("instances", order).await
    }

    /// Orders a machine. Returns its id.
    async fn order(&self, attributes: Value) -> String {
        let made = self.try_order(attributes).await;
        assert_eq!(made.status, 200, "{}", made.body);
        made.json()["data"]["id"].as_str().unwrap().to_owned()
    }

    /// Orders a machine and waits until it has an address.
    async fn running(&self, attributes: Value) -> String {
        let id = self.order(attributes).await;
        self.0.advance(20);
        self.0.advance(3);
        let machine = self.machine(&id).await;
        assert!(machine["ipAddress"].is_string(), "{machine}");
        id
    }

    async fn machine(&self, id: &str) -> Value {
        self.get(&format!("instances/{id}")).await.json()
    }

    async fn status(&self, id: &str) -> Value {
        self.machine(id).await["status"].clone()
    }

    /// Status and text of an order that is refused for one of its fields.
    async fn refused(&self, name: &str, value: Value) -> (u16, String) {
        let mut order = order();
        order[name] = value;
        refusal(&self.try_order(order).await)
    }

    fn boot(&self, id: &str) -> Boot {
        self.sim().world(|world| world.machines[id].boot.clone())
    }

    /// What an hour costs now.
    fn hourly(&self) -> Decimal {
        self.sim().meter(|meter| meter.hourly("acme"))
    }

    fn is_content(&self) {
        assert_eq!(self.sim().complaints(), Vec::<String>::new());
    }
}

/// Status and text of a refusal in either form.
fn refusal(reply: &Reply) -> (u16, String) {
    let body = reply.json();
    let text = body["error"].as_str().or(body["message"].as_str());
    let text = text.unwrap_or_else(|| panic!("it says nothing: {body}"));
    (reply.status, text.to_owned())
}

/// An order for one RTX 4090 in Chicago: 0.35 + 4 × 0.003 + 16 × 0.002 + 100 × 0.00005 USD an hour.
fn order() -> Value {
    json!({
        "name": "pool-0-k3x9", "type": "virtualmachine", "image": "ubuntu2404_ml_everything",
        "location_id": CHICAGO.id, "ssh_key": KEY,
        "resources": {
            "vcpu_count": 4, "ram_gb": 16, "storage_gb": 100, "gpus": { MODEL: { "count": 1 } },
        },
        "port_forwards": [{ "internal_port": 22, "external_port": 0 }],
    })
}

/// A price in dollars, as it is written.
fn usd(text: &str) -> Decimal {
    text.parse().unwrap()
}

#[tokio::test]
async fn a_machine_is_said_to_run_when_it_is_ordered_and_has_its_address_after_it_runs() {
    let world = world().await;
    let made = world.try_order(order()).await.json()["data"].clone();
    assert_eq!(
        (&made["status"], &made["name"], &made["type"]),
        (&json!("running"), &json!("pool-0-k3x9"), &json!("virtualmachine"))
    );
    let id = made["id"].as_str().unwrap().to_owned();
    let created = world.machine(&id).await;
    assert_eq!(
        (
            &created["status"],
            &created["ipAddress"],
            &created["portForwards"]
        ),
        (&json!("creating"), &Value::Null, &json!([]))
    );
    assert_eq!(created["rateHourly"], 0.399);
    world.0.advance(5);
    assert_eq!(world.status(&id).await, "starting");
    world.0.advance(15);
    let booted = world.machine(&id).await;
    assert_eq!(
        (&booted["status"], &booted["ipAddress"]),
        (&json!("running"), &Value::Null)
    );
    world.0.advance(3);
    let running = world.machine(&id).await;
    assert_eq!(
        running["resources"]["gpus"],
        json!({ MODEL: { "count": 1 } }),
        "{running}"
    );
    let forward = &running["portForwards"][0];
    let port = world.sim().world(|world| {
        let endpoint = world.machines[&id].endpoint.as_ref().unwrap();
        endpoint.port
    });
    assert_eq!(
        (&forward["internal_port"], &forward["external_port"]),
        (&json!(22), &json!(port))
    );
    assert_ne!(port, 22);
    let boot = world.boot(&id);
    assert_eq!(
        (boot.user.as_str(), boot.authorized_keys.as_slice(), boot.start),
        ("user", &[KEY.to_owned()][..], Start::Nothing)
    );
    assert_eq!(boot.gpus, ["NVIDIA GeForce RTX 4090"]);
    world.is_content();
}

#[tokio::test]
async fn a_machine_is_shown_as_deleting_until_it_is_gone_and_its_second_deletion_finds_nothing() {
    let world = world().await;
    let id = world.running(order()).await;
    let path = format!("instances/{id}");
    let deleted = world.delete(&path).await;
    assert_eq!(
        (deleted.status, &deleted.json()["data"]["type"]),
        (200, &json!("success"))
    );
    assert_eq!(world.status(&id).await, "deleting");
    assert_eq!(world.delete(&path).await.status, 404);
    assert_eq!(world.hourly(), Decimal::ZERO);
    world.0.advance(5);
    assert_eq!(
        refusal(&world.get(&path).await),
        (404, "Instance not found".to_owned())
    );
    assert_eq!(world.delete(&path).await.status, 404);
    world.is_content();
}

#[tokio::test]
async fn a_machine_is_billed_by_the_second_from_its_order_on_for_all_its_parts() {
    let world = world().await;
    let mut large = order();
    large["resources"] = json!({
        "vcpu_count": 8, "ram_gb": 64, "storage_gb": 200, "gpus": { MODEL: { "count": 2 } },
    });
    let id = world.order(large).await;
    assert_eq!(world.hourly(), usd("0.862"));
    world.0.advance(3_599);
    world.delete(&format!("instances/{id}")).await;
    world.0.advance(3_600);
    let bill = world.sim().meter(|meter| meter.bill("acme"));
    assert_eq!(bill, usd("0.862") * Decimal::from(3_599) / Decimal::from(3_600));
    world.is_content();
}

#[tokio::test]
async fn a_stopped_machine_costs_its_disk_and_the_gpus_that_it_keeps() {
    let world = world().await;
    let id = world.running(order()).await;
    let path = |call: &str| format!("instances/{id}/{call}");
    assert_eq!(world.hourly(), usd("0.399"));
    assert_eq!(
        refusal(&world.call(&path("start")).await).0,
        400,
        "it runs already"
    );
    let stopped = world.call(&path("stop")).await.json()["data"].clone();
    assert_eq!(
        (&stopped["id"], &stopped["attributes"]["status"]),
        (&json!(id), &json!("stopping"))
    );
    assert_eq!(
        (world.status(&id).await, world.hourly()),
        (json!("stopping"), usd("0.355"))
    );
    world.0.advance(3);
    assert_eq!(world.status(&id).await, "stopped");
    assert_eq!(refusal(&world.call(&path("stop")).await).0, 400, "it is stopped");
    assert_eq!(world.call(&path("start")).await.status, 200);
    assert_eq!(
        (world.status(&id).await, world.hourly()),
        (json!("starting"), usd("0.399"))
    );
    world.0.advance(23);
    assert_eq!(world.status(&id).await, "running");
    world.is_content();
}

#[tokio::test]
async fn a_machine_that_loses_its_gpus_to_their_host_costs_its_disk_alone() {
    let world = world().await;
    let (running, stopped) = (world.running(order()).await, world.running(order()).await);
    world.call(&format!("instances/{stopped}/stop")).await;
    world.sim().world(|world| {
        world.reclaim(&running, SignedDuration::ZERO);
        world.reclaim(&stopped, SignedDuration::ZERO);
    });
    world.0.advance(3);
    for id in [&running, &stopped] {
        assert_eq!(world.status(id).await, "stoppeddisassociated");
    }
    assert_eq!(world.hourly(), usd("0.01"));
    let started = world.call(&format!("instances/{stopped}/start")).await;
    assert_eq!(started.status, 200, "{}", started.body);
    assert_eq!(world.hourly(), usd("0.404"));
    world.is_content();
}

#[tokio::test]
async fn a_guest_that_halts_is_stopped_and_costs_on_and_one_whose_host_is_lost_is_in_error() {
    let world = world().await;
    let (halted, lost) = (world.running(order()).await, world.running(order()).await);
    world.sim().world(|world| {
        world.happen(Happening::HaltedItself(halted.clone()));
        world.happen(Happening::Died(lost.clone()));
    });
    world.0.advance(1);
    assert_eq!(
        (world.status(&halted).await, world.status(&lost).await),
        (json!("stopped"), json!("error"))
    );
    assert_eq!(world.hourly(), usd("0.754"));
    world.is_content();
}

#[tokio::test]
async fn a_boot_that_fails_is_an_error_that_costs_until_it_is_deleted() {
    let world = world().await;
    let plan = BootPlan {
        takes: SignedDuration::from_secs(30),
        ends: BootEnd::Fails(Cause::NoCapacity),
    };
    world.sim().fault(Rule::once("create", Fault::Boot(plan)));
    let id = world.order(order()).await;
    world.0.advance(30);
    assert_eq!(
        (world.status(&id).await, world.hourly()),
        (json!("error"), usd("0.399"))
    );
    assert_eq!(world.delete(&format!("instances/{id}")).await.status, 200);
    assert_eq!(world.hourly(), Decimal::ZERO);
    world.is_content();
}

#[tokio::test]
async fn a_running_machine_can_lose_its_address() {
    let world = world().await;
    let id = world.running(order()).await;
    let lose = |lost: bool| {
        let body = json!({ "machine": id, "lost": lost });
        world.sim().control("address", &body).unwrap()
    };
    lose(true).unwrap();
    let without = world.machine(&id).await;
    assert_eq!(
        (&without["status"], &without["ipAddress"]),
        (&json!("running"), &Value::Null)
    );
    lose(false).unwrap();
    assert!(world.machine(&id).await["ipAddress"].is_string());
    let unknown = json!({ "machine": "none", "lost": true });
    assert!(world.sim().control("address", &unknown).unwrap().is_err());
    world.is_content();
}

#[tokio::test]
async fn an_order_whose_answer_is_lost_is_found_by_its_name_and_a_second_one_makes_a_second_machine() {
    let world = world().await;
    let lost = Fault::Server {
        status: 504,
        when: When::After,
    };
    world.sim().fault(Rule::once("instances.create", lost));
    assert_eq!(world.try_order(order()).await.status, 504);
    let listed = world.get("instances").await.json()["data"]["instances"].clone();
    assert_eq!(
        (listed.as_array().unwrap().len(), &listed[0]["attributes"]["name"]),
        (1, &json!("pool-0-k3x9"))
    );
    world.order(order()).await;
    assert_eq!(world.sim().meter(|meter| meter.doubled("name").len()), 1);
    world.is_content();
}

#[tokio::test]
async fn an_order_has_exactly_one_key_and_exactly_one_place() {
    let world = world().await;
    let without = |name: &str| {
        let mut order = order();
        order.as_object_mut().unwrap().remove(name);
        order
    };
    for (attributes, text) in [
        (without("ssh_key"), "An SSH key is required"),
        (
            without("location_id"),
            "Provide exactly one of location_id and hostnode_id",
        ),
    ] {
        assert_eq!(
            refusal(&world.try_order(attributes).await),
            (400, text.to_owned())
        );
    }
    for (name, value, status) in [
        ("ssh_key", json!("no key"), 400),
        ("ssh_key_id", json!("other"), 400),
        ("hostnode_id", json!("other"), 400),
        ("location_id", json!("nowhere"), 400),
        ("image", json!("ubuntu9999"), 400),
        ("image", json!("windows10"), 501),
    ] {
        assert_eq!(
            world.refused(name, value.clone()).await.0,
            status,
            "{name} {value}"
        );
    }
    assert_eq!(world.sim().world(|world| world.machines.len()), 0);
    world.is_content();
    assert_eq!(world.refused("colour", "red".into()).await.0, 400);
    assert!(!world.sim().violations().is_empty());
}

#[tokio::test]
async fn a_key_can_be_a_secret_that_an_order_names() {
    let world = world().await;
    let store = async |kind: &str| {
        let attributes = json!({ "name": "mine", "type": kind, "value": KEY });
        let body = json!({ "data": { "type": "secret", "attributes": attributes } });
        let made = world.post("secrets", body).await;
        assert_eq!(made.status, 200, "{}", made.body);
        made.json()["data"].clone()
    };
    let (key, other) = (store("SSHKEY").await, store("PASSWORD").await);
    assert!(key["value"].is_null(), "{key}");
    let listed = world.get("secrets").await.json()["data"]["secrets"].clone();
    assert!(listed.as_array().unwrap().contains(&key), "{listed}");
    let named = |secret: &Value| {
        let mut order = order();
        order.as_object_mut().unwrap().remove("ssh_key");
        order["ssh_key_id"] = secret["id"].clone();
        order
    };
    assert_eq!(refusal(&world.try_order(named(&other)).await).0, 400, "no key");
    let id = world.order(named(&key)).await;
    assert_eq!(world.boot(&id).authorized_keys, [KEY]);
    assert_eq!(world.sim().meter(|meter| meter.leftovers("acme").len()), 2);
    for secret in [key, other] {
        let path = format!("secrets/{}", secret["id"].as_str().unwrap());
        assert_eq!(world.delete(&path).await.status, 200);
        assert_eq!(world.delete(&path).await.status, 404);
    }
    assert!(world.sim().meter(|meter| meter.leftovers("acme").is_empty()));
    world.is_content();
}

#[tokio::test]
async fn cloud_init_is_an_object_that_a_machine_gets_as_user_data() {
    let world = world().await;
    let mut scripted = order();
    scripted["cloud_init"] = json!({
        "packages": [], "package_update": false,
        "write_files": [{ "path": "/etc/a", "content": "b\n", "permissions": "0600" }],
        "runcmd": ["touch /ready"],
    });
    let id = world.order(scripted).await;
    let Start::UserData(text) = world.boot(&id).start else {
        panic!("it has no user data");
    };
    let config: Value = serde_json::from_str(text.strip_prefix("#cloud-config\n").unwrap()).unwrap();
    assert_eq!(
        (&config["runcmd"], &config["packages"]),
        (&json!(["touch /ready"]), &Value::Null)
    );
    assert_eq!(config["write_files"][0]["permissions"], "0600");
    world.is_content();
    assert_eq!(
        world.refused("cloud_init", "#!/bin/sh".into()).await.0,
        400,
        "a text"
    );
}

#[tokio::test]
async fn an_image_without_machine_learning_has_no_driver_for_certain() {
    let world = world().await;
    let mut plain = order();
    plain["image"] = "ubuntu2404".into();
    let id = world.order(plain).await;
    assert!(world.boot(&id).gpus.is_empty());
    world.is_content();
}

#[tokio::test]
async fn a_dedicated_address_has_all_ports_and_costs_more() {
    let world = world().await;
    let mut dedicated = order();
    dedicated["useDedicatedIp"] = true.into();
    dedicated.as_object_mut().unwrap().remove("port_forwards");
    let id = world.running(dedicated).await;
    assert_eq!(world.boot(&id).ssh, SshWay::Direct);
    assert_eq!(world.machine(&id).await["portForwards"], json!([]));
    assert_eq!(world.hourly(), usd("0.401"));
    world.is_content();
}

#[tokio::test]
async fn a_token_that_is_wrong_or_may_not_is_refused_and_a_right_one_tells_its_organization() {
    let world = world().await;
    let told = world.call("auth/test").await;
    assert_eq!(
        (told.status, told.json()),
        (200, json!({ "success": true, "organizationId": "acme" }))
    );
    let stranger = Client::new(world.0.url("tensordock")).with("authorization", "Bearer other");
    let refused = stranger.get("/api/v2/instances").await.unwrap();
    assert_eq!(refusal(&refused), (401, "Unauthorized".to_owned()));
    let open = stranger.get("/api/v2/locations").await.unwrap();
    assert_eq!(open.status, 200, "locations are for everybody");
    world.sim().fault(Rule::once("instances.list", Fault::Forbidden));
    assert_eq!(
        refusal(&world.get("instances").await),
        (403, "Forbidden".to_owned())
    );
    world.is_content();
}

#[tokio::test]
async fn an_organization_has_a_hundred_requests_a_minute_and_is_told_how_many_are_left() {
    let world = world().await;
    for left in (0..100).rev() {
        let answer = world.get("instances").await;
        let text = left.to_string();
        assert_eq!(
            (answer.status, answer.header("x-ratelimit-remaining")),
            (200, Some(text.as_str()))
        );
    }
    let refused = world.get("instances").await;
    assert_eq!(refusal(&refused).0, 429);
    assert!(refused.header("retry-after").is_some());
    world.0.advance(61);
    assert_eq!(world.get("instances").await.status, 200);
    world.is_content();
}

#[tokio::test]
async fn what_is_not_simulated_is_told_from_what_is_no_call() {
    let world = world().await;
    for (path, status) in [
        ("hostnodes/7", 501),
        ("secrets/7", 501),
        ("instances/7/logs", 501),
        ("nothing", 404),
    ] {
        assert_eq!(world.get(path).await.status, status, "{path}");
    }
    assert_eq!(world.get("secrets/7").await.json()["error"], "not_simulated");
}
