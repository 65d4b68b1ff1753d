use rstest::rstest;
use serde_json::json;

use super::*;

#[rstest]
#[case::flat(json!({ "type": "VM", "id": "a", "name": "n", "status": "running", "ipAddress": "192.0.2.1", "rateHourly": 0.4 }))]
#[case::within(json!({ "id": "a", "attributes": { "name": "n", "status": "running", "ipAddress": "192.0.2.1", "rateHourly": "0.4" } }))]
#[case::in_a_body(json!({ "data": { "id": "a", "name": "n", "status": "running", "ip_address": "192.0.2.1", "rate_hourly": 0.4 } }))]
#[case::within_a_body(json!({ "data": { "id": "a", "type": "instance", "attributes": { "name": "n", "status": "running", "ipAddress": "192.0.2.1", "rateHourly": 0.4 } } }))]
#[case::half_within(json!({ "id": "a", "name": "n", "status": null, "rateHourly": 0.4, "attributes": { "id": "b", "name": "m", "status": "running", "ipAddress": "192.0.2.1" } }))]
fn a_machine_is_read_in_each_of_its_forms(#[case] told: Value) {
    let found = machine(told).unwrap();
    assert_eq!(found.id, "a");
    assert_eq!(found.name.as_deref(), Some("n"));
    assert_eq!(found.status.as_deref(), Some("running"));
    assert_eq!(found.address.as_deref(), Some("192.0.2.1"));
    assert_eq!(found.rate, Some(Amount("0.4".parse().unwrap())));
}

#[rstest]
#[case::nothing(json!(null))]
#[case::a_text(json!("a"))]
#[case::a_list(json!(["a", "n", "running", "192.0.2.1", [], 0.4]))]
#[case::no_id(json!({ "name": "n" }))]
#[case::an_empty_id(json!({ "id": "" }))]
#[case::a_long_id(json!({ "id": "a".repeat(129) }))]
#[case::a_list_of_them(json!({ "data": [{ "id": "a" }] }))]
fn what_has_no_id_is_no_machine(#[case] told: Value) {
    assert!(machine(told).is_none());
}

#[rstest]
#[case::as_documented(json!({ "data": { "instances": [{ "id": "a" }, { "id": "b" }] } }))]
#[case::as_documented_elsewhere(
    json!({ "data": { "type": "list", "attributes": { "instances": [{ "id": "a" }, { "id": "b" }] } } })
)]
#[case::as_seen(json!({ "data": [{ "id": "a" }, { "id": "b" }] }))]
fn a_list_is_found_at_each_of_its_places(#[case] told: Value) {
    let found = machines(&told).unwrap();
    let ids: Vec<&str> = found.iter().map(|machine| machine.id.as_str()).collect();
    assert_eq!(ids, ["a", "b"]);
}

#[rstest]
#[case::no_list(json!({ "data": {} }))]
#[case::no_body(json!("ok"))]
#[case::one_without_an_id(json!({ "data": { "instances": [{ "id": "a" }, { "name": "b" }] } }))]
#[case::one_that_is_none(json!({ "data": [{ "id": "a" }, null] }))]
fn a_list_that_cannot_be_read_whole_is_no_shorter_list(#[case] told: Value) {
    assert!(machines(&told).is_none());
}
