//! Tests with hand-written requests, after the facts about the cloud.

mod lists;
mod orders;
mod sdk;
mod ssh;

use http::Method;
use rust_decimal::Decimal;
use serde_json::{Value, json};

use super::Novita;
use crate::core::client::{Client, Reply};
use crate::core::rest::Rest;
use crate::{Account, BootEnd, BootPlan, Cause, Fault, Happening, Rule, Sim, Simulator, When};

const IMAGE: &str = "nvidia/cuda:12.9.1-runtime-ubuntu24.04";

struct World(Simulator, Client);

async fn world() -> World {
    let cloud = Rest::new(Novita::default());
    let simulator = crate::Builder::manual().cloud(cloud).start().await.unwrap();
    let sim = simulator.cloud("novita");
    sim.world(|world| world.add_account(Account::with_key("acme", "key")));
    let client = Client::new(simulator.url("novita")).with("authorization", "Bearer key");
    World(simulator, client)
}

impl World {
    fn sim(&self) -> &Sim {
        self.0.cloud("novita")
    }

    async fn get(&self, path: &str) -> Reply {
        let path = format!("/gpu-instance/openapi/v1/{path}");
        self.1.get(&path).await.unwrap()
    }

    /// A call of instances.
    async fn act(&self, what: &str, body: Value) -> Reply {
        let path = format!("/gpu-instance/openapi/v1/gpu/instance/{what}");
        self.1.json(Method::POST, &path, body).await.unwrap()
    }

    /// A call about one instance.
    async fn ask(&self, what: &str, id: &str) -> Reply {
        self.act(what, json!({ "instanceId": id })).await
    }

    /// Orders an instance. Returns its id.
    async fn order(&self, order: Value) -> String {
        let made = self.act("create", order).await;
        assert_eq!(made.status, 200, "{}", made.body);
        made.json()["id"].as_str().unwrap().to_owned()
    }

    /// Orders an instance and waits until SSH answers.
    async fn running(&self, order: Value) -> String {
        let id = self.order(order).await;
        self.0.advance(20);
        self.0.advance(5);
        let instance = self.instance(&id).await;
        let ssh = &instance["connectComponentSSH"];
        assert_eq!(
            (&instance["status"], &ssh["isRunning"]),
            (&json!("running"), &json!(true)),
            "{instance}"
        );
        id
    }

    async fn instance(&self, id: &str) -> Value {
        self.get(&format!("gpu/instance?instanceId={id}")).await.json()
    }

    async fn status(&self, id: &str) -> Value {
        self.instance(id).await["status"].clone()
    }

    /// The statuses of an instance now and after each of these times in seconds.
    async fn statuses(&self, id: &str, after: &[i64]) -> Vec<String> {
        let mut found = Vec::new();
        for seconds in after {
            self.0.advance(*seconds);
            found.push(self.status(id).await.as_str().unwrap().to_owned());
        }
        found
    }

    /// Status and reason of an order that is refused for one of its fields.
    async fn refused(&self, name: &str, value: Value) -> (u16, String) {
        let mut order = order();
        order[name] = value;
        refusal(&self.act("create", order).await)
    }

    /// Gives answers these other forms.
    fn forms(&self, forms: &[&str]) {
        let body = json!({ "forms": forms });
        self.sim().control("answers", &body).unwrap().unwrap();
    }

    /// What an hour costs now.
    fn hourly(&self) -> Decimal {
        self.sim().meter(|meter| meter.hourly("acme"))
    }

    fn is_content(&self) {
        assert_eq!(self.sim().complaints(), Vec::<String>::new());
    }
}

/// Status and reason of a failure.
fn refusal(reply: &Reply) -> (u16, String) {
    let body = reply.json();
    assert!(
        body["code"] == reply.status && body["message"].is_string() && body["metadata"].is_object(),
        "{}",
        reply.body
    );
    (
        reply.status,
        body["reason"].as_str().unwrap_or_default().to_owned(),
    )
}

