//! The protocol's service: answers the controller from the ledger and the runs.

use std::{
    fs::File,
    io::{self, Read},
    path::PathBuf,
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use bytes::Bytes;
use futures::Stream;
use parking_lot::Mutex;
use skyward_bundle::Digest;
use tokio::{
    sync::{mpsc, watch},
    time::MissedTickBehavior,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::{
    bundles::{self, Bundles, Part, Progress},
    git::{Fetches, Order},
    home::Home,
    items::Opened,
    journal::Commander,
    lease::{self, Lease, Limits},
    ledger::{Happened, Ledger, LedgerError, What},
    log_files::{self, LogReader},
    machine::{Probes, addresses},
    progress::Progresses,
    runs::{Runs, StopOrder},
    users,
};
use crate::protocol::{
    Chunk, Fact, FetchGitReply, FetchGitRequest, Finished, ForgetReply, ForgetRequest, HelloReply,
    HelloRequest, ID_BYTES, INLINE_BYTES, LAST_MS, LAST_SIGNAL, LONGEST, LeaseReply, LeaseRequest,
    MESSAGE_BYTES, NotForked, PART_BYTES, PutBundleReply, PutBundleRequest, ReadBundleRequest,
    ReadLogRequest, ReadResultRequest, Reclaim, Replayed, RunState, StartRequest, StopRequest, TAIL_BYTES,
    WatchRequest, agent_server::Agent, fact, is_exception, is_run_id, version,
};

/// Facts read from the ledger at once.
const FACTS: usize = 64;
/// Chunks under way to a slow reader.
const CHUNKS: usize = 4;
/// Time between two looks at how far runs are.
const LOOK: Duration = Duration::from_secs(2);
/// How soon a following reader sees new output.
const FOLLOW: Duration = Duration::from_millis(50);

pub(super) type Sending<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

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
    pub(super) bundles: Bundles,
    pub(super) fetches: Fetches,
    pub(super) runs: Runs,
    pub(super) items: Opened,
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
        let lease = self.lease.lock();
        (lease.expired(counts, self.began.elapsed()), lease.pause())
    }
}

