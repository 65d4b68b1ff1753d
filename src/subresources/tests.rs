//! The whole aggregated API over TLS: the front proxy's certificates and headers, rights,
//! and logs that arrive once whatever breaks underneath.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use axum::{
    body::{Body, Bytes},
    http::{Method, Request, StatusCode, header},
};
use futures::StreamExt;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::{ClientConfig, pki_types::ServerName};
use serde_json::{Value, json};
use skyward_api::Task;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tokio_rustls::TlsConnector;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    api::{self, Parts},
    authorize::{Access, Authorizer, Decision},
    data::{Chunks, Data, DataError, Progress, Run, Runs, parse_run_id, run_id},
    frontproxy::{RequestHeader, User},
    records::Mark,
    serve,
    tasks::Tasks,
    tls::{self, Clients},
};

mod authority;
mod crowds;
mod machines;
mod parts;
mod progress;
mod retention;
mod uploads;
mod values;

use authority::Authority;

const UID: &str = "7d0c1e9a-0000-4000-8000-00000000000a";

/// How the controller answers one request for a log.
#[derive(Clone, Debug)]
enum Answer {
    /// So many bytes, then the connection breaks.
    Breaks(usize),
    /// Everything.
    All,
    /// The leader is away.
    Away,
    /// Everything, and then this Task status holds.
    AllThen(Value),
}

/// A leader and an API server, in memory.
#[derive(Default)]
struct World {
    tasks: Mutex<BTreeMap<String, Task>>,
    logs: BTreeMap<String, Vec<u8>>,
    /// What is missing of a log: from which byte on, and how much.
    holes: BTreeMap<String, (u64, u64)>,
    results: BTreeMap<String, String>,
    /// By attempt and rank.
    progress: BTreeMap<(u32, u32), Progress>,
    /// What bootstraps printed, by namespace and name.
    machines: BTreeMap<(String, String), String>,
    answers: Mutex<VecDeque<Answer>>,
    /// So many questions after runs and results find no leader.
    away: AtomicU32,
}

fn task(name: &str, status: Value) -> Task {
    serde_json::from_value(json!({
        "apiVersion": "skyward.dev/v1alpha1", "kind": "Task",
        "metadata": { "name": name, "namespace": "n", "uid": UID },
        "spec": { "pool": "p", "function": { "source": "x" } }, "status": status,
    }))
    .unwrap()
}

impl World {
    fn with(name: &str, status: Value) -> Self {
        let world = Self::default();
        world.tasks.lock().insert(name.to_owned(), task(name, status));
        world
    }

    fn log(mut self, attempt: u32, rank: u32, lines: &[&str]) -> Self {
        let log = lines
            .iter()
            .flat_map(|line| format!("{line}\n").into_bytes())
            .collect();
        self.logs.insert(run_id(UID, attempt, rank), log);
        self
    }

    /// Behind so many bytes of that log so many others are missing.
    fn hole(mut self, rank: u32, at: u64, length: u64) -> Self {
        self.holes.insert(run_id(UID, 1, rank), (at, length));
        self
    }

    fn result(mut self, rank: u32, json: &str) -> Self {
        self.results.insert(run_id(UID, 1, rank), json.to_owned());
        self
    }

    fn says(mut self, attempt: u32, rank: u32, done: u64, total: u64) -> Self {
        self.progress.insert((attempt, rank), Progress { done, total });
        self.log(attempt, rank, &[])
    }

    fn away(self, questions: u32) -> Self {
        self.away.store(questions, Ordering::Relaxed);
        self
    }

    fn leads(&self) -> Result<(), DataError> {
        let less = |left: u32| left.checked_sub(1);
        match self.away.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) {
            Ok(_) => Err(DataError::Unavailable("no controller leads".into())),
            Err(_) => Ok(()),
        }
    }

    /// The bytes from an offset, as the next of the answers has it.
    fn answer(&self, bytes: &[u8], offset: u64) -> Result<Chunks, DataError> {
        let rest = &bytes[usize::try_from(offset).unwrap()..];
        let answer = self.answers.lock().pop_front().unwrap_or(Answer::All);
        let (length, end) = match answer {
            Answer::Breaks(length) => (
                length.min(rest.len()),
                Some(Err(io::ErrorKind::ConnectionReset.into())),
            ),
            Answer::All => (rest.len(), None),
            Answer::Away => return Err(DataError::Unavailable("no controller leads".into())),
            Answer::AllThen(status) => {
                self.tasks.lock().insert("t".into(), task("t", status));
                (rest.len(), None)
            }
        };
        let pieces: Vec<io::Result<Bytes>> = rest[..length]
            .chunks(5)
            .map(|piece| Ok(Bytes::copy_from_slice(piece)))
            .chain(end)
            .collect();
        Ok(futures::stream::iter(pieces).boxed())
    }

    fn answers(self, answers: &[Answer]) -> Self {
        self.answers.lock().extend(answers.iter().cloned());
        self
    }
}

