//! A panic planted in each controller, beside an object that has none: at a write to the API
//! server, or in a cloud's client. Time is virtual.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::atomic::{AtomicU32, Ordering},
};

use async_trait::async_trait;
use axum::{
    body::{Body as Answer, to_bytes},
    http::{Method, Request, Response, StatusCode},
};
use futures::stream;
use kube::{
    Client, Resource,
    client::Body,
    runtime::{
        reflector::{Store as Cache, store},
        watcher::Event,
    },
};
use rstest::rstest;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use skyward_core::{
    Accepted, Capabilities, Deletion, MachineRef, Offer, Order, Provider, ProviderError, ProviderMachine,
    Scope,
};
use skyward_planner::base::key::Key;
use skyward_remote::{AgentBinaries, Sessions};
use tokio::{sync::mpsc, task::JoinHandle, time::timeout};
use tower::service_fn;

use super::*;
use crate::{
    accounts::clients::{Account, Accounts, Revision},
    base::{
        broadcast::{Broadcast, Change},
        queue::WorkQueue,
    },
    caches::Caches,
    context::Context,
    health::Health,
    hints::pool_loads::PoolLoads,
    leadership::{lease, step_down::StepDown},
    references::References,
    restore::seal::Seal,
    uploads::Uploads,
};

const BAD: &str = "bad";
const GOOD: &str = "good";
const ROOT: &str = "/apis/skyward.dev/v1alpha1";

/// How many of the next calls panic.
type Planted = Arc<AtomicU32>;

fn trip(planted: &Planted) {
    let one_less = |left: u32| left.checked_sub(1);
    let tripped = planted.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less);
    assert!(tripped.is_err(), "planted by the test");
}

fn lock<T>(mutex: &Mutex<T>) -> parking_lot::MutexGuard<'_, T> {
    mutex.lock()
}

/// An API server that stores objects, and panics at writes to `bad`.
#[derive(Clone, Default)]
struct Server {
    /// By path.
    objects: Arc<Mutex<BTreeMap<String, Value>>>,
    /// Paths of writes.
    writes: Arc<Mutex<Vec<String>>>,
    /// How often Tasks were listed.
    lists: Arc<AtomicU32>,
    planted: Planted,
}

impl Server {
    fn put(&self, path: String, object: Value) {
        lock(&self.objects).insert(path, object);
    }

    fn writes_to(&self, name: &str) -> usize {
        let end = format!("/{name}");
        lock(&self.writes)
            .iter()
            .filter(|path| path.ends_with(&end))
            .count()
    }

    /// Notes of the Events of internal errors with an object of this name.
    fn told(&self, name: &str) -> Vec<String> {
        let is_meant = |event: &&Value| {
            event["reason"] == reason::INTERNAL_ERROR && event["involvedObject"]["name"] == name
        };
        let objects = lock(&self.objects);
        let events = objects.values().filter(is_meant);
        events.map(|event| event["message"].to_string()).collect()
    }

    fn client(&self) -> Client {
        // A second call finds it installed.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let server = self.clone();
        let service = service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { Ok::<_, Infallible>(server.answer(request).await) }
        });
        Client::new(service, "default")
    }

    async fn answer(&self, request: Request<Body>) -> Response<Answer> {
        let (parts, body) = request.into_parts();
        let body = to_bytes(Answer::new(body), usize::MAX).await.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let path = parts.uri.path().trim_end_matches("/status").to_owned();
        if parts.method == Method::GET {
            return self.read(&path, parts.uri.query().unwrap_or_default());
        }
        lock(&self.writes).push(path.clone());
        if path.ends_with(&format!("/{BAD}")) {
            trip(&self.planted);
        }
        let mut objects = lock(&self.objects);
        let mut object = objects.get(&path).cloned().unwrap_or_default();
        if let Some(operations) = body.as_array() {
            for operation in operations.iter().filter(|operation| operation["op"] != "test") {
                let at = operation["path"].as_str().unwrap().trim_start_matches('/');
                match at.split_once('/') {
                    Some((outer, inner)) => object[outer][inner] = operation["value"].clone(),
                    None => object[at] = operation["value"].clone(),
                }
            }
        } else if parts.method == Method::PATCH {
            for (name, value) in body["metadata"].as_object().into_iter().flatten() {
                object["metadata"][name] = value.clone();
            }
        } else {
            object = body.clone();
        }
        let path = match body["metadata"]["name"].as_str() {
            Some(name) if parts.method == Method::POST => format!("{path}/{name}"),
            _ => path,
        };
        objects.insert(path, object.clone());
        say(StatusCode::OK, &object)
    }

    fn read(&self, path: &str, query: &str) -> Response<Answer> {
        if query.contains("watch=true") {
            let silence = stream::pending::<Result<Vec<u8>, Infallible>>();
            return Response::new(Answer::from_stream(silence));
        }
        let objects = lock(&self.objects);
        if let Some(object) = objects.get(path) {
            return say(StatusCode::OK, object);
        }
        let kind = path.rsplit('/').next().unwrap_or_default();
        if kind == "tasks" {
            self.lists.fetch_add(1, Ordering::SeqCst);
        }
        let items: Vec<&Value> = objects
            .iter()
            .filter(|(path, _)| path.rsplit('/').nth(1) == Some(kind))
            .map(|(_, object)| object)
            .collect();
        if items.is_empty() && !["namespaces", "secrets"].contains(&kind) {
            let missing = json!({ "kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": "" });
            return say(StatusCode::NOT_FOUND, &missing);
        }
        let meta = json!({ "resourceVersion": "1" });
        say(
            StatusCode::OK,
            &json!({ "kind": "List", "apiVersion": "v1", "metadata": meta, "items": items }),
        )
    }
}

