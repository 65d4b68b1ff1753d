//! The process looks at a Machine: observes, plans, records and acts, as `machine/` does.

use std::sync::Arc;

use kube::{Resource, ResourceExt};
use skyward_api::{Machine, Pool, labels};
use skyward_planner::{
    accounts::{facts::NamespaceFacts, quota::beyond, unavailable::REMEMBERED},
    base::{key::Key, requeue::Next},
    machine::{
        facts::{Looked, LookupOutcome, MachineMemory, Observed, Outcomes, Terms, machine_facts},
        plan::{draft::Action, plan},
    },
    pool::{plan::cost::of_budget, resolved::Timeouts, suspension::why_suspended},
};
use skyward_remote::sessions::SessionState;

use super::{
    process::{Session, Work},
    server::Refused,
    world::{Crashed, World},
};
use crate::machine::{
    observe::runs,
    order::{OrderParts, order},
};

/// Most plans in a row, as in the real controller.
const ROUNDS: usize = 6;

impl World {
    pub(super) fn reconcile_machine(&mut self, name: &str) -> Result<(), Crashed> {
        let Some(cached) = self.process.machines.get(name).cloned() else {
            self.process.sessions.remove(name);
            return Ok(());
        };
        let uid = cached.uid().unwrap_or_default();
        let machine = self.process.newest_machines.of(cached);
        let inherited = self.process.inherited.contains(&uid);
        let mut memory = self.process.memories.remove(&uid).unwrap_or_else(|| {
            if inherited {
                MachineMemory::inherited(super::cloud::second(self.process.began))
            } else {
                MachineMemory::default()
            }
        });
        let next = self.machine_rounds(machine, &mut memory)?;
        self.process.memories.insert(uid, memory);
        if let Some(seconds) = next {
            let at = self.now + seconds;
            self.process.wake(Work::Machine(name.to_owned()), at);
        }
        Ok(())
    }

    /// Answers with when to look again.
    fn machine_rounds(
        &mut self,
        mut machine: Arc<Machine>,
        memory: &mut MachineMemory,
    ) -> Result<Option<i64>, Crashed> {
        let mut outcomes = Outcomes::default();
        for _ in 0..ROUNDS {
            let seen = self.observe_machine(&machine, memory, std::mem::take(&mut outcomes));
            let plan = plan(&seen, self.time());
            self.tell(|| {
                let phase = plan.status.as_ref().and_then(|status| status.phase);
                let (actions, reasons) = (&plan.actions, &plan.reasons);
                let name = &seen.machine.name;
                format!(
                    "Machine {name}: {actions:?} {reasons:?} → {phase:?}, {:?}",
                    plan.next
                )
            });
            memory.order_not_before = plan.order_not_before;
            if let Some((what, why)) = &plan.shortage {
                let now = self.time();
                let known = Arc::make_mut(&mut self.process.unavailable);
                known.remember(what.clone(), why.clone(), now, REMEMBERED);
            }
            if let Some(status) = plan.status.clone() {
                self.boundary()?;
                let written = self.write(|server| {
                    let write = |object: &mut Machine| object.status = Some(*status);
                    server.machines.write(&mut server.version, &machine, write)
                });
                match written {
                    Ok(fresh) => {
                        memory.last_write = Some(self.time());
                        self.process.newest_machines.wrote(&machine, fresh.clone());
                        machine = fresh;
                    }
                    Err(Refused::Conflict) => return Ok(Some(1)),
                    Err(_) => return Ok(Some(3)),
                }
            }
            for action in &plan.actions {
                self.boundary()?;
                match action {
                    Action::Order => outcomes.order = self.place_order(&seen, memory)?,
                    Action::Connect { .. } => {
                        let next = self.now + 2;
                        self.process
                            .sessions
                            .entry(seen.machine.name.clone())
                            .or_insert_with(|| Session {
                                state: SessionState::default(),
                                next,
                            });
                    }
                    Action::Disconnect => {
                        self.process.sessions.remove(&seen.machine.name);
                    }
                    Action::Delete => {
                        self.may_be_deleted(&machine);
                        let provider = seen.machine.spec.provider.clone();
                        let reference = seen.machine.reference("cluster");
                        outcomes.deletion = if self.process.clients.contains_key(&provider) {
                            Some(self.delete(&provider, &reference)?)
                        } else {
                            None
                        };
                    }
                    Action::RemoveFinalizer => {
                        self.may_be_let_go(&machine);
                        let was_there = self.server.machines.get(&seen.machine.name).is_some();
                        let gone = self.write(|server| {
                            server.machines.write(&mut server.version, &machine, |object| {
                                object.finalizers_mut().retain(|name| name != labels::FINALIZER);
                            })
                        });
                        if was_there && self.server.machines.get(&seen.machine.name).is_none() {
                            self.settle(&machine);
                        }
                        match gone {
                            Ok(_) | Err(Refused::NotFound) => {}
                            Err(_) => return Ok(Some(1)),
                        }
                    }
                    Action::DoubtLeadership => self.rule(false, || "nobody else leads".to_owned()),
                }
            }
            match plan.next {
                Next::Again => {}
                Next::Wait => return Ok(None),
                Next::After(wait) => return Ok(Some(super::pools::seconds(wait))),
            }
        }
        Ok(Some(1))
    }

