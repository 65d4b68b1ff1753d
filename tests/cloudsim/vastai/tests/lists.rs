//! Lists and pages.

use serde_json::{Value, json};

use super::Hand;
use crate::core::fault::{Fault, Rule};

/// So many instances, with two labels in turn.
fn many(hand: &Hand, count: usize) {
    let offers = hand.offers(json!({"limit": 500, "num_gpus": {"in": [1]}}));
    for (index, offer) in offers.iter().take(count).enumerate() {
        let (status, body) = hand.create(offer, json!({"label": format!("pool-{}", index % 2)}));
        assert_eq!(status, 200, "{body}");
    }
    hand.wait(60);
}

fn ids(page: &Value) -> Vec<i64> {
    page["instances"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|instance| instance["id"].as_i64())
        .collect()
}

#[test]
fn a_list_has_25_a_page_and_counts_labels_over_all() {
    let hand = Hand::new();
    many(&hand, 30);
    let (_, first) = hand.get("/api/v1/instances/");
    assert_eq!((ids(&first).len(), &first["total_instances"]), (25, &json!(30)));
    assert_eq!(first["label_counts"], json!({"pool-0": 15, "pool-1": 15}));
    let token = first["next_token"].as_str().expect("a token").replace('=', "%3D");
    let (_, second) = hand.get(&format!("/api/v1/instances/?after_token={token}"));
    assert_eq!((ids(&second).len(), &second["next_token"]), (5, &Value::Null));
    assert!(ids(&first).iter().all(|id| !ids(&second).contains(id)));
    let (status, body) = hand.get("/api/v1/instances/?after_token=nonsense");
    assert_eq!((status, &body["error"]), (400, &json!("invalid_token")));
    hand.judged_clean();
    assert_eq!(hand.get("/api/v1/instances/?limit=26").0, 400);
}

#[test]
fn filters_columns_and_order_are_json_in_the_query() {
    let hand = Hand::new();
    many(&hand, 6);
    let query = "select_filters=%7B%22label%22%3A%7B%22eq%22%3A%22pool-1%22%7D%7D&select_cols=%5B%22id%22%2C%22label%22%5D&order_by=%5B%7B%22col%22%3A%22id%22%2C%22dir%22%3A%22desc%22%7D%5D";
    let (status, page) = hand.get(&format!("/api/v1/instances/?{query}"));
    assert_eq!(status, 200, "{page}");
    let found = ids(&page);
    assert!(
        found.len() == 3 && found.windows(2).all(|pair| pair[0] > pair[1]),
        "{found:?}"
    );
    assert_eq!(
        page["instances"][0].as_object().map(serde_json::Map::len),
        Some(2)
    );
    assert_eq!(hand.get("/api/v1/instances/?select_filters=nonsense").0, 400);
    hand.judged_clean();
}

#[test]
fn the_old_list_has_everything_in_one() {
    let hand = Hand::new();
    many(&hand, 30);
    let (_, all) = hand.get("/api/v0/instances/?owner=me");
    assert_eq!(ids(&all).len(), 30);
    hand.judged_clean();
}

#[test]
fn a_page_may_be_short_and_says_that_there_is_more() {
    let hand = Hand::new();
    many(&hand, 6);
    hand.sim
        .fault(Rule::once("instances.list", Fault::PartialPage { keep: 2 }));
    let (_, page) = hand.get("/api/v1/instances/");
    assert_eq!((ids(&page).len(), page["next_token"].is_string()), (2, true));
    hand.judged_clean();
}

#[test]
fn a_list_may_lag_behind() {
    let hand = Hand::new();
    hand.sim
        .world(|world| world.lag.created = jiff::SignedDuration::from_secs(10));
    let (_, body) = hand.create(&hand.offer_of(101, 1, "ondemand"), json!({}));
    let id = body["new_contract"].to_string();
    assert_eq!(hand.instance(&id), Value::Null);
    assert_eq!(ids(&hand.get("/api/v1/instances/").1).len(), 0);
    hand.wait(11);
    assert_eq!(ids(&hand.get("/api/v1/instances/").1).len(), 1);
}

#[test]
fn a_label_can_be_changed_afterwards() {
    let hand = Hand::new();
    let id = hand.running(&hand.offer_of(101, 1, "ondemand"), json!({}));
    assert_eq!(
        hand.put(&format!("/api/v0/instances/{id}/"), json!({"label": "other"}))
            .0,
        200
    );
    assert_eq!(hand.instance(&id)["label"], "other");
    assert_eq!(hand.put("/api/v0/instances/1/", json!({"label": "other"})).0, 404);
    hand.judged_clean();
}
