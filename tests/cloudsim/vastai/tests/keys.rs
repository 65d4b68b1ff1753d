//! SSH keys and overlays.

use serde_json::{Value, json};

use super::{ACCOUNT, Hand};

const ONE: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA1 one";
const TWO: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA2 two";

fn authorized(hand: &Hand, id: &str) -> Vec<String> {
    hand.sim
        .world(|world| world.machines[id].boot.authorized_keys.clone())
}

#[test]
fn no_keys_are_404_and_a_second_copy_is_a_duplicate_with_status_200() {
    let hand = Hand::new();
    assert_eq!(hand.get("/api/v0/ssh/").0, 404);
    let (status, body) = hand.post("/api/v0/ssh/", json!({"ssh_key": ONE}));
    assert_eq!((status, &body["key"]["public_key"]), (200, &json!(ONE)));
    let id = body["key"]["id"].clone();
    let (status, body) = hand.post("/api/v0/ssh/", json!({"ssh_key": ONE.replace("one", "renamed")}));
    assert_eq!((status, &body["error"]), (200, &json!("duplicate")));
    let (_, list) = hand.get("/api/v0/ssh/");
    assert_eq!((&list[0]["id"], &list[0]["key"]), (&id, &json!(ONE)));
    assert_eq!(hand.delete(&format!("/api/v0/ssh/{id}/"), json!({})).0, 200);
    assert_eq!(hand.delete(&format!("/api/v0/ssh/{id}/"), json!({})).0, 400);
    assert_eq!(hand.post("/api/v0/ssh/", json!({"ssh_key": "nonsense"})).0, 400);
    hand.judged_clean();
}

#[test]
fn a_new_key_of_the_account_goes_to_every_running_instance() {
    let hand = Hand::new();
    hand.post("/api/v0/ssh/", json!({"ssh_key": ONE}));
    let id = hand.running(&hand.offer_of(101, 1, "ondemand"), json!({}));
    assert_eq!(authorized(&hand, &id), [ONE]);
    hand.post("/api/v0/ssh/", json!({"ssh_key": TWO}));
    assert_eq!(authorized(&hand, &id), [ONE, TWO]);
    hand.judged_clean();
}

#[test]
fn a_key_can_be_put_on_one_instance_once_it_exists() {
    let hand = Hand::new();
    let (_, body) = hand.create(&hand.offer_of(101, 1, "ondemand"), json!({}));
    let id = body["new_contract"].to_string();
    let path = format!("/api/v0/instances/{id}/ssh/");
    assert_eq!(hand.post(&path, json!({"ssh_key": ONE})).0, 400, "too early");
    hand.wait(10);
    assert_eq!(hand.post(&path, json!({"ssh_key": ONE})).0, 200);
    let (status, again) = hand.post(&path, json!({"ssh_key": ONE}));
    assert!(
        status == 400
            && again["msg"]
                .as_str()
                .is_some_and(|text| text.contains("already associated")),
        "{again}"
    );
    assert_eq!(authorized(&hand, &id), [ONE]);
    let (_, keys) = hand.get(&path);
    let keys: Value = serde_json::from_str(keys["ssh_keys"].as_str().expect("a text")).expect("JSON in it");
    assert_eq!(keys[0]["public_key"], ONE);
    let key = &keys[0]["id"];
    assert_eq!(hand.delete(&format!("{path}{key}/"), json!({})).0, 200);
    let (status, body) = hand.delete(&format!("{path}{key}/"), json!({}));
    assert_eq!((status, &body["error"]), (404, &json!("no_such_ssh_key")));
    assert_eq!(hand.get("/api/v0/ssh/").0, 404, "it is no key of the account");
    hand.judged_clean();
}

#[test]
fn an_overlay_joins_machines_of_its_cluster_and_takes_them_along_when_it_goes() {
    let hand = Hand::new();
    let (_, body) = hand.post("/api/v0/overlay/", json!({"cluster_id": 9, "name": "net"}));
    assert_eq!(body["success"], json!(true));
    assert_eq!(
        hand.post("/api/v0/overlay/", json!({"cluster_id": 9, "name": "net"}))
            .1["success"],
        json!(false)
    );
    assert_eq!(
        hand.post("/api/v0/overlay/", json!({"cluster_id": 77, "name": "x"}))
            .1["success"],
        json!(false)
    );
    let inside = hand.running(
        &hand.offer_of(114, 8, "ondemand"),
        json!({"env": {"-n net": "1"}}),
    );
    let later = hand.running(&hand.offer_of(115, 8, "ondemand"), json!({}));
    let outside = hand.running(&hand.offer_of(101, 1, "ondemand"), json!({}));
    let number = |id: &str| id.parse::<i64>().expect("a number");
    let join = |id: &str| {
        hand.put(
            "/api/v0/overlay/",
            json!({"name": "net", "instance_id": number(id)}),
        )
        .1["success"]
            .clone()
    };
    assert_eq!((join(&later), join(&outside)), (json!(true), json!(false)));
    let (_, list) = hand.get("/api/v0/overlay/");
    assert_eq!(list[0]["instances"], json!([number(&inside), number(&later)]));
    assert_eq!(hand.sim.meter(|meter| meter.leftovers(ACCOUNT).len()), 1);
    let (status, _) = hand.create(
        &hand.offer_of(107, 1, "ondemand"),
        json!({"env": {"-n net": "1"}}),
    );
    assert_eq!(status, 400, "another cluster");
    assert_eq!(
        hand.delete("/api/v0/overlay/", json!({"overlay_name": "net"})).1["success"],
        json!(true)
    );
    hand.wait(5);
    assert_eq!(
        (hand.instance(&inside), hand.instance(&later)),
        (Value::Null, Value::Null)
    );
    assert_eq!(hand.instance(&outside)["actual_status"], "running");
    assert_eq!(hand.sim.meter(|meter| meter.leftovers(ACCOUNT).len()), 0);
    hand.judged_clean();
}
