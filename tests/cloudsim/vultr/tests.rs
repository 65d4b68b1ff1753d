//! Tests with hand-written requests, after the facts about the cloud.

mod sdk;

use http::Method;
use serde_json::{Value, json};

use super::Vultr;
use crate::core::client::{Client, Reply};
use crate::core::rest::Rest;
use crate::{Account, Builder, Fault, Happening, Left, Market, Rule, Shelf, Sim, Simulator};

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIF3d8JVnY8w3V0Q1yTzHn0y2jJ1YQG3hVYwJ0m3p6p2a me";
const NOBODY: &str = "00000000-0000-4000-8000-000000000000";

struct World(Simulator, Client);

async fn world() -> World {
    let simulator = Builder::manual().cloud(Rest::new(Vultr)).start().await.unwrap();
    let sim = simulator.cloud("vultr");
    sim.world(|world| world.add_account(Account::with_key("acme", "key")));
    let client = Client::new(simulator.url("vultr")).with("authorization", "Bearer key");
    World(simulator, client)
}

impl World {
    fn sim(&self) -> &Sim {
        self.0.cloud("vultr")
    }

    async fn get(&self, path: &str) -> Reply {
        self.1.get(&format!("/v2/{path}")).await.unwrap()
    }

    async fn post(&self, path: &str, body: Value) -> Reply {
        let path = format!("/v2/{path}");
        self.1.json(Method::POST, &path, body).await.unwrap()
    }

    async fn delete(&self, path: &str) -> u16 {
        let path = format!("/v2/{path}");
        self.1.call(Method::DELETE, &path).await.unwrap().status
    }

    async fn order(&self, order: Value) -> String {
        let made = self.post("instances", order).await;
        assert_eq!(made.status, 202, "{}", made.body);
        made.json()["instance"]["id"].as_str().unwrap().to_owned()
    }

    /// Status and text of a refused order.
    async fn refused(&self, name: &str, value: Value) -> (u16, String) {
        let mut order = order();
        order[name] = value;
        refusal(&self.post("instances", order).await)
    }

    async fn states(&self, id: &str) -> Value {
        let all = self.get(&format!("instances/{id}")).await.json();
        let one = &all["instance"];
        json!([one["status"], one["power_status"], one["server_status"]])
    }

    fn is_content(&self) {
        assert_eq!(self.sim().complaints(), Vec::<String>::new());
    }
}

fn refusal(reply: &Reply) -> (u16, String) {
    let body = reply.json();
    assert_eq!(body["status"], reply.status, "{}", reply.body);
    (
        reply.status,
        body["error"].as_str().unwrap_or_default().to_owned(),
    )
}

fn order() -> Value {
    json!({
        "region": "ewr", "plan": "vcg-a16-2c-8g-2vram", "os_id": 2284, "label": "pool-0", "hostname": "pool-0",
        "tags": ["skyward", "pool:p"], "user_data": "IyEvYmluL3NoCg==", "backups": "disabled", "user_scheme": "root",
        "block_devices": null,
    })
}

#[tokio::test]
async fn an_instance_is_ordered_installed_listed_and_deleted() {
    let world = world().await;
    let key = world
        .post("ssh-keys", json!({"name": "mine", "ssh_key": KEY}))
        .await
        .json();
    let key = key["ssh_key"]["id"].clone();
    let mut order = order();
    order["sshkey_id"] = json!([key]);
    let made = world.post("instances", order).await;
    assert_eq!(made.status, 202, "{}", made.body);
    let made = made.json()["instance"].clone();
    assert_eq!(
        (&made["main_ip"], &made["status"]),
        (&json!("0.0.0.0"), &json!("pending"))
    );
    assert_eq!(
        (&made["ram"], &made["tags"]),
        (&json!(8192), &json!(["skyward", "pool:p"]))
    );
    assert!(made["default_password"].is_string());
    let id = made["id"].as_str().unwrap();
    assert_eq!(world.states(id).await, json!(["pending", "running", "none"]));
    world.0.advance(6);
    assert_eq!(world.states(id).await, json!(["active", "running", "locked"]));
    let locked = world
        .1
        .call(Method::DELETE, &format!("/v2/instances/{id}"))
        .await
        .unwrap();
    assert!(refusal(&locked).1.contains("currently locked"), "{}", locked.body);
    world.0.advance(5);
    assert_eq!(
        world.states(id).await,
        json!(["active", "running", "installingbooting"])
    );
    world.0.advance(10);
    assert_eq!(world.states(id).await, json!(["active", "running", "ok"]));

    let listed = world.get("instances?tag=skyward&label=pool-0").await.json();
    assert_eq!(
        (&listed["meta"]["total"], &listed["instances"][0]["id"]),
        (&json!(1), &json!(id))
    );
    assert_ne!(listed["instances"][0]["main_ip"], "0.0.0.0");
    assert_eq!(listed["instances"][0]["default_password"], Value::Null);
    assert_eq!(
        world.get("instances?tag=other").await.json()["instances"],
        json!([])
    );

    assert_eq!(world.delete(&format!("instances/{id}")).await, 204);
    world.0.advance(10);
    assert_eq!(world.delete(&format!("instances/{id}")).await, 404);
    assert_eq!(world.get("instances").await.json()["instances"], json!([]));
    assert_eq!(
        world.delete(&format!("ssh-keys/{}", key.as_str().unwrap())).await,
        204
    );
    assert!(
        world
            .sim()
            .meter(|meter| meter.billed_now().is_empty() && meter.leftovers("acme").is_empty())
    );
    world.is_content();
}