fn order() -> Value {
    json!({
        "name": "pool-0", "productId": "prod-4090", "gpuNum": 1, "rootfsSize": 50, "imageUrl": IMAGE, "kind": "gpu",
        "billingMode": "onDemand", "minCudaVersion": "12.9", "envs": [{"key": "POOL", "value": "p"}],
    })
}

fn spot() -> Value {
    let mut order = order();
    order["billingMode"] = "spot".into();
    order
}

/// A price in dollars, as it is written.
fn usd(text: &str) -> Decimal {
    text.parse().unwrap()
}

#[tokio::test]
async fn an_instance_is_ordered_pulls_its_image_runs_and_is_removed() {
    let world = world().await;
    let id = world.order(order()).await;
    let new = world.instance(&id).await;
    assert_eq!(
        (
            &new["status"],
            &new["name"],
            &new["clusterName"],
            &new["clusterId"]
        ),
        (
            &json!("toCreate"),
            &json!("pool-0"),
            &json!("US-CA-06"),
            &json!("5")
        )
    );
    assert_eq!(
        (&new["gpuNum"], &new["cpuNum"], &new["memory"], &new["rootfsSize"]),
        (&json!("1"), &json!("16"), &json!("62"), &json!(50))
    );
    assert_eq!(new["envs"], json!([{"key": "POOL", "value": "p"}]));
    assert_eq!(new["statusError"], json!({"state": "", "message": ""}));
    assert_eq!(
        (&new["billingMode"], &new["spotStatus"], &new["spotReclaimTime"]),
        (&json!("onDemand"), &json!(""), &json!("0"))
    );
    assert_eq!(
        world.statuses(&id, &[2, 3, 15]).await,
        ["creating", "pulling", "running"]
    );
    let machine = world.sim().world(|world| world.machines[&id].clone());
    assert_eq!(
        (machine.mark.name.as_str(), machine.mark.env["POOL"].as_str()),
        ("pool-0", "p")
    );
    assert_eq!(machine.boot.gpus, ["NVIDIA GeForce RTX 4090"]);

    assert_eq!(world.ask("delete", &id).await.status, 200);
    assert_eq!(
        world.statuses(&id, &[0, 2, 3]).await,
        ["toRemove", "removing", "removed"]
    );
    assert_eq!(world.ask("delete", &id).await.status, 404, "it is gone");
    world.0.advance(60);
    let path = format!("gpu/instance?instanceId={id}");
    assert_eq!(refusal(&world.get(&path).await), (404, "NOT_FOUND".to_owned()));
    assert!(world.sim().meter(|meter| meter.billed_now().is_empty()));
    world.is_content();
}

#[tokio::test]
async fn each_second_costs_until_the_end_is_ordered() {
    let world = world().await;
    let mut order = order();
    order["gpuNum"] = 2.into();
    let id = world.order(order).await;
    assert_eq!(world.hourly(), usd("0.7"), "two GPUs at 0.35");
    world.0.advance(3_601);
    world.ask("delete", &id).await;
    world.0.advance(3_600);
    let bill = world.sim().meter(|meter| meter.bill("acme"));
    assert_eq!(bill, usd("0.7") * Decimal::from(3_601) / Decimal::from(3_600));
    world.is_content();
}

#[tokio::test]
async fn a_disk_costs_above_60_gb_while_an_instance_runs_and_whole_while_it_is_stopped() {
    let world = world().await;
    let mut order = order();
    order["rootfsSize"] = 84.into();
    let id = world.running(order).await;
    assert_eq!(world.hourly(), usd("0.355"), "24 GB cost 0.005 an hour");
    assert_eq!(world.ask("stop", &id).await.status, 200);
    assert_eq!(world.hourly(), usd("0.0175"), "84 GB");
    assert_eq!(
        world.statuses(&id, &[0, 2, 2]).await,
        ["toStop", "stopping", "exited"]
    );
    assert_eq!(refusal(&world.ask("stop", &id).await).0, 400, "it is stopped");
    assert_eq!(world.ask("start", &id).await.status, 200);
    assert_eq!(
        world.statuses(&id, &[0, 2, 18]).await,
        ["toStart", "starting", "running"]
    );
    assert_eq!(world.hourly(), usd("0.355"));
    assert_eq!(world.ask("restart", &id).await.status, 200);
    assert_eq!(
        world.statuses(&id, &[0, 2, 18]).await,
        ["toRestart", "restarting", "running"]
    );
    assert_eq!(refusal(&world.ask("start", &id).await).0, 400, "it runs");
    world.is_content();
}