fn say(status: StatusCode, body: &Value) -> Response<Answer> {
    let answer = Response::builder().status(status);
    answer.body(Answer::from(body.to_string())).unwrap()
}

/// The client of an account; that of the Provider `bad` panics when its machines are listed.
struct FakeAccount {
    is_bad: bool,
    planted: Planted,
    lists: Arc<AtomicU32>,
    capabilities: Capabilities,
}

#[async_trait]
impl Provider for FakeAccount {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn account(&self) -> Result<String, ProviderError> {
        Ok("account".into())
    }

    async fn offers(&self) -> Result<Vec<Offer>, ProviderError> {
        Ok(Vec::new())
    }

    async fn create(&self, _: &Order) -> Result<Accepted, ProviderError> {
        Ok(Accepted { id: "i".into() })
    }

    async fn get(&self, _: &MachineRef) -> Result<Option<ProviderMachine>, ProviderError> {
        Ok(None)
    }

    async fn list(&self, _: &Scope) -> Result<Vec<ProviderMachine>, ProviderError> {
        if self.is_bad {
            trip(&self.planted);
        }
        self.lists.fetch_add(1, Ordering::SeqCst);
        Ok(Vec::new())
    }

    async fn delete(&self, _: &MachineRef) -> Result<Deletion, ProviderError> {
        Ok(Deletion::Gone)
    }
}

/// Two objects of a kind, `good` and `bad`.
fn both(kind: &str, spec: impl Fn(&str) -> Value) -> [Value; 2] {
    [GOOD, BAD].map(|name| {
        let mut object = json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": kind, "spec": spec(name),
            "metadata": {
                "name": name, "namespace": "team", "uid": format!("{kind}-{name}"), "generation": 1,
                "resourceVersion": "1", "creationTimestamp": "2026-11-20T10:00:00Z"
            }
        });
        if kind == "Provider" {
            object["metadata"].as_object_mut().unwrap().remove("namespace");
        }
        object
    })
}

/// A cache of these objects.
fn cache<K>(objects: &[Value]) -> Cache<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + 'static,
{
    let (cache, mut writer) = store::<K>();
    writer.apply_watcher_event(&Event::Init);
    for object in objects {
        let object = serde_json::from_value(object.clone()).unwrap();
        writer.apply_watcher_event(&Event::InitApply(object));
    }
    writer.apply_watcher_event(&Event::InitDone);
    // A task that waits for a cache notices when its writer is gone.
    std::mem::forget(writer);
    cache
}

/// An installation with objects named `good` and `bad`.
struct Installation {
    server: Server,
    context: Context,
    /// How often machines of `good` and `bad` were listed.
    lists: [Arc<AtomicU32>; 2],
    /// How many of the next lists of the account `bad` panic.
    planted_lists: Planted,
    _folder: tempfile::TempDir,
}

