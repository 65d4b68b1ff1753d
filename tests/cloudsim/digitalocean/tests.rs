//! Tests with hand-written requests, after the facts about the cloud.

mod lists;
mod sdk;

use http::Method;
use rust_decimal::Decimal;
use serde_json::{Value, json};

use super::DigitalOcean;
use crate::backend::Start;
use crate::core::client::{Client, Reply};
use crate::core::rest::Rest;
use crate::{
    Account, BootEnd, BootPlan, Cause, Fault, Happening, Left, Market, Rule, Shelf, Sim, Simulator, When,
};

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIF3d8JVnY8w3V0Q1yTzHn0y2jJ1YQG3hVYwJ0m3p6p2a me";
const SOLD_OUT: &str = "Size is not available in this region.";

struct World(Simulator, Client);

async fn world() -> World {
    let cloud = Rest::new(DigitalOcean::default());
    let simulator = crate::Builder::manual().cloud(cloud).start().await.unwrap();
    let sim = simulator.cloud("digitalocean");
    sim.world(|world| world.add_account(Account::with_key("acme", "key")));
    let client = Client::new(simulator.url("digitalocean")).with("authorization", "Bearer key");
    World(simulator, client)
}

impl World {
    fn sim(&self) -> &Sim {
        self.0.cloud("digitalocean")
    }

    async fn get(&self, path: &str) -> Reply {
        self.1.get(&format!("/v2/{path}")).await.unwrap()
    }

    async fn post(&self, path: &str, body: Value) -> Reply {
        let path = format!("/v2/{path}");
        self.1.json(Method::POST, &path, body).await.unwrap()
    }

    async fn delete(&self, path: &str) -> Reply {
        let path = format!("/v2/{path}");
        self.1.call(Method::DELETE, &path).await.unwrap()
    }

    async fn order(&self, order: Value) -> Value {
        let made = self.post("droplets", order).await;
        assert_eq!(made.status, 202, "{}", made.body);
        made.json()["droplet"].clone()
    }

    /// Status and text of an order that is refused for one of its fields.
    async fn refused(&self, name: &str, value: Value) -> (u16, String) {
        let mut order = order();
        order[name] = value;
        refusal(&self.post("droplets", order).await)
    }

    async fn droplet(&self, id: &Value) -> Value {
        self.get(&format!("droplets/{id}")).await.json()["droplet"].clone()
    }

    fn is_content(&self) {
        assert_eq!(self.sim().complaints(), Vec::<String>::new());
    }
}

fn refusal(reply: &Reply) -> (u16, String) {
    let body = reply.json();
    assert!(body["id"].is_string() && body["request_id"].is_string(), "{body}");
    (
        reply.status,
        body["message"].as_str().unwrap_or_default().to_owned(),
    )
}

fn order() -> Value {
    json!({
        "name": "pool-0", "region": "tor1", "size": "gpu-h100x1-80gb", "image": "gpu-h100x1-base", "ssh_keys": [],
        "tags": ["skyward", "pool:p"], "user_data": "#!/bin/sh\n", "monitoring": false, "backups": false, "ipv6": false,
    })
}

#[tokio::test]
async fn a_droplet_is_ordered_boots_is_listed_among_those_with_gpus_and_is_deleted() {
    let world = world().await;
    let key = world
        .post("account/keys", json!({"name": "mine", "public_key": KEY}))
        .await
        .json();
    let mut order = order();
    order["ssh_keys"] = json!([key["ssh_key"]["id"]]);
    let made = world.post("droplets", order).await;
    assert_eq!(made.status, 202, "{}", made.body);
    let made = made.json();
    let (droplet, action) = (&made["droplet"], &made["links"]["actions"][0]);
    assert_eq!(
        (&droplet["status"], &droplet["locked"], &droplet["networks"]["v4"]),
        (&json!("new"), &json!(true), &json!([]))
    );
    assert_eq!(droplet["gpu_info"]["model"], "nvidia_h100");
    let at = action["href"]
        .as_str()
        .unwrap()
        .strip_prefix(world.0.url("digitalocean"))
        .unwrap();
    let state = async || world.1.get(at).await.unwrap().json()["action"].clone();
    assert_eq!(state().await["status"], "in-progress");
    let id = &droplet["id"];
    let locked = world.delete(&format!("droplets/{id}")).await;
    assert_eq!(
        refusal(&locked),
        (422, "Droplet already has a pending event.".to_owned())
    );

    world.0.advance(20);
    assert_eq!(
        (&state().await["status"], &state().await["resource_id"]),
        (&json!("completed"), id)
    );
    let running = world.droplet(id).await;
    assert_eq!(
        (&running["status"], &running["locked"]),
        (&json!("active"), &json!(false))
    );
    let networks = running["networks"]["v4"].as_array().unwrap();
    let kinds: Vec<&Value> = networks.iter().map(|network| &network["type"]).collect();
    assert_eq!(kinds, ["private", "public"]);
    let boot = world
        .sim()
        .world(|world| world.machines[&id.to_string()].boot.clone());
    assert_eq!(
        (boot.user.as_str(), boot.authorized_keys.as_slice()),
        ("root", &[KEY.to_owned()][..])
    );
    assert_eq!(
        (boot.start, boot.gpus.as_slice()),
        (
            Start::UserData("#!/bin/sh\n".to_owned()),
            &["NVIDIA H100".to_owned()][..]
        )
    );
    assert_eq!(
        world.get("droplets?type=gpus").await.json()["droplets"][0]["id"],
        *id
    );

    assert_eq!(world.delete(&format!("droplets/{id}")).await.status, 204);
    assert_eq!(
        world.delete(&format!("droplets/{id}")).await.status,
        422,
        "it is being destroyed"
    );
    world.0.advance(10);
    assert_eq!(world.delete(&format!("droplets/{id}")).await.status, 404);
    assert_eq!(
        world.get("droplets?type=gpus").await.json()["droplets"],
        json!([])
    );
    assert_eq!(state().await["status"], "completed");
    let print = key["ssh_key"]["fingerprint"]
        .as_str()
        .unwrap()
        .replace(':', "%3A");
    assert_eq!(world.delete(&format!("account/keys/{print}")).await.status, 204);
    assert!(
        world
            .sim()
            .meter(|meter| meter.billed_now().is_empty() && meter.leftovers("acme").is_empty())
    );
    world.is_content();
}

