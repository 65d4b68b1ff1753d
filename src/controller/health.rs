//! The state of this process for probes and people; `endpoints.rs` serves it.
//!
//! Ready means: the Lease is decided (a standby replica is ready too), and the leader's
//! watches are synced. The reasons of the last plan of each Pool and Machine are kept: the
//! first place to look when something does not happen.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
};

use jiff::Timestamp;
use parking_lot::{Mutex, RwLock};
use serde::Serialize;
use skyward_core::clock;
use tokio::sync::watch;

use crate::metrics::Sources;

/// The state that the probes show.
#[derive(Default)]
pub struct Health {
    lease_decided: AtomicBool,
    leads: AtomicBool,
    synced: AtomicBool,
    hindrance: watch::Sender<Option<String>>,
    plans: Mutex<BTreeMap<String, LastPlan>>,
    sources: RwLock<Option<Sources>>,
}

/// The last plan of an object.
#[derive(Clone, Debug, Serialize)]
pub struct LastPlan {
    /// When it was made.
    pub at: Timestamp,
    /// Why it is as it is, step by step.
    pub reasons: Vec<String>,
    /// What it did.
    pub actions: Vec<String>,
}

impl Health {
    /// Some process, perhaps this one, holds the Lease.
    pub fn lease_decided(&self, leads: bool) {
        self.hinder(None);
        self.leads.store(leads, Ordering::Relaxed);
        self.lease_decided.store(true, Ordering::Relaxed);
    }

    /// This process cannot lead until a person does something, whatever becomes of the Lease.
    pub fn hindered(&self, reason: String) {
        self.hinder(Some(reason));
    }

    fn hinder(&self, now: Option<String>) {
        self.hindrance.send_if_modified(|before| {
            let changed = *before != now;
            *before = now;
            changed
        });
    }

    /// Why this process cannot lead: now, and at each change.
    pub fn hindrance(&self) -> watch::Receiver<Option<String>> {
        self.hindrance.subscribe()
    }

    /// All watches have their first list; from now on metrics show the caches.
    pub fn synced(&self, sources: Sources) {
        *self.sources.write() = Some(sources);
        self.synced.store(true, Ordering::Relaxed);
    }

    /// The controllers end.
    pub fn stopped(&self) {
        self.synced.store(false, Ordering::Relaxed);
        *self.sources.write() = None;
    }

    /// Remembers why a plan is as it is; the object is `Pool namespace/name`.
    pub fn planned(&self, object: String, reasons: Vec<String>, actions: Vec<String>) {
        let plan = LastPlan {
            at: clock::now(),
            reasons,
            actions,
        };
        self.plans.lock().insert(object, plan);
    }

    /// Forgets an object that is gone.
    pub fn forget(&self, object: &str) {
        self.plans.lock().remove(object);
    }

    /// The last plans, by object.
    pub fn plans(&self) -> BTreeMap<String, LastPlan> {
        self.plans.lock().clone()
    }

    /// What metrics are read from, while this process leads.
    pub fn sources(&self) -> Option<Sources> {
        self.sources.read().clone()
    }

    /// Why it is not ready; `None` = it is.
    pub fn not_ready(&self) -> Option<String> {
        if let Some(reason) = &*self.hindrance.borrow() {
            return Some(reason.clone());
        }
        if !self.lease_decided.load(Ordering::Relaxed) {
            return Some("the leader Lease is not decided yet".to_owned());
        }
        if self.leads.load(Ordering::Relaxed) && !self.synced.load(Ordering::Relaxed) {
            return Some("the watches are not synced yet".to_owned());
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standby_is_ready_and_a_leader_only_when_its_watches_are_synced() {
        let health = Health::default();
        assert!(health.not_ready().is_some());
        health.lease_decided(false);
        assert_eq!(health.not_ready(), None);
        health.lease_decided(true);
        assert_eq!(
            health.not_ready().as_deref(),
            Some("the watches are not synced yet")
        );
    }

    #[test]
    fn an_installation_beside_another_one_is_not_ready_until_the_other_is_gone() {
        let health = Health::default();
        health.hindered("another installation leads".to_owned());
        assert_eq!(health.not_ready().as_deref(), Some("another installation leads"));
        health.lease_decided(false);
        assert_eq!(health.not_ready(), None);
    }
}
