//! A Pool's spec with all defaults applied. It is made once for each generation of a Pool
//! ([`ResolvedPools`] keeps it), because the digests of its candidates take a while, and so that each
//! default stands in one place.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use kube_core::ResourceExt;
use parking_lot::{Mutex, MutexGuard};
use skyward_api::{
    Duration as Lasting, Machine, Pool,
    pool::{Devices, Executor, PoolSpec, Selection},
};

use super::{
    choice::{ResolvedCandidate, candidates},
    environment::apt_digests,
};
use crate::base::key::{Key, key_of};

/// Default of `maxProvisionAttempts`.
const MAX_PROVISION_ATTEMPTS: u32 = 10;
/// Default of `provisionRetryDelay`.
const PROVISION_RETRY_DELAY: Duration = Duration::from_secs(10);
/// Default of `sshRetryInterval`.
const SSH_RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Default of `worker.user`.
const WORKER_USER: &str = "skyward";

/// What a Pool wants, without any field that has a default.
#[derive(Clone, Debug)]
pub struct ResolvedPool {
    /// Whether it keeps no machines for now.
    pub suspended: bool,
    /// Least machines that work together; `None`: all that are wanted.
    nodes_min: Option<u32>,
    /// How candidates are ranked.
    pub selection: Selection,
    /// Machines that may fail in a row.
    pub max_provision_attempts: u32,
    /// Wait after the first failure in a row; it doubles.
    pub provision_retry_delay: Duration,
    /// How long each phase of a machine may take.
    pub timeouts: Timeouts,
    /// Wait between two tries to connect to a machine.
    pub ssh_retry_interval: Duration,
    /// Runs of one machine at the same time; at least one.
    pub concurrency: u32,
    /// Where the items of a function share the process of one run: how many of them run at the same time.
    pub threads: Option<u32>,
    /// What each of them sees of the machine's accelerators.
    pub devices: Devices,
    /// User that runs are started as.
    pub worker_user: String,
    /// Its candidates, in their order.
    pub candidates: Vec<ResolvedCandidate>,
    /// Digests of the Debian packages of its image.
    apt: BTreeSet<String>,
}

/// How long each phase of a Pool's machines may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// From the order to an address.
    pub provision: Duration,
    /// From an address to SSH.
    pub ssh: Duration,
    /// From SSH to Ready; `None`: as long as the kind of Provider allows by default.
    pub bootstrap: Option<Duration>,
    /// Between SIGTERM and SIGKILL of runs when the Pool goes.
    pub shutdown: Duration,
    /// How long a machine whose connection is lost may keep its runs.
    pub orphan: Duration,
}

/// The timeouts of a Pool that is gone, or sets none.
impl Default for Timeouts {
    fn default() -> Self {
        Self {
            provision: Duration::from_mins(5),
            ssh: Duration::from_mins(5),
            bootstrap: None,
            shutdown: Duration::from_mins(2),
            orphan: Duration::from_hours(24),
        }
    }
}

impl Timeouts {
    fn of(spec: &PoolSpec) -> Self {
        let set = spec.timeouts.clone().unwrap_or_default();
        let defaults = Self::default();
        Self {
            provision: Lasting::or(set.provision.as_ref(), defaults.provision),
            ssh: Lasting::or(set.ssh.as_ref(), defaults.ssh),
            bootstrap: set.bootstrap.as_ref().and_then(Lasting::parse),
            shutdown: Lasting::or(set.shutdown.as_ref(), defaults.shutdown),
            orphan: Lasting::or(spec.orphan_timeout.as_ref(), defaults.orphan),
        }
    }
}

impl ResolvedPool {
    /// Applies the defaults.
    pub fn of(spec: &PoolSpec) -> Self {
        let worker = spec.worker.as_ref();
        let concurrency = worker.and_then(|worker| worker.concurrency).unwrap_or(1).max(1);
        let executor = worker.and_then(|worker| worker.executor).unwrap_or_default();
        let (concurrency, threads) = match executor {
            Executor::Process => (concurrency, None),
            Executor::Thread => (1, Some(concurrency)),
        };
        Self {
            suspended: spec.suspend.unwrap_or(false),
            nodes_min: spec.nodes.min,
            selection: spec.selection.unwrap_or_default(),
            max_provision_attempts: spec.max_provision_attempts.unwrap_or(MAX_PROVISION_ATTEMPTS),
            provision_retry_delay: Lasting::or(spec.provision_retry_delay.as_ref(), PROVISION_RETRY_DELAY),
            timeouts: Timeouts::of(spec),
            ssh_retry_interval: Lasting::or(spec.ssh_retry_interval.as_ref(), SSH_RETRY_INTERVAL),
            concurrency,
            threads,
            devices: worker.and_then(|worker| worker.devices).unwrap_or_default(),
            worker_user: worker
                .and_then(|worker| worker.user.clone())
                .unwrap_or_else(|| WORKER_USER.to_owned()),
            candidates: candidates(spec),
            apt: apt_digests(spec.image.as_ref()),
        }
    }

