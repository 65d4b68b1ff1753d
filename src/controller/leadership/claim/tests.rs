//! The whole election against an API server that has Leases and the one definition; time is
//! virtual.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc};

use axum::{
    body::to_bytes,
    http::{Method, Request, Response, StatusCode},
};
use kube::client::Body;
use parking_lot::{Mutex, MutexGuard};
use rstest::rstest;
use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::advance};
use tokio_util::sync::CancellationToken;
use tower::service_fn;

use super::*;
use crate::{
    health::Health,
    leadership::{
        fence::Fence,
        lease::{self, Held},
    },
};

/// What the API server stores.
#[derive(Default)]
struct Stored {
    /// Grows with each write.
    version: u64,
    /// By namespace.
    leases: BTreeMap<String, Value>,
    definition: Option<Value>,
    /// Writes of the definition.
    claims: u32,
    /// Paths of list requests, of which there must be none.
    lists: Vec<String>,
    /// Writes and reads of these fail.
    down: bool,
}

#[derive(Clone, Default)]
struct Server(Arc<Mutex<Stored>>);

impl Server {
    /// A server with the definition, unclaimed.
    fn new() -> Self {
        let server = Self::default();
        server.define();
        server
    }

    fn stored(&self) -> MutexGuard<'_, Stored> {
        self.0.lock()
    }

    /// Installs the definition, or replaces it, as `kubectl replace` does.
    fn define(&self) {
        let mut stored = self.stored();
        stored.version += 1;
        let version = stored.version.to_string();
        stored.definition = Some(json!({
            "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
            "metadata": { "name": DEFINITION, "uid": "d", "resourceVersion": version, "annotations": {} }
        }));
    }

    /// As if it had been installed last year.
    fn define_long_ago(&self) {
        let mut stored = self.stored();
        let definition = stored.definition.as_mut().unwrap();
        definition["metadata"]["creationTimestamp"] = "2025-01-01T00:00:00Z".into();
    }

    /// Writes an annotation by hand.
    fn annotate(&self, text: &str) {
        let mut stored = self.stored();
        stored.version += 1;
        let version = stored.version.to_string();
        let definition = stored.definition.as_mut().unwrap();
        definition["metadata"]["annotations"][ANNOTATION] = text.into();
        definition["metadata"]["resourceVersion"] = version.into();
    }

    fn claim(&self) -> Option<Claim> {
        let stored = self.stored();
        let text = stored.definition.as_ref()?["metadata"]["annotations"][ANNOTATION].as_str()?;
        Claim::read(text)
    }

    /// The namespace that claims the cluster, and the holder of its Lease.
    fn leader(&self) -> Option<(String, String)> {
        let claim = self.claim()?;
        let stored = self.stored();
        let lease = stored.leases.get(&claim.namespace)?;
        let holder = lease["spec"]["holderIdentity"].as_str()?.to_owned();
        (lease["metadata"]["uid"] == claim.lease_uid).then_some((claim.namespace, holder))
    }

    /// Makes a Lease by hand, as a user who may write in a namespace can.
    fn lease(&self, namespace: &str, spec: Value) {
        let mut stored = self.stored();
        stored.version += 1;
        let version = stored.version.to_string();
        let uid = format!("uid-{version}");
        stored.leases.insert(
            namespace.to_owned(),
            json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": { "name": LEASE, "namespace": namespace, "uid": uid, "resourceVersion": version },
                "spec": spec,
            }),
        );
    }

    fn client(&self) -> Client {
        let server = self.clone();
        let service = service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = to_bytes(axum::body::Body::new(body), usize::MAX).await.unwrap();
                let body = serde_json::from_slice(&body).unwrap_or_default();
                let (code, answer) = server.answer(&parts.method, parts.uri.path(), body);
                let answer = Response::builder()
                    .status(code)
                    .body(Body::from(answer.to_string().into_bytes()));
                Ok::<_, Infallible>(answer.unwrap())
            }
        });
        Client::new(service, "default")
    }

    fn answer(&self, method: &Method, path: &str, body: Value) -> (StatusCode, Value) {
        let status = |code: StatusCode| {
            let reason = if code == StatusCode::NOT_FOUND {
                "NotFound"
            } else {
                "Conflict"
            };
            (
                code,
                json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code.as_u16(), "reason": reason, "message": reason }),
            )
        };
        let mut stored = self.stored();
        if stored.down {
            return status(StatusCode::SERVICE_UNAVAILABLE);
        }
        let version = stored.version + 1;
        let parts: Vec<&str> = path.trim_start_matches("/apis/").split('/').collect();
        let is_lease = match parts[..] {
            [
                "apiextensions.k8s.io",
                "v1",
                "customresourcedefinitions",
                DEFINITION,
            ] => false,
            ["coordination.k8s.io", "v1", "namespaces", _, "leases", LEASE] => true,
            ["coordination.k8s.io", "v1", "namespaces", _, "leases"] if *method == Method::POST => true,
            _ => {
                stored.lists.push(path.to_owned());
                return status(StatusCode::NOT_FOUND);
            }
        };
        let found = if is_lease {
            stored.leases.get(parts[3])
        } else {
            stored.definition.as_ref()
        };
        let mut object = match (found.cloned(), method.as_str()) {
            (Some(found), "GET") => return (StatusCode::OK, found),
            (None, "POST") => {
                let mut object = body.clone();
                object["metadata"]["uid"] = format!("uid-{version}").into();
                object
            }
            (Some(_), "POST") => return status(StatusCode::CONFLICT),
            (Some(found), _)
                if found["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"] =>
            {
                return status(StatusCode::CONFLICT);
            }
            (Some(found), "PATCH") => {
                stored.claims += 1;
                let mut object = found;
                object["metadata"]["annotations"] = body["metadata"]["annotations"].clone();
                object
            }
            (Some(_), "PUT") => body.clone(),
            _ => return status(StatusCode::NOT_FOUND),
        };
        stored.version = version;
        object["metadata"]["resourceVersion"] = version.to_string().into();
        if is_lease {
            stored.leases.insert(parts[3].to_owned(), object.clone());
        } else {
            stored.definition = Some(object.clone());
        }
        (StatusCode::OK, object)
    }
}

