//! From order to bill.

use http::Method;
use rust_decimal::Decimal;
use serde_json::{Value, json};

use super::{id, order, spot, world};
use crate::backend::Start;
use crate::{Happening, Phase};

#[tokio::test]
async fn an_ordered_instance_goes_through_its_statuses_and_gets_an_address() {
    let world = world().await;
    let reply = world.post("/v1/instances", order("a")).await;
    let id = id(&reply);
    assert_eq!(world.instance(&id).await["status"], "new");
    assert_eq!(world.instance(&id).await["ip"], Value::Null);
    world.simulator.advance(6);
    assert_eq!(world.instance(&id).await["status"], "provisioning");
    world.simulator.advance(14);
    let instance = world.instance(&id).await;
    assert_eq!(instance["status"], "running");
    assert!(instance["ip"].is_string());
    assert_eq!(instance["price_per_hour"], json!(3.17));
    assert_eq!(instance["tags"][0]["key"], "pool", "keys of tags are lower-cased");
    world.all_as_described();
}

#[tokio::test]
async fn the_id_of_a_new_instance_comes_quoted_or_bare() {
    let world = world().await;
    let sim = world.simulator.cloud("verda");
    assert!(sim.control("answers", &json!({"mixed": true})).is_some());
    let mut bare = 0;
    for number in 0..20 {
        let reply = world.post("/v1/instances", order(&format!("m{number}"))).await;
        bare += usize::from(!reply.body.starts_with('"'));
        assert_eq!(id(&reply).len(), 36);
    }
    assert!(bare > 0 && bare < 20, "{bare}");
    world.all_as_described();
}

#[tokio::test]
async fn an_instance_costs_by_the_second_until_it_is_deleted_and_its_volume_after_that() {
    let world = world().await;
    let id = world.running(order("a")).await;
    world.simulator.advance(3_580);
    let reply = world
        .put(json!({"action": "delete", "id": id, "volume_ids": []}))
        .await;
    assert_eq!(reply.status, 202);
    assert_eq!(reply.json()[0]["status"], "success");
    world.simulator.advance(3_600);
    let (machine, all) = world
        .sim()
        .meter(|meter| (meter.bill_of(&id), meter.bill("acme")));
    assert_eq!(machine, Some(Decimal::new(317, 2)));
    assert_eq!(
        all.round_dp(4),
        Decimal::new(31_974, 4),
        "100 GB detached for an hour"
    );
    assert!(world.sim().meter(|meter| meter.billed_now().is_empty()));
    assert_eq!(world.sim().meter(|meter| meter.leftovers("acme").len()), 1);
    world.all_as_described();
}

#[tokio::test]
async fn an_instance_that_is_shut_down_is_offline_and_stays_on_the_bill() {
    let world = world().await;
    let id = world.running(order("a")).await;
    world
        .sim()
        .world(|world| world.happen(Happening::HaltedItself(id.clone())));
    assert_eq!(world.instance(&id).await["status"], "offline");
    world.simulator.advance(3_580);
    assert_eq!(
        world.sim().meter(|meter| meter.bill_of(&id)),
        Some(Decimal::new(317, 2))
    );
    assert_eq!(world.sim().meter(|meter| meter.billed_now().len()), 1);
}

#[tokio::test]
async fn deletion_with_all_volumes_leaves_nothing_at_all() {
    let world = world().await;
    let id = world.running(order("a")).await;
    let volumes = world.instance(&id).await["volume_ids"].clone();
    let delete = json!({"action": "delete", "id": [id], "volume_ids": volumes, "delete_permanently": true});
    assert_eq!(world.put(delete.clone()).await.status, 202);
    assert_eq!(world.instance(&id).await["status"], "deleting");
    world.simulator.advance(5);
    assert_eq!(world.instance(&id).await["status"], "discontinued");
    assert_eq!(world.get("/v1/instances").await.json(), json!([]));
    assert_eq!(world.sim().meter(|meter| meter.leftovers("acme").len()), 0);
    assert_eq!(world.get("/v1/volumes/trash").await.json(), json!([]));
    world.simulator.advance(3_601);
    assert_eq!(world.get(&format!("/v1/instances/{id}")).await.status, 404);
    world.all_as_described();
}

