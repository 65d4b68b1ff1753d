//! Tests with hand-written requests, after the facts about the cloud.

mod credentials;
mod lists;
mod rules;
mod sdk;

use http::Method;
use jiff::SignedDuration;
use rust_decimal::Decimal;
use serde_json::{Value, json};

use super::Gcp;
use crate::backend::{SshWay, Start};
use crate::core::client::{Client, Reply};
use crate::core::rest::Rest;
use crate::{
    Account, BootEnd, BootPlan, Cause, Fault, Happening, Left, Market, Rule, Shelf, Sim, Simulator, When,
};

const ZONE: &str = "us-central1-a";
const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIF3d8JVnY8w3V0Q1yTzHn0y2jJ1YQG3hVYwJ0m3p6p2a me";
const REQUEST: &str = "requestId=0a9b2c3d-0000-4000-8000-00000000000a";

struct World(Simulator, Client);

/// A world with the project `acme`, whose user has a refresh token.
async fn world() -> World {
    let simulator = crate::Builder::manual()
        .cloud(Rest::new(Gcp::default()))
        .start()
        .await
        .unwrap();
    let sim = simulator.cloud("gcp");
    sim.world(|world| world.add_account(Account::with_pair("acme", "client", "secret")));
    let client = logged_in(&simulator).await;
    World(simulator, client)
}

async fn logged_in(simulator: &Simulator) -> Client {
    let client = Client::new(simulator.url("gcp"));
    let form = "grant_type=refresh_token&client_id=client&client_secret=x&refresh_token=secret";
    let kind = "application/x-www-form-urlencoded";
    let told = client.send(Method::POST, "/token", kind, form).await.unwrap();
    assert_eq!(told.status, 200, "{}", told.body);
    let token = told.json()["access_token"].as_str().unwrap().to_owned();
    client.with("authorization", &format!("Bearer {token}"))
}

fn here(path: &str) -> String {
    format!("/compute/v1/projects/acme/{path}")
}

impl World {
    fn sim(&self) -> &Sim {
        self.0.cloud("gcp")
    }

    async fn get(&self, path: &str) -> Reply {
        self.1.get(&here(path)).await.unwrap()
    }

    async fn post(&self, path: &str, body: Value) -> Reply {
        self.1.json(Method::POST, &here(path), body).await.unwrap()
    }

    async fn call(&self, method: Method, path: &str) -> Reply {
        self.1.call(method, &here(path)).await.unwrap()
    }

    async fn order(&self, order: Value) -> Reply {
        self.post(&format!("zones/{ZONE}/instances"), order).await
    }

    async fn instance(&self) -> Value {
        self.get(&format!("zones/{ZONE}/instances/pool-0")).await.json()
    }

    async fn status(&self) -> Value {
        self.instance().await["status"].clone()
    }

    async fn delete(&self) -> Reply {
        self.call(Method::DELETE, &format!("zones/{ZONE}/instances/pool-0"))
            .await
    }

    /// The operation that a call answered, as it is now.
    async fn operation(&self, reply: &Reply) -> Value {
        assert_eq!(reply.status, 200, "{}", reply.body);
        let link = reply.json()["selfLink"].as_str().unwrap().to_owned();
        let path = link.strip_prefix("https://www.googleapis.com").unwrap();
        self.1.get(path).await.unwrap().json()
    }

    /// Orders an instance, waits until it has an address, and returns its id.
    async fn running(&self, order: Value) -> String {
        let made = self.order(order).await;
        self.0.advance(22);
        assert_eq!(self.operation(&made).await["status"], "DONE");
        assert_eq!(self.status().await, "RUNNING");
        made.json()["targetId"].as_str().unwrap().to_owned()
    }

    /// Reason and text of an order that is refused for one of its fields.
    async fn refused(&self, pointer: &str, value: Value) -> (u16, String) {
        let mut order = order();
        *order.pointer_mut(pointer).unwrap() = value;
        refusal(&self.order(order).await)
    }

    fn hourly(&self) -> Decimal {
        self.sim().meter(|meter| meter.hourly("acme"))
    }

    fn control(&self, name: &str, body: Value) {
        self.sim().control(name, &body).unwrap().unwrap();
    }

    fn is_content(&self) {
        assert_eq!(self.sim().complaints(), Vec::<String>::new());
    }
}

/// Status and reason of a refusal.
fn refusal(reply: &Reply) -> (u16, String) {
    let body = reply.json();
    assert_eq!(body["error"]["code"], reply.status, "{body}");
    let reason = body["error"]["errors"][0]["reason"].as_str().unwrap_or_default();
    (reply.status, reason.to_owned())
}

