//! The rules at each effect; [`crate::calm`] has those for when all is calm.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use serde::de::DeserializeOwned;
use serde_json::Value;
use skyward_api::{Machine, MachinePhase};
use skyward_apisim::{Call, Change};
use skyward_core::{ProviderMachine, Usd};
use skyward_planner::money::{Tariff, billed_until};
use skyward_remote::MachineKey;

use crate::{
    calls::Way,
    cloud::{Rented, cost},
    time::{MINUTE, Moment, NEVER, SECOND, now},
    world::{CLUSTER, OPERATOR, Truth, World},
};

/// For so long a process may act on what it saw before.
const VIEW: Moment = 3 * MINUTE;
/// For so long a Pool may work towards as many machines as it had work for.
const SHRINKS_WITHIN: Moment = 15 * MINUTE;

/// The cost of a machine in its record, when the record went.
#[derive(Clone, Debug)]
pub(crate) struct Settled {
    pub(crate) provider: String,
    pub(crate) pool_uid: String,
    pub(crate) uid: String,
    pub(crate) hourly: Usd,
    /// Since when and until when it was billed, as recorded, in seconds.
    pub(crate) times: (i64, i64),
}

/// What the rules remember of the API server's objects.
pub(crate) struct Watched {
    /// The newest version that was looked at.
    version: u64,
    /// Attempts that were used, by UID of the Pool.
    attempts: BTreeSet<(String, u32)>,
    /// What was asked for, and since when: machines of a Pool by its UID, limits of a Provider by its name.
    asked: BTreeMap<String, Vec<(Moment, usize)>>,
    /// When a Task of the Pool of that name was last seen that had not ended.
    worked: BTreeMap<String, Moment>,
    /// Since when the Pool of that name has always had such a Task.
    busy: BTreeMap<String, Moment>,
    /// Machines that were given up before they were ordered, by UID, and whose slot has another record.
    left: BTreeSet<String>,
}

impl Watched {
    pub(crate) const fn since(version: u64) -> Self {
        Self {
            version,
            attempts: BTreeSet::new(),
            asked: BTreeMap::new(),
            worked: BTreeMap::new(),
            busy: BTreeMap::new(),
            left: BTreeSet::new(),
        }
    }

    /// Whether the slot of that machine, by UID, was given to another before it was ordered.
    pub(crate) fn was_left(&self, machine_uid: &str) -> bool {
        self.left.contains(machine_uid)
    }

    /// The API server went back to an earlier state of that version.
    pub(crate) fn begin_anew(&mut self, version: u64) {
        self.version = version;
        self.attempts.clear();
    }

    fn ask(&mut self, key: &str, number: usize) {
        let asked = self.asked.entry(key.to_owned()).or_default();
        if asked.last().is_none_or(|(_, last)| *last != number) {
            asked.push((now(), number));
        }
    }

    /// A Task of that Pool has not ended, or had not until now.
    pub(crate) fn note_work(&mut self, pool: &str) {
        self.worked.insert(pool.to_owned(), now());
    }

    /// How many machines the Tasks of that Pool may use that have not ended.
    pub(crate) fn note_places(&mut self, pool: &str, places: usize) {
        self.ask(&places_of(pool), places);
        if places == 0 {
            self.busy.remove(pool);
        } else {
            self.busy.entry(pool.to_owned()).or_insert_with(now);
        }
    }

    /// Whether that Pool has had Tasks for longer than [`VIEW`] that had not ended.
    pub(crate) fn had_work_for_long(&self, pool: &str) -> bool {
        self.busy.get(pool).is_some_and(|since| *since + VIEW < now())
    }

    /// Whether a Task of that Pool was seen within [`VIEW`] that had not ended.
    pub(crate) fn had_work(&self, pool: &str) -> bool {
        self.worked.get(pool).is_some_and(|at| *at + VIEW > now())
    }

