use rstest::rstest;

use super::*;
use crate::fixtures::check_failures;

#[test]
fn each_recorded_failure_has_its_kind_and_remedy() {
    check_failures(
        include_str!("../../tests/fixtures/tensordock/errors.json"),
        provider_error,
    );
}

#[rstest]
#[case::failure(500, "{}", true)]
#[case::error(200, r#"{ "error": "no" }"#, true)]
#[case::error_as_an_object(200, r#"{ "error": { "code": 1 } }"#, true)]
#[case::errors(200, r#"{ "errors": [{ "title": "no" }] }"#, true)]
#[case::status(201, r#"{ "status": 404, "message": "no" }"#, true)]
#[case::machine(200, r#"{ "id": "a", "status": "error" }"#, false)]
#[case::machine_in_a_body(200, r#"{ "data": { "id": "a", "status": "running" } }"#, false)]
#[case::no_error(200, r#"{ "data": [], "error": null, "errors": [], "status": 200 }"#, false)]
#[case::nothing(200, "", false)]
#[case::list(200, r#"["error"]"#, false)]
fn a_failure_may_come_with_a_status_of_success(
    #[case] status: u16,
    #[case] body: &str,
    #[case] expected: bool,
) {
    let answer = Answer::new("look", Effect::Repeatable, "the cloud", status, body);
    assert_eq!(is_refused(&answer), expected);
}
