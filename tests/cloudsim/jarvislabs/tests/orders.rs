//! What orders must say and what they may ask for; devices, money, keys and scripts.

use http::Method;
use rust_decimal::Decimal;
use serde_json::{Value, json};

use super::{KEY, World, furnished, order, order_with, refusal, usd};
use crate::backend::Start;
use crate::{Account, Left, Market, Shelf};

/// The group of servers with A100s.
const A100: &str = "01-A100";

fn devices(market: Market) -> Shelf {
    Shelf::new(A100, "india-noida-01", market)
}

impl World {
    fn left(&self, market: Market) -> Left {
        self.sim().world(|world| world.stock.left(&devices(market)))
    }

    /// Uploads a startup script as JarvisLabs' own client does.
    async fn upload(&self, script: &str) -> u16 {
        let form = format!(
            "--edge\r\nContent-Disposition: form-data; name=\"script\"; filename=\"startup.sh\"\r\n\
             Content-Type: application/x-sh\r\n\r\n{script}\r\n--edge--\r\n"
        );
        let kind = "multipart/form-data; boundary=edge";
        let path = "/scripts/add?name=setup";
        let added = self.1.send(Method::POST, path, kind, &form).await.unwrap();
        added.status
    }
}

#[tokio::test]
async fn an_order_has_every_field_that_the_clouds_own_client_sends() {
    let world = furnished().await;
    let fields: Vec<String> = order().as_object().unwrap().keys().cloned().collect();
    for field in &fields {
        let mut lacking = order();
        lacking.as_object_mut().unwrap().remove(field);
        let refused = world.post("/templates/pytorch/create", lacking).await;
        assert_eq!(refusal(&refused).0, 422, "{field}");
    }
    let unknown = order_with("colour", "red");
    assert_eq!(
        refusal(&world.post("/templates/pytorch/create", unknown).await).0,
        422
    );
    assert!(world.sim().violations().len() > fields.len());
    assert!(world.sim().world(|world| world.machines.is_empty()));
}

#[tokio::test]
async fn what_an_order_may_not_ask_for_is_refused() {
    let world = furnished().await;
    for (template, name, value, status) in [
        ("none", "name", json!("x"), 400),
        ("vm", "hdd", json!(99), 400),
        ("vm", "is_spot", json!(true), 400),
        ("pytorch", "disk_type", json!("hdd"), 400),
        ("pytorch", "script_id", json!("7"), 400),
        ("pytorch", "vpc_id", json!("v"), 400),
        ("vm", "vpc_id", json!("v"), 501),
        ("pytorch", "fs_id", json!(7), 501),
        ("pytorch", "arguments", json!("--x"), 501),
        ("pytorch", "script_args", json!("x"), 501),
        ("pytorch", "duration", json!("week"), 501),
        ("pytorch", "gpu_type", json!("A6000"), 200),
        ("pytorch", "gpu_type", json!("RTX6000Ada"), 200),
        ("pytorch", "region", json!("india-chennai-01"), 200),
        ("vm", "gpu_type", json!("L4"), 200),
    ] {
        let refused = world.refused(template, name, value.clone()).await;
        assert_eq!(refused.0, status, "{template} {name} {value}: {}", refused.1);
    }
    let mut europe = order_with("region", "europe-01");
    europe["num_gpus"] = 2.into();
    assert_eq!(
        refusal(&world.post("/templates/pytorch/create", europe.clone()).await).0,
        400
    );
    europe["num_gpus"] = 1.into();
    europe["hdd"] = 50.into();
    assert_eq!(
        refusal(&world.post("/templates/pytorch/create", europe.clone()).await).0,
        400
    );
    europe["hdd"] = 100.into();
    world.order("vm", europe.clone()).await;
    world.order("pytorch", europe).await;
    world.order("pytorch", order_with("hdd", 50)).await;
    world.is_content();
}

#[tokio::test]
async fn an_order_takes_as_many_devices_as_it_has_gpus_and_gives_each_back_once() {
    let world = furnished().await;
    world
        .sim()
        .world(|world| world.stock.set(devices(Market::OnDemand), Left::Count(4)));
    let mut three = order_with("gpu_type", "A100");
    three["num_gpus"] = 3.into();
    let id = world.running("pytorch", three.clone()).await;
    assert_eq!(world.left(Market::OnDemand), Left::Count(1));
    assert_eq!(world.hourly(), usd("3.8837"), "three at 1.29 and a disk");
    assert_eq!(world.instance(&id).await["num_gpus"], 3);
    let refused = world.post("/templates/pytorch/create", three.clone()).await;
    assert_eq!(refusal(&refused).0, 200);
    assert_eq!(world.act("pause", &id).await.status, 200);
    assert_eq!(world.left(Market::OnDemand), Left::Count(4));
    assert_eq!(world.act("destroy", &id).await.status, 200);
    world.0.advance(10);
    assert_eq!(world.left(Market::OnDemand), Left::Count(4));
    let other = world.running("pytorch", three).await;
    assert_eq!(world.act("destroy", &other).await.status, 200);
    world.0.advance(10);
    assert_eq!(world.left(Market::OnDemand), Left::Count(4));
    world.is_content();
}

