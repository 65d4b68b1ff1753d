use rstest::rstest;

use super::*;
use crate::fixtures::check_failures;

#[test]
fn each_recorded_failure_has_its_kind_and_remedy() {
    check_failures(
        include_str!("../../tests/fixtures/jarvislabs/errors.json"),
        provider_error,
    );
}

#[test]
fn a_machine_that_is_looked_for_is_gone_where_the_flag_of_success_says_so() {
    let body = r#"{ "success": false }"#;
    let error = |operation| {
        provider_error(&Answer::new(
            operation,
            Effect::Repeatable,
            "the cloud",
            200,
            body,
        ))
    };
    assert_eq!(error(LOOK).kind, ErrorKind::NotFound);
    // A list that fails is no empty list.
    assert_eq!(error("list the instances").kind, ErrorKind::Transient);
}

#[rstest]
#[case::made(Effect::Creates, 200, r#"{ "success": true, "machine_id": 7 }"#, false)]
#[case::made_without_a_flag(Effect::Creates, 200, r#"{ "machine_id": "7" }"#, false)]
#[case::made_nothing(Effect::Creates, 200, r#"{ "success": true, "machine_id": null }"#, true)]
#[case::made_number_0(Effect::Creates, 200, r#"{ "machine_id": 0 }"#, true)]
#[case::told_no_json(Effect::Creates, 200, "ok", true)]
#[case::failed(Effect::Creates, 500, r#"{ "machine_id": 7 }"#, true)]
#[case::listed(Effect::Repeatable, 200, r#"[{ "key_id": "1" }]"#, false)]
#[case::done(Effect::Repeatable, 200, r#"{ "sucess": "True" }"#, false)]
#[case::done_without_a_flag(Effect::Repeatable, 200, "{}", false)]
#[case::refused(Effect::Repeatable, 200, r#"{ "success": "false" }"#, true)]
#[case::refused_in_the_other_spelling(Effect::Repeatable, 200, r#"{ "sucess": false }"#, true)]
fn an_answer_is_a_refusal_by_its_status_its_flag_and_the_machine_that_it_lacks(
    #[case] effect: Effect,
    #[case] status: u16,
    #[case] body: &str,
    #[case] expected: bool,
) {
    let answer = Answer::new("call the cloud", effect, "the cloud", status, body);
    assert_eq!(is_refused(&answer), expected);
}