    /// Whether a user changed the spec of the Pool with that UID within [`VIEW`].
    pub(crate) fn is_new_spec(&self, uid: &str) -> bool {
        let asked = self.asked.get(&spec_of(uid)).and_then(|asked| asked.last());
        asked.is_some_and(|(since, _)| *since + VIEW > now())
    }

    /// The most that was asked for within [`VIEW`].
    fn most(&self, key: &str) -> usize {
        self.most_within(key, VIEW)
    }

    fn most_within(&self, key: &str, time: Moment) -> usize {
        let asked = self.asked.get(key).map(Vec::as_slice).unwrap_or_default();
        let until = asked.iter().skip(1).map(|(since, _)| *since).chain([NEVER]);
        let lately = asked
            .iter()
            .zip(until)
            .filter(|(_, until)| until.saturating_add(time) > now());
        lately.map(|((_, number), _)| *number).max().unwrap_or(0)
    }
}

/// Under which the least number of machines of a Pool is kept, and under which the generation of its spec.
fn floor_of(uid: &str) -> String {
    format!("{uid}/floor")
}

/// Under which is kept how many machines the Tasks of the Pool of that name may use.
fn places_of(pool: &str) -> String {
    format!("{pool}/places")
}

fn spec_of(uid: &str) -> String {
    format!("{uid}/spec")
}

/// An object of ours, which can always be read.
pub(crate) fn read<K: DeserializeOwned>(object: &Value) -> K {
    K::deserialize(object).expect("what is stored can be read")
}

pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

impl World {
    /// Before something is changed by a process: no other one leads.
    pub(crate) fn may_change(&self, way: &Way, truth: &mut Truth, what: &str) {
        let lease = self.server.get("leases", OPERATOR, "skyward-controller");
        let holder = lease.map(|lease| text(&lease, "/spec/holderIdentity").to_owned());
        let holder = holder.unwrap_or_default();
        truth.rule(holder.is_empty() || holder == way.identity, || {
            format!("{what} is of {}, and {holder} leads", way.identity)
        });
    }

    /// After a call of the API server.
    pub(crate) fn wrote(&self, way: &Way, call: &Call) {
        if call.reads() {
            return;
        }
        if !matches!(call.resource.plural, "leases" | "customresourcedefinitions") {
            let what = format!("a write of {} {}", call.resource.plural, call.name);
            self.may_change(way, &mut self.truth(), &what);
        }
        if call.resource.plural == "leases" {
            self.leader_may_be_new();
        }
        self.look();
    }

    /// The host key of a machine on record; `""` without one.
    pub(crate) fn recorded_key(&self, machine: &MachineKey) -> String {
        let record = self.server.get("machines", &machine.namespace, &machine.name);
        record.map_or_else(String::new, |record| text(&record, "/status/hostKey").to_owned())
    }

    /// Looks at what was written since the last look.
    pub(crate) fn look(&self) {
        let since = self.truth().watched.version;
        for change in self.server.changes_since(since) {
            self.truth().watched.version = change.version;
            match (change.plural(), change.gone) {
                ("pools", false) => {
                    self.pool_asks(&change.object);
                    self.may_scale(&change);
                    self.may_stall(&change.object);
                }
                ("pools", true) => self.pool_may_go(&change),
                ("providers", false) => self.provider_asks(&change.object),
                ("machines", false) if change.before.is_none() => self.may_be_recorded(&change.object),
                ("machines", true) => self.may_be_let_go(&change),
                ("tasks", _) => {
                    self.work_changed(&change);
                    self.task_changed(&change);
                }
                _ => {}
            }
        }
    }

    /// Looks at what is asked for now, after the API server went back to an earlier state.
    pub(crate) fn look_anew(&self) {
        for pool in self.server.all("pools") {
            self.pool_asks(&pool);
        }
        for provider in self.server.all("providers") {
            self.provider_asks(&provider);
        }
    }

    fn provider_asks(&self, provider: &Value) {
        let limit = &provider["spec"]["limits"]["machines"];
        let limit = limit.as_u64().map_or(usize::MAX, |limit| limit as usize);
        let name = text(provider, "/metadata/name");
        self.truth().watched.ask(name, limit);
    }

