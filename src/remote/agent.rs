//! The calls to a machine's agent, each with a deadline.
//!
//! [`RunReader`] is what reads logs and results, as a trait, so that code that collects them can be
//! tested without an agent. Errors say what to do, not what broke: see [`AgentError`].

use std::{
    future::Future,
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, stream::BoxStream};
use prost::Message as _;
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, Streaming, codegen::http::Uri};

use crate::{
    budget::Account,
    limits::{self, Broken},
    protocol::{
        Chunk, FETCH, Fact, FetchGitReply, FetchGitRequest, ForgetRequest, FromWorkers, HelloReply,
        HelloRequest, LONGEST, LeaseReply, LeaseRequest, MAX_MESSAGE_BYTES, PART_BYTES, PutBundleReply,
        PutBundleRequest, ReadBundleRequest, ReadLogRequest, ReadResultRequest, RunSpec, RunState,
        StartRequest, StopRequest, ToWorkers, WatchRequest, agent_client::AgentClient,
        items_client::ItemsClient, to_workers,
    },
    wire::Wire,
};

/// Versions of the protocol that this controller speaks.
pub const PROTOCOL_MIN: u32 = 1;
/// See [`PROTOCOL_MIN`].
pub const PROTOCOL_MAX: u32 = 1;

/// Start may write to a slow disk, and its request may be large.
const START: Duration = Duration::from_secs(30);
/// Everything else that answers once.
const CALL: Duration = Duration::from_secs(15);
/// Hello also finds out that no agent answers.
const HELLO: Duration = Duration::from_secs(5);
/// Silence after which a stream that should flow is given up.
const SILENCE: Duration = Duration::from_mins(1);
/// What is said to workers of a map and not sent yet.
const ORDERS: usize = 64;

pub use skyward_core::session::AgentError;

/// Messages of a stream of the agent.
pub type AgentStream<T> = BoxStream<'static, Result<T, AgentError>>;

/// The bytes of a bundle, wherever they lie: a large one is never held whole.
#[async_trait]
pub trait BundleBytes: Send + Sync {
    /// How many there are.
    fn bytes(&self) -> u64;
    /// Some of them; the error says why they cannot be read now.
    async fn part(&self, range: Range<u64>) -> Result<Bytes, String>;
}

#[async_trait]
impl BundleBytes for Bytes {
    fn bytes(&self) -> u64 {
        self.len() as u64
    }

    async fn part(&self, range: Range<u64>) -> Result<Bytes, String> {
        Ok(self.slice(range.start as usize..range.end as usize))
    }
}

/// Reads the logs and results of a machine's runs. Implemented by [`Agent`]; tests bring their own.
#[async_trait]
pub trait RunReader: Send + Sync {
    /// A run's encoded log from an offset; with `follow` until the run has ended. A chunk whose
    /// offset is not the next one stands behind a gap: the machine does not keep what is missing.
    async fn read_log(
        &self,
        run_id: &str,
        offset: u64,
        follow: bool,
    ) -> Result<AgentStream<Chunk>, AgentError>;
    /// A function's return value from an offset.
    async fn read_result(&self, run_id: &str, offset: u64) -> Result<AgentStream<Chunk>, AgentError>;
}

/// A connected agent. Cheap to clone; useless once its connection is lost.
#[derive(Clone)]
pub struct Agent {
    /// Differs for each connection that this process makes.
    pub connection: u64,
    epoch: u64,
    epoch_proof: String,
    installation: String,
    marks_replay: bool,
    takes_bundles: bool,
    fetches_git: bool,
    takes_pickles: bool,
    runs_items: bool,
    /// Cancelled when it refused our epoch, for any command.
    refused: CancellationToken,
    client: AgentClient<Wire>,
    wire: Wire,
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent")
            .field("connection", &self.connection)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

impl Agent {
    /// An agent over a connection, commanded by that installation's leader of that epoch.
    pub(crate) fn new(wire: Wire, installation: &str, epoch: u64, epoch_proof: &str) -> Self {
        static CONNECTIONS: AtomicU64 = AtomicU64::new(1);
        Self {
            connection: CONNECTIONS.fetch_add(1, Ordering::Relaxed),
            epoch,
            epoch_proof: epoch_proof.to_owned(),
            installation: installation.to_owned(),
            marks_replay: false,
            takes_bundles: false,
            fetches_git: false,
            takes_pickles: false,
            runs_items: false,
            refused: CancellationToken::new(),
            client: AgentClient::with_origin(wire.clone(), Uri::from_static("http://agent"))
                .max_decoding_message_size(limits::LARGEST_MESSAGE)
                .max_encoding_message_size(MAX_MESSAGE_BYTES),
            wire,
        }
    }

