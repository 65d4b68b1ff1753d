//! What controllers use of [`Sessions`], as a trait: a simulation of the whole controller brings
//! machines of its own, which nobody dials.

use async_trait::async_trait;
use tokio::sync::watch;

use crate::{
    agent::Agent,
    protocol::Reclaim,
    sessions::{MachineKey, SessionSpec, SessionState, Sessions},
    transcript::Transcript,
};

/// Connections to machines. Implemented by [`Sessions`], whose methods say what each promises.
#[async_trait]
pub trait Connections: Send + Sync {
    /// See [`Sessions::ensure`].
    fn ensure(&self, spec: SessionSpec);
    /// See [`Sessions::remove`].
    fn remove(&self, machine: &MachineKey);
    /// See [`Sessions::state`].
    fn state(&self, machine: &MachineKey) -> Option<SessionState>;
    /// See [`Sessions::agent`].
    fn agent(&self, machine: &MachineKey) -> Option<Agent>;
    /// See [`Sessions::transcript`].
    fn transcript(&self, machine: &MachineKey) -> Option<Transcript>;
    /// See [`Sessions::reclaimed`].
    fn reclaimed(&self, machine: &MachineKey, reclaim: Reclaim);
    /// See [`Sessions::not_forked`].
    fn not_forked(&self, machine: &MachineKey, why: &str);
    /// See [`Sessions::subscribe`].
    fn subscribe(&self) -> watch::Receiver<u64>;
    /// See [`Sessions::shutdown`].
    async fn shutdown(&self);
}

#[async_trait]
impl Connections for Sessions {
    fn ensure(&self, spec: SessionSpec) {
        Self::ensure(self, spec);
    }

    fn remove(&self, machine: &MachineKey) {
        Self::remove(self, machine);
    }

    fn state(&self, machine: &MachineKey) -> Option<SessionState> {
        Self::state(self, machine)
    }

    fn agent(&self, machine: &MachineKey) -> Option<Agent> {
        Self::agent(self, machine)
    }

    fn transcript(&self, machine: &MachineKey) -> Option<Transcript> {
        Self::transcript(self, machine)
    }

    fn reclaimed(&self, machine: &MachineKey, reclaim: Reclaim) {
        Self::reclaimed(self, machine, reclaim);
    }

    fn not_forked(&self, machine: &MachineKey, why: &str) {
        Self::not_forked(self, machine, why);
    }

    fn subscribe(&self) -> watch::Receiver<u64> {
        Self::subscribe(self)
    }

    async fn shutdown(&self) {
        Self::shutdown(self).await;
    }
}
