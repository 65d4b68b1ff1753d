//! The Machines of all Pools: those in the watch, and new Machines that the watch has not shown
//! yet.
//!
//! A Pool that plans on a cache that lags would order a machine twice, and two Pools
//! that plan at once would pass a Provider's limit together. So a Machine is reserved
//! here, in one step with the check of the limits, before it is created, and counts from
//! then on. After a restart the watch's first list is complete, so nothing is lost.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use skyward_api::{
    Machine,
    machine::{MachineSpec, Market},
    pool::Place,
};
use skyward_core::Usd;
use skyward_planner::{
    accelerators::of_record,
    accounts::quota::{Quota, Used, counted, most_hourly},
    base::key::Key,
    records::is_of,
};
use tokio::time::Instant;

/// The Machines of all Pools: "fleet" is what operators call all machines that they run. Amazon's EC2
/// Fleet, an order for machines, is named in `providers/aws` only.
#[derive(Default)]
pub struct Fleet {
    inner: Mutex<Inner>,
    /// This installation, and the one of records that name none; `None` = all are ours.
    installation: Option<(String, String)>,
}

#[derive(Default)]
struct Inner {
    // UID of the Pool → its Machines, by name.
    pools: HashMap<String, BTreeMap<String, Arc<Machine>>>,
    // Created or about to be, not shown by the watch yet.
    reserved: HashMap<Key, Reserved>,
    recorded: Recorded,
    // UID of a Machine → its order.
    orders: HashMap<String, OrderState>,
}

/// What is known of the order of a Machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OrderState {
    /// It was sent, and was not refused: the machine may exist.
    Sent,
    /// It is not sent any more: the Pool gives the Machine up and orders another in its slot.
    Withdrawn,
}

/// UIDs of Machines that were on record at any time: a machine with such a UID lost its record, but
/// this cluster has not forgotten it.
#[derive(Default)]
struct Recorded {
    known: HashSet<String>,
    in_order: VecDeque<String>,
}

/// Most UIDs that are remembered; the oldest are dropped first.
const RECORDED: usize = 50_000;

impl Recorded {
    fn note(&mut self, machine: &Machine) {
        let Some(uid) = &machine.metadata.uid else { return };
        if self.known.contains(uid) {
            return;
        }
        self.known.insert(uid.clone());
        self.in_order.push_back(uid.clone());
        if self.in_order.len() > RECORDED
            && let Some(oldest) = self.in_order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}

/// A Machine that the watch has not shown yet.
#[derive(Clone, Debug)]
pub struct Reserved {
    /// UID of its Pool.
    pub pool_uid: String,
    /// Its slot.
    pub slot: u32,
    /// Its attempt.
    pub attempt: u32,
    /// The place where it is ordered.
    pub place: Place,
    /// On which market.
    pub market: Market,
    /// Name of its accelerator; `""` without one.
    pub accelerator: String,
    /// Most USD per hour that it may cost.
    pub hourly: Usd,
    /// Since when.
    pub since: Instant,
}

impl Reserved {
    /// A Machine of that spec, from now on.
    pub fn of(pool_uid: &str, spec: &MachineSpec) -> Self {
        Self {
            pool_uid: pool_uid.to_owned(),
            slot: spec.slot,
            attempt: spec.attempt,
            place: Place {
                provider: spec.provider.clone(),
                region: spec.region.clone(),
            },
            market: spec.market,
            accelerator: of_record(spec).map(|some| some.name).unwrap_or_default(),
            hourly: most_hourly(spec),
            since: Instant::now(),
        }
    }
}

impl Fleet {
    /// The Machines of that installation: Machines of another one, as in a copy of a cluster, are
    /// left out.
    pub fn of(cluster: &str, unnamed: &str) -> Self {
        Self {
            installation: Some((cluster.to_owned(), unnamed.to_owned())),
            ..Self::default()
        }
    }

    fn is_ours(&self, machine: &Machine) -> bool {
        let is_of = |(cluster, unnamed): &(String, String)| is_of(&machine.spec, cluster, unnamed);
        self.installation.as_ref().is_none_or(is_of)
    }

    /// Whether a Machine of that UID was on record since this process began to lead.
    pub fn was_recorded(&self, uid: &str) -> bool {
        let inner = self.inner.lock();
        inner.recorded.known.contains(uid)
    }

    /// The watch shows a Machine.
    pub fn apply(&self, machine: &Arc<Machine>) {
        if self.is_ours(machine) {
            self.inner.lock().show(machine);
        }
    }