    /// First call on each connection: identifies the agent and its abilities.
    pub async fn hello(&self) -> Result<HelloReply, AgentError> {
        let request = HelloRequest {
            protocol_min: PROTOCOL_MIN,
            protocol_max: PROTOCOL_MAX,
            epoch: self.epoch,
            epoch_proof: self.epoch_proof.clone(),
            installation: self.installation.clone(),
        };
        let reply = self
            .command(HELLO, "hello", self.client.clone().hello(request))
            .await?;
        let mut reply = self.checked(reply, limits::hello)?;
        limits::clean(&mut reply);
        Ok(reply)
    }

    /// Sets the abilities that the answer to Hello names.
    pub(crate) fn can(mut self, hello: &HelloReply) -> Self {
        self.marks_replay = hello.marks_replay;
        self.takes_bundles = hello.takes_bundles;
        self.fetches_git = hello.fetches_git;
        self.takes_pickles = hello.takes_pickles;
        self.runs_items = hello.runs_items;
        self
    }

    /// Waits until it refuses our epoch.
    pub(crate) async fn epoch_refused(&self) {
        self.refused.cancelled().await;
    }

    /// A call that carries our epoch.
    async fn command<T>(
        &self,
        limit: Duration,
        what: &str,
        answer: impl Future<Output = Result<tonic::Response<T>, Status>>,
    ) -> Result<T, AgentError> {
        let answered = self.call(limit, what, answer, map_command_status).await;
        if matches!(answered, Err(AgentError::StaleEpoch)) {
            self.refused.cancel();
        }
        answered
    }

    /// Keeps the machine alive for these times without us: idle, and with runs.
    pub async fn renew_lease(&self, instance: Duration, orphan: Duration) -> Result<LeaseReply, AgentError> {
        let request = LeaseRequest {
            epoch: self.epoch,
            instance_timeout_ms: milliseconds(instance),
            orphan_timeout_ms: milliseconds(orphan),
            installation: self.installation.clone(),
        };
        self.command(CALL, "renew the lease", self.client.clone().renew_lease(request))
            .await
    }

    /// Whether [`Agent::watch`] tells where the recorded facts end; older agents do not.
    pub fn marks_replay(&self) -> bool {
        self.marks_replay
    }

    /// Whether it knows bundles; an older agent would start a run without its files.
    pub fn takes_bundles(&self) -> bool {
        self.takes_bundles
    }

    /// Whether it fetches from git.
    pub fn fetches_git(&self) -> bool {
        self.fetches_git
    }

    /// Whether it knows functions that are pickles; an older agent would run an empty source.
    pub fn takes_pickles(&self) -> bool {
        self.takes_pickles
    }

    /// Whether it knows workers of maps; an older agent would do their work once, without an item.
    pub fn runs_items(&self) -> bool {
        self.runs_items
    }

    /// Opens the stream of the workers that a map has on this machine: what is said to them, and what they tell. It closes
    /// older streams of that map. It ends with an error, or when nothing more can be said.
    pub async fn work(
        &self,
        task_uid: &str,
    ) -> Result<(mpsc::Sender<ToWorkers>, AgentStream<FromWorkers>), AgentError> {
        let (orders, waiting) = mpsc::channel(ORDERS);
        let open = to_workers::Open {
            epoch: self.epoch,
            task_uid: task_uid.to_owned(),
        };
        let first = ToWorkers {
            message: Some(to_workers::Message::Open(open)),
        };
        let all = futures::stream::once(async { first }).chain(ReceiverStream::new(waiting));
        let mut client = ItemsClient::with_origin(self.wire.clone(), Uri::from_static("http://agent"))
            .max_decoding_message_size(limits::LARGEST_MESSAGE)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        let stream = self
            .command(CALL, "open the items of a map", client.work(all))
            .await?;
        let task_uid = task_uid.to_owned();
        let told = self.checked_stream(stream, None, move |told| limits::worker(told, &task_uid));
        Ok((orders, told))
    }

