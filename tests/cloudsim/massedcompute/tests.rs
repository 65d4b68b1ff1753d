//! Tests with hand-written requests, after the facts about the cloud.

mod forms;
mod lists;
mod market;
mod sdk;

use http::Method;
use rust_decimal::Decimal;
use serde_json::{Value, json};

use super::MassedCompute;
use crate::backend::{SshWay, Start};
use crate::core::client::{Client, Reply};
use crate::core::rest::Rest;
use crate::{Account, BootEnd, BootPlan, Cause, Fault, Happening, Rule, Sim, Simulator, When};

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIF3d8JVnY8w3V0Q1yTzHn0y2jJ1YQG3hVYwJ0m3p6p2a me";
const LAUNCH_FAILED: &str = "Failed to launch instance";

struct World(Simulator, Client);

async fn world() -> World {
    let cloud = Rest::new(MassedCompute::default());
    let simulator = crate::Builder::manual().cloud(cloud).start().await.unwrap();
    let sim = simulator.cloud("massedcompute");
    sim.world(|world| world.add_account(Account::with_key("acme", "token")));
    let client = Client::new(simulator.url("massedcompute")).with("authorization", "Bearer token");
    World(simulator, client)
}

/// A world with the key `mine`.
async fn furnished() -> World {
    let world = world().await;
    let key = json!({"name": "mine", "publicKey": KEY});
    assert_eq!(world.post("ssh-keys", key).await.status, 200);
    world
}

impl World {
    fn sim(&self) -> &Sim {
        self.0.cloud("massedcompute")
    }

    async fn get(&self, path: &str) -> Reply {
        self.1.get(&format!("/api/v1/{path}")).await.unwrap()
    }

    async fn post(&self, path: &str, body: Value) -> Reply {
        let path = format!("/api/v1/{path}");
        self.1.json(Method::POST, &path, body).await.unwrap()
    }

    async fn delete(&self, path: &str) -> Reply {
        let path = format!("/api/v1/{path}");
        self.1.call(Method::DELETE, &path).await.unwrap()
    }

    /// Launches an instance. Returns its uuid.
    async fn launch(&self, order: Value) -> String {
        let made = self.post("instance/launch", order).await;
        assert_eq!(made.status, 200, "{}", made.body);
        made.json()["response"].as_str().unwrap().to_owned()
    }

    /// Launches an instance and waits until it runs.
    async fn running(&self, order: Value) -> String {
        let id = self.launch(order).await;
        self.0.advance(20);
        let instance = self.instance(&id).await;
        assert_eq!(
            (&instance["status"], &instance["os_booted"]),
            (&json!("Running"), &json!(1)),
            "{instance}"
        );
        id
    }

    async fn instance(&self, id: &str) -> Value {
        self.get(&format!("instance/{id}")).await.json()["runningInstances"][0].clone()
    }

    async fn status(&self, id: &str) -> Value {
        self.instance(id).await["status"].clone()
    }

    async fn terminate(&self, ids: &[&str]) -> Reply {
        self.post("instance/terminate", json!({ "instanceUuids": ids }))
            .await
    }

    /// Status and text of a launch that is refused for one of its fields.
    async fn refused(&self, name: &str, value: Value) -> (u16, String) {
        let mut order = order();
        order[name] = value;
        refusal(&self.post("instance/launch", order).await)
    }

