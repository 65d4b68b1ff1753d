//! Taking offers, the life of instances, what they cost.

use http::Method;
use rust_decimal::Decimal;
use serde_json::{Value, json};

use super::{ACCOUNT, Hand, KEY};
use crate::core::fault::{Fault, Rule, When};
use crate::core::machine::{BootEnd, BootPlan, Cause};
use crate::core::world::Happening;

#[test]
fn an_offer_becomes_an_instance_which_starts_step_by_step() {
    let hand = Hand::new();
    let offer = hand.offer_of(101, 1, "ondemand");
    let (status, body) = hand.create(&offer, json!({"env": {"A": "b", "-p 8000:8000": "1"}}));
    assert_eq!((status, &body["success"]), (200, &json!(true)));
    let id = body["new_contract"].to_string();
    let status = || hand.instance(&id)["actual_status"].clone();
    assert_eq!(status(), Value::Null);
    hand.wait(3);
    assert_eq!(status(), "created");
    hand.wait(10);
    assert_eq!(status(), "loading");
    assert_eq!(hand.instance(&id)["ports"], Value::Null);
    hand.wait(60);
    let instance = hand.instance(&id);
    assert_eq!(instance["actual_status"], "running");
    assert!(
        instance["ports"]["22/tcp"][0]["HostPort"].is_string(),
        "{instance}"
    );
    assert!(
        instance["public_ipaddr"]
            .as_str()
            .is_some_and(|address| address.ends_with('\n')),
        "to be trimmed"
    );
    assert_eq!(instance["extra_env"], json!([["A", "b"]]));
    assert_eq!(
        (&instance["label"], &instance["intended_status"]),
        (&json!("pool/0"), &json!("running"))
    );
    hand.judged_clean();
}

#[test]
fn a_taken_offer_is_gone_with_410_and_an_unknown_one_with_404() {
    let hand = Hand::new();
    let offer = hand.offer_of(101, 1, "ondemand");
    hand.running(&offer, json!({}));
    let (status, body) = hand.create(&offer, json!({}));
    assert_eq!(
        (status, &body["error"], &body["ask_id"]),
        (410, &json!("no_such_ask"), &offer["id"])
    );
    let (status, body) = hand.create(&json!({"id": 1}), json!({}));
    assert_eq!((status, &body["error"]), (404, &json!("invalid_args")));
    assert_eq!(hand.sim.world(|world| world.machines.len()), 1);
    hand.judged_clean();
}

#[test]
fn a_host_may_refuse_with_status_200() {
    let hand = Hand::new();
    hand.control("refuse", json!({"machine_id": 101}));
    let offer = hand.offer_of(101, 1, "ondemand");
    let (status, body) = hand.create(&offer, json!({}));
    assert_eq!((status, &body["success"]), (200, &json!(false)));
    assert_eq!(hand.sim.world(|world| world.machines.len()), 0);
    hand.running(&offer, json!({}));
}

#[test]
fn money_that_is_missing_is_told_in_the_text() {
    let hand = Hand::new();
    hand.sim
        .world(|world| world.accounts.get_mut(ACCOUNT).expect("an account").balance = Some(Decimal::ZERO));
    let (status, body) = hand.create(&hand.offer_of(101, 1, "ondemand"), json!({}));
    assert_eq!(status, 400);
    assert!(
        body["msg"]
            .as_str()
            .is_some_and(|text| text.contains("lacks credit")),
        "{body}"
    );
    hand.judged_clean();
}

#[test]
fn a_start_up_script_has_4048_characters_at_most() {
    let hand = Hand::new();
    let offer = hand.offer_of(101, 1, "ondemand");
    let (status, _) = hand.create(&offer, json!({"onstart": "é".repeat(4_049)}));
    assert_eq!(status, 400);
    hand.sim.forget();
    hand.running(&offer, json!({"onstart": "é".repeat(4_048)}));
    hand.judged_clean();
}

