//! Volumes that live on their own: made, changed, moved between instances, and their bill.

use http::Method;
use rust_decimal::Decimal;
use serde_json::{Value, json};

use super::{Verda, World, id, login, order, world};
use crate::core::client::{Client, Reply};
use crate::{Account, Builder};

fn disk(name: &str, size: u32) -> Value {
    json!({"name": name, "size": size, "type": "NVMe", "location_code": "FIN-01"})
}

async fn made(world: &World, volume: Value) -> String {
    let reply = world.post("/v1/volumes", volume).await;
    assert_eq!(reply.status, 202, "{}", reply.body);
    world.simulator.advance(1);
    id(&reply)
}

async fn act(world: &World, action: &str, id: &str, more: Value) -> Reply {
    let mut body = json!({"action": action, "id": id});
    for (name, value) in more.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    world.send(Method::PUT, "/v1/volumes", body).await.unwrap()
}

async fn shown(world: &World, id: &str) -> Value {
    world.get(&format!("/v1/volumes/{id}")).await.json()
}

async fn status(world: &World, id: &str) -> String {
    let status = shown(world, id).await["status"].clone();
    status.as_str().unwrap_or_default().to_owned()
}

/// An instance that runs, and is shut down.
async fn off(world: &World, hostname: &str) -> String {
    let id = world.running(order(hostname)).await;
    let reply = world.put(json!({"action": "shutdown", "id": id})).await;
    assert_eq!(reply.status, 202, "{}", reply.body);
    id
}

#[track_caller]
fn refused(reply: &Reply, status: u16) {
    let code = match status {
        400 => "invalid_request",
        403 => "forbidden_action",
        404 => "not_found",
        _ => "not_simulated",
    };
    assert_eq!(
        (reply.status, reply.json()["code"].as_str()),
        (status, Some(code)),
        "{}",
        reply.body
    );
}

fn hourly(world: &World) -> Decimal {
    world.sim().meter(|meter| meter.hourly("acme")).normalize()
}

#[tokio::test]
async fn a_volume_costs_from_its_order_by_its_size_and_nothing_in_the_trash() {
    let world = world().await;
    let reply = world.post("/v1/volumes", disk("data", 365)).await;
    assert_eq!(reply.status, 202, "{}", reply.body);
    let id = id(&reply);
    assert_eq!(status(&world, &id).await, "ordered");
    world.simulator.advance(1);
    let volume = shown(&world, &id).await;
    assert_eq!(
        (&volume["status"], &volume["size"], &volume["instance_id"]),
        (&json!("detached"), &json!(365), &Value::Null)
    );
    assert_eq!(
        (&volume["base_hourly_cost"], &volume["monthly_price"]),
        (&json!(0.1), &json!(73.0))
    );
    world.simulator.advance(3_599);
    let bill = || world.sim().meter(|meter| meter.bill("acme")).normalize();
    assert_eq!(bill(), Decimal::new(1, 1));

    refused(&act(&world, "resize", &id, json!({"size": 100})).await, 400);
    assert_eq!(act(&world, "resize", &id, json!({"size": 730})).await.status, 202);
    world.simulator.advance(3_600);
    assert_eq!(bill(), Decimal::new(3, 1));

    assert_eq!(
        act(&world, "rename", &id, json!({"name": "more"})).await.status,
        202
    );
    assert_eq!(act(&world, "delete", &id, json!({})).await.status, 202);
    assert_eq!(hourly(&world), Decimal::ZERO);
    let trash = world.get("/v1/volumes/trash").await.json();
    assert_eq!(
        (&trash[0]["name"], &trash[0]["is_permanently_deleted"]),
        (&json!("more"), &json!(false))
    );
    assert_eq!(world.get("/v1/volumes").await.json(), json!([]));
    assert_eq!(
        world.get("/v1/volumes?status=deleted").await.json()[0]["name"],
        "more"
    );
    assert_eq!(act(&world, "restore", &id, json!({})).await.status, 202);
    assert_eq!(status(&world, &id).await, "restoring");
    assert_eq!(hourly(&world), Decimal::new(2, 1));
    world.simulator.advance(96 * 3_600);
    assert_eq!(status(&world, &id).await, "detached", "it left the trash in time");
    refused(&act(&world, "restore", &id, json!({})).await, 400);

    let for_good = act(&world, "delete", &id, json!({"is_permanent": true})).await;
    assert_eq!(for_good.status, 202);
    refused(&world.get(&format!("/v1/volumes/{id}")).await, 404);
    refused(&act(&world, "rename", &id, json!({"name": "x"})).await, 404);
    assert!(world.sim().meter(|meter| meter.leftovers("acme").is_empty()));
    world.all_as_described();
}