#[async_trait]
impl Tasks for World {
    async fn get(&self, _: &str, name: &str) -> Result<Option<Task>, String> {
        Ok(self.tasks.lock().get(name).cloned())
    }
}

#[async_trait]
impl Data for World {
    async fn runs(&self, _: &str, uid: &str) -> Result<Runs, DataError> {
        self.leads()?;
        let runs = self.logs.iter().filter_map(|(id, log)| {
            let (attempt, rank) = parse_run_id(uid, id)?;
            Some(Run {
                id: id.clone(),
                attempt,
                rank,
                live: false,
                stored: log.len() as u64 + self.holes.get(id).map_or(0, |hole| hole.1),
                progress: self.progress.get(&(attempt, rank)).copied(),
            })
        });
        Ok(Runs { runs: runs.collect() })
    }

    async fn log(
        &self,
        _: &str,
        _: &str,
        run: &str,
        offset: u64,
        _: bool,
        gaps: &Mark,
    ) -> Result<Chunks, DataError> {
        let log = self.logs.get(run).ok_or(DataError::NotFound)?;
        let Some(&(at, length)) = self.holes.get(run) else {
            return self.answer(log, offset);
        };
        let end = at + length;
        let behind = usize::try_from(at).unwrap();
        if offset >= end {
            return self.answer(&log[behind..], offset - end);
        }
        let before = log[..behind]
            .get(usize::try_from(offset).unwrap()..)
            .unwrap_or_default();
        let mark = gaps.line(offset.max(at), end, "limit");
        self.answer(&[before, &mark, &log[behind..]].concat(), 0)
    }

    async fn result(&self, _: &str, _: &str, run: &str, offset: u64) -> Result<Chunks, DataError> {
        self.leads()?;
        let result = self.results.get(run).ok_or(DataError::NotFound)?.as_bytes();
        self.answer(result, offset.min(result.len() as u64))
    }

    async fn machine_log(&self, namespace: &str, name: &str) -> Result<Chunks, DataError> {
        self.leads()?;
        let log = self.machines.get(&(namespace.to_owned(), name.to_owned()));
        self.answer(log.ok_or(DataError::NotFound)?.as_bytes(), 0)
    }

    async fn items(&self, _: &str, _: &str, query: &str) -> Result<Chunks, DataError> {
        self.leads()?;
        self.answer(query.as_bytes(), 0)
    }

    async fn retry(&self, _: &str, _: &str, _: &str, query: &str) -> Result<String, DataError> {
        self.leads()?;
        Ok(query.to_owned())
    }
}

/// Ana may read logs, Ben nothing.
struct Rights;

#[async_trait]
impl Authorizer for Rights {
    async fn decide(&self, user: &User, access: &Access) -> Result<Decision, String> {
        match (user.name.as_str(), access.subresource) {
            ("ana", _) | ("ben", "result") => Ok(Decision::Allowed),
            _ => Ok(Decision::Denied(String::new())),
        }
    }
}

/// The API, served over TLS.
struct Server {
    address: String,
    serving: Authority,
    proxy: Authority,
    _guard: DropGuard,
}

impl Server {
    async fn start(world: World) -> Self {
        Self::patient(world, Duration::from_secs(10)).await
    }