#[test]
fn a_second_delete_finds_nothing_and_the_slice_is_on_offer_again() {
    let hand = Hand::new();
    let offer = hand.offer_of(101, 1, "ondemand");
    let id = hand.running(&offer, json!({}));
    let path = format!("/api/v0/instances/{id}/");
    assert_eq!(hand.delete(&path, json!({})), (200, json!({"success": true})));
    hand.wait(5);
    let (status, body) = hand.delete(&path, json!({}));
    assert_eq!((status, &body["error"]), (404, &json!("no_such_instance")));
    assert_eq!(hand.instance(&id), Value::Null);
    assert_ne!(hand.offer_of(101, 1, "ondemand")["id"], offer["id"]);
    assert_eq!(hand.sim.meter(|meter| meter.billed_now().len()), 0);
    hand.judged_clean();
}

#[test]
fn an_order_whose_answer_is_lost_is_found_by_its_label() {
    let hand = Hand::new();
    hand.sim
        .fault(Rule::once("create", Fault::Cut { when: When::After }));
    let offer = hand.offer_of(101, 1, "ondemand");
    assert_eq!(hand.create(&offer, json!({})).0, 0);
    let (_, found) =
        hand.get("/api/v1/instances/?select_filters=%7B%22label%22%3A%7B%22eq%22%3A%22pool%2F0%22%7D%7D");
    assert_eq!(found["instances"].as_array().map(Vec::len), Some(1));
    assert_eq!(
        hand.create(&offer, json!({})).0,
        410,
        "it is not idempotent: the offer is gone"
    );
    hand.judged_clean();
}

#[test]
fn without_direct_ports_there_is_only_the_proxy() {
    let hand = Hand::new();
    let id = hand.running(&hand.offer_of(106, 1, "ondemand"), json!({}));
    let instance = hand.instance(&id);
    assert_eq!(instance["ports"], json!({}));
    assert!(instance["ssh_host"].is_string() && instance["ssh_port"].is_i64());
    let proxied = hand.running(
        &hand.offer_of(101, 1, "ondemand"),
        json!({"runtype": "ssh_proxy"}),
    );
    assert_eq!(hand.instance(&proxied)["ports"], json!({}));
    hand.judged_clean();
}

#[test]
fn stopping_ends_the_bill_of_the_gpus_and_not_that_of_the_disk() {
    let hand = Hand::new();
    let id = hand.running(&hand.offer_of(101, 1, "ondemand"), json!({}));
    let hourly = || hand.sim.meter(|meter| meter.hourly(ACCOUNT));
    let full = hourly();
    let path = format!("/api/v0/instances/{id}/");
    assert_eq!(hand.put(&path, json!({"state": "stopped"})).0, 200);
    let instance = hand.instance(&id);
    assert_eq!(
        (&instance["cur_state"], &instance["intended_status"]),
        (&json!("stopped"), &json!("stopped"))
    );
    let disk = hourly();
    assert!(disk > Decimal::ZERO && disk < full / Decimal::TEN);
    // The GPUs are free for others, who may take them for good.
    hand.control("rent", json!({"machine_id": 101, "taken": true}));
    hand.put(&path, json!({"state": "running"}));
    hand.wait(60);
    assert_eq!(hand.instance(&id)["cur_state"], "stopped");
    hand.control("rent", json!({"machine_id": 101, "taken": false}));
    hand.wait(60);
    assert_eq!(hand.instance(&id)["actual_status"], "running");
    hand.judged_clean();
}

#[test]
fn time_is_billed_by_the_started_minute_from_the_order_on() {
    let hand = Hand::new();
    let offer = hand.offer_of(101, 1, "ondemand");
    let id = hand.running(&offer, json!({"disk": 8}));
    hand.wait(3_600 - 60 - 30);
    hand.delete(&format!("/api/v0/instances/{id}/"), json!({}));
    hand.wait(600);
    let bill = hand.sim.meter(|meter| meter.bill_of(&id)).expect("a bill");
    assert_eq!(
        bill.round_dp(6),
        Decimal::new(35, 2) + (Decimal::new(15, 2) * Decimal::from(8) / Decimal::from(720)).round_dp(6)
    );
}