    /// The account that is charged for the room that the machine's facts and answers take.
    pub fn account(&self) -> Account {
        self.wire.meter().account().clone()
    }

    /// Starts a run, or answers with the state of the run of that id.
    pub async fn start(&self, spec: RunSpec) -> Result<RunState, AgentError> {
        let run = spec.run_id.clone();
        let request = StartRequest {
            epoch: self.epoch,
            spec: Some(spec),
        };
        fits(&request)?;
        let state = self
            .command(START, "start a run", self.client.clone().start(request))
            .await?;
        self.checked(state, |state| limits::state(state, &run))
    }

    /// Whether the bundle of that digest is on the machine.
    pub async fn has_bundle(&self, digest: &str) -> Result<bool, AgentError> {
        let asks = self.put_part(digest, LONGEST, 0, Bytes::new()).await?;
        Ok(asks.complete)
    }

    /// Brings a bundle to the machine, part by part, from where an earlier try has ended.
    pub async fn put_bundle(&self, digest: &str, bundle: &dyn BundleBytes) -> Result<(), AgentError> {
        let bytes = bundle.bytes();
        let mut reply = self.put_part(digest, bytes, 0, Bytes::new()).await?;
        // One more than it has parts, for each of them that was lost on its way.
        for _ in 0..=2 * bytes.div_ceil(PART_BYTES as u64) {
            if reply.complete {
                return Ok(());
            }
            let from = reply.offset.min(bytes);
            let part = bundle.part(from..bytes.min(from + PART_BYTES as u64)).await;
            let part = part.map_err(AgentError::Busy)?;
            reply = self.put_part(digest, bytes, reply.offset, part).await?;
        }
        Err(AgentError::Busy(
            "the machine does not take the code of the run".to_owned(),
        ))
    }

    /// Fetches a commit of a git repository to the machine. What the repository says is in the reply; dropping
    /// the future ends the fetch.
    pub async fn fetch_git(&self, request: FetchGitRequest) -> Result<FetchGitReply, AgentError> {
        let request = FetchGitRequest {
            epoch: self.epoch,
            ..request
        };
        let reply = self
            .command(
                FETCH + START,
                "fetch from git",
                self.client.clone().fetch_git(request),
            )
            .await?;
        let mut reply = self.checked(reply, limits::fetched)?;
        reply.message = limits::reason(&reply.message);
        Ok(reply)
    }

    /// Reads a bundle that is on the machine, from an offset on.
    pub async fn read_bundle(&self, digest: &str, offset: u64) -> Result<AgentStream<Chunk>, AgentError> {
        let request = ReadBundleRequest {
            digest: digest.to_owned(),
            offset,
        };
        let mut client = self.client.clone();
        let stream = self
            .call(CALL, "read a bundle", client.read_bundle(request), map_status)
            .await?;
        Ok(self.checked_stream(stream, Some("read a bundle"), in_order()))
    }

    async fn put_part(
        &self,
        digest: &str,
        bytes: u64,
        offset: u64,
        data: Bytes,
    ) -> Result<PutBundleReply, AgentError> {
        let request = PutBundleRequest {
            epoch: self.epoch,
            digest: digest.to_owned(),
            bytes,
            offset,
            data,
        };
        let reply = self
            .command(
                START,
                "take a part of a bundle",
                self.client.clone().put_bundle(request),
            )
            .await?;
        self.checked(reply, |reply| limits::progress(reply, bytes))
    }

    /// Asks a run to end; its end arrives as a fact.
    pub async fn stop(&self, run_id: &str, grace: Duration, why: &str) -> Result<RunState, AgentError> {
        let request = StopRequest {
            epoch: self.epoch,
            run_id: run_id.to_owned(),
            grace_ms: milliseconds(grace),
            why: why.to_owned(),
        };
        let state = self
            .command(CALL, "stop a run", self.client.clone().stop(request))
            .await?;
        self.checked(state, |state| limits::state(state, run_id))
    }

