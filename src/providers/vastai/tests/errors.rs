use super::*;
use crate::http::fixtures::{Exchange, exchanges};

#[test]
fn each_recorded_failure_has_its_kind_and_remedy() {
    for Exchange {
        name,
        answer,
        kind,
        says,
    } in exchanges(include_str!("../../tests/fixtures/vastai/errors.json"))
    {
        let error = provider_error(&answer("create the instance", "Vast.ai"));
        assert_eq!(error.kind.name(), kind, "{name}: {error}");
        assert!(error.to_string().contains(&says), "{name}: {error}");
    }
}