#[test]
fn a_boot_that_fails_says_why_and_never_gets_there() {
    let hand = Hand::new();
    let text = "Error response from daemon: manifest unknown";
    let plan = BootPlan {
        takes: jiff::SignedDuration::from_secs(30),
        ends: BootEnd::Fails(Cause::Installation(text.to_owned())),
    };
    hand.sim.fault(Rule::once("create", Fault::Boot(plan)));
    let (_, body) = hand.create(&hand.offer_of(101, 1, "ondemand"), json!({}));
    let id = body["new_contract"].to_string();
    hand.wait(60);
    let instance = hand.instance(&id);
    assert_eq!(
        (&instance["actual_status"], &instance["status_msg"]),
        (&json!("exited"), &json!(text))
    );
    assert_eq!(
        hand.sim.meter(|meter| meter.billed_now().len()),
        1,
        "it is on the bill until it is deleted"
    );
    hand.judged_clean();
}

#[test]
fn a_lost_host_is_offline_and_a_container_that_is_over_has_exited_both_on_the_bill() {
    let hand = Hand::new();
    let (lost, over) = (
        hand.running(&hand.offer_of(101, 1, "ondemand"), json!({})),
        hand.running(&hand.offer_of(107, 1, "ondemand"), json!({})),
    );
    hand.sim
        .world(|world| world.happen(Happening::Died(lost.clone())));
    hand.sim
        .world(|world| world.happen(Happening::HaltedItself(over.clone())));
    assert_eq!(hand.instance(&lost)["actual_status"], "offline");
    assert_eq!(hand.instance(&over)["actual_status"], "exited");
    assert_eq!(hand.sim.meter(|meter| meter.billed_now().len()), 2);
    hand.judged_clean();
}

#[test]
fn contracts_end_and_are_removed_two_days_later() {
    let hand = Hand::new();
    let id = hand.running(&hand.offer_of(118, 1, "ondemand"), json!({}));
    hand.wait(6 * 3_600);
    assert_eq!(hand.instance(&id)["cur_state"], "stopped");
    hand.wait(49 * 3_600);
    assert_eq!(hand.instance(&id), Value::Null);
}

#[test]
fn a_container_can_end_itself_and_nothing_else() {
    let mut hand = Hand::new();
    let one = hand.running(&hand.offer_of(101, 1, "ondemand"), json!({}));
    let two = hand.running(&hand.offer_of(107, 1, "ondemand"), json!({}));
    let env = hand.sim.world(|world| world.machines[&one].boot.env.clone());
    assert_eq!(env["CONTAINER_ID"], one);
    hand.key = env["CONTAINER_API_KEY"].clone();
    assert_eq!(
        hand.delete(&format!("/api/v0/instances/{two}/"), json!({})).0,
        403
    );
    assert_eq!(hand.get("/api/v1/instances/").0, 403);
    assert_eq!(
        hand.delete(&format!("/api/v0/instances/{one}/"), json!({})).0,
        200
    );
    hand.key = KEY.to_owned();
    hand.wait(5);
    assert_eq!(hand.instance(&one), Value::Null);
    hand.judged_clean();
}

#[test]
fn calls_of_one_endpoint_have_a_least_interval_and_the_refusal_has_two_forms() {
    let hand = Hand::limited();
    let first = hand.offer_of(101, 1, "ondemand");
    hand.wait(1);
    let second = hand.offer_of(107, 1, "ondemand");
    assert_eq!(hand.create(&first, json!({})).0, 200);
    let (status, body) = hand.create(&second, json!({}));
    assert_eq!((status, body.is_string()), (429, true), "plain text: {body}");
    hand.wait(3);
    let (status, body) = hand.create(&second, json!({}));
    assert_eq!(status, 429);
    assert!(
        body["detail"]
            .as_str()
            .is_some_and(|text| text.contains("threshold=4.5")),
        "{body}"
    );
    // Another endpoint is not concerned.
    assert_eq!(hand.get("/api/v1/instances/").0, 200);
    hand.wait(2);
    assert_eq!(hand.create(&second, json!({})).0, 200);
    hand.judged_clean();
}