#[tokio::test]
async fn deletion_without_volume_ids_puts_the_os_volume_into_the_trash_for_96_hours() {
    let world = world().await;
    let mut with_data = order("a");
    with_data["volumes"] = json!([{"name": "data", "size": 10, "type": "NVMe"}]);
    let id = world.running(with_data).await;
    let delete = json!({"action": "delete", "id": id, "delete_permanently": true});
    assert_eq!(world.put(delete).await.status, 202);
    let trash = world.get("/v1/volumes/trash").await.json();
    assert_eq!(
        trash[0]["name"], "os",
        "delete_permanently acts only with volume_ids"
    );
    let detached = world.get("/v1/volumes?status=detached").await.json();
    assert_eq!(detached[0]["name"], "data");
    world.simulator.advance(96 * 3_600);
    let left = world.sim().meter(|meter| {
        meter
            .leftovers("acme")
            .iter()
            .map(|left| left.name.clone())
            .collect::<Vec<_>>()
    });
    assert_eq!(left, ["data"]);
    let path = format!("/v1/volumes/{}", detached[0]["id"].as_str().unwrap());
    let gone = world
        .send(Method::DELETE, &path, json!({"is_permanent": true}))
        .await
        .unwrap();
    assert_eq!(gone.status, 202);
    assert_eq!(world.sim().meter(|meter| meter.leftovers("acme").len()), 0);
    world.all_as_described();
}

#[tokio::test]
async fn a_provisioning_instance_cannot_be_deleted_yet_and_a_deleted_one_not_again() {
    let world = world().await;
    let order = world.post("/v1/instances", order("a")).await;
    let delete = json!({"action": "delete", "id": id(&order)});
    let reply = world.put(delete.clone()).await;
    assert_eq!(
        (reply.status, reply.json()["message"].as_str()),
        (400, Some("Can't discontinue a provisioning instance"))
    );
    world.simulator.advance(20);
    assert_eq!(world.put(delete.clone()).await.status, 202);
    assert_eq!(world.put(delete.clone()).await.status, 204);
    world.simulator.advance(5);
    let reply = world.put(delete).await;
    assert_eq!(
        (reply.status, reply.json()["message"].as_str()),
        (400, Some("Can't discontinue a discontinued instance"))
    );
    let unknown = json!({"action": "delete", "id": "00000000-0000-4000-8000-000000000000"});
    assert_eq!(world.put(unknown).await.status, 404);
    world.all_as_described();
}

#[tokio::test]
async fn one_of_several_deletions_that_fails_makes_a_207() {
    let world = world().await;
    let running = world.running(order("a")).await;
    let fresh = id(&world.post("/v1/instances", order("b")).await);
    let reply = world
        .put(json!({"action": "delete", "id": [running, fresh]}))
        .await;
    assert_eq!(reply.status, 207);
    assert_eq!(
        (&reply.json()[0]["status"], &reply.json()[1]["status"]),
        (&json!("success"), &json!("error"))
    );
    world.all_as_described();
}

#[tokio::test]
async fn a_reclaimed_spot_instance_is_discontinued_without_a_word_and_its_volume_as_was_asked() {
    for (policy, leftovers) in [
        ("keep_detached", 1),
        ("move_to_trash", 1),
        ("delete_permanently", 0),
    ] {
        let world = world().await;
        let id = world.running(spot("a", policy)).await;
        assert_eq!(world.instance(&id).await["price_per_hour"], json!(1.11));
        world
            .sim()
            .world(|world| world.reclaim(&id, jiff::SignedDuration::ZERO));
        assert_eq!(world.instance(&id).await["status"], "discontinued");
        assert_eq!(
            world.get("/v1/instances").await.json()[0]["status"],
            "discontinued"
        );
        assert!(world.sim().meter(|meter| meter.billed_now().is_empty()));
        assert_eq!(
            world.sim().meter(|meter| meter.leftovers("acme").len()),
            leftovers,
            "{policy}"
        );
        let costs = world.sim().meter(|meter| !meter.hourly("acme").is_zero());
        assert_eq!(costs, policy == "keep_detached");
        world.all_as_described();
    }
}