fn order() -> Value {
    json!({
        "name": "pool-0", "machineType": format!("zones/{ZONE}/machineTypes/a2-highgpu-1g"),
        "labels": { "managed-by": "skyward", "pool": "p" }, "tags": { "items": ["skyward-node"] },
        "disks": [{ "boot": true, "autoDelete": true, "type": "PERSISTENT", "initializeParams": {
            "sourceImage": "projects/deeplearning-platform-release/global/images/family/common-cu128-ubuntu-2204-nvidia-570",
            "diskSizeGb": "73", "diskType": format!("zones/{ZONE}/diskTypes/pd-balanced"),
        } }],
        "networkInterfaces": [{
            "network": "global/networks/default", "accessConfigs": [{ "name": "External NAT", "type": "ONE_TO_ONE_NAT" }],
        }],
        "metadata": { "items": [
            { "key": "ssh-keys", "value": format!("skyward:{KEY}") },
            { "key": "startup-script", "value": "#!/bin/sh\n" },
            { "key": "enable-oslogin", "value": "FALSE" },
        ] },
        "scheduling": { "provisioningModel": "STANDARD", "onHostMaintenance": "TERMINATE", "automaticRestart": false },
    })
}

fn spot() -> Value {
    let mut order = order();
    order["scheduling"] = json!({
        "provisioningModel": "SPOT", "onHostMaintenance": "TERMINATE", "automaticRestart": false,
        "instanceTerminationAction": "DELETE",
    });
    order
}

fn usd(text: &str) -> Decimal {
    text.parse().unwrap()
}

#[tokio::test]
async fn an_instance_is_ordered_boots_has_its_address_after_it_runs_and_is_deleted() {
    let world = world().await;
    let made = world.order(order()).await;
    let operation = made.json();
    assert_eq!(
        (&operation["status"], &operation["operationType"]),
        (&json!("PENDING"), &json!("insert"))
    );
    assert_eq!(operation["insertTime"], "2026-11-20T16:00:00.000-08:00");
    assert_eq!(world.status().await, "PROVISIONING");
    world.0.advance(5);
    assert_eq!(world.status().await, "STAGING");
    assert_eq!(world.operation(&made).await["status"], "RUNNING");
    world.0.advance(15);
    assert_eq!(world.operation(&made).await["status"], "DONE");
    let address = "/networkInterfaces/0/accessConfigs/0/natIP";
    assert_eq!(
        world.instance().await.pointer(address),
        None,
        "it has run for no time"
    );
    world.0.advance(2);
    let instance = world.instance().await;
    assert!(
        instance.pointer(address).is_some_and(Value::is_string),
        "{instance}"
    );
    assert_eq!(instance["id"], operation["targetId"]);
    assert_eq!(
        instance["labels"],
        json!({ "managed-by": "skyward", "pool": "p" })
    );
    assert_eq!(instance["guestAccelerators"][0]["acceleratorCount"], 1);
    let zone = instance["zone"].as_str().unwrap();
    assert!(
        zone.starts_with("https://www.googleapis.com/") && zone.ends_with(ZONE),
        "{zone}"
    );

    let id = instance["id"].as_str().unwrap().to_owned();
    let boot = world.sim().world(|world| world.machines[&id].boot.clone());
    assert_eq!(
        (boot.user.as_str(), boot.ssh, boot.authorized_keys.as_slice()),
        ("skyward", SshWay::Direct, &[KEY.to_owned()][..])
    );
    assert_eq!(boot.start, Start::UserData("#!/bin/sh\n".to_owned()));
    assert_eq!(boot.gpus, ["NVIDIA A100-SXM4-40GB"]);

    let deleted = world.delete().await;
    assert_eq!(world.operation(&deleted).await["operationType"], "delete");
    assert_eq!(world.status().await, "STOPPING");
    world.0.advance(5);
    assert_eq!(world.operation(&deleted).await["status"], "DONE");
    let gone = world.get(&format!("zones/{ZONE}/instances/{id}")).await;
    assert_eq!(refusal(&gone), (404, "notFound".to_owned()));
    assert_eq!(refusal(&world.delete().await).0, 404);
    assert_eq!(world.hourly(), Decimal::ZERO);
    assert!(world.sim().meter(|meter| meter.leftovers("acme").is_empty()));
    world.is_content();
}