#[tokio::test]
async fn a_volume_goes_to_an_instance_that_is_shut_down_and_stays_when_that_is_deleted() {
    let world = world().await;
    let running = world.running(order("a")).await;
    let volume = made(&world, disk("data", 365)).await;
    let to = json!({"instance_id": running});
    refused(&act(&world, "attach", &volume, to.clone()).await, 403);
    let mut with = disk("more", 10);
    with["instance_id"] = json!(running);
    refused(&world.post("/v1/volumes", with).await, 403);

    world.put(json!({"action": "shutdown", "id": running})).await;
    assert_eq!(act(&world, "attach", &volume, to.clone()).await.status, 202);
    refused(&act(&world, "attach", &volume, to).await, 400);
    let seen = shown(&world, &volume).await;
    assert_eq!(
        (&seen["status"], &seen["instance_id"]),
        (&json!("attached"), &json!(running))
    );
    assert_eq!(
        (&seen["instances"][0]["hostname"], &seen["instances"][0]["status"]),
        (&json!("a"), &json!("offline"))
    );
    let volumes = world.instance(&running).await["volume_ids"].clone();
    assert!(volumes.as_array().unwrap().contains(&json!(volume)));
    assert_eq!(
        hourly(&world),
        Decimal::new(327, 2),
        "it costs beside the instance"
    );

    world.put(json!({"action": "boot", "id": running})).await;
    world.simulator.advance(20);
    refused(&act(&world, "detach", &volume, json!({})).await, 403);
    refused(&act(&world, "delete", &volume, json!({})).await, 400);
    assert_eq!(
        world.put(json!({"action": "delete", "id": running})).await.status,
        202
    );
    assert_eq!(status(&world, &volume).await, "detached");
    assert_eq!(hourly(&world), Decimal::new(1, 1));
    world.all_as_described();
}

#[tokio::test]
async fn a_detached_volume_goes_to_another_instance_of_its_location_alone() {
    let world = world().await;
    let (first, second) = (off(&world, "a").await, off(&world, "b").await);
    let mut with = disk("data", 10);
    with["instance_id"] = json!(first);
    let volume = made(&world, with).await;
    assert_eq!(status(&world, &volume).await, "attached");
    let wrong = json!({"instance_id": second});
    refused(&act(&world, "detach", &volume, wrong.clone()).await, 400);
    let right = json!({"instance_id": first});
    assert_eq!(act(&world, "detach", &volume, right).await.status, 202);
    assert_eq!(act(&world, "attach", &volume, wrong).await.status, 202);
    assert_eq!(shown(&world, &volume).await["instance_id"], second);
    let system = world.instance(&first).await["os_volume_id"].clone();
    let system = system.as_str().unwrap();
    refused(&act(&world, "detach", system, json!({})).await, 400);
    refused(&act(&world, "delete", system, json!({})).await, 400);

    let mut far = disk("far", 10);
    far["location_code"] = "FIN-03".into();
    let far = made(&world, far).await;
    let there = json!({"instance_id": first});
    refused(&act(&world, "attach", &far, there).await, 400);
    let nobody = json!({"instance_id": "00000000-0000-4000-8000-000000000000"});
    refused(&act(&world, "attach", &far, nobody).await, 404);
    world.all_as_described();
}

#[tokio::test]
async fn a_shared_file_system_belongs_to_several_instances_while_they_run() {
    let world = world().await;
    let first = world.running(order("a")).await;
    let second = world.running(order("b")).await;
    let mut shared = disk("shared", 100);
    shared["instance_ids"] = json!([first, second]);
    refused(&world.post("/v1/volumes", shared.clone()).await, 400);
    shared["type"] = "NVMe_Shared".into();
    let volume = made(&world, shared).await;
    let seen = shown(&world, &volume).await;
    assert_eq!(seen["instances"].as_array().unwrap().len(), 2);
    assert!(
        seen["mount_command"]
            .as_str()
            .unwrap()
            .starts_with("mount -t nfs")
    );
    // The deletion of one of them names all its volumes.
    let volumes = world.instance(&first).await["volume_ids"].clone();
    let delete = json!({"action": "delete", "id": first, "volume_ids": volumes, "delete_permanently": true});
    assert_eq!(world.put(delete).await.status, 202);
    let seen = shown(&world, &volume).await;
    assert_eq!(
        (&seen["status"], &seen["instance_id"]),
        (&json!("attached"), &json!(second))
    );
    assert_eq!(act(&world, "detach", &volume, json!({})).await.status, 202);
    assert_eq!(status(&world, &volume).await, "detached");
    world.all_as_described();
}

