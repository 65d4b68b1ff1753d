//! What can be asked of a machine's agent, each with a deadline.
//!
//! [`AgentApi`] is the same as a trait, so that those who only use agents can be tested
//! without one. Errors say what to do, not what broke: see [`AgentError`].

use std::{
    future::Future,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use tokio::time::timeout;
use tonic::{Code, Status, Streaming, transport::Channel};

use crate::protocol::{
    Chunk, Fact, ForgetRequest, HelloReply, HelloRequest, LeaseReply, LeaseRequest, ReadLogRequest,
    ReadResultRequest, RunSpec, RunState, StartRequest, StopRequest, WatchRequest, agent_client::AgentClient,
};

/// Versions of the protocol that this controller speaks.
pub const PROTOCOL_MIN: u32 = 1;
/// See [`PROTOCOL_MIN`].
pub const PROTOCOL_MAX: u32 = 1;

/// Start may write to a slow disk, and its request may be large.
const START: Duration = Duration::from_secs(30);
/// Everything else that answers once.
const CALL: Duration = Duration::from_secs(15);
/// Hello is also how we find out that nobody answers.
const HELLO: Duration = Duration::from_secs(5);
/// Silence after which a stream that should flow is given up.
const SILENCE: Duration = Duration::from_mins(1);
/// Largest message either way: a run's source or return value, with room to spare.
const MESSAGE: usize = 64 * 1024 * 1024;

/// Why an agent did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AgentError {
    /// The connection is gone or nobody answered; whether it happened is not known.
    #[error("the connection to the agent is lost: {0}")]
    Disconnected(String),
    /// A newer leader speaks with this agent: stop.
    #[error("the agent takes orders from a newer leader")]
    StaleEpoch,
    /// It does not know that run.
    #[error("the agent does not know that run")]
    NotFound,
    /// It will never do this; the reason is for the user.
    #[error("the agent refused: {0}")]
    Refused(String),
    /// Not now; ask again later.
    #[error("the agent cannot do that now: {0}")]
    Busy(String),
}

/// Messages of a stream of the agent.
pub type AgentStream<T> = BoxStream<'static, Result<T, AgentError>>;

/// What can be asked of an agent. Implemented by [`Agent`]; tests bring their own.
#[async_trait]
pub trait AgentApi: Send + Sync {
    /// Number of the connection; differs for each connection that this process makes.
    fn connection(&self) -> u64;
    /// Whether [`AgentApi::watch`] tells where the recorded facts end; older agents do not.
    fn marks_replay(&self) -> bool {
        false
    }
    /// Starts a run, or answers with the state of the run of that id.
    async fn start(&self, spec: RunSpec) -> Result<RunState, AgentError>;
    /// Asks a run to end; its end arrives as a fact.
    async fn stop(&self, run_id: &str, grace: Duration, why: &str) -> Result<RunState, AgentError>;
    /// Facts after `since`, first the recorded ones, then live.
    async fn watch(&self, since: u64) -> Result<AgentStream<Fact>, AgentError>;
    /// A run's encoded log from an offset; with `follow` until the run has ended.
    async fn read_log(
        &self,
        run_id: &str,
        offset: u64,
        follow: bool,
    ) -> Result<AgentStream<Chunk>, AgentError>;
    /// A function's return value from an offset.
    async fn read_result(&self, run_id: &str, offset: u64) -> Result<AgentStream<Chunk>, AgentError>;
    /// Everything of these ended runs is held elsewhere: the agent may delete them.
    async fn forget(&self, run_ids: Vec<String>) -> Result<(), AgentError>;
}

/// A connected agent. Cheap to clone; useless once its connection is lost.
#[derive(Clone)]
pub struct Agent {
    /// Differs for each connection that this process makes.
    pub connection: u64,
    epoch: u64,
    marks_replay: bool,
    client: AgentClient<Channel>,
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            connection,
            epoch,
            marks_replay: _,
            client: _,
        } = self;
        f.debug_struct("Agent")
            .field("connection", connection)
            .field("epoch", epoch)
            .finish_non_exhaustive()
    }
}