impl From<LedgerError> for Status {
    fn from(error: LedgerError) -> Self {
        let text = error.to_string();
        match error {
            LedgerError::NoRoom(_) => Self::resource_exhausted(text),
            LedgerError::StaleEpoch { .. } => Self::failed_precondition(text),
            LedgerError::Foreign { .. } => Self::permission_denied(text),
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
    type ReadBundleStream = Sending<Chunk>;

    async fn hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        let HelloRequest {
            protocol_min,
            protocol_max,
            epoch,
            epoch_proof,
            installation,
        } = request.into_inner();
        if epoch_proof.len() > ID_BYTES || installation.len() > ID_BYTES {
            return Err(Status::invalid_argument(format!(
                "the id of an installation and the proof of an epoch have at most {ID_BYTES} bytes"
            )));
        }
        let protocol = version::negotiate(protocol_min, protocol_max).ok_or_else(|| {
            Status::unimplemented(format!(
                "the agent speaks protocol {} to {}, the controller {protocol_min} to {protocol_max}",
                version::PROTOCOL_MIN,
                version::PROTOCOL_MAX
            ))
        })?;
        let own = &self.0;
        // Epochs begin at 1; 0 is a local caller that is no leader.
        let (newest_epoch, epoch_proof) = if epoch == 0 {
            (0, String::new())
        } else {
            let given = Commander {
                installation,
                epoch,
                proof: epoch_proof,
            };
            own.ledger.greet(given).await?
        };
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
            newest_epoch,
            epoch_proof,
            takes_bundles: true,
            fetches_git: true,
            takes_pickles: true,
            runs_items: true,
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
        // A run that is promised keeps its bundle.
        if !spec.bundle.is_empty() && self.0.ledger.run(&spec.run_id).is_none() {
            self.has_bundle(&spec.bundle).await?;
        }
        let state = self.0.runs.start(spec).await?;
        Ok(Response::new(to_state(&self.0.home, state)))
    }

    async fn put_bundle(
        &self,
        request: Request<PutBundleRequest>,
    ) -> Result<Response<PutBundleReply>, Status> {
        let PutBundleRequest {
            epoch,
            digest,
            bytes,
            offset,
            data,
        } = request.into_inner();
        let digest = digest.parse::<Digest>().map_err(Status::invalid_argument)?;
        if data.len() > PART_BYTES {
            return Err(Status::invalid_argument(format!(
                "a part of a bundle has at most {PART_BYTES} bytes"
            )));
        }
        self.0.ledger.admit(epoch).await?;
        let own = self.0.clone();
        let progress = off_thread(move || {
            let part = Part {
                digest,
                bytes,
                offset,
                data: &data,
            };
            own.bundles
                .put(part, &own.ledger.wanted_bundles(), SystemTime::now())
        });
        let (complete, offset) = match progress.await?? {
            Progress::Whole => (true, bytes),
            Progress::Upto(offset) => (false, offset),
        };
        Ok(Response::new(PutBundleReply { complete, offset }))
    }

    async fn fetch_git(&self, request: Request<FetchGitRequest>) -> Result<Response<FetchGitReply>, Status> {
        let request = request.into_inner();
        let epoch = request.epoch;
        let order = Order::of(request).map_err(Status::invalid_argument)?;
        self.0.ledger.admit(epoch).await?;
        let own = self.0.clone();
        let fetch = self.0.fetches.fetch(order, move |bundle| {
            own.bundles
                .take(bundle, &own.ledger.wanted_bundles(), SystemTime::now())
        });
        let fetched = self.0.shutdown.run_until_cancelled(fetch).await;
        let fetched = fetched.unwrap_or_else(|| Err(Status::unavailable("the agent is stopping")));
        fetched.map(Response::new)
    }

    async fn read_bundle(
        &self,
        request: Request<ReadBundleRequest>,
    ) -> Result<Response<Self::ReadBundleStream>, Status> {
        let ReadBundleRequest { digest, offset } = request.into_inner();
        let digest = digest.parse::<Digest>().map_err(Status::invalid_argument)?;
        let own = self.0.clone();
        let is_here = off_thread(move || own.bundles.has(digest, SystemTime::now())).await?;
        if !is_here.map_err(|error| unreadable(&error))? {
            return Err(Status::not_found(format!(
                "bundle {digest} is not on this machine"
            )));
        }
        let path = bundles::path_of(&self.0.home.bundles(), digest);
        Ok(Response::new(
            self.sending(move |chunks| send_file(path, offset, chunks)),
        ))
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
        // A client whose cursor is ahead of ours followed an earlier agent: it gets everything.
        let since = Some(since)
            .filter(|since| *since <= *newest.borrow())
            .unwrap_or(0);
        let (facts, stream) = mpsc::channel(FACTS);
        let own = self.0.clone();
        let mut reclaim = own.reclaim.clone();
        // A present notice is news to a new client.
        reclaim.mark_changed();
        let mut why_not = own.runs.why_not_forked();
        if !why_not.borrow().is_empty() {
            why_not.mark_changed();
        }
        tokio::spawn(async move {
            let send = async {
                let mut since = since;
                // Read before the facts: a run without a fact may get one meanwhile, and is then
                // told twice, but never not at all.
                let mut replayed = mark_replay.then(|| Replayed {
                    accepted: own.ledger.not_started(),
                });
                let mut progress = Progresses::default();
                let mut look = tokio::time::interval(LOOK);
                look.set_missed_tick_behavior(MissedTickBehavior::Delay);
                loop {
                    newest.mark_unchanged();
                    loop {
                        let happened = own.ledger.facts(since, FACTS);
                        let Some(last) = happened.last() else { break };
                        since = last.seq;
                        for one in happened {
                            if let What::Finished(_) = one.what {
                                let ended = vec![one.run_id.clone()];
                                for fact in progress.news(&own.home, ended).await {
                                    facts.send(Ok(fact)).await.ok()?;
                                }
                                progress.forget(&one.run_id);
                            }
                            facts.send(Ok(to_fact(&own.home, one))).await.ok()?;
                        }
                    }
                    if let Some(replayed) = replayed.take() {
                        let mark = Fact {
                            fact: Some(fact::Fact::Replayed(replayed)),
                            ..Fact::default()
                        };
                        facts.send(Ok(mark)).await.ok()?;
                    }
                    tokio::select! {
                        changed = newest.changed() => changed.ok()?,
                        Ok(()) = reclaim.changed() => {
                            let at_ms = *reclaim.borrow_and_update();
                            let told = at_ms.map(|at_ms| Fact {
                                fact: Some(fact::Fact::Reclaim(Reclaim { at_ms })),
                                ..Fact::default()
                            });
                            if let Some(fact) = told {
                                facts.send(Ok(fact)).await.ok()?;
                            }
                        }
                        Ok(()) = why_not.changed() => {
                            let why = why_not.borrow_and_update().clone();
                            let told = Fact {
                                fact: Some(fact::Fact::NotForked(NotForked { why })),
                                ..Fact::default()
                            };
                            facts.send(Ok(told)).await.ok()?;
                        }
                        _ = look.tick() => {
                            for fact in progress.news(&own.home, own.ledger.running()).await {
                                facts.send(Ok(fact)).await.ok()?;
                            }
                        }
                        () = facts.closed() => return None::<()>,
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
            gaps,
        } = request.into_inner();
        self.0
            .ledger
            .has_finished(&run_id)
            .ok_or_else(|| not_found(&run_id))?;
        let own = self.0.clone();
        Ok(Response::new(self.sending(move |chunks| async move {
            send_log(&own, &run_id, offset, follow, gaps, &chunks).await
        })))
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
        Ok(Response::new(
            self.sending(move |chunks| send_file(path, offset, chunks)),
        ))
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
            installation,
        } = request.into_inner();
        // A leader of our installation with an older epoch commands nothing here, but renews the
        // lease: after a restore this machine must not stop itself before a person has decided.
        if !self.0.ledger.is_ours(&installation)? {
            self.0.ledger.admit(epoch).await?;
        }
        let (before, now) = {
            let mut lease = self.0.lease.lock();
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
        // A lease is renewed as long as somebody cares for this machine, also where no function runs on it.
        let own = self.0.clone();
        off_thread(move || own.runs.end_old_parents()).await?;
        let counts = self.0.ledger.counts();
        Ok(Response::new(LeaseReply {
            running: counts.running,
            uncollected: counts.uncollected,
        }))
    }
}

impl Service {
    /// An error, unless the bundle of a new run is here.
    async fn has_bundle(&self, digest: &str) -> Result<(), Status> {
        let digest = digest.parse::<Digest>().map_err(Status::invalid_argument)?;
        let own = self.0.clone();
        let is_here = off_thread(move || own.bundles.has(digest, SystemTime::now())).await?;
        if is_here.map_err(|error| unreadable(&error))? {
            return Ok(());
        }
        Err(Status::unavailable(format!(
            "bundle {digest} is not on this machine"
        )))
    }

    /// The chunks of `send`, until it or this daemon ends.
    fn sending<F>(&self, send: impl FnOnce(Chunks) -> F) -> Sending<Chunk>
    where
        F: Future<Output = Result<(), Status>> + Send + 'static,
    {
        let (chunks, stream) = mpsc::channel(CHUNKS + 1);
        // However far the reader is behind, there is room for an error: an orderly end would say that
        // everything was sent.
        let last = chunks.clone().try_reserve_owned();
        let (sent, shutdown) = (send(chunks), self.0.shutdown.clone());
        tokio::spawn(async move {
            let sent = shutdown.run_until_cancelled(sent).await;
            let sent = sent.unwrap_or_else(|| Err(Status::unavailable("the agent is stopping")));
            if let (Err(status), Ok(last)) = (sent, last) {
                last.send(Err(status));
            }
        });
        Box::pin(ReceiverStream::new(stream))
    }
}

type Chunks = mpsc::Sender<Result<Chunk, Status>>;

/// Sends a log from an offset on; with `follow` until its run has ended. A reader that knows no gaps
/// gets the part before the first gap. A run that is forgotten meanwhile ends the stream with an
/// error: an orderly end would say that all of the log was sent.
async fn send_log(
    own: &Inner,
    run_id: &str,
    mut offset: u64,
    follow: bool,
    gaps: bool,
    chunks: &Chunks,
) -> Result<(), Status> {
    let mut newest = own.ledger.newest();
    let mut reader = LogReader::new(own.home.run(run_id));
    'read: loop {
        newest.mark_unchanged();
        // Asked before reading: by then all output of an ended run is there.
        let ended = own.ledger.has_finished(run_id).unwrap_or_default();
        loop {
            let (back, read) = off_thread(move || {
                let read = reader.read(offset);
                (reader, read)
            })
            .await?;
            reader = back;
            let (at, data) = match read {
                Ok(Some(found)) => found,
                Ok(None) => break,
                // The run prints faster than this machine looks: it is read where it is then.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !ended => {
                    tokio::select! {
                        () = tokio::time::sleep(FOLLOW) => continue 'read,
                        () = chunks.closed() => return Ok(()),
                    }
                }
                Err(error) => return Err(unreadable(&error)),
            };
            if at > offset && !gaps {
                return Ok(());
            }
            offset = at + data.len() as u64;
            let chunk = Chunk {
                offset: at,
                data: data.into(),
            };
            if chunks.send(Ok(chunk)).await.is_err() {
                return Ok(());
            }
        }
        // Files are deleted after the record, so the log of a run that is known now was complete.
        if own.ledger.has_finished(run_id).is_none() {
            return Err(not_found(run_id));
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

/// Sends a file that does not grow, from an offset on.
async fn send_file(path: PathBuf, mut offset: u64, chunks: Chunks) -> Result<(), Status> {
    let file = match off_thread(move || File::open(path)).await? {
        Ok(file) => Arc::new(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(unreadable(&error)),
    };
    loop {
        let open = file.clone();
        let read = off_thread(move || log_files::read_chunk(&open, offset)).await?;
        let data = Bytes::from(read.map_err(|error| unreadable(&error))?);
        let length = data.len() as u64;
        if length == 0 || chunks.send(Ok(Chunk { offset, data })).await.is_err() {
            return Ok(());
        }
        offset += length;
    }
}

async fn off_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Status> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| Status::unavailable("the agent is stopping"))
}

fn unreadable(error: &io::Error) -> Status {
    Status::unavailable(format!("the file cannot be read: {error}"))
}

/// A state as it is sent: like a fact.
fn to_state(home: &Home, mut state: RunState) -> RunState {
    state.started_ms = state.started_ms.min(LAST_MS);
    state.finished = state
        .finished
        .map(|finished| with_small_files(home, &state.run_id, finished));
    state
}

/// A fact as it is sent: with the log and the result inside where they are small.
fn to_fact(home: &Home, happened: Happened) -> Fact {
    let Happened { seq, run_id, what } = happened;
    let what = match what {
        What::Started(mut started) => {
            started.at_ms = started.at_ms.min(LAST_MS);
            fact::Fact::Started(started)
        }
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
    within_limits(&mut finished);
    finished.log = small_file(&folder.log(), finished.log_bytes);
    finished.result = small_file(&folder.result(), finished.result_bytes);
    finished
}

/// Work that shares the agent's user may have forged the record of its end. A controller ends a
/// machine that sends impossible values, so they are bounded here.
pub(super) fn within_limits(finished: &mut Finished) {
    let Finished {
        ending: _,
        exit_code: _,
        signal,
        message,
        started_ms,
        finished_ms,
        log_bytes,
        log_dropped_bytes,
        // Read anew.
        log: _,
        log_tail,
        result_bytes,
        result: _,
        has_result,
        forked: _,
        exception,
    } = finished;
    *signal = (*signal).clamp(0, LAST_SIGNAL);
    message.truncate(message.floor_char_boundary(MESSAGE_BYTES + '…'.len_utf8()));
    if !is_exception(exception) {
        exception.clear();
    }
    let before_tail = log_tail.len().saturating_sub(TAIL_BYTES);
    log_tail.drain(..before_tail);
    for time in [started_ms, finished_ms] {
        *time = (*time).min(LAST_MS);
    }
    for bytes in [log_bytes, log_dropped_bytes, &mut *result_bytes] {
        *bytes = (*bytes).min(LONGEST);
    }
    if !*has_result {
        *result_bytes = 0;
    }
}

/// The content of a small file that is as long as when its run ended, else nothing. A process that
/// outlived the run may still have the result open and extend it.
fn small_file(path: &std::path::Path, bytes: u64) -> Vec<u8> {
    let mut data = Vec::new();
    if bytes != 0
        && bytes <= INLINE_BYTES as u64
        && let Ok(file) = File::open(path)
        && file.take(bytes + 1).read_to_end(&mut data).is_ok()
        && data.len() as u64 == bytes
    {
        return data;
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_work_wrote_about_its_own_end_is_told_within_the_limits() {
        let mut finished = Finished {
            signal: 100,
            message: "ä".repeat(10_000),
            started_ms: LAST_MS + 1,
            finished_ms: u64::MAX,
            log_bytes: u64::MAX,
            log_dropped_bytes: u64::MAX,
            log_tail: vec![b'x'; 10_000],
            result_bytes: u64::MAX,
            has_result: true,
            exception: "e".repeat(300),
            ..Finished::default()
        };
        within_limits(&mut finished);
        assert_eq!(finished.exception, "");
        let times = (finished.started_ms, finished.finished_ms);
        assert_eq!((finished.signal, times), (LAST_SIGNAL, (LAST_MS, LAST_MS)));
        assert!(finished.message.len() <= MESSAGE_BYTES + '…'.len_utf8());
        assert_eq!(finished.log_tail.len(), TAIL_BYTES);
        let sizes = [
            finished.log_bytes,
            finished.log_dropped_bytes,
            finished.result_bytes,
        ];
        assert_eq!(sizes, [LONGEST; 3]);
        finished.has_result = false;
        finished.signal = -1;
        within_limits(&mut finished);
        assert_eq!((finished.result_bytes, finished.signal), (0, 0));
    }

    #[test]
    fn a_result_that_grows_after_its_run_ended_is_not_read_to_its_end() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "1234").unwrap();
        assert_eq!(small_file(file.path(), 4), b"1234");
        for (path, bytes) in [(file.path(), 3), (file.path(), 5), ("/dev/zero".as_ref(), 10)] {
            assert_eq!(small_file(path, bytes), b"");
        }
    }
}