    /// Facts after `since`, first the recorded ones, then live. Ends only with an error.
    pub async fn watch(&self, since: u64) -> Result<AgentStream<Fact>, AgentError> {
        let request = WatchRequest {
            since,
            mark_replay: true,
        };
        // Silence is normal here: a lost connection ends the stream.
        let stream = self
            .call(CALL, "watch", self.client.clone().watch(request), map_status)
            .await?;
        Ok(self.checked_stream(stream, None, limits::fact))
    }

    /// Lets the agent delete these ended runs, of which everything is stored.
    pub async fn forget(&self, run_ids: Vec<String>) -> Result<(), AgentError> {
        let request = ForgetRequest {
            epoch: self.epoch,
            run_ids,
        };
        self.command(CALL, "forget runs", self.client.clone().forget(request))
            .await
            .map(|_| ())
    }

    async fn call<T>(
        &self,
        limit: Duration,
        what: &str,
        answer: impl Future<Output = Result<tonic::Response<T>, Status>>,
        map: fn(&Status) -> AgentError,
    ) -> Result<T, AgentError> {
        let answered = timeout(limit, answer).await.map_err(|_| late(what, limit))?;
        answered
            .map(tonic::Response::into_inner)
            .map_err(|status| self.judged(&status, map))
    }

    /// An answer, if it keeps to the limits.
    fn checked<T>(&self, answer: T, check: impl FnOnce(&T) -> Result<(), Broken>) -> Result<T, AgentError> {
        if let Err(broken) = check(&answer) {
            self.wire.breach().report(&broken);
        }
        match self.wire.breach().first() {
            Some(first) => Err(AgentError::Protocol(first.to_owned())),
            None => Ok(answer),
        }
    }

    /// A stream whose messages keep to the limits, and which, with the name of a call, must not
    /// fall silent before its end.
    fn checked_stream<T: Send + 'static>(
        &self,
        stream: Streaming<T>,
        flows: Option<&'static str>,
        check: impl FnMut(&T) -> Result<(), Broken> + Send + 'static,
    ) -> AgentStream<T> {
        let state = (self.clone(), stream, check);
        futures::stream::try_unfold(state, move |(agent, mut stream, mut check)| async move {
            let message = match flows {
                None => stream.message().await,
                Some(what) => match timeout(SILENCE, stream.message()).await {
                    Ok(message) => message,
                    Err(_) => return Err(late(what, SILENCE)),
                },
            };
            match message.map_err(|status| agent.judged(&status, map_status))? {
                Some(message) => {
                    let message = agent.checked(message, &mut check)?;
                    Ok(Some((message, (agent, stream, check))))
                }
                None => Ok(None),
            }
        })
        .boxed()
    }

    /// What to do about an error status.
    fn judged(&self, status: &Status, map: impl FnOnce(&Status) -> AgentError) -> AgentError {
        match self.wire.breach().first() {
            Some(first) => AgentError::Protocol(first.to_owned()),
            None => map(status),
        }
    }
}

/// Refuses a request that is too large for an agent: trying again would not help.
fn fits(request: &StartRequest) -> Result<(), AgentError> {
    let bytes = request.encoded_len();
    if bytes <= MAX_MESSAGE_BYTES {
        return Ok(());
    }
    Err(AgentError::Refused(format!(
        "the run's environment, arguments and source have {bytes} bytes together; at most {MAX_MESSAGE_BYTES} reach a machine. Put what is large into a file or an object store, and name it there"
    )))
}

/// Checks the pieces of a log, result or bundle one after the other.
fn in_order() -> impl FnMut(&Chunk) -> Result<(), Broken> + Send {
    let mut end = 0;
    move |chunk| limits::chunk(chunk, &mut end)
}

