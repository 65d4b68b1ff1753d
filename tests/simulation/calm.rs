//! The rules once all is calm: everything is as the Pools ask for, and where they are gone, nothing is left.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use skyward_api::{
    Machine, MachinePhase, Pool,
    condition::{RESTORE_DETECTED, find},
};
use skyward_core::Usd;

use crate::{
    cloud::{Rented, cost},
    rules::{is_same, read, text},
    time::{MINUTE, Moment, NEVER, now},
    world::{CLUSTER, World},
};

/// For so long the end of a machine may be unknown: no process lives, and clouds show outdated state.
const UNSEEN: Moment = 5 * MINUTE;

impl World {
    /// What is not as the Pools ask for; nothing once all is calm.
    pub(crate) fn unrest(&self) -> Vec<String> {
        let mut unrest = Vec::new();
        let machines: Vec<Machine> = self
            .server
            .all("machines")
            .iter()
            .map(|object| read(object))
            .collect();
        for object in self.server.all("pools") {
            pool_unrest(&read(&object), &machines, &mut unrest);
        }
        unrest.extend(self.books());
        unrest.extend(self.task_unrest());
        unrest
    }

    /// Where what is billed, what is recorded and what is settled do not agree.
    pub(crate) fn books(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let machines: Vec<Machine> = self
            .server
            .all("machines")
            .iter()
            .map(|object| read(object))
            .collect();
        let accounts = self.accounts_in_use();
        let truth = self.truth();
        let billed: Vec<&Rented> = truth.billed(&accounts).collect();
        let mut slots = BTreeMap::<(&str, u32), Vec<&str>>::new();
        for machine in &billed {
            let slot = (machine.mark.pool_uid.as_str(), machine.mark.slot);
            slots.entry(slot).or_default().push(&machine.id);
        }
        slots.retain(|_, ids| ids.len() > 1);
        if !slots.is_empty() {
            wrong.push(format!("twice for one slot: {slots:?}"));
        }
        let billed: BTreeSet<&str> = billed.iter().map(|machine| machine.id.as_str()).collect();
        let recorded: BTreeSet<&str> = machines
            .iter()
            .filter_map(|machine| machine.status.as_ref().map(|status| status.id.as_str()))
            .filter(|id| !id.is_empty())
            .collect();
        if billed != recorded {
            wrong.push(format!("billed are {billed:?}, recorded {recorded:?}"));
        }
        for provider in self.server.all("providers") {
            let name = text(&provider, "/metadata/name");
            let sum = truth.sum(|settled| settled.provider == name);
            let written = text(&provider, "/status/cost/settled");
            if !is_same(written, sum) {
                wrong.push(format!(
                    "{name} has settled {written} USD, its machines cost {sum}"
                ));
            }
        }
        wrong
    }

    /// The accounts whose credentials the Providers have; orphans at another account are found when its
    /// credentials come back.
    pub(crate) fn accounts_in_use(&self) -> BTreeSet<String> {
        let providers = self.server.all("providers");
        let names = providers.iter().map(|provider| text(provider, "/metadata/name"));
        names.map(|name| self.account_of(name)).collect()
    }

    /// Machines of ours that are left at any account.
    pub(crate) fn orphans(&self) -> Vec<String> {
        self.orphans_but(|_, _| false)
    }

    /// Machines of ours that are left at any account and about which no person is asked. A person is asked about a
    /// machine without a trace: somebody took its finalizer away, and its Pool went while its Provider had the
    /// credentials of another account.
    pub(crate) fn untold_orphans(&self) -> Vec<String> {
        self.orphans_but(|account, machine| {
            let provider = account.split_once('-').map_or(account, |(provider, _)| provider);
            let conditions = self.status_of(provider).conditions;
            let told = find(&conditions, RESTORE_DETECTED).filter(|told| told.status != "False");
            told.is_some_and(|told| told.message.contains(&machine.id))
        })
    }

    fn orphans_but(&self, is_told: impl Fn(&str, &Rented) -> bool) -> Vec<String> {
        let truth = self.truth();
        let left = truth.clouds.iter().flat_map(|(account, cloud)| {
            let ours = cloud
                .alive(now())
                .filter(|machine| machine.mark.cluster == CLUSTER);
            ours.filter(|machine| {
                !truth.torn.contains(&machine.mark.machine_uid) || !is_told(account, machine)
            })
        });
        left.map(|machine| format!("{} is an orphan", machine.id))
            .collect()
    }

    /// Providers that were deleted and are still there.
    pub(crate) fn providers_left(&self) -> Vec<String> {
        let providers = self.server.all("providers");
        let names = providers.iter().map(|provider| text(provider, "/metadata/name"));
        names.map(|name| format!("Provider {name} is left")).collect()
    }

