//! The process looks at a Pool: observes, plans, records and acts, as `pool/` does.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use rand::Rng;
use skyward_api::{
    Machine, Pool,
    condition::{READY, find},
    labels,
    machine::MachineSpec,
};
use skyward_core::{Deletion, MachineRef, Scope};
use skyward_planner::{
    accounts::{
        facts::{AccountFacts, NamespaceFacts, ProviderFacts},
        limits::standing,
        quota::Quota,
    },
    base::{key::Key, requeue::Next},
    pool::{
        facts::{
            Observed, PoolFacts, RemainingMachines, machine_facts, ordered_from, pool_facts, providers_of,
            regions_at,
        },
        plan::{
            audit::audit,
            draft::{Action, Plan},
            plan,
        },
    },
};

use super::{
    planted::Fault,
    process::Work,
    server::{Refused, Server},
    world::{Crashed, World},
};
use crate::{accounts::fleet::Reserved, pool::observe::reserved_facts};

/// Most plans in a row, as in the real controller.
const ROUNDS: usize = 6;

/// In whole seconds, and at least one.
pub(super) fn seconds(wait: Duration) -> i64 {
    let whole = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    i64::try_from(whole.clamp(1, 1_000_000)).unwrap_or(1)
}

impl World {
    pub(super) fn reconcile_pool(&mut self, name: &str) -> Result<(), Crashed> {
        let Some(cached) = self.process.pools.get(name).cloned() else {
            return Ok(());
        };
        let pool = self.process.newest_pools.of(cached);
        if let Some(seconds) = self.pool_rounds(pool)? {
            let at = self.now + seconds;
            self.process.wake(Work::Pool(name.to_owned()), at);
        }
        Ok(())
    }

    fn pool_rounds(&mut self, mut pool: Arc<Pool>) -> Result<Option<i64>, Crashed> {
        for _ in 0..ROUNDS {
            self.resolve_doubts(&pool);
            let seen = self.observe_pool(&pool);
            let plan = plan(&seen, self.time());
            let violations = audit(&seen, &plan);
            self.rule(violations.is_empty(), || format!("audit: {violations:?}"));
            self.tell(|| {
                let (actions, reasons) = (names(&plan), &plan.reasons);
                format!(
                    "Pool {}: {actions:?} {reasons:?}, {:?}",
                    seen.pool.name, plan.next
                )
            });
            match self.act(&mut pool, &seen, &plan)? {
                Err(pause) => return Ok(Some(pause)),
                Ok(()) => match plan.next {
                    Next::Again => {}
                    Next::Wait => return Ok(None),
                    Next::After(wait) => return Ok(Some(seconds(wait))),
                },
            }
        }
        Ok(Some(1))
    }

    /// Machines that were created and that the watch has not shown for long.
    fn resolve_doubts(&mut self, pool: &Pool) {
        let (_, reserved) = self.process.fleet.of_pool(&pool.uid().unwrap_or_default());
        for (key, _) in reserved {
            let since = self.process.reserved.get(&key.name).copied().unwrap_or(0);
            if self.now - since >= 15 {
                match self.server.machines.get(&key.name) {
                    Some(machine) => {
                        self.process.fleet.apply(&machine);
                        self.process.looked_up.insert(key.name, machine);
                    }
                    None => self.process.fleet.cancel(&key),
                }
            }
        }
    }

