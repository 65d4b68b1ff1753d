//! The life of one session: dial, prepare, hold, and again after a loss.
//!
//! Everything here ends when its future is dropped, so cancelling needs no care anywhere
//! else. It decides only what is a matter of the connection: trouble that passes is tried
//! again, everything else is published as `Failed` and ends the task. On a machine that was
//! Ready once work may go on, and nobody looks after it when its session has ended: there
//! every failure counts as one that passes, but a changed host key and a newer leader.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use jiff::Timestamp;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::{
    agent::{Agent, AgentError},
    bootstrap::{self, Bootstrap, BootstrapError, Prepared, Progress},
    connector,
    dial::{self, Stream},
    protocol::HelloReply,
    sessions::{
        AgentFacts, FailureKind, Published, SessionFailure, SessionSpec, SessionState, Shared, Stage, lock,
    },
    ssh::{ConnectError, Connection, ExecError, Login},
};

/// How long what may pass by itself is waited for. Shorter in tests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// First pause between attempts; they double up to the spec's `retry_interval`.
    pub(crate) first_pause: Duration,
    /// A booting machine answers SSH before its keys are in place.
    pub(crate) login: Duration,
    /// A port that is open before SSH speaks on it.
    pub(crate) greeting: Duration,
    /// From the agent's start to its first answer.
    pub(crate) agent: Duration,
    /// Between two looks whether an agent of another version has become idle.
    pub(crate) outdated: Duration,
    /// Longest pause after a failure on a machine that was Ready once: a step that fails is
    /// more work for it than a dial.
    pub(crate) mending: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            first_pause: Duration::from_millis(50),
            login: Duration::from_secs(30),
            greeting: Duration::from_secs(10),
            agent: Duration::from_secs(10),
            outdated: Duration::from_secs(5),
            mending: Duration::from_secs(30),
        }
    }
}

/// The pause before the next attempt: doubling from the first one up to the interval,
/// spread by up to a fifth so that many machines do not come at once. `chance` is in 0..1.
fn pause(attempt: u32, first: Duration, interval: Duration, chance: f64) -> Duration {
    let doubled = first.saturating_mul(1u32.checked_shl(attempt.min(20)).unwrap_or(u32::MAX));
    doubled.min(interval).mul_f64(0.8 + 0.4 * chance.clamp(0.0, 1.0))
}

/// Runs a session until it is cancelled or has failed.
pub(crate) async fn run(
    shared: Arc<Shared>,
    spec: watch::Receiver<Arc<SessionSpec>>,
    published: Arc<Mutex<Published>>,
    cancel: CancellationToken,
) {
    let mut session = Session {
        shared,
        spec,
        published,
        cancel: cancel.clone(),
        connection: None,
        deadline: None,
        readied: 0,
    };
    tokio::select! {
        biased;
        () = cancel.cancelled() => {}
        () = session.live() => {}
    }
    if let Some(connection) = session.connection.take() {
        connection.close().await;
    }
}

struct Session {
    shared: Arc<Shared>,
    spec: watch::Receiver<Arc<SessionSpec>>,
    published: Arc<Mutex<Published>>,
    cancel: CancellationToken,
    /// Kept here so that it can be closed politely whenever the session ends.
    connection: Option<Arc<Connection>>,
    /// End of the time for the bootstrap that is going on, over several connections. Not for
    /// a machine that was Ready once.
    deadline: Option<Instant>,
    /// How often the machine became Ready.
    readied: u64,
}

/// An agent that answered.
struct Attached {
    agent: Agent,
    /// Cancelled when it closes the connection.
    closed: CancellationToken,
    /// It is of another version than this controller's, and had runs when it was to be
    /// replaced.
    outdated: bool,
}

/// Why a session does not go on as it was.
enum Interruption {
    /// Dial again.
    Lost(String),
    /// The connection is good, its agent is not.
    AgentGone(String),
    /// It is over, unless the machine was Ready once.
    Failed(SessionFailure),
    /// It is over: the agent obeys a newer leader.
    Superseded,
}

