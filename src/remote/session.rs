//! The life of one session: dial, prepare, hold, and again after a loss.
//!
//! Everything here ends when its future is dropped, so cancelling needs no care anywhere else. A
//! session decides only about its connection: it tries again after a failure that may pass, and
//! publishes any other as `Failed` and ends. Runs may go on at a machine that was Ready once, and
//! need its session: there every failure counts as one that may pass, except a changed host key and
//! a broken limit of the protocol.
//!
//! A session that panics begins anew, later each time: other machines do not notice.
//!
//! A session that holds an agent makes another environment when its spec asks for one: the lease is kept meanwhile, and
//! a step that fails leaves the machine as it is.
//!
//! An agent that refuses our epoch, or names a newer one, is given no command: its session asks
//! again after a pause, longer each time, and keeps the machine's lease in between. The
//! controller's own Lease tells whether a newer leader is behind that.

mod environment;

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt as _;
use parking_lot::Mutex;
use skyward_core::clock;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use crate::{
    agent::{Agent, AgentError},
    bootstrap::{self, Bootstrap, BootstrapError, Deadline, Prepared, Progress},
    budget::Account,
    connections::{self, Greeted},
    diagnosis::Diagnosis,
    dial::{self, Stream},
    mask::Mask,
    meter::Meter,
    patience::{Refusals, pause},
    proof,
    protocol::HelloReply,
    sessions::{
        AgentFacts, EpochClaim, FailureKind, HostKey, MachineKey, Published, SessionFailure, SessionSpec,
        Shared, Stage, epoch_claim,
    },
    ssh::{ConnectError, Connection, ExecError, Login},
    transcript::Transcript,
};

/// Log message about a machine that refuses our epoch.
const EPOCH_REFUSED: &str = "the agent refuses the epoch of this controller; its machine gets no command";

/// Text of the machine's status while a session that panicked rests.
const PANICKED: &str = "an error within this controller ended the connection; it is opened anew. The controller's log has the error: please report it";

/// Runs a session until it is cancelled or has failed.
pub(crate) async fn run(
    shared: Arc<Shared>,
    spec: watch::Receiver<Arc<SessionSpec>>,
    published: Arc<Mutex<Published>>,
    cancel: CancellationToken,
) {
    let account = shared.budget.account(&spec.borrow().machine.namespace);
    let mut session = Session {
        account,
        shared,
        spec,
        published,
        cancel: cancel.clone(),
        connection: None,
        deadline: None,
        stayed: 0,
        refusals: Refusals::default(),
    };
    let (first, longest) = session.shared.patience.panicked;
    let live = async {
        let mut panics = 0;
        while AssertUnwindSafe(session.live()).catch_unwind().await.is_err() {
            // The connection may be the cause of the panic.
            session.connection = None;
            error!(machine = %session.spec.borrow().machine, "the session of a machine panicked and begins anew");
            session.down(PANICKED);
            sleep(pause(panics, first, longest, rand::random())).await;
            panics = panics.saturating_add(1);
        }
    };
    tokio::select! {
        biased;
        () = cancel.cancelled() => {}
        () = live => {}
    }
    if let Some(connection) = session.connection.take() {
        connection.close().await;
    }
}

struct Session {
    /// The account that the machine's messages are charged to.
    account: Account,
    shared: Arc<Shared>,
    spec: watch::Receiver<Arc<SessionSpec>>,
    published: Arc<Mutex<Published>>,
    cancel: CancellationToken,
    /// Kept here so that it can be closed politely whenever the session ends.
    connection: Option<Arc<Connection>>,
    /// Deadline of the bootstrap, over several connections. `None` for a machine that was Ready
    /// once.
    deadline: Option<Deadline>,
    /// How many connections of its agent were stable.
    stayed: u64,
    /// How often its agent refused our epoch.
    refusals: Refusals,
}

/// Counts how long a session waited, also when the wait was cancelled.
struct Waiting<'a> {
    session: &'a Session,
    since: Instant,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let waited = self.since.elapsed();
        if let Some(deadline) = &self.session.deadline {
            deadline.extend(waited);
        }
        self.session.publish(|published| {
            published.state.waits_since = None;
            published.state.waited += waited;
        });
    }
}

/// An agent that answered.
struct Attached {
    agent: Agent,
    /// Cancelled when the agent closes the connection.
    closed: CancellationToken,
    /// Whether it is of another version than this controller's, and had runs when it was to be
    /// replaced.
    outdated: bool,
    /// Whether it names an epoch above ours.
    ahead: bool,
    /// Name of the environment that runs find.
    environment: String,
}