impl Installation {
    /// An installation in which so many of the next writes to objects named `bad` panic.
    fn with(panics: u32) -> Self {
        let server = Server::default();
        server.planted.store(panics, Ordering::SeqCst);
        let pools = both("Pool", |_| json!({ "provider": "none" }));
        let machines = both("Machine", |name| {
            json!({
                "pool": name, "poolUid": format!("Pool-{name}"), "slot": 0, "attempt": 1, "provider": name,
                "offer": "o", "instanceType": "x", "market": "Spot", "hourlyPrice": "1", "token": "t",
                "templateHash": "h"
            })
        });
        let providers = both(
            "Provider",
            |_| json!({ "container": {}, "allowedNamespaces": {} }),
        );
        let tasks = both(
            "Task",
            |name| json!({ "pool": name, "command": ["true"], "suspend": true }),
        );
        for (at, name) in [GOOD, BAD].into_iter().enumerate() {
            let of_team = [("pools", &pools), ("machines", &machines), ("tasks", &tasks)];
            for (kind, objects) in of_team {
                server.put(
                    format!("{ROOT}/namespaces/team/{kind}/{name}"),
                    objects[at].clone(),
                );
            }
            server.put(format!("{ROOT}/providers/{name}"), providers[at].clone());
        }
        let lists: [Arc<AtomicU32>; 2] = Default::default();
        let planted_lists = Planted::default();
        let (counts, planted) = (lists.clone(), planted_lists.clone());
        let make = move |name: &str| -> Arc<dyn Provider> {
            Arc::new(FakeAccount {
                is_bad: name == BAD,
                planted: planted.clone(),
                lists: counts[usize::from(name == BAD)].clone(),
                capabilities: Capabilities::of("container"),
            })
        };
        let (client, metrics) = (server.client(), Arc::<Metrics>::default());
        // The writer ends with the runtime.
        let (events, _writing) = Events::start(client.clone(), "test".into(), metrics.clone());
        let (shutdown, folder) = (CancellationToken::new(), tempfile::tempdir().unwrap());
        let providers = cache::<skyward_api::Provider>(&providers);
        let accounts = Arc::new(Accounts::default());
        for provider in providers.state() {
            let name = provider.metadata.name.clone().unwrap_or_default();
            let account = Account {
                provider: make(&name),
                ungated: make(&name),
                revision: Revision::of(&provider, ""),
                turns: Arc::new(tokio::sync::Semaphore::new(1)),
            };
            accounts.set(&name, account);
        }
        let (changed_tx, _) = mpsc::channel(1);
        let store = Arc::new(skyward_store::Store::local(folder.path()).unwrap().unmeasured());
        let references = Arc::new(References::new(client.clone(), store.clone()));
        let uploads = Arc::new(Uploads::new(store.clone(), Arc::new(|_| None), metrics.clone()));
        let context = Context {
            client,
            config: Arc::new(lease::tests::config("skyward-system")),
            cluster: "c".into(),
            unnamed_cluster: "c".into(),
            epoch: 1,
            seal: Seal::new(&[0; 32], "c"),
            holds: Arc::default(),
            sessions: Sessions::new(AgentBinaries::default(), None, changed_tx),
            store,
            loads: Arc::new(PoolLoads::default()),
            live: Arc::default(),
            awaited: Arc::default(),
            providers: accounts,
            factory: Arc::new(move |object, _| Ok(make(object.metadata.name.as_deref().unwrap_or_default()))),
            capabilities: |_| None,
            credential_keys: |_| &[],
            panics: Arc::new(Panics::new(metrics.clone(), events.clone(), shutdown.clone())),
            events,
            metrics,
            caches: Caches {
                pools: cache(&pools),
                machines: cache(&machines),
                providers,
                offers: cache(&[]),
                cron_tasks: cache(&[]),
                namespaces: cache(&[]),
                unreadable: Arc::default(),
            },
            feed: Broadcast::default(),
            fleet: Arc::default(),
            machine_wakeups: WorkQueue::new(),
            cron_wakeups: WorkQueue::new(),
            session_wakeups: WorkQueue::new(),
            step_down: StepDown::default(),
            references,
            uploads,
            looked: Arc::default(),
            resolved: Arc::default(),
            offers: Arc::default(),
            unavailable: Arc::default(),
            architectures: Arc::from([]),
            health: Arc::new(Health::default()),
            shutdown,
        };
        Self {
            server,
            context,
            lists,
            planted_lists,
            _folder: folder,
        }
    }

    fn start(&self, controller: &str) -> JoinHandle<()> {
        let context = self.context.clone();
        match controller {
            "provider" => tokio::spawn(crate::provider::run(context)),
            "pool" => tokio::spawn(crate::pool::run(context)),
            "machine" => tokio::spawn(crate::machine::run(context)),
            _ => tokio::spawn(crate::task::run(context)),
        }
    }

    fn counted(&self, controller: &str) -> u32 {
        let line = format!("skyward_panics_total{{controller=\"{controller}\"}} ");
        let text = self.context.metrics.render();
        let count = text.lines().find_map(|text| text.strip_prefix(&line));
        count.map_or(0, |count| count.parse().unwrap())
    }
}

/// Waits for a condition, in virtual time.
async fn until(what: &str, is_so: impl Fn() -> bool) {
    let wait = async {
        while !is_so() {
            sleep(Duration::from_millis(50)).await;
        }
    };
    let waited = timeout(3 * HOUR, wait).await;
    assert!(waited.is_ok(), "never: {what}");
}

