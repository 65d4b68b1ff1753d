//! The agents of simulated machines. An agent speaks the real protocol over a stream in memory, answers from its
//! journal ([`crate::journal`]), and may lie where its machine is a liar's.
//!
//! The agent serves each connection within the runtime of the process that made it, so that the connection ends
//! with the process. The journal is of the world.

use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use async_trait::async_trait;
use futures::{Stream, StreamExt as _, stream};
use skyward_remote::protocol::{
    Chunk, Fact, FetchGitReply, FetchGitRequest, Finished, ForgetReply, ForgetRequest, HelloReply,
    HelloRequest, LeaseReply, LeaseRequest, PutBundleReply, PutBundleRequest, ReadBundleRequest,
    ReadLogRequest, ReadResultRequest, Replayed, RunSpec, RunState, StartRequest, StopRequest, WatchRequest,
    agent_server::{Agent, AgentServer},
    fact,
    finished::Ending,
    items_server::ItemsServer,
    run_state::Phase,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf},
    sync::watch,
    time::sleep,
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::{Request, Response, Status};
use tower::Service as _;

use crate::{
    calls::{Luck, To, Way},
    cloud::Rented,
    journal::{End, Run, milliseconds, told},
    planted::Fault,
    time::{HOUR, Moment, SECOND, lasting, now},
    world::{Truth, one_of, percent},
};

/// Bytes under way in one direction.
const WIRE: usize = 64 * 1024;
/// Of so many calls of a liar one is answered with a lie, in percent.
const LIES: u32 = 15;

