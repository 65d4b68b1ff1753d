//! The rules: at each effect, and when all is calm.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use skyward_api::{
    Machine, MachinePhase, Pool,
    condition::{READY, STALLED, find, is_true, reason},
    machine::MachineSpec,
};
use skyward_core::{MachineRef, Usd};
use skyward_planner::money::{Tariff, billed_until};

use super::{cloud::Rented, world::World};

/// The cost of a machine in its record, when the record went.
#[derive(Clone, Debug)]
pub(super) struct Settled {
    pub(super) provider: String,
    pub(super) pool_uid: String,
    pub(super) uid: String,
    pub(super) hourly: Usd,
    /// Since when and until when it was billed, as recorded.
    pub(super) times: (i64, i64),
}

/// Why a Pool cannot have all its machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// The Pool can have all of them.
    Nothing,
    /// Everything is sold out everywhere.
    Stock,
    /// Providers admit no more.
    Room,
    /// The credentials are another account's.
    Credentials,
    /// Its budget is spent.
    Money,
}

impl World {
    /// At each record of a machine: nothing is ordered twice, and no limit is passed.
    pub(super) fn may_be_recorded(&mut self, pool: &Pool, spec: &MachineSpec) {
        let attempt = (spec.pool_uid.clone(), spec.attempt);
        let is_new = self.attempts.insert(attempt);
        self.rule(is_new, || {
            format!("attempt {} of {} is used twice", spec.attempt, spec.pool)
        });
        let holds = |machine: &Machine| {
            let status = machine.status.clone().unwrap_or_default();
            status.phase != Some(MachinePhase::Failed) && status.reclaim_at.is_none()
        };
        let all = || self.server.machines.0.values();
        let slots: Vec<u32> = all()
            .filter(|machine| machine.spec.pool_uid == spec.pool_uid && holds(machine))
            .map(|machine| machine.spec.slot)
            .collect();
        let used = all()
            .filter(|machine| machine.spec.provider == spec.provider)
            .count();
        let wanted = pool.spec.nodes.desired as usize;
        self.rule(!slots.contains(&spec.slot), || {
            format!("two machines in slot {} of {}", spec.slot, spec.pool)
        });
        self.rule(slots.len() < wanted, || {
            format!("more machines of {} than wanted", spec.pool)
        });
        let limits = self
            .process
            .providers
            .get(&spec.provider)
            .and_then(|provider| provider.spec.limits.clone());
        let limit = limits.and_then(|limits| limits.machines);
        self.rule(limit.is_none_or(|limit| used < limit as usize), || {
            format!("the limit {limit:?} of {} is passed", spec.provider)
        });
    }

    /// Before the finalizer of a Pool goes.
    pub(super) fn pool_may_go(&mut self, uid: &str) {
        let of_pool = |machine: &&Rented| {
            machine.mark.pool_uid == uid && !self.torn.contains(&machine.mark.machine_uid)
        };
        let alive = self.clouds.values().flat_map(|cloud| cloud.alive(self.now));
        let left: Vec<String> = alive.filter(of_pool).map(|machine| machine.id.clone()).collect();
        self.rule(left.is_empty(), || {
            format!("a Pool goes while there are {left:?}")
        });
        let records = self.server.machines.0.values();
        let left = records.filter(|machine| machine.spec.pool_uid == uid).count();
        self.rule(left == 0, || format!("a Pool goes before {left} of its Machines"));
        let pool = self
            .server
            .pools
            .0
            .values()
            .find(|pool| pool.uid().as_deref() == Some(uid));
        let status = pool.and_then(|pool| pool.status.clone()).unwrap_or_default();
        let written = status.cost.map(|cost| cost.settled).unwrap_or_default();
        let sum: Usd = self
            .settled
            .iter()
            .filter(|settled| settled.pool_uid == uid)
            .map(|settled| self.by_record(settled))
            .sum();
        let is_there = self
            .server
            .pools
            .0
            .values()
            .any(|pool| pool.uid().as_deref() == Some(uid));
        self.rule(!is_there || is_same(&written, sum), || {
            format!("a Pool has settled {written} USD, its machines cost {sum}")
        });
    }

    /// Before the sweep deletes something.
    pub(super) fn may_be_swept(&mut self, machine: &MachineRef) {
        let record = self
            .server
            .machines
            .0
            .values()
            .find(|record| record.uid().as_deref() == Some(&machine.mark.machine_uid));
        let is_another = record.is_none_or(|record| {
            let id = record.status.as_ref().map(|status| status.id.clone());
            id.is_some_and(|id| !id.is_empty() && Some(id) != machine.id)
        });
        self.rule(is_another, || {
            format!("the sweep deletes {:?}, which has a record", machine.id)
        });
    }

