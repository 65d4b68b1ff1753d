//! Several instances at once, as the service's own command line does it.

use http::Method;
use serde_json::{Value, json};

use super::Hand;

fn order() -> Value {
    json!({"client_id": "me", "image": "ubuntu", "disk": 10, "cancel_unavail": true, "env": {}, "label": null})
}

#[test]
fn several_offers_become_instances_that_are_stopped_started_and_destroyed_together() {
    let hand = Hand::new();
    let offers = [
        hand.offer_of(101, 1, "ondemand")["id"].clone(),
        hand.offer_of(118, 1, "ondemand")["id"].clone(),
        json!(1),
    ];
    let mut body = order();
    body["ids"] = json!(offers);
    let (status, made) = hand.post("/api/v0/asks/bulk/", body);
    assert_eq!((status, &made["success"]), (200, &json!(true)), "{made}");
    let ids = made["new_contracts"].clone();
    assert_eq!(ids.as_array().map(Vec::len), Some(2));
    assert_eq!(made["results"][2]["error"], "invalid_args");
    hand.wait(60);
    let first = ids[0].to_string();

    let (status, stopped) = hand.put("/api/v0/instances/", json!({"state": "stopped", "ids": ids}));
    assert_eq!((status, &stopped["instances"]), (200, &ids));
    assert_eq!(hand.instance(&first)["cur_state"], "stopped");
    hand.put("/api/v0/instances/", json!({"state": "running", "ids": ids}));
    hand.wait(60);
    assert_eq!(hand.instance(&first)["actual_status"], "running");
    let (_, filters) = hand.get("/api/v0/instances/filters/");
    assert_eq!(filters["filters"].as_array().map(Vec::len), Some(2));

    let some = json!({"instance_ids": [ids[0], 1]});
    let (status, gone) = hand.delete("/api/v0/instances/", some.clone());
    assert_eq!((status, &gone["failed"]), (200, &json!([1])));
    hand.wait(5);
    assert_eq!(hand.delete("/api/v0/instances/", some).0, 404);
    assert_eq!(
        hand.delete("/api/v0/instances/", json!({"instance_ids": [ids[1]]}))
            .0,
        200
    );
    assert_eq!(hand.sim.meter(|meter| meter.billed_now().len()), 0);
    hand.judged_clean();
}

#[test]
fn an_order_without_an_offer_takes_the_first_that_a_search_finds() {
    let hand = Hand::new();
    let query = json!({
        "gpu_name": {"eq": "RTX 4090"}, "num_gpus": {"eq": 1}, "verified": {"eq": true},
        "order": [["dph_total", "asc"]], "type": "on-demand", "allocated_storage": 10,
    });
    let search = json!({"select_cols": ["*"], "q": query});
    let (_, found) = hand.put("/api/v0/search/asks/", search);
    assert_eq!(found["offers"][0]["machine_id"], 104, "{found}");
    let mut body = order();
    body["q"] = query;
    let (status, made) = hand.put("/api/v0/launch_instance/", body.clone());
    assert_eq!((status, &made["success"]), (200, &json!(true)), "{made}");
    hand.wait(60);
    let id = made["new_contract"].to_string();
    assert_eq!(hand.instance(&id)["machine_id"], 104);
    body["q"]["gpu_name"] = json!({"eq": "none"});
    let (status, none) = hand.put("/api/v0/launch_instance/", body);
    assert_eq!((status, &none["success"]), (200, &json!(false)));
}

#[test]
fn what_neither_a_description_nor_a_client_has_is_a_violation() {
    let hand = Hand::new();
    for (method, path, body, what) in [
        (
            Method::DELETE,
            "/api/v0/instances/",
            json!({"instance_ids": [1], "force": true}),
            "force",
        ),
        (
            Method::POST,
            "/api/v0/volumes/copy/",
            json!({"src_id": 1, "dst_id": 2, "name": "x"}),
            "name",
        ),
    ] {
        assert_eq!(hand.call(&method, path, Some(&body)).0, 400);
        let violations = hand.sim.violations();
        assert!(violations[0].what.contains(what), "{violations:?}");
        hand.sim.forget();
    }
    assert_eq!(hand.call(&Method::DELETE, "/api/v0/instances/", None).0, 400);
    assert_eq!(hand.sim.violations().len(), 1);
}

#[test]
fn what_is_no_renting_is_not_simulated_and_says_so() {
    let hand = Hand::new();
    for (path, what) in [
        ("/api/v0/machines", "hosts"),
        ("/api/v0/endptjobs/", "serverless"),
        ("/api/v0/team/members/", "teams"),
        ("/api/v0/auth/apikeys/", "keys"),
    ] {
        let (status, body) = hand.get(path);
        assert_eq!((status, &body["error"]), (501, &json!("not_simulated")), "{path}");
        assert!(
            body["msg"].as_str().is_some_and(|text| text.contains(what)),
            "{body}"
        );
    }
    assert_eq!(hand.get("/api/v0/nothing/").0, 404);
    assert_eq!(hand.sim.violations().len(), 5);
}