#[tokio::test]
async fn an_instance_costs_while_it_runs_and_its_disk_from_the_order_on() {
    let world = world().await;
    // 73 GB at 0.1 USD a month of 730 hours.
    let (disk, address) = (usd("0.01"), usd("0.005"));
    world.order(order()).await;
    assert_eq!(world.hourly(), disk, "it boots");
    world.0.advance(20);
    assert_eq!(world.hourly(), usd("3.673385") + disk + address);
    let id = world.instance().await["id"].as_str().unwrap().to_owned();
    world
        .sim()
        .world(|world| world.happen(Happening::HaltedItself(id)));
    assert_eq!((world.status().await, world.hourly()), (json!("STOPPING"), disk));
    world.0.advance(5);
    assert_eq!(
        (world.status().await, world.hourly()),
        (json!("TERMINATED"), disk)
    );
    world.is_content();
}

#[tokio::test]
async fn a_minute_is_the_least_that_is_charged_and_the_meter_can_leave_disks_and_addresses_out() {
    let world = world().await;
    world.control("instances", json!({ "alone": true }));
    world.running(order()).await;
    world.delete().await;
    world.0.advance(3_600);
    let bill = world.sim().meter(|meter| meter.bill("acme"));
    assert_eq!(bill, usd("3.673385") / Decimal::from(60));
    world.is_content();
}

#[tokio::test]
async fn a_disk_that_does_not_go_with_its_instance_stays_and_costs() {
    let world = world().await;
    let mut kept = order();
    kept["disks"][0]["autoDelete"] = false.into();
    world.running(kept).await;
    world.delete().await;
    world.0.advance(60);
    assert_eq!(world.hourly(), usd("0.01"));
    let left = world.sim().meter(|meter| meter.leftovers("acme").len());
    assert_eq!(left, 1);
}

#[tokio::test]
async fn a_request_that_is_repeated_with_its_id_makes_nothing_new_and_one_without_is_told_of_the_name() {
    let world = world().await;
    let path = format!("zones/{ZONE}/instances?{REQUEST}");
    let fault = Fault::Server {
        status: 503,
        when: When::After,
    };
    world.sim().fault(Rule::once("create", fault));
    assert_eq!(refusal(&world.post(&path, order()).await).0, 503);
    let again = world.post(&path, order()).await;
    assert_eq!(
        world.post(&path, order()).await.json()["name"],
        again.json()["name"]
    );
    let mut other = order();
    other["name"] = "pool-1".into();
    assert_eq!(
        refusal(&world.post(&path, other).await),
        (400, "invalid".to_owned())
    );
    assert_eq!(
        refusal(&world.order(order()).await),
        (409, "alreadyExists".to_owned())
    );
    assert_eq!(world.sim().world(|world| world.machines.len()), 1);
    let zero = format!("zones/{ZONE}/instances?requestId=00000000-0000-0000-0000-000000000000");
    assert_eq!(refusal(&world.post(&zero, order()).await).0, 400);
    // The id is forgotten, the name is not.
    world.0.advance(3_600);
    let client = logged_in(&world.0).await;
    let late = client.json(Method::POST, &here(&path), order()).await.unwrap();
    assert_eq!(refusal(&late).0, 409);
    world.is_content();
}

#[tokio::test]
async fn an_order_that_nothing_is_left_for_is_taken_can_be_seen_and_fails_in_its_operation() {
    let world = world().await;
    let shelf = Shelf::new("a2-highgpu-1g", ZONE, Market::OnDemand);
    world.sim().world(|world| world.stock.set(shelf, Left::Count(0)));
    let path = format!("zones/{ZONE}/instances?{REQUEST}");
    let made = world.post(&path, order()).await;
    assert_eq!(world.operation(&made).await["status"], "PENDING");
    assert_eq!(world.status().await, "PROVISIONING");
    assert_eq!(world.hourly(), usd("0.01"), "nothing but its disk");
    world.0.advance(5);
    let failed = world.operation(&made).await;
    assert_eq!(
        (&failed["status"], &failed["httpErrorStatusCode"]),
        (&json!("DONE"), &json!(503))
    );
    assert_eq!(
        failed["error"]["errors"][0]["code"],
        "ZONE_RESOURCE_POOL_EXHAUSTED"
    );
    assert_eq!(world.instance().await["error"]["code"], 404);
    assert_eq!(world.hourly(), Decimal::ZERO);
    // The same request is told of the failure again.
    let again = world.post(&path, order()).await.json();
    assert_eq!(
        (&again["name"], &again["status"]),
        (&failed["name"], &json!("DONE"))
    );
    let left = world.sim().world(|world| {
        world
            .stock
            .left(&Shelf::new("a2-highgpu-1g", ZONE, Market::OnDemand))
    });
    assert_eq!(left, Left::Count(0));

    world.control("answers", json!({ "shortAtOnce": true }));
    assert_eq!(
        refusal(&world.order(order()).await),
        (503, "resourcesUnavailable".to_owned())
    );
    world.is_content();
}