impl Session {
    async fn live(&mut self) {
        let mut attempt = 0;
        let mut refused_since: Option<Instant> = None;
        loop {
            let spec = self.spec.borrow().clone();
            // What a session goes through on its way is in boxes: a session that is Ready
            // would otherwise hold room for all of it as long as it lives.
            let why = match Box::pin(self.connect(&spec)).await {
                Ok(connection) => {
                    refused_since = None;
                    let readied = self.readied;
                    let interruption = self.serve(&spec, connection).await;
                    self.connection = None;
                    if self.readied > readied {
                        attempt = 0;
                    }
                    match interruption {
                        Interruption::Lost(why) | Interruption::AgentGone(why) => why,
                        Interruption::Failed(failure) => return self.fail(failure),
                        Interruption::Superseded => {
                            return self.fail(failure(
                                FailureKind::AgentRefused,
                                "the agent takes orders from a newer controller".into(),
                            ));
                        }
                    }
                }
                Err(ConnectError::Unreachable(why)) => why,
                Err(error @ ConnectError::AuthRefused { .. }) => {
                    let since = *refused_since.get_or_insert_with(Instant::now);
                    let refused = failure(
                        FailureKind::AuthRefused,
                        format!(
                            "{error}. Another key is in its authorized_keys, or the image lets nobody log in as this user"
                        ),
                    );
                    if since.elapsed() < self.shared.patience.login {
                        error.to_string()
                    } else if self.was_ready() {
                        refused.message
                    } else {
                        return self.fail(refused);
                    }
                }
                Err(error @ ConnectError::HostKeyChanged { .. }) => {
                    return self.fail(failure(
                        FailureKind::HostKeyChanged,
                        format!("{error}: another machine answers at its address, or somebody is in between. It is not used any more"),
                    ));
                }
                Err(ConnectError::Unsupported(why)) if self.was_ready() => why,
                Err(ConnectError::Unsupported(why)) => {
                    return self.fail(failure(FailureKind::Unsupported, why));
                }
            };
            self.down(&why);
            sleep(pause(
                attempt,
                self.shared.patience.first_pause,
                spec.retry_interval,
                rand::random(),
            ))
            .await;
            attempt = attempt.saturating_add(1);
        }
    }

    /// Dials and logs in.
    async fn connect(&mut self, spec: &SessionSpec) -> Result<Arc<Connection>, ConnectError> {
        let unreachable = |why: String| ConnectError::Unreachable(why);
        let stream = dial::dial(&spec.endpoint.dial, self.shared.pods.as_ref())
            .await
            .map_err(|e| unreachable(e.to_string()))?;
        // The library reads each packet in two pieces: a buffer halves the system calls.
        let mut stream = BufReader::with_capacity(4 * 1024, stream);
        // A permit is held only while there is work to do: a port that is open and silent
        // must not keep other machines waiting.
        let greeting = timeout(self.shared.patience.greeting, stream.fill_buf()).await;
        match greeting {
            Ok(Ok([])) => {
                return Err(unreachable(
                    "the port is open, but SSH does not answer there yet".into(),
                ));
            }
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return Err(unreachable(error.to_string())),
            Err(_) => return Err(unreachable("the port is open, but nothing speaks there".into())),
        }
        let learnt = lock(&self.published).state.host_key.clone();
        let login = Login {
            user: &spec.endpoint.user,
            private_key: &spec.private_key,
            host_key: spec.host_key.as_deref().or(learnt.as_deref()),
        };
        let permit = self.shared.handshakes.acquire().await;
        let stream: Box<dyn Stream> = Box::new(stream);
        let connection = Arc::new(Connection::open(stream, &login).await?);
        drop(permit);
        self.connection = Some(connection.clone());
        let host_key = connection.host_key().to_owned();
        self.publish(|published| {
            published.state.host_key = Some(host_key);
            published.state.reachable_at.get_or_insert_with(Timestamp::now);
        });
        Ok(connection)
    }