/// Why a session is interrupted.
enum Interruption {
    /// Dial again.
    Lost(String),
    /// The connection works, but the agent does not.
    AgentGone(String),
    /// The session has failed, unless the machine was Ready once.
    Failed(SessionFailure),
    /// The agent refuses our epoch.
    EpochAhead,
    /// The agent named a newer epoch some time ago: ask it again.
    AskAgain,
    /// Runs find another environment: ask the agent which Python they have.
    Changed,
}

impl Session {
    async fn live(&mut self) {
        let mut attempt = 0;
        let mut refused_since: Option<Instant> = None;
        loop {
            let spec = self.spec.borrow().clone();
            let mut unproved = false;
            // The futures of earlier stages are boxed: a session that is Ready would otherwise
            // hold memory for all of them as long as it lives.
            let why = match Box::pin(self.connect(&spec)).await {
                Ok(connection) => {
                    refused_since = None;
                    let stayed = self.stayed;
                    let interruption = self.serve(&spec, connection).await;
                    self.connection = None;
                    if self.stayed > stayed {
                        attempt = 0;
                    }
                    match interruption {
                        Interruption::Lost(why) | Interruption::AgentGone(why) => why,
                        Interruption::Failed(failure) => return self.fail(failure),
                        Interruption::EpochAhead | Interruption::AskAgain | Interruption::Changed => {
                            EPOCH_REFUSED.to_owned()
                        }
                    }
                }
                Err(ConnectError::Unreachable(why)) => why,
                Err(ConnectError::Unproved(why)) => {
                    unproved = true;
                    why
                }
                Err(error @ ConnectError::AuthRefused { .. }) => {
                    let since = *refused_since.get_or_insert_with(Instant::now);
                    let refused = SessionFailure::new(
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
                    return self.fail(SessionFailure::new(FailureKind::HostKeyChanged,
                        format!("{error}: another machine answers at its address, or somebody is in between. It is not used any more"),
                    ));
                }
                Err(error @ ConnectError::HostKeyNotProved { .. }) => {
                    return self.fail(SessionFailure::new(FailureKind::HostKeyNotProved,
                        format!("{error}: somebody is in between, or the machine made another host key after its first boot. It is not used, and another one is ordered in its place"),
                    ));
                }
                Err(ConnectError::Unsupported(why)) if self.was_ready() => why,
                Err(ConnectError::Unsupported(why)) => return self.fail(SessionFailure::unsupported(why)),
            };
            if unproved {
                self.down_as(&why, |last_error| Stage::Unproved { last_error });
            } else {
                self.down(&why);
            }
            sleep(self.pause(attempt, spec.retry_interval)).await;
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
        let learnt = self.published.lock().state.host_key.clone();
        let login = Login {
            user: &spec.endpoint.user,
            private_key: &spec.private_key,
            password: spec.endpoint.password.as_ref(),
            host_key: spec.host_key.known().or(learnt.as_deref()),
        };
        let MachineKey { namespace, name } = &spec.machine;
        let shared = self.shared.clone();
        let turn = self.waits(shared.handshakes.wait(namespace, name)).await;
        let stream: Box<dyn Stream> = Box::new(stream);
        let meter = Meter::new(self.account.clone());
        let connection = Arc::new(Connection::open(stream, &login, meter).await?);
        drop(turn);
        if let (HostKey::Proved(token), None) = (&spec.host_key, login.host_key) {
            proof::check(&connection, token, self.shared.patience.proof).await?;
        }
        self.connection = Some(connection.clone());
        let host_key = connection.host_key().to_owned();
        self.publish(|published| {
            published.state.host_key = Some(host_key);
            published.state.reachable_at.get_or_insert_with(clock::now);
        });
        Ok(connection)
    }

    /// Prepares the machine and holds its agent, until the connection is lost.
    async fn serve(&mut self, spec: &SessionSpec, connection: Arc<Connection>) -> Interruption {
        let mut attempt = 0;
        loop {
            tokio::select! {
                why = connection.lost() => return Interruption::Lost(why),
                () = sleep(self.refusals.left(Instant::now())) => {}
            }
            let attached = tokio::select! {
                biased;
                broken = connection.breach().wait() => Err(violation(broken)),
                why = connection.lost() => Err(Interruption::Lost(why)),
                attached = Box::pin(self.attach(spec, &connection)) => attached,
            };
            let interruption = match attached {
                Ok(attached) => {
                    let since = Instant::now();
                    let interruption = self.hold(&connection, &attached).await;
                    if since.elapsed() >= self.shared.patience.stays {
                        attempt = 0;
                        self.stayed += 1;
                    }
                    interruption
                }
                Err(interruption) => interruption,
            };
            let (why, interval) = match interruption {
                Interruption::EpochAhead => {
                    self.epoch_ahead(None);
                    continue;
                }
                Interruption::AskAgain | Interruption::Changed => continue,
                Interruption::AgentGone(why) => (why, spec.retry_interval),
                // Keep the connection: a machine without room for another process could not give us
                // a new one.
                Interruption::Failed(failure)
                    if self.was_ready() && failure.kind != FailureKind::ProtocolViolation =>
                {
                    let why = failure.in_words();
                    warn!(machine = %spec.machine, kind = failure.kind.name(), why, "the machine was ready before and is tried again");
                    (why, spec.retry_interval.max(self.shared.patience.mending))
                }
                other => return other,
            };
            self.down(&why);
            tokio::select! {
                biased;
                broken = connection.breach().wait() => return violation(broken),
                why = connection.lost() => return Interruption::Lost(why),
                () = sleep(self.pause(attempt, interval)) => {}
            }
            attempt = attempt.saturating_add(1);
        }
    }

    /// The pause before the next attempt.
    fn pause(&self, attempt: u32, interval: Duration) -> Duration {
        pause(
            attempt,
            self.shared.patience.first_pause,
            interval,
            rand::random(),
        )
    }

    /// From a connection to an agent that answered.
    async fn attach(
        &mut self,
        spec: &SessionSpec,
        connection: &Arc<Connection>,
    ) -> Result<Attached, Interruption> {
        let shared = self.shared.clone();
        let whole = || Deadline::after(spec.bootstrap.total_timeout);
        // An attempt that was cut off does not shorten the time of the next one.
        let deadline = if self.was_ready() {
            whole()
        } else {
            self.deadline.get_or_insert_with(whole).clone()
        };
        let machine = spec.machine.to_string();
        let transcript = self.transcript(spec);
        // Runs may go on at a machine that was Ready: it is connected as it is. Its environment changes once its agent
        // is held.
        let kept = self.was_ready().then(|| spec.bootstrap.as_it_is());
        let bootstrap = Bootstrap {
            connection,
            account: &self.account.clone(),
            spec: kept.as_ref().unwrap_or(&spec.bootstrap),
            transcript: &transcript,
            machine: &machine,
            binaries: &shared.binaries,
            uploads: &|| {
                let MachineKey { namespace, name } = &spec.machine;
                self.waits(shared.uploads.wait(namespace, name)).boxed()
            },
            versions: &|kind| {
                self.waits(shared.locks.turn(&spec.bootstrap.environment, kind))
                    .boxed()
            },
            deadline: &deadline,
        };
        let mut progress = |progress: Progress| {
            let Progress { step, index, total } = &progress;
            transcript.begin(&format!("{index}/{total} {step}"));
            self.progress(progress);
        };
        let prepared = bootstrap::prepare(&bootstrap, &mut progress)
            .await
            .map_err(bootstrap_interruption)?;
        if prepared.may_run {
            match greet(connection, &prepared, spec).await {
                Ok(greeted) if greeted.hello.agent_digest == prepared.binary.digest => {
                    return Ok(self.attached(greeted, &prepared));
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
                Ok(greeted) => return Ok(self.attached(greeted, &prepared)),
                Err(Greeting::Refused(interruption)) => return Err(interruption),
                Err(Greeting::Silent(why)) if Instant::now() >= patience => {
                    return Err(Interruption::Failed(SessionFailure {
                        kind: FailureKind::StepFailed,
                        step: Some("start".into()),
                        diagnosis: Some(Box::new(Diagnosis::of("the agent does not answer", &why))),
                        message: format!("the agent was started but does not answer: {why}"),
                    }));
                }
                Err(Greeting::Silent(_)) => sleep(Duration::from_millis(50)).await,
            }
        }
    }

    /// Decides whether an agent that greeted us can be used.
    fn attached(&mut self, greeted: Greeted, prepared: &Prepared) -> Attached {
        let Greeted { agent, hello, closed } = greeted;
        let outdated = hello.agent_digest != prepared.binary.digest;
        let claim = epoch_claim(&hello, self.spec.borrow().epoch);
        let ahead = claim.is_some();
        if ahead {
            self.epoch_ahead(claim);
        } else {
            self.ready(&agent, hello, prepared);
        }
        Attached {
            agent,
            closed,
            outdated,
            ahead,
            environment: prepared.environment.clone(),
        }
    }

    /// Publishes the agent.
    fn ready(&mut self, agent: &Agent, hello: HelloReply, prepared: &Prepared) {
        self.deadline = None;
        let facts = AgentFacts {
            version: hello.agent_version,
            python: hello.python,
            accelerators: hello.accelerators,
            boot_id: hello.boot_id,
            addresses: hello.addresses.into_iter().collect(),
        };
        info!(machine = %self.spec.borrow().machine, version = facts.version, "machine is ready");
        let published = agent.clone();
        let spec = self.spec.borrow().clone();
        // While another one is to be made it is not said which one is in use.
        let is_due = self.was_ready() && self.is_due(&spec.bootstrap, &prepared.environment);
        self.publish(|p| {
            let environment = &mut p.state.environment;
            environment.in_use = (!is_due).then(|| prepared.environment.clone());
            environment.step = None;
            if let Some(lock) = &prepared.lock {
                environment.lock = Some((prepared.environment.clone(), lock.clone()));
            }
            let now = clock::now();
            p.state.bootstrapped_at.get_or_insert(now);
            p.state.ready_at.get_or_insert(now);
            p.state.agent = Some(facts);
            p.state.newer_epoch = None;
            p.state.stage = Stage::Ready;
            p.agent = Some(published);
            if let Some(transcript) = p.transcript.take() {
                p.state.environment.times = transcript.times();
            }
        });
    }

    /// The transcript of the steps: kept over all connections for a machine that is not Ready yet,
    /// and for one that was Ready only for the message of a failing step.
    fn transcript(&self, spec: &SessionSpec) -> Transcript {
        let new = || Transcript::new(self.account.clone(), Mask::new(spec.bootstrap.masked.clone()));
        if self.was_ready() {
            return new();
        }
        let mut published = self.published.lock();
        published.transcript.get_or_insert_with(new).clone()
    }

    /// Waits for a turn. That time does not count towards the machine's timeouts.
    async fn waits<T>(&self, turn: impl Future<Output = T>) -> T {
        let (since, at) = (Instant::now(), clock::now());
        let mut turn = std::pin::pin!(turn);
        if let Some(turn) = turn.as_mut().now_or_never() {
            return turn;
        }
        let _waiting = Waiting { session: self, since };
        self.publish(|published| published.state.waits_since = Some(at));
        turn.await
    }

    /// Keeps the lease until an interruption.
    async fn hold(&mut self, connection: &Connection, attached: &Attached) -> Interruption {
        let agent = &attached.agent;
        let outdated = attached.outdated.then_some(self.shared.patience.outdated);
        let mut spec = self.spec.clone();
        let ask_again = self.refusals.left(Instant::now());
        let interruption = tokio::select! {
            biased;
            broken = connection.breach().wait() => violation(broken),
            why = connection.lost() => Interruption::Lost(why),
            () = attached.closed.cancelled() => Interruption::AgentGone("the agent closed the connection".into()),
            () = agent.epoch_refused() => Interruption::EpochAhead,
            () = sleep(ask_again), if attached.ahead => Interruption::AskAgain,
            interruption = keep_lease(agent, &mut spec, outdated) => interruption,
            interruption = self.keep_environment(connection, attached) => interruption,
        };
        self.publish(|published| published.agent = None);
        interruption
    }

    fn publish(&self, change: impl FnOnce(&mut Published)) {
        // A newer session of the same machine may already publish its own state.
        if self.cancel.is_cancelled() {
            return;
        }
        change(&mut self.published.lock());
        self.shared.changed(&self.spec.borrow().machine);
    }

    /// Whether its agent answered before, to this or another controller.
    fn was_ready(&self) -> bool {
        self.published.lock().state.ready_at.is_some()
    }

    /// Publishes that the agent refuses our epoch; it is asked again later.
    fn epoch_ahead(&mut self, claim: Option<EpochClaim>) {
        let patience = self.shared.patience.epoch_ahead;
        self.refusals.note(patience, Instant::now(), rand::random());
        if self.refusals.count.is_power_of_two() {
            warn!(machine = %self.spec.borrow().machine, times = self.refusals.count, "{EPOCH_REFUSED}");
        }
        self.publish(|published| {
            published.state.stage = Stage::EpochAhead;
            published.state.newer_epoch = claim;
        });
    }

    /// Publishes that the machine is out of reach for now.
    fn down(&self, why: &str) {
        self.down_as(why, |last_error| Stage::Dialing {
            last_error: Some(last_error),
        });
    }

    /// The same, with the stage of a machine that was never Ready.
    fn down_as(&self, why: &str, never_ready: impl FnOnce(String) -> Stage) {
        let state = self.published.lock().state.clone();
        let last_error = why.to_owned();
        let stage = match state.stage {
            Stage::Reconnecting { since, .. } => Stage::Reconnecting { last_error, since },
            _ if state.ready_at.is_some() => {
                warn!(machine = %self.spec.borrow().machine, why, "connection to the machine is lost");
                let since = clock::now();
                Stage::Reconnecting { last_error, since }
            }
            _ => never_ready(last_error),
        };
        if stage != self.published.lock().state.stage {
            self.publish(|published| published.state.stage = stage);
        }
    }

    fn progress(&self, progress: Progress) {
        // For a machine that was Ready, every step of coming back is Reconnecting.
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

/// The machine broke a limit: its session fails.
fn violation(broken: String) -> Interruption {
    Interruption::Failed(SessionFailure::new(
        FailureKind::ProtocolViolation,
        format!(
            "the machine sent {broken}. No agent of ours does that: somebody changed what runs there, and it is not used any more"
        ),
    ))
}

fn bootstrap_interruption(error: BootstrapError) -> Interruption {
    match error {
        BootstrapError::Lost(why) => Interruption::Lost(why),
        BootstrapError::Failed(failure) => Interruption::Failed(failure),
        BootstrapError::Broken(broken) => violation(broken),
    }
}

/// Why an agent did not greet us.
enum Greeting {
    /// No agent answers, yet or any more.
    Silent(String),
    /// The agent refuses us.
    Refused(Interruption),
}

/// Opens a connection to the agent and exchanges Hello.
async fn greet(
    connection: &Connection,
    prepared: &Prepared,
    spec: &SessionSpec,
) -> Result<Greeted, Greeting> {
    let silent = |error: ExecError| Greeting::Silent(error.to_string());
    let (stream, bridged) = connection
        .socket(&prepared.socket(), &prepared.bridge())
        .await
        .map_err(silent)?;
    let refused = |message: String| {
        Greeting::Refused(Interruption::Failed(SessionFailure::new(
            FailureKind::AgentRefused,
            message,
        )))
    };
    let (meter, breach) = (connection.meter().clone(), connection.breach().clone());
    match connections::greet(stream, meter, breach, spec).await {
        Ok(greeted) if greeted.hello.machine == spec.machine.to_string() => {
            if bridged {
                connection.prefer_bridge();
            }
            Ok(greeted)
        }
        Ok(greeted) => Err(refused(format!(
            "the agent there belongs to machine \"{}\": two machines share one address or one home directory",
            greeted.hello.machine
        ))),
        Err(AgentError::StaleEpoch) => Err(Greeting::Refused(Interruption::EpochAhead)),
        Err(AgentError::Refused(why)) => Err(refused(format!("the agent refuses this controller: {why}"))),
        Err(AgentError::Protocol(broken)) => Err(Greeting::Refused(violation(broken))),
        Err(error @ (AgentError::Disconnected(_) | AgentError::NotFound | AgentError::Busy(_))) => {
            Err(Greeting::Silent(error.to_string()))
        }
    }
}

/// Renews the lease for as long as the agent takes it. Looks at an agent of another version
/// regularly, and interrupts the session once it is idle: the next attempt replaces the agent.
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
            // Not in a session that has just begun: an agent that is still of the other version has
            // another reason.
            Ok(reply) if outdated.is_some() && reply.running == 0 && !first => {
                return Interruption::AgentGone("it is idle, so its agent is replaced by a newer one".into());
            }
            Ok(_) => outdated.map_or(lease.interval(), |look| look.min(lease.interval())),
            Err(AgentError::StaleEpoch) => return Interruption::EpochAhead,
            Err(AgentError::Disconnected(why)) => return Interruption::AgentGone(why),
            Err(AgentError::Protocol(broken)) => return violation(broken),
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