#[tokio::test]
async fn a_stopped_instance_gives_its_gpus_back_and_may_find_none_again() {
    let world = world().await;
    let shelf = crate::Shelf::new("prod-4090", "US-CA-06", crate::Market::OnDemand);
    world
        .sim()
        .world(|world| world.stock.set(shelf, crate::Left::Count(1)));
    let id = world.running(order()).await;
    let short = (400, "INSUFFICIENT_RESOURCE".to_owned());
    assert_eq!(refusal(&world.act("create", order()).await), short);
    world.ask("stop", &id).await;
    world.order(order()).await;
    assert_eq!(refusal(&world.ask("start", &id).await), short);
    world.is_content();
}

#[tokio::test]
async fn a_spot_instance_is_notified_before_it_is_taken_back_and_stays_without_running() {
    let world = world().await;
    let id = world.running(spot()).await;
    assert_eq!(world.hourly(), usd("0.18"));
    let told = async || {
        let instance = world.instance(&id).await;
        ["status", "spotStatus", "spotReclaimTime"].map(|field| instance[field].as_str().unwrap().to_owned())
    };
    assert_eq!(told().await, ["running", "running", "0"]);
    let at = world.sim().world(|world| {
        world.reclaim(&id, jiff::SignedDuration::from_secs(60));
        (world.now().as_second() + 60).to_string()
    });
    assert_eq!(told().await, ["running", "notified", at.as_str()]);
    world.0.advance(60);
    assert_eq!(told().await, ["toStop", "reclaiming", at.as_str()]);
    world.0.advance(4);
    assert_eq!(told().await, ["exited", "terminated", at.as_str()]);
    assert!(world.hourly() > Decimal::ZERO, "its disk costs");
    assert_eq!(
        refusal(&world.ask("start", &id).await).0,
        400,
        "it was taken back"
    );
    assert_eq!(world.ask("delete", &id).await.status, 200);
    assert_eq!(world.hourly(), Decimal::ZERO);
    world.is_content();
}

#[tokio::test]
async fn an_instance_that_fails_tells_why_and_costs_until_it_is_deleted() {
    let world = world().await;
    let plan = |ends| BootPlan {
        takes: jiff::SignedDuration::from_secs(30),
        ends,
    };
    let fails = |cause| Fault::Boot(plan(BootEnd::Fails(cause)));
    for (fault, status, state) in [
        (fails(Cause::NoCapacity), "creating", "INSUFFICIENT_RESOURCE"),
        (
            fails(Cause::Installation("no such image".to_owned())),
            "pulling",
            "CREATE_CONTAINER_FAILED",
        ),
        (Fault::Dies { after: 25 }, "exited", "NODE_LOST"),
    ] {
        world.sim().fault(Rule::once("instances.create", fault));
        let id = world.order(order()).await;
        world.0.advance(30);
        let instance = world.instance(&id).await;
        assert_eq!(
            (&instance["status"], &instance["statusError"]["state"]),
            (&json!(status), &json!(state))
        );
        assert_eq!(world.hourly(), usd("0.35"));
        assert_eq!(world.ask("delete", &id).await.status, 200);
    }
    world
        .sim()
        .fault(Rule::once("create", Fault::Boot(plan(BootEnd::Never))));
    let stuck = world.order(order()).await;
    world.0.advance(86_400);
    assert_eq!(world.status(&stuck).await, "pulling");
    assert_eq!(world.ask("delete", &stuck).await.status, 200);
    world.is_content();
}

