//! Connections to machines: one supervised task for each, its state published.
//!
//! `ensure` says that a machine should be connected, `remove` that it should not; what
//! happens in between is in `session.rs`. Changes are published twice: as the key of the machine on
//! `changed` (for its reconciler) and as a counter on `subscribe` (for code that looks at several
//! machines). Both coalesce, so no receiver can be flooded.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::Mutex;
use skyward_core::{Secret, machine::Endpoint};
use tokio::{
    sync::{Notify, mpsc, watch},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use crate::{
    agent::Agent,
    binaries::AgentBinaries,
    bootstrap::{self, lock::Locks},
    budget::Budget,
    dial::PodDialer,
    key,
    patience::Patience,
    protocol::{HelloReply, ID_BYTES, Reclaim},
    session,
    transcript::Transcript,
    turns::Turns,
};

pub use skyward_core::session::{
    AgentFacts, EnvironmentState, EpochClaim, FailureKind, MachineKey, SessionFailure, SessionState, Stage,
};

/// How long a machine lives without contact to the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// For an idle machine.
    pub instance_timeout: Duration,
    /// For a machine with runs, or with results that are not collected.
    pub orphan_timeout: Duration,
}

impl Lease {
    /// How often to renew it.
    pub(crate) fn interval(&self) -> Duration {
        (self.instance_timeout / 4).clamp(Duration::from_millis(100), Duration::from_mins(1))
    }
}

/// The host key that a machine must show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostKey {
    /// This one, in OpenSSH form.
    Known(String),
    /// Any that the machine proves with this token, as [`skyward_core::proof`] says. The proved key is
    /// reported.
    Proved(Secret),
    /// Any: it is learnt at first contact and reported.
    First,
}

impl HostKey {
    /// The key, if it is known.
    pub(crate) fn known(&self) -> Option<&str> {
        match self {
            Self::Known(key) => Some(key),
            Self::Proved(_) | Self::First => None,
        }
    }
}

/// Everything needed to reach and prepare one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionSpec {
    /// Which machine.
    pub machine: MachineKey,
    /// Where SSH listens, and the user to log in as.
    pub endpoint: Endpoint,
    /// The Pool's private key, in OpenSSH form.
    pub private_key: Secret,
    /// The machine's host key.
    pub host_key: HostKey,
    /// What must be on the machine.
    pub bootstrap: bootstrap::Spec,
    /// How long it lives without us.
    pub lease: Lease,
    /// Pause between attempts to reach it (the first ones come faster).
    pub retry_interval: Duration,
    /// The leader's epoch.
    pub epoch: u64,
    /// Proof of the epoch for a later leader of the installation; `""` = none.
    pub epoch_proof: String,
    /// Id of the installation.
    pub installation: String,
    /// When its agent answered first, as recorded. Runs may go on there, so its session is never
    /// given up for a failure that may pass.
    pub ready_at: Option<Timestamp>,
}

/// The epoch that an answer to Hello claims, if it is above ours. An impossible epoch is dropped.
pub(crate) fn epoch_claim(hello: &HelloReply, ours: u64) -> Option<EpochClaim> {
    let highest = u64::from(i32::MAX.unsigned_abs());
    (hello.newest_epoch > ours).then(|| EpochClaim {
        epoch: hello.newest_epoch.min(highest),
        proof: Some(hello.epoch_proof.clone())
            .filter(|proof| hello.newest_epoch <= highest && proof.len() <= ID_BYTES)
            .unwrap_or_default(),
    })
}

/// Handshakes at the same time, and uploads: both cost processor time, and the machine decides how
/// long they last.
const AT_ONCE: usize = 32;
/// The most handshakes and uploads of one namespace among them.
const EACH: usize = 8;

/// Connections to machines.
pub struct Sessions {
    shared: Arc<Shared>,
    table: Mutex<BTreeMap<MachineKey, Entry>>,
    notifier: Mutex<Option<JoinHandle<()>>>,
}

/// The state that all sessions share.
pub(crate) struct Shared {
    pub(crate) binaries: AgentBinaries,
    pub(crate) pods: Option<Arc<dyn PodDialer>>,
    pub(crate) handshakes: Arc<Turns>,
    pub(crate) uploads: Arc<Turns>,
    pub(crate) patience: Patience,
    /// Versions of Python packages that machines find for each other.
    pub(crate) locks: Locks,
    /// Budget of the memory that messages of machines may fill.
    pub(crate) budget: Budget,
    dirty: Mutex<BTreeSet<MachineKey>>,
    wake: Notify,
    version: watch::Sender<u64>,
    shutdown: CancellationToken,
}