#[tokio::test]
async fn a_droplet_is_billed_by_the_second_and_at_least_a_minute_and_when_it_is_off() {
    let world = world().await;
    let mut order = order();
    order["size"] = "gpu-mi300x1-192gb".into();
    order["region"] = "ams3".into();
    let id = &world.order(order).await["id"];
    let bill = || world.sim().meter(|meter| meter.bill("acme"));
    world.0.advance(30);
    assert_eq!(bill(), Decimal::new(199, 2) / Decimal::from(60));
    world
        .sim()
        .world(|world| world.happen(Happening::HaltedItself(id.to_string())));
    world.0.advance(3_570);
    assert_eq!(world.droplet(id).await["status"], "off");
    assert_eq!(bill(), Decimal::new(199, 2));
    let boot = world
        .sim()
        .world(|world| world.machines[&id.to_string()].boot.clone());
    assert_eq!(boot.gpus, Vec::<String>::new(), "AMD has no driver of NVIDIA");
    world.is_content();
}

#[tokio::test]
async fn a_creation_that_errs_vanishes_and_costs_nothing_and_a_lost_host_is_off() {
    let world = world().await;
    let ends = BootEnd::Fails(Cause::NoCapacity);
    let plan = BootPlan {
        ends,
        ..BootPlan::takes(5)
    };
    world.sim().fault(Rule::once("create", Fault::Boot(plan)));
    let failed = world.order(order()).await["id"].clone();
    world.0.advance(6);
    let action = world
        .get(&format!(
            "droplets/{failed}/actions/{}",
            2_000_000_000 + failed.as_u64().unwrap()
        ))
        .await;
    assert_eq!(action.json()["action"]["status"], "errored");
    assert_eq!(world.droplet(&failed).await["status"], "new");
    world.0.advance(60);
    assert_eq!(world.get(&format!("droplets/{failed}")).await.status, 404);
    assert_eq!(world.sim().meter(|meter| meter.bill("acme")), Decimal::ZERO);

    let lost = world.order(order()).await["id"].clone();
    world.0.advance(20);
    world
        .sim()
        .world(|world| world.happen(Happening::Died(lost.to_string())));
    assert_eq!(world.droplet(&lost).await["status"], "off");
    assert_eq!(world.sim().meter(|meter| meter.billed_now().len()), 1);
    world.is_content();
}

#[tokio::test]
async fn an_order_that_is_wrong_says_of_what() {
    let world = world().await;
    for (name, value, status, text) in [
        ("size", json!("gpu-none"), 422, "invalid size"),
        ("image", json!(7), 422, "invalid image"),
        ("region", json!("mars1"), 422, "Region is not available"),
        ("region", json!("ams3"), 422, SOLD_OUT),
        ("size", json!("gpu-6000adax1-48gb"), 422, SOLD_OUT),
        ("ssh_keys", json!([1]), 422, "1 are invalid key identifiers"),
        ("vpc_uuid", json!("another"), 422, "invalid VPC"),
        ("tags", json!(["a b"]), 422, "Tag name can only contain"),
        (
            "user_data",
            json!("a".repeat((64 << 10) + 1)),
            422,
            "User data is too long",
        ),
        ("public_networking", json!(false), 501, "without an address"),
        ("backups", json!(true), 501, "without backups"),
        ("project_id", json!("p"), 501, "without projects"),
    ] {
        let refused = world.refused(name, value).await;
        assert_eq!(refused.0, status, "{name}: {refused:?}");
        assert!(refused.1.contains(text), "{name}: {refused:?}");
    }
    world.is_content();
    for (name, value) in [("name", json!("-a")), ("colour", json!("red"))] {
        assert_eq!(world.refused(name, value).await.0, 422);
    }
    assert_eq!(world.refused("names", json!(["a", "b"])).await.0, 501);
    assert!(
        !world.sim().violations().is_empty(),
        "a field that is not described"
    );
    assert!(world.sim().meter(|meter| meter.billed_now().is_empty()));
}