#[tokio::test]
async fn a_shortage_that_a_test_scripts_fails_in_an_operation_too() {
    let world = world().await;
    world.sim().fault(Rule::once("create", Fault::NoCapacity));
    let made = world.order(order()).await;
    world.0.advance(2);
    let failed = world.operation(&made).await;
    assert_eq!(
        failed["error"]["errors"][0]["code"],
        "ZONE_RESOURCE_POOL_EXHAUSTED"
    );
    assert!(
        failed["targetLink"]
            .as_str()
            .unwrap()
            .ends_with("/instances/pool-0"),
        "{failed}"
    );
    assert_eq!(world.sim().world(|world| world.machines.len()), 0);
    world.is_content();
}

#[tokio::test]
async fn a_boot_that_fails_takes_the_instance_away_and_one_that_never_ends_can_be_deleted() {
    let world = world().await;
    let plan = |ends| BootPlan {
        takes: SignedDuration::from_secs(30),
        ends,
    };
    let broken = BootEnd::Fails(Cause::Installation("broken".to_owned()));
    world.sim().fault(Rule::once("create", Fault::Boot(plan(broken))));
    let made = world.order(order()).await;
    world.0.advance(31);
    assert_eq!(
        world.operation(&made).await["error"]["errors"][0]["code"],
        "INTERNAL_ERROR"
    );
    assert_eq!(world.instance().await["error"]["code"], 404);

    world
        .sim()
        .fault(Rule::once("create", Fault::Boot(plan(BootEnd::Never))));
    let stuck = world.order(order()).await;
    world.0.advance(3_000);
    assert_eq!(world.operation(&stuck).await["status"], "RUNNING");
    assert_eq!(world.status().await, "STAGING");
    assert_eq!(world.delete().await.status, 200);
    world.is_content();
}

#[tokio::test]
async fn quotas_of_a_region_are_refused_at_once_and_those_of_the_project_in_the_operation() {
    let world = world().await;
    let quota = |metric: &str, most: u64| {
        let set = |world: &mut crate::core::world::World| {
            let account = world.accounts.get_mut("acme").unwrap();
            account.quotas.insert(metric.to_owned(), most);
        };
        world.sim().world(set);
    };
    quota("NVIDIA_A100_GPUS", 0);
    let told = world.order(order()).await;
    assert_eq!(refusal(&told), (403, "quotaExceeded".to_owned()));
    assert!(
        told.body
            .contains("Quota 'NVIDIA_A100_GPUS' exceeded.  Limit: 0.0"),
        "{}",
        told.body
    );
    quota("NVIDIA_A100_GPUS", 8);
    quota("GPUS_ALL_REGIONS", 0);
    let made = world.order(order()).await;
    world.0.advance(2);
    let failed = world.operation(&made).await;
    assert_eq!(failed["error"]["errors"][0]["code"], "QUOTA_EXCEEDED");
    let info = &failed["error"]["errors"][0]["errorDetails"][0]["quotaInfo"];
    assert_eq!(info["metricName"], "GPUS_ALL_REGIONS");
    quota("GPUS_ALL_REGIONS", 1);
    world.running(order()).await;
    let region = world.get("regions/us-central1").await.json();
    let usage = region["quotas"].as_array().unwrap().iter();
    let used: Vec<&Value> = usage
        .filter(|quota| quota["usage"] != 0.0)
        .map(|quota| &quota["metric"])
        .collect();
    assert_eq!(used, ["NVIDIA_A100_GPUS"]);
    let mut second = order();
    second["name"] = "pool-1".into();
    let made = world.order(second).await;
    world.0.advance(2);
    assert_eq!(world.operation(&made).await["httpErrorStatusCode"], 403);
    world.is_content();
}

