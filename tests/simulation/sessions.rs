//! Machines as the controller's connections show them: they are dialled, prepared and become Ready, break,
//! and some lie about themselves.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;
use rand::Rng;
use skyward_remote::{
    Agent, AgentError, Connections, Greeted, HostKey, MachineKey, SessionSpec,
    budget::{Account, Budget},
    greet_over,
    protocol::Reclaim,
    sessions::{EpochClaim, FailureKind, SessionFailure, SessionState, Stage},
    transcript::Transcript,
};
use tokio::{
    sync::{mpsc, watch},
    task::AbortHandle,
    time::sleep,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    agents::connect,
    calls::Way,
    time::{MINUTE, Moment, SECOND, now, timestamp},
    world::percent,
};

/// How often connections are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// The host key that each machine shows, and proves where that is asked for.
const HOST_KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ";

/// Connections of one process.
pub(crate) struct Machines {
    shared: Arc<Shared>,
    looks: AbortHandle,
}

struct Shared {
    way: Arc<Way>,
    table: Mutex<BTreeMap<MachineKey, Session>>,
    /// For what agents send.
    budget: Budget,
    version: watch::Sender<u64>,
}

struct Session {
    spec: SessionSpec,
    state: SessionState,
    /// When it takes its next step.
    next: Moment,
    /// The connection to its agent.
    link: Option<Link>,
}

impl Machines {
    /// No connections. Must be called within the runtime of the process.
    pub(crate) fn new(way: Arc<Way>, changed: mpsc::Sender<MachineKey>) -> Arc<Self> {
        let shared = Arc::new(Shared {
            way,
            table: Mutex::default(),
            budget: Budget::default(),
            version: watch::Sender::new(0),
        });
        let looking = shared.clone();
        let looks = tokio::spawn(async move {
            loop {
                sleep(LOOK).await;
                for machine in looking.look() {
                    looking.version.send_modify(|version| *version += 1);
                    if changed.send(machine).await.is_err() {
                        return;
                    }
                }
            }
        });
        let looks = looks.abort_handle();
        Arc::new(Self { shared, looks })
    }
}

impl Shared {
    /// Connections get further, or break; answers with those that changed.
    fn look(&self) -> Vec<MachineKey> {
        let mut changed = Vec::new();
        for (machine, session) in self.table.lock().iter_mut() {
            let before = session.state.clone();
            self.step(machine, session);
            if session.state != before {
                changed.push(machine.clone());
            }
        }
        changed
    }

    fn step(&self, machine: &MachineKey, session: &mut Session) {
        let mut truth = self.way.world.truth();
        let (calm, lies) = (truth.calm, truth.odds.lies);
        let time = timestamp(now());
        let Some(there) = truth.answering(&machine.name) else {
            session.link = None;
            session.lose(time);
            session.next = now() + 3 * SECOND;
            return;
        };
        let state = &mut session.state;
        if session.next > now() || matches!(state.stage, Stage::Failed(_)) {
            return;
        }
        session.next = now() + 3 * SECOND;
        let name = format!("{}: {} at {}", self.way.process, machine.name, now() / MINUTE);
        let mut random = self.way.world.chance(&name);
        let recorded = self.way.world.recorded_key(machine);
        let shown = there.host_key.clone();
        let known = match &session.spec.host_key {
            HostKey::Known(known) => Some(known),
            HostKey::Proved(_) | HostKey::First => state.host_key.as_ref(),
        };
        if known.is_some_and(|known| *known != shown) {
            let why = "it shows another host key".to_owned();
            state.stage = Stage::Failed(SessionFailure::new(FailureKind::HostKeyChanged, why));
            return;
        }
        truth.rule(recorded.is_empty() || recorded == shown, || {
            format!(
                "{} shows another host key than the one on record, and is trusted",
                machine.name
            )
        });
        let Some(there) = truth.answering(&machine.name) else {
            return;
        };
        state.host_key = Some(shown);
        state.reachable_at.get_or_insert(time);
        state.host_key.get_or_insert_with(|| HOST_KEY.to_owned());
        if matches!(state.stage, Stage::Dialing { .. }) {
            state.stage = Stage::Bootstrapping {
                step: "probe".into(),
                index: 1,
                total: 1,
            };
            return;
        }
        // A machine that was Ready once is tried again instead.
        let is_new = matches!(state.stage, Stage::Bootstrapping { .. }) && state.ready_at.is_none();
        if is_new && !calm && percent(&mut random, 3) {
            state.stage = Stage::Failed(SessionFailure {
                kind: FailureKind::StepFailed,
                step: Some("probe".into()),
                message: "it did not work".into(),
                diagnosis: None,
            });
            return;
        }
        state.bootstrapped_at.get_or_insert(time);
        let reclaim = there.reclaim.filter(|(said, _)| *said <= now());
        let id = there.id.clone();
        drop(truth);
        let Some(link) = &session.link else {
            session.link = Link::open(
                &self.way,
                &id,
                self.budget.account(&machine.namespace),
                &session.spec,
            );
            return;
        };
        let hello = match link.greeted.get() {
            // Its agent answers later.
            None => return,
            Some(Ok(greeted)) if !greeted.closed.is_cancelled() => &greeted.hello,
            Some(Ok(_) | Err(_)) => {
                session.link = None;
                session.lose(time);
                return;
            }
        };
        if hello.newest_epoch > session.spec.epoch {
            state.stage = Stage::EpochAhead;
            state.newer_epoch = Some(EpochClaim {
                epoch: hello.newest_epoch,
                proof: hello.epoch_proof.clone(),
            });
            // It is asked again.
            session.link = None;
            return;
        }
        state.newer_epoch = None;
        state.reclaim_at = reclaim.map(|(_, taken)| timestamp(taken));
        state.stage = Stage::Ready;
        if let Some(target) = session.spec.bootstrap.target() {
            state.environment.in_use = Some(target.to_owned());
        }
        state.ready_at.get_or_insert(time);
        if !calm && percent(&mut random, lies) {
            lie(&mut random, state);
        }
    }
}