    /// Prepares the machine and holds its agent, until the connection is lost.
    async fn serve(&mut self, spec: &SessionSpec, connection: Arc<Connection>) -> Interruption {
        let mut attempt = 0;
        loop {
            let attached = tokio::select! {
                why = connection.lost() => Err(Interruption::Lost(why)),
                attached = Box::pin(self.attach(spec, &connection)) => attached,
            };
            let interruption = match attached {
                Ok(attached) => {
                    attempt = 0;
                    self.hold(&connection, &attached).await
                }
                Err(interruption) => interruption,
            };
            let (why, interval) = match interruption {
                Interruption::AgentGone(why) => (why, spec.retry_interval),
                // The same connection is good enough: a machine without room for another
                // process could not give us a new one.
                Interruption::Failed(failure) if self.was_ready() => {
                    let why = in_words(&failure);
                    warn!(machine = %spec.machine, kind = failure.kind.name(), why, "the machine was ready before and is tried again");
                    (why, spec.retry_interval.max(self.shared.patience.mending))
                }
                other => return other,
            };
            self.down(&why);
            let pause = pause(
                attempt,
                self.shared.patience.first_pause,
                interval,
                rand::random(),
            );
            tokio::select! {
                why = connection.lost() => return Interruption::Lost(why),
                () = sleep(pause) => {}
            }
            attempt = attempt.saturating_add(1);
        }
    }

    /// From a connection to an agent that answered.
    async fn attach(
        &mut self,
        spec: &SessionSpec,
        connection: &Arc<Connection>,
    ) -> Result<Attached, Interruption> {
        let shared = self.shared.clone();
        let end = Instant::now() + spec.bootstrap.total_timeout;
        // What an attempt took that was cut off is no reason to give the next one less.
        let deadline = if self.was_ready() {
            end
        } else {
            *self.deadline.get_or_insert(end)
        };
        let machine = spec.machine.to_string();
        let bootstrap = Bootstrap {
            connection,
            spec: &spec.bootstrap,
            machine: &machine,
            binaries: &shared.binaries,
            uploads: &shared.uploads,
            deadline,
        };
        let mut progress = |progress: Progress| self.progress(progress);
        let prepared = bootstrap::prepare(&bootstrap, &mut progress)
            .await
            .map_err(bootstrap_interruption)?;
        if prepared.may_run {
            match greet(connection, &prepared, spec).await {
                Ok((agent, closed, hello)) if hello.agent_digest == prepared.binary.digest => {
                    return Ok(self.ready(agent, closed, hello, &prepared));
                }
                Ok(_) => debug!(machine, "the agent is an older one"),
                Err(Greeting::Refused(interruption)) => return Err(interruption),
                Err(Greeting::Silent(why)) => debug!(machine, why, "the agent does not answer"),
            }
        }
        bootstrap
            .start(&prepared, &mut progress)
            .await
            .map_err(bootstrap_interruption)?;
        let patience = Instant::now() + self.shared.patience.agent;
        loop {
            match greet(connection, &prepared, spec).await {
                Ok((agent, closed, hello)) => return Ok(self.ready(agent, closed, hello, &prepared)),
                Err(Greeting::Refused(interruption)) => return Err(interruption),
                Err(Greeting::Silent(why)) if Instant::now() >= patience => {
                    return Err(Interruption::Failed(SessionFailure {
                        kind: FailureKind::StepFailed,
                        step: Some("start".into()),
                        message: format!("the agent was started but does not answer: {why}"),
                    }));
                }
                Err(Greeting::Silent(_)) => sleep(Duration::from_millis(50)).await,
            }
        }
    }