impl Agent {
    /// An agent over a channel, commanded by the leader of that epoch.
    pub fn new(channel: Channel, epoch: u64) -> Self {
        static CONNECTIONS: AtomicU64 = AtomicU64::new(1);
        Self {
            connection: CONNECTIONS.fetch_add(1, Ordering::Relaxed),
            epoch,
            marks_replay: false,
            client: AgentClient::new(channel)
                .max_decoding_message_size(MESSAGE)
                .max_encoding_message_size(MESSAGE),
        }
    }

    /// First call on each connection: who is there, and what it can do.
    pub async fn hello(&self) -> Result<HelloReply, AgentError> {
        let request = HelloRequest {
            protocol_min: PROTOCOL_MIN,
            protocol_max: PROTOCOL_MAX,
            epoch: self.epoch,
        };
        let mut client = self.client.clone();
        call(HELLO, "hello", client.hello(request)).await
    }

    /// What the answer to Hello says that it can do.
    pub(crate) fn can(mut self, hello: &HelloReply) -> Self {
        self.marks_replay = hello.marks_replay;
        self
    }

    /// Keeps the machine alive for these times without us: idle, and with runs.
    pub async fn renew_lease(&self, instance: Duration, orphan: Duration) -> Result<LeaseReply, AgentError> {
        let request = LeaseRequest {
            epoch: self.epoch,
            instance_timeout_ms: milliseconds(instance),
            orphan_timeout_ms: milliseconds(orphan),
        };
        let mut client = self.client.clone();
        call(CALL, "renew the lease", client.renew_lease(request)).await
    }

    /// Starts a run, or answers with the state of the run of that id.
    pub async fn start(&self, spec: RunSpec) -> Result<RunState, AgentError> {
        let request = StartRequest {
            epoch: self.epoch,
            spec: Some(spec),
        };
        let mut client = self.client.clone();
        call(START, "start a run", client.start(request)).await
    }

    /// Asks a run to end; its end arrives as a fact.
    pub async fn stop(&self, run_id: &str, grace: Duration, why: &str) -> Result<RunState, AgentError> {
        let request = StopRequest {
            epoch: self.epoch,
            run_id: run_id.to_owned(),
            grace_ms: milliseconds(grace),
            why: why.to_owned(),
        };
        let mut client = self.client.clone();
        call(CALL, "stop a run", client.stop(request)).await
    }

    /// Facts after `since`, first the recorded ones, then live. Ends only with an error.
    pub async fn watch(&self, since: u64) -> Result<AgentStream<Fact>, AgentError> {
        let mut client = self.client.clone();
        let request = WatchRequest {
            since,
            mark_replay: true,
        };
        // Silence is normal here: a lost connection ends the stream.
        Ok(open(client.watch(request), "watch")
            .await?
            .map_err(map_status)
            .boxed())
    }

    /// A run's encoded log from an offset; with `follow` until the run has ended.
    pub async fn read_log(
        &self,
        run_id: &str,
        offset: u64,
        follow: bool,
    ) -> Result<AgentStream<Chunk>, AgentError> {
        let request = ReadLogRequest {
            run_id: run_id.to_owned(),
            offset,
            follow,
        };
        let mut client = self.client.clone();
        let stream = open(client.read_log(request), "read a log").await?;
        Ok(if follow {
            stream.map_err(map_status).boxed()
        } else {
            flowing(stream, "read a log")
        })
    }

    /// A function's return value from an offset.
    pub async fn read_result(&self, run_id: &str, offset: u64) -> Result<AgentStream<Chunk>, AgentError> {
        let request = ReadResultRequest {
            run_id: run_id.to_owned(),
            offset,
        };
        let mut client = self.client.clone();
        Ok(flowing(
            open(client.read_result(request), "read a result").await?,
            "read a result",
        ))
    }