#[tokio::test]
async fn a_guest_that_halts_itself_has_exited_and_one_whose_account_owes_money_is_freezing() {
    let world = world().await;
    let (halted, frozen) = (world.running(order()).await, world.running(order()).await);
    world
        .sim()
        .world(|world| world.happen(Happening::HaltedItself(halted.clone())));
    let freeze = json!({ "instance": frozen });
    world.sim().control("freeze", &freeze).unwrap().unwrap();
    world.0.advance(1);
    assert_eq!(
        (world.status(&halted).await, world.status(&frozen).await),
        (json!("exited"), json!("freezing"))
    );
    assert_eq!(
        refusal(&world.ask("start", &frozen).await),
        (402, "INSUFFICIENT_BALANCE".to_owned())
    );
    assert_eq!(world.instance(&halted).await["spotReclaimTime"], "0");
    world.is_content();
}

#[tokio::test]
async fn a_key_that_is_wrong_or_may_not_is_refused_in_the_clouds_words() {
    let world = world().await;
    let stranger = Client::new(world.0.url("novita")).with("authorization", "Bearer other");
    let path = "/gpu-instance/openapi/v1/clusters";
    let refused = stranger.get(path).await.unwrap();
    assert_eq!(refusal(&refused), (401, "UNAUTHORIZED".to_owned()));
    for (fault, expected) in [
        (Fault::Forbidden, (403, "PERMISSION_DENIED")),
        (Fault::Funds, (402, "INSUFFICIENT_BALANCE")),
        (Fault::NoCapacity, (400, "INSUFFICIENT_RESOURCE")),
    ] {
        world.sim().fault(Rule::once("instances.create", fault));
        let refused = refusal(&world.act("create", order()).await);
        assert_eq!(refused, (expected.0, expected.1.to_owned()));
    }
    let busy = Fault::TooMany { retry_after: Some(7) };
    world.sim().fault(Rule::once("clusters.list", busy));
    let refused = world.get("clusters").await;
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("7")));
    world.sim().world(|world| {
        let account = world.accounts.get_mut("acme").unwrap();
        account.quotas.insert("instances".to_owned(), 0);
        account.balance = Some(usd("12.3456"));
    });
    assert_eq!(
        refusal(&world.act("create", order()).await),
        (400, "QUOTA_EXCEEDED".to_owned())
    );
    let balance = world.1.get("/openapi/v1/billing/balance/detail").await.unwrap();
    assert_eq!(balance.json()["availableBalance"], "123456");
    world.is_content();
}

#[tokio::test]
async fn an_order_whose_answer_is_lost_is_found_by_its_name_and_a_second_one_makes_a_second_instance() {
    let world = world().await;
    let lost = Fault::Server {
        status: 503,
        when: When::After,
    };
    world.sim().fault(Rule::once("instances.create", lost));
    assert_eq!(world.act("create", order()).await.status, 503);
    let listed = world
        .get("gpu/instances?pageSize=100&pageNum=0&name=POOL-0")
        .await
        .json();
    assert_eq!(
        (&listed["total"], &listed["instances"][0]["name"]),
        (&json!(1), &json!("pool-0"))
    );
    world.order(order()).await;
    let doubled = |by: &str| world.sim().meter(|meter| meter.doubled(by).len());
    assert_eq!((doubled("name"), doubled("env:POOL")), (1, 1));
    world.is_content();
}

#[tokio::test]
async fn what_is_not_simulated_is_told_from_what_is_no_call() {
    let world = world().await;
    for (path, status) in [
        ("gpu/instance/edit", 501),
        ("cpu/products", 501),
        ("templates", 501),
        ("nothing", 404),
    ] {
        assert_eq!(world.get(path).await.status, status, "{path}");
    }
    assert_eq!(world.get("templates").await.json()["reason"], "not_simulated");
}