    /// Publishes the agent.
    fn ready(
        &mut self,
        agent: Agent,
        closed: CancellationToken,
        hello: HelloReply,
        prepared: &Prepared,
    ) -> Attached {
        let outdated = hello.agent_digest != prepared.binary.digest;
        self.deadline = None;
        self.readied += 1;
        let facts = AgentFacts {
            version: hello.agent_version,
            python: hello.python,
            accelerators: hello.accelerators,
            boot_id: hello.boot_id,
            addresses: hello.addresses.into_iter().collect(),
        };
        info!(machine = %self.spec.borrow().machine, version = facts.version, "machine is ready");
        let published = agent.clone();
        self.publish(|p| {
            let now = Timestamp::now();
            p.state.bootstrapped_at.get_or_insert(now);
            p.state.ready_at.get_or_insert(now);
            p.state.agent = Some(facts);
            p.state.stage = Stage::Ready;
            p.agent = Some(published);
        });
        Attached {
            agent,
            closed,
            outdated,
        }
    }

    /// Keeps the lease until something breaks.
    async fn hold(&mut self, connection: &Connection, attached: &Attached) -> Interruption {
        let Attached {
            agent,
            closed,
            outdated,
        } = attached;
        let outdated = outdated.then_some(self.shared.patience.outdated);
        let mut spec = self.spec.clone();
        let interruption = tokio::select! {
            biased;
            why = connection.lost() => Interruption::Lost(why),
            () = closed.cancelled() => Interruption::AgentGone("the agent closed the connection".into()),
            interruption = keep_lease(agent, &mut spec, outdated) => interruption,
        };
        self.publish(|published| published.agent = None);
        interruption
    }

    fn publish(&self, change: impl FnOnce(&mut Published)) {
        // A newer session of the same machine may be publishing already: its own record.
        if self.cancel.is_cancelled() {
            return;
        }
        change(&mut lock(&self.published));
        self.shared.changed(&self.spec.borrow().machine);
    }

    fn state(&self) -> SessionState {
        lock(&self.published).state.clone()
    }

    /// Whether its agent answered before, this controller or another one.
    fn was_ready(&self) -> bool {
        lock(&self.published).state.ready_at.is_some()
    }

    /// The machine is out of reach for now.
    fn down(&self, why: &str) {
        let state = self.state();
        let stage = match state.stage {
            Stage::Reconnecting { since, .. } => Stage::Reconnecting {
                last_error: why.to_owned(),
                since,
            },
            _ if state.ready_at.is_some() => {
                warn!(machine = %self.spec.borrow().machine, why, "connection to the machine is lost");
                Stage::Reconnecting {
                    last_error: why.to_owned(),
                    since: Timestamp::now(),
                }
            }
            _ => Stage::Dialing {
                last_error: Some(why.to_owned()),
            },
        };
        if stage != lock(&self.published).state.stage {
            self.publish(|published| published.state.stage = stage);
        }
    }

    fn progress(&self, progress: Progress) {
        // Once Ready, coming back is Reconnecting, whatever has to be done for it.
        if self.was_ready() {
            return;
        }
        let Progress { step, index, total } = progress;
        self.publish(|published| published.state.stage = Stage::Bootstrapping { step, index, total });
    }

    fn fail(&self, failure: SessionFailure) {
        warn!(machine = %self.spec.borrow().machine, kind = failure.kind.name(), "{}", failure.message);
        self.publish(|published| published.state.stage = Stage::Failed(failure));
    }
}

fn failure(kind: FailureKind, message: String) -> SessionFailure {
    SessionFailure {
        kind,
        step: None,
        message,
    }
}

fn bootstrap_interruption(error: BootstrapError) -> Interruption {
    let failed = |kind, step: &str, message| {
        Interruption::Failed(SessionFailure {
            kind,
            step: Some(step.to_owned()),
            message,
        })
    };
    match error {
        BootstrapError::Lost(why) => Interruption::Lost(why),
        BootstrapError::Failed { step, message } => failed(FailureKind::StepFailed, step, message),
        BootstrapError::TimedOut { step, message } => failed(FailureKind::StepTimedOut, step, message),
        BootstrapError::Unsupported(message) => {
            Interruption::Failed(failure(FailureKind::Unsupported, message))
        }
    }
}

/// A failure as the reason of a connection that is down.
fn in_words(failure: &SessionFailure) -> String {
    let SessionFailure { step, message, .. } = failure;
    step.as_ref()
        .map_or_else(|| message.clone(), |step| format!("step \"{step}\": {message}"))
}