#[tokio::test]
async fn a_region_may_be_left_out_or_be_a_prefix_and_one_that_has_some_is_taken() {
    let world = world().await;
    let mut order = order();
    order["region"] = "nyc".into();
    let vpcs = world.get("vpcs").await.json();
    let there = |vpc: &&Value| vpc["region"] == "nyc2" && vpc["default"] == true;
    order["vpc_uuid"] = vpcs["vpcs"].as_array().unwrap().iter().find(there).unwrap()["id"].clone();
    assert_eq!(world.order(order.clone()).await["region"]["slug"], "nyc2");
    let fields = order.as_object_mut().unwrap();
    fields.remove("region");
    fields.remove("vpc_uuid");
    fields.insert("size".to_owned(), "gpu-l40sx1-48gb".into());
    assert_eq!(world.order(order).await["region"]["slug"], "tor1");
    world.is_content();
}

#[tokio::test]
async fn quota_and_money_and_a_token_that_is_not_known_are_told_by_their_texts() {
    let world = world().await;
    let change = |change: fn(&mut Account)| {
        world
            .sim()
            .world(|world| change(world.accounts.get_mut("acme").unwrap()));
    };
    change(|account| account.balance = Some(Decimal::ZERO));
    assert_eq!(
        refusal(&world.post("droplets", order()).await),
        (403, "Your account is locked.".to_owned())
    );
    change(|account| {
        account.balance = None;
        account.quotas.insert("instances".to_owned(), 1);
    });
    world.order(order()).await;
    let refused = refusal(&world.post("droplets", order()).await);
    assert!(
        refused.0 == 422 && refused.1.contains("will exceed your droplet limit"),
        "{refused:?}"
    );
    assert_eq!(world.get("account").await.json()["account"]["droplet_limit"], 1);
    let stranger = Client::new(world.0.url("digitalocean")).with("authorization", "Bearer other");
    let refused = refusal(&stranger.get("/v2/droplets").await.unwrap());
    assert_eq!(refused, (401, "Unable to authenticate you.".to_owned()));
    world.is_content();
}

#[tokio::test]
async fn an_hour_has_5000_calls_and_a_minute_250_and_each_answer_tells_what_is_left() {
    let world = world().await;
    let first = world.get("account").await;
    let header = |reply: &Reply, name: &str| reply.header(name).unwrap().parse::<i64>().unwrap();
    assert_eq!(header(&first, "ratelimit-limit"), 5_000);
    assert_eq!(header(&first, "ratelimit-remaining"), 4_999);
    let reset = world.sim().world(|world| world.now()).as_second() + 3_600;
    assert_eq!(header(&first, "ratelimit-reset"), reset);
    for _ in 0..249 {
        assert_eq!(world.get("account").await.status, 200);
    }
    let refused = world.get("account").await;
    assert_eq!(refusal(&refused), (429, "API Rate limit exceeded.".to_owned()));
    assert_eq!(refused.header("retry-after"), Some("61"));
    world.0.advance(60);
    assert_eq!(world.get("account").await.status, 200);
    world.is_content();
}

#[tokio::test]
async fn an_order_whose_answer_is_lost_is_found_and_a_shortage_leaves_nothing() {
    let world = world().await;
    world.sim().fault(Rule::once("create", Fault::NoCapacity));
    assert_eq!(
        refusal(&world.post("droplets", order()).await),
        (422, SOLD_OUT.to_owned())
    );
    let lost = Fault::Server {
        status: 503,
        when: When::After,
    };
    world.sim().fault(Rule::once("droplets.create", lost));
    assert_eq!(world.post("droplets", order()).await.status, 503);
    let listed = world.get("droplets?type=gpus&name=POOL-0").await.json();
    assert_eq!(listed["meta"]["total"], 1);
    world.is_content();
}

#[tokio::test]
async fn what_is_not_simulated_is_told_from_what_is_no_call() {
    let world = world().await;
    for (path, status) in [("projects", 501), ("droplets/1/firewalls", 501), ("nothing", 404)] {
        assert_eq!(world.get(path).await.status, status, "{path}");
    }
    assert_eq!(world.get("projects").await.json()["id"], "not_simulated");
    let shelf = Shelf::new("gpu-h100x1-80gb", "tor1", Market::OnDemand);
    world.sim().world(|world| world.stock.set(shelf, Left::Count(0)));
    let refused = refusal(&world.post("droplets", order()).await);
    assert_eq!(refused, (422, SOLD_OUT.to_owned()));
}
