use rstest::rstest;
use skyward_provider_kit::lookup::for_now;

use super::*;
use crate::fixtures::check_failures;

#[test]
fn each_recorded_failure_has_its_kind_and_remedy() {
    check_failures(
        include_str!("../../tests/fixtures/hyperstack/errors.json"),
        provider_error,
    );
}

/// The error of a call that answered so.
fn refused(operation: &'static str, status: u16, words: &str) -> ProviderError {
    let body = format!(r#"{{ "status": false, "message": "{words}" }}"#);
    provider_error(&Answer::new(
        operation,
        Effect::Repeatable,
        "the cloud",
        status,
        &body,
    ))
}

#[rstest]
#[case::of_a_region(ENVIRONMENTS.add, ErrorKind::InvalidOrder)]
#[case::of_an_environment_that_was_just_made(SSH_KEYS.add, ErrorKind::Transient)]
#[case::of_what_is_looked_at("look at the virtual machine", ErrorKind::NotFound)]
fn what_is_not_found_means_something_else_for_each_call(
    #[case] operation: &'static str,
    #[case] expected: ErrorKind,
) {
    assert_eq!(refused(operation, 404, "does not exist").kind, expected);
}

#[rstest]
#[case::environment("Environment sky-1 not found", ErrorKind::Transient)]
#[case::key("Key pair not found in this environment", ErrorKind::Transient)]
#[case::image(
    "Image X not found in the region of this environment",
    ErrorKind::InvalidOrder
)]
#[case::flavor("Flavor n9 is not sold in this environment", ErrorKind::InvalidOrder)]
fn only_what_was_made_right_before_an_order_may_be_found_later(
    #[case] words: &str,
    #[case] expected: ErrorKind,
) {
    let body = format!(r#"{{ "status": false, "message": "{words}" }}"#);
    let answer = Answer::new("create it", Effect::Creates, "the cloud", 404, &body);
    assert_eq!(provider_error(&answer).kind, expected);
}

#[rstest]
#[case("You do not have permission to view billing")]
#[case("no permission to read the credit limit")]
fn a_permission_that_is_missing_is_no_lack_of_credit_and_no_quota(#[case] words: &str) {
    let error = refused("look at the virtual machine", 403, words);
    assert_eq!(error.kind, ErrorKind::Permission, "{error}");
}

#[rstest]
#[case::is_being_made(
    400,
    "VM is currently being created and cannot be deleted yet",
    true,
    ErrorKind::Transient
)]
#[case::is_being_deleted(409, "it is being deleted", true, ErrorKind::Transient)]
#[case::is_locked(400, "the VM is locked", false, ErrorKind::Transient)]
#[case::holds_something(409, "the environment is not empty", false, ErrorKind::Transient)]
#[case::fails(500, "internal error", false, ErrorKind::Transient)]
#[case::is_not_allowed(403, "no permission", false, ErrorKind::Permission)]
#[case::is_gone(404, "does not exist", false, ErrorKind::NotFound)]
fn an_end_that_is_refused_as_it_is_now_is_tried_again(
    #[case] status: u16,
    #[case] words: &str,
    #[case] busy: bool,
    #[case] expected: ErrorKind,
) {
    let error = refused("delete the virtual machine", status, words);
    assert_eq!(is_busy(&error), busy, "{error}");
    assert_eq!(for_now(error).kind, expected);
}
