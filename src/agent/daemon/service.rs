//! The protocol's service: what the controller asks, answered from the ledger and the runs.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::PathBuf,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::Stream;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::{
    home::Home,
    lease::{self, Lease, Limits},
    ledger::{Happened, Ledger, LedgerError, What},
    machine::{Probes, addresses},
    runs::{Runs, StopOrder},
    users,
};
use crate::protocol::{
    CHUNK_BYTES, Chunk, Fact, Finished, ForgetReply, ForgetRequest, HelloReply, HelloRequest, INLINE_BYTES,
    LeaseReply, LeaseRequest, ReadLogRequest, ReadResultRequest, Reclaim, Replayed, RunState, StartRequest,
    StopRequest, WatchRequest, agent_server::Agent, fact, is_run_id, version,
};

/// Facts read from the ledger at once.
const FACTS: usize = 64;
/// Chunks under way to a slow reader.
const CHUNKS: usize = 4;
/// How soon new output is seen by a reader that follows.
const FOLLOW: Duration = Duration::from_millis(50);

type Sending<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The service of one daemon; cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Service(pub(super) Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) home: Home,
    pub(super) machine: String,
    pub(super) boot_id: String,
    pub(super) digest: String,
    pub(super) ledger: Ledger,
    pub(super) runs: Runs,
    pub(super) probes: Probes,
    pub(super) lease: Mutex<Lease>,
    /// When the cloud takes this machine back, once it said so (Unix time in milliseconds).
    pub(super) reclaim: watch::Receiver<Option<u64>>,
    pub(super) began: Instant,
    pub(super) shutdown: CancellationToken,
}

impl Inner {
    /// Why this machine must stop itself now, if it must, and when to look again.
    pub(super) fn lease_expired(&self) -> (Option<String>, Duration) {
        let counts = self.ledger.counts();
        let lease = self.lease.lock().unwrap_or_else(PoisonError::into_inner);
        (lease.expired(counts, self.began.elapsed()), lease.pause())
    }
}

impl From<LedgerError> for Status {
    fn from(error: LedgerError) -> Self {
        let text = error.to_string();
        match error {
            LedgerError::NoRoom(_) => Self::resource_exhausted(text),
            LedgerError::StaleEpoch { .. } => Self::failed_precondition(text),
            LedgerError::Io(_) | LedgerError::Closed => Self::unavailable(text),
        }
    }
}

fn not_found(run_id: &str) -> Status {
    Status::not_found(format!("there is no run {run_id} on this machine"))
}

#[tonic::async_trait]
impl Agent for Service {
    type WatchStream = Sending<Fact>;
    type ReadLogStream = Sending<Chunk>;
    type ReadResultStream = Sending<Chunk>;