#[tokio::test]
async fn keys_and_the_start_up_script_reach_the_machine() {
    let world = world().await;
    let public = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ2Hq6vIvOaT0nUqGrXvUqWy8n1Zq6e8o0i1c2b3d4e5 test";
    let key = id(&world
        .post("/v1/ssh-keys", json!({"name": "k", "key": public}))
        .await);
    let script = id(&world
        .post("/v1/scripts", json!({"name": "s", "script": "#!/bin/sh\ntrue\n"}))
        .await);
    let mut order = order("a");
    order["ssh_key_ids"] = json!([key]);
    order["startup_script_id"] = script.clone().into();
    let id = world.running(order).await;
    let boot = world.sim().world(|world| world.machines[&id].boot.clone());
    assert_eq!(boot.authorized_keys, [public]);
    assert_eq!(boot.start, Start::UserData("#!/bin/sh\ntrue\n".to_owned()));
    assert_eq!(boot.user, "root");
    let listed = world.get("/v1/ssh-keys").await.json();
    assert_eq!(listed[0]["fingerprint"].as_str().unwrap().len(), 47);
    for path in [format!("/v1/ssh-keys/{key}"), format!("/v1/scripts/{script}")] {
        assert_eq!(
            world
                .send(Method::DELETE, &path, Value::Null)
                .await
                .unwrap()
                .status,
            200
        );
        assert_eq!(
            world
                .send(Method::DELETE, &path, Value::Null)
                .await
                .unwrap()
                .status,
            404
        );
    }
    world.all_as_described();
}

#[tokio::test]
async fn scripts_come_in_pages_newest_first_and_no_more_than_100_are_taken() {
    let world = world().await;
    for number in 0..100 {
        let reply = world
            .post(
                "/v1/scripts",
                json!({"name": format!("s{number}"), "script": "x"}),
            )
            .await;
        assert_eq!(reply.status, 201);
        world.simulator.advance(2);
    }
    let page = world.get("/v1/scripts").await;
    assert_eq!(page.json().as_array().unwrap().len(), 10);
    assert_eq!(page.json()[0]["name"], "s99");
    assert_eq!(page.header("x-total-count"), Some("100"));
    let page = world.get("/v1/scripts?page=2&pageSize=60").await;
    assert_eq!(page.json().as_array().unwrap().len(), 40);
    assert_eq!(
        world
            .post("/v1/scripts", json!({"name": "one more", "script": "x"}))
            .await
            .status,
        403
    );
    world.all_as_described();
}

