//! Tests with hand-written requests, after the facts about the cloud.

mod lists;
mod market;
mod rules;
mod sdk;

use http::Method;
use rust_decimal::Decimal;
use serde_json::{Value, json};

use super::Hyperstack;
use crate::backend::{SshWay, Start};
use crate::core::client::{Client, Reply};
use crate::core::rest::Rest;
use crate::{Account, BootEnd, BootPlan, Cause, Fault, Happening, Rule, Sim, Simulator, When};

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIF3d8JVnY8w3V0Q1yTzHn0y2jJ1YQG3hVYwJ0m3p6p2a me";
const IMAGE: &str = "Ubuntu Server 24.04 LTS R570 CUDA 12.8 with Docker";
const CREATED_STILL: &str = "pool-0 is currently being created and cannot be deleted yet. Please wait until the \
                             creation process is finished before attempting deletion.";

struct World(Simulator, Client);

async fn world() -> World {
    let cloud = Rest::new(Hyperstack::default());
    let simulator = crate::Builder::manual().cloud(cloud).start().await.unwrap();
    let sim = simulator.cloud("hyperstack");
    sim.world(|world| world.add_account(Account::with_key("acme", "key")));
    let client = Client::new(simulator.url("hyperstack")).with("api_key", "key");
    World(simulator, client)
}

/// A world with the environment `env` in CANADA-1, and the key `mine` in it.
async fn furnished() -> World {
    let world = world().await;
    let environment = json!({"name": "env", "region": "CANADA-1"});
    assert_eq!(world.post("environments", environment).await.status, 200);
    let key = json!({"name": "mine", "environment_name": "env", "public_key": KEY});
    assert_eq!(world.post("keypairs", key).await.status, 200);
    world
}

impl World {
    fn sim(&self) -> &Sim {
        self.0.cloud("hyperstack")
    }

    async fn get(&self, path: &str) -> Reply {
        self.1.get(&format!("/v1/core/{path}")).await.unwrap()
    }

    async fn post(&self, path: &str, body: Value) -> Reply {
        let path = format!("/v1/core/{path}");
        self.1.json(Method::POST, &path, body).await.unwrap()
    }

    /// A POST without a body.
    async fn call(&self, path: &str) -> Reply {
        let path = format!("/v1/core/{path}");
        self.1.call(Method::POST, &path).await.unwrap()
    }

    async fn delete(&self, path: &str) -> Reply {
        let path = format!("/v1/core/{path}");
        self.1.call(Method::DELETE, &path).await.unwrap()
    }

    /// Orders a VM. Returns its id.
    async fn order(&self, order: Value) -> String {
        let made = self.post("virtual-machines", order).await;
        assert_eq!(made.status, 200, "{}", made.body);
        made.json()["instances"][0]["id"].to_string()
    }

    /// Orders a VM and waits until its address is attached.
    async fn running(&self, order: Value) -> String {
        let id = self.order(order).await;
        self.0.advance(20);
        self.0.advance(5);
        let vm = self.vm(&id).await;
        assert_eq!(
            (&vm["status"], &vm["vm_state"]),
            (&json!("ACTIVE"), &json!("active")),
            "{vm}"
        );
        id
    }

    async fn vm(&self, id: &str) -> Value {
        self.get(&format!("virtual-machines/{id}")).await.json()["instance"].clone()
    }

    async fn status(&self, id: &str) -> Value {
        self.vm(id).await["status"].clone()
    }

    /// Status and text of an order that is refused for one of its fields.
    async fn refused(&self, name: &str, value: Value) -> (u16, String) {
        let mut order = order();
        order[name] = value;
        refusal(&self.post("virtual-machines", order).await)
    }

    /// What an hour costs now.
    fn hourly(&self) -> Decimal {
        self.sim().meter(|meter| meter.hourly("acme"))
    }

    fn is_content(&self) {
        assert_eq!(self.sim().complaints(), Vec::<String>::new());
    }
}

fn refusal(reply: &Reply) -> (u16, String) {
    let body = reply.json();
    assert!(
        body["status"] == false && body["error_reason"].is_string(),
        "{body}"
    );
    (
        reply.status,
        body["message"].as_str().unwrap_or_default().to_owned(),
    )
}

fn rule() -> Value {
    json!({
        "direction": "ingress", "ethertype": "IPv4", "protocol": "tcp", "remote_ip_prefix": "0.0.0.0/0",
        "port_range_min": 22, "port_range_max": 22,
    })
}

fn order() -> Value {
    json!({
        "name": "pool-0", "environment_name": "env", "key_name": "mine", "flavor_name": "n3-H100x1",
        "image_name": IMAGE, "count": 1, "assign_floating_ip": true, "enable_port_randomization": false,
        "user_data": "#!/bin/sh\n", "labels": ["skyward", "pool=p"], "security_rules": [rule()],
    })
}

