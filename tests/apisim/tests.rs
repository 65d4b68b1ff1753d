use std::{sync::Arc, time::Duration};

use futures::{FutureExt as _, future::BoxFuture};
use jiff::Timestamp;
use kube::{
    Api,
    api::{ListParams, PostParams},
};
use serde_json::{Value, json};
use skyward_api::Pool;

use crate::{ApiServer, Call, Fate, Network, Reliable, Verb, exchanges};

fn server() -> Arc<ApiServer> {
    ApiServer::new(|| Timestamp::from_second(1_800_000_000).unwrap())
}

fn pool(name: &str) -> Value {
    json!({ "metadata": { "name": name }, "spec": { "provider": "local" } })
}

#[tokio::test(start_paused = true)]
async fn every_exchange_has_the_answers_of_a_real_api_server() {
    let recorded = exchanges::recorded().unwrap();
    let mut differences = Vec::new();
    for exchange in exchanges::all().unwrap() {
        let server = server();
        server
            .put("namespaces", "", json!({ "metadata": { "name": "play" } }))
            .unwrap();
        let client = server.client(Arc::new(Reliable));
        let found = exchange.play(&client, "play").await.unwrap();
        let Some(wanted) = recorded.get(&exchange.name) else {
            differences.push(format!("{:?} is not recorded", exchange.name));
            continue;
        };
        for difference in exchanges::differences(wanted, &found) {
            differences.push(format!("{}, {difference}", exchange.name));
        }
    }
    assert!(
        differences.is_empty(),
        "{} answers differ:\n{}",
        differences.len(),
        differences.join("\n")
    );
}

/// Loses the answers to writes, and the requests of lists.
struct Lossy;

impl Network for Lossy {
    fn before(&self, call: &Call) -> BoxFuture<'static, Fate> {
        let fate = if call.verb == Verb::List {
            Fate::Lost
        } else {
            Fate::Arrives
        };
        std::future::ready(fate).boxed()
    }

    fn after(&self, call: &Call, code: u16) -> BoxFuture<'static, Fate> {
        assert!(code == 201 || code == 409, "{code}");
        let fate = if call.reads() { Fate::Arrives } else { Fate::Lost };
        std::future::ready(fate).boxed()
    }

    fn event(&self, _: &Call) -> BoxFuture<'static, ()> {
        std::future::pending().boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_of_a_write_that_was_made() {
    let server = server();
    let pools: Api<Pool> = Api::namespaced(server.client(Arc::new(Lossy)), "default");
    let wanted: Pool = serde_json::from_value(json!({
        "apiVersion": "skyward.dev/v1alpha1", "kind": "Pool", "metadata": { "name": "p" }, "spec": { "provider": "a" },
    }))
    .unwrap();
    assert!(pools.create(&PostParams::default(), &wanted).await.is_err());
    assert!(server.get("pools", "default", "p").is_some());
    assert!(pools.list(&ListParams::default()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn an_event_that_the_network_holds_back_is_not_seen_although_it_happened() {
    use futures::StreamExt as _;
    use kube::api::{WatchEvent, WatchParams};

    let server = server();
    server.put("pools", "default", pool("p")).unwrap();
    let watch = async |network: Arc<dyn Network>| {
        let pools: Api<Pool> = Api::namespaced(server.client(network), "default");
        let params = WatchParams::default().timeout(3);
        let events = pools.watch(&params, "0").await.unwrap();
        let events: Vec<_> = events.collect().await;
        events
            .into_iter()
            .filter(|event| matches!(event, Ok(WatchEvent::Added(_))))
            .count()
    };
    assert_eq!(watch(Arc::new(Lossy)).await, 0);
    assert_eq!(watch(Arc::new(Reliable)).await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_restored_server_has_its_former_versions_and_ends_every_watch() {
    use futures::StreamExt as _;

    let server = server();
    let backup = server.backup();
    let version = server.version();
    server.put("pools", "default", pool("p")).unwrap();
    let lost = server.get("pools", "default", "p").unwrap();
    let call = Call::read(
        &http::Method::GET,
        &"/apis/skyward.dev/v1alpha1/pools?watch=true&resourceVersion=0"
            .parse()
            .unwrap(),
        &http::HeaderMap::new(),
    );
    let mut events = Box::pin(server.watch(call.unwrap(), Arc::new(Reliable)));
    assert!(events.next().await.is_some());
    server.restore(&backup);
    assert_eq!((server.version(), server.all("pools").len()), (version, 0));
    assert!(
        tokio::time::timeout(Duration::from_secs(1), events.next())
            .await
            .unwrap()
            .is_none()
    );
    server.put("pools", "default", pool("p")).unwrap();
    let again = server.get("pools", "default", "p").unwrap();
    assert_eq!(
        again["metadata"]["resourceVersion"],
        lost["metadata"]["resourceVersion"]
    );
    assert_ne!(again["metadata"]["uid"], lost["metadata"]["uid"]);
}

#[test]
fn what_the_server_forgot_is_said_to_be_too_old() {
    let server = server();
    for name in ["a", "b", "c"] {
        server.put("pools", "default", pool(name)).unwrap();
    }
    let list = |query: &str| {
        let uri = format!("/apis/skyward.dev/v1alpha1/pools?{query}")
            .parse()
            .unwrap();
        let call = Call::read(&http::Method::GET, &uri, &http::HeaderMap::new()).unwrap();
        server.answer(&call, Value::Null)
    };
    let page = list("limit=1").unwrap()["metadata"]["continue"]
        .as_str()
        .unwrap()
        .to_owned();
    server.put("pools", "default", pool("d")).unwrap();
    assert!(list(&format!("limit=1&continue={page}")).is_ok());
    server.compact();
    assert_eq!(list(&format!("limit=1&continue={page}")).unwrap_err().code, 410);
}