/// A process that wants to lead.
struct Process {
    election: JoinHandle<Option<Held>>,
    health: Arc<Health>,
    fence: Fence,
}

impl Process {
    fn start(server: &Server, namespace: &str, identity: &str) -> Self {
        let mut config = lease::tests::config(namespace);
        config.identity = identity.to_owned();
        Self::with(server, config)
    }

    fn with(server: &Server, config: Config) -> Self {
        // A second call finds it installed.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let (health, fence) = (
            Arc::new(Health::default()),
            Fence::with_clock(|| Instant::now().into_std()),
        );
        let (client, config) = (server.client(), Arc::new(config));
        let (of_health, of_fence) = (health.clone(), fence.clone());
        let election = tokio::spawn(async move {
            lease::acquire(client, &config, &of_health, &of_fence, &CancellationToken::new()).await
        });
        Self {
            election,
            health,
            fence,
        }
    }

    fn leads(&self) -> bool {
        self.election.is_finished() && self.fence.is_open()
    }

    async fn held(self) -> Held {
        self.election.await.unwrap().unwrap()
    }

    fn why(&self) -> String {
        self.health.not_ready().unwrap_or_default()
    }
}

/// Lets so many seconds pass, and everybody do what is due.
async fn pass(seconds: u64) {
    for _ in 0..seconds * 4 {
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
        advance(Duration::from_millis(250)).await;
    }
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_a_namespace_editor_made_keeps_nobody_from_leading() {
    let server = Server::new();
    server.lease(
        "team",
        json!({ "holderIdentity": "x", "leaseDurationSeconds": i32::MAX, "leaseTransitions": 7 }),
    );
    let process = Process::start(&server, "ours", "pod");
    pass(1).await;
    assert!(process.leads(), "{}", process.why());
    assert_eq!(server.leader(), Some(("ours".to_owned(), "pod".to_owned())));
    assert_eq!(
        server.stored().lists,
        [""; 0],
        "Leases of other namespaces are of no interest"
    );
}

#[tokio::test(start_paused = true)]
async fn of_two_installations_that_begin_at_the_same_time_one_leads_and_the_other_says_who() {
    let server = Server::new();
    let (one, two) = (
        Process::start(&server, "one", "a"),
        Process::start(&server, "two", "b"),
    );
    pass(120).await;
    let (leads, stands_by) = if one.leads() { (one, two) } else { (two, one) };
    assert!(leads.leads() && !stands_by.leads());
    let claim = server.claim().unwrap();
    let why = stands_by.why();
    let who = format!(
        "another installation leads this cluster, in the namespace \"{}\"",
        claim.namespace
    );
    assert!(
        why.starts_with(&who) && why.contains("kubectl annotate crd"),
        "{why}"
    );
    assert_eq!(server.stored().claims, 1, "nothing is written at rest");
}

#[tokio::test(start_paused = true)]
async fn another_installation_takes_over_after_four_of_its_own_leases_and_never_before() {
    let server = Server::new();
    let first = Process::start(&server, "one", "a");
    pass(1).await;
    let mut config = lease::tests::config("two");
    config.lease_duration = Duration::from_secs(30);
    let second = Process::with(&server, config);
    pass(90).await;
    assert!(!second.leads());
    // The Lease says that it lasts for ever; its process is dead.
    let held = first.held().await;
    held.die();
    server.stored().leases.get_mut("one").unwrap()["spec"]["leaseDurationSeconds"] = i32::MAX.into();
    pass(110).await;
    assert!(!second.leads(), "less than four times 30 s");
    pass(20).await;
    assert!(second.leads(), "{}", second.why());
    assert_eq!(server.leader(), Some(("two".to_owned(), "me".to_owned())));
}

#[tokio::test(start_paused = true)]
async fn a_restart_or_an_upgrade_in_the_same_namespace_waits_for_nobody() {
    // As an operator without claims left it: a released Lease, and no claim.
    let server = Server::new();
    server.lease(
        "ours",
        json!({ "holderIdentity": null, "leaseDurationSeconds": 1, "leaseTransitions": 4 }),
    );
    let first = Process::start(&server, "ours", "a");
    let stranger = Process::start(&server, "theirs", "s");
    pass(1).await;
    assert!(first.leads() ^ stranger.leads());
    let (leader, other) = if first.leads() {
        (first, stranger)
    } else {
        (stranger, first)
    };
    let namespace = server.claim().unwrap().namespace;
    let held = leader.held().await;
    held.release().await;
    let next = Process::start(&server, &namespace, "next");
    pass(1).await;
    assert!(next.leads(), "{}", next.why());
    assert!(!other.leads(), "the other installation let it come first");
}

#[tokio::test(start_paused = true)]
async fn an_operator_of_before_that_leads_in_the_same_namespace_is_waited_for() {
    let server = Server::new();
    server.lease(
        "ours",
        json!({ "holderIdentity": "old", "leaseDurationSeconds": 15, "leaseTransitions": 4 }),
    );
    let new = Process::start(&server, "ours", "new");
    pass(14).await;
    assert!(!new.leads());
    assert_eq!(server.claim(), None, "nothing is claimed without the Lease");
    pass(2).await;
    assert!(new.leads());
    assert_eq!(server.claim().unwrap().epoch, 5);
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_claim_got_lost_writes_it_again_and_leads_on() {
    let server = Server::new();
    let process = Process::start(&server, "ours", "pod");
    pass(1).await;
    let claim = server.claim();
    for lose in [Server::define, |server: &Server| server.annotate("no claim")] {
        lose(&server);
        assert_eq!(server.claim(), None);
        pass(6).await;
        assert_eq!(server.claim(), claim);
    }
    server.stored().definition = None;
    pass(30).await;
    assert!(process.leads(), "nobody can claim what is not there");
    server.define();
    pass(6).await;
    assert_eq!(server.claim(), claim);
    assert_eq!(server.stored().claims, 4);
    assert!(process.leads());
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_got_lost_is_its_leaders_whoever_looks_first() {
    let server = Server::new();
    let leader = Process::start(&server, "ours", "pod");
    pass(1).await;
    let claim = server.claim();
    // This installation looks more often than the leader.
    let mut config = lease::tests::config("theirs");
    config.lease_duration = Duration::from_secs(3);
    let stands_by = Process::with(&server, config);
    pass(10).await;
    for _ in 0..5 {
        server.define();
        pass(12).await;
        assert_eq!(server.claim(), claim);
        assert!(leader.leads() && !stands_by.leads());
    }
    // A process that begins while the claim is missing waits for it, too.
    server.define();
    server.define_long_ago();
    let begins = Process::start(&server, "begins", "pod");
    pass(12).await;
    assert_eq!(server.claim(), claim);
    assert!(leader.leads() && !begins.leads());
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_nobody_writes_again_is_free_soon() {
    let server = Server::new();
    server.define_long_ago();
    let process = Process::start(&server, "ours", "pod");
    pass(10).await;
    assert!(!process.leads());
    assert!(process.why().contains("is missing"), "{}", process.why());
    pass(10).await;
    assert!(process.leads(), "{}", process.why());
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_finds_the_claim_of_another_installation_ends_and_changes_nothing_more() {
    let server = Server::new();
    let process = Process::start(&server, "ours", "pod");
    pass(1).await;
    let fence = process.fence.clone();
    let held = process.held().await;
    let theirs = Claim {
        namespace: "theirs".into(),
        lease_uid: "u".into(),
        epoch: 1,
    };
    server.annotate(&theirs.text());
    pass(6).await;
    assert!(held.lost.is_cancelled() && !fence.is_open());
    assert_eq!(server.claim(), Some(theirs), "it is left as it is");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_cannot_read_the_claim_leads_on_while_its_lease_is_renewed() {
    let server = Server::new();
    let process = Process::start(&server, "ours", "pod");
    pass(1).await;
    server.stored().down = true;
    pass(6).await;
    server.stored().down = false;
    pass(60).await;
    assert!(process.leads());
    assert_eq!(server.stored().claims, 1);
}

#[rstest]
#[case::a_claim_whose_lease_is_gone(r#"{"namespace":"gone","leaseUid":"u","epoch":1}"#.to_owned())]
#[case::garbage("{".to_owned())]
#[case::too_long(format!(r#"{{"namespace":"theirs","leaseUid":"{}","epoch":1}}"#, "u".repeat(200_000)))]
#[case::a_path(r#"{"namespace":"../../../api","leaseUid":"u","epoch":1}"#.to_owned())]
#[case::a_lease_made_anew(r#"{"namespace":"theirs","leaseUid":"another","epoch":1}"#.to_owned())]
#[tokio::test(start_paused = true)]
async fn a_claim_that_nobody_keeps_counts_for_four_leases(#[case] text: String) {
    let server = Server::new();
    server.lease(
        "theirs",
        json!({ "holderIdentity": "x", "leaseDurationSeconds": i32::MAX }),
    );
    server.annotate(&text);
    let process = Process::start(&server, "ours", "pod");
    pass(59).await;
    assert!(!process.leads());
    assert!(
        process.why().contains(ANNOTATION) || process.why().contains("gone"),
        "{}",
        process.why()
    );
    assert!(process.why().len() < 1024, "{}", process.why());
    assert!(
        !server.stored().leases.contains_key("ours"),
        "one that stands by holds no Lease"
    );
    pass(4).await;
    assert!(process.leads(), "{}", process.why());
    assert_eq!(server.stored().lists, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn without_the_definition_nobody_leads_and_the_probe_says_what_to_install() {
    let server = Server::default();
    let process = Process::start(&server, "ours", "pod");
    pass(60).await;
    assert!(!process.leads());
    assert!(process.why().contains("skyward crds apply"), "{}", process.why());
    server.define();
    pass(4).await;
    assert!(process.leads());
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_comes_back_while_another_takes_over_leads_beside_nobody() {
    // For every order of the steps of both: the pause of the other varies.
    for late in 0..40 {
        let server = Server::new();
        let first = Process::start(&server, "one", "a");
        pass(1).await;
        let second = Process::start(&server, "two", "b");
        pass(5).await;
        first.held().await.die();
        pass(55).await;
        advance(Duration::from_millis(125 * late)).await;
        let again = Process::start(&server, "one", "a2");
        pass(30).await;
        assert!(again.leads() ^ second.leads(), "{late}");
        let leader = server.claim().unwrap().namespace;
        assert_eq!(leader == "one", again.leads(), "{late}");
    }
}