    /// The API server answered that a Machine is being deleted, which the watch may not have shown
    /// yet: a plan in between does not give it up again. A Machine that is not known any more, or
    /// has another UID now, stays so.
    pub fn note_deletion(&self, machine: Machine) {
        let Some(name) = &machine.metadata.name else {
            return;
        };
        let mut inner = self.inner.lock();
        let known = inner
            .pools
            .get_mut(&machine.spec.pool_uid)
            .and_then(|pool| pool.get_mut(name));
        if let Some(known) = known
            && known.metadata.uid == machine.metadata.uid
            && known.metadata.deletion_timestamp.is_none()
        {
            *known = Arc::new(machine);
        }
    }

    /// The watch shows that a Machine is gone.
    pub fn remove(&self, machine: &Machine) {
        let (Some(namespace), Some(name)) = (&machine.metadata.namespace, &machine.metadata.name) else {
            return;
        };
        let mut inner = self.inner.lock();
        inner.reserved.remove(&Key::new(namespace, name));
        if let Some(uid) = &machine.metadata.uid {
            inner.orders.remove(uid);
        }
        if let Some(pool) = inner.pools.get_mut(&machine.spec.pool_uid) {
            pool.remove(name);
            if pool.is_empty() {
                inner.pools.remove(&machine.spec.pool_uid);
            }
        }
    }

    /// The watch began anew with this complete list, which appears at once: a plan that saw half
    /// of it would order the other half again. Reservations stay: they may be younger than the
    /// list.
    pub fn replace(&self, machines: &[Arc<Machine>]) {
        let mut inner = self.inner.lock();
        inner.pools.clear();
        for machine in machines.iter().filter(|machine| self.is_ours(machine)) {
            inner.show(machine);
        }
        let there: HashSet<&String> = machines.iter().filter_map(|m| m.metadata.uid.as_ref()).collect();
        inner.orders.retain(|uid, _| there.contains(uid));
    }

    /// The Machines of a Pool: the ones that the watch shows, and the reserved ones.
    pub fn of_pool(&self, pool_uid: &str) -> (Vec<Arc<Machine>>, Vec<(Key, Reserved)>) {
        let inner = self.inner.lock();
        let shown = inner
            .pools
            .get(pool_uid)
            .map(|pool| pool.values().cloned().collect())
            .unwrap_or_default();
        let mut reserved: Vec<_> = inner
            .reserved
            .iter()
            .filter(|(_, reserved)| reserved.pool_uid == pool_uid)
            .map(|(key, reserved)| (key.clone(), reserved.clone()))
            .collect();
        reserved.sort_by_key(|(_, reserved)| (reserved.slot, reserved.attempt));
        (shown, reserved)
    }

    /// The Machines of a Pool of that name, and of earlier ones of that name.
    pub fn named(&self, pool: &Key) -> Vec<Arc<Machine>> {
        let inner = self.inner.lock();
        let is_meant = |machine: &&Arc<Machine>| {
            machine.spec.pool == pool.name
                && machine.metadata.namespace.as_deref() == Some(pool.namespace.as_str())
        };
        inner
            .pools
            .values()
            // All Machines of one UID are of one Pool.
            .filter(|machines| machines.values().next().as_ref().is_some_and(is_meant))
            .flat_map(BTreeMap::values)
            .cloned()
            .collect()
    }

    /// The Machines of a Provider that the watch shows.
    pub fn of_provider(&self, provider: &str) -> Vec<Arc<Machine>> {
        let inner = self.inner.lock();
        let all = inner.pools.values().flat_map(BTreeMap::values);
        all.filter(|machine| machine.spec.provider == provider)
            .cloned()
            .collect()
    }

    /// Machines of a Provider.
    pub fn used(&self, provider: &str, namespace: &str) -> Used {
        used(&self.inner.lock(), provider, namespace)
    }

    /// Reserves Machines that are about to be created; `false`, and nothing is reserved,
    /// when that would pass a limit: another plan was faster.
    /// `limits` are the limits of each Provider, by name.
    pub fn reserve(
        &self,
        namespace: &str,
        limits: &BTreeMap<String, Quota>,
        machines: Vec<(String, Reserved)>,
    ) -> bool {
        let mut inner = self.inner.lock();
        let mut wanted: BTreeMap<&str, (u32, Usd)> = BTreeMap::new();
        for (_, reserved) in &machines {
            let of_provider = wanted.entry(&reserved.place.provider).or_default();
            of_provider.0 += 1;
            of_provider.1 += reserved.hourly;
        }
        for (provider, (machines, hourly)) in wanted {
            let limits = limits.get(provider).copied().unwrap_or_default();
            if limits.passed_by(used(&inner, provider, namespace), machines, hourly) {
                return false;
            }
        }
        for (name, reserved) in machines {
            inner.reserved.insert(Key::new(namespace, name), reserved);
        }
        true
    }

