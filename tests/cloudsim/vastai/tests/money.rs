//! The account's view of its money.

use rust_decimal::Decimal;
use serde_json::{Value, json};

use super::{ACCOUNT, Hand};

/// A list of charges between two moments, which are now and so many seconds ago.
fn charges(hand: &Hand, ago: i64, more: &str) -> (u16, Value) {
    let now = hand.sim.clock().now().as_second();
    let filters = json!({"day": {"gte": now - ago, "lte": now}});
    hand.get(&format!("/api/v0/charges/?select_filters={filters}{more}"))
}

#[test]
fn charges_are_those_of_the_meter_by_instance_and_volume() {
    let hand = Hand::new();
    let id = hand.running(&hand.offer_of(101, 1, "ondemand"), json!({}));
    let (_, offers) = hand.post("/api/v0/volumes/search/", json!({"machine_id": {"eq": 101}}));
    hand.put(
        "/api/v0/volumes/",
        json!({"id": offers["offers"][0]["id"], "size": 480}),
    );
    hand.wait(3_540);
    let (status, listed) = charges(&hand, 7_200, "&format=tree");
    assert_eq!((status, &listed["total"]), (200, &json!(2)), "{listed}");
    let sum: f64 = listed["results"]
        .as_array()
        .expect("results")
        .iter()
        .filter_map(|row| row["amount"].as_f64())
        .sum();
    let bill = hand.sim.meter(|meter| meter.bill(ACCOUNT));
    let told = Decimal::try_from(sum).expect("an amount").round_dp(4);
    assert_eq!(told, bill.round_dp(4));
    let instances = charges(&hand, 7_200, "&latest_first=false&limit=1").1;
    let row = instances["results"][0].clone();
    assert_eq!(
        (&row["source"], &row["metadata"]["label"]),
        (&json!(format!("instance-{id}")), &json!("pool/0"))
    );
    let token = instances["next_token"].as_str().expect("a token");
    let rest = charges(&hand, 7_200, &format!("&latest_first=false&after_token={token}")).1;
    assert_eq!(
        (&rest["count"], &rest["results"][0]["type"]),
        (&json!(1), &json!("volume"))
    );
    assert_eq!(hand.get("/api/v0/charges/?select_filters={}").0, 400);
    assert_eq!(charges(&hand, 7_200, "&after_token=no").0, 400);

    let (status, history) = hand.get("/api/v0/users/me/invoices?owner=me&sdate=0&inc_charges=true");
    assert_eq!(status, 200, "{history}");
    assert_eq!(history["invoices"].as_array().map(Vec::len), Some(2));
    hand.judged_clean();
}

#[test]
fn what_is_paid_ahead_makes_an_instance_cheaper() {
    let hand = Hand::new();
    let id = hand.running(&hand.offer_of(101, 1, "ondemand"), json!({}));
    let before = hand.instance(&id)["dph_base"].as_f64().expect("a price");
    let path = format!("/api/v0/instances/prepay/{id}/");
    // Three months at the price of the instance with its disk.
    let price = hand.instance(&id)["dph_total"].as_f64().expect("a price");
    let amount = price * 720.0 * 3.0;
    let (status, paid) = hand.put(&path, json!({"amount": amount}));
    assert_eq!((status, &paid["discount_rate"]), (200, &json!(0.3)), "{paid}");
    let after = hand.instance(&id)["dph_base"].as_f64().expect("a price");
    assert!((after - before * 0.7).abs() < 1e-6, "{before} {after}");
    let (_, deposit) = hand.get(&format!("/api/v0/instances/balance/{id}/?owner=me"));
    assert_eq!(
        (&deposit["discount_months"], &deposit["total_discount"]),
        (&json!(3), &json!(0.3))
    );
    assert_eq!(hand.get("/api/v0/instances/balance/1/").0, 404);
    assert_eq!(
        hand.put("/api/v0/instances/prepay/1/", json!({"amount": 1})).0,
        400
    );

    let now = hand.sim.clock().now().as_second();
    let filters = json!({"when": {"gte": now - 60, "lte": now + 60}});
    let (_, invoices) = hand.get(&format!("/api/v1/invoices/?select_filters={filters}"));
    assert_eq!(invoices["results"][0]["metadata"]["service"], "instance_prepay");
    let (status, none) = hand.get("/api/v1/invoices/?select_filters={}");
    assert_eq!((status, &none["success"]), (200, &json!(false)));

    hand.sim.world(|world| {
        world.accounts.get_mut(ACCOUNT).expect("an account").balance = Some(Decimal::from(100));
    });
    assert_eq!(hand.put(&path, json!({"amount": 101})).0, 411);
    hand.judged_clean();
}

#[test]
fn the_account_has_what_it_paid_less_what_it_cost() {
    let hand = Hand::new();
    hand.sim.world(|world| {
        world.accounts.get_mut(ACCOUNT).expect("an account").balance = Some(Decimal::from(10));
    });
    let id = hand.running(&hand.offer_of(101, 1, "ondemand"), json!({}));
    hand.wait(3_540);
    let price = hand.instance(&id)["dph_total"].as_f64().expect("a price");
    let balance = hand.get("/api/v0/users/current/").1["balance"]
        .as_f64()
        .expect("a balance");
    assert!((balance - (10.0 - price)).abs() < 1e-6, "{balance} {price}");
    let (status, none) = hand.get("/api/v0/users/me/ipaddrs?owner=me");
    assert_eq!((status, &none["results"]), (200, &json!([])));
    hand.judged_clean();
}
