use rstest::rstest;

use super::*;
use crate::fixtures::check_failures;

#[test]
fn each_recorded_failure_has_its_kind_and_remedy() {
    check_failures(
        include_str!("../../tests/fixtures/massedcompute/errors.json"),
        provider_error,
    );
}

#[rstest]
#[case::is_not_there(TERMINATE, 400, "No valid VMs found", ErrorKind::NotFound)]
#[case::is_not_there_by_another_status(TERMINATE, 500, "No valid VMs found.", ErrorKind::NotFound)]
#[case::is_busy(TERMINATE, 400, "Failed to terminate instance", ErrorKind::Transient)]
#[case::fails(TERMINATE, 500, "Internal server error", ErrorKind::Transient)]
#[case::is_not_allowed(TERMINATE, 403, "Forbidden", ErrorKind::Permission)]
#[case::takes_no_key(SSH_KEYS.add, 400, "Failed to create SSH key", ErrorKind::Transient)]
#[case::has_the_key(SSH_KEYS.add, 409, "SSH key already exists", ErrorKind::AlreadyExists)]
#[case::has_no_such_call(SSH_KEYS.list, 400, "No valid VMs found", ErrorKind::InvalidOrder)]
fn the_same_words_and_statuses_mean_something_else_for_each_call(
    #[case] operation: &'static str,
    #[case] status: u16,
    #[case] words: &str,
    #[case] expected: ErrorKind,
) {
    let body = format!(r#"{{ "message": "{words}" }}"#);
    let answer = Answer::new(operation, Effect::Repeatable, "the cloud", status, &body);
    let error = provider_error(&answer);
    assert_eq!(error.kind, expected, "{error}");
    assert!(error.message.contains(words.trim_end_matches('.')), "{error}");
}

#[test]
fn a_long_text_is_no_message() {
    let text = "x".repeat(LONGEST + 1);
    let error = provider_error(&Answer::new("look", Effect::Repeatable, "the cloud", 500, &text));
    assert!(error.message.contains("HTTP 500"), "{error}");
}