#[tokio::test]
async fn a_clone_is_a_volume_of_its_own_and_can_be_cancelled_until_it_is_there() {
    let world = world().await;
    let source = made(&world, disk("data", 365)).await;
    let reply = act(
        &world,
        "clone",
        &source,
        json!({"name": "copy", "location_code": "FIN-03"}),
    )
    .await;
    assert_eq!(reply.status, 202, "{}", reply.body);
    let copy = reply.json()[0].as_str().unwrap().to_owned();
    let seen = shown(&world, &copy).await;
    assert_eq!(
        (&seen["status"], &seen["location"], &seen["name"]),
        (&json!("cloning"), &json!("FIN-03"), &json!("copy"))
    );
    refused(&act(&world, "resize", &copy, json!({"size": 400})).await, 400);
    world.simulator.advance(1);
    assert_eq!(status(&world, &copy).await, "detached");
    assert_eq!(hourly(&world), Decimal::new(2, 1));
    refused(&act(&world, "cancel", &copy, json!({})).await, 400);
    for wrong in [
        json!({"type": "HDD"}),
        json!({"type": "FIN-03"}),
        json!({"location_code": "none"}),
    ] {
        refused(&act(&world, "clone", &source, wrong).await, 400);
    }

    let reply = act(&world, "clone", &source, json!({})).await;
    let other = reply.json()[0].as_str().unwrap().to_owned();
    assert_eq!(shown(&world, &other).await["name"], "data-clone");
    assert_eq!(act(&world, "cancel", &other, json!({})).await.status, 202);
    assert_eq!(hourly(&world), Decimal::new(2, 1));

    let control = world.sim().control("answers", &json!({"mixed": true}));
    control.expect("known").expect("done");
    let mut forms = [false, false];
    for _ in 0..20 {
        world.simulator.advance(2);
        let reply = act(&world, "clone", &source, json!({})).await.json();
        forms[usize::from(reply["id"].is_string())] = true;
    }
    assert_eq!(forms, [true, true]);
    world.all_as_described();
}

#[tokio::test]
async fn an_os_volume_that_an_instance_left_boots_another() {
    let world = world().await;
    let first = world.running(order("a")).await;
    let system = world.instance(&first).await["os_volume_id"].clone();
    let mut again = order("b");
    again["image"] = system.clone();
    again.as_object_mut().unwrap().remove("os_volume");
    let refusal = world.post("/v1/instances", again.clone()).await;
    assert_eq!(
        refusal.json()["message"],
        "Invalid volume ID",
        "another instance has it"
    );
    let delete = json!({"action": "delete", "id": first, "volume_ids": []});
    assert_eq!(world.put(delete).await.status, 202);
    let mut far = again.clone();
    far["location_code"] = "FIN-03".into();
    refused(&world.post("/v1/instances", far).await, 400);
    let second = world.running(again).await;
    let instance = world.instance(&second).await;
    assert_eq!(
        (&instance["os_volume_id"], &instance["volume_ids"]),
        (&system, &json!([system]))
    );
    let volumes = world.get("/v1/volumes").await.json();
    assert_eq!(volumes.as_array().unwrap().len(), 1);
    world.all_as_described();
}

#[tokio::test]
async fn volumes_that_came_with_an_instance_cost_beside_it_only_where_that_is_asked_for() {
    for (apart, cents) in [(false, 317), (true, 327)] {
        let world = world().await;
        let control = world.sim().control("storage", &json!({"apart": apart}));
        control.expect("known").expect("done");
        let mut order = order("a");
        order["os_volume"]["size"] = 365.into();
        let id = world.running(order).await;
        assert_eq!(hourly(&world), Decimal::new(cents, 2));
        let volumes = world.instance(&id).await["volume_ids"].clone();
        let delete = json!({"action": "delete", "id": id, "volume_ids": volumes, "delete_permanently": true});
        assert_eq!(world.put(delete).await.status, 202);
        assert_eq!(hourly(&world), Decimal::ZERO);
        world.all_as_described();
    }
}

#[tokio::test]
async fn volumes_have_tags_and_the_same_pair_has_the_same_id_everywhere() {
    let world = world().await;
    let mut tagged = disk("data", 10);
    tagged["tags"] = json!([{"key": "Pool", "value": "p"}]);
    let volume = made(&world, tagged).await;
    let instance = world.running(order("a")).await;
    let tags = world.instance(&instance).await["tags"].clone();
    assert_eq!(shown(&world, &volume).await["tags"], tags);
    let path = format!("/v1/volumes/{volume}/tags");
    let free = world.post(&path, json!({"key": "free"})).await;
    assert_eq!((free.status, &free.json()["value"]), (201, &json!("")));
    assert_eq!(
        world
            .post(&path, json!({"key": "POOL", "value": "q"}))
            .await
            .status,
        409
    );
    let by_id = tags[0]["id"].as_str().unwrap();
    assert!(by_id.len() <= 26, "{by_id}");
    // Verda's client for Go names it by its key.
    for (name, status) in [(by_id, 204), ("free", 204), ("free", 404)] {
        let path = format!("{path}/{name}");
        let reply = world.send(Method::DELETE, &path, Value::Null).await.unwrap();
        assert_eq!(reply.status, status, "{name}");
    }
    assert_eq!(shown(&world, &volume).await["tags"], json!([]));
    world.all_as_described();
}