/// Why an agent did not greet us.
enum Greeting {
    /// Nobody there, yet or any more.
    Silent(String),
    /// It does not want us.
    Refused(Interruption),
}

/// Opens a connection to the agent and exchanges Hello.
async fn greet(
    connection: &Connection,
    prepared: &Prepared,
    spec: &SessionSpec,
) -> Result<(Agent, CancellationToken, HelloReply), Greeting> {
    let silent = |error: ExecError| Greeting::Silent(error.to_string());
    let (stream, bridged) = connection
        .socket(&prepared.socket(), &prepared.bridge())
        .await
        .map_err(silent)?;
    let (channel, closed) = connector::open(stream)
        .await
        .map_err(|error| Greeting::Silent(error.to_string()))?;
    let agent = Agent::new(channel, spec.epoch);
    let refused = |message: String| {
        Greeting::Refused(Interruption::Failed(failure(FailureKind::AgentRefused, message)))
    };
    match agent.hello().await {
        Ok(hello) if hello.machine == spec.machine.to_string() => {
            if bridged {
                connection.prefer_bridge();
            }
            Ok((agent.can(&hello), closed, hello))
        }
        Ok(hello) => Err(refused(format!(
            "the agent there belongs to machine \"{}\": two machines share one address or one home directory",
            hello.machine
        ))),
        Err(AgentError::StaleEpoch) => Err(Greeting::Refused(Interruption::Superseded)),
        Err(AgentError::Refused(why)) => Err(refused(format!("the agent refuses this controller: {why}"))),
        Err(error @ (AgentError::Disconnected(_) | AgentError::NotFound | AgentError::Busy(_))) => {
            Err(Greeting::Silent(error.to_string()))
        }
    }
}

/// Renews the lease for as long as the agent takes it. One of another version is looked at
/// that often, and is given up as soon as it runs nothing: to begin anew replaces it.
async fn keep_lease(
    agent: &Agent,
    spec: &mut watch::Receiver<Arc<SessionSpec>>,
    outdated: Option<Duration>,
) -> Interruption {
    let mut first = true;
    loop {
        let lease = spec.borrow_and_update().lease;
        let renewal = Box::pin(agent.renew_lease(lease.instance_timeout, lease.orphan_timeout));
        let next = match renewal.await {
            // It was just begun with: that it is still the other one has another reason.
            Ok(reply) if outdated.is_some() && reply.running == 0 && !first => {
                return Interruption::AgentGone("it is idle, so its agent is replaced by a newer one".into());
            }
            Ok(_) => outdated.map_or(lease.interval(), |look| look.min(lease.interval())),
            Err(AgentError::StaleEpoch) => return Interruption::Superseded,
            Err(AgentError::Disconnected(why)) => return Interruption::AgentGone(why),
            Err(error @ (AgentError::NotFound | AgentError::Refused(_) | AgentError::Busy(_))) => {
                warn!(machine = %spec.borrow().machine, %error, "the agent did not renew its lease");
                lease.interval() / 4
            }
        };
        first = false;
        tokio::select! {
            () = sleep(next) => {}
            changed = spec.changed() => {
                if changed.is_err() {
                    // The session is being removed.
                    std::future::pending::<()>().await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_attempts_come_fast_and_never_slower_than_the_interval() {
        let at = |attempt, chance| pause(attempt, Duration::from_millis(50), Duration::from_secs(2), chance);
        assert_eq!(at(0, 0.5), Duration::from_millis(50));
        assert_eq!(at(1, 0.5), Duration::from_millis(100));
        assert_eq!(at(3, 0.5), Duration::from_millis(400));
        assert_eq!(at(10, 0.5), Duration::from_secs(2));
        assert_eq!(at(u32::MAX, 0.5), Duration::from_secs(2));
        assert_eq!(
            (at(0, 0.0), at(0, 1.0)),
            (Duration::from_millis(40), Duration::from_millis(60))
        );
    }
}