    fn observe_pool(&mut self, pool: &Pool) -> Observed {
        let facts = pool_facts(pool, self.process.resolved.of(pool));
        let key = Key::new(facts.namespace.clone(), facts.name.clone());
        let load = self.process.loads.load(&key);
        let (shown, reserved) = self.process.fleet.of_pool(&facts.uid);
        let shown = shown
            .iter()
            .map(|machine| machine_facts(machine, &facts.resolved, load.as_ref()));
        let reserved = reserved
            .into_iter()
            .map(|(key, reserved)| reserved_facts(key.name, reserved));
        let mut machines: Vec<_> = shown.chain(reserved).collect();
        machines.sort_by_key(|machine| (machine.slot, machine.attempt));
        let named = facts.spec.providers();
        let providers = named
            .iter()
            .map(|name| ((*name).to_owned(), self.provider_facts(name, &facts.namespace)))
            .collect();
        let offers = named
            .iter()
            .map(|name| ((*name).to_owned(), self.process.offers.of(name)))
            .collect();
        let leftovers =
            if facts.deleting_since.is_some() && machines.is_empty() && facts.status.last_attempt > 0 {
                self.leftovers_of(&facts)
            } else {
                RemainingMachines::NotAsked
            };
        Observed {
            cluster: "cluster".into(),
            machines,
            load,
            providers,
            namespace: NamespaceFacts::Active,
            missing_references: Ok(Vec::new()),
            tried_with: None,
            too_large_references: None,
            has_references: false,
            offers,
            unavailable: self.process.unavailable.clone(),
            architectures: [skyward_api::offer::Architecture::Amd64].into(),
            leftovers,
            refusal: None,
            unread: Vec::new(),
            nonce: self.random.random(),
            pool: facts,
        }
    }

    pub(super) fn provider_facts(&self, name: &str, namespace: &str) -> ProviderFacts {
        let provider = self.process.providers.get(name);
        let is_connected = self.process.clients.contains_key(name);
        let conditions = provider
            .and_then(|provider| provider.status.as_ref())
            .map(|status| status.conditions.as_slice())
            .unwrap_or_default();
        let not_ready = |why: &str| AccountFacts::NotReady(format!("Provider \"{name}\" {why}"));
        let account = match (provider, find(conditions, READY)) {
            (None, _) => AccountFacts::NotFound(Vec::new()),
            (Some(provider), _) if provider.metadata.deletion_timestamp.is_some() => {
                not_ready("is being deleted")
            }
            (_, Some(ready)) if ready.status == "True" && is_connected => AccountFacts::Ready,
            (_, Some(ready)) => not_ready(&ready.message),
            (_, None) => not_ready("was not checked yet"),
        };
        let account = match account {
            AccountFacts::Ready if self.passes(name, "record a machine").is_err() => not_ready("is held"),
            account => account,
        };
        let limits = provider.and_then(|provider| provider.spec.limits.as_ref());
        let capabilities = &self.kind_of(name).capabilities;
        let connected = |time: Duration| if is_connected { time.as_secs() as u32 } else { 0 };
        ProviderFacts {
            account,
            account_id: provider
                .and_then(|provider| provider.status.as_ref())
                .map(|status| status.account.clone())
                .unwrap_or_default(),
            admits: Ok(()),
            own_nodes: false,
            overridable: BTreeSet::new(),
            limits: standing(limits, None).limits,
            used: self.process.fleet.used(name, namespace),
            month: None,
            month_in_namespace: None,
            billing_step_seconds: connected(capabilities.billing_step),
            billing_minimum_seconds: connected(capabilities.billing_minimum),
            proves_host_keys: false,
            marketplace: capabilities.marketplace,
        }
    }

    fn leftovers_of(&mut self, pool: &PoolFacts) -> RemainingMachines {
        let mut found = Vec::new();
        let mut asked = false;
        for name in providers_of(pool) {
            if !self.process.providers.contains_key(&name) {
                continue;
            }
            asked = true;
            if !self.process.clients.contains_key(&name) {
                if ordered_from(pool, &name) {
                    return RemainingMachines::Unknown(format!("Provider \"{name}\" is not ready"));
                }
                continue;
            }
            let scope = Scope {
                cluster: "cluster".into(),
                pool_uid: Some(pool.uid.clone()),
                namespace: Some(pool.namespace.clone()),
                regions: regions_at(pool, &name),
            };
            match self.list(&name, &scope) {
                Ok(listed) => found.extend(listed.into_iter().map(|machine| {
                    let reference = MachineRef {
                        id: Some(machine.id),
                        mark: machine.mark,
                        region: machine.rental.region.unwrap_or_default(),
                        started: false,
                    };
                    (name.clone(), reference)
                })),
                Err(error) if ordered_from(pool, &name) => {
                    return RemainingMachines::Unknown(error.to_string());
                }
                Err(_) => {}
            }
        }
        if asked {
            RemainingMachines::Known(found)
        } else {
            RemainingMachines::NoProvider
        }
    }