#[tokio::test]
async fn what_cannot_be_done_with_volumes_is_refused() {
    let world = world().await;
    let volume = made(&world, disk("data", 10)).await;
    let mut hdd = disk("old", 10);
    hdd["type"] = "HDD".into();
    refused(&world.post("/v1/volumes", hdd.clone()).await, 400);
    let mut with = order("a");
    with["volumes"] = json!([{"name": "old", "size": 10, "type": "HDD"}]);
    refused(&world.post("/v1/instances", with).await, 400);
    for action in ["create", "export", "transfer", "attach", "rename", "resize"] {
        refused(&act(&world, action, &volume, json!({})).await, 400);
    }
    let nobody = "00000000-0000-4000-8000-000000000000";
    refused(&act(&world, "delete", nobody, json!({})).await, 404);
    // One of several that is not there leaves the others as they are.
    let both = json!({"action": "delete", "id": [volume, nobody]});
    let reply = world.send(Method::PUT, "/v1/volumes", both).await.unwrap();
    refused(&reply, 404);
    assert_eq!(status(&world, &volume).await, "detached");

    world.sim().world(|world| {
        world.add_account(Account::with_pair("other", "id2", "secret2"));
        let quotas = &mut world.accounts.get_mut("acme").unwrap().quotas;
        quotas.insert("volumes".to_owned(), 1);
    });
    let over = world.post("/v1/volumes", disk("one", 1)).await;
    assert_eq!(over.json()["message"], "Volume limit exceeded");
    world.sim().world(|world| {
        let quotas = &mut world.accounts.get_mut("acme").unwrap().quotas;
        quotas.insert("volumes".to_owned(), 9);
        quotas.insert("storage".to_owned(), 50);
    });
    let over = act(&world, "resize", &volume, json!({"size": 60})).await;
    assert_eq!(over.json()["message"], "Storage limit exceeded");
    let over = world.post("/v1/instances", order("a")).await;
    assert_eq!(over.json()["message"], "Storage limit exceeded");
    let other = login(&world.simulator, "id2", "secret2").await;
    let path = format!("/v1/volumes/{volume}");
    assert_eq!(other.get(&path).await.unwrap().status, 404);
    world.all_as_described();

    hdd["on_spot_discontinue"] = "keep_detached".into();
    assert_eq!(world.post("/v1/volumes", hdd).await.status, 400);
    assert!(world.sim().violations()[0].what.contains("on_spot_discontinue"));
}

#[tokio::test]
async fn a_volume_is_deleted_without_a_body_as_verdas_client_for_go_does() {
    let world = world().await;
    let volume = made(&world, disk("data", 10)).await;
    let path = format!("/v1/volumes/{volume}");
    for status in [202, 204] {
        let target = format!("{path}?force=true");
        let reply = world.send(Method::DELETE, &target, Value::Null).await.unwrap();
        assert_eq!(reply.status, status, "{}", reply.body);
    }
    assert_eq!(status(&world, &volume).await, "deleted");
    world.all_as_described();
}

#[tokio::test]
async fn kinds_of_volumes_and_periods_need_no_credentials() {
    let simulator = Builder::manual().cloud(Verda::new()).start().await.unwrap();
    let client = Client::new(simulator.url("verda"));
    let kinds = client.get("/v1/volume-types").await.unwrap().json();
    assert_eq!(
        (&kinds[0]["type"], &kinds[0]["price"]["price_per_month_per_gb"]),
        (&json!("NVMe"), &json!(0.2))
    );
    let periods = client.get("/v1/long-term/periods/instances").await.unwrap();
    assert_eq!(periods.json()[0]["is_enabled"], false);
    assert_eq!(simulator.cloud("verda").violations(), []);
}

#[tokio::test]
async fn what_is_not_simulated_says_so() {
    let world = world().await;
    let clusters = world.get("/v1/clusters").await;
    refused(&clusters, 501);
    assert!(clusters.body.contains("clusters"), "{}", clusters.body);
    assert_eq!(world.get("/v1/nothing").await.status, 404);
    assert_eq!(world.sim().violations().len(), 2);
}