    fn pool_asks(&self, pool: &Value) {
        let uid = text(pool, "/metadata/uid");
        let nodes = &pool["spec"]["nodes"];
        let desired = nodes["desired"].as_u64().unwrap_or(1);
        let most = nodes["max"].as_u64().unwrap_or(0).max(desired);
        let generation = pool["metadata"]["generation"].as_u64().unwrap_or(0);
        let mut truth = self.truth();
        truth.watched.ask(uid, most as usize);
        truth.watched.ask(&floor_of(uid), desired as usize);
        truth.watched.ask(&spec_of(uid), generation as usize);
    }

    /// At each record of a machine: nothing is ordered twice, and no limit is passed.
    fn may_be_recorded(&self, object: &Value) {
        let machine: Machine = read(object);
        let spec = &machine.spec;
        let others: Vec<Machine> = self
            .server
            .all("machines")
            .iter()
            .filter(|other| other["metadata"]["uid"] != object["metadata"]["uid"])
            .map(|other| read(other))
            .collect();
        let holds = |machine: &&Machine| {
            let status = machine.status.clone().unwrap_or_default();
            status.phase != Some(MachinePhase::Failed) && status.reclaim_at.is_none()
        };
        let of_pool = |machine: &&Machine| machine.spec.pool_uid == spec.pool_uid;
        // Its cloud could not be looked at, so it was given up. It holds no machine, and may order none any more.
        let is_left = |machine: &&Machine| {
            machine.metadata.deletion_timestamp.is_some()
                && !self.truth().was_ordered(&machine.uid().unwrap_or_default())
        };
        let left: Vec<String> = others
            .iter()
            .filter(of_pool)
            .filter(holds)
            .filter(|machine| machine.spec.slot == spec.slot)
            .filter(is_left)
            .filter_map(Machine::uid)
            .collect();
        let holds = |machine: &&Machine| holds(machine) && !is_left(machine);
        let slots: Vec<u32> = others
            .iter()
            .filter(of_pool)
            .filter(holds)
            .map(|machine| machine.spec.slot)
            .collect();
        let is_kept = |machine: &&Machine| machine.metadata.deletion_timestamp.is_none();
        let stay = others
            .iter()
            .filter(of_pool)
            .filter(holds)
            .filter(is_kept)
            .count();
        let used = others
            .iter()
            .filter(|machine| machine.spec.provider == spec.provider)
            .count();
        let works = self.has_work(&spec.pool);
        let mut truth = self.truth();
        truth.watched.left.extend(left);
        let is_new = truth
            .watched
            .attempts
            .insert((spec.pool_uid.clone(), spec.attempt));
        truth.rule(is_new, || {
            format!("attempt {} of {} is used twice", spec.attempt, spec.pool)
        });
        truth.rule(!slots.contains(&spec.slot), || {
            format!("two machines in slot {} of {}", spec.slot, spec.pool)
        });
        let wanted = truth.watched.most(&spec.pool_uid);
        truth.rule(slots.len() < wanted, || {
            format!("more machines of {} than the {wanted} that are wanted", spec.pool)
        });
        let floor = truth.watched.most(&floor_of(&spec.pool_uid));
        truth.rule(works || slots.len() < floor, || {
            format!(
                "a machine of {} beyond its {floor} is ordered without work",
                spec.pool
            )
        });
        // A Pool does not work towards fewer machines as soon as there is less work.
        let places = truth.watched.most_within(&places_of(&spec.pool), SHRINKS_WITHIN);
        truth.rule(stay < places.max(floor), || {
            format!(
                "a machine of {} beyond its {floor} is ordered for work with {places} places",
                spec.pool
            )
        });
        let limit = truth.watched.most(&spec.provider);
        truth.rule(used < limit, || {
            format!("the limit {limit} of {} is passed", spec.provider)
        });
    }

