//! Volumes on the disks of hosts.

use rust_decimal::Decimal;
use serde_json::{Value, json};

use super::{ACCOUNT, Hand};

/// The volume offer of a host.
fn offer(hand: &Hand, machine: i64) -> Value {
    let search = json!({"machine_id": {"eq": machine}, "disk_space": {"gte": 1}, "allocated_storage": 100, "limit": 5});
    let (status, found) = hand.post("/api/v0/volumes/search/", search);
    assert_eq!(status, 200, "{found}");
    found["offers"][0].clone()
}

fn listed(hand: &Hand) -> Vec<Value> {
    let (status, body) = hand.get("/api/v0/volumes?owner=me&type=all_volume");
    assert_eq!(status, 200, "{body}");
    body["volumes"].as_array().expect("volumes").clone()
}

fn hourly(hand: &Hand) -> Decimal {
    hand.sim.meter(|meter| meter.hourly(ACCOUNT)).normalize()
}

#[test]
fn a_volume_costs_by_its_size_until_it_is_deleted() {
    let hand = Hand::new();
    let offer = offer(&hand, 101);
    assert_eq!(
        (&offer["machine_id"], &offer["storage_cost"]),
        (&json!(101), &json!(0.15))
    );
    let (status, rented) = hand.put("/api/v0/volumes/", json!({"id": offer["id"], "size": 480}));
    assert_eq!((status, &rented["success"]), (200, &json!(true)), "{rented}");
    let name = rented["volume_name"].as_str().expect("a name").to_owned();
    let id: i64 = name.trim_start_matches("V.").parse().expect("a number");
    assert_eq!(hourly(&hand), Decimal::new(1, 1), "480 GB at 0.15 a month");
    let volume = listed(&hand)[0].clone();
    assert_eq!(
        (&volume["id"], &volume["disk_space"], &volume["instances"]),
        (&json!(id), &json!(480.0), &json!([]))
    );
    hand.wait(7_200);
    assert_eq!(
        hand.sim.meter(|meter| meter.bill(ACCOUNT)).normalize(),
        Decimal::new(2, 1)
    );
    let (_, refused) = hand.put("/api/v0/volumes/", json!({"id": offer["id"], "size": 5000}));
    assert_eq!(refused["success"], false);
    assert_eq!(hand.delete("/api/v0/volumes/", json!({"id": 1})).0, 404);
    assert_eq!(hand.delete("/api/v0/volumes/", json!({ "id": id })).0, 200);
    assert_eq!(hourly(&hand), Decimal::ZERO);
    assert_eq!(listed(&hand), Vec::<Value>::new());
    hand.judged_clean();
}

#[test]
fn an_order_makes_or_takes_a_volume_on_its_own_host_alone() {
    let hand = Hand::new();
    let (here, there) = (offer(&hand, 101), offer(&hand, 118));
    let order = |offer: &Value, volume: &Value, new: bool| {
        let info = json!({"create_new": new, "volume_id": volume, "size": 50, "mount_path": "/data"});
        hand.create(offer, json!({"volume_info": info}))
    };
    let gpu = hand.offer_of(101, 1, "ondemand");
    assert_eq!(order(&gpu, &there["id"], true).0, 400, "another host");
    let (status, made) = order(&gpu, &here["id"], true);
    assert_eq!(status, 200, "{made}");
    let instance = made["new_contract"].clone();
    let volume = listed(&hand)[0].clone();
    assert_eq!(volume["instances"], json!([{ "id": instance }]));
    hand.wait(60);
    let id = instance.to_string();
    assert_eq!(hand.instance(&id)["volume_info"], json!([{ "id": volume["id"] }]));
    let body = json!({ "id": volume["id"] });
    assert_eq!(hand.delete("/api/v0/volumes/", body.clone()).0, 400, "in use");

    assert_eq!(hand.delete(&format!("/api/v0/instances/{id}/"), json!({})).0, 200);
    hand.wait(5);
    assert_eq!(listed(&hand)[0]["instances"], json!([]));
    assert!(!hourly(&hand).is_zero(), "it outlives its instance");
    let far = hand.offer_of(118, 1, "ondemand");
    assert_eq!(order(&far, &volume["id"], false).0, 400, "another host");
    let gpu = hand.offer_of(101, 1, "ondemand");
    let (status, again) = order(&gpu, &volume["id"], false);
    assert_eq!(status, 200, "{again}");
    assert_eq!(
        listed(&hand)[0]["instances"],
        json!([{ "id": again["new_contract"] }])
    );
    hand.judged_clean();
}

#[test]
fn a_copy_is_rented_at_another_host_and_is_not_smaller() {
    let hand = Hand::new();
    let (here, there) = (offer(&hand, 101), offer(&hand, 118));
    let (_, rented) = hand.put("/api/v0/volumes/", json!({"id": here["id"], "size": 20}));
    assert_eq!(rented["success"], true);
    let source = listed(&hand)[0]["id"].clone();
    let copy = |source: &Value, size: i64| {
        let body = json!({"src_id": source, "dst_id": there["id"], "size": size});
        hand.post("/api/v0/volumes/copy/", body)
    };
    assert_eq!(copy(&source, 10).1["success"], false);
    assert_eq!(copy(&json!(1), 20).0, 404);
    assert_eq!(copy(&source, 30).1["success"], true);
    let machines: Vec<Value> = listed(&hand)
        .iter()
        .map(|volume| volume["machine_id"].clone())
        .collect();
    assert_eq!(machines, [json!(101), json!(118)]);
    // With the id in the query, as the service's own client does it.
    for volume in listed(&hand) {
        let path = format!("/api/v0/volumes/?id={}", volume["id"]);
        assert_eq!(hand.delete(&path, json!({})).0, 200);
    }
    assert!(hand.sim.meter(|meter| meter.leftovers(ACCOUNT).is_empty()));
    hand.judged_clean();
}