    async fn hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        let HelloRequest {
            protocol_min,
            protocol_max,
            epoch,
        } = request.into_inner();
        let protocol = version::negotiate(protocol_min, protocol_max).ok_or_else(|| {
            Status::unimplemented(format!(
                "the agent speaks protocol {} to {}, the controller {protocol_min} to {protocol_max}",
                version::PROTOCOL_MIN,
                version::PROTOCOL_MAX
            ))
        })?;
        let own = &self.0;
        // Epochs begin at 1; with 0 asks somebody on the machine who is no leader.
        if epoch != 0 {
            own.ledger.admit(epoch).await?;
        }
        let last_seq = *own.ledger.newest().borrow();
        Ok(Response::new(HelloReply {
            protocol,
            agent_version: version::AGENT_VERSION.to_owned(),
            agent_digest: own.digest.clone(),
            machine: own.machine.clone(),
            boot_id: own.boot_id.clone(),
            last_seq,
            python: own.probes.python(&own.home).await,
            accelerators: own.probes.accelerators().await,
            running: own.ledger.counts().running,
            user: users::own().name,
            marks_replay: true,
            addresses: addresses(),
        }))
    }

    async fn start(&self, request: Request<StartRequest>) -> Result<Response<RunState>, Status> {
        let StartRequest { epoch, spec } = request.into_inner();
        let spec = spec.ok_or_else(|| Status::invalid_argument("the request has no spec"))?;
        if !is_run_id(&spec.run_id) {
            return Err(Status::invalid_argument(
                "a run's id is 1 to 128 of a-z, 0-9 and -",
            ));
        }
        self.0.ledger.admit(epoch).await?;
        let state = self.0.runs.start(spec).await?;
        Ok(Response::new(to_state(&self.0.home, state)))
    }

    async fn stop(&self, request: Request<StopRequest>) -> Result<Response<RunState>, Status> {
        let StopRequest {
            epoch,
            run_id,
            grace_ms,
            why,
        } = request.into_inner();
        self.0.ledger.admit(epoch).await?;
        let state = self.0.runs.stop(&run_id, StopOrder { grace_ms, why });
        let state = state.ok_or_else(|| not_found(&run_id))?;
        Ok(Response::new(to_state(&self.0.home, state)))
    }

    async fn watch(&self, request: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let mut newest = self.0.ledger.newest();
        let WatchRequest { since, mark_replay } = request.into_inner();
        // Whoever saw more than there is saw another life of this agent: it gets everything.
        let since = Some(since)
            .filter(|since| *since <= *newest.borrow())
            .unwrap_or(0);
        let (facts, stream) = mpsc::channel(FACTS);
        let own = self.0.clone();
        let mut reclaim = own.reclaim.clone();
        // What is known by now is news to whoever comes now.
        reclaim.mark_changed();
        tokio::spawn(async move {
            let send = async {
                let mut since = since;
                // Looked at before the facts: what has no fact by now may get one meanwhile, and
                // is then told twice, but never not at all.
                let mut replayed = mark_replay.then(|| Replayed {
                    accepted: own.ledger.not_started(),
                });
                loop {
                    newest.mark_unchanged();
                    loop {
                        let happened = own.ledger.facts(since, FACTS);
                        let Some(last) = happened.last() else { break };
                        since = last.seq;
                        for one in happened {
                            let fact = to_fact(&own.home, one);
                            if facts.send(Ok(fact)).await.is_err() {
                                return;
                            }
                        }
                    }
                    if let Some(replayed) = replayed.take() {
                        let mark = Fact {
                            fact: Some(fact::Fact::Replayed(replayed)),
                            ..Fact::default()
                        };
                        if facts.send(Ok(mark)).await.is_err() {
                            return;
                        }
                    }
                    tokio::select! {
                        changed = newest.changed() => if changed.is_err() { return },
                        Ok(()) = reclaim.changed() => {
                            let at_ms = *reclaim.borrow_and_update();
                            let told = at_ms.map(|at_ms| Fact {
                                fact: Some(fact::Fact::Reclaim(Reclaim { at_ms })),
                                ..Fact::default()
                            });
                            if let Some(fact) = told && facts.send(Ok(fact)).await.is_err() {
                                return;
                            }
                        }
                        () = facts.closed() => return,
                    }
                }
            };
            own.shutdown.run_until_cancelled(send).await;
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn read_log(
        &self,
        request: Request<ReadLogRequest>,
    ) -> Result<Response<Self::ReadLogStream>, Status> {
        let ReadLogRequest {
            run_id,
            offset,
            follow,
        } = request.into_inner();
        self.0
            .ledger
            .has_finished(&run_id)
            .ok_or_else(|| not_found(&run_id))?;
        let path = self.0.home.run(&run_id).log();
        Ok(Response::new(self.send_file(run_id, path, offset, follow)))
    }

    async fn read_result(
        &self,
        request: Request<ReadResultRequest>,
    ) -> Result<Response<Self::ReadResultStream>, Status> {
        let ReadResultRequest { run_id, offset } = request.into_inner();
        let run = self.0.ledger.run(&run_id).ok_or_else(|| not_found(&run_id))?;
        if !run.finished.is_some_and(|(_, finished)| finished.has_result) {
            return Err(Status::failed_precondition(format!("run {run_id} has no result")));
        }
        let path = self.0.home.run(&run_id).result();
        Ok(Response::new(self.send_file(run_id, path, offset, false)))
    }

    async fn forget(&self, request: Request<ForgetRequest>) -> Result<Response<ForgetReply>, Status> {
        let ForgetRequest { epoch, run_ids } = request.into_inner();
        self.0.ledger.admit(epoch).await?;
        self.0.runs.forget(run_ids).await?;
        Ok(Response::new(ForgetReply {}))
    }

    async fn renew_lease(&self, request: Request<LeaseRequest>) -> Result<Response<LeaseReply>, Status> {
        let LeaseRequest {
            epoch,
            instance_timeout_ms,
            orphan_timeout_ms,
        } = request.into_inner();
        self.0.ledger.admit(epoch).await?;
        let (before, now) = {
            let mut lease = self.0.lease.lock().unwrap_or_else(PoisonError::into_inner);
            let before = lease.limits();
            lease.renew(
                Limits {
                    instance_timeout_ms,
                    orphan_timeout_ms,
                },
                self.0.began.elapsed(),
            );
            (before, lease.limits())
        };
        let path = self.0.home.lease();
        if before != now || !path.exists() {
            lease::save(&path, now);
        }
        let counts = self.0.ledger.counts();
        Ok(Response::new(LeaseReply {
            running: counts.running,
            uncollected: counts.uncollected,
        }))
    }
}

impl Service {
    /// Sends a file from an offset on; with `follow` until its run has ended.
    fn send_file(&self, run_id: String, path: PathBuf, offset: u64, follow: bool) -> Sending<Chunk> {
        let (chunks, stream) = mpsc::channel(CHUNKS);
        let own = self.0.clone();
        tokio::spawn(async move {
            let send = async {
                if let Err(status) = send_file(&own, &run_id, path, offset, follow, &chunks).await {
                    let _ = chunks.send(Err(status)).await;
                }
            };
            own.shutdown.run_until_cancelled(send).await;
        });
        Box::pin(ReceiverStream::new(stream))
    }
}

async fn send_file(
    own: &Inner,
    run_id: &str,
    path: PathBuf,
    mut offset: u64,
    follow: bool,
    chunks: &mpsc::Sender<Result<Chunk, Status>>,
) -> Result<(), Status> {
    let mut newest = own.ledger.newest();
    let mut file: Option<Arc<File>> = None;
    loop {
        newest.mark_unchanged();
        // Asked before reading: what an ended run wrote is there by then.
        let ended = own.ledger.has_finished(run_id).unwrap_or(true);
        if file.is_none() {
            file = match File::open(&path) {
                Ok(open) => Some(Arc::new(open)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(Status::unavailable(format!("the file cannot be read: {error}"))),
            };
        }
        if let Some(open) = &file {
            loop {
                let data = read_chunk(open.clone(), offset).await?;
                if data.is_empty() {
                    break;
                }
                let length = data.len() as u64;
                if chunks.send(Ok(Chunk { offset, data })).await.is_err() {
                    return Ok(());
                }
                offset += length;
            }
        }
        if ended || !follow {
            return Ok(());
        }
        tokio::select! {
            () = tokio::time::sleep(FOLLOW) => {}
            _ = newest.changed() => {}
            () = chunks.closed() => return Ok(()),
        }
    }
}

async fn read_chunk(file: Arc<File>, offset: u64) -> Result<Bytes, Status> {
    let read = tokio::task::spawn_blocking(move || {
        let mut data = vec![0; CHUNK_BYTES];
        let mut filled = 0;
        while filled < data.len() {
            match file.read_at(&mut data[filled..], offset + filled as u64)? {
                0 => break,
                count => filled += count,
            }
        }
        data.truncate(filled);
        io::Result::Ok(Bytes::from(data))
    });
    match read.await {
        Ok(Ok(data)) => Ok(data),
        Ok(Err(error)) => Err(Status::unavailable(format!("the file cannot be read: {error}"))),
        Err(_) => Err(Status::unavailable("the agent is stopping")),
    }
}

/// A state as it is sent: like a fact.
fn to_state(home: &Home, mut state: RunState) -> RunState {
    state.finished = state
        .finished
        .map(|finished| with_small_files(home, &state.run_id, finished));
    state
}

/// A fact as it is sent: with the log and the result inside where they are small.
fn to_fact(home: &Home, happened: Happened) -> Fact {
    let Happened { seq, run_id, what } = happened;
    let what = match what {
        What::Started(started) => fact::Fact::Started(started),
        What::Finished(finished) => fact::Fact::Finished(with_small_files(home, &run_id, *finished)),
    };
    Fact {
        seq,
        run_id,
        fact: Some(what),
    }
}

fn with_small_files(home: &Home, run_id: &str, mut finished: Finished) -> Finished {
    let folder = home.run(run_id);
    let small = |path: PathBuf, bytes: u64| {
        let fits = bytes != 0 && bytes <= INLINE_BYTES as u64;
        fits.then(|| std::fs::read(path).unwrap_or_default())
            .filter(|data| data.len() as u64 == bytes)
            .unwrap_or_default()
    };
    finished.log = small(folder.log(), finished.log_bytes);
    finished.result = small(folder.result(), finished.result_bytes);
    finished
}
