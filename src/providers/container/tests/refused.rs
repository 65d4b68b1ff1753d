//! Namespaces in which Pods may not be looked at, on an API server in memory.

use std::{collections::BTreeSet, convert::Infallible};

use http::{Request, Response};
use kube::client::Body;
use serde_json::{Value, json};
use tower::service_fn;

use super::*;
use crate::container::map::tests::{order, settings};

/// The state of the API server: namespaces, which of them are being deleted, and where Pods may be
/// looked at.
#[derive(Clone, Default)]
struct Server {
    there: BTreeSet<&'static str>,
    going: BTreeSet<&'static str>,
    readable: BTreeSet<&'static str>,
}

impl Server {
    /// Answers, for a path such as `/api/v1/namespaces/team/pods`.
    fn answer(&self, path: &str) -> (u16, Value) {
        let parts: Vec<&str> = path.trim_start_matches("/api/v1/").split('/').collect();
        match parts.as_slice() {
            ["namespaces", name] => match self.there.get(name) {
                Some(name) => {
                    let goes = self.going.contains(name);
                    let deleted = goes.then_some("2026-01-01T00:00:00Z");
                    (
                        200,
                        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "deletionTimestamp": deleted } }),
                    )
                }
                None => status(404, "NotFound", format!("namespaces \"{name}\" not found")),
            },
            ["namespaces", name, "pods", rest @ ..] => {
                if !self.readable.contains(name) {
                    return status(
                        403,
                        "Forbidden",
                        format!(
                            "pods is forbidden: User \"system:serviceaccount:skyward-system:skyward-controller\" cannot list resource \"pods\" in API group \"\" in the namespace \"{name}\""
                        ),
                    );
                }
                if !rest.is_empty() {
                    return status(404, "NotFound", "pods \"m\" not found".to_owned());
                }
                let mut order = order();
                order.mark.namespace = (*name).to_owned();
                let mut pod = map::pod(&order, &settings(Default::default()), "local").unwrap();
                pod.metadata.uid = Some(format!("uid-{name}"));
                (
                    200,
                    json!({ "apiVersion": "v1", "kind": "PodList", "metadata": { "resourceVersion": "1" }, "items": [pod] }),
                )
            }
            _ => status(404, "NotFound", format!("there is no {path}")),
        }
    }

    /// The provider of an operator that serves these namespaces.
    fn provider(&self, served: &[&str]) -> Container {
        let server = self.clone();
        let service = service_fn(move |request: Request<Body>| {
            let (code, answer) = server.answer(request.uri().path());
            let body = Body::from(answer.to_string().into_bytes());
            let answer = Response::builder().status(code).body(body).unwrap();
            std::future::ready(Ok::<_, Infallible>(answer))
        });
        let options = Options {
            cluster: "c-uid".into(),
            node_image: "image".into(),
            pod_network: PodNetwork::Direct,
            namespaces: served.iter().map(|name| (*name).to_owned()).collect(),
        };
        Container {
            cluster: Cluster::start(Client::new(service, "default"), options),
            provider_label: "local".into(),
            settings: Ok(settings(Default::default())),
        }
    }
}

fn status(code: u16, reason: &str, message: String) -> (u16, Value) {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "code": code, "reason": reason, "message": message
    });
    (code, status)
}

fn scope(namespace: Option<&str>) -> Scope {
    Scope {
        cluster: "c-uid".into(),
        pool_uid: None,
        namespace: namespace.map(str::to_owned),
        regions: Vec::new(),
    }
}

fn machine_in(namespace: &str) -> MachineRef {
    let mut order = order();
    order.mark.namespace = namespace.to_owned();
    MachineRef {
        id: Some("uid".into()),
        ..MachineRef::of(&order)
    }
}

async fn listed(provider: &Container, namespace: Option<&str>) -> Result<Vec<String>, ErrorKind> {
    let found = provider.list(&scope(namespace)).await;
    let names = |found: Vec<ProviderMachine>| found.into_iter().map(|found| found.mark.namespace).collect();
    found.map(names).map_err(|error| error.kind)
}

#[tokio::test]
async fn machines_of_a_namespace_that_goes_are_gone_when_its_role_binding_went_first() {
    for there in [&["team-a", "team-b"][..], &["team-b"]] {
        let server = Server {
            there: there.iter().copied().collect(),
            going: ["team-a"].into(),
            readable: ["team-b"].into(),
        };
        let provider = server.provider(&["team-a", "team-b"]);
        assert_eq!(
            provider.delete(&machine_in("team-a")).await.unwrap(),
            Deletion::Gone
        );
        assert_eq!(provider.get(&machine_in("team-a")).await.unwrap(), None);
        assert_eq!(listed(&provider, Some("team-a")).await, Ok(Vec::new()));
        assert_eq!(listed(&provider, None).await, Ok(vec!["team-b".to_owned()]));
    }
}

#[tokio::test]
async fn a_refusal_in_a_namespace_that_stays_is_no_proof_that_nothing_is_there() {
    let server = Server {
        there: ["team-a", "team-b"].into(),
        going: BTreeSet::new(),
        readable: ["team-b"].into(),
    };
    let provider = server.provider(&["team-a", "team-b"]);
    let refused = provider.delete(&machine_in("team-a")).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Permission, "{refused}");
    assert!(provider.get(&machine_in("team-a")).await.is_err());
    assert_eq!(listed(&provider, None).await, Err(ErrorKind::Permission));
    assert_eq!(
        listed(&provider, Some("team-a")).await,
        Err(ErrorKind::Permission)
    );
    // Nobody else waits for it.
    assert_eq!(provider.namespaces(), ["team-a", "team-b"]);
    assert_eq!(
        listed(&provider, Some("team-b")).await,
        Ok(vec!["team-b".to_owned()])
    );
}

/// Taken out of the chart's `namespaces`: a list of the others would not show its Pods.
#[tokio::test]
async fn a_pool_in_a_namespace_that_is_not_served_any_more_is_not_taken_for_empty() {
    let server = Server {
        there: ["team-a", "team-b"].into(),
        going: BTreeSet::new(),
        readable: ["team-b"].into(),
    };
    let provider = server.provider(&["team-b"]);
    assert_eq!(
        listed(&provider, Some("team-a")).await,
        Err(ErrorKind::Permission)
    );
    assert_eq!(listed(&provider, None).await, Ok(vec!["team-b".to_owned()]));
}