    /// When a record goes: its cost is recorded, if it could be known.
    pub(super) fn settle(&mut self, machine: &Machine) {
        let uid = machine.uid().unwrap_or_default();
        let status = machine.status.clone().unwrap_or_default();
        let since = status.billed_since.or(status.accepted_at).map(|time| time.0);
        let until = status.gone_at.and_then(|_| billed_until(machine));
        if let (Some(since), Some(until)) = (since, until) {
            self.settled.push(Settled {
                provider: machine.spec.provider.clone(),
                pool_uid: machine.spec.pool_uid.clone(),
                uid,
                hourly: Tariff::of(machine).hourly,
                times: (since.as_second(), until.as_second()),
            });
            return;
        }
        let was_ended = self
            .clouds
            .values()
            .flat_map(|cloud| &cloud.rented)
            .filter(|rented| rented.mark.machine_uid == uid && rented.end_ordered < rented.gone)
            // A machine that lived shorter may never have been seen.
            .any(|rented| rented.gone - rented.created > 120);
        // A crash may come between its end and the record that it existed.
        let may_be_lost = self.odds.crash + self.odds.writes > 0;
        self.rule(may_be_lost || !was_ended, || {
            format!("what {} cost is nowhere on record", machine.name_any())
        });
    }

    /// The cost of a machine between the recorded times, by the rules of its cloud.
    fn by_record(&self, settled: &Settled) -> Usd {
        let kind = self.kind_of(&settled.provider);
        let (since, until) = settled.times;
        super::cloud::cost(kind, settled.hourly, until - since)
    }

    /// All is calm: everything is as the Pools ask for, except what is not available.
    pub(super) fn at_rest(&mut self, want: Want) {
        for name in self.server.pools.names() {
            if let Some(pool) = self.server.pools.get(&name) {
                self.pool_at_rest(&pool, want);
            }
        }
        if want == Want::Credentials {
            self.other_accounts_are_named();
        } else {
            self.nothing_is_doubled();
            self.nothing_is_forgotten();
        }
        self.ledger_is_true();
    }

    fn pool_at_rest(&mut self, pool: &Pool, want: Want) {
        let uid = pool.uid().unwrap_or_default();
        let name = pool.name_any();
        let status = pool.status.clone().unwrap_or_default();
        let records: Vec<_> = self
            .server
            .machines
            .0
            .values()
            .filter(|machine| machine.spec.pool_uid == uid)
            .cloned()
            .collect();
        let is_off = pool.spec.suspend == Some(true) || (want == Want::Money && pool.spec.nodes.desired > 0);
        let wanted = if is_off {
            0
        } else {
            pool.spec.nodes.desired as usize
        };
        let short = records.len() < wanted;
        let why = |type_| {
            find(&status.conditions, type_)
                .map(|c| c.reason.clone())
                .unwrap_or_default()
        };
        let (ready, stalled) = (why(READY), why(STALLED));
        let told = || format!("{name} says Ready: {ready}, Stalled: {stalled}");
        match want {
            Want::Nothing => {
                let resolved = self.process.resolved.of(pool);
                let fits = |machine: &std::sync::Arc<Machine>| {
                    let phase = machine.status.as_ref().and_then(|status| status.phase);
                    phase == Some(MachinePhase::Ready) && resolved.asks_for(&machine.spec.template_hash)
                };
                let good = records.len() == wanted && records.iter().all(fits);
                self.rule(good, || {
                    let phases: Vec<_> = records
                        .iter()
                        .map(|machine| machine.status.as_ref().and_then(|status| status.phase))
                        .collect();
                    format!("{name} has {phases:?} of {wanted} machines; {}", told())
                });
                self.rule(is_true(&status.conditions, READY) && stalled.is_empty(), told);
            }
            Want::Stock if short => self.rule(
                // The last of its failed tries may have failed for another reason.
                [
                    reason::ALL_PROVIDERS_FAILED,
                    reason::NO_AVAILABLE_PROVIDER,
                    reason::PROVISIONING_FAILED,
                ]
                .contains(&stalled.as_str()),
                told,
            ),
            // Another Provider has room, but not at the place of the others.
            Want::Room if short => self.rule(
                stalled == reason::LIMIT_REACHED
                    || (pool.spec.candidates.len() > 1 && stalled == reason::NO_AVAILABLE_PROVIDER),
                told,
            ),
            Want::Money if pool.spec.nodes.desired > 0 && pool.spec.suspend != Some(true) => {
                self.rule(stalled == reason::BUDGET_SPENT && records.is_empty(), || {
                    format!("{} machines, {}", records.len(), told())
                });
            }
            // Connected machines stay at the place of the machines whose account cannot be asked,
            // even if another Provider can be used.
            Want::Credentials if short => self.rule(
                [reason::PROVIDER_NOT_READY, reason::NO_AVAILABLE_PROVIDER].contains(&ready.as_str()),
                told,
            ),
            _ => {}
        }
    }

