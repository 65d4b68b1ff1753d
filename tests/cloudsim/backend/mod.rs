//! What machines are made of: nothing but a state (`memory`), or Pods with OpenSSH (`pods`).

pub mod memory;
pub mod pods;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::core::machine::{Endpoint, MachineId};

/// The image and settings that a machine boots with, for every cloud.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Boot {
    /// The host name.
    pub hostname: String,
    /// The image that the client named.
    pub image: String,
    /// The user whose `authorized_keys` the keys go to.
    pub user: String,
    /// The public keys that the cloud puts there.
    pub authorized_keys: Vec<String>,
    /// The password with which the user may log in, at clouds that make one.
    pub password: Option<String>,
    /// What the client lets the machine run.
    pub start: Start,
    /// Environment variables of the machine's first process.
    pub env: BTreeMap<String, String>,
    /// The way to SSH.
    pub ssh: SshWay,
    /// Whether the machine has a metadata service at 169.254.169.254.
    pub metadata: bool,
    /// NVIDIA GPUs, as their driver names them; empty where there are none.
    pub gpus: Vec<String>,
    /// An attacker that answers in the machine's place.
    pub intruder: Option<Intruder>,
}

/// An attacker at the port where a machine should answer: an SSH server with a host key of its own that lets in
/// whom the machine lets in and does what it is asked. By its answer to the question for the proof of the
/// machine's host key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Intruder {
    /// The proof that the machine itself has written.
    Copied,
    /// Bytes that are no proof.
    Garbage,
    /// Nothing.
    Nothing,
    /// An answer without an end.
    Endless,
}

impl Intruder {
    /// As `intruder.sh` has it.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Copied => "copied",
            Self::Garbage => "garbage",
            Self::Nothing => "nothing",
            Self::Endless => "endless",
        }
    }
}

/// What a client lets a machine run when it starts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Start {
    /// Nothing.
    #[default]
    Nothing,
    /// A virtual machine with an init and sshd of its own: the text runs once as root beside
    /// sshd, as cloud-init does (`#!` scripts and `#cloud-config`).
    UserData(String),
    /// A container whose whole command this is. sshd runs only when the command starts it.
    Command(Vec<String>),
    /// A container in which the cloud starts sshd by itself, and then this script.
    OnStart(String),
}

/// How SSH of a machine is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SshWay {
    /// At the machine's address, port 22.
    #[default]
    Direct,
    /// At a shared address, with a port that the cloud gives out (10000 and more).
    Mapped,
    /// At a shared address, with the port that the customer chose.
    At(u16),
}

/// What a back end should do. Commands of one machine come in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Boot a machine (again).
    Start(MachineId, Box<Boot>),
    /// Stop it; its disk is kept.
    Halt(MachineId),
    /// Remove it with all it has.
    End(MachineId),
    /// The guest is to be told when it will be taken back (metadata service).
    Notice(MachineId, jiff::Timestamp),
    /// One more public key for its `authorized_keys`, while it runs.
    Authorize(MachineId, String),
}

/// What a back end tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// SSH will answer here (the machine runs when its scripted boot time is over as well).
    Reachable {
        /// The machine.
        machine: MachineId,
        /// Where.
        endpoint: Endpoint,
    },
    /// The guest halted itself.
    Halted {
        /// The machine.
        machine: MachineId,
    },
    /// What the machine was made of is lost, or could not be made.
    Died {
        /// The machine.
        machine: MachineId,
        /// Why, for the log of the simulator.
        why: String,
    },
}

/// Where back ends put what they tell.
#[derive(Clone, Debug, Default)]
pub struct Reports(Arc<Mutex<VecDeque<Report>>>);

impl Reports {
    /// Tells something.
    pub fn tell(&self, report: Report) {
        self.0.lock().push_back(report);
    }

    /// The oldest that nobody has taken.
    pub fn take(&self) -> Option<Report> {
        self.0.lock().pop_front()
    }
}

/// What machines are made of. [`Backend::carry_out`] returns at once; what takes time is done
/// by tasks that the back end owns, and told through the [`Reports`] it was made with.
pub trait Backend: Send + Sync + 'static {
    /// Does one thing.
    fn carry_out(&self, command: Command);
}