#[test]
fn without_a_key_one_may_search_and_nothing_else() {
    let mut hand = Hand::new();
    hand.key.clear();
    assert_eq!(hand.offers(json!({"limit": 2})).len(), 2);
    assert_eq!(hand.get("/api/v1/instances/").0, 401);
    hand.judged_clean();
}

#[test]
fn wrong_keys_are_401_but_404_at_the_search() {
    let mut hand = Hand::new();
    hand.key = "nobody".to_owned();
    assert_eq!(hand.get("/api/v1/instances/").0, 401);
    assert_eq!(hand.post("/api/v0/bundles/", json!({"limit": 1})).0, 404);
    assert_eq!(hand.call(&Method::GET, "/api/v0/users/current/", None).0, 401);
}

#[test]
fn the_account_tells_who_it_is_and_logs_are_downloaded_elsewhere() {
    let hand = Hand::new();
    let (status, account) = hand.get("/api/v0/users/current/");
    assert_eq!((status, account["id"].is_i64()), (200, true));
    let id = hand.running(&hand.offer_of(101, 1, "ondemand"), json!({}));
    let (_, logs) = hand.put(
        &format!("/api/v0/instances/request_logs/{id}/"),
        json!({"tail": "100"}),
    );
    assert_eq!(logs["result_url"], format!("http://127.0.0.1:1/_logs/{id}.log"));
    assert_eq!(hand.get(&format!("/_logs/{id}.log")).0, 200);
    assert_eq!(hand.put("/api/v0/instances/request_logs/1/", json!({})).0, 404);
    hand.judged_clean();
}

#[test]
fn each_refusal_of_the_core_has_the_words_of_this_service() {
    let hand = Hand::new();
    let offer = hand.offer_of(101, 1, "ondemand");
    let table = [
        (Fault::TooMany { retry_after: Some(5) }, 429, None),
        (
            Fault::Server {
                status: 502,
                when: When::Before,
            },
            502,
            None,
        ),
        (Fault::NoCapacity, 410, Some("no_such_ask")),
        (
            Fault::Quota {
                what: "instances".to_owned(),
            },
            403,
            Some("limit_exceeded"),
        ),
        (Fault::Funds, 400, Some("invalid_args")),
        (Fault::Unauthorized, 401, Some("auth_error")),
        (Fault::Expired, 401, Some("auth_error")),
        (Fault::Forbidden, 403, Some("not_authorized")),
    ];
    for (fault, status, code) in table {
        hand.sim.fault(Rule::once("create", fault.clone()));
        let (got, body) = hand.create(&offer, json!({}));
        assert_eq!((got, body["error"].as_str()), (status, code), "{fault:?}: {body}");
    }
    assert_eq!(hand.sim.world(|world| world.machines.len()), 0);
    assert!(hand.sim.pending_faults().is_empty());
    hand.judged_clean();
}

#[test]
fn a_template_that_is_not_known_is_refused() {
    let hand = Hand::new();
    let offer = hand.offer_of(101, 1, "ondemand");
    let (status, body) = hand.create(&offer, json!({"template_hash_id": "abcdef"}));
    assert_eq!((status, &body["error"]), (400, &json!("invalid_args")));
    assert_eq!(hand.sim.world(|world| world.machines.len()), 0);
    hand.judged_clean();
}

#[test]
fn a_recycled_instance_loads_again() {
    let hand = Hand::new();
    let id = hand.running(&hand.offer_of(101, 1, "ondemand"), json!({}));
    let path = format!("/api/v0/instances/recycle/{id}/");
    assert_eq!(hand.put(&path, json!({})), (200, json!({"success": true})));
    assert_ne!(hand.instance(&id)["actual_status"], "running");
    hand.wait(60);
    assert_eq!(hand.instance(&id)["actual_status"], "running");
    hand.judged_clean();
}
