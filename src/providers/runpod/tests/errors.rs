use super::*;
use crate::{fixtures::check_failures, runpod::wire::Graph};

#[test]
fn each_recorded_failure_has_its_kind_and_remedy() {
    check_failures(
        include_str!("../../tests/fixtures/runpod/errors.json"),
        provider_error,
    );
}

#[test]
fn each_recorded_failure_of_graphql_has_its_kind_and_remedy() {
    check_failures(
        include_str!("../../tests/fixtures/runpod/graphql.json"),
        |answer| {
            let graph: Graph = answer.json().unwrap();
            graph_error(answer, &graph.errors)
        },
    );
}