    /// Carries a plan out; `Err`: a write was refused, look again after so long.
    fn act(
        &mut self,
        pool: &mut Arc<Pool>,
        seen: &Observed,
        plan: &Plan,
    ) -> Result<Result<(), i64>, Crashed> {
        let orders: Vec<(&String, &MachineSpec)> = plan
            .actions
            .iter()
            .filter_map(|action| match action {
                Action::CreateMachine { name, spec } => Some((name, spec.as_ref())),
                _ => None,
            })
            .collect();
        let cancel = |world: &Self, orders: &[(&String, &MachineSpec)]| {
            for (name, _) in orders {
                world.process.fleet.cancel(&Key::new(&seen.pool.namespace, *name));
            }
        };
        if !orders.is_empty() {
            let limits: BTreeMap<String, Quota> = seen
                .providers
                .iter()
                .map(|(name, facts)| (name.clone(), facts.limits))
                .collect();
            let wanted = orders
                .iter()
                .map(|(name, spec)| ((*name).clone(), Reserved::of(&seen.pool.uid, spec)))
                .collect();
            if !self.process.fleet.reserve(&seen.pool.namespace, &limits, wanted) {
                return Ok(Err(1));
            }
            for (name, _) in &orders {
                self.process.reserved.insert((*name).clone(), self.now);
            }
        }
        let mut old = seen.pool.status.clone();
        old.running_tasks = plan.status.running_tasks;
        old.waiting_tasks = plan.status.waiting_tasks;
        if let (Some(old), Some(new)) = (&mut old.cost, &plan.status.cost) {
            old.spent.clone_from(&new.spent);
        }
        if plan.status != old && !plan.actions.contains(&Action::AddFinalizer) {
            self.boundary()?;
            let forgets = self.has(Fault::AttemptsForgotten);
            let written = self.write(|server| {
                server.pools.write(&mut server.version, pool, |object| {
                    let last = object.status.as_ref().map_or(0, |status| status.last_attempt);
                    object.status = Some(plan.status.clone());
                    if forgets {
                        object.status.get_or_insert_default().last_attempt = last;
                    }
                })
            });
            match written {
                Ok(fresh) => {
                    self.process.newest_pools.wrote(pool, fresh.clone());
                    *pool = fresh;
                }
                Err(refused) => {
                    cancel(self, &orders);
                    return Ok(Err(if refused == Refused::Conflict { 1 } else { 3 }));
                }
            }
        }
        if seen.pool.deleting_since.is_some() && self.has(Fault::PoolGoesFirst) {
            self.pool_may_go(&seen.pool.uid);
        }
        for action in &plan.actions {
            self.boundary()?;
            match action {
                Action::AddFinalizer | Action::RemoveFinalizer => {
                    let on = *action == Action::AddFinalizer;
                    if !on {
                        self.pool_may_go(&seen.pool.uid);
                    }
                    let written = self.write(|server| {
                        server.pools.write(&mut server.version, pool, |object| {
                            object.finalizers_mut().retain(|name| name != labels::FINALIZER);
                            if on {
                                object.finalizers_mut().push(labels::FINALIZER.to_owned());
                            }
                        })
                    });
                    match written {
                        Ok(fresh) => {
                            self.process.newest_pools.wrote(pool, fresh.clone());
                            *pool = fresh;
                        }
                        Err(_) => return Ok(Err(1)),
                    }
                }
                Action::EnsureKey => self.ensure_key(&seen.pool.uid),
                Action::ReleaseKey => {
                    self.server.keys.remove(&seen.pool.uid);
                }
                Action::Release { provider, scope } => {
                    if self.process.clients.contains_key(provider) {
                        let released = self.release(provider, scope);
                        self.tell(|| format!("release at {provider}: {released:?}"));
                        if released != Ok(Deletion::Gone) {
                            return Ok(Err(3));
                        }
                    }
                }
                Action::DeleteUnrecorded(provider, machine) => {
                    if self.process.clients.contains_key(provider) && self.delete(provider, machine)?.is_err()
                    {
                        return Ok(Err(3));
                    }
                }
                Action::CreateMachine { .. } | Action::DeleteMachine { .. } | Action::DeleteLogs => {}
            }
        }
        self.give_up(plan)?;
        let mut refused = None;
        for (name, spec) in orders {
            self.boundary()?;
            match self.record(pool, seen, name, spec) {
                Ok(_) | Err(Refused::Exists) => {}
                // Perhaps created: the reservation stays until a look decides.
                Err(_) => refused = Some(1),
            }
        }
        Ok(refused.map_or(Ok(()), Err))
    }