#[async_trait]
impl RunReader for Agent {
    async fn read_log(
        &self,
        run_id: &str,
        offset: u64,
        follow: bool,
    ) -> Result<AgentStream<Chunk>, AgentError> {
        let request = ReadLogRequest {
            run_id: run_id.to_owned(),
            offset,
            follow,
            gaps: true,
        };
        let mut client = self.client.clone();
        let stream = self
            .call(CALL, "read a log", client.read_log(request), map_status)
            .await?;
        let silence = (!follow).then_some("read a log");
        Ok(self.checked_stream(stream, silence, in_order()))
    }

    async fn read_result(&self, run_id: &str, offset: u64) -> Result<AgentStream<Chunk>, AgentError> {
        let request = ReadResultRequest {
            run_id: run_id.to_owned(),
            offset,
        };
        let mut client = self.client.clone();
        let stream = self
            .call(CALL, "read a result", client.read_result(request), map_status)
            .await?;
        Ok(self.checked_stream(stream, Some("read a result"), in_order()))
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn late(what: &str, limit: Duration) -> AgentError {
    AgentError::Disconnected(format!("no answer to \"{what}\" within {} s", limit.as_secs()))
}

/// What to do about the refusal of a command that carries our epoch.
fn map_command_status(status: &Status) -> AgentError {
    let is_theirs = std::error::Error::source(status).is_none();
    if is_theirs && status.code() == Code::FailedPrecondition {
        return AgentError::StaleEpoch;
    }
    map_status(status)
}

/// What to do about an error status.
fn map_status(status: &Status) -> AgentError {
    // A status with a source was made on our side of the wire.
    if std::error::Error::source(&status).is_some() {
        return AgentError::Disconnected(limits::reason(&in_words(status)));
    }
    // The machine's words are for people, and are cut.
    let why = || limits::reason(status.message());
    match status.code() {
        Code::Unavailable | Code::Cancelled | Code::DeadlineExceeded => AgentError::Disconnected(why()),
        Code::NotFound => AgentError::NotFound,
        Code::ResourceExhausted | Code::Aborted | Code::Internal | Code::Unknown => AgentError::Busy(why()),
        Code::Ok
        | Code::FailedPrecondition
        | Code::InvalidArgument
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::DataLoss
        | Code::Unauthenticated => AgentError::Refused(why()),
    }
}

/// The innermost cause tells what happened; the outer ones only wrap it.
fn in_words(error: &dyn std::error::Error) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_says_what_to_do() {
        for (status, expected) in [
            (
                Status::failed_precondition("no result"),
                AgentError::Refused("no result".into()),
            ),
            (Status::not_found("x"), AgentError::NotFound),
            (
                Status::resource_exhausted("disk"),
                AgentError::Busy("disk".into()),
            ),
            (Status::internal("bug"), AgentError::Busy("bug".into())),
            (Status::invalid_argument("no"), AgentError::Refused("no".into())),
            (
                Status::unavailable("gone"),
                AgentError::Disconnected("gone".into()),
            ),
            (
                Status::from_error(Box::new(std::io::Error::other("broken pipe"))),
                AgentError::Disconnected("broken pipe".into()),
            ),
            (
                Status::internal("x".repeat(100_000)),
                AgentError::Busy("x".repeat(509) + "…"),
            ),
        ] {
            assert_eq!(map_status(&status), expected);
        }
    }

    #[test]
    fn a_run_that_is_too_large_for_its_machine_is_refused_and_not_tried_again() {
        let of = |bytes: usize| StartRequest {
            epoch: 1,
            spec: Some(RunSpec {
                env: [("A".to_owned(), "x".repeat(bytes))].into(),
                ..RunSpec::default()
            }),
        };
        assert_eq!(fits(&of(1024 * 1024)), Ok(()));
        let refused = fits(&of(MAX_MESSAGE_BYTES));
        assert!(
            matches!(&refused, Err(AgentError::Refused(why)) if why.contains("at most 8388608")),
            "{refused:?}"
        );
    }

    #[test]
    fn only_a_command_can_be_refused_for_its_epoch_and_no_text_makes_it_so() {
        for text in ["", "stale epoch", "a newer controller"] {
            let refused = map_command_status(&Status::failed_precondition(text));
            assert_eq!(refused, AgentError::StaleEpoch);
            let refused = map_command_status(&Status::invalid_argument(text));
            assert_eq!(refused, AgentError::Refused(text.into()));
        }
    }
}