    /// Brings other forms of answers.
    fn answers(&self, forms: &[&str]) {
        let set = self.sim().control("answers", &json!(forms));
        assert!(matches!(set, Some(Ok(_))), "{set:?}");
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
    let said = reply.json()["message"].as_str().map(str::to_owned);
    (reply.status, said.unwrap_or_else(|| panic!("{}", reply.body)))
}

fn order() -> Value {
    json!({
        "imageId": 184, "productName": "gpu_1x_h100", "regionName": "any", "instanceName": "pool-a-0",
        "sshKeys": ["mine"], "command": "touch /ready",
    })
}

/// A price in dollars, as it is written.
fn usd(text: &str) -> Decimal {
    text.parse().unwrap()
}

#[tokio::test]
async fn an_instance_is_launched_boots_after_it_is_running_and_is_terminated() {
    let world = furnished().await;
    let id = world.launch(order()).await;
    let ordered = world.instance(&id).await;
    assert_eq!(
        (&ordered["status"], &ordered["os_booted"], ordered.get("ip")),
        (&json!("pending"), &json!(0), None)
    );
    assert_eq!(
        (&ordered["uuid"], &ordered["name"]),
        (&json!(id), &json!("pool-a-0"))
    );
    assert_eq!(ordered["created"], "2026-11-21T00:00:00.000Z");
    world.0.advance(10);
    let installed = world.instance(&id).await;
    assert_eq!(
        (&installed["status"], &installed["os_booted"]),
        (&json!("Running"), &json!(0))
    );
    world.0.advance(10);
    let running = world.instance(&id).await;
    assert_eq!(
        (&running["os_booted"], &running["username"]),
        (&json!(1), &json!("Ubuntu"))
    );
    assert!(running["ip"].as_str().unwrap().contains('.'), "{running}");
    assert!(running["password"].is_string(), "{running}");
    assert_eq!(
        (&running["command_startup"], &running["region"]["name"]),
        (&json!("touch /ready"), &json!("us-central-1"))
    );
    let product = &running["product"];
    assert_eq!(
        (
            &product["name"],
            &product["gpu_count"],
            &product["vcpu"],
            &product["price_hr"]
        ),
        (&json!("gpu_1x_h100"), &json!(1), &json!(20), &json!("2.40"))
    );
    let boot = world.sim().world(|world| world.machines[&id].boot.clone());
    assert_eq!(
        (boot.user.as_str(), boot.ssh, boot.authorized_keys.as_slice()),
        ("Ubuntu", SshWay::Direct, &[KEY.to_owned()][..])
    );
    assert_eq!(
        (boot.start, boot.gpus.as_slice()),
        (
            Start::UserData("#!/bin/sh\ntouch /ready\n".to_owned()),
            &["NVIDIA H100 PCIe".to_owned()][..]
        )
    );

    assert_eq!(world.terminate(&[&id]).await.status, 200);
    assert_eq!(world.status(&id).await, "terminated");
    assert_eq!(world.terminate(&[&id]).await.status, 200, "it is known still");
    world.0.advance(5);
    let gone = world.get(&format!("instance/{id}")).await;
    assert_eq!(
        (gone.status, gone.json()),
        (200, json!({ "runningInstances": [] }))
    );
    assert!(world.sim().meter(|meter| meter.billed_now().is_empty()));
    world.is_content();
}

#[tokio::test]
async fn an_instance_is_billed_by_the_minute_from_its_launch_to_its_termination() {
    let world = furnished().await;
    let id = world.launch(order()).await;
    assert_eq!(world.hourly(), usd("2.40"), "it boots");
    world.0.advance(81);
    world.terminate(&[&id]).await;
    assert_eq!(world.hourly(), Decimal::ZERO);
    world.0.advance(3_600);
    let bill = world.sim().meter(|meter| meter.bill("acme"));
    assert_eq!(bill, usd("2.40") / Decimal::from(30), "two minutes were begun");
    world.is_content();
}

#[tokio::test]
async fn what_a_launch_names_must_be_there_and_mostly_one_thin_text_says_that_it_is_not() {
    let world = furnished().await;
    for (name, value) in [
        ("productName", json!("gpu_1x_h1000")),
        // The blank at its end belongs to its name.
        ("productName", json!("gpu_1x_a5000")),
        ("imageId", json!(7)),
        ("sshKeys", json!(["mine", "other"])),
    ] {
        let refused = world.refused(name, value).await;
        assert_eq!(refused, (400, LAUNCH_FAILED.to_owned()), "{name}");
    }
    assert_eq!(world.refused("regionName", "us-central-1".into()).await.0, 400);
    let mut other = order();
    other["productName"] = "gpu_1x_pro_6000_blackwell".into();
    other["imageId"] = 84.into();
    assert_eq!(
        refusal(&world.post("instance/launch", other).await),
        (400, "Product does not support the VM Image".to_owned())
    );
    assert_eq!(world.sim().world(|world| world.machines.len()), 0);

    let mut blank = order();
    blank["productName"] = "gpu_1x_a5000 ".into();
    blank["coupon"] = "UNKNOWN".into();
    world.launch(blank).await;
    world.is_content();
    // An older page has this name, and the vendor's own tools do not.
    assert_eq!(world.refused("sshKey", "mine".into()).await.0, 400);
    assert_eq!(world.refused("imageId", "184".into()).await.0, 400);
    assert!(world.sim().violations().len() >= 2);
}

#[tokio::test]
async fn an_instance_without_keys_and_name_has_neither() {
    let world = world().await;
    let order = json!({"imageId": 184, "productName": "cpu_8_core", "regionName": "any"});
    let id = world.running(order).await;
    let boot = world.sim().world(|world| world.machines[&id].boot.clone());
    assert_eq!((boot.authorized_keys.len(), boot.gpus.len()), (0, 0));
    assert_eq!(boot.start, Start::Nothing);
    let shown = world.instance(&id).await;
    assert_eq!(
        (&shown["name"], &shown["command_startup"]),
        (&json!(""), &json!(""))
    );
    world.is_content();
}

#[tokio::test]
async fn a_boot_that_fails_is_an_error_that_costs_and_one_that_never_ends_can_be_terminated() {
    let world = furnished().await;
    let plan = |ends| BootPlan {
        takes: jiff::SignedDuration::from_secs(30),
        ends,
    };
    let boots = |ends| {
        world
            .sim()
            .fault(Rule::once("instances.create", Fault::Boot(plan(ends))));
    };
    boots(BootEnd::Fails(Cause::NoCapacity));
    let failed = world.launch(order()).await;
    world.0.advance(30);
    assert_eq!(
        (world.status(&failed).await, world.hourly()),
        (json!("error"), usd("2.40"))
    );
    assert_eq!(world.terminate(&[&failed]).await.status, 200);
    boots(BootEnd::Never);
    let stuck = world.launch(order()).await;
    world.0.advance(86_400);
    let shown = world.instance(&stuck).await;
    assert_eq!(
        (&shown["status"], &shown["os_booted"]),
        (&json!("Running"), &json!(0))
    );
    assert_eq!(world.terminate(&[&stuck]).await.status, 200);
    assert_eq!(world.hourly(), Decimal::ZERO);
    world.is_content();
}

#[tokio::test]
async fn a_guest_that_halts_is_stopped_one_whose_host_is_lost_is_in_error_and_both_cost() {
    let world = furnished().await;
    let (halted, lost) = (world.running(order()).await, world.running(order()).await);
    world.sim().world(|world| {
        world.happen(Happening::HaltedItself(halted.clone()));
        world.happen(Happening::Died(lost.clone()));
    });
    world.0.advance(1);
    assert_eq!(
        (world.status(&halted).await, world.status(&lost).await),
        (json!("Stopped"), json!("error"))
    );
    assert_eq!(world.hourly(), usd("4.80"));
    assert_eq!(world.terminate(&[&halted, &lost]).await.status, 200);
    assert_eq!(world.hourly(), Decimal::ZERO);
    world.is_content();
}

#[tokio::test]
async fn an_instance_boots_again_when_it_is_restarted_and_the_bill_goes_on() {
    let world = furnished().await;
    let id = world.running(order()).await;
    let uuids = json!({ "instanceUuids": [id] });
    assert_eq!(world.post("instance/restart", uuids).await.status, 200);
    let shown = world.instance(&id).await;
    assert_eq!(
        (&shown["status"], &shown["os_booted"]),
        (&json!("Running"), &json!(0))
    );
    assert_eq!(world.hourly(), usd("2.40"));
    world.0.advance(20);
    assert_eq!(world.instance(&id).await["os_booted"], 1);
    let lines = world.sim().world(|world| world.machines[&id].tab.spans().len());
    assert_eq!(lines, 1, "no minute is begun twice");
    world.is_content();
}

#[tokio::test]
async fn no_known_uuid_fails_a_restart_and_a_termination_and_unknown_ones_are_passed_over() {
    let world = furnished().await;
    let unknown = "00000000-0000-4000-8000-000000000001";
    let failure = (400, "No valid VMs found".to_owned());
    assert_eq!(refusal(&world.terminate(&[unknown]).await), failure);
    let uuids = json!({ "instanceUuids": [unknown] });
    assert_eq!(refusal(&world.post("instance/restart", uuids).await), failure);
    let id = world.running(order()).await;
    world
        .sim()
        .world(|world| world.add_account(Account::with_key("other", "key")));
    let stranger = Client::new(world.0.url("massedcompute")).with("authorization", "Bearer key");
    let uuids = json!({ "instanceUuids": [id] });
    let path = "/api/v1/instance/terminate";
    let refused = stranger.json(Method::POST, path, uuids).await.unwrap();
    assert_eq!(refusal(&refused), failure, "it is another account's");
    assert_eq!(world.terminate(&[unknown, &id]).await.status, 200);
    world.0.advance(5);
    assert_eq!(refusal(&world.terminate(&[&id]).await), failure, "it is gone");
    world.is_content();
    assert_eq!(world.terminate(&[]).await.status, 400);
}

#[tokio::test]
async fn a_token_that_is_wrong_opens_nothing_and_one_that_is_read_only_changes_nothing() {
    let world = furnished().await;
    let id = world.running(order()).await;
    let stranger = Client::new(world.0.url("massedcompute")).with("authorization", "Bearer other");
    let refused = stranger.get("/api/v1/instance").await.unwrap();
    assert_eq!(refusal(&refused), (401, "Authentication not correct.".to_owned()));
    let validated = async || world.post("account/token/validation", json!({})).await;
    assert_eq!(validated().await.json()["message"], "Valid Token");

    let set = |state| {
        world.sim().world(|world| {
            let account = world.accounts.get_mut("acme").unwrap();
            account.credentials[0].state = state;
        });
    };
    set(crate::CredentialState::Forbidden);
    assert_eq!(validated().await.status, 200);
    for path in [
        "instance",
        "gpu-inventory",
        "images",
        "ssh-keys",
        "account/billing",
    ] {
        assert_eq!(world.get(path).await.status, 200, "{path}");
    }
    assert_eq!(world.post("instance/launch", order()).await.status, 403);
    assert_eq!(world.terminate(&[&id]).await.status, 403);
    let uuids = json!({ "instanceUuids": [id] });
    assert_eq!(world.post("instance/restart", uuids).await.status, 403);
    let key = json!({"name": "other", "publicKey": KEY});
    assert_eq!(world.post("ssh-keys", key).await.status, 403);
    assert_eq!(world.delete("ssh-keys/7").await.status, 403);

    set(crate::CredentialState::Revoked);
    assert_eq!(validated().await.status, 401);
    world.is_content();
}

#[tokio::test]
async fn a_launch_whose_answer_is_lost_is_found_by_its_name_and_a_second_one_makes_a_second_instance() {
    let world = furnished().await;
    let lost = Fault::Server {
        status: 503,
        when: When::After,
    };
    world.sim().fault(Rule::once("instances.create", lost));
    assert_eq!(world.post("instance/launch", order()).await.status, 503);
    let listed = world.get("instance").await.json();
    assert_eq!(listed["runningInstances"][0]["name"], "pool-a-0");
    world.launch(order()).await;
    assert_eq!(world.sim().meter(|meter| meter.doubled("name").len()), 1);
    world.is_content();
}

#[tokio::test]
async fn what_is_not_simulated_is_told_from_what_is_no_call() {
    let world = world().await;
    let coupon = json!({"coupon": "NONE"});
    assert_eq!(world.post("coupon/information", coupon).await.status, 501);
    for path in ["instances", "instance/7/logs", "nothing"] {
        assert_eq!(world.get(path).await.status, 404, "{path}");
    }
    world.answers(&["plain"]);
    assert_eq!(world.get("coupon/information").await.status, 501);
}