/// The end of a stream that a process holds. It breaks when the agent dies.
struct Cable {
    stream: DuplexStream,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl AsyncRead for Cable {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.cut.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Cable {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A connection to the agent of the machine of that id; `None`: nothing answers there. `lost` cuts it.
pub(crate) fn connect(
    way: &Arc<Way>,
    id: &str,
    lost: &CancellationToken,
) -> Option<Box<dyn skyward_remote::Stream>> {
    let (machine, life) = {
        let mut truth = way.world.truth();
        let there = truth.rented(id).filter(|there| there.answers(now()))?;
        let machine = format!("{}/{}", there.mark.namespace, there.mark.machine);
        (machine, there.agent.life.clone())
    };
    let (ours, theirs) = tokio::io::duplex(WIRE);
    let service = Service {
        way: way.clone(),
        machine,
        id: id.to_owned(),
        life: life.clone(),
    };
    let (agent, items) = (AgentServer::new(service.clone()), ItemsServer::new(service));
    let both = tower::service_fn(move |request: http::Request<tonic::body::Body>| {
        let (mut agent, mut items) = (agent.clone(), items.clone());
        async move {
            if request.uri().path().contains(".Items/") {
                items.call(request).await
            } else {
                agent.call(request).await
            }
        }
    });
    let incoming = stream::iter([Ok::<_, io::Error>(theirs)]).chain(stream::pending());
    let cut = CancellationToken::new();
    let (cuts, lost) = (cut.clone(), lost.clone());
    tokio::spawn(async move {
        let server = tonic::transport::Server::builder();
        let serving = server.serve_with_incoming(both, incoming);
        tokio::select! {
            () = life.cancelled() => {}
            () = lost.cancelled() => {}
            _ = serving => {}
        }
        cuts.cancel();
    });
    Some(Box::new(Cable {
        stream: ours,
        cut: Box::pin(cut.cancelled_owned()),
    }))
}

/// The agent of one machine, for one connection.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) way: Arc<Way>,
    /// Its Machine, as `namespace/name`.
    machine: String,
    /// The cloud's id of the machine.
    pub(crate) id: String,
    life: CancellationToken,
}

pub(crate) type Answer<T> = Result<Response<T>, Status>;
pub(crate) type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// What a liar may do instead of the truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    /// It never answers.
    Silence,
    /// It says that it knows a newer epoch.
    NewerEpoch,
    /// It tells facts again.
    Repeats,
    /// It tells that a run has ended that another machine has.
    OthersEnd,
    /// It tells that a run, or an item, has ended that goes on.
    EarlyEnd,
}

impl Service {
    /// The agent's machine, while it answers.
    pub(crate) fn there<'a>(&self, truth: &'a mut Truth) -> Option<&'a mut Rented> {
        let there = truth.rented(&self.id)?;
        (there.answers(now()) && !self.life.is_cancelled()).then_some(there)
    }

    /// One of these lies, if the machine lies now.
    pub(crate) fn lie(&self, truth: &Truth, name: &str, lies: &[Lie]) -> Option<Lie> {
        if truth.calm || !truth.liars.contains(&self.id) {
            return None;
        }
        let mut random = self.way.world.chance(&format!("lie of {name}"));
        percent(&mut random, LIES).then(|| one_of(&mut random, lies))
    }

    /// One call: waits for its turn, does what it does, and waits for the answer.
    pub(crate) async fn call<T>(
        &self,
        what: String,
        effect: impl FnOnce(&mut Truth, &str) -> Result<T, Status> + Send,
    ) -> Result<T, Status> {
        let turn = self
            .way
            .turn(format!("{what} at {}", self.machine), To::Agent, true);
        let (name, luck) = turn.await;
        let lost = || Status::unavailable("the connection is lost");
        let done = {
            let mut truth = self.way.world.truth();
            let refused = match luck {
                Luck::Refused(_) => Some(Status::resource_exhausted("not now")),
                Luck::LostBefore => Some(lost()),
                _ => None,
            };
            if self.there(&mut truth).is_none() || self.lie(&truth, &name, &[Lie::Silence]).is_some() {
                truth.tell(format!("{name}: no answer"));
                None
            } else {
                let result = match refused {
                    Some(refused) => Err(refused),
                    None => effect(&mut truth, &name),
                };
                let refusal = result
                    .as_ref()
                    .err()
                    .map(|status| format!(": {}", status.message()));
                truth.tell(format!("{name}{}{}", refusal.unwrap_or_default(), luck.words()));
                Some(result)
            }
        };
        let Some(result) = done else {
            return std::future::pending().await;
        };
        if self.way.answered(luck).await {
            return Err(lost());
        }
        result
    }

    /// A call that carries the epoch of its leader.
    pub(crate) async fn command<T>(
        &self,
        what: String,
        epoch: u64,
        effect: impl FnOnce(&mut Truth) -> Result<T, Status> + Send,
    ) -> Result<T, Status> {
        let admitted = |truth: &mut Truth, name: &str| {
            let newest = self.there(truth).map_or(0, |there| there.agent.epoch.0);
            let lies = self.lie(truth, &format!("{name}, its epoch"), &[Lie::NewerEpoch]);
            if epoch < newest || lies.is_some() {
                return Err(Status::failed_precondition("stale epoch"));
            }
            effect(truth)
        };
        self.call(what, admitted).await
    }

    /// Starts a run, or tells the state of the run of that id.
    fn begin_run(&self, truth: &mut Truth, mut spec: RunSpec) -> Result<RunState, Status> {
        let (planted, at) = (truth.planted, now());
        let id = spec.run_id.clone();
        if planted == Some(Fault::TimeoutLost) {
            spec.timeout_ms = 0;
        }
        let gone = || Status::unavailable("the machine is gone");
        let journal = &mut self.there(truth).ok_or_else(gone)?.agent;
        if planted == Some(Fault::StartLost) && !journal.runs.contains_key(&id) {
            return Ok(RunState {
                run_id: id,
                phase: Phase::Running.into(),
                ..RunState::default()
            });
        }
        if !journal.runs.contains_key(&id) || planted == Some(Fault::StartedAnew) {
            let started = (journal.number(), at);
            let run = Run::of(&spec, &self.way, started);
            self.way.world.may_start(truth, &self.id, &spec, &run);
            let journal = &mut self.there(truth).ok_or_else(gone)?.agent;
            journal.runs.insert(id.clone(), run);
            journal.tell();
        }
        let journal = &mut self.there(truth).ok_or_else(gone)?.agent;
        let mut state = journal.state(&id, at).ok_or_else(gone)?;
        if planted == Some(Fault::TakenForEnded) {
            state.phase = Phase::Finished.into();
            state.finished = Some(succeeded(at));
        }
        Ok(spoilt(planted, state))
    }

    fn end_run(&self, truth: &mut Truth, id: &str) -> Result<RunState, Status> {
        let (planted, at) = (truth.planted, now());
        let unknown = || Status::not_found(format!("there is no run {id} on this machine"));
        if planted == Some(Fault::StopLost) {
            return Err(unknown());
        }
        let journal = &mut self.there(truth).ok_or_else(unknown)?.agent;
        journal.work(at);
        let run = journal.runs.get_mut(id).ok_or_else(unknown)?;
        // No further item of a worker begins.
        if let Some(share) = &mut run.share {
            share.close();
        }
        // It takes a moment to end.
        let soon = at + 2 * SECOND;
        if run.ends.0 > soon {
            run.ends = (soon, End::Stopped);
        }
        journal.tell();
        let state = journal.state(id, at).ok_or_else(unknown)?;
        truth.note_ends(&self.id);
        Ok(spoilt(planted, state))
    }

    fn forget_runs(&self, truth: &mut Truth, ids: Vec<String>) {
        if truth.planted == Some(Fault::ForgetLost) {
            return;
        }
        let lies = truth.liars.contains(&self.id);
        for id in ids {
            self.way.world.may_forget(truth, &self.id, &id);
            if let Some(there) = self.there(truth) {
                there.agent.settle(now());
                let runs = &mut there.agent.runs;
                // Only what has ended is forgotten.
                if lies || runs.get(&id).is_some_and(|run| run.finished.is_some()) {
                    runs.remove(&id);
                }
            }
        }
    }

    /// The facts that a stream tells next; `None`: the machine does not answer.
    fn news(&self, since: &mut u64, replayed: bool) -> Option<VecDeque<Fact>> {
        let mut truth = self.way.world.truth();
        let (planted, at) = (truth.planted, now());
        let journal = &mut self.there(&mut truth)?.agent;
        let mut facts = journal.facts(*since, at);
        if planted == Some(Fault::EndsUnheard) && replayed {
            facts.retain(|fact| !matches!(fact.fact, Some(fact::Fact::Finished(_))));
        }
        let Some(last) = facts.last() else {
            return Some(VecDeque::new());
        };
        *since = last.seq;
        for fact in &mut facts {
            if let Some(fact::Fact::Finished(end)) = &mut fact.fact {
                if planted == Some(Fault::ForgottenTooSoon) {
                    journal.runs.remove(&fact.run_id);
                }
                if planted == Some(Fault::ExitCodeLost) {
                    end.exit_code = 0;
                }
            }
        }
        let running = journal.runs.iter().find(|(_, run)| run.finished.is_none());
        let running = running.map(|(id, _)| id.clone());
        let lies = [Lie::Repeats, Lie::OthersEnd, Lie::EarlyEnd];
        let false_end = match self.lie(&truth, &format!("facts of {} at {at}", self.id), &lies) {
            Some(Lie::Repeats) => {
                facts.extend(facts.clone());
                None
            }
            Some(Lie::OthersEnd) => truth.tasks.run_elsewhere(&self.id),
            Some(Lie::EarlyEnd) => running,
            Some(Lie::Silence | Lie::NewerEpoch) | None => None,
        };
        if let Some(run) = false_end {
            truth.tell(format!("{} lies: {run} has ended", self.id));
            facts.push(told(*since, &run, fact::Fact::Finished(succeeded(at))));
        }
        Some(facts.into())
    }

    /// Until there may be other facts.
    async fn changes(&self, news: &mut watch::Receiver<u64>) {
        let next = {
            let mut truth = self.way.world.truth();
            let there = self.there(&mut truth);
            there.and_then(|there| there.agent.next_end())
        };
        let until = next.map_or(HOUR, |next| (next - now()).clamp(1, HOUR));
        tokio::select! {
            changed = news.changed() => if changed.is_err() { std::future::pending().await },
            () = sleep(lasting(until)) => {}
        }
    }

    /// Bytes of a run, from an offset on.
    async fn bytes(
        &self,
        what: &str,
        id: &str,
        offset: u64,
        of: impl FnOnce(&Run) -> &'static [u8] + Send,
    ) -> Answer<Streamed<Chunk>> {
        let read = |truth: &mut Truth, _: &str| {
            let run = self.there(truth).and_then(|there| there.agent.runs.get(id));
            let run = run.ok_or_else(|| Status::not_found(format!("there is no run {id}")))?;
            let from = usize::try_from(offset).unwrap_or(usize::MAX);
            Ok(of(run).get(from..).unwrap_or_default())
        };
        let data = self.call(format!("{what} {id}"), read).await?;
        let chunk = (!data.is_empty()).then(|| Chunk {
            offset,
            data: data.into(),
        });
        Ok(Response::new(stream::iter(chunk.map(Ok)).boxed()))
    }
}