impl Shared {
    /// Publishes that this machine's session changed.
    pub(crate) fn changed(&self, machine: &MachineKey) {
        self.dirty.lock().insert(machine.clone());
        self.wake.notify_one();
        self.version.send_modify(|version| *version += 1);
    }
}

/// One session as seen from outside.
pub(crate) struct Published {
    pub(crate) state: SessionState,
    pub(crate) agent: Option<Agent>,
    /// The output of its bootstrap, until it is Ready.
    pub(crate) transcript: Option<Transcript>,
}

struct Entry {
    spec: Arc<SessionSpec>,
    updates: watch::Sender<Arc<SessionSpec>>,
    published: Arc<Mutex<Published>>,
    cancel: CancellationToken,
    task: JoinHandle<()>,
}

impl Sessions {
    /// No sessions yet. Must be called within a tokio runtime.
    ///
    /// `changed` receives the keys of machines whose session changed; when it is full they
    /// are kept and sent later, each once.
    pub fn new(
        agents: AgentBinaries,
        pod_dialer: Option<Arc<dyn PodDialer>>,
        changed: mpsc::Sender<MachineKey>,
    ) -> Arc<Self> {
        Self::with_patience(agents, pod_dialer, changed, Patience::default())
    }

    pub(crate) fn with_patience(
        agents: AgentBinaries,
        pod_dialer: Option<Arc<dyn PodDialer>>,
        changed: mpsc::Sender<MachineKey>,
        patience: Patience,
    ) -> Arc<Self> {
        let shared = Arc::new(Shared {
            binaries: agents,
            pods: pod_dialer,
            handshakes: Turns::new(AT_ONCE, EACH),
            uploads: Turns::new(AT_ONCE, EACH),
            patience,
            locks: Locks::default(),
            budget: Budget::default(),
            dirty: Mutex::default(),
            wake: Notify::new(),
            version: watch::Sender::new(0),
            shutdown: CancellationToken::new(),
        });
        let notifier = tokio::spawn(tell(shared.clone(), changed));
        Arc::new(Self {
            shared,
            table: Mutex::default(),
            notifier: Mutex::new(Some(notifier)),
        })
    }

    /// Keeps the machine connected. The same spec again changes nothing; another endpoint, host
    /// key, login key or epoch connects anew, and so does another bootstrap of a machine that was never Ready.
    /// At one that was, another environment is made over the connection that there is.
    pub fn ensure(&self, spec: SessionSpec) {
        if self.shared.shutdown.is_cancelled() {
            return;
        }
        let machine = spec.machine.clone();
        let mut table = self.table.lock();
        let mut known = None;
        if let Some(entry) = table.get_mut(&machine) {
            if *entry.spec == spec {
                return;
            }
            let state = entry.published.lock().state.clone();
            if same_connection(&entry.spec, &spec, &state) {
                // Until the session has seen what is asked for now it does not say what is in use.
                if entry.spec.bootstrap.target() != spec.bootstrap.target() {
                    entry.published.lock().state.environment.in_use = None;
                }
                entry.spec = Arc::new(spec);
                entry.updates.send_replace(entry.spec.clone());
                return;
            }
            // The times of the same machine stay; a failure and the old endpoint do not.
            known = Some(SessionState {
                stage: Stage::Dialing { last_error: None },
                host_key: None,
                waits_since: None,
                ..state
            });
            entry.cancel.cancel();
        }
        let mut state = known.unwrap_or_default();
        state.ready_at = state.ready_at.or(spec.ready_at);
        let entry = self.start(spec, state);
        table.insert(machine.clone(), entry);
        drop(table);
        self.shared.changed(&machine);
    }

    fn start(&self, spec: SessionSpec, state: SessionState) -> Entry {
        let spec = Arc::new(spec);
        let updates = watch::Sender::new(spec.clone());
        let published = Arc::new(Mutex::new(Published {
            state,
            agent: None,
            transcript: None,
        }));
        let cancel = self.shared.shutdown.child_token();
        let task = tokio::spawn(session::run(
            self.shared.clone(),
            updates.subscribe(),
            published.clone(),
            cancel.clone(),
        ));
        Entry {
            spec,
            updates,
            published,
            cancel,
            task,
        }
    }

    /// Stops keeping the machine connected. Returns at once; its connection is closed within a
    /// second.
    pub fn remove(&self, machine: &MachineKey) {
        let Some(entry) = self.table.lock().remove(machine) else {
            return;
        };
        entry.cancel.cancel();
        entry.published.lock().agent = None;
        self.shared.changed(machine);
    }