    /// Whether the order of a Machine may be sent now. One that is given up is not ordered any more.
    pub fn may_order(&self, machine: &Machine) -> bool {
        let Some(uid) = &machine.metadata.uid else {
            return false;
        };
        let mut inner = self.inner.lock();
        let known = inner.pools.get(&machine.spec.pool_uid);
        let known = known.and_then(|pool| pool.get(machine.metadata.name.as_deref()?));
        let is_kept = known.is_some_and(|known| {
            known.metadata.uid == machine.metadata.uid && known.metadata.deletion_timestamp.is_none()
        });
        let state = inner.orders.get(uid);
        if !is_kept || state == Some(&OrderState::Withdrawn) {
            return false;
        }
        inner.orders.insert(uid.clone(), OrderState::Sent);
        true
    }

    /// The order of that Machine, by UID, was certainly refused.
    pub fn was_refused(&self, uid: &str) {
        self.inner.lock().orders.remove(uid);
    }

    /// From now on the order of that Machine, by UID, is not sent any more; `false` while it may have been accepted.
    pub fn withdraw(&self, uid: &str) -> bool {
        let mut inner = self.inner.lock();
        let state = inner.orders.entry(uid.to_owned());
        *state.or_insert(OrderState::Withdrawn) == OrderState::Withdrawn
    }

    /// That Machine, by UID, is not given up.
    pub fn keep(&self, uid: &str) {
        let mut inner = self.inner.lock();
        if inner.orders.get(uid) == Some(&OrderState::Withdrawn) {
            inner.orders.remove(uid);
        }
    }

    /// Whether the order of that Machine, by UID, may have been accepted.
    pub fn perhaps_ordered(&self, uid: &str) -> bool {
        self.inner.lock().orders.get(uid) == Some(&OrderState::Sent)
    }

