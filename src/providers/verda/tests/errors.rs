use rstest::rstest;

use super::*;
use crate::fixtures::check_failures;

#[test]
fn each_recorded_failure_has_its_kind_and_remedy() {
    check_failures(
        include_str!("../../tests/fixtures/verda/errors.json"),
        provider_error,
    );
}

#[rstest]
#[case("Can't discontinue a discontinued instance", Refusal::Gone)]
#[case("Invalid instance id", Refusal::Gone)]
#[case("Can't discontinue a provisioning instance", Refusal::NotYet)]
#[case("You shall not", Refusal::Other)]
fn refusals_to_delete_are_told_apart_by_their_words(#[case] words: &str, #[case] expected: Refusal) {
    assert_eq!(refusal(words), expected);
}