#[tokio::test]
async fn an_hour_that_began_is_paid_and_a_halted_instance_goes_on_costing() {
    let world = world().await;
    let id = world.order(order()).await;
    world.0.advance(60);
    let bill = |world: &World| world.sim().meter(|meter| meter.bill("acme").to_string());
    assert_eq!(bill(&world), "0.1");
    let path = format!("instances/{id}/halt");
    assert_eq!(
        world
            .1
            .call(Method::POST, &format!("/v2/{path}"))
            .await
            .unwrap()
            .status,
        204
    );
    assert_eq!(world.states(&id).await, json!(["active", "stopped", "ok"]));
    world.0.advance(3_600);
    assert_eq!(bill(&world), "0.2");
    let account = world.get("account").await.json();
    assert_eq!(account["account"]["pending_charges"], 0.2);
    let path = format!("/v2/instances/{id}/start");
    assert_eq!(world.1.call(Method::POST, &path).await.unwrap().status, 204);
    world.0.advance(30);
    assert_eq!(world.states(&id).await, json!(["active", "running", "ok"]));
    world.is_content();
}

#[tokio::test]
async fn bare_metal_has_a_status_alone_and_plans_of_its_own() {
    let world = world().await;
    let mut order =
        json!({"region": "ord", "plan": "vbm-112c-2048gb-8-h100-gpu", "os_id": 2284, "tags": ["t"]});
    let elsewhere = world.post("instances", order.clone()).await;
    assert_eq!(refusal(&elsewhere), (400, "Invalid plan chosen.".to_owned()));
    let made = world.post("bare-metals", order.clone()).await;
    assert_eq!(made.status, 202, "{}", made.body);
    let made = made.json()["bare_metal"].clone();
    assert_eq!(
        (&made["status"], &made["main_ip"]),
        (&json!("pending"), &json!(""))
    );
    assert_eq!(
        (&made["power_status"], &made["ram"]),
        (&Value::Null, &json!("2097152 MB"))
    );
    let id = made["id"].as_str().unwrap();
    assert_eq!(
        world.delete(&format!("bare-metals/{id}")).await,
        400,
        "it is being provisioned"
    );
    assert_eq!(world.get(&format!("instances/{id}")).await.status, 404);
    world.0.advance(30);
    let running = world.get("bare-metals").await.json()["bare_metals"][0].clone();
    assert_eq!(running["status"], "active");
    assert_ne!(running["main_ip"], "");
    assert_eq!(world.sim().meter(|meter| meter.hourly("acme").to_string()), "24");
    assert_eq!(world.delete(&format!("bare-metals/{id}")).await, 204);
    order["plan"] = "vcg-a16-2c-8g-2vram".into();
    assert_eq!(world.post("bare-metals", order).await.status, 400);
    world.is_content();
}

