use rstest::rstest;
use skyward_provider_kit::http::Effect;

use super::*;

fn answer(operation: &'static str, status: u16, body: &str) -> Answer {
    Answer::new(operation, Effect::Repeatable, "the cloud", status, body)
}

#[rstest]
#[case::by_itself(
    r#"{ "id": "a", "name": "n", "clusterId": "1", "status": "running" }"#,
    Some("a")
)]
#[case::one_level_deeper(r#"{ "instance": { "id": "a", "status": "running" } }"#, Some("a"))]
#[case::nothing("", None)]
#[case::nothing_in_it("{}", None)]
#[case::null("null", None)]
#[case::no_instance(r#"{ "instance": null }"#, None)]
#[case::no_id(r#"{ "id": "", "status": "removed" }"#, None)]
fn a_machine_is_read_at_both_places_and_an_empty_answer_is_none(
    #[case] body: &str,
    #[case] expected: Option<&str>,
) {
    let found = one(&answer("look at the instance", 200, body)).unwrap();
    assert_eq!(found.map(|found| found.id).as_deref(), expected);
}

#[test]
fn an_answer_that_is_no_json_is_no_machine_that_is_gone() {
    let error = one(&answer("look at the instance", 200, "<html>")).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Transient);
}

#[rstest]
#[case::a_machine("create the instance", 200, r#"{ "id": "a", "message": "ok" }"#, false)]
#[case::a_machine_by_its_other_name(
    "create the instance",
    200,
    r#"{ "instanceId": "a", "reason": "OK" }"#,
    false
)]
#[case::a_list(
    "list the instances",
    200,
    r#"{ "instances": [], "total": 0, "message": "ok" }"#,
    false
)]
#[case::products("list the products", 200, r#"{ "data": [], "message": "ok" }"#, false)]
#[case::words_alone("create the instance", 200, r#"{ "message": "no" }"#, true)]
#[case::words_instead_of_a_machine("look at the instance", 200, r#"{ "message": "busy" }"#, true)]
#[case::an_error("create the instance", 200, r#"{ "error": "no" }"#, true)]
#[case::a_reason(
    "look at the instance",
    200,
    r#"{ "code": 404, "reason": "INSTANCE_NOT_FOUND" }"#,
    true
)]
#[case::no_words(
    "create the instance",
    200,
    r#"{ "code": 0, "reason": "", "message": "" }"#,
    false
)]
#[case::a_deletion(DELETE, 200, r#"{ "message": "success" }"#, false)]
#[case::a_deletion_with_a_reason(DELETE, 200, r#"{ "reason": "FORBIDDEN", "message": "no" }"#, true)]
#[case::a_status(DELETE, 404, "", true)]
fn a_refusal_with_a_status_of_success_is_one(
    #[case] operation: &'static str,
    #[case] status: u16,
    #[case] body: &str,
    #[case] expected: bool,
) {
    assert_eq!(is_refused(&answer(operation, status, body)), expected);
}
