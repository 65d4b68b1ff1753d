use crate::http::fixtures::{Exchange, exchanges};
use rstest::rstest;

use super::*;

#[test]
fn each_recorded_failure_has_its_kind_and_remedy() {
    let recorded = exchanges(include_str!("../../tests/fixtures/verda/errors.json"));
    for Exchange {
        name,
        answer,
        kind,
        says,
    } in recorded
    {
        let error = provider_error(&answer("create the instance", "Verda"));
        assert_eq!(error.kind.name(), kind, "{name}: {error}");
        assert!(error.to_string().contains(&says), "{name}: {error}");
    }
}

#[rstest]
#[case("Can't discontinue a discontinued instance", Refusal::Gone)]
#[case("Invalid instance id", Refusal::Gone)]
#[case("Can't discontinue a provisioning instance", Refusal::NotYet)]
#[case("You shall not", Refusal::Other)]
fn refusals_to_delete_are_told_apart_by_their_words(#[case] words: &str, #[case] expected: Refusal) {
    assert_eq!(refusal(words), expected);
}