#[tokio::test]
async fn plans_tell_a_month_of_730_hours_parts_of_gpus_and_where_some_are_left() {
    let world = world().await;
    let open = Client::new(world.0.url("vultr"));
    let plans = open.get("/v2/plans?type=vcg&per_page=500").await.unwrap().json();
    let plan = |id: &str| {
        let plans = plans["plans"].as_array().unwrap();
        plans.iter().find(|plan| plan["id"] == id).unwrap().clone()
    };
    let part = plan("vcg-a16-2c-8g-2vram");
    assert_eq!(
        (&part["gpu_vram_gb"], &part["gpu_type"]),
        (&json!(2), &json!("NVIDIA_A16"))
    );
    assert_eq!(
        (&part["hourly_cost"], &part["monthly_cost"]),
        (&json!(0.1), &json!(73))
    );
    assert_eq!(part["locations"], json!(["ewr", "lhr"]));
    assert_eq!(plan("vcg-a40-24c-120g-48vram")["hourly_cost"], Value::Null);
    assert_eq!(plan("vcg-a100-24c-240g-160vram")["locations"], json!([]));
    assert!(
        plans["plans"]
            .as_array()
            .unwrap()
            .iter()
            .all(|plan| plan["type"] == "vcg")
    );
    let metal = open.get("/v2/plans-metal").await.unwrap().json();
    assert_eq!(metal["plans_metal"][0]["monthly_cost"], 16_128);
    assert_eq!(metal["plans_metal"][0]["gpu_type"], Value::Null);

    let shelf = Shelf::new("vcg-a16-2c-8g-2vram", "ewr", Market::OnDemand);
    world.sim().world(|world| world.stock.set(shelf, Left::Count(0)));
    let left = open
        .get("/v2/regions/ewr/availability?type=vcg")
        .await
        .unwrap()
        .json();
    let left = left["available_plans"].as_array().unwrap();
    assert!(left.contains(&json!("vcg-a40-24c-120g-48vram")) && !left.contains(&part["id"]));
    let refused = world.post("instances", order()).await;
    assert_eq!(
        refusal(&refused),
        (400, "Plan is not available in the selected region.".to_owned())
    );
    let systems = open.get("/v2/os").await.unwrap().json();
    assert!(
        systems["os"]
            .as_array()
            .unwrap()
            .iter()
            .any(|system| system["id"] == 2284)
    );
    world.is_content();
}

#[tokio::test]
async fn an_order_that_is_wrong_says_of_what() {
    let world = world().await;
    for (name, value, status, text) in [
        ("plan", json!("vcg-none"), 400, "Invalid plan chosen."),
        ("region", json!("nowhere"), 404, "Invalid region ID."),
        ("os_id", json!(1), 404, "Invalid OS ID."),
        ("image_id", json!("docker"), 400, "Give one of os_id"),
        ("sshkey_id", json!([NOBODY]), 404, "Invalid ssh-key ID."),
        ("sshkey_id", json!(["mine"]), 400, "Invalid ssh-key ID format."),
        (
            "script_id",
            json!(NOBODY),
            501,
            "user data beside a startup script",
        ),
        ("firewall_group_id", json!(NOBODY), 501, "without firewall groups"),
        ("user_data", json!("no base64!"), 400, "Invalid user_data"),
        ("hostname", json!("-a"), 400, "Invalid hostname."),
        ("backups", json!("enabled"), 501, "without backups"),
        ("user_scheme", json!("limited"), 501, "users other than root"),
    ] {
        let refused = world.refused(name, value).await;
        assert_eq!(refused.0, status, "{name}: {refused:?}");
        assert!(refused.1.contains(text), "{name}: {refused:?}");
    }
    world.is_content();
    let refused = world.refused("ssh_keys", json!([])).await;
    assert_eq!(refused.0, 400, "{refused:?}");
    assert!(
        !world.sim().violations().is_empty(),
        "a field that is not described"
    );
    assert!(world.sim().meter(|meter| meter.billed_now().is_empty()));
}

#[tokio::test]
async fn money_and_quota_and_a_key_that_is_not_known_are_told_by_their_texts() {
    let world = world().await;
    let change = |change: fn(&mut Account)| {
        world
            .sim()
            .world(|world| change(world.accounts.get_mut("acme").unwrap()));
    };
    change(|account| account.balance = Some(rust_decimal::Decimal::ZERO));
    let refused = refusal(&world.post("instances", order()).await);
    assert!(
        refused.0 == 403 && refused.1.contains("insufficient funds"),
        "{refused:?}"
    );
    change(|account| {
        account.balance = None;
        account.quotas.insert("instances".to_owned(), 1);
    });
    world.order(order()).await;
    let refused = refusal(&world.post("instances", order()).await);
    assert!(
        refused.0 == 400 && refused.1.contains("maximum number of instances"),
        "{refused:?}"
    );
    let stranger = Client::new(world.0.url("vultr")).with("authorization", "Bearer other");
    let refused = refusal(&stranger.get("/v2/instances").await.unwrap());
    assert_eq!(refused, (401, "Invalid API token.".to_owned()));
    world.is_content();
}

#[tokio::test]
async fn thirty_calls_a_second_are_answered_whatever_the_account() {
    let world = world().await;
    let sim = world.sim();
    sim.world(|world| world.add_account(Account::with_key("other", "another")));
    let other = Client::new(world.0.url("vultr")).with("authorization", "Bearer another");
    for _ in 0..15 {
        assert_eq!(world.get("instances").await.status, 200);
        assert_eq!(other.get("/v2/ssh-keys").await.unwrap().status, 200);
    }
    assert_eq!(refusal(&world.get("instances").await).0, 429);
    world.0.advance(1);
    assert_eq!(world.get("instances").await.status, 200);
    world.is_content();
}

