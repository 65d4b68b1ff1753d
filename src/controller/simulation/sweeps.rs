//! The sweeps of the process: lists, plans and effects.

use std::collections::BTreeSet;

use kube::ResourceExt;
use skyward_api::provider::{AfterRestore, RestoreDecision};
use skyward_core::{PoolScope, Scope};
use skyward_planner::{
    accounts::orphans::{Rules, is_news, plan},
    restore::evidence::Remembered,
};

use super::{
    process::Work,
    world::{Crashed, World},
};
use crate::accounts::sweeps::{key_sweep, resource_sweep};

impl World {
    pub(super) fn regions_of_pools(&self, provider: &str) -> BTreeSet<String> {
        self.process
            .pools
            .values()
            .flat_map(|pool| pool.status.clone().unwrap_or_default().places)
            .filter(|place| place.provider == provider && !place.region.is_empty())
            .map(|place| place.region)
            .collect()
    }

    /// Sweeps orphaned machines.
    pub(super) fn sweep(&mut self) -> Result<(), Crashed> {
        let mut again = 60;
        for name in self.process.clients.keys().cloned().collect::<Vec<_>>() {
            let mut regions = self.regions_of_pools(&name);
            let recorded = self.process.machines.values();
            regions.extend(
                recorded
                    .filter(|machine| machine.spec.provider == name)
                    .map(|machine| machine.spec.region.clone()),
            );
            if !self.process.providers.contains_key(&name) && self.process.fleet.used(&name, "").total == 0 {
                self.process.clients.remove(&name);
                continue;
            }
            let scope = Scope {
                cluster: "cluster".into(),
                pool_uid: None,
                namespace: None,
                regions: regions.into_iter().collect(),
            };
            let Ok(listed) = self.list(&name, &scope) else {
                continue;
            };
            // Time passes between the list and the look at the records.
            self.perhaps_catch_up();
            let recorded = self.process.machines.values().map(|machine| {
                let id = machine.status.as_ref().map(|status| status.id.clone());
                (machine.uid().unwrap_or_default(), id.unwrap_or_default())
            });
            let looks_for_proof = self.restores.is_some();
            let holds = self.process.holds.clone();
            // Past the caches, as in the real sweep.
            let counted = self.server.pools.0.values().filter_map(|pool| {
                let uid = pool.uid()?;
                let last = if looks_for_proof {
                    holds.counted_before(&uid)
                } else {
                    u32::MAX
                };
                Some((uid, last))
            });
            let uids = listed.iter().map(|machine| &machine.mark.machine_uid);
            let attempts = self.process.machines.values().map(|machine| {
                let attempt = (machine.spec.pool_uid.clone(), machine.spec.attempt);
                (attempt, machine.uid().unwrap_or_default())
            });
            let remembered = Remembered {
                records: recorded.collect(),
                attempts: attempts.filter(|_| looks_for_proof).collect(),
                recorded: uids
                    .filter(|uid| self.process.fleet.was_recorded(uid))
                    .cloned()
                    .collect(),
                pools: counted.collect(),
                had: self.server.keys.keys().cloned().collect(),
            };
            let decision = self
                .process
                .providers
                .get(&name)
                .and_then(|provider| provider.status.as_ref()?.after_restore.clone());
            // Histories without a restore treat marks as no proof: what the sweep ends is the same
            // for all clouds.
            let rules = Rules {
                marks_prove: looks_for_proof,
                strange_end: !looks_for_proof,
                held: holds.is_held(&name),
                decision: decision.as_ref(),
                ended_lately: 0,
            };
            let now = self.now;
            let is_news =
                |machine: &skyward_api::Machine| machine.spec.provider == name && is_news(machine, &listed);
            self.process.wake_machines(is_news, now);
            let settle = self.kind_of(&name).settle().max(5);
            let wait = std::time::Duration::from_secs(settle.unsigned_abs());
            let seen = self.process.orphans.remove(&name).unwrap_or_default();
            let plan = plan("cluster", &listed, &remembered, &rules, &seen, wait, self.time());
            let mut seen = seen;
            seen.retain(|id, _| plan.watch.contains(id));
            for id in &plan.watch {
                seen.entry(id.clone()).or_insert(self.time());
                again = again.min(settle + 1);
            }
            self.process.orphans.insert(name.clone(), seen);
            if looks_for_proof {
                self.note_evidence(&name, plan.evidence);
            }
            for machine in plan.delete {
                self.boundary()?;
                self.may_be_swept(&machine);
                let id = machine.id.as_deref().unwrap_or_default();
                let says_end = |decision: &RestoreDecision| decision.about(id) == Some(AfterRestore::End);
                let met = if decision.as_ref().is_some_and(says_end) {
                    self.delete_decided(&name, &machine)?
                } else {
                    self.delete(&name, &machine)?
                };
                self.tell(|| format!("the sweep deletes {:?}: {met:?}", machine.id));
            }
        }
        let at = self.now + again;
        self.process.wake(Work::Sweep, at);
        Ok(())
    }