#[tokio::test]
async fn a_spot_instance_that_is_taken_back_tells_its_guest_goes_and_leaves_a_trace() {
    let world = world().await;
    let id = world.running(spot()).await;
    assert_eq!(world.hourly(), usd("2.12081") + usd("0.01") + usd("0.0025"));
    let guest = Client::new(world.0.url("gcp")).with("metadata-flavor", "Google");
    let asked = async || {
        let path = format!("/_imds/{id}/computeMetadata/v1/instance/preempted");
        guest.get(&path).await.unwrap().body
    };
    assert_eq!(asked().await, "FALSE");
    world
        .sim()
        .world(|world| world.reclaim(&id, SignedDuration::from_secs(30)));
    assert_eq!(
        (asked().await, world.status().await),
        ("TRUE".to_owned(), json!("RUNNING"))
    );
    world.0.advance(30);
    assert_eq!(world.status().await, "STOPPING");
    world.0.advance(10);
    assert_eq!(world.status().await, "TERMINATED");
    world.0.advance(20);
    assert_eq!(world.instance().await["error"]["code"], 404);
    let filter = "filter=operationType%3D%22compute.instances.preempted%22";
    let traces = world
        .get(&format!("zones/{ZONE}/operations?{filter}"))
        .await
        .json();
    assert_eq!(traces["items"][0]["targetId"], json!(id));
    assert_eq!(traces["items"].as_array().unwrap().len(), 1);
    world.is_content();
}

#[tokio::test]
async fn a_spot_instance_without_an_action_stops_and_stays() {
    let world = world().await;
    let mut order = spot();
    order["scheduling"]
        .as_object_mut()
        .unwrap()
        .remove("instanceTerminationAction");
    let id = world.running(order).await;
    world
        .sim()
        .world(|world| world.reclaim(&id, SignedDuration::ZERO));
    world.0.advance(60);
    assert_eq!(
        (world.status().await, world.hourly()),
        (json!("TERMINATED"), usd("0.01"))
    );
    world.is_content();
}

#[tokio::test]
async fn an_instance_ends_when_the_time_that_its_order_gave_it_is_over() {
    let world = world().await;
    let mut order = spot();
    order["scheduling"]["maxRunDuration"] = json!({ "seconds": "600" });
    world.running(order).await;
    world.0.advance(600);
    assert_eq!(world.status().await, "STOPPING");
    world.0.advance(60);
    assert_eq!(world.instance().await["error"]["code"], 404);
    world.is_content();
}

#[tokio::test]
async fn a_lost_host_is_repaired_where_an_order_says_so_and_a_guest_that_halts_is_terminated() {
    let world = world().await;
    let mut restarts = order();
    restarts["scheduling"]["automaticRestart"] = true.into();
    let id = world.running(restarts).await;
    world
        .sim()
        .world(|world| world.happen(Happening::Died(id.clone())));
    assert_eq!(world.status().await, "REPAIRING");
    world.0.advance(20);
    assert_eq!(world.status().await, "RUNNING");
    world
        .sim()
        .world(|world| world.happen(Happening::HaltedItself(id.clone())));
    world.0.advance(10);
    assert_eq!(world.status().await, "TERMINATED");
    world.delete().await;
    world.0.advance(10);

    let id = world.running(order()).await;
    world.sim().world(|world| world.happen(Happening::Died(id)));
    world.0.advance(10);
    assert_eq!(world.status().await, "TERMINATED");
    world.is_content();
}

#[tokio::test]
async fn a_deletion_while_one_goes_on_is_taken_or_not_ready() {
    let world = world().await;
    world.running(order()).await;
    let first = world.delete().await.json();
    let second = world.delete().await;
    assert_eq!(second.status, 200);
    assert_ne!(second.json()["name"], first["name"]);
    world.control("answers", json!({ "busy": true }));
    assert_eq!(
        refusal(&world.delete().await),
        (400, "resourceNotReady".to_owned())
    );
    world.is_content();
}

#[tokio::test]
async fn keys_count_where_os_login_is_off_and_drivers_are_on_images_that_have_them() {
    let world = world().await;
    let mut plain = order();
    plain["metadata"]["items"].as_array_mut().unwrap().pop();
    plain["disks"][0]["initializeParams"]["sourceImage"] =
        "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64".into();
    let id = world.running(plain).await;
    let boot = world.sim().world(|world| world.machines[&id].boot.clone());
    assert_eq!(
        (boot.user.as_str(), boot.authorized_keys.len(), boot.gpus.len()),
        ("", 0, 0)
    );
    let project = world.get("").await.json();
    assert_eq!(project["commonInstanceMetadata"]["items"][0]["value"], "TRUE");
    world.is_content();
}