#[tokio::test]
async fn a_cursor_leads_through_all_pages_though_an_instance_goes_between() {
    let world = world().await;
    for _ in 0..5 {
        world.order(order()).await;
    }
    let first = world.get("instances?per_page=2").await.json();
    assert_eq!(
        (&first["meta"]["total"], &first["meta"]["links"]["prev"]),
        (&json!(5), &json!(""))
    );
    let ids = |page: &Value| -> Vec<String> {
        let machines = page["instances"].as_array().unwrap();
        machines
            .iter()
            .map(|one| one["id"].as_str().unwrap().to_owned())
            .collect()
    };
    let mut seen = ids(&first);
    world.0.advance(30);
    assert_eq!(world.delete(&format!("instances/{}", seen[1])).await, 204);
    world.0.advance(30);
    let mut next = first["meta"]["links"]["next"].as_str().unwrap().to_owned();
    while !next.is_empty() {
        let page = world
            .get(&format!("instances?per_page=2&cursor={next}"))
            .await
            .json();
        seen.extend(ids(&page));
        page["meta"]["links"]["next"]
            .as_str()
            .unwrap()
            .clone_into(&mut next);
    }
    seen.dedup();
    assert_eq!(seen.len(), 5);
    assert_eq!(world.get("instances?per_page=501").await.status, 400);
    assert_eq!(world.get("instances?cursor=what").await.status, 400);
    world.is_content();
}

#[tokio::test]
async fn a_host_that_is_lost_is_suspended_and_one_that_halts_itself_stopped_and_both_are_billed() {
    let world = world().await;
    let (lost, halted) = (world.order(order()).await, world.order(order()).await);
    world.0.advance(30);
    world.sim().world(|world| {
        world.happen(Happening::Died(lost.clone()));
        world.happen(Happening::HaltedItself(halted.clone()));
    });
    assert_eq!(world.states(&lost).await, json!(["suspended", "stopped", "none"]));
    assert_eq!(world.states(&halted).await, json!(["active", "stopped", "ok"]));
    assert_eq!(world.sim().meter(|meter| meter.billed_now().len()), 2);
    world.is_content();
}

#[tokio::test]
async fn keys_and_scripts_may_be_there_twice_and_are_found_by_their_ids() {
    let world = world().await;
    let key = json!({"name": "mine", "ssh_key": KEY});
    let first = world.post("ssh-keys", key.clone()).await;
    assert_eq!(
        (first.status, world.post("ssh-keys", key).await.status),
        (201, 201)
    );
    assert_eq!(world.get("ssh-keys").await.json()["meta"]["total"], 2);
    let id = first.json()["ssh_key"]["id"].as_str().unwrap().to_owned();
    assert_eq!(
        world.get(&format!("ssh-keys/{id}")).await.json()["ssh_key"]["ssh_key"],
        KEY
    );
    assert_eq!(
        world
            .post("ssh-keys", json!({"name": "n", "ssh_key": "text"}))
            .await
            .status,
        400
    );
    assert_eq!(world.delete("ssh-keys/mine").await, 400);
    assert_eq!(world.delete(&format!("ssh-keys/{NOBODY}")).await, 404);

    let script = json!({"name": "start", "script": "IyEvYmluL3NoCg==", "type": "boot"});
    let script = world.post("startup-scripts", script).await.json()["startup_script"].clone();
    let mut scripted = order();
    scripted["script_id"] = script["id"].clone();
    scripted.as_object_mut().unwrap().remove("user_data");
    let id = world.order(scripted).await;
    let boot = world.sim().world(|world| world.machines[&id].boot.clone());
    assert_eq!(
        boot.start,
        crate::backend::Start::UserData("#!/bin/sh\n".to_owned())
    );
    assert_eq!(boot.gpus, ["NVIDIA A16"]);
    world.is_content();
}

#[tokio::test]
async fn what_is_not_simulated_is_told_from_what_is_no_call() {
    let world = world().await;
    for (path, status) in [("snapshots", 501), ("instances/x/ipv4", 501), ("nothing", 404)] {
        assert_eq!(world.get(path).await.status, status, "{path}");
    }
    assert_eq!(world.get("vpcs").await.json()["code"], "not_simulated");
}

#[tokio::test]
async fn an_order_whose_answer_is_lost_is_found_by_its_label_and_a_shortage_leaves_nothing() {
    let world = world().await;
    world.sim().fault(Rule::once("create", Fault::NoCapacity));
    assert_eq!(refusal(&world.post("instances", order()).await).0, 400);
    let lost = Fault::Server {
        status: 502,
        when: crate::When::After,
    };
    world.sim().fault(Rule::once("instances.create", lost));
    assert_eq!(world.post("instances", order()).await.status, 502);
    let listed = world.get("instances?label=pool-0").await.json();
    assert_eq!(listed["meta"]["total"], 1);
    world.is_content();
}
