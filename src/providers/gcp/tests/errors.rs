use rstest::rstest;
use serde_json::json;

use super::*;
use crate::fixtures::check_failures;

#[test]
fn each_recorded_failure_has_its_kind_and_remedy() {
    check_failures(
        include_str!("../../tests/fixtures/gcp/errors.json"),
        provider_error,
    );
}

fn ended(status: u16, code: &str, words: &str) -> Operation {
    serde_json::from_value(json!({
        "name": "operation-1", "status": "DONE", "targetId": "7", "httpErrorStatusCode": status,
        "error": { "errors": [{ "code": code, "message": words }] },
    }))
    .unwrap()
}

#[rstest]
#[case::shortage(503, "ZONE_RESOURCE_POOL_EXHAUSTED", "no", ErrorKind::NoCapacity)]
#[case::shortage_with_words(
    503,
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
    "(reason:stockout)",
    ErrorKind::NoCapacity
)]
#[case::shortage_in_words(
    503,
    "",
    "A e2-small VM instance is currently unavailable. Reason: STOCKOUT",
    ErrorKind::NoCapacity
)]
#[case::quota(403, "QUOTA_EXCEEDED", "Quota 'GPUS_ALL_REGIONS' exceeded", ErrorKind::Quota("Quota 'GPUS_ALL_REGIONS' exceeded".into()))]
#[case::name(409, "RESOURCE_ALREADY_EXISTS", "exists", ErrorKind::AlreadyExists)]
#[case::right(
    403,
    "PERMISSIONS_ERROR",
    "Required 'compute.disks.create' permission",
    ErrorKind::Permission
)]
#[case::not_ready(400, "RESOURCE_NOT_READY", "the network is not ready", ErrorKind::Transient)]
#[case::policy(
    412,
    "CONDITION_NOT_MET",
    "Constraint constraints/compute.vmExternalIpAccess violated",
    ErrorKind::InvalidOrder
)]
#[case::too_often(429, "SOMETHING_NEW", "slow down", ErrorKind::RateLimited(None))]
#[case::mistake(400, "INVALID_USAGE", "no such disk", ErrorKind::InvalidOrder)]
#[case::trouble(500, "INTERNAL_ERROR", "", ErrorKind::Transient)]
#[case::trouble_without_a_status(0, "SOMETHING_NEW", "", ErrorKind::Transient)]
fn an_operation_that_failed_tells_why_as_an_answer_does(
    #[case] status: u16,
    #[case] code: &str,
    #[case] words: &str,
    #[case] expected: ErrorKind,
) {
    let error = of_operation(&ended(status, code, words), "create the instance").unwrap();
    assert_eq!(error.kind, expected, "{error}");
    assert!(error.message.contains(words), "{error}");
}

#[test]
fn an_operation_without_an_error_has_none() {
    for operation in [
        json!({ "name": "o", "status": "RUNNING", "progress": 0 }),
        json!({ "name": "o", "status": "DONE" }),
        json!({ "name": "o", "status": "DONE", "error": { "errors": [] } }),
    ] {
        let operation: Operation = serde_json::from_value(operation).unwrap();
        assert_eq!(of_operation(&operation, "create the instance"), None);
    }
}

#[rstest]
#[case("ZONE_RESOURCE_POOL_EXHAUSTED", FailureKind::NoCapacity)]
#[case("QUOTA_EXCEEDED", FailureKind::NoCapacity)]
#[case("INTERNAL_ERROR", FailureKind::Other)]
fn a_machine_that_was_not_made_says_whether_another_place_will_do(
    #[case] code: &str,
    #[case] expected: FailureKind,
) {
    let error = of_operation(&ended(503, code, "why"), "create the instance").unwrap();
    let failure = failure(error);
    assert_eq!(failure.kind, expected);
    assert!(failure.message.contains("why"), "{}", failure.message);
}

#[rstest]
#[case::of_the_region(
    "Quota 'NVIDIA_L4_GPUS' exceeded.  Limit: 0.0 in region us-east1.",
    Some("us-east1")
)]
#[case::of_the_project("Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 0.0 globally.", None)]
#[case::of_another_region("Quota 'NVIDIA_L4_GPUS' exceeded.  Limit: 0.0 in region us-east10.", None)]
fn a_quota_tells_the_region_whose_zones_have_it_in_common(
    #[case] words: &str,
    #[case] expected: Option<&str>,
) {
    let error = of_operation(&ended(403, "QUOTA_EXCEEDED", words), "create the instance").unwrap();
    let error = in_zone(error, "us-east1-b");
    assert_eq!(error.quota_region.as_deref(), expected);
    assert_eq!(failure(error).quota_region.as_deref(), expected);
}

#[test]
fn what_is_in_the_middle_of_something_is_told_by_its_code_alone() {
    let refused = |reason: &str| {
        let body = json!({ "error": { "message": "no", "errors": [{ "reason": reason }] } });
        let answer = Answer::new(
            "delete it",
            Effect::Repeatable,
            "the cloud",
            400,
            &body.to_string(),
        );
        is_busy(&provider_error(&answer))
    };
    assert!(refused("resourceNotReady"));
    assert!(!refused("invalid"));
}

/// The rule is made before the machine is ordered: the order must not wait for a network that never comes.
#[rstest]
#[case::no_such_network(404, "notFound", ErrorKind::InvalidOrder)]
#[case::mistake(400, "invalid", ErrorKind::InvalidOrder)]
#[case::not_ready(400, "resourceNotReady", ErrorKind::Transient)]
fn a_rule_for_a_network_that_does_not_exist_refuses_the_order(
    #[case] status: u16,
    #[case] reason: &str,
    #[case] expected: ErrorKind,
) {
    let words = "The resource 'projects/lab/global/networks/research' was not found";
    let body = json!({ "error": { "message": words, "errors": [{ "reason": reason }] } });
    let answer = Answer::new(
        FIREWALLS.add,
        Effect::Repeatable,
        "the cloud",
        status,
        &body.to_string(),
    );
    let error = provider_error(&answer);
    assert_eq!(error.kind, expected, "{error}");
    assert!(error.message.contains(words), "{error}");
    let is_told = error.message.contains("gcp settings");
    assert_eq!(is_told, expected == ErrorKind::InvalidOrder, "{error}");
}
