//! The API server goes back to a backup while machines go on: no forgotten machine is ended, and no machine at
//! all while its Provider is held, until a person decides.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::{Value, json};
use skyward_api::{
    Provider,
    condition::{RESTORE_DETECTED, find, reason},
    labels,
    provider::{AfterRestore, ProviderStatus},
};
use skyward_apisim::Backup;
use skyward_core::Mark;

use crate::{
    play::Play,
    rules::{Settled, read, text},
    time::now,
    world::{CLUSTER, OPERATOR, Truth, World},
};

/// The truth about a restore.
#[derive(Default)]
pub(crate) struct Restored {
    /// The backup, and the costs that were settled by then.
    backup: Option<(Backup, Vec<Settled>)>,
    /// Forgotten machines: account, and id there.
    forgotten: BTreeSet<(String, String)>,
    /// The epoch of the leader.
    epoch: u64,
}

impl World {
    pub(crate) fn status_of(&self, provider: &str) -> ProviderStatus {
        let object = self.server.get("providers", "", provider);
        let provider = object.map(|object| read::<Provider>(&object));
        provider.and_then(|provider| provider.status).unwrap_or_default()
    }

    /// Before a cloud is told to end a machine, in a history with a restore.
    pub(crate) fn may_be_ended_after_restore(&self, truth: &mut Truth, account: &str, id: &str) {
        let Some(restored) = &truth.restored else { return };
        let provider = account.split_once('-').map_or(account, |(provider, _)| provider);
        let status = self.status_of(provider);
        let decided = status
            .after_restore
            .as_ref()
            .and_then(|decision| decision.about(id));
        let is_forgotten = restored.forgotten.contains(&(account.to_owned(), id.to_owned()));
        let mut machines = truth.clouds[account].rented.iter();
        let is_over =
            machines.any(|machine| machine.id == id && machine.exists(now()) && !machine.answers(now()));
        let may = match decided {
            Some(AfterRestore::End) => true,
            Some(AfterRestore::Adopt) => is_over,
            None => !is_forgotten,
        };
        let held = find(&status.conditions, RESTORE_DETECTED).is_some_and(|held| held.status == "True");
        truth.rule(may, || {
            format!("{id} is ended, which the restore forgot: {decided:?}")
        });
        truth.rule(!held || decided == Some(AfterRestore::End), || {
            format!("{id} is ended while {provider} is held")
        });
    }

    /// After a write of the Lease. A leader that counted attempts and died before its account showed the machines
    /// leaves its successor with these counts, and with nothing on record that tells of the machines: that is
    /// not covered (docs/decisions/0011-restored-clusters.md).
    pub(crate) fn leader_may_be_new(&self) {
        let lease = self.server.get("leases", OPERATOR, "skyward-controller");
        let epoch = lease
            .and_then(|lease| lease["spec"]["leaseTransitions"].as_u64())
            .unwrap_or(0);
        let pools = self.server.all("pools");
        let mut truth = self.truth();
        let truth = &mut *truth;
        let Some(restored) = &mut truth.restored else {
            return;
        };
        if std::mem::replace(&mut restored.epoch, epoch) == epoch {
            return;
        }
        let clouds = &truth.clouds;
        restored.forgotten.retain(|(account, id)| {
            let (provider, _) = account.split_once('-').unwrap_or_default();
            let conditions = self.status_of(provider).conditions;
            let is_told = find(&conditions, RESTORE_DETECTED)
                .is_some_and(|told| told.status == "True" || told.reason == reason::RESTORE_SUSPECTED);
            let machine = clouds[account].rented.iter().find(|machine| machine.id == *id);
            let was_counted = machine.is_some_and(|machine| was_counted(&pools, &machine.mark));
            is_told || !was_counted
        });
    }

    /// Whether a Provider was held, and a person decided.
    pub(crate) fn was_decided(&self) -> bool {
        self.status_of("a").after_restore.is_some()
    }
}

