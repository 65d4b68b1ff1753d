//! P11: a recorded id proves nothing. A user who may write a record, or restores one, can name any
//! machine of the account in it; only its mark shows whose it is.

use std::{convert::Infallible, sync::Arc};

use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use skyward_conformance::{Bench, CLUSTER, mark};
use skyward_core::{Credentials, Deletion, Endpoints, ErrorKind, MachineRef, Mark, Market, Provider};
use skyward_providers::{Options, container, factory, registry};

use crate::{for_each, in_virtual_time};

/// Marks of machines that are others than that of the first slot: another one of the Pool, and the
/// same of another installation.
fn others() -> [Mark; 2] {
    let elsewhere = Mark {
        cluster: "another".to_owned(),
        ..mark(0)
    };
    [mark(1), elsewhere]
}

#[test]
fn p11_a_machine_with_another_mark_is_neither_shown_nor_ended_by_its_id() {
    for_each(async |kind| {
        let bench = Bench::start(kind, None).await;
        let order = bench.order(Market::OnDemand, 0).await;
        let (running, _) = bench.bring_up(&order).await;
        for mark in others() {
            let recorded = MachineRef {
                id: Some(running.id.clone()),
                mark,
                region: order.region.clone(),
                started: false,
            };
            assert_eq!(bench.provider.get(&recorded).await.unwrap(), None, "{kind}");
            let deleted = bench.provider.delete(&recorded).await.unwrap();
            assert_eq!(deleted, Deletion::Foreign, "{kind}");
        }
        assert_eq!(bench.sim.calls(bench.subject.delete), 0, "{kind}");
        assert_eq!(bench.machines(), 1, "{kind}");
        bench.bring_down(&order, Some(&running.id)).await;
        bench.judge(kind);
    });
}

/// The changing requests that an API server with one Pod received.
type Asked = Arc<Mutex<Vec<String>>>;

/// The container provider before an API server that has this Pod.
fn containers(pod: Value) -> (Arc<dyn Provider>, Asked) {
    let asked = Asked::default();
    let heard = asked.clone();
    let server = tower::service_fn(move |request: Request<Body>| {
        let (pod, heard) = (pod.clone(), heard.clone());
        async move {
            if request.method() != Method::GET {
                let call = format!("{} {}", request.method(), request.uri().path());
                heard.lock().push(call);
            }
            let is_pod = request.uri().path().ends_with("/pods/train-0");
            let answer = if is_pod {
                pod
            } else if request
                .uri()
                .query()
                .is_some_and(|query| query.contains("watch="))
            {
                std::future::pending().await
            } else {
                json!({ "kind": "PodList", "apiVersion": "v1", "metadata": { "resourceVersion": "1" }, "items": [] })
            };
            let body = Body::from(answer.to_string().into_bytes());
            Ok::<_, Infallible>(
                Response::builder()
                    .status(StatusCode::OK)
                    .header("content-type", "application/json")
                    .body(body)
                    .unwrap(),
            )
        }
    });
    let options = Options {
        containers: container::Options {
            cluster: CLUSTER.to_owned(),
            node_image: "node".to_owned(),
            pod_network: container::PodNetwork::Direct,
            namespaces: Vec::new(),
        },
        endpoints: Endpoints::default(),
        sink: None,
        fence: skyward_core::Fence::always_open(),
    };
    let make = factory(kube::Client::new(server, "default"), options);
    let object = serde_json::from_value(json!({
        "apiVersion": "skyward.dev/v1alpha1", "kind": "Provider", "metadata": { "name": "local" },
        "spec": { "container": {}, "allowedNamespaces": {} },
    }));
    let provider = make(&object.unwrap(), &Credentials::default()).unwrap();
    (provider, asked)
}

/// A Pod of that name, with the labels of a mark or without any.
fn pod(mark: Option<&Mark>) -> Value {
    let labels = mark.map(|mark| {
        json!({
            skyward_api::labels::MANAGED_BY: skyward_api::labels::MANAGER,
            skyward_api::labels::CLUSTER: mark.cluster,
            skyward_api::labels::POOL: mark.pool,
            skyward_api::labels::POOL_UID: mark.pool_uid,
            skyward_api::labels::MACHINE: mark.machine,
            skyward_api::labels::MACHINE_UID: mark.machine_uid,
            skyward_api::labels::SLOT: mark.slot.to_string(),
            skyward_api::labels::ATTEMPT: mark.attempt.to_string(),
        })
    });
    json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": { "name": "train-0", "namespace": "research", "uid": "pod-uid", "labels": labels },
        "spec": { "containers": [], "nodeName": "node" }, "status": { "phase": "Running" },
    })
}

#[test]
fn p11_a_pod_with_another_mark_or_none_is_neither_shown_nor_ended() {
    assert_eq!(
        registry::kinds().count(),
        registry::clouds().len() + 1,
        "a new kind that is no cloud needs a test here"
    );
    let recorded = |id: &str| MachineRef {
        id: Some(id.to_owned()),
        mark: Mark {
            machine: "train-0".to_owned(),
            ..mark(0)
        },
        region: String::new(),
        started: false,
    };
    in_virtual_time(async || {
        for other in others() {
            let (provider, asked) = containers(pod(Some(&other)));
            assert_eq!(provider.get(&recorded("pod-uid")).await.unwrap(), None);
            let deleted = provider.delete(&recorded("pod-uid")).await.unwrap();
            assert_eq!(deleted, Deletion::Foreign);
            assert_eq!(*asked.lock(), Vec::<String>::new());
        }
        // The name belongs to a Pod of a user.
        let (provider, asked) = containers(pod(None));
        assert_eq!(provider.get(&recorded("earlier")).await.unwrap(), None);
        let deleted = provider.delete(&recorded("earlier")).await.unwrap();
        assert_eq!(deleted, Deletion::Foreign);
        // Or our Pod has lost its labels: it exists, and does not show whose it is.
        for error in [
            provider.get(&recorded("pod-uid")).await.unwrap_err(),
            provider.delete(&recorded("pod-uid")).await.unwrap_err(),
        ] {
            assert_eq!(error.kind, ErrorKind::Transient);
            assert!(error.message.contains("Restore its tags"), "{error}");
        }
        assert_eq!(*asked.lock(), Vec::<String>::new());
        // Our own Pod is deleted.
        let (provider, asked) = containers(pod(Some(&recorded("pod-uid").mark)));
        provider.delete(&recorded("pod-uid")).await.unwrap();
        assert_eq!(asked.lock().len(), 1);
    });
}