    async fn patient(world: World, patience: Duration) -> Self {
        let (serving, proxy) = (Authority::new("serving"), Authority::new("front proxy"));
        let (certificate, key) = serving.sign("api");
        let config = tls::server(
            certificate.as_bytes(),
            key.as_bytes(),
            Some(proxy.pem.as_bytes()),
            Clients::Optional,
        )
        .unwrap();
        let front_proxy = RequestHeader::parse(
            &[
                ("requestheader-client-ca-file".to_owned(), proxy.pem.clone()),
                (
                    "requestheader-allowed-names".to_owned(),
                    r#"["front-proxy-client"]"#.to_owned(),
                ),
            ]
            .into(),
        )
        .unwrap();
        let world = Arc::new(world);
        let router = api::router(Parts {
            front_proxy: watch::channel(Some(front_proxy)).1,
            authorizer: Arc::new(Rights),
            tasks: world.clone(),
            data: world,
            uploads: Arc::new(uploads::Kept::default()),
            patience,
            ready: watch::channel(true).1,
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let shutdown = CancellationToken::new();
        let transport = serve::Transport::Tls(watch::channel(config).1);
        tokio::spawn(serve::serve(
            listener,
            transport,
            router,
            crate::CONNECTIONS,
            shutdown.clone(),
        ));
        Self {
            address,
            serving,
            proxy,
            _guard: shutdown.drop_guard(),
        }
    }

    /// A client with a certificate of that authority and name.
    fn client(&self, authority: &Authority, name: &str) -> Arc<ClientConfig> {
        let (certificate, key) = authority.sign(name);
        tls::client(
            certificate.as_bytes(),
            key.as_bytes(),
            self.serving.pem.as_bytes(),
        )
        .unwrap()
    }

    /// A client without a certificate.
    fn nobody(&self) -> Arc<ClientConfig> {
        let mut roots = rustls::RootCertStore::empty();
        let pem = self.serving.pem.as_bytes();
        let certificate =
            <rustls::pki_types::CertificateDer<'_> as rustls::pki_types::pem::PemObject>::from_pem_slice(pem);
        roots.add(certificate.unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        Arc::new(
            ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(roots)
                .with_no_client_auth(),
        )
    }

    async fn ask(
        &self,
        tls: Arc<ClientConfig>,
        method: Method,
        path: &str,
        user: Option<&str>,
    ) -> io::Result<(StatusCode, String)> {
        self.send(tls, method, path, user, Body::empty()).await
    }

    async fn send(
        &self,
        tls: Arc<ClientConfig>,
        method: Method,
        path: &str,
        user: Option<&str>,
        body: Body,
    ) -> io::Result<(StatusCode, String)> {
        let stream = TcpStream::connect(&self.address).await?;
        let name = ServerName::try_from("localhost").unwrap();
        let stream = TlsConnector::from(tls).connect(name, stream).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        tokio::spawn(connection);
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "localhost");
        if let Some(user) = user {
            request = request
                .header("X-Remote-User", user)
                .header("X-Remote-Group", "system:authenticated");
        }
        let answer = sender
            .send_request(request.body(body).unwrap())
            .await
            .map_err(io::Error::other)?;
        let status = answer.status();
        let body = axum::body::to_bytes(Body::new(answer.into_body()), usize::MAX)
            .await
            .map_err(io::Error::other)?;
        Ok((status, String::from_utf8(body.to_vec()).unwrap()))
    }

    /// As Ana, through the front proxy.
    async fn get(&self, path: &str) -> (StatusCode, String) {
        self.get_as("ana", path).await
    }

    async fn get_as(&self, user: &str, path: &str) -> (StatusCode, String) {
        let tls = self.client(&self.proxy, "front-proxy-client");
        let path = if path.starts_with('/') {
            path.to_owned()
        } else {
            format!("{BASE}/tasks/{path}")
        };
        self.ask(tls, Method::GET, &path, Some(user)).await.unwrap()
    }
}

const BASE: &str = "/apis/subresources.skyward.dev/v1alpha1/namespaces/n";

fn ended() -> Value {
    json!({ "phase": "Succeeded", "attempt": 1, "placed": [{ "slot": 0, "attempt": 1 }] })
}

#[tokio::test]
async fn only_the_front_proxy_is_believed() {
    let server = Server::start(World::with("t", ended()).log(1, 0, &["1 o F hello"])).await;
    let path = format!("{BASE}/tasks/t/log");
    let ask = |tls, user| server.ask(tls, Method::GET, &path, user);

    let proxy = server.client(&server.proxy, "front-proxy-client");
    assert_eq!(
        ask(proxy.clone(), Some("ana")).await.unwrap(),
        (StatusCode::OK, "hello\n".to_owned())
    );
    let (status, body) = ask(proxy, None).await.unwrap();
    assert_eq!(status, StatusCode::UNAUTHORIZED, "the proxy named nobody: {body}");

    let other_name = server.client(&server.proxy, "somebody");
    assert_eq!(
        ask(other_name, Some("ana")).await.unwrap().0,
        StatusCode::UNAUTHORIZED
    );

    let other_authority = server.client(&Authority::new("front proxy"), "front-proxy-client");
    ask(other_authority, Some("ana")).await.unwrap_err();

    let nobody = server.nobody();
    let (status, body) = ask(nobody.clone(), Some("system:admin")).await.unwrap();
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    assert_eq!(
        serde_json::from_str::<Value>(&body).unwrap()["reason"],
        "Unauthorized"
    );
    // Probes come without a certificate.
    for probe in ["/livez", "/healthz", "/readyz"] {
        assert_eq!(
            server
                .ask(nobody.clone(), Method::GET, probe, None)
                .await
                .unwrap()
                .0,
            StatusCode::OK
        );
    }
}

#[tokio::test]
async fn who_may_not_gets_403_as_kubernetes_says_it() {
    let server = Server::start(World::with("t", ended()).log(1, 0, &[]).result(0, "42")).await;
    let (status, body) = server.get_as("ben", "t/log").await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["kind"], "Status");
    assert_eq!(
        body["message"],
        "tasks.subresources.skyward.dev \"t\" is forbidden: User \"ben\" cannot get resource \"tasks/log\" in API group \"subresources.skyward.dev\" in the namespace \"n\""
    );
    assert_eq!(
        server.get_as("ben", "t/result").await,
        (StatusCode::OK, "42".to_owned())
    );
    // The right is asked for before anything is said about the Task.
    assert_eq!(
        server.get_as("eve", "unknown/result").await.0,
        StatusCode::FORBIDDEN
    );
}

#[tokio::test]
async fn bad_requests_are_answered_with_a_reason() {
    let pending = json!({ "phase": "Pending", "reason": "PoolNotFound" });
    let server = Server::start(World::with("t", pending)).await;
    for (path, status, word) in [
        (
            "unknown/log",
            StatusCode::NOT_FOUND,
            "tasks.skyward.dev \\\"unknown\\\" not found",
        ),
        ("..%2F..%2Fsecrets/log", StatusCode::NOT_FOUND, "not found"),
        ("t/log", StatusCode::BAD_REQUEST, "Pending (PoolNotFound)"),
        ("t/log?tailLines=x", StatusCode::BAD_REQUEST, "tailLines"),
        ("t/log?attempt=3", StatusCode::BAD_REQUEST, "has had 0 attempts"),
        ("t/result", StatusCode::NOT_FOUND, "has not ended"),
        ("t/result?rank=a", StatusCode::BAD_REQUEST, "rank"),
        ("t/stats", StatusCode::NOT_FOUND, "requested resource"),
    ] {
        let (got, body) = server.get(path).await;
        assert_eq!(got, status, "{path}: {body}");
        assert!(body.contains(word), "{path}: {body}");
        assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["kind"], "Status");
    }
    let tls = server.client(&server.proxy, "front-proxy-client");
    let (status, body) = server
        .ask(tls, Method::POST, &format!("{BASE}/tasks/t/log"), Some("ana"))
        .await
        .unwrap();
    assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED, "{body}");
}