/// The end of a run that is all well.
fn succeeded(at: Moment) -> Finished {
    Finished {
        ending: Ending::Exited.into(),
        started_ms: milliseconds(at),
        finished_ms: milliseconds(at),
        ..Finished::default()
    }
}

/// What the operator with that bug understands.
fn spoilt(planted: Option<Fault>, mut state: RunState) -> RunState {
    if let (Some(Fault::ExitCodeLost), Some(end)) = (planted, &mut state.finished) {
        end.exit_code = 0;
    }
    state
}

#[async_trait]
impl Agent for Service {
    type WatchStream = Streamed<Fact>;
    type ReadLogStream = Streamed<Chunk>;
    type ReadResultStream = Streamed<Chunk>;
    type ReadBundleStream = Streamed<Chunk>;

    async fn hello(&self, request: Request<HelloRequest>) -> Answer<HelloReply> {
        let HelloRequest {
            epoch, epoch_proof, ..
        } = request.into_inner();
        let greet = |truth: &mut Truth, _: &str| {
            let there = self.there(truth).ok_or_else(|| Status::unavailable("gone"))?;
            let journal = &mut there.agent;
            if epoch > journal.epoch.0 {
                journal.epoch = (epoch, epoch_proof);
            }
            Ok(HelloReply {
                protocol: 1,
                agent_version: "simulated".into(),
                machine: self.machine.clone(),
                boot_id: format!("boot-{}", journal.boot),
                last_seq: journal.next - 1,
                running: u32::try_from(journal.runs.len()).unwrap_or(0),
                marks_replay: true,
                runs_items: true,
                newest_epoch: journal.epoch.0,
                epoch_proof: journal.epoch.1.clone(),
                ..HelloReply::default()
            })
        };
        Ok(Response::new(self.call("hello".to_owned(), greet).await?))
    }