    fn observe_machine(
        &mut self,
        machine: &Machine,
        memory: &mut MachineMemory,
        outcomes: Outcomes,
    ) -> Observed {
        let facts = machine_facts(machine);
        let provider = facts.spec.provider.clone();
        let pool: Option<Arc<Pool>> = self
            .process
            .pools
            .get(&facts.spec.pool)
            .filter(|pool| pool.uid().as_deref() == Some(facts.spec.pool_uid.as_str()))
            .cloned();
        let object = self.process.providers.get(&provider).cloned();
        let is_connected = self.process.clients.contains_key(&provider);
        let answer = if is_connected && facts.is_asked_about() {
            LookupOutcome::of(self.get(&provider, &facts.reference("cluster")))
        } else {
            LookupOutcome::Unknown(None)
        };
        let session = self.process.sessions.get(&facts.name);
        let session = session.map(|session| session.state.clone());
        let key = Key::new(facts.namespace.clone(), facts.spec.pool.clone());
        let resolved = pool.as_deref().map(|pool| self.process.resolved.of(pool));
        let looked = Looked {
            timeouts: resolved
                .as_ref()
                .map_or_else(Timeouts::default, |pool| pool.timeouts),
            current: resolved.is_some_and(|pool| pool.asks_for(&facts.spec.template_hash)),
            pool,
            provider: object.as_deref(),
            capabilities: is_connected.then(|| &self.kind_of(&provider).capabilities),
            kind: Some(&self.kind_of(&provider).capabilities),
            terms: facts.may_be_ordered().then(|| self.terms(machine)),
            tells_changes: false,
            answer,
            asked_at: self.time(),
            session,
            runs: runs(&self.process.loads, &key, &facts),
            outcomes,
            machine,
            facts,
        };
        looked.observed(memory, self.time())
    }

    /// The terms of an order, as this process sees them.
    fn terms(&self, machine: &Machine) -> Terms {
        let (spec, namespace) = (&machine.spec, machine.namespace().unwrap_or_default());
        let pool = self.process.pools.get(&spec.pool);
        let (machines, _) = self.process.fleet.of_pool(&spec.pool_uid);
        let provider = self.process.providers.get(&spec.provider);
        Terms {
            namespace: NamespaceFacts::Active,
            provider: self.provider_facts(&spec.provider, &namespace),
            provider_goes: provider.is_some_and(|provider| provider.metadata.deletion_timestamp.is_some()),
            beyond: beyond(machine),
            budget: pool.and_then(|pool| of_budget(pool, &machines, self.time())),
        }
    }

    fn place_order(
        &mut self,
        seen: &Observed,
        memory: &mut MachineMemory,
    ) -> Result<Option<Result<String, skyward_core::ProviderError>>, Crashed> {
        let provider = &seen.machine.spec.provider;
        let (true, Some(pool)) = (self.process.clients.contains_key(provider), &seen.pool) else {
            return Ok(None);
        };
        let pool = pool.clone();
        self.may_be_ordered(seen);
        // Its key is made anew if somebody removed it.
        self.ensure_key(&seen.machine.spec.pool_uid);
        let parts = OrderParts {
            cluster: "cluster",
            authorized_key: "key",
            capabilities: &self.kind_of(provider).capabilities,
            offer: seen.machine.spec.offer_id.clone(),
            waits: seen.waits,
            host_token: None,
        };
        let order = order(&seen.machine, &pool.spec, parts);
        let answer = self.order(provider, &order)?;
        self.tell(|| format!("the order of {} met {answer:?}", seen.machine.name));
        memory.ordered(&answer, self.time());
        Ok(Some(answer))
    }

    /// A Machine recorded before a limit was lowered is not ordered after that.
    fn may_be_ordered(&mut self, seen: &Observed) {
        let (provider, name) = (&seen.machine.spec.provider, &seen.machine.name);
        let object = self.process.providers.get(provider);
        let limits = object.and_then(|object| object.spec.limits.clone());
        let limit = limits.and_then(|limits| limits.machines);
        let used = self.process.fleet.used(provider, "").total;
        self.rule(limit.is_none_or(|limit| used <= limit), || {
            format!("{name} is ordered with {used} machines, and the limit of {provider} is {limit:?}")
        });
    }

    /// A machine whose runs may finish is not deleted under them, unless its Pool is off.
    fn may_be_deleted(&mut self, machine: &Machine) {
        let name = machine.name_any();
        let status = machine.status.clone().unwrap_or_default();
        let works = status.ready_at.is_some() && status.phase != Some(skyward_api::MachinePhase::Failed);
        let now = self.now;
        let answers = self
            .clouds
            .values()
            .flat_map(|cloud| &cloud.rented)
            .any(|rented| rented.mark.machine == name && rented.answers(now));
        let may_finish = machine
            .annotations()
            .contains_key(skyward_api::labels::FINISH_RUNS);
        let pool = self.server.pools.get(&machine.spec.pool);
        let seen = self.process.pools.get(&machine.spec.pool).cloned();
        let is_off = [&pool, &seen]
            .into_iter()
            .flatten()
            .any(|pool| why_suspended(pool).is_some());
        let pool_stays = !is_off && pool.is_some_and(|pool| pool.meta().deletion_timestamp.is_none());
        let runs = self.runs.get(&name).copied().unwrap_or(0);
        self.rule(
            !(works && answers && may_finish && pool_stays) || runs == 0,
            || format!("{name} is deleted under its {runs} runs"),
        );
    }

    /// A record goes only when its machine is gone.
    fn may_be_let_go(&mut self, machine: &Machine) {
        let uid = machine.uid().unwrap_or_default();
        let left = self.alive_of(&uid);
        self.rule(left == 0, || {
            format!(
                "{} is let go while {left} machines of it exist",
                machine.name_any()
            )
        });
    }
}