impl Session {
    /// The machine, or its agent, does not answer.
    fn lose(&mut self, time: Timestamp) {
        let state = &mut self.state;
        let lost = || "connection refused".to_owned();
        match state.stage {
            Stage::Failed(_) | Stage::Reconnecting { .. } => {}
            _ if state.ready_at.is_some() => {
                let last_error = lost();
                state.stage = Stage::Reconnecting {
                    last_error,
                    since: time,
                };
            }
            _ => {
                let last_error = Some(lost());
                state.stage = Stage::Dialing { last_error };
            }
        }
    }
}

/// A connection to an agent, which breaks when this is dropped.
struct Link {
    /// The agent, once it has answered our Hello.
    greeted: Arc<OnceLock<Result<Greeted, AgentError>>>,
    _cut: DropGuard,
}

impl Link {
    fn open(way: &Arc<Way>, id: &str, account: Account, spec: &SessionSpec) -> Option<Self> {
        let cut = CancellationToken::new();
        let stream = connect(way, id, &cut)?;
        let greeted = Arc::new(OnceLock::new());
        let (answer, spec) = (greeted.clone(), spec.clone());
        tokio::spawn(async move {
            let _answered_once = answer.set(greet_over(stream, account, &spec).await);
        });
        Some(Self {
            greeted,
            _cut: cut.drop_guard(),
        })
    }

    fn agent(&self) -> Option<Agent> {
        let greeted = self.greeted.get()?.as_ref().ok()?;
        (!greeted.closed.is_cancelled()).then(|| greeted.agent.clone())
    }
}

/// What root on a machine can have its agent say.
fn lie(random: &mut impl Rng, state: &mut SessionState) {
    match random.random_range(0..3) {
        0 => {
            state.stage = Stage::EpochAhead;
            state.newer_epoch = Some(EpochClaim {
                epoch: u64::from(i32::MAX.unsigned_abs()),
                proof: "forged".into(),
            });
        }
        1 => state.reclaim_at = Some(timestamp(now() + 30 * SECOND)),
        _ => {
            state.stage = Stage::Failed(SessionFailure::new(
                FailureKind::ProtocolViolation,
                "it sent what no agent sends".into(),
            ));
        }
    }
}

#[async_trait]
impl Connections for Machines {
    fn ensure(&self, spec: SessionSpec) {
        let mut table = self.shared.table.lock();
        let ready_at = spec.ready_at;
        let session = table.entry(spec.machine.clone()).or_insert_with(|| Session {
            spec: spec.clone(),
            state: SessionState {
                ready_at,
                ..SessionState::default()
            },
            next: now() + 2 * SECOND,
            link: None,
        });
        if session.spec.epoch != spec.epoch {
            session.link = None;
        }
        session.spec = spec;
    }

    fn remove(&self, machine: &MachineKey) {
        self.shared.table.lock().remove(machine);
    }

    fn state(&self, machine: &MachineKey) -> Option<SessionState> {
        let table = self.shared.table.lock();
        table.get(machine).map(|session| session.state.clone())
    }

    fn agent(&self, machine: &MachineKey) -> Option<Agent> {
        let table = self.shared.table.lock();
        let session = table.get(machine)?;
        let is_ready = session.state.stage == Stage::Ready;
        session.link.as_ref().filter(|_| is_ready)?.agent()
    }

    fn transcript(&self, _: &MachineKey) -> Option<Transcript> {
        None
    }

    fn reclaimed(&self, _: &MachineKey, _: Reclaim) {}

    fn not_forked(&self, _: &MachineKey, _: &str) {}

    fn subscribe(&self) -> watch::Receiver<u64> {
        self.shared.version.subscribe()
    }

    async fn shutdown(&self) {
        self.looks.abort();
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        self.looks.abort();
    }
}