    async fn start(&self, request: Request<StartRequest>) -> Answer<RunState> {
        let StartRequest { epoch, spec } = request.into_inner();
        let spec = spec.ok_or_else(|| Status::invalid_argument("the request has no spec"))?;
        let what = format!("start {}", spec.run_id);
        let state = self.command(what, epoch, |truth| self.begin_run(truth, spec));
        Ok(Response::new(state.await?))
    }

    /// Its Tasks have no files.
    async fn put_bundle(&self, _: Request<PutBundleRequest>) -> Answer<PutBundleReply> {
        Err(Status::unimplemented("simulated runs have no files"))
    }

    async fn fetch_git(&self, _: Request<FetchGitRequest>) -> Answer<FetchGitReply> {
        Err(Status::unimplemented("simulated machines fetch nothing"))
    }

    async fn read_bundle(&self, _: Request<ReadBundleRequest>) -> Answer<Self::ReadBundleStream> {
        Err(Status::unimplemented("simulated runs have no files"))
    }

    async fn stop(&self, request: Request<StopRequest>) -> Answer<RunState> {
        let StopRequest { epoch, run_id, .. } = request.into_inner();
        let what = format!("stop {run_id}");
        let state = self.command(what, epoch, |truth| self.end_run(truth, &run_id));
        Ok(Response::new(state.await?))
    }