    /// A record goes only when its machine is gone; then its cost is recorded, if it could be known.
    fn may_be_let_go(&self, change: &Change) {
        let last = change.before.as_ref().unwrap_or(&change.object);
        let machine: Machine = read(last);
        let uid = machine.uid().unwrap_or_default();
        let mut truth = self.truth();
        let left = truth.alive_of(&uid);
        let is_torn = truth.torn.contains(&uid);
        truth.rule(left == 0 || is_torn, || {
            format!(
                "{} is let go while {left} machines of it exist",
                machine.name_any()
            )
        });
        let status = machine.status.clone().unwrap_or_default();
        let since = status.billed_since.or(status.accepted_at).map(|time| time.0);
        let until = status.gone_at.and_then(|_| billed_until(&machine));
        if let (Some(since), Some(until)) = (since, until) {
            truth.settled.push(Settled {
                provider: machine.spec.provider.clone(),
                pool_uid: machine.spec.pool_uid.clone(),
                uid,
                hourly: Tariff::of(&machine).hourly,
                times: (since.as_second(), until.as_second()),
            });
        }
    }

    fn pool_may_go(&self, change: &Change) {
        let last = change.before.as_ref().unwrap_or(&change.object);
        let (uid, name) = (text(last, "/metadata/uid"), text(last, "/metadata/name"));
        let records = self.server.all("machines");
        let left = records
            .iter()
            .filter(|machine| text(machine, "/spec/poolUid") == uid)
            .count();
        let mut truth = self.truth();
        let alive = truth.clouds.values().flat_map(|cloud| cloud.alive(now()));
        let of_pool = |machine: &&Rented| {
            machine.mark.pool_uid == uid && !truth.torn.contains(&machine.mark.machine_uid)
        };
        let machines: Vec<String> = alive.filter(of_pool).map(|machine| machine.id.clone()).collect();
        truth.rule(machines.is_empty(), || {
            format!("Pool {name} goes while there are {machines:?}")
        });
        truth.rule(left == 0, || {
            format!("Pool {name} goes before {left} of its Machines")
        });
        let sum = truth.sum(|settled| settled.pool_uid == uid);
        let written = text(last, "/status/cost/settled");
        truth.rule(is_same(written, sum), || {
            format!("Pool {name} has settled {written} USD, its machines cost {sum}")
        });
    }

    /// Before a cloud is told to end a machine.
    pub(crate) fn may_be_ended(&self, truth: &mut Truth, account: &str, machine: &ProviderMachine) {
        let is_ours = machine.mark.cluster == CLUSTER;
        truth.rule(is_ours, || format!("{} is not ours and is ended", machine.id));
        self.may_be_drained(truth, machine);
        self.may_be_ended_after_restore(truth, account, &machine.id);
    }
}

impl Truth {
    /// Machines of ours at these accounts that exist or are being made.
    pub(crate) fn billed<'a>(&'a self, accounts: &'a BTreeSet<String>) -> impl Iterator<Item = &'a Rented> {
        let known = self
            .clouds
            .iter()
            .filter(|(account, _)| accounts.contains(*account));
        let alive = known.flat_map(|(_, cloud)| cloud.alive(now()));
        alive.filter(|machine| machine.mark.cluster == CLUSTER)
    }

    /// What these machines cost by their records.
    pub(crate) fn sum(&self, is_meant: impl Fn(&Settled) -> bool) -> Usd {
        let meant = self.settled.iter().filter(|settled| is_meant(settled));
        meant.map(|settled| self.by_record(settled)).sum()
    }

    /// The cost of a machine between the recorded times, by the rules of its cloud.
    pub(crate) fn by_record(&self, settled: &Settled) -> Usd {
        let kind = self.clouds[&format!("{}-1", settled.provider)].kind;
        let (since, until) = settled.times;
        cost(kind, settled.hourly, (until - since) * SECOND)
    }
}

/// Whether a written amount is the expected one.
pub(crate) fn is_same(written: &str, amount: Usd) -> bool {
    (Usd::or_zero(written) - amount).abs() < Usd::new(1, 6)
}