#[tokio::test]
async fn discovery_names_every_resource() {
    let server = Server::start(World::default()).await;
    let (_, body) = server.get("/apis/subresources.skyward.dev/v1alpha1").await;
    let body: Value = serde_json::from_str(&body).unwrap();
    let names: Vec<&str> = body["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "bundles",
            "machines/log",
            "tasks/log",
            "tasks/progress",
            "tasks/result",
            "tasks/retry"
        ]
    );
    for path in [
        "/apis",
        "/apis/subresources.skyward.dev",
        "/openapi/v2",
        "/openapi/v3",
    ] {
        assert_eq!(server.get(path).await.0, StatusCode::OK, "{path}");
    }
}

#[tokio::test]
async fn every_line_arrives_once_whatever_breaks() {
    let lines: Vec<String> = (0..200).map(|n| format!("{n} o F line {n}")).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let want: String = (0..200)
        .map(|n| format!("line {n}"))
        .collect::<Vec<_>>()
        .join("\n")
        + "\n";
    let broken = [
        Answer::Breaks(0),
        Answer::Breaks(33),
        Answer::Away,
        Answer::Breaks(1),
        Answer::Breaks(1000),
    ];
    let world = World::with("t", ended()).log(1, 0, &lines).answers(&broken);
    let server = Server::start(world).await;
    assert_eq!(server.get("t/log?follow=true").await, (StatusCode::OK, want));
}