    async fn watch(&self, request: Request<WatchRequest>) -> Answer<Self::WatchStream> {
        let since = request.into_inner().since;
        let open = |truth: &mut Truth, _: &str| {
            let there = self.there(truth).ok_or_else(|| Status::unavailable("gone"))?;
            let journal = &there.agent;
            // A client whose cursor is ahead followed an earlier agent: it gets everything.
            let since = if since < journal.next { since } else { 0 };
            Ok((since, journal.news.subscribe()))
        };
        let (since, news) = self.call("watch".to_owned(), open).await?;
        let watching = Watching {
            service: self.clone(),
            since,
            news,
            waiting: VecDeque::new(),
            replayed: false,
        };
        let facts = stream::unfold(watching, |mut watching| async move {
            let fact = watching.next().await;
            Some((Ok(fact), watching))
        });
        Ok(Response::new(facts.boxed()))
    }

    async fn read_log(&self, request: Request<ReadLogRequest>) -> Answer<Self::ReadLogStream> {
        let ReadLogRequest { run_id, offset, .. } = request.into_inner();
        self.bytes("read the log of", &run_id, offset, |run| {
            // A run that goes on has not printed yet.
            run.finished.map_or(b"".as_slice(), |_| run.output.0)
        })
        .await
    }

    async fn read_result(&self, request: Request<ReadResultRequest>) -> Answer<Self::ReadResultStream> {
        let ReadResultRequest { run_id, offset } = request.into_inner();
        self.bytes("read the result of", &run_id, offset, Run::value)
            .await
    }

    async fn forget(&self, request: Request<ForgetRequest>) -> Answer<ForgetReply> {
        let ForgetRequest { epoch, run_ids } = request.into_inner();
        let what = format!("forget {}", run_ids.join(", "));
        let forget = |truth: &mut Truth| {
            self.forget_runs(truth, run_ids);
            Ok(ForgetReply {})
        };
        Ok(Response::new(self.command(what, epoch, forget).await?))
    }

    async fn renew_lease(&self, _: Request<LeaseRequest>) -> Answer<LeaseReply> {
        Ok(Response::new(LeaseReply::default()))
    }
}

/// One stream of facts.
struct Watching {
    service: Service,
    since: u64,
    news: watch::Receiver<u64>,
    waiting: VecDeque<Fact>,
    /// Whether the end of the recorded facts was told.
    replayed: bool,
}

impl Watching {
    async fn next(&mut self) -> Fact {
        loop {
            if let Some(fact) = self.waiting.pop_front() {
                return fact;
            }
            self.news.mark_unchanged();
            let Some(facts) = self.service.news(&mut self.since, self.replayed) else {
                return std::future::pending().await;
            };
            self.waiting = facts;
            if !std::mem::replace(&mut self.replayed, true) {
                self.waiting.push_back(Fact {
                    fact: Some(fact::Fact::Replayed(Replayed::default())),
                    ..Fact::default()
                });
            }
            if self.waiting.is_empty() {
                self.service.changes(&mut self.news).await;
            }
        }
    }
}