#[rstest]
#[case::a_provider("provider", "provider")]
#[case::a_pool("pool", "pool")]
#[case::a_machine("machine", "machine")]
#[case::the_dispatcher_of_a_pool("task", "dispatcher")]
#[tokio::test(start_paused = true)]
async fn one_that_panics_is_taken_up_again_and_the_others_go_on(#[case] name: &str, #[case] counted: &str) {
    let there = Installation::with(1);
    let controller = there.start(name);
    until("it panics", || there.counted(counted) == 1).await;
    let began = Instant::now();
    until("the other is written", || there.server.writes_to(GOOD) > 0).await;
    assert!(
        began.elapsed() < PAUSES[0],
        "it does not wait for the one that panicked"
    );
    assert_eq!(there.server.writes_to(BAD), 1);
    let listed = there.server.lists.load(Ordering::SeqCst);
    until("it is written", || there.server.writes_to(BAD) > 1).await;
    let took = began.elapsed();
    assert!(took + Duration::from_secs(1) >= PAUSES[0], "{took:?}");
    until("people are told", || !there.server.told(BAD).is_empty()).await;
    let note = there.server.told(BAD).remove(0);
    assert!(
        note.contains("taken up again in 10 s") && !note.contains("planted"),
        "{note}"
    );
    assert_eq!((there.counted(counted), controller.is_finished()), (1, false));
    assert_eq!(there.server.told(GOOD), [""; 0]);
    if counted == "dispatcher" {
        let lists = there.server.lists.load(Ordering::SeqCst);
        assert!(lists > listed, "its Tasks are taken up from the record");
    }
    controller.abort();
}

#[rstest]
#[case::a_provider("provider", "provider")]
#[case::a_pool("pool", "pool")]
#[case::a_machine("machine", "machine")]
#[case::the_dispatcher_of_a_pool("task", "dispatcher")]
#[tokio::test(start_paused = true)]
async fn one_that_panics_three_times_in_an_hour_is_left_alone_for_an_hour(
    #[case] name: &str,
    #[case] counted: &str,
) {
    let there = Installation::with(3);
    let controller = there.start(name);
    until("it panics for the third time", || there.counted(counted) == 3).await;
    let began = Instant::now();
    let (wakeups, feed) = (there.context.machine_wakeups.clone(), there.context.feed.clone());
    let waking = tokio::spawn(async move {
        // Regardless of other changes to it.
        loop {
            sleep(Duration::from_mins(1)).await;
            let key = Key::new("team", BAD);
            wakeups.enqueue(key.clone());
            feed.publish(&Change::Pool(key));
            feed.publish(&Change::Provider(BAD.into()));
        }
    });
    until("it is written", || there.server.writes_to(BAD) > 3).await;
    let took = began.elapsed();
    assert!(
        took + Duration::from_secs(1) >= HOUR && took < HOUR + Duration::from_mins(2),
        "{took:?}"
    );
    let is_said = || {
        let told = there.server.told(BAD);
        told.iter().any(|note| note.contains("left alone for an hour"))
    };
    until("people are told", is_said).await;
    assert!(!controller.is_finished());
    waking.abort();
    controller.abort();
}

#[tokio::test(start_paused = true)]
async fn an_account_whose_sweep_panics_is_swept_again_and_the_others_are_all_the_time() {
    let there = Installation::with(0);
    there.planted_lists.store(1, Ordering::SeqCst);
    let sweeps = tokio::spawn(crate::accounts::sweeps::machine_sweep::run(there.context.clone()));
    let swept = |at: usize| there.lists[at].load(Ordering::SeqCst);
    until("it panics", || there.counted("sweep") == 1).await;
    until("the other is swept", || swept(0) >= 1).await;
    assert_eq!(swept(1), 0);
    until("it is swept", || swept(1) >= 1).await;
    assert_eq!((there.counted("sweep"), sweeps.is_finished()), (1, false));
    sweeps.abort();
}

#[tokio::test(start_paused = true)]
async fn what_goes_on_for_ever_begins_anew_sooner_or_later_and_ends_when_it_ends() {
    let there = Installation::with(0);
    let (begun, began) = (AtomicU32::new(0), Instant::now());
    let panics = &there.context.panics;
    panics
        .keep("watch", || async {
            assert!(begun.fetch_add(1, Ordering::SeqCst) >= 8, "planted by the test");
        })
        .await;
    assert_eq!((begun.into_inner(), there.counted("watch")), (9, 8));
    assert_eq!(began.elapsed().as_secs(), 1 + 2 + 4 + 8 + 16 + 32 + 60 + 60);
}

#[tokio::test(start_paused = true)]
async fn panics_of_objects_that_are_long_gone_take_no_memory() {
    let there = Installation::with(0);
    let panics = &there.context.panics;
    for number in 0..100 {
        let object = ObjectReference {
            uid: Some(number.to_string()),
            ..ObjectReference::default()
        };
        let turn = async { assert!(number < 0, "planted by the test") };
        panics.turn("pool", &object, turn).await.unwrap_err();
        sleep(HOUR / 2).await;
    }
    let counted = panics.counted.lock().len();
    assert!(counted <= 2, "{counted}");
}