#[tokio::test]
async fn who_reads_while_the_controller_is_replaced_waits_for_the_next_one() {
    let world = || {
        World::with("t", ended())
            .log(1, 0, &["0 o F all of it"])
            .result(0, "7")
    };
    let away = [Answer::Away, Answer::Breaks(4), Answer::Away];
    let server = Server::start(world().away(1).answers(&away)).await;
    assert_eq!(
        server.get("t/log").await,
        (StatusCode::OK, "all of it\n".to_owned())
    );
    let server = Server::start(world().away(2)).await;
    assert_eq!(server.get("t/result").await, (StatusCode::OK, "7".to_owned()));
}

#[tokio::test]
async fn a_result_that_breaks_off_goes_on_at_the_same_byte() {
    let value = r#""a value of several pieces""#;
    let broken = [
        Answer::Breaks(3),
        Answer::Away,
        Answer::Breaks(0),
        Answer::Breaks(12),
    ];
    let world = World::with("t", ended())
        .log(1, 0, &[])
        .result(0, value)
        .answers(&broken);
    let server = Server::start(world).await;
    assert_eq!(server.get("t/result").await, (StatusCode::OK, value.to_owned()));
    assert_eq!(
        server.get("t/result?offset=2").await,
        (StatusCode::OK, format!("{}\n", &value[2..]))
    );
}

#[tokio::test]
async fn items_and_their_retry_wait_for_the_next_leader() {
    let world = || {
        let world = World::with("t", ended()).away(1);
        let items = serde_json::from_value(json!({ "count": 3 })).unwrap();
        world.tasks.lock().get_mut("t").unwrap().spec.for_each = Some(items);
        world
    };
    let server = Server::start(world()).await;
    assert_eq!(server.get("t/result/items").await.0, StatusCode::OK);
    let server = Server::start(world()).await;
    let path = format!("{BASE}/tasks/t/retry?failed=true");
    let proxy = server.client(&server.proxy, "front-proxy-client");
    let (status, said) = server.ask(proxy, Method::POST, &path, Some("ana")).await.unwrap();
    assert!(
        status.is_success() && said.contains("attempt=1"),
        "{status} {said}"
    );
    let server = Server::patient(world(), Duration::ZERO).await;
    assert_eq!(
        server.get("t/result/items").await.0,
        StatusCode::SERVICE_UNAVAILABLE
    );
}

#[tokio::test]
async fn a_controller_that_stays_away_is_said() {
    let world = || World::with("t", ended()).log(1, 0, &["0 o F all of it"]);
    let server = Server::patient(world().away(9), Duration::ZERO).await;
    let (status, text) = server.get("t/log").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(text.contains("no controller leads"), "{text}");
    let away = [Answer::Away, Answer::Away];
    let server = Server::patient(world().answers(&away), Duration::ZERO).await;
    let (_, text) = server.get("t/log").await;
    assert!(text.contains("cannot be read at the moment"), "{text}");
}

#[tokio::test]
async fn ranks_are_told_apart_and_can_be_chosen() {
    let status = json!({ "phase": "Succeeded", "attempt": 1, "placed": [{ "slot": 0, "attempt": 1 }, { "slot": 1, "attempt": 1 }] });
    let world = World::with("t", status)
        .log(1, 0, &["1 o F zero"])
        .log(1, 1, &["1 o F one"]);
    let server = Server::start(world).await;
    assert_eq!(server.get("t/log").await.1, "[0] zero\n[1] one\n");
    assert_eq!(server.get("t/log?rank=1").await.1, "one\n");
    let (status, body) = server.get("t/log?rank=2").await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");
    assert!(body.contains("highest rank is 1"), "{body}");
}