/// A price in dollars, as it is written.
fn usd(text: &str) -> Decimal {
    text.parse().unwrap()
}

#[tokio::test]
async fn a_vm_is_ordered_boots_has_its_address_after_it_is_active_and_is_deleted() {
    let world = furnished().await;
    let made = world.post("virtual-machines", order()).await.json();
    let vm = &made["instances"][0];
    assert_eq!(
        (&vm["status"], &vm["floating_ip_status"]),
        (&json!("CREATING"), &json!("ATTACHING"))
    );
    for nothing in ["floating_ip", "fixed_ip", "power_state", "vm_state"] {
        assert!(
            vm.as_object().unwrap().contains_key(nothing) && vm[nothing].is_null(),
            "{vm}"
        );
    }
    assert_eq!(
        (
            &vm["environment"]["region"],
            &vm["environment"]["features"]["network_optimised"]
        ),
        (&json!("CANADA-1"), &json!(true))
    );
    assert_eq!(
        (&vm["keypair"]["name"], &vm["image"]["name"]),
        (&json!("mine"), &json!(IMAGE))
    );
    assert_eq!(vm["created_at"], "2026-11-21T00:00:00");
    let id = vm["id"].as_u64().unwrap().to_string();
    let path = format!("virtual-machines/{id}");
    assert_eq!(
        refusal(&world.delete(&path).await),
        (400, CREATED_STILL.to_owned())
    );
    world.0.advance(10);
    assert_eq!(world.status(&id).await, "BUILD");

    world.0.advance(10);
    let booted = world.vm(&id).await;
    assert_eq!(
        (&booted["status"], &booted["floating_ip"]),
        (&json!("ACTIVE"), &Value::Null)
    );
    assert!(
        booted["fixed_ip"].as_str().unwrap().starts_with("10.0."),
        "{booted}"
    );
    world.0.advance(5);
    let running = world.vm(&id).await;
    assert_eq!(
        (&running["floating_ip_status"], &running["port_randomization"]),
        (&json!("ATTACHED"), &json!(false))
    );
    assert!(running["floating_ip"].is_string(), "{running}");
    let boot = world.sim().world(|world| world.machines[&id].boot.clone());
    assert_eq!(
        (boot.user.as_str(), boot.ssh, boot.authorized_keys.as_slice()),
        ("ubuntu", SshWay::Direct, &[KEY.to_owned()][..])
    );
    assert_eq!(
        (boot.start, boot.gpus.as_slice()),
        (
            Start::UserData("#!/bin/sh\n".to_owned()),
            &["NVIDIA H100-80G-PCIe".to_owned()][..]
        )
    );

    assert_eq!(world.delete(&path).await.status, 200);
    assert_eq!(world.status(&id).await, "DELETING");
    assert_eq!(world.delete(&path).await.status, 409);
    world.0.advance(5);
    assert_eq!(world.get(&path).await.status, 404);
    assert_eq!(world.delete(&path).await.status, 404);
    assert!(world.sim().meter(|meter| meter.billed_now().is_empty()));
    world.is_content();
}

#[tokio::test]
async fn a_vm_is_billed_by_the_minute_from_when_it_is_active_with_its_address() {
    let world = furnished().await;
    let id = world.order(order()).await;
    assert_eq!(world.hourly(), Decimal::ZERO, "it is created");
    world.0.advance(20);
    assert_eq!(world.hourly(), usd("1.90672043"));
    world.0.advance(61);
    world.delete(&format!("virtual-machines/{id}")).await;
    world.0.advance(3_600);
    let bill = world.sim().meter(|meter| meter.bill("acme"));
    assert_eq!(
        bill,
        usd("1.90672043") / Decimal::from(30),
        "two minutes were begun"
    );
    world.is_content();
}