    /// Least machines with which it works, where so many are wanted now.
    pub fn least(&self, wanted: u32) -> u32 {
        self.nodes_min.map_or(wanted, |least| least.min(wanted))
    }

    /// Whether this machine is one that the Pool asks for now, or can be made one in place.
    pub fn asks_for(&self, machine: &Machine) -> bool {
        let status = machine.status.as_ref();
        let environment = status.and_then(|status| status.environment.as_ref());
        let has_more = environment.is_some_and(|known| known.apt.iter().any(|one| !self.apt.contains(one)));
        !has_more && self.template_of(machine).is_some()
    }

    /// The digest of what this machine is asked for, where the Pool asks for such a machine.
    pub fn template_of(&self, machine: &Machine) -> Option<&str> {
        let status = machine.status.as_ref();
        let environment = status.and_then(|status| status.environment.as_ref());
        let adopted = environment.map_or("", |known| known.template_hash.as_str());
        let is_it = |candidate: &&ResolvedCandidate| {
            if adopted.is_empty() {
                let recorded = machine.spec.template_hash.as_str();
                recorded == candidate.template || recorded == candidate.legacy_template
            } else {
                adopted == candidate.template
            }
        };
        let found = self.candidates.iter().find(is_it);
        found.map(|candidate| candidate.template.as_str())
    }

    /// Digests of the Debian packages of its image.
    pub fn apt(&self) -> &BTreeSet<String> {
        &self.apt
    }
}

/// Resolved Pools by key, each of the generation that was last asked for.
#[derive(Debug, Default)]
pub struct ResolvedPools(Mutex<HashMap<Key, Resolved>>);

#[derive(Debug)]
struct Resolved {
    uid: Option<String>,
    generation: Option<i64>,
    pool: Arc<ResolvedPool>,
}

impl ResolvedPools {
    /// The Pool with its defaults.
    pub fn of(&self, pool: &Pool) -> Arc<ResolvedPool> {
        let (key, uid, generation) = (key_of(pool), pool.uid(), pool.metadata.generation);
        let known = |resolved: &&Resolved| resolved.uid == uid && resolved.generation == generation;
        if let Some(resolved) = self.lock().get(&key).filter(known) {
            return resolved.pool.clone();
        }
        let fresh = Arc::new(ResolvedPool::of(&pool.spec));
        let resolved = Resolved {
            uid,
            generation,
            pool: fresh.clone(),
        };
        self.lock().insert(key, resolved);
        fresh
    }

    /// The Pool is gone.
    pub fn forget(&self, pool: &Key) {
        self.lock().remove(pool);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Resolved>> {
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pool(uid: &str, generation: i64, spec: serde_json::Value) -> Pool {
        serde_json::from_value(serde_json::json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Pool",
            "metadata": { "name": "train", "namespace": "team", "uid": uid, "generation": generation },
            "spec": spec
        }))
        .unwrap()
    }

    fn machine(template: &str, environment: serde_json::Value) -> Machine {
        let spec = json!({
            "pool": "train", "poolUid": "u", "slot": 0, "attempt": 1, "provider": "a", "offer": "o",
            "instanceType": "x", "market": "OnDemand", "hourlyPrice": "0", "token": "t", "templateHash": template
        });
        let mut machine = Machine::new("m", serde_json::from_value(spec).unwrap());
        machine.status = Some(serde_json::from_value(json!({ "environment": environment })).unwrap());
        machine
    }

    #[test]
    fn a_machine_keeps_its_place_when_the_image_changes_but_for_a_debian_package_that_goes() {
        let resolved = |apt: &[&str]| {
            let spec = json!({ "provider": "a", "image": { "apt": apt, "pip": apt } });
            ResolvedPool::of(&pool("u", 1, spec).spec)
        };
        let (git, both) = (resolved(&["git"]), resolved(&["git", "curl"]));
        let template = &git.candidates[0].template;
        let with = |resolved: &ResolvedPool| machine(template, json!({ "apt": resolved.apt() }));
        assert!(both.asks_for(&with(&git)), "one more");
        assert!(!git.asks_for(&with(&both)), "one less");
        assert!(
            git.asks_for(&machine(template, json!(null))),
            "nothing is recorded yet"
        );
    }

    #[test]
    fn the_machine_of_an_older_release_is_asked_for_until_the_image_changes_and_then_if_it_was_taken_over() {
        let resolved = |pip: &str| {
            let spec = json!({ "provider": "a", "image": { "pip": [pip] } });
            ResolvedPool::of(&pool("u", 1, spec).spec)
        };
        let (before, after) = (resolved("numpy"), resolved("torch"));
        let candidate = &before.candidates[0];
        assert_ne!(candidate.template, candidate.legacy_template);
        let old = machine(&candidate.legacy_template, json!(null));
        assert!(before.asks_for(&old) && !after.asks_for(&old));
        assert_eq!(before.template_of(&old), Some(candidate.template.as_str()));
        let adopted = machine(
            &candidate.legacy_template,
            json!({ "templateHash": candidate.template }),
        );
        assert!(before.asks_for(&adopted) && after.asks_for(&adopted));
        let other = json!({ "provider": "a", "cpu": "2" });
        assert!(
            !ResolvedPool::of(&pool("u", 1, other).spec).asks_for(&adopted),
            "other hardware"
        );
    }