#[tokio::test]
async fn following_goes_on_with_the_next_attempt() {
    let running = |attempt: u32| json!({ "phase": "Running", "attempt": attempt, "placed": [{ "slot": 0, "attempt": 1 }] });
    let done = json!({ "phase": "Succeeded", "attempt": 2, "placed": [{ "slot": 0, "attempt": 2 }] });
    let world = World::with("t", running(1))
        .log(1, 0, &["1 o F first", "2 o P cut o"])
        .log(2, 0, &["3 o F second"])
        .answers(&[Answer::AllThen(running(2)), Answer::AllThen(done)]);
    let server = Server::start(world).await;
    assert_eq!(server.get("t/log?follow=true").await.1, "first\ncut o\nsecond\n");
    assert_eq!(server.get("t/log?attempt=1").await.1, "first\ncut o");
    let (_, records) = server.get("t/log?format=records&positions=2.0.0").await;
    assert_eq!(records, "# 2 1\n2 0 13 3 o F second\n");
}

/// Or a log that is followed before its Task begins would take any number of streams.
#[tokio::test]
async fn an_attempt_with_more_ranks_than_can_be_followed_ends_the_log_with_what_to_do() {
    let many: Vec<_> = (0..129)
        .map(|slot| json!({ "slot": slot, "attempt": 1 }))
        .collect();
    let many = json!({ "phase": "Running", "attempt": 2, "placed": many });
    let one = json!({ "phase": "Running", "attempt": 1, "placed": [{ "slot": 0, "attempt": 1 }] });
    let world = World::with("t", one)
        .log(1, 0, &["1 o F first"])
        .answers(&[Answer::AllThen(many)]);
    let server = Server::start(world).await;
    let (_, said) = server.get("t/log?follow=true").await;
    assert!(said.starts_with("first\n"), "{said}");
    assert!(
        said.contains("129 ranks, and at most 128") && said.contains("--rank N"),
        "{said}"
    );
}

#[tokio::test]
async fn results_come_from_the_status_or_the_store() {
    let one = json!({ "phase": "Succeeded", "attempt": 1, "placed": [{ "slot": 0, "attempt": 1 }],
        "results": [{ "rank": 0, "machine": "m", "attempt": 1, "reason": "Succeeded", "value": { "a": 1 } }] });
    let server = Server::start(World::with("t", one)).await;
    assert_eq!(
        server.get("t/result").await,
        (StatusCode::OK, r#"{"a":1}"#.to_owned())
    );

    let all = json!({ "phase": "Succeeded", "attempt": 1, "placed": [{ "slot": 0, "attempt": 1 }, { "slot": 1, "attempt": 1 }, { "slot": 2, "attempt": 1 }],
        "results": [{ "rank": 1, "machine": "m", "attempt": 1, "reason": "Succeeded", "value": "small" }] });
    let server = Server::start(World::with("t", all).result(2, "[3]")).await;
    let (_, body) = server.get("t/result").await;
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        body,
        json!([{ "rank": 1, "value": "small" }, { "rank": 2, "value": [3] }])
    );
    assert_eq!(server.get("t/result?rank=2").await.1, "[3]");
    // In parts, the last of which ends with a newline.
    for (query, rest) in [
        ("rank=2&offset=0", "[3]\n"),
        ("rank=2&offset=2", "]\n"),
        ("rank=1&offset=3", "all\"\n"),
        ("offset=30", "rank\":2,\"value\":[3]}]\n"),
    ] {
        let (_, body) = server.get(&format!("t/result?{query}")).await;
        assert_eq!(body, rest, "{query}");
    }
    let (status, body) = server.get("t/result?rank=99").await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");
    assert!(body.contains("highest rank is 2"), "{body}");
    let (status, body) = server.get("t/result?rank=0").await;
    assert_eq!(status, StatusCode::NOT_FOUND, "{body}");

    // Kubernetes shows it in other words: the function's own are those of the store.
    let shown = json!({ "phase": "Succeeded", "attempt": 1, "placed": [{ "slot": 0, "attempt": 1 }],
        "results": [{ "rank": 0, "machine": "m", "attempt": 1, "reason": "Succeeded", "value": 1, "valueBytes": 3 }] });
    let server = Server::start(World::with("t", shown).result(0, "1.0")).await;
    assert_eq!(server.get("t/result").await.1, "1.0");

    let failed = json!({ "phase": "Failed", "reason": "FunctionRaised", "attempt": 1, "placed": [{ "slot": 0, "attempt": 1 }],
        "results": [{ "rank": 0, "machine": "m", "attempt": 1, "reason": "FunctionRaised", "message": "ValueError: no" }] });
    let server = Server::start(World::with("t", failed)).await;
    let (status, body) = server.get("t/result").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(body.contains("Failed (FunctionRaised): ValueError: no"), "{body}");
}