#[tokio::test]
async fn a_spot_instance_has_a_price_and_devices_of_its_own() {
    let world = furnished().await;
    world
        .sim()
        .world(|world| world.stock.set(devices(Market::Spot), Left::Count(1)));
    let mut spot = order_with("gpu_type", "A100");
    spot["is_spot"] = true.into();
    let id = world.running("pytorch", spot.clone()).await;
    let machine = world.sim().world(|world| world.machines[&id].clone());
    assert_eq!((machine.market, machine.price), (Market::Spot, usd("0.6537")));
    assert_eq!(
        refusal(&world.post("/templates/pytorch/create", spot).await).0,
        200
    );
    world.order("pytorch", order_with("gpu_type", "A100")).await;
    world.is_content();
}

#[tokio::test]
async fn an_order_that_is_sent_twice_makes_two_instances_of_one_name() {
    let world = furnished().await;
    let ids = [
        world.order("pytorch", order()).await,
        world.order("pytorch", order()).await,
    ];
    assert_ne!(ids[0], ids[1]);
    let doubled = world.sim().meter(|meter| meter.doubled("name"));
    assert_eq!(doubled["acme/pool a-0"], ids);
    world.is_content();
}

#[tokio::test]
async fn an_empty_wallet_is_refused_by_a_word_about_the_balance() {
    let world = furnished().await;
    let balance = async || world.get("/users/balance").await.json()["balance"].clone();
    assert_eq!(balance().await, 100.0);
    world.sim().world(|world| {
        world.add_account(Account {
            balance: Some(Decimal::ZERO),
            ..Account::with_key("acme", "token")
        });
    });
    assert_eq!(balance().await, 0.0);
    let refused = refusal(&world.post("/templates/pytorch/create", order()).await);
    assert!(refused.0 == 403 && refused.1.contains("balance"), "{refused:?}");
    world.is_content();
}

#[tokio::test]
async fn keys_are_added_without_an_answer_with_their_id_and_reach_new_instances_alone() {
    let world = furnished().await;
    let old = world.order("pytorch", order()).await;
    let again = world
        .post("/ssh/", json!({"ssh_key": KEY, "key_name": "again"}))
        .await;
    assert_eq!(
        (again.status, &again.json()["key_id"]),
        (200, &Value::Null),
        "the same key"
    );
    let nothing = json!({"ssh_key": "nothing", "key_name": "x"});
    assert_eq!(refusal(&world.post("/ssh/", nothing).await).0, 400);
    let keys = world.get("/ssh/").await.json();
    let names: Vec<&Value> = keys
        .as_array()
        .unwrap()
        .iter()
        .map(|key| &key["key_name"])
        .collect();
    assert_eq!(names, ["mine", "again"]);
    let new = world.order("pytorch", order()).await;
    let has = |id: &str| {
        world
            .sim()
            .world(|world| world.machines[id].boot.authorized_keys.len())
    };
    assert_eq!((has(&old), has(&new)), (1, 2));
    for key in keys.as_array().unwrap() {
        let path = format!("/ssh/{}", key["key_id"].as_str().unwrap());
        assert_eq!(world.call(Method::DELETE, &path).await.status, 200);
        assert_eq!(world.call(Method::DELETE, &path).await.status, 404);
    }
    assert_eq!(world.get("/ssh/").await.json(), json!([]));
    let keyless = world.order("pytorch", order()).await;
    assert_eq!(has(&keyless), 0, "a container that nobody can log in to");
    world.is_content();
}

#[tokio::test]
async fn a_startup_script_is_run_by_a_container_and_never_by_a_vm() {
    let world = furnished().await;
    assert_eq!(world.upload("").await, 400);
    assert_eq!(world.upload("#!/bin/sh\ntouch /ready\n").await, 200);
    let scripts = world.get("/scripts/").await.json()["script_meta"].clone();
    assert_eq!(scripts[0]["script_name"], "setup");
    let id = scripts[0]["script_id"].to_string();
    let start = async |template: &str| {
        let made = world.order(template, order_with("script_id", id.as_str())).await;
        world
            .sim()
            .world(|world| world.machines[&made].boot.start.clone())
    };
    let script = Start::OnStart("#!/bin/sh\ntouch /ready\n".to_owned());
    assert_eq!(
        (start("pytorch").await, start("vm").await),
        (script, Start::Nothing)
    );
    let path = format!("/scripts/?script_id={id}");
    assert_eq!(world.call(Method::DELETE, &path).await.status, 200);
    assert_eq!(world.call(Method::DELETE, &path).await.status, 404);
    world.is_content();
}
