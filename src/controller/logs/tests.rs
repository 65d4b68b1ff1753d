//! The seam between machine and store, and the endpoint over real TLS.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::json;
use skyward_planner::{base::key::Key, task::message::LiveRun};
use skyward_remote::{
    AgentError, MachineKey,
    agent::{AgentStream, RunReader},
    protocol::Chunk,
};
use skyward_store::{Gap, Missing};
use skyward_subresources::{
    data,
    records::{Decoder, Item},
    reload::key,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::*;

const UID: &str = "6b1f9d5e-0000-4000-8000-000000000001";

/// What one call of `read_log` does: sends this many bytes, then breaks or ends.
#[derive(Clone, Copy, Debug)]
enum Call {
    /// The connection breaks after so many bytes.
    Breaks(usize),
    /// Everything up to the present end is sent.
    Ends,
    /// The agent has forgotten the run; the collector had stored all of it before.
    Forgotten,
    /// The agent forgets the run after so many bytes, and the stream ends as if that were all.
    ForgottenAfter(usize),
}

/// A machine whose run has ended with this log, and whose collector moves it to the store.
struct Machine {
    log: Vec<u8>,
    calls: Mutex<VecDeque<Call>>,
    present: AtomicBool,
    store: Arc<Store>,
    run: String,
    changes: watch::Sender<u64>,
    /// Bytes of the log that it does not keep.
    hole: std::ops::Range<usize>,
    /// Streams of its log that are open.
    open: AtomicUsize,
}

/// Counts an open stream.
struct Open(Arc<Machine>);

impl Open {
    fn of(machine: &Arc<Machine>) -> Self {
        machine.open.fetch_add(1, Ordering::SeqCst);
        Self(machine.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Machines for Arc<Machine> {
    fn place_of(&self, _: &str, run: &str) -> Whereabouts {
        if run == self.run && self.present.load(Ordering::SeqCst) {
            Whereabouts::On(MachineKey::new("n", "m"))
        } else {
            Whereabouts::Nowhere
        }
    }

    fn agent(&self, _: &MachineKey) -> Option<Arc<dyn RunReader>> {
        Some(Arc::new(Agent(Arc::clone(self))))
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

impl Machine {
    /// Stores a part of the log.
    async fn copy(&self, part: std::ops::Range<usize>) {
        let (start, bytes) = (part.start as u64, self.log[part].to_vec());
        self.store
            .put_log_segment(UID, &self.run, start, bytes.into())
            .await
            .unwrap();
    }
}

impl Machine {
    /// The collector stores the rest, and the agent forgets the run.
    async fn forget(&self) {
        let stored = self.store.log_end(UID, &self.run).await.unwrap();
        let mut at = usize::try_from(stored).unwrap();
        if at < self.hole.start {
            self.copy(at..self.hole.start).await;
            at = self.hole.start;
        }
        if self.hole.contains(&at) {
            let gap = Gap {
                start: at as u64,
                end: self.hole.end as u64,
                why: Missing::OverLimit,
            };
            self.store.put_log_gap(UID, &self.run, gap).await.unwrap();
            at = self.hole.end;
        }
        self.copy(at..self.log.len()).await;
        self.present.store(false, Ordering::SeqCst);
    }
}

struct Agent(Arc<Machine>);

#[async_trait]
impl RunReader for Agent {
    async fn read_log(&self, _: &str, offset: u64, _: bool) -> Result<AgentStream<Chunk>, AgentError> {
        let machine = &self.0;
        let mut begin = usize::try_from(offset).unwrap().min(machine.log.len());
        if machine.hole.contains(&begin) {
            begin = machine.hole.end;
        }
        let call = machine.calls.lock().pop_front().unwrap_or(Call::Ends);
        let (bytes, end) = match call {
            Call::Breaks(bytes) => (bytes, Some(Err(AgentError::Disconnected("broken".into())))),
            Call::Ends => (usize::MAX, None),
            Call::Forgotten => {
                machine.forget().await;
                return Err(AgentError::NotFound);
            }
            Call::ForgottenAfter(bytes) => {
                machine.forget().await;
                (bytes, None)
            }
        };
        let until = begin.saturating_add(bytes).min(machine.log.len());
        let mut chunks: Vec<Result<Chunk, AgentError>> = (begin..until)
            .filter(|at| !machine.hole.contains(at))
            .collect::<Vec<_>>()
            .chunk_by(|at, next| at / 7 == next / 7 && at + 1 == *next)
            .map(|bytes| {
                Ok(Chunk {
                    offset: bytes[0] as u64,
                    data: bytes.iter().map(|at| machine.log[*at]).collect(),
                })
            })
            .collect();
        chunks.extend(end);
        let open = Open::of(machine);
        let chunks = futures::stream::iter(chunks).inspect(move |_| {
            let _ = &open;
        });
        Ok(chunks.boxed())
    }
    async fn read_result(&self, _: &str, _: u64) -> Result<AgentStream<Chunk>, AgentError> {
        Err(AgentError::NotFound)
    }
}

fn log_of(lines: usize) -> Vec<u8> {
    (0..lines)
        .flat_map(|n| format!("{} o F line {n}\n", 1_700_000_000_000_u64 + n as u64).into_bytes())
        .collect()
}

struct World {
    machine: Arc<Machine>,
    store: Arc<Store>,
    _folder: tempfile::TempDir,
}

async fn world(stored: usize, calls: &[Call]) -> World {
    sparse_world(stored, calls, 0..0).await
}

/// The machine does not keep that part of its log.
async fn sparse_world(stored: usize, calls: &[Call], hole: std::ops::Range<usize>) -> World {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::local(folder.path()).unwrap().unmeasured());
    let log = log_of(50);
    let run = data::run_id(UID, 1, 0);
    if stored > 0 {
        store
            .put_log_segment(UID, &run, 0, log[..stored].to_vec().into())
            .await
            .unwrap();
    }
    let machine = Arc::new(Machine {
        log,
        calls: Mutex::new(calls.iter().copied().collect()),
        present: AtomicBool::new(true),
        store: store.clone(),
        run,
        changes: watch::Sender::new(0),
        hole,
        open: AtomicUsize::new(0),
    });
    World {
        machine,
        store,
        _folder: folder,
    }
}

impl World {
    fn source(&self, follow: bool) -> Source {
        Source {
            machines: Arc::new(self.machine.clone()),
            store: self.store.clone(),
            task_uid: UID.into(),
            run: self.machine.run.clone(),
            follow,
            gaps: None,
        }
    }
}

async fn read(source: Source, offset: u64) -> Vec<u8> {
    source
        .stream(offset)
        .map(|chunk| chunk.unwrap().to_vec())
        .concat()
        .await
}

#[tokio::test]
async fn no_byte_is_lost_or_doubled_at_the_seam() {
    let cases: &[(usize, &[Call])] = &[
        (0, &[]),
        (100, &[]),
        (0, &[Call::Breaks(0), Call::Breaks(33), Call::Breaks(500)]),
        (64, &[Call::Breaks(10), Call::Forgotten]),
        (0, &[Call::Forgotten]),
        (64, &[Call::Breaks(1), Call::Breaks(1), Call::Forgotten]),
        (64, &[Call::ForgottenAfter(100)]),
        (0, &[Call::Breaks(10), Call::ForgottenAfter(0)]),
    ];
    for (stored, calls) in cases {
        for offset in [0, 40, 64, 700] {
            for follow in [false, true] {
                let world = world(*stored, calls).await;
                let got = read(world.source(follow), offset).await;
                let want = &world.machine.log[usize::try_from(offset).unwrap()..];
                assert_eq!(
                    got, want,
                    "stored {stored}, {calls:?}, from {offset}, follow {follow}"
                );
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn behind_a_gap_the_log_goes_on_wherever_it_is_and_whatever_breaks() {
    let lines: Vec<usize> = {
        let log = log_of(50);
        (0..log.len())
            .filter(|at| *at == 0 || log[at - 1] == b'\n')
            .collect()
    };
    let hole = lines[10]..lines[30];
    let cases: &[&[Call]] = &[
        &[],
        &[Call::Breaks(0), Call::Breaks(33), Call::Breaks(900)],
        &[Call::Breaks(10), Call::Forgotten],
        &[Call::Forgotten],
        &[Call::ForgottenAfter(300)],
    ];
    // Nothing is stored; part of the beginning; what the machine has dropped since, cut within a
    // record; some of the newest.
    for stored in [0, lines[5] + 3, lines[12] + 3, lines[40]] {
        for calls in cases {
            for from in [0, lines[5], lines[20], lines[45]] {
                for follow in [false, true] {
                    let world = sparse_world(stored, calls, hole.clone()).await;
                    let mark = Mark::random();
                    let source = Source {
                        gaps: Some(mark.clone()),
                        ..world.source(follow)
                    };
                    let mut decoder = Decoder::at(from as u64).with(mark);
                    decoder.push(&read(source, from as u64).await);
                    let mut got = Vec::new();
                    let mut missing = 0;
                    while let Some(item) = decoder.next_item() {
                        match item {
                            Item::Record(record) => got.push(usize::try_from(record.end).unwrap()),
                            Item::Gap(gap) => missing += gap.end - gap.start,
                        }
                    }
                    let is_there = |end: usize| end <= stored.max(hole.start) || end > hole.end;
                    let ends: Vec<usize> = lines[1..]
                        .iter()
                        .copied()
                        .chain([world.machine.log.len()])
                        .collect();
                    let want: Vec<usize> = ends
                        .iter()
                        .copied()
                        .filter(|end| *end > from && is_there(*end))
                        .collect();
                    let context = format!("stored {stored}, {calls:?}, from {from}, follow {follow}");
                    assert_eq!(got, want, "{context}");
                    let lost = ends
                        .windows(2)
                        .filter(|pair| pair[1] > from && !is_there(pair[1]))
                        .map(|pair| pair[1] - pair[0])
                        .sum::<usize>();
                    assert_eq!(missing, lost as u64, "{context}");
                }
            }
        }
    }
}

#[tokio::test]
async fn a_reader_that_knows_no_gaps_is_cut_off_at_the_first() {
    let hole = 200..400;
    for stored in [0, 100] {
        let world = sparse_world(stored, &[], hole.clone()).await;
        let chunks: Vec<_> = world.source(false).stream(0).collect().await;
        let (last, rest) = chunks.split_last().unwrap();
        assert!(last.is_err(), "it would take what comes for the next bytes");
        let bytes: Vec<u8> = rest
            .iter()
            .flat_map(|chunk| chunk.as_ref().unwrap().to_vec())
            .collect();
        assert_eq!(bytes, world.machine.log[..200]);
    }
}

#[tokio::test(start_paused = true)]
async fn for_a_reader_that_takes_nothing_no_stream_of_a_machine_is_held_and_no_byte_is_lost() {
    for follow in [false, true] {
        let world = world(0, &[]).await;
        let mut stream = world.source(follow).stream(0);
        let first = stream.next().await.unwrap().unwrap();
        assert_eq!(world.machine.open.load(Ordering::SeqCst), 1, "it is being read");
        sleep(Duration::from_secs(5)).await;
        assert_eq!(world.machine.open.load(Ordering::SeqCst), 0, "nobody takes it");
        let rest: Vec<u8> = stream.map(|chunk| chunk.unwrap().to_vec()).concat().await;
        assert_eq!([&first[..], &rest].concat(), world.machine.log);
    }
}

#[tokio::test]
async fn a_run_that_is_on_no_machine_is_read_from_the_store() {
    let world = world(200, &[]).await;
    world.machine.present.store(false, Ordering::SeqCst);
    assert_eq!(read(world.source(true), 10).await, &world.machine.log[10..200]);
}

/// Answers of the endpoint while a new leader takes up Tasks.
#[tokio::test]
async fn a_leader_that_does_not_know_yet_what_runs_calls_no_log_complete() {
    let world = world(200, &[]).await;
    let live = Arc::new(Live::default());
    let fleet = Arc::new(LiveMachine(live.clone(), world.machine.clone()));
    let shared = Shared {
        uploads: Arc::new(crate::uploads::tests::uploads(&world.store)),
        machines: fleet,
        bootstraps: Arc::new(bootstraps::tests::OnePool),
        live: live.clone(),
        store: world.store.clone(),
        streams: Arc::new(Semaphore::new(8)),
        maps: Arc::new(Semaphore::new(1)),
        last_read: Arc::default(),
        retrying: Arc::default(),
        client: None,
        forget: Arc::new(|_| {}),
        epoch: 1,
    };
    let run = world.machine.run.clone();
    let read = |follow| {
        let task = Path(("n".to_owned(), UID.to_owned()));
        let query = Query(LogQuery {
            run: run.clone(),
            offset: 0,
            follow,
            gaps: String::new(),
        });
        log(State(shared.clone()), task, query)
    };
    for follow in [false, true] {
        assert_eq!(read(follow).await.unwrap_err().0, StatusCode::SERVICE_UNAVAILABLE);
    }
    let listed = runs(State(shared.clone()), Path(("n".to_owned(), UID.to_owned())));
    assert_eq!(listed.await.unwrap_err().0, StatusCode::SERVICE_UNAVAILABLE);

    let pool = Key::new("n", "p");
    live.listed([pool.clone()]);
    live.set(
        UID,
        vec![LiveRun {
            run_id: run.clone(),
            rank: 0,
            attempt: 1,
            machine: MachineKey::new("n", "m"),
            progress: Some(Progress { done: 3, total: 7 }),
        }],
    );
    live.taken_up(&pool);
    let listed = runs(State(shared.clone()), Path(("n".to_owned(), UID.to_owned())));
    let listed = axum::body::to_bytes(listed.await.unwrap().into_body(), usize::MAX);
    let listed: Runs = serde_json::from_slice(&listed.await.unwrap()).unwrap();
    assert_eq!(
        listed.runs[0].progress,
        Some(data::Progress { done: 3, total: 7 })
    );
    let answer = read(true).await.unwrap();
    let body = axum::body::to_bytes(answer.into_body(), usize::MAX)
        .await
        .unwrap();
    assert_eq!(
        &body[..],
        &world.machine.log[..],
        "what the machine has follows what the store has"
    );
}

/// The places that a leader knows, and one machine behind them.
struct LiveMachine(Arc<Live>, Arc<Machine>);

impl Machines for LiveMachine {
    fn place_of(&self, task_uid: &str, run: &str) -> Whereabouts {
        source::place_in(&self.0, task_uid, run)
    }

    fn agent(&self, machine: &MachineKey) -> Option<Arc<dyn RunReader>> {
        self.1.agent(machine)
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.1.changes()
    }
}

/// Reads over TLS as the aggregated API does.
#[tokio::test]
async fn the_endpoint_serves_who_has_our_certificate_and_nobody_else() {
    use skyward_subresources::data::Data as _;
    let mut secrets = issuer::Secrets::default();
    let now = clock::now();
    let plan = issuer::plan(&secrets, "ns", now);
    issuer::issue(&plan, &mut secrets, "ns", now).unwrap();
    let own = |key: &str| secrets.controller[key].as_slice();
    let get = |key: &str| secrets.apiserver[key].as_slice();
    let server = tls::server(
        own(key::SERVER_CERTIFICATE),
        own(key::SERVER_KEY),
        Some(own(key::AUTHORITIES)),
        Clients::Required,
    )
    .unwrap();

    let world = world(100, &[]).await;
    world
        .store
        .put_result(UID, &world.machine.run, Bytes::from_static(b"{\"a\":1}"))
        .await
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let streams = Arc::new(Semaphore::new(1));
    let known = Arc::new(Live::default());
    known.listed([]);
    let shared = Shared {
        uploads: Arc::new(crate::uploads::tests::uploads(&world.store)),
        machines: Arc::new(world.machine.clone()),
        bootstraps: Arc::new(bootstraps::tests::OnePool),
        live: known,
        store: world.store.clone(),
        streams: streams.clone(),
        maps: Arc::new(Semaphore::new(1)),
        last_read: Arc::default(),
        retrying: Arc::default(),
        client: None,
        forget: Arc::new(|_| {}),
        epoch: 1,
    };
    let shutdown = CancellationToken::new();
    let (_keep, config) = watch::channel(server);
    let serving = tokio::spawn(serve::serve(
        listener,
        Transport::Tls(config),
        router(shared),
        CONNECTIONS,
        shutdown.clone(),
    ));

    let ours = tls::client(
        get(key::CLIENT_CERTIFICATE),
        get(key::CLIENT_KEY),
        get(key::AUTHORITIES),
    )
    .unwrap();
    let leader = data::Leader::at(&address, ours);
    let run = world.machine.run.as_str();
    let runs = leader.runs("n", UID).await.unwrap().runs;
    assert_eq!(
        runs,
        [Run {
            id: run.into(),
            attempt: 1,
            rank: 0,
            live: false,
            stored: 100,
            progress: None,
        }]
    );
    let mark = Mark::random();
    let room = streams.try_acquire().unwrap();
    let busy = leader.log("n", UID, run, 0, true, &mark).await.err().unwrap();
    assert!(matches!(busy, data::DataError::Unavailable(_)), "{busy:?}");
    drop(room);
    let log = leader.log("n", UID, run, 17, true, &mark).await.unwrap();
    let log = log.map(|chunk| chunk.unwrap().to_vec()).concat().await;
    assert_eq!(&log[..], &world.machine.log[17..]);
    let result = loop {
        // The stream's room is given back when the server has seen its end.
        if let Ok(chunks) = leader.result("n", UID, run, 2).await {
            break chunks.map(|chunk| chunk.unwrap().to_vec()).concat().await;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(&result[..], b"a\":1}");
    let unknown = leader
        .log("n", UID, &data::run_id(UID, 9, 9), 0, false, &mark)
        .await
        .err();
    assert_eq!(unknown, Some(data::DataError::NotFound));

    // The output of a machine that never took runs, of which only its Pool is left.
    let (pool, machine) = (bootstraps::tests::POOL, "train-5b9d2-0-1");
    let printed = Bytes::from_static(b"E: Unable to locate package nope\n");
    let put = world.store.put_bootstrap_log("n", pool, machine, printed.clone());
    put.await.unwrap();
    let log = loop {
        if let Ok(chunks) = leader.machine_log("n", machine).await {
            break chunks.map(|chunk| chunk.unwrap().to_vec()).concat().await;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(log, printed);
    for (namespace, name) in [("other", machine), ("n", "train-5b9d2-0-2"), ("n", "..%2F..%2Fx")] {
        let error = loop {
            match leader.machine_log(namespace, name).await.err() {
                Some(data::DataError::Unavailable(_)) => tokio::task::yield_now().await,
                error => break error,
            }
        };
        assert_eq!(error, Some(data::DataError::NotFound), "{namespace}/{name}");
    }

    bundles_come_in_parts(&leader).await;

    // A serving certificate of the same authority is no client's certificate.
    let wrong = tls::client(
        get(key::API_CERTIFICATE),
        get(key::API_KEY),
        get(key::AUTHORITIES),
    )
    .unwrap();
    let refused = data::Leader::at(&address, wrong)
        .runs("n", UID)
        .await
        .err()
        .unwrap();
    assert!(matches!(refused, data::DataError::Unavailable(_)), "{refused:?}");
    shutdown.cancel();
    serving.await.unwrap();
}

async fn bundles_come_in_parts(leader: &data::Leader) {
    use skyward_subresources::uploads::{State, Upload, UploadError, Uploads as _};
    let bundle = crate::uploads::tests::bundle(200_000);
    let size = bundle.bytes.len() as u64;
    let upload = Upload {
        namespace: "n".into(),
        digest: bundle.digest,
        id: "ana".into(),
    };
    let at = |complete, offset| Ok(State { complete, offset });
    assert_eq!(leader.state(&upload).await, at(false, 0));
    let (first, rest) = bundle.bytes.split_at(100_000);
    let chunks: Vec<io::Result<Vec<u8>>> = first.chunks(7000).map(|chunk| Ok(chunk.to_vec())).collect();
    let body = Body::from_stream(futures::stream::iter(chunks));
    assert_eq!(leader.put(&upload, 0, size, body).await, at(false, 100_000));
    assert_eq!(leader.state(&upload).await, at(false, 100_000));
    let last = leader
        .put(&upload, 100_000, size, Body::from(rest.to_vec()))
        .await;
    assert_eq!(last, at(true, size));
    let elsewhere = Upload {
        namespace: "other".into(),
        ..upload
    };
    let refused = leader.put(&elsewhere, 0, size, Body::empty()).await.unwrap_err();
    assert!(
        matches!(refused, UploadError::Refused(StatusCode::NOT_FOUND, _)),
        "{refused:?}"
    );
}

/// The Task would end with that Pool.
#[tokio::test]
async fn items_do_not_run_again_while_the_pool_of_their_task_is_being_returned() {
    let world = world(1, &[]).await;
    let service = tower::service_fn(|request: axum::http::Request<kube::client::Body>| async move {
        let of_pool = request.uri().path().ends_with("/pools/t");
        let (kind, spec) = if of_pool {
            ("Pool", json!({"provider": "local"}))
        } else {
            (
                "Task",
                json!({"command": ["true"], "poolTemplate": {"spec": {"provider": "local"}}}),
            )
        };
        let deleted = of_pool.then_some("2026-01-01T00:00:00Z");
        let object = json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": kind, "spec": spec,
            "status": if of_pool { json!(null) } else { json!({"phase": "Failed"}) },
            "metadata": {"name": "t", "namespace": "n", "uid": UID, "deletionTimestamp": deleted},
        });
        let answer = axum::http::Response::new(kube::client::Body::from(object.to_string().into_bytes()));
        Ok::<_, std::convert::Infallible>(answer)
    });
    let shared = Shared {
        uploads: Arc::new(crate::uploads::tests::uploads(&world.store)),
        machines: Arc::new(world.machine.clone()),
        bootstraps: Arc::new(bootstraps::tests::OnePool),
        live: Arc::default(),
        store: world.store.clone(),
        streams: Arc::new(Semaphore::new(8)),
        maps: Arc::new(Semaphore::new(1)),
        last_read: Arc::default(),
        retrying: Arc::default(),
        client: Some(kube::Client::new(service, "n")),
        forget: Arc::new(|_| {}),
        epoch: 1,
    };
    let query = [("name", "t"), ("failed", "true")].map(|(key, value)| (key.to_owned(), value.to_owned()));
    let task = Path(("n".to_owned(), UID.to_owned()));
    let refused = items::retry(State(shared), task, Query(query.into())).await;
    let (status, why) = refused.unwrap_err();
    assert_eq!(status, StatusCode::CONFLICT, "{why}");
    assert!(
        why.contains("is being returned; try again when Pool \"t\" is gone"),
        "{why}"
    );
}