#[tokio::test]
async fn a_list_is_filtered_by_tags_that_all_must_fit() {
    let world = world().await;
    let first = world.running(order("a")).await;
    let mut other = order("b");
    other["tags"] = json!([{"key": "pool", "value": "q"}, {"key": "node", "value": "1"}]);
    world.running(other).await;
    let names = async |query: &str| {
        let list = world.get(&format!("/v1/instances?{query}")).await.json();
        list.as_array()
            .unwrap()
            .iter()
            .map(|item| item["hostname"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names("tag=pool=p").await, ["a"]);
    assert_eq!(names("tag=pool=q&tag=node=1").await, ["b"]);
    assert!(names("tag=pool=q&tag=node=2").await.is_empty());
    assert_eq!(names("tag=pool").await.len(), 2);
    let path = format!("/v1/instances/{first}/tags");
    assert_eq!(
        world
            .post(&path, json!({"key": "more", "value": "x"}))
            .await
            .status,
        201
    );
    assert_eq!(
        world
            .post(&path, json!({"key": "MORE", "value": "y"}))
            .await
            .status,
        409
    );
    assert_eq!(names("tag=more=x").await, ["a"]);
    world.all_as_described();
}

#[tokio::test]
async fn a_machine_whose_host_dies_is_in_error_and_still_costs() {
    let world = world().await;
    let id = world.running(order("a")).await;
    world
        .sim()
        .world(|world| world.happen(Happening::Died(id.clone())));
    assert_eq!(world.instance(&id).await["status"], "error");
    assert_eq!(world.sim().meter(|meter| meter.billed_now().len()), 1);
    assert_eq!(world.put(json!({"action": "delete", "id": id})).await.status, 202);
    world.simulator.advance(5);
    assert_eq!(world.sim().world(|world| world.machines[&id].phase), Phase::Ended);
    assert_eq!(world.sim().meter(|meter| meter.billed_now().len()), 0);
}

#[tokio::test]
async fn keys_have_an_older_path_too() {
    let world = world().await;
    let key = id(&world
        .post(
            "/v1/sshkeys",
            json!({"name": "k", "key": "ssh-ed25519 AAAA test"}),
        )
        .await);
    assert_eq!(world.get("/v1/ssh-keys").await.json()[0]["id"], json!(key));
    assert_eq!(world.get("/v1/sshkeys").await.json()[0]["name"], "k");
    assert_eq!(world.get(&format!("/v1/sshkeys/{key}")).await.status, 200);
    let named = json!({ "keys": [key] });
    let gone = world.send(Method::DELETE, "/v1/sshkeys", named).await.unwrap();
    assert_eq!(gone.status, 200);
    assert_eq!(world.get("/v1/ssh-keys").await.json(), json!([]));
    world.all_as_described();
}

#[tokio::test]
async fn a_list_of_scripts_has_their_texts_or_has_not() {
    let world = world().await;
    world
        .post("/v1/scripts", json!({"name": "s", "script": "true"}))
        .await;
    let control = world.sim().control("answers", &json!({"mixed": true}));
    control.expect("known").expect("done");
    let mut seen = [false, false];
    for _ in 0..50 {
        let listed = world.get("/v1/scripts").await.json();
        seen[usize::from(listed[0]["script"] == "true")] = true;
    }
    assert_eq!(seen, [true, true]);
    world.all_as_described();
}

#[tokio::test]
async fn answers_have_one_form_unless_they_are_mixed() {
    let world = world().await;
    let key = json!({"name": "k", "key": "ssh-ed25519 AAAA test"});
    let mut quoted = [false, false];
    let mut lists = [false, false];
    for mixed in [false, true] {
        let control = world.sim().control("answers", &json!({ "mixed": mixed }));
        control.expect("known").expect("done");
        for _ in 0..20 {
            world.simulator.advance(2);
            let made = world.post("/v1/ssh-keys", key.clone()).await;
            let one = world.get(&format!("/v1/ssh-keys/{}", id(&made))).await;
            quoted[usize::from(mixed)] |= made.body.starts_with('"');
            lists[usize::from(mixed)] |= one.json().is_object();
        }
    }
    assert_eq!((quoted, lists), ([false, true], [false, true]));
    world.all_as_described();
}

#[tokio::test]
async fn what_verdas_own_client_sends_and_the_description_lacks_is_taken() {
    let world = world().await;
    let stock = world
        .get("/v1/instance-availability?isSpot=true&location_code=FIN-03")
        .await
        .json();
    let types = stock[0]["availabilities"].as_array().unwrap().clone();
    assert!(!types.contains(&json!("1V100.6V")), "{stock}");
    let mut given = order("a");
    given["startup_script_id"] = Value::Null;
    given["coupon"] = Value::Null;
    given["volumes"] = Value::Null;
    given["os_volume"]["on_spot_discontinue"] = Value::Null;
    world.running(given).await;
    world.all_as_described();
    let mut given = order("b");
    given["image"] = Value::Null;
    let refused = world.post("/v1/instances", given).await;
    assert_eq!(refused.status, 400, "{}", refused.body);
    assert!(world.sim().violations()[0].what.contains("image"));
}

#[tokio::test]
async fn a_hibernated_instance_is_discontinued_and_its_volume_stays_and_costs() {
    let world = world().await;
    let id = world.running(order("a")).await;
    let hibernate = json!({"action": "hibernate", "id": id});
    assert_eq!(world.put(hibernate.clone()).await.status, 400, "it runs");
    world.put(json!({"action": "shutdown", "id": id})).await;
    assert_eq!(world.put(hibernate).await.status, 202);
    world.simulator.advance(60);
    assert_eq!(world.instance(&id).await["status"], "discontinued");
    assert_eq!(world.sim().meter(|meter| meter.billed_now().len()), 0);
    let left = world.get("/v1/volumes?status=detached").await.json();
    assert_eq!(left.as_array().unwrap().len(), 1);
    assert!(world.sim().meter(|meter| !meter.hourly("acme").is_zero()));
    world.all_as_described();
    let restored = world.put(json!({"action": "restore", "id": id})).await;
    assert_eq!(restored.status, 400, "no description has this");
    assert!(world.sim().violations()[0].what.contains("restore"));
}