    /// The digests stand in records of the release before.
    #[test]
    fn the_digest_of_a_record_of_the_release_before_is_recognised() {
        let image = json!({ "python": "3.12", "pip": ["numpy"], "apt": ["git"] });
        let spec = json!({ "provider": "a", "image": image });
        let resolved = ResolvedPool::of(&pool("u", 1, spec).spec);
        assert_eq!(resolved.candidates[0].legacy_template, "03b182e6cdaa90b2");
        // Without an image the digest is as it was, so such a machine needs no other one.
        let plain = ResolvedPool::of(&pool("u", 1, json!({ "provider": "a" })).spec);
        let candidate = &plain.candidates[0];
        assert_eq!(candidate.template, candidate.legacy_template);
    }

    #[test]
    fn a_pool_that_says_nothing_has_each_default() {
        let spec = serde_json::json!({ "provider": "a", "nodes": { "desired": 3 } });
        let resolved = ResolvedPool::of(&pool("u", 1, spec).spec);
        assert!(!resolved.suspended);
        assert_eq!(resolved.selection, Selection::default());
        assert_eq!(resolved.max_provision_attempts, 10);
        assert_eq!(resolved.provision_retry_delay, Duration::from_secs(10));
        assert_eq!(
            (resolved.least(3), resolved.least(0)),
            (3, 0),
            "all that are wanted"
        );
        assert_eq!(resolved.candidates.len(), 1);
        assert_eq!(resolved.timeouts, Timeouts::default());
        assert_eq!(resolved.ssh_retry_interval, Duration::from_secs(5));
        assert_eq!((resolved.concurrency, resolved.threads), (1, None));
        assert_eq!(resolved.devices, Devices::Divide);
        assert_eq!(resolved.worker_user, "skyward");
    }

    #[test]
    fn what_a_pool_says_takes_the_place_of_each_default() {
        let spec = serde_json::json!({
            "provider": "a",
            "timeouts": { "provision": "1m", "ssh": "2m", "bootstrap": "3m", "shutdown": "4m" },
            "orphanTimeout": "5m", "sshRetryInterval": "6s",
            "worker": { "concurrency": 7, "devices": "Share", "user": "root" },
        });
        let resolved = ResolvedPool::of(&pool("u", 1, spec).spec);
        let expected = Timeouts {
            provision: Duration::from_mins(1),
            ssh: Duration::from_mins(2),
            bootstrap: Some(Duration::from_mins(3)),
            shutdown: Duration::from_mins(4),
            orphan: Duration::from_mins(5),
        };
        assert_eq!(resolved.timeouts, expected);
        assert_eq!(resolved.ssh_retry_interval, Duration::from_secs(6));
        assert_eq!((resolved.concurrency, resolved.threads), (7, None));
        assert_eq!(resolved.devices, Devices::Share);
        assert_eq!(resolved.worker_user, "root");
    }

    #[test]
    fn a_machine_with_threads_has_one_place_for_all_of_them() {
        for (concurrency, threads) in [(serde_json::json!(7), 7), (serde_json::Value::Null, 1)] {
            let worker = serde_json::json!({ "executor": "Thread", "concurrency": concurrency });
            let spec = serde_json::json!({ "provider": "a", "worker": worker });
            let resolved = ResolvedPool::of(&pool("u", 1, spec).spec);
            assert_eq!((resolved.concurrency, resolved.threads), (1, Some(threads)));
        }
    }

    #[test]
    fn never_more_machines_are_needed_than_are_wanted() {
        let spec = serde_json::json!({ "provider": "a", "nodes": { "desired": 3, "min": 2 } });
        let resolved = ResolvedPool::of(&pool("u", 1, spec).spec);
        assert_eq!(
            (resolved.least(3), resolved.least(1), resolved.least(0)),
            (2, 1, 0)
        );
    }

    #[test]
    fn a_pool_is_resolved_once_for_each_generation_and_never_taken_for_its_namesake() {
        let pools = ResolvedPools::default();
        let spec = |desired: u32, kind: &str| serde_json::json!({ "provider": "a", "instanceType": kind, "nodes": { "desired": desired } });
        let first = pools.of(&pool("u", 1, spec(1, "x")));
        assert!(Arc::ptr_eq(&first, &pools.of(&pool("u", 1, spec(1, "x")))));
        let changed = pools.of(&pool("u", 2, spec(1, "y")));
        let machine = |resolved: &ResolvedPool| machine(&resolved.candidates[0].template, json!({}));
        assert!(changed.asks_for(&machine(&changed)) && !changed.asks_for(&machine(&first)));
        let namesake = pools.of(&pool("v", 2, spec(1, "x")));
        assert!(namesake.asks_for(&machine(&first)));
        pools.forget(&Key::new("team", "train"));
        assert!(pools.lock().is_empty());
    }
}