/// Whether one of these Pools has counted the attempt of that mark.
fn was_counted(pools: &[Arc<Value>], mark: &Mark) -> bool {
    pools.iter().any(|pool| {
        let last = pool["status"]["lastAttempt"].as_u64().unwrap_or(0);
        text(pool, "/metadata/uid") == mark.pool_uid && u64::from(mark.attempt) <= last
    })
}

impl Play {
    pub(crate) fn back_up(&mut self) {
        self.tell("a backup is made".to_owned());
        self.mark_again();
        let backup = self.world.server.backup();
        let mut truth = self.world.truth();
        let settled = truth.settled.clone();
        truth.restored.get_or_insert_default().backup = Some((backup, settled));
    }

    /// The API server goes back to the backup. The processes begin anew, as docs/disaster-recovery.md says.
    pub(crate) fn restore(&mut self) {
        self.all_die();
        let mut truth = self.world.truth();
        let Some((backup, settled)) = truth
            .restored
            .as_mut()
            .and_then(|restored| restored.backup.take())
        else {
            return;
        };
        let server = &self.world.server;
        server.restore(&backup);
        let pools = server.all("pools");
        let records = server.all("machines");
        let recorded: BTreeSet<&str> = records
            .iter()
            .map(|record| text(record, "/metadata/uid"))
            .collect();
        let mut forgotten = BTreeSet::new();
        let mut torn = Vec::new();
        for (account, cloud) in &truth.clouds {
            for machine in cloud.alive(now()) {
                let mark = &machine.mark;
                if mark.cluster != CLUSTER || recorded.contains(mark.machine_uid.as_str()) {
                    continue;
                }
                torn.push(mark.machine_uid.clone());
                if !was_counted(&pools, mark) {
                    forgotten.insert((account.clone(), machine.id.clone()));
                }
            }
        }
        truth.tell(format!("the backup is restored; forgotten are {forgotten:?}"));
        truth.torn.extend(torn);
        truth.settled = settled;
        truth.watched.begin_anew(server.version());
        truth.tasks.begin_anew();
        if let Some(restored) = &mut truth.restored {
            restored.forgotten = forgotten;
        }
        drop(truth);
        self.world.look_anew();
    }

    /// A person reads the conditions and decides; answers whether there was anything to decide.
    pub(crate) fn decide(&mut self, what: &str) -> bool {
        let mut any = false;
        for name in self.names("providers") {
            let conditions = self.world.status_of(&name).conditions;
            let Some(told) = find(&conditions, RESTORE_DETECTED).filter(|told| told.status != "False") else {
                continue;
            };
            let digest = told.message.split_once("Adopt@").map(|(_, rest)| rest);
            let digest = digest.and_then(|rest| rest.split_once(' '));
            let digest = digest.map_or("", |(digest, _)| digest);
            let decision = format!("{what}@{digest}");
            any = true;
            self.tell(format!("somebody decides about {name}: {decision}"));
            let note = json!({ "metadata": { "annotations": { labels::AFTER_RESTORE: decision } } });
            let _gone = self.world.server.change("providers", "", &name, note);
            self.note();
        }
        any
    }

    /// The work of machines without a record is over, and their agents stop them.
    pub(crate) fn stop_adopted(&mut self) {
        let now = now();
        let records = self.world.server.all("machines");
        let recorded: BTreeSet<&str> = records
            .iter()
            .map(|record| text(record, "/metadata/uid"))
            .collect();
        let mut truth = self.world.truth();
        for cloud in truth.clouds.values_mut() {
            for at in 0..cloud.rented.len() {
                let machine = &cloud.rented[at];
                let is_known = recorded.contains(machine.mark.machine_uid.as_str());
                if machine.exists(now) && machine.mark.cluster == CLUSTER && !is_known {
                    cloud.halt(at, now);
                }
            }
        }
    }
}