    /// Sweeps shared resources of Pools that are gone.
    pub(super) fn sweep_leftovers(&mut self) -> Result<(), Crashed> {
        let mut again = 600;
        for name in self.process.clients.keys().cloned().collect::<Vec<_>>() {
            let regions: Vec<String> = self.regions_of_pools(&name).into_iter().collect();
            let Ok(found) = self.leftovers(&name, &regions) else {
                continue;
            };
            let pools = self.process.pools.values().filter_map(|pool| pool.uid());
            let machines = self.process.machines.values();
            let wanted: BTreeSet<String> = pools
                .chain(machines.map(|machine| machine.spec.pool_uid.clone()))
                .collect();
            let settle = self.kind_of(&name).settle().max(30);
            let wait = std::time::Duration::from_secs(settle.unsigned_abs());
            let mut seen = self.process.left.remove(&name).unwrap_or_default();
            let (due, watch) = resource_sweep::plan(&found, &wanted, &seen, |_| wait, self.time());
            seen.retain(|uid, _| watch.contains(uid));
            for uid in watch {
                seen.entry(uid).or_insert(self.time());
                again = again.min(settle + 1);
            }
            self.process.left.insert(name.clone(), seen);
            for (pool_uid, regions) in due {
                self.boundary()?;
                let scope = PoolScope {
                    cluster: "cluster".into(),
                    pool_uid,
                    regions: regions.into_iter().collect(),
                };
                let _tried_again_later = self.release(&name, &scope);
            }
        }
        let at = self.now + again;
        self.process.wake(Work::LeftoverSweep, at);
        Ok(())
    }

    /// Sweeps keys of Pools that are gone.
    pub(super) fn sweep_keys(&mut self) -> Result<(), Crashed> {
        let found: Vec<key_sweep::StoredKey> = self
            .server
            .keys
            .iter()
            .map(|(pool_uid, uid)| key_sweep::StoredKey {
                pool_uid: pool_uid.clone(),
                uid: uid.clone(),
            })
            .collect();
        // Past the caches, as in the real sweep.
        let pools = self.server.pools.0.values().filter_map(|pool| pool.uid());
        let machines = self.server.machines.0.values();
        let wanted: BTreeSet<String> = pools
            .chain(machines.map(|machine| machine.spec.pool_uid.clone()))
            .collect();
        let (delete, watch) = key_sweep::plan(&found, &wanted, &self.process.lost_keys, self.time());
        self.process.lost_keys.retain(|key, _| watch.contains(key));
        for key in watch {
            let now = self.time();
            self.process.lost_keys.entry(key).or_insert(now);
        }
        for key in delete {
            self.boundary()?;
            self.server.keys.remove(&key.pool_uid);
            self.change();
        }
        let again = if self.process.lost_keys.is_empty() {
            601
        } else {
            31
        };
        let at = self.now + again;
        self.process.wake(Work::KeySweep, at);
        Ok(())
    }
}
