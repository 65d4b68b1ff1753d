//! Templates, and variables of the account.

use http::Method;
use serde_json::json;

use super::Hand;

#[test]
fn an_instance_has_what_its_template_says_and_the_order_does_not() {
    let hand = Hand::new();
    let template = json!({
        "name": "mine", "image": "ghcr.io/acme/base", "tag": "2", "env": "-e A=template -e B=template -p 9000:9000",
        "onstart": "touch /template", "runtype": "ssh", "ssh_direct": true, "recommended_disk_space": 30.0,
        "href": null, "private": true, "readme_visible": true, "extra_filters": {},
    });
    let (status, made) = hand.post("/api/v0/template/", template);
    assert_eq!((status, &made["success"]), (200, &json!(true)), "{made}");
    let hash = made["template"]["hash_id"].clone();
    let order = json!({"template_hash_id": hash, "cancel_unavail": true, "env": {"A": "order"}});
    let offer = hand.offer_of(101, 1, "ondemand");
    let (status, created) = hand.put(&format!("/api/v0/asks/{}/", offer["id"]), order);
    assert_eq!((status, &created["success"]), (200, &json!(true)), "{created}");
    hand.wait(60);
    let instance = hand.instance(&created["new_contract"].to_string());
    assert_eq!(
        (
            &instance["image_uuid"],
            &instance["disk_space"],
            &instance["onstart"],
            &instance["image_runtype"]
        ),
        (
            &json!("ghcr.io/acme/base:2"),
            &json!(30.0),
            &json!("touch /template"),
            &json!("ssh_direct")
        )
    );
    assert_eq!(instance["extra_env"], json!([["A", "order"], ["B", "template"]]));
    assert_eq!(
        (&instance["template_hash_id"], &instance["template_name"]),
        (&hash, &json!("mine"))
    );
    hand.judged_clean();
}

#[test]
fn a_template_is_found_changed_under_another_hash_and_deleted() {
    let hand = Hand::new();
    let (_, made) = hand.post("/api/v0/template/", json!({"name": "mine", "image": "a"}));
    let (id, hash) = (
        made["template"]["id"].clone(),
        made["template"]["hash_id"].clone(),
    );
    let find = |filters: &str| {
        let (status, found) = hand.get(&format!("/api/v0/template/?select_filters={filters}"));
        assert_eq!(status, 200, "{found}");
        found["templates"].as_array().expect("templates").clone()
    };
    assert_eq!(find("{}").len(), 2, "one is public");
    let own = format!("{{\"hash_id\":{{\"eq\":{hash}}}}}");
    assert_eq!(find(&own)[0]["name"], "mine");
    let change = json!({"hash_id": hash, "image": "b"});
    let (_, changed) = hand.put("/api/v0/template/", change.clone());
    assert_eq!(changed["template"]["id"], id);
    assert_ne!(changed["template"]["hash_id"], hash);
    assert_eq!(find(&own).len(), 0);
    assert_eq!(hand.put("/api/v0/template/", change).0, 404, "the old hash");
    assert_eq!(hand.sim.meter(|meter| meter.leftovers("acme").len()), 1);
    let (status, gone) = hand.delete("/api/v0/template/", json!({"template_id": id}));
    assert_eq!((status, &gone["success"]), (200, &json!(true)));
    assert_eq!(
        hand.delete("/api/v0/template/", json!({"template_id": id})).0,
        404
    );
    assert_eq!(hand.get("/api/v0/template/?select_filters=no").0, 400);
    assert!(hand.sim.meter(|meter| meter.leftovers("acme").is_empty()));
    hand.judged_clean();
}

#[test]
fn variables_of_the_account_are_in_every_new_instance() {
    let hand = Hand::new();
    let put = |method: &Method, key: &str, value: &str| {
        let (status, body) = hand.call(
            method,
            "/api/v0/secrets/",
            Some(&json!({"key": key, "value": value})),
        );
        (status, body["error"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(put(&Method::POST, "token", "one").0, 200);
    assert_eq!(
        put(&Method::POST, "TOKEN", "two"),
        (400, "existing_key".to_owned())
    );
    assert_eq!(put(&Method::PUT, "TOKEN", "two").0, 200);
    assert_eq!(
        put(&Method::PUT, "OTHER", "x"),
        (400, "nonexistent_key".to_owned())
    );
    let (_, listed) = hand.get("/api/v0/secrets/");
    assert_eq!(listed["secrets"], json!({"TOKEN": "two"}));
    let id = hand.running(&hand.offer_of(101, 1, "ondemand"), json!({"env": {"A": "b"}}));
    let boot = hand.sim.world(|world| world.machines[&id].boot.env.clone());
    assert_eq!((boot["TOKEN"].as_str(), boot["A"].as_str()), ("two", "b"));
    assert_eq!(hand.instance(&id)["extra_env"], json!([["A", "b"]]));
    let (status, _) = hand.delete("/api/v0/secrets/", json!({"key": "TOKEN"}));
    assert_eq!(status, 200);
    assert_eq!(hand.get("/api/v0/secrets/").1["secrets"], json!({}));
    hand.judged_clean();
}