    /// It is certain that a reserved Machine was not created.
    pub fn cancel(&self, machine: &Key) {
        self.inner.lock().reserved.remove(machine);
    }
}

impl Inner {
    fn show(&mut self, machine: &Arc<Machine>) {
        let (Some(namespace), Some(name)) = (&machine.metadata.namespace, &machine.metadata.name) else {
            return;
        };
        // A former leader may have sent its order before it was given up.
        if let Some(uid) = &machine.metadata.uid
            && machine.metadata.deletion_timestamp.is_some()
            && !self.recorded.known.contains(uid)
        {
            self.orders.insert(uid.clone(), OrderState::Sent);
        }
        self.recorded.note(machine);
        self.reserved.remove(&Key::new(namespace, name));
        self.pools
            .entry(machine.spec.pool_uid.clone())
            .or_default()
            .insert(name.clone(), machine.clone());
    }
}

fn used(inner: &Inner, provider: &str, namespace: &str) -> Used {
    let mut used = Used::default();
    for machine in inner.pools.values().flat_map(BTreeMap::values) {
        if machine.spec.provider == provider {
            used.add(
                counted(machine),
                machine.metadata.namespace.as_deref() == Some(namespace),
            );
        }
    }
    for (key, reserved) in &inner.reserved {
        if reserved.place.provider == provider {
            used.add(reserved.hourly, key.namespace == namespace);
        }
    }
    used
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn reserved(slot: u32) -> (String, Reserved) {
        let reserved = Reserved {
            pool_uid: "uid".into(),
            slot,
            attempt: slot + 1,
            place: Place {
                provider: "local".into(),
                region: String::new(),
            },
            market: Market::OnDemand,
            accelerator: String::new(),
            hourly: Usd::from(2),
            since: Instant::now(),
        };
        (format!("m-{slot}"), reserved)
    }

    fn of_local(limits: Quota) -> BTreeMap<String, Quota> {
        BTreeMap::from([("local".to_owned(), limits)])
    }

    #[test]
    fn two_pools_cannot_pass_a_limit_together() {
        let fleet = Fleet::default();
        let limits = of_local(Quota {
            total: Some(3),
            ..Quota::default()
        });
        assert!(fleet.reserve("a", &limits, vec![reserved(0), reserved(1)]));
        assert!(!fleet.reserve("b", &limits, vec![reserved(0), reserved(1)]));
        assert!(fleet.reserve("b", &limits, vec![reserved(0)]));
        assert_eq!(
            fleet.used("local", "a"),
            Used {
                total: 3,
                in_namespace: 2,
                hourly: Usd::from(6),
                hourly_in_namespace: Usd::from(4),
            }
        );
    }

    fn machine(name: &str) -> Arc<Machine> {
        let spec = serde_json::from_value(serde_json::json!({
            "pool": "train", "poolUid": "uid", "slot": 0, "attempt": 1, "provider": "local", "offer": "o",
            "instanceType": "x", "market": "OnDemand", "hourlyPrice": "0", "token": "t", "templateHash": "h"
        }))
        .unwrap();
        let mut machine = Machine::new(name, spec);
        machine.metadata.namespace = Some("team".into());
        Arc::new(machine)
    }

    #[test]
    fn a_deletion_that_the_api_server_answered_shows_before_the_watch_and_brings_nothing_back() {
        let answered = |name: &str, uid: &str| {
            let mut machine = (*machine(name)).clone();
            machine.metadata.uid = Some(uid.into());
            machine.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
            machine
        };
        let known = |uid: &str| {
            let mut machine = answered("m-0", uid);
            machine.metadata.deletion_timestamp = None;
            Arc::new(machine)
        };
        let is_deleting = |fleet: &Fleet| {
            let (machines, _) = fleet.of_pool("uid");
            let deleting = machines.iter().map(|m| m.metadata.deletion_timestamp.is_some());
            deleting.collect::<Vec<_>>()
        };
        let fleet = Fleet::default();
        fleet.note_deletion(answered("m-0", "a"));
        assert!(
            is_deleting(&fleet).is_empty(),
            "a Machine that is gone stays gone"
        );
        fleet.apply(&known("b"));
        fleet.note_deletion(answered("m-0", "a"));
        assert_eq!(
            is_deleting(&fleet),
            [false],
            "the answer was about another Machine of the same name"
        );
        fleet.note_deletion(answered("m-0", "b"));
        assert_eq!(is_deleting(&fleet), [true]);
    }

    #[test]
    fn a_machine_that_another_installation_recorded_is_nobody_s_here() {
        let recorded_by = |name: &str, installation: Option<&str>| {
            let mut machine = (*machine(name)).clone();
            machine.spec.installation = installation.map(str::to_owned);
            Arc::new(machine)
        };
        let all = [
            recorded_by("old", None),
            recorded_by("production", Some("kube-system-uid")),
            recorded_by("staging", Some("staging")),
        ];
        let names = |fleet: &Fleet| -> Vec<String> {
            let (shown, _) = fleet.of_pool("uid");
            shown
                .iter()
                .filter_map(|machine| machine.metadata.name.clone())
                .collect()
        };
        let production = Fleet::of("kube-system-uid", "kube-system-uid");
        production.replace(&all);
        assert_eq!(names(&production), ["old", "production"]);
        // A copy of that cluster, with an id of its own.
        let staging = Fleet::of("staging", "kube-system-uid");
        for machine in &all {
            staging.apply(machine);
        }
        assert_eq!(names(&staging), ["staging"]);
        assert_eq!(staging.used("local", "team").total, 1);
    }

    #[test]
    fn a_list_that_begins_anew_is_never_seen_in_part() {
        let fleet = Fleet::default();
        let all: Vec<_> = (0..50).map(|n| machine(&format!("m-{n}"))).collect();
        fleet.replace(&all);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| (0..20_000).map(|_| fleet.of_pool("uid").0.len()).min());
            for _ in 0..2_000 {
                fleet.replace(&all);
            }
            assert_eq!(reader.join().unwrap(), Some(50));
        });
        assert_eq!(fleet.named(&Key::new("team", "train")).len(), 50);
        assert!(fleet.named(&Key::new("other", "train")).is_empty());
    }

    #[test]
    fn two_pools_cannot_pass_a_price_per_hour_together() {
        let fleet = Fleet::default();
        let limits = of_local(Quota {
            hourly: Some(Usd::from(5)),
            ..Quota::default()
        });
        assert!(fleet.reserve("a", &limits, vec![reserved(0), reserved(1)]));
        assert!(!fleet.reserve("b", &limits, vec![reserved(0)]));
    }

    #[test]
    fn an_order_counts_with_what_it_may_come_to_cost_until_it_is_accepted() {
        let fleet = Fleet::default();
        let mut ordered = machine("m-0").as_ref().clone();
        ordered.spec.hourly_price = "1".into();
        ordered.spec.max_hourly_cost = Some("3".into());
        assert_eq!(
            Reserved::of("uid", &ordered.spec).hourly,
            Usd::from(3),
            "as it is recorded"
        );
        fleet.apply(&Arc::new(ordered.clone()));
        assert_eq!(fleet.used("local", "team").hourly, Usd::from(3));
        let mut failed = ordered.clone();
        failed.status.get_or_insert_default().phase = Some(skyward_api::MachinePhase::Failed);
        fleet.apply(&Arc::new(failed));
        assert_eq!(
            fleet.used("local", "team").hourly,
            Usd::from(1),
            "another one takes its place"
        );
        let accepted = serde_json::from_value(serde_json::json!({ "acceptedAt": "2026-11-21T10:00:00Z" }));
        ordered.status = Some(accepted.unwrap());
        fleet.apply(&Arc::new(ordered));
        assert_eq!(fleet.used("local", "team").hourly, Usd::from(1));
    }

    #[test]
    fn a_machine_counts_with_what_it_really_costs_once_that_is_known() {
        let fleet = Fleet::default();
        let mut dear = machine("m-0").as_ref().clone();
        dear.spec.hourly_price = "2".into();
        fleet.apply(&Arc::new(dear.clone()));
        assert_eq!(fleet.used("local", "team").hourly, Usd::from(2));
        dear.status.get_or_insert_default().hourly_price = Some("2.5".into());
        fleet.apply(&Arc::new(dear));
        assert_eq!(fleet.used("local", "team").hourly, Usd::new(25, 1));
        let limits = of_local(Quota {
            hourly_in_namespace: Some(Usd::from(4)),
            ..Quota::default()
        });
        assert!(!fleet.reserve("team", &limits, vec![reserved(1)]));
        assert!(fleet.reserve("other", &limits, vec![reserved(1)]));
    }

    #[test]
    fn a_cancelled_reservation_counts_no_more() {
        let fleet = Fleet::default();
        let limits = of_local(Quota {
            in_namespace: Some(1),
            ..Quota::default()
        });
        assert!(fleet.reserve("a", &limits, vec![reserved(0)]));
        assert!(!fleet.reserve("a", &limits, vec![reserved(1)]));
        fleet.cancel(&Key::new("a", "m-0"));
        assert!(fleet.reserve("a", &limits, vec![reserved(1)]));
    }

    #[test]
    fn a_machine_that_is_given_up_is_not_ordered_and_one_that_may_be_ordered_is_not_given_up() {
        let fleet = Fleet::default();
        let [refused, ordered, deleted] = ["m-0", "m-1", "m-2"].map(|name| {
            let mut machine = machine(name).as_ref().clone();
            machine.metadata.uid = Some(format!("uid of {name}"));
            machine
        });
        for machine in [&refused, &ordered, &deleted] {
            fleet.apply(&Arc::new(machine.clone()));
        }
        // An order that is refused leaves nothing.
        assert!(fleet.may_order(&refused));
        assert!(!fleet.withdraw("uid of m-0"), "its order is on its way");
        fleet.was_refused("uid of m-0");
        assert!(fleet.withdraw("uid of m-0"));
        assert!(!fleet.may_order(&refused));
        // Its deletion was refused.
        fleet.keep("uid of m-0");
        assert!(fleet.may_order(&refused));
        // What is known of an order outlives a list, and goes with the record.
        assert!(fleet.may_order(&ordered) && fleet.perhaps_ordered("uid of m-1"));
        fleet.replace(&[Arc::new(ordered.clone())]);
        assert!(!fleet.withdraw("uid of m-1"));
        fleet.keep("uid of m-1");
        assert!(fleet.perhaps_ordered("uid of m-1") && !fleet.perhaps_ordered("uid of m-0"));
        fleet.remove(&ordered);
        assert!(!fleet.perhaps_ordered("uid of m-1"));
        // The watch shows its deletion later than the API server says it.
        fleet.apply(&Arc::new(deleted.clone()));
        let mut going = deleted.clone();
        going.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
        fleet.note_deletion(going.clone());
        assert!(!fleet.may_order(&deleted) && !fleet.perhaps_ordered("uid of m-2"));
        // A former leader gave it up; whether that one ordered it is not known.
        let new = Fleet::default();
        new.replace(&[Arc::new(going)]);
        assert!(new.perhaps_ordered("uid of m-2"));
    }
}