#[tokio::test]
async fn a_vm_that_is_off_costs_in_full_and_one_that_hibernates_its_disk_and_a_kept_address() {
    let world = furnished().await;
    let id = world.running(order()).await;
    let act = async |what: &str| world.get(&format!("virtual-machines/{id}/{what}")).await;
    let (full, disk) = (usd("1.90672043"), usd("0.0096774"));
    assert_eq!(refusal(&act("start").await).0, 400, "it runs");

    assert_eq!(act("stop").await.status, 200);
    assert_eq!(world.status(&id).await, "STOPPING");
    assert_eq!(refusal(&act("hibernate").await).0, 400, "it stops");
    world.0.advance(5);
    let off = world.vm(&id).await;
    assert_eq!(
        (&off["status"], &off["power_state"]),
        (&json!("SHUTOFF"), &json!("SHUTDOWN"))
    );
    assert_eq!(world.hourly(), full);
    assert_eq!(act("start").await.status, 200);
    assert_eq!(world.status(&id).await, "STARTING");
    world.0.advance(20);

    assert_eq!(act("hibernate?retain_ip=true").await.status, 200);
    assert_eq!(world.status(&id).await, "HIBERNATING");
    world.0.advance(5);
    assert_eq!(world.status(&id).await, "HIBERNATED");
    assert_eq!(world.hourly(), disk + usd("0.00672043"));
    assert_eq!(act("hibernate-restore").await.status, 200);
    assert_eq!(
        (world.status(&id).await, world.hourly()),
        (json!("RESTORING"), Decimal::ZERO)
    );
    world.0.advance(20);
    assert_eq!(world.hourly(), full);

    assert_eq!(act("hibernate").await.status, 200);
    world.0.advance(5);
    let without = world.vm(&id).await;
    assert_eq!(
        (&without["floating_ip"], &without["floating_ip_status"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(world.hourly(), disk);
    world.is_content();
}

#[tokio::test]
async fn an_address_is_attached_and_detached_and_costs_as_long_as_it_is_there() {
    let world = furnished().await;
    let mut plain = order();
    plain["assign_floating_ip"] = false.into();
    let id = world.order(plain).await;
    world.0.advance(20);
    assert_eq!(
        (world.vm(&id).await["floating_ip"].clone(), world.hourly()),
        (Value::Null, usd("1.9"))
    );
    let change = async |what: &str| {
        world
            .call(&format!("virtual-machines/{id}/{what}-floatingip"))
            .await
    };
    assert_eq!(refusal(&change("detach").await).0, 400, "it has none");
    assert_eq!(change("attach").await.status, 200);
    assert_eq!(world.vm(&id).await["floating_ip_status"], "ATTACHING");
    world.0.advance(5);
    assert_eq!(world.vm(&id).await["floating_ip_status"], "ATTACHED");
    assert_eq!(world.hourly(), usd("1.90672043"));
    assert_eq!(refusal(&change("attach").await).0, 400, "it has one");
    assert_eq!(change("detach").await.status, 200);
    assert_eq!(
        (world.vm(&id).await["floating_ip"].clone(), world.hourly()),
        (Value::Null, usd("1.9"))
    );
    world.is_content();
}

#[tokio::test]
async fn a_boot_that_fails_is_an_error_that_costs_nothing_and_one_that_never_ends_can_be_deleted() {
    let world = furnished().await;
    let plan = |ends| BootPlan {
        takes: jiff::SignedDuration::from_secs(30),
        ends,
    };
    world.sim().fault(Rule::once(
        "create",
        Fault::Boot(plan(BootEnd::Fails(Cause::NoCapacity))),
    ));
    let id = world.order(order()).await;
    world.0.advance(30);
    assert_eq!(
        (world.status(&id).await, world.hourly()),
        (json!("ERROR"), Decimal::ZERO)
    );
    assert_eq!(world.delete(&format!("virtual-machines/{id}")).await.status, 200);

    world
        .sim()
        .fault(Rule::once("create", Fault::Boot(plan(BootEnd::Never))));
    let stuck = world.order(order()).await;
    world.0.advance(86_400);
    assert_eq!(world.status(&stuck).await, "BUILD");
    assert_eq!(
        world.delete(&format!("virtual-machines/{stuck}")).await.status,
        200
    );
    world.is_content();
}

#[tokio::test]
async fn a_guest_that_halts_is_shut_off_and_one_whose_host_is_lost_is_in_error() {
    let world = furnished().await;
    let (halted, lost) = (world.running(order()).await, world.running(order()).await);
    world.sim().world(|world| {
        world.happen(Happening::HaltedItself(halted.clone()));
        world.happen(Happening::Died(lost.clone()));
    });
    world.0.advance(1);
    assert_eq!(
        (world.status(&halted).await, world.status(&lost).await),
        (json!("SHUTOFF"), json!("ERROR"))
    );
    assert_eq!(
        world.hourly(),
        usd("1.90672043"),
        "only the one that is off costs"
    );
    world.is_content();
}

#[tokio::test]
async fn ssh_is_at_another_port_unless_an_order_says_otherwise() {
    let world = furnished().await;
    let mut random = order();
    random
        .as_object_mut()
        .unwrap()
        .remove("enable_port_randomization");
    let id = world.running(random.clone()).await;
    let port = |id: &str| {
        world
            .sim()
            .world(|world| world.machines[id].endpoint.as_ref().unwrap().port)
    };
    assert_ne!(port(&id), 22);
    assert_eq!(world.vm(&id).await["port_randomization"], true);
    // It is only effective with an address.
    random["assign_floating_ip"] = false.into();
    let inside = world.order(random).await;
    world.0.advance(20);
    assert_eq!(port(&inside), 22);
    world.is_content();
}

#[tokio::test]
async fn an_order_names_what_is_in_its_environment() {
    let world = furnished().await;
    let other = json!({"name": "north", "region": "NORWAY-1"});
    assert_eq!(world.post("environments", other).await.status, 200);
    for (name, value, missing) in [
        ("environment_name", "none", "environment"),
        ("flavor_name", "n3-H100x16", "flavor"),
        ("flavor_name", "n3-L40x1", "flavor"),
        ("image_name", "Windows", "image"),
        ("key_name", "none", "keypair"),
    ] {
        assert_eq!(
            world.refused(name, value.into()).await,
            (404, format!("The {missing} does not exist")),
            "{name}"
        );
    }
    assert_eq!(
        world.refused("environment_name", "north".into()).await,
        (404, "The keypair does not exist".to_owned())
    );
    let restricted = "Ubuntu Server 24.04 LTS R580 CUDA 13.0 with Docker";
    assert_eq!(world.refused("image_name", restricted.into()).await.0, 400);
    assert_eq!(world.refused("count", 2.into()).await.0, 501);
    assert_eq!(world.refused("create_bootable_volume", true.into()).await.0, 501);
    assert_eq!(world.sim().world(|world| world.machines.len()), 0);
    world.is_content();
    assert_eq!(
        world.refused("name", "x".repeat(51).into()).await.0,
        400,
        "the description"
    );
    assert_eq!(world.refused("colour", "red".into()).await.0, 400);
}

#[tokio::test]
async fn a_key_that_is_wrong_or_may_not_is_refused_in_the_clouds_words_and_calls_are_counted() {
    let world = world().await;
    let stranger = Client::new(world.0.url("hyperstack")).with("authorization", "Bearer key");
    let refused = stranger.get("/v1/core/regions").await.unwrap();
    assert_eq!(refusal(&refused), (401, "Invalid API key".to_owned()));
    world.sim().fault(Rule::once("regions.list", Fault::Forbidden));
    assert_eq!(world.get("regions").await.status, 403);
    let me = world.1.get("/v1/auth/me").await.unwrap().json();
    assert_eq!(me["user"]["name"], "acme");
    world.0.advance(60);
    for _ in 0..500 {
        assert_eq!(world.get("regions").await.status, 200);
    }
    let refused = world.get("regions").await;
    assert_eq!((refused.status, refused.header("retry-after")), (429, None));
    world.0.advance(60);
    assert_eq!(world.get("regions").await.status, 200);
    world.is_content();
}

#[tokio::test]
async fn shortage_quota_and_money_are_all_400_and_tell_themselves_apart_by_their_texts() {
    let world = furnished().await;
    for (fault, text) in [
        (
            Fault::NoCapacity,
            "Not enough stock available for the requested flavor",
        ),
        (Fault::Funds, "Insufficient balance to create the resource"),
    ] {
        world.sim().fault(Rule::once("create", fault));
        let refused = refusal(&world.post("virtual-machines", order()).await);
        assert_eq!(refused, (400, text.to_owned()));
    }
    world.sim().world(|world| {
        let account = world.accounts.get_mut("acme").unwrap();
        account.quotas.insert("instances".to_owned(), 0);
    });
    let refused = refusal(&world.post("virtual-machines", order()).await);
    assert_eq!(refused, (400, "Quota exceeded for instances".to_owned()));
    world.is_content();
}

#[tokio::test]
async fn an_order_whose_answer_is_lost_is_found_by_its_labels_and_a_second_one_makes_a_second_vm() {
    let world = furnished().await;
    let lost = Fault::Server {
        status: 503,
        when: When::After,
    };
    world.sim().fault(Rule::once("vms.create", lost));
    assert_eq!(world.post("virtual-machines", order()).await.status, 503);
    let listed = world.get("virtual-machines?search=pool").await.json();
    assert_eq!(
        (&listed["count"], &listed["instances"][0]["labels"]),
        (&json!(1), &json!(["skyward", "pool=p"]))
    );
    world.order(order()).await;
    world.0.advance(20);
    assert_eq!(world.sim().meter(|meter| meter.doubled("tag:pool").len()), 1);
    world.is_content();
}

#[tokio::test]
async fn what_is_not_simulated_is_told_from_what_is_no_call() {
    let world = world().await;
    for (path, status) in [
        ("volumes", 501),
        ("gpus", 501),
        ("images/7", 501),
        ("nothing", 404),
    ] {
        assert_eq!(world.get(path).await.status, status, "{path}");
    }
    assert_eq!(world.get("volumes").await.json()["error_reason"], "not_simulated");
}
