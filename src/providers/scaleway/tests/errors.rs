use super::*;
use crate::fixtures::check_failures;

#[test]
fn each_recorded_failure_has_its_kind_and_remedy() {
    check_failures(
        include_str!("../../tests/fixtures/scaleway/errors.json"),
        provider_error,
    );
}

#[test]
fn only_what_is_in_the_middle_of_something_is_busy() {
    let error = |code: &str, status| {
        let body = format!(r#"{{ "type": "{code}", "message": "no" }}"#);
        provider_error(&Answer::new(
            "end it",
            Effect::Repeatable,
            "the cloud",
            status,
            &body,
        ))
    };
    assert!(is_busy(&error("precondition_failed", 412)));
    assert!(is_busy(&error("transient_state", 409)));
    assert!(!is_busy(&error("internal_error", 500)));
    assert!(!is_busy(&error("locked", 423)));
}
