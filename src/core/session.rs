//! What is known of the connection to a machine and of its agent.
//!
//! `skyward-remote` keeps the sessions and tells their states; the planner, which holds no
//! connection, decides what a state means for a machine.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;

use crate::diagnosis::Diagnosis;
/// Which machine: namespace and name of its Machine object.
pub use crate::key::Key as MachineKey;

/// Where a session is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// SSH does not answer yet.
    Dialing {
        /// What the last attempt met.
        last_error: Option<String>,
    },
    /// SSH answers and lets us in, and the machine has not proved its host key: nothing else is sent,
    /// and it is asked again.
    Unproved {
        /// What the last attempt met.
        last_error: String,
    },
    /// SSH answers, the machine is being prepared.
    Bootstrapping {
        /// Name of the step, such as `packages`.
        step: String,
        /// Its number, from 1.
        index: u32,
        /// How many there are.
        total: u32,
    },
    /// The agent answers.
    Ready,
    /// The agent answers and refuses our epoch: it gets no command, and is asked again, later each
    /// time.
    EpochAhead,
    /// The machine was Ready and the connection was lost, or failed to come back: it is dialled
    /// again.
    Reconnecting {
        /// Why.
        last_error: String,
        /// Since when.
        since: Timestamp,
    },
    /// It will not become Ready by itself.
    Failed(SessionFailure),
}

/// Why a session will not become Ready by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionFailure {
    /// Kind of failure.
    pub kind: FailureKind,
    /// The bootstrap step, if one failed.
    pub step: Option<String>,
    /// What happened and what to do, with the last output of the step, secrets masked.
    pub message: String,
    /// Why the step failed, as far as its output tells; none where no step did.
    pub diagnosis: Option<Box<Diagnosis>>,
}

impl SessionFailure {
    /// A failure of that kind, with that message, outside of any step.
    pub fn new(kind: FailureKind, message: String) -> Self {
        Self {
            kind,
            step: None,
            message,
            diagnosis: None,
        }
    }

    /// Neither this machine nor any other like it can be used.
    pub fn unsupported(why: String) -> Self {
        Self {
            diagnosis: Some(Box::new(Diagnosis::of(&why, ""))),
            ..Self::new(FailureKind::Unsupported, why)
        }
    }

    /// In words: why a connection is down.
    pub fn in_words(&self) -> String {
        let Self { step, message, .. } = self;
        step.as_ref()
            .map_or_else(|| message.clone(), |step| format!("step \"{step}\": {message}"))
    }
}

/// Kinds of failure of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureKind {
    /// The machine shows another host key than the pinned one.
    HostKeyChanged,
    /// The machine's proof is of another host key than the one it shows.
    HostKeyNotProved,
    /// It does not accept our key.
    AuthRefused,
    /// A step of the bootstrap failed.
    StepFailed,
    /// A step of the bootstrap took too long.
    StepTimedOut,
    /// The agent refuses us: it is another machine's, or its protocol is too old.
    AgentRefused,
    /// The machine is of a kind that we cannot use.
    Unsupported,
    /// It sent something that no agent of ours sends: more, or in another form, than the protocol
    /// allows. A machine that was Ready may fail so, too; nobody waits for its runs.
    ProtocolViolation,
}

impl FailureKind {
    /// Stable name, for conditions and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::HostKeyChanged => "HostKeyChanged",
            Self::HostKeyNotProved => "HostKeyNotProved",
            Self::AuthRefused => "AuthRefused",
            Self::StepFailed => "StepFailed",
            Self::StepTimedOut => "StepTimedOut",
            Self::AgentRefused => "AgentRefused",
            Self::Unsupported => "Unsupported",
            Self::ProtocolViolation => "ProtocolViolation",
        }
    }
}

/// What the agent said about itself and its machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentFacts {
    /// Version of the agent.
    pub version: String,
    /// Version of Python for functions, `""` if there is none.
    pub python: String,
    /// Accelerators, as the machine's driver names them.
    pub accelerators: Vec<String>,
    /// Changes when the machine was restarted.
    pub boot_id: String,
    /// IPv4 address of each network interface.
    pub addresses: BTreeMap<String, String>,
}

/// What is known about a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionState {
    /// Where it is.
    pub stage: Stage,
    /// The host key it showed, in OpenSSH form.
    pub host_key: Option<String>,
    /// When SSH answered first.
    pub reachable_at: Option<Timestamp>,
    /// When bootstrap was complete first.
    pub bootstrapped_at: Option<Timestamp>,
    /// When the agent answered first.
    pub ready_at: Option<Timestamp>,
    /// What the agent said about itself.
    pub agent: Option<AgentFacts>,
    /// When the cloud takes the machine back, once the agent learnt it.
    pub reclaim_at: Option<Timestamp>,
    /// Why functions get fresh interpreters there, once the agent told it; `""` where they are forked.
    pub not_forked: Option<String>,
    /// How long it waited for other machines since SSH answered; that time does not count.
    pub waited: Duration,
    /// Since when it waits for other machines now.
    pub waits_since: Option<Timestamp>,
    /// The epoch above ours that the agent names, while it does.
    pub newer_epoch: Option<EpochClaim>,
    /// The environment of its runs.
    pub environment: EnvironmentState,
}

/// The environment of a machine's runs, as its session finds or makes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvironmentState {
    /// Hash of the environment that runs find, as the machine says; `""` = one without a name, `None` =
    /// not known.
    pub in_use: Option<String>,
    /// The step under way of its change, as `3/6 packages`.
    pub step: Option<String>,
    /// Hash of the environment that could not be made beside the one in use, and why.
    pub failed: Option<(String, Box<SessionFailure>)>,
    /// Hash of an environment, and the versions of its Python packages that the machine found for it.
    pub lock: Option<(String, Arc<str>)>,
    /// How long each step took that made the machine Ready or changed its environment, as
    /// `packages 3.2 s, shell_vars 0.1 s`.
    pub times: String,
}

impl SessionState {
    /// How long it has waited for other machines by then.
    pub fn waited_until(&self, now: Timestamp) -> Duration {
        let since = |since: Timestamp| Duration::try_from(now.duration_since(since)).unwrap_or_default();
        self.waited + self.waits_since.map_or(Duration::ZERO, since)
    }
}

/// An epoch above ours that an agent names. By itself it is only a claim of one machine: the proof
/// has to be checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochClaim {
    /// The epoch, at most the highest that a Lease can have.
    pub epoch: u64,
    /// The proof that came with that epoch, as the agent gives it back.
    pub proof: String,
}

impl Default for Stage {
    fn default() -> Self {
        Self::Dialing { last_error: None }
    }
}

/// Why an agent did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AgentError {
    /// The connection is gone or the agent did not answer; whether it acted is not known.
    #[error("the connection to the agent is lost: {0}")]
    Disconnected(String),
    /// The agent takes no command of our epoch: a newer leader commands it, or it lies. Only our
    /// Lease says whether we lead.
    #[error("the agent refuses the epoch of this controller")]
    StaleEpoch,
    /// The agent does not know that run.
    #[error("the agent does not know that run")]
    NotFound,
    /// The agent will never do this; the reason is for the user.
    #[error("the agent refused: {0}")]
    Refused(String),
    /// Not now; ask again later.
    #[error("the agent cannot do that now: {0}")]
    Busy(String),
    /// The machine broke a limit of the protocol: nothing that it says counts any more.
    #[error("the machine broke a limit of the protocol: {0}")]
    Protocol(String),
}
