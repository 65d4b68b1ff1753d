//! Searching offers.

use serde_json::json;

use super::Hand;

#[test]
fn a_search_filters_sorts_and_cuts() {
    let hand = Hand::new();
    let found = hand.offers(json!({
        "type": "ondemand",
        "limit": 3,
        "allocated_storage": 100,
        "verified": {"eq": true},
        "rentable": {"eq": true},
        "rented": {"eq": false},
        "gpu_name": {"in": ["RTX 4090"]},
        "num_gpus": {"in": [1]},
        "reliability": {"gte": 0.95},
        "cuda_max_good": {"gte": 12.0},
        "order": [["dph_total", "asc"]],
    }));
    assert_eq!(found.len(), 3);
    assert!(
        found.iter().all(|offer| offer["machine_id"] == 102),
        "the cheapest host comes first: {found:?}"
    );
    assert!(found[0]["dph_total"].as_f64() > found[0]["dph_base"].as_f64());
    hand.judged_clean();
}

#[test]
fn the_service_itself_leaves_out_what_is_not_verified() {
    let hand = Hand::new();
    let machines = |body| -> Vec<i64> {
        hand.offers(body)
            .iter()
            .filter_map(|offer| offer["machine_id"].as_i64())
            .collect()
    };
    assert!(!machines(json!({"limit": 500})).contains(&105));
    assert!(machines(json!({"limit": 500, "verified": {"eq": false}})).contains(&105));
    // Offers of other marketplaces are there unless the client says otherwise.
    assert!(machines(json!({"limit": 500})).contains(&117));
    assert!(!machines(json!({"limit": 500, "external": {"eq": false}})).contains(&117));
    hand.judged_clean();
}

#[test]
fn names_have_a_space_and_places_are_found_by_country() {
    let hand = Hand::new();
    assert_eq!(hand.offers(json!({"gpu_name": {"in": ["RTX_4090"]}})).len(), 0);
    let norway = hand.offers(json!({"geolocation": {"in": ["NO"]}, "limit": 500}));
    assert!(!norway.is_empty() && norway.iter().all(|offer| offer["geolocation"] == "Oslo, NO"));
    let clusters = hand.offers(json!({"cluster_id": {"neq": null}, "limit": 500}));
    assert!(clusters.iter().all(|offer| offer["cluster_id"].is_i64()) && !clusters.is_empty());
    hand.judged_clean();
}

#[test]
fn prices_of_bids_are_asked_for_separately() {
    let hand = Hand::new();
    let (fixed, bid) = (hand.offer_of(101, 1, "ondemand"), hand.offer_of(101, 1, "bid"));
    assert_eq!((&fixed["is_bid"], &bid["is_bid"]), (&json!(false), &json!(true)));
    assert_eq!(bid["dph_base"], bid["min_bid"]);
    assert!(bid["dph_total"].as_f64() < fixed["dph_total"].as_f64());
    hand.judged_clean();
}

#[test]
fn what_is_not_in_the_description_is_recorded() {
    if crate::core::description::folder().is_none() {
        println!("skipped: SKYWARD_SPECS is not set");
        return;
    }
    let hand = Hand::new();
    let (status, _) = hand.post("/api/v0/bundles/", json!({"colour": {"eq": "red"}}));
    assert_eq!(status, 400);
    assert_eq!(hand.sim.violations().len(), 1);
    let (status, _) = hand.post("/api/v0/asks/1/", json!({"image": "x"}));
    assert_eq!(
        (status, hand.sim.violations().len()),
        (404, 2),
        "the prose says POST; the service takes PUT"
    );
}

#[test]
fn a_short_lived_listing_can_be_left_out_by_its_duration() {
    let hand = Hand::new();
    let long = hand.offers(json!({"duration": {"gte": 86_400}, "limit": 500}));
    assert!(!long.is_empty() && long.iter().all(|offer| offer["machine_id"] != 118));
    hand.judged_clean();
}

#[test]
fn ids_change_while_nobody_looks() {
    let hand = Hand::new();
    let before = hand.offer_of(101, 1, "ondemand");
    hand.wait(31 * 60);
    let after = hand.offer_of(101, 1, "ondemand");
    assert_ne!(before["id"], after["id"]);
    let (status, body) = hand.create(&before, json!({}));
    assert_eq!((status, &body["error"]), (404, &json!("invalid_args")));
    assert!(
        body["msg"]
            .as_str()
            .is_some_and(|text| text.contains("no_such_ask")),
        "{body}"
    );
    hand.judged_clean();
}