    /// A Provider whose machines are at another account than its credentials says so.
    fn other_accounts_are_named(&mut self) {
        for name in self.server.providers.names() {
            let Some(provider) = self.server.providers.get(&name) else {
                continue;
            };
            let status = provider.status.clone().unwrap_or_default();
            let mut records = self.server.machines.0.values();
            let is_used = records.any(|machine| machine.spec.provider == name);
            let is_other = status.account != self.secrets[&name].account;
            let why = find(&status.conditions, READY)
                .map(|c| c.reason.clone())
                .unwrap_or_default();
            self.rule(!(is_used && is_other) || why == reason::ACCOUNT_CHANGED, || {
                format!("{name} has machines at {} and says {why}", status.account)
            });
        }
    }

    /// Machines at the accounts whose credentials are in use; orphans at another account are found
    /// when its credentials come back.
    fn billed(&self) -> impl Iterator<Item = &Rented> {
        let is_known = |account: &String| self.secrets.values().any(|secret| secret.account == *account);
        let known = self.clouds.iter().filter(move |(account, _)| is_known(account));
        known.flat_map(|(_, cloud)| cloud.alive(self.now))
    }

    fn nothing_is_doubled(&mut self) {
        let mut slots = BTreeMap::<(String, u32), Vec<String>>::new();
        for machine in self.billed() {
            let slot = (machine.mark.pool_uid.clone(), machine.mark.slot);
            slots.entry(slot).or_default().push(machine.id.clone());
        }
        slots.retain(|_, ids| ids.len() > 1);
        self.rule(slots.is_empty(), || format!("twice for one slot: {slots:?}"));
    }

    /// Every billed machine is recorded, and every recorded machine is billed.
    fn nothing_is_forgotten(&mut self) {
        let billed: BTreeSet<String> = self.billed().map(|machine| machine.id.clone()).collect();
        let recorded: BTreeSet<String> = self
            .server
            .machines
            .0
            .values()
            .filter_map(|machine| machine.status.as_ref().map(|status| status.id.clone()))
            .filter(|id| !id.is_empty())
            .collect();
        self.rule(billed == recorded, || {
            format!("billed are {billed:?}, recorded {recorded:?}")
        });
    }

    /// Providers have settled what their machines cost, each once.
    fn ledger_is_true(&mut self) {
        for name in self.server.providers.names() {
            let Some(provider) = self.server.providers.get(&name) else {
                continue;
            };
            let sum: Usd = self
                .settled
                .iter()
                .filter(|settled| settled.provider == name)
                .map(|settled| self.by_record(settled))
                .sum();
            let cost = provider.status.as_ref().and_then(|status| status.cost.clone());
            let written = cost.map(|cost| cost.settled).unwrap_or_default();
            self.rule(is_same(&written, sum), || {
                format!("{name} has settled {written} USD, its machines cost {sum}")
            });
        }
    }

    /// The recorded costs of long-lived machines agree with the meter of their cloud.
    pub(super) fn meter_agrees(&mut self, least: i64) {
        let (mut paid, mut metered) = (Usd::ZERO, Usd::ZERO);
        for settled in &self.settled {
            let mut all = self
                .clouds
                .values()
                .flat_map(|cloud| cloud.rented.iter().map(move |machine| (cloud.kind, machine)));
            let found = all.find(|(_, machine)| machine.mark.machine_uid == settled.uid);
            if let Some((kind, machine)) = found
                && machine.gone - machine.created >= least
                // Since when it was billed is known.
                && settled.times.0 - machine.created <= 5
            {
                paid += self.by_record(settled);
                metered += machine.bill(kind, self.now);
            }
        }
        let off = (paid - metered).abs();
        self.rule(off * 1000 <= metered, || {
            format!("{paid} USD are settled, the meter says {metered}")
        });
    }

    /// The Pools are gone, with all their machines and resources.
    pub(super) fn nothing_is_left(&mut self) {
        let accounts = self.clouds.keys().cloned().collect();
        self.nothing_is_left_at(&accounts);
    }

    /// The Pools are gone, with all their machines and resources at these accounts.
    pub(super) fn nothing_is_left_at(&mut self, accounts: &BTreeSet<String>) {
        let pools = self.server.pools.names();
        let machines = self.server.machines.names();
        self.rule(pools.is_empty() && machines.is_empty(), || {
            format!("still recorded: {pools:?} {machines:?}")
        });
        let billed: Vec<String> = self
            .clouds
            .iter()
            .filter(|(account, _)| accounts.contains(*account))
            .flat_map(|(_, cloud)| cloud.alive(self.now))
            .map(|machine| machine.id.clone())
            .collect();
        self.rule(billed.is_empty(), || format!("still billed: {billed:?}"));
        let shared: usize = self
            .clouds
            .iter()
            .filter(|(account, _)| accounts.contains(*account))
            .map(|(_, cloud)| cloud.leftovers(self.now).len())
            .sum();
        self.rule(shared == 0, || {
            format!("{shared} things that were shared are left")
        });
        let keys = self.server.keys.clone();
        self.rule(keys.is_empty(), || format!("keys are left: {keys:?}"));
    }
}

/// Whether a written amount is the expected one.
fn is_same(written: &str, amount: Usd) -> bool {
    (Usd::or_zero(written) - amount).abs() < Usd::new(1, 6)
}