    /// What is known about a machine's session; `None` without `ensure`.
    pub fn state(&self, machine: &MachineKey) -> Option<SessionState> {
        self.published(machine, |published| published.state.clone())
    }

    /// The machine's agent, while it is connected and Ready.
    pub fn agent(&self, machine: &MachineKey) -> Option<Agent> {
        self.published(machine, |published| published.agent.clone())?
    }

    /// The output of a machine's bootstrap, while it goes on or after it failed.
    pub fn transcript(&self, machine: &MachineKey) -> Option<Transcript> {
        self.published(machine, |published| published.transcript.clone())?
    }

    fn published<T>(&self, machine: &MachineKey, read: impl FnOnce(&mut Published) -> T) -> Option<T> {
        let table = self.table.lock();
        let entry = table.get(machine)?;
        Some(read(&mut entry.published.lock()))
    }

    /// Notes that the machine's agent told that the cloud takes the machine back.
    pub fn reclaimed(&self, machine: &MachineKey, reclaim: Reclaim) {
        let at = i64::try_from(reclaim.at_ms).ok();
        let Some(at) = at.and_then(|at| Timestamp::from_millisecond(at).ok()) else {
            return;
        };
        let before = self.published(machine, |published| published.state.reclaim_at.replace(at));
        if before.is_some_and(|before| before != Some(at)) {
            tracing::warn!(%machine, %at, "the cloud takes the machine back");
            self.shared.changed(machine);
        }
    }

    /// Notes why functions get fresh interpreters on the machine, as its agent told.
    pub fn not_forked(&self, machine: &MachineKey, why: &str) {
        let before = self.published(machine, |published| {
            published.state.not_forked.replace(why.to_owned())
        });
        if before.is_some_and(|before| before.as_deref() != Some(why)) {
            self.shared.changed(machine);
        }
    }

    /// Machines that have a session.
    pub fn machines(&self) -> Vec<MachineKey> {
        self.table.lock().keys().cloned().collect()
    }

    /// A counter that grows with each change of any session.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.shared.version.subscribe()
    }

    /// Closes all sessions and waits for their tasks; `ensure` does nothing afterwards.
    pub async fn shutdown(&self) {
        self.shared.shutdown.cancel();
        let entries = std::mem::take(&mut *self.table.lock());
        for (_, entry) in entries {
            // A task that panicked has ended, too.
            let _ = entry.task.await;
        }
        let notifier = self.notifier.lock().take();
        if let Some(notifier) = notifier {
            let _ = notifier.await;
        }
    }
}

#[cfg(test)]
impl Sessions {
    /// How long a machine's bootstrap may take.
    pub(crate) fn longest_bootstrap(&self, machine: &MachineKey) -> Duration {
        self.table
            .lock()
            .get(machine)
            .map_or(Duration::ZERO, |entry| entry.spec.bootstrap.total_timeout)
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        self.shared.shutdown.cancel();
    }
}

/// Whether the running connection already matches the new spec.
fn same_connection(old: &SessionSpec, new: &SessionSpec, state: &SessionState) -> bool {
    // The learnt key comes back as the pinned one.
    let pinned_as_shown = match (new.host_key.known(), &state.host_key) {
        (Some(pinned), Some(shown)) => same_key(pinned, shown),
        (None, _) | (Some(_), None) => false,
    };
    // These are used as they change.
    let unchanged = SessionSpec {
        host_key: old.host_key.clone(),
        lease: old.lease,
        retry_interval: old.retry_interval,
        ready_at: old.ready_at,
        bootstrap: match state.ready_at {
            Some(_) => old.bootstrap.clone(),
            None => new.bootstrap.clone(),
        },
        ..new.clone()
    };
    unchanged == *old && (old.host_key == new.host_key || pinned_as_shown)
}

/// Whether two keys are equal but for comments.
fn same_key(a: &str, b: &str) -> bool {
    match (key::parse_public(a, "host"), key::parse_public(b, "host")) {
        (Ok(a), Ok(b)) => a.key_data() == b.key_data(),
        _ => a == b,
    }
}

/// Sends the keys of changed machines on; the only place that may wait for the receiver.
async fn tell(shared: Arc<Shared>, changed: mpsc::Sender<MachineKey>) {
    let send = async {
        loop {
            let next = shared.dirty.lock().pop_first();
            match next {
                Some(machine) => {
                    if changed.send(machine).await.is_err() {
                        return;
                    }
                }
                None => shared.wake.notified().await,
            }
        }
    };
    tokio::select! {
        () = shared.shutdown.cancelled() => {}
        () = send => {}
    }
}