    /// What is left of the Pools and their machines, and of resources at these accounts. What machines
    /// shared may stay for a day at an account that was not the Provider's when their Pool went.
    pub(crate) fn remains(&self, accounts: &BTreeSet<String>) -> Vec<String> {
        let mut remains = Vec::new();
        for plural in ["pools", "machines"] {
            for object in self.server.all(plural) {
                remains.push(format!("{plural}: {} is left", text(&object, "/metadata/name")));
            }
        }
        for task in self.server.all("tasks") {
            if text(&task, "/status/phase") == "Running" {
                remains.push(format!("Task {} still runs", text(&task, "/metadata/name")));
            }
        }
        for secret in self.server.all("secrets") {
            let name = text(&secret, "/metadata/name");
            if name.starts_with("pool-") {
                remains.push(format!("the key {name} is left"));
            }
        }
        let truth = self.truth();
        let billed: Vec<&String> = truth.billed(accounts).map(|machine| &machine.id).collect();
        if !billed.is_empty() {
            remains.push(format!("still billed: {billed:?}"));
        }
        let is_certain = |name: &&String| !truth.former.contains(*name);
        let certain = accounts.iter().filter(|name| is_certain(name)).cloned().collect();
        drop(truth);
        remains.extend(self.left_at(&certain));
        remains
    }

    /// What machines of ours shared and left at these accounts, whenever their Pool went.
    pub(crate) fn left_at(&self, accounts: &BTreeSet<String>) -> Vec<String> {
        let truth = self.truth();
        let known = truth.clouds.iter().filter(|(name, _)| accounts.contains(*name));
        known
            .flat_map(|(account, cloud)| {
                let left = cloud.leftovers(now()).into_iter();
                left.map(move |left| format!("{} is left at {account}", left.id))
            })
            .collect()
    }

    /// The recorded costs of machines agree with the meter of their cloud but for the time in which a
    /// process did not look, and machines of others are as they were.
    pub(crate) fn meter_agrees(&self) {
        let mut truth = self.truth();
        let (mut paid, mut metered, mut unseen) = (Usd::ZERO, Usd::ZERO, Usd::ZERO);
        for settled in &truth.settled {
            let mut all = truth
                .clouds
                .values()
                .flat_map(|cloud| cloud.rented.iter().map(move |machine| (cloud.kind, machine)));
            let found = all.find(|(_, machine)| machine.mark.machine_uid == settled.uid);
            if let Some((kind, machine)) = found
                // Since when it was billed is known.
                && (settled.times.0 - second(machine.created)).abs() <= 5
            {
                paid += truth.by_record(settled);
                metered += machine.bill(kind, now());
                unseen += cost(kind, machine.hourly, UNSEEN);
            }
        }
        let off = (paid - metered).abs();
        truth.rule(off <= unseen, || {
            format!("{paid} USD are settled, the meter says {metered}")
        });
        let strangers = truth.clouds.values().flat_map(|cloud| &cloud.rented);
        let ended: Vec<String> = strangers
            .filter(|machine| machine.mark.cluster != CLUSTER && machine.end_ordered != NEVER)
            .map(|machine| machine.id.clone())
            .collect();
        truth.rule(ended.is_empty(), || format!("{ended:?} were ended"));
    }
}

fn second(moment: Moment) -> i64 {
    crate::time::timestamp(moment).as_second()
}

/// What is not as a Pool asks for.
fn pool_unrest(pool: &Pool, machines: &[Machine], unrest: &mut Vec<String>) {
    use skyward_api::condition::{READY, STALLED, find, is_true};
    use skyward_planner::pool::resolved::ResolvedPool;

    let (uid, name) = (pool.uid().unwrap_or_default(), pool.name_any());
    let status = pool.status.clone().unwrap_or_default();
    let records: Vec<&Machine> = machines
        .iter()
        .filter(|machine| machine.spec.pool_uid == uid)
        .collect();
    let is_off = pool.spec.suspend == Some(true);
    let wanted = if is_off {
        0
    } else {
        pool.spec.nodes.desired as usize
    };
    let why = |type_| {
        find(&status.conditions, type_)
            .map(|condition| condition.reason.clone())
            .unwrap_or_default()
    };
    let told = format!("{name} says Ready: {}, Stalled: {}", why(READY), why(STALLED));
    let resolved = ResolvedPool::of(&pool.spec);
    let fits = |machine: &&Machine| {
        let phase = machine.status.as_ref().and_then(|status| status.phase);
        phase == Some(MachinePhase::Ready) && resolved.asks_for(machine)
    };
    if records.len() != wanted || !records.iter().all(fits) {
        let phases: Vec<_> = records
            .iter()
            .map(|machine| machine.status.as_ref().and_then(|status| status.phase))
            .collect();
        unrest.push(format!("{name} has {phases:?} of {wanted} machines; {told}"));
    } else if !is_true(&status.conditions, READY) || !why(STALLED).is_empty() {
        unrest.push(told);
    }
}