    /// Everything of these ended runs is held elsewhere: the agent may delete them.
    pub async fn forget(&self, run_ids: Vec<String>) -> Result<(), AgentError> {
        let request = ForgetRequest {
            epoch: self.epoch,
            run_ids,
        };
        let mut client = self.client.clone();
        call(CALL, "forget runs", client.forget(request))
            .await
            .map(|_| ())
    }
}

#[async_trait]
impl AgentApi for Agent {
    fn connection(&self) -> u64 {
        self.connection
    }
    fn marks_replay(&self) -> bool {
        self.marks_replay
    }
    async fn start(&self, spec: RunSpec) -> Result<RunState, AgentError> {
        Self::start(self, spec).await
    }
    async fn stop(&self, run_id: &str, grace: Duration, why: &str) -> Result<RunState, AgentError> {
        Self::stop(self, run_id, grace, why).await
    }
    async fn watch(&self, since: u64) -> Result<AgentStream<Fact>, AgentError> {
        Self::watch(self, since).await
    }
    async fn read_log(
        &self,
        run_id: &str,
        offset: u64,
        follow: bool,
    ) -> Result<AgentStream<Chunk>, AgentError> {
        Self::read_log(self, run_id, offset, follow).await
    }
    async fn read_result(&self, run_id: &str, offset: u64) -> Result<AgentStream<Chunk>, AgentError> {
        Self::read_result(self, run_id, offset).await
    }
    async fn forget(&self, run_ids: Vec<String>) -> Result<(), AgentError> {
        Self::forget(self, run_ids).await
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn late(what: &str, limit: Duration) -> AgentError {
    AgentError::Disconnected(format!("no answer to \"{what}\" within {} s", limit.as_secs()))
}

async fn call<T>(
    limit: Duration,
    what: &str,
    answer: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, AgentError> {
    match timeout(limit, answer).await {
        Ok(answer) => answer.map(tonic::Response::into_inner).map_err(map_status),
        Err(_) => Err(late(what, limit)),
    }
}

async fn open<T>(
    answer: impl Future<Output = Result<tonic::Response<Streaming<T>>, Status>>,
    what: &str,
) -> Result<Streaming<T>, AgentError> {
    call(CALL, what, answer).await
}

/// A stream that must not fall silent before its end.
fn flowing<T: Send + 'static>(stream: Streaming<T>, what: &'static str) -> AgentStream<T> {
    futures::stream::try_unfold(stream, move |mut stream| async move {
        match timeout(SILENCE, stream.message()).await {
            Ok(Ok(Some(message))) => Ok(Some((message, stream))),
            Ok(Ok(None)) => Ok(None),
            Ok(Err(status)) => Err(map_status(status)),
            Err(_) => Err(late(what, SILENCE)),
        }
    })
    .boxed()
}

/// What to do about an answer that is not one.
fn map_status(status: Status) -> AgentError {
    // A status with a source was made on our side of the wire.
    if std::error::Error::source(&status).is_some() {
        return AgentError::Disconnected(in_words(&status));
    }
    match status.code() {
        Code::Unavailable | Code::Cancelled | Code::DeadlineExceeded => {
            AgentError::Disconnected(status.message().to_owned())
        }
        Code::FailedPrecondition => AgentError::StaleEpoch,
        Code::NotFound => AgentError::NotFound,
        Code::ResourceExhausted | Code::Aborted | Code::Internal | Code::Unknown => {
            AgentError::Busy(status.message().to_owned())
        }
        Code::Ok
        | Code::InvalidArgument
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::DataLoss
        | Code::Unauthenticated => AgentError::Refused(status.message().to_owned()),
    }
}

/// The innermost cause says what happened, the outer ones only through what it came.
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
            (Status::failed_precondition("epoch 3 < 4"), AgentError::StaleEpoch),
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
        ] {
            assert_eq!(map_status(status), expected);
        }
    }
}
