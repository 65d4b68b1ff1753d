use super::*;
use crate::{
    http::fixtures::{Exchange, exchanges},
    runpod::wire::Graph,
};

#[test]
fn each_recorded_failure_has_its_kind_and_remedy() {
    for Exchange {
        name,
        answer,
        kind,
        says,
    } in exchanges(include_str!("../../tests/fixtures/runpod/errors.json"))
    {
        let error = provider_error(&answer("create the pod", "RunPod"));
        assert_eq!(error.kind.name(), kind, "{name}: {error}");
        assert!(error.to_string().contains(&says), "{name}: {error}");
    }
}

#[test]
fn each_recorded_failure_of_graphql_has_its_kind_and_remedy() {
    for Exchange {
        name,
        answer,
        kind,
        says,
    } in exchanges(include_str!("../../tests/fixtures/runpod/graphql.json"))
    {
        let answer = answer("create the spot pod", "RunPod");
        let graph: Graph<serde_json::Value> = answer.json().unwrap();
        let error = graph_error(&answer, &graph.errors);
        assert_eq!(error.kind.name(), kind, "{name}: {error}");
        assert!(error.to_string().contains(&says), "{name}: {error}");
    }
}
