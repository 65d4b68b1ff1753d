//! The seam between machine and store, and the endpoint over real TLS.

use std::{
    collections::VecDeque,
    sync::{Mutex, atomic::AtomicBool, atomic::Ordering},
};

use async_trait::async_trait;
use skyward_remote::{
    AgentError, MachineKey,
    agent::{AgentApi, AgentStream},
    protocol::{Chunk, Fact, RunSpec, RunState},
};
use skyward_subresources::{data, reload::key};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{board::Key, task::live::LiveRun};

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
}

/// A machine whose run has ended with this log, and whose collector moves it to the store.
struct Machine {
    log: Vec<u8>,
    calls: Mutex<VecDeque<Call>>,
    present: AtomicBool,
    store: Arc<Store>,
    run: String,
    changes: watch::Sender<u64>,
}

impl Machines for Arc<Machine> {
    fn place_of(&self, _: &str, run: &str) -> Whereabouts {
        if run == self.run && self.present.load(Ordering::SeqCst) {
            Whereabouts::On(MachineKey::new("n", "m"))
        } else {
            Whereabouts::Nowhere
        }
    }

    fn agent(&self, _: &MachineKey) -> Option<Arc<dyn AgentApi>> {
        Some(Arc::new(Agent(Arc::clone(self))))
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

struct Agent(Arc<Machine>);

#[async_trait]
impl AgentApi for Agent {
    fn connection(&self) -> u64 {
        1
    }
    async fn start(&self, _: RunSpec) -> Result<RunState, AgentError> {
        Err(AgentError::NotFound)
    }
    async fn stop(&self, _: &str, _: Duration, _: &str) -> Result<RunState, AgentError> {
        Err(AgentError::NotFound)
    }
    async fn watch(&self, _: u64) -> Result<AgentStream<Fact>, AgentError> {
        Err(AgentError::NotFound)
    }
    async fn read_log(&self, _: &str, offset: u64, _: bool) -> Result<AgentStream<Chunk>, AgentError> {
        let machine = &self.0;
        let begin = usize::try_from(offset).unwrap().min(machine.log.len());
        let call = machine.calls.lock().unwrap().pop_front().unwrap_or(Call::Ends);
        let (bytes, end) = match call {
            Call::Breaks(bytes) => (bytes, Some(Err(AgentError::Disconnected("broken".into())))),
            Call::Ends => (usize::MAX, None),
            Call::Forgotten => {
                let stored = machine.store.log_end(UID, &machine.run).await.unwrap();
                let rest = machine.log[usize::try_from(stored).unwrap()..].to_vec();
                machine
                    .store
                    .put_log_segment(UID, &machine.run, stored, rest.into())
                    .await
                    .unwrap();
                machine.present.store(false, Ordering::SeqCst);
                return Err(AgentError::NotFound);
            }
        };
        let until = begin.saturating_add(bytes).min(machine.log.len());
        let mut chunks: Vec<Result<Chunk, AgentError>> = machine.log[begin..until]
            .chunks(7)
            .scan(offset, |at, data| {
                let chunk = Chunk {
                    offset: *at,
                    data: data.to_vec().into(),
                };
                *at += data.len() as u64;
                Some(Ok(chunk))
            })
            .collect();
        chunks.extend(end);
        Ok(futures::stream::iter(chunks).boxed())
    }
    async fn read_result(&self, _: &str, _: u64) -> Result<AgentStream<Chunk>, AgentError> {
        Err(AgentError::NotFound)
    }
    async fn forget(&self, _: Vec<String>) -> Result<(), AgentError> {
        Ok(())
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
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::local(folder.path()).unwrap());
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

#[tokio::test]
async fn a_run_that_is_on_no_machine_is_read_from_the_store() {
    let world = world(200, &[]).await;
    world.machine.present.store(false, Ordering::SeqCst);
    assert_eq!(read(world.source(true), 10).await, &world.machine.log[10..200]);
}

/// What the endpoint says while a new leader takes up Tasks.
#[tokio::test]
async fn a_leader_that_does_not_know_yet_what_runs_calls_no_log_complete() {
    let world = world(200, &[]).await;
    let live = Arc::new(Live::default());
    let fleet = Arc::new(LiveMachine(live.clone(), world.machine.clone()));
    let shared = Shared {
        machines: fleet,
        live: live.clone(),
        store: world.store.clone(),
        streams: Arc::new(Semaphore::new(8)),
    };
    let run = world.machine.run.clone();
    let read = |follow| {
        let task = Path(("n".to_owned(), UID.to_owned()));
        let query = Query(LogQuery {
            run: run.clone(),
            offset: 0,
            follow,
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
        }],
    );
    live.taken_up(&pool);
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

    fn agent(&self, machine: &MachineKey) -> Option<Arc<dyn AgentApi>> {
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
    let mut leaves = certs::Data::new();
    let mut authority = certs::Data::new();
    let now = Timestamp::now();
    let plan = certs::plan(&authority, &leaves, "ns", now);
    certs::issue(&plan, &mut authority, &mut leaves, "ns", now).unwrap();
    let get = |key: &str| leaves[key].as_slice();
    let server = tls::server(
        get(key::SERVER_CERTIFICATE),
        get(key::SERVER_KEY),
        Some(get(key::AUTHORITIES)),
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
        machines: Arc::new(world.machine.clone()),
        live: known,
        store: world.store.clone(),
        streams: streams.clone(),
    };
    let shutdown = CancellationToken::new();
    let (_keep, config) = watch::channel(server);
    let serving = tokio::spawn(serve::serve(
        listener,
        config,
        router(shared),
        8,
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
            stored: 100
        }]
    );
    let room = streams.try_acquire().unwrap();
    let busy = leader.log("n", UID, run, 0, true).await.err().unwrap();
    assert!(matches!(busy, data::DataError::Unavailable(_)), "{busy:?}");
    drop(room);
    let log = leader.log("n", UID, run, 17, true).await.unwrap();
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
        .log("n", UID, &data::run_id(UID, 9, 9), 0, false)
        .await
        .err();
    assert_eq!(unknown, Some(data::DataError::NotFound));

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
