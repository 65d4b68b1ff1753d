//! The market of bids.

use rust_decimal::Decimal;
use serde_json::{Value, json};

use super::{ACCOUNT, Hand};

/// An instance with a bid of the least price times some percent.
fn bid(hand: &Hand, machine: i64, percent: i64) -> String {
    let offer = hand.offer_of(machine, 1, "bid");
    let price = offer["min_bid"].as_f64().expect("a price") * percent as f64 / 100.0;
    hand.running(&offer, json!({"price": price}))
}

fn states(instance: &Value) -> (Value, Value) {
    (instance["cur_state"].clone(), instance["intended_status"].clone())
}

#[test]
fn a_bid_below_the_floor_is_refused_and_one_above_it_is_what_the_instance_costs() {
    let hand = Hand::new();
    let offer = hand.offer_of(101, 1, "bid");
    let least = offer["min_bid"].as_f64().expect("a price");
    let (status, body) = hand.create(&offer, json!({"price": least * 0.9}));
    assert_eq!((status, &body["error"]), (400, &json!("invalid_price")));
    let id = hand.running(&offer, json!({"price": 0.3}));
    let instance = hand.instance(&id);
    assert_eq!(
        (&instance["is_bid"], &instance["dph_base"]),
        (&json!(true), &json!(0.3))
    );
    hand.judged_clean();
}

#[test]
fn an_outbid_instance_is_paused_keeps_its_disk_and_resumes_by_itself() {
    let hand = Hand::new();
    let id = bid(&hand, 101, 120);
    let full = hand.sim.meter(|meter| meter.hourly(ACCOUNT));
    hand.control("bid", json!({"machine_id": 101, "price": 1.0}));
    assert_eq!(states(&hand.instance(&id)), (json!("stopped"), json!("running")));
    let paused = hand.sim.meter(|meter| meter.hourly(ACCOUNT));
    assert!(paused > Decimal::ZERO && paused < full);
    hand.control("bid", json!({"machine_id": 101, "price": null}));
    hand.wait(60);
    assert_eq!(hand.instance(&id)["actual_status"], "running");
    assert_eq!(hand.sim.meter(|meter| meter.hourly(ACCOUNT)), full);
    hand.judged_clean();
}

#[test]
fn a_raised_bid_wins_the_machine_back() {
    let hand = Hand::new();
    let id = bid(&hand, 101, 120);
    hand.control("bid", json!({"machine_id": 101, "price": 1.0}));
    let path = format!("/api/v0/instances/bid_price/{id}/");
    assert_eq!(hand.put(&path, json!({"client_id": "me", "price": 1.1})).0, 200);
    hand.wait(60);
    let instance = hand.instance(&id);
    assert_eq!(
        (&instance["actual_status"], &instance["dph_base"]),
        (&json!("running"), &json!(1.1))
    );
    let fixed = hand.running(&hand.offer_of(107, 1, "ondemand"), json!({}));
    let (status, _) = hand.put(
        &format!("/api/v0/instances/bid_price/{fixed}/"),
        json!({"client_id": "me", "price": 1.0}),
    );
    assert_eq!(status, 400);
    hand.judged_clean();
}

#[test]
fn somebody_on_demand_displaces_a_bid() {
    let hand = Hand::new();
    let id = bid(&hand, 101, 200);
    let fixed = hand.running(&hand.offer_of(101, 1, "ondemand"), json!({"label": "pool/1"}));
    assert_eq!(states(&hand.instance(&id)), (json!("stopped"), json!("running")));
    hand.delete(&format!("/api/v0/instances/{fixed}/"), json!({}));
    hand.wait(60);
    assert_eq!(hand.instance(&id)["actual_status"], "running");
    hand.judged_clean();
}

#[test]
fn a_reclaim_of_the_core_is_another_customers_bid_which_ends_some_day() {
    let hand = Hand::new();
    let id = bid(&hand, 101, 120);
    hand.sim
        .world(|world| world.reclaim(&id, jiff::SignedDuration::ZERO));
    hand.wait(1);
    assert_eq!(states(&hand.instance(&id)), (json!("stopped"), json!("running")));
    assert_eq!(hand.sim.meter(|meter| meter.billed_now().len()), 1);
    hand.wait(16 * 60);
    assert_eq!(hand.instance(&id)["actual_status"], "running");
}

#[test]
fn a_bid_that_may_wait_is_queued_and_costs_its_disk() {
    let hand = Hand::new();
    let offer = hand.offer_of(101, 1, "bid");
    hand.control("rent", json!({"machine_id": 101, "taken": true}));
    assert_eq!(hand.create(&offer, json!({"price": 0.3})).0, 410);
    // Waiting is what happens to bids unless the order says otherwise.
    let (status, body) = hand.create(&offer, json!({"price": 0.3, "cancel_unavail": false}));
    assert_eq!(status, 200, "{body}");
    let id = body["new_contract"].to_string();
    assert_eq!(states(&hand.instance(&id)), (json!("stopped"), json!("running")));
    assert!(hand.sim.meter(|meter| meter.hourly(ACCOUNT)) > Decimal::ZERO);
    hand.control("rent", json!({"machine_id": 101, "taken": false}));
    hand.wait(60);
    assert_eq!(hand.instance(&id)["actual_status"], "running");
    hand.judged_clean();
}