    fn give_up(&mut self, plan: &Plan) -> Result<(), Crashed> {
        for action in &plan.actions {
            let Action::DeleteMachine {
                name,
                uid,
                finish_runs,
                ..
            } = action
            else {
                continue;
            };
            self.boundary()?;
            let is_meant = |machine: Arc<Machine>| machine.uid().as_ref() == Some(uid);
            if *finish_runs && self.server.machines.get(name).is_some_and(is_meant) {
                let _marked = self.write(|server| {
                    server.machines.change(&mut server.version, name, |object| {
                        object
                            .annotations_mut()
                            .insert(skyward_api::labels::FINISH_RUNS.into(), String::new());
                    })
                });
                self.boundary()?;
            }
            let now = self.time();
            let version = &mut self.server.version;
            self.server.machines.delete(version, name, Some(uid), now);
            self.change();
        }
        Ok(())
    }

    /// Records a machine: from then on it is ordered.
    fn record(
        &mut self,
        pool: &Pool,
        seen: &Observed,
        name: &str,
        spec: &MachineSpec,
    ) -> Result<Arc<Machine>, Refused> {
        self.may_be_recorded(pool, spec);
        let mut machine = Machine::new(name, spec.clone());
        machine.metadata.namespace = Some(seen.pool.namespace.clone());
        let guard = (!self.has(Fault::RecordsUnguarded)).then(|| labels::FINALIZER.to_owned());
        machine.metadata.finalizers = Some(guard.into_iter().collect());
        machine.metadata.owner_references = Some(vec![OwnerReference {
            name: seen.pool.name.clone(),
            uid: seen.pool.uid.clone(),
            ..OwnerReference::default()
        }]);
        let now = self.time();
        self.write(|server| server.machines.create(&mut server.version, machine, now))
    }

    pub(super) fn ensure_key(&mut self, pool_uid: &str) {
        let version = self.server.version;
        self.server
            .keys
            .entry(pool_uid.to_owned())
            .or_insert_with(|| format!("secret-{version}"));
    }

    /// A write to the API server, which may fail, or whose answer may be lost.
    pub(super) fn write<T>(
        &mut self,
        write: impl FnOnce(&mut Server) -> Result<T, Refused>,
    ) -> Result<T, Refused> {
        let fails = self.chance(self.odds.writes);
        let is_late = fails && self.random.random_bool(0.5);
        if fails && !is_late {
            return Err(Refused::Lost);
        }
        let written = write(&mut self.server);
        if written.is_ok() {
            self.change();
        }
        if is_late { Err(Refused::Lost) } else { written }
    }
}

/// What a plan does, in short.
fn names(plan: &Plan) -> Vec<String> {
    let name = |action: &Action| match action {
        Action::CreateMachine { name, spec } => format!("create {name} of {}", spec.offer),
        Action::DeleteMachine { name, why, .. } => format!("delete {name}: {why:?}"),
        other => format!("{other:?}").chars().take(40).collect(),
    };
    plan.actions.iter().map(name).collect()
}
