//! Machines are looked at, and their clouds asked.

use super::*;

impl World {
    pub(super) fn look_at_machine(&mut self, name: &str) -> bool {
        if self.asked.get(name) == Some(&self.now) {
            return false;
        }
        let mut memory = self.memories.remove(name).unwrap_or_default();
        let mut outcomes = Outcomes::default();
        let mut changed = false;
        loop {
            let machine = self.machines[name].clone();
            let plan = {
                let looked = self.looked(&machine, std::mem::take(&mut outcomes));
                let seen = looked.observed(&mut memory, self.now);
                crate::machine::plan::plan(&seen, self.now)
            };
            memory.order_not_before = plan.order_not_before;
            if let Some((what, why)) = &plan.shortage {
                self.unavailable.note(what.clone(), why.clone(), self.now);
            }
            // That it stays connected is no news.
            let is_connected = self.sessions.contains_key(name);
            let changes = |action: &&MachineAction| match action {
                MachineAction::Connect { environment, .. } => {
                    !is_connected || environment.as_deref() != self.asked_environment(name)
                }
                MachineAction::Disconnect => is_connected,
                _ => true,
            };
            let actions: Vec<_> = plan.actions.iter().filter(changes).collect();
            if !actions.is_empty() || plan.status.is_some() || !plan.events.is_empty() {
                let old = machine.status.clone().unwrap_or_default();
                let block = render::machine(&old, &plan, &actions, self.now);
                self.tell(&format!("Machine {name}"), &block);
                changed = true;
            }
            if let Some(status) = plan.status {
                memory.last_write = Some(self.now);
                self.machines.get_mut(name).unwrap().status = Some(*status);
            }
            for action in plan.actions {
                self.act_on_machine(name, &machine, &action, &mut outcomes, &mut memory);
            }
            if !self.machines.contains_key(name) {
                self.due.remove(name);
                return true;
            }
            self.schedule(name, plan.next);
            if plan.next != Next::Again {
                self.memories.insert(name.to_owned(), memory);
                return changed;
            }
        }
    }

    pub(super) fn looked<'a>(&'a self, machine: &'a Machine, outcomes: Outcomes) -> Looked<'a> {
        let facts = facts::machine_facts(machine);
        let cloud = &self.clouds[&facts.spec.provider];
        let answer = match &cloud.account {
            _ if !facts.is_asked_about() || cloud.object.is_none() => LookupOutcome::Unknown(None),
            Err(problem) => LookupOutcome::of(Err(problem.clone())),
            Ok(_) => {
                let found = cloud.find(&facts.reference(CLUSTER));
                LookupOutcome::of(Ok(found.map(|id| cloud.machines[&id].0.clone())))
            }
        };
        let resolved = self.pool.as_ref().map(|pool| ResolvedPool::of(&pool.spec));
        let terms = || Terms {
            namespace: self.namespace.clone(),
            provider: self.provider_facts(&facts.spec.provider),
            provider_goes: cloud
                .object
                .as_ref()
                .is_some_and(|object| object.metadata.deletion_timestamp.is_some()),
            beyond: beyond(machine),
            budget: self.pool.as_ref().and_then(|pool| {
                let machines: Vec<_> = self.machines.values().cloned().map(Arc::new).collect();
                of_budget(pool, &machines, self.now)
            }),
        };
        Looked {
            timeouts: resolved
                .as_ref()
                .map_or_else(Timeouts::default, |pool| pool.timeouts),
            current: resolved
                .as_ref()
                .is_some_and(|resolved| resolved.asks_for(machine)),
            asked: resolved
                .as_ref()
                .and_then(|resolved| Asked::of(resolved, machine)),
            pool: self.pool.clone().map(Arc::new),
            provider: cloud.object.as_ref(),
            capabilities: cloud.object.as_ref().map(|_| &cloud.capabilities),
            kind: Some(&cloud.capabilities),
            terms: facts.may_be_ordered().then(terms),
            tells_changes: false,
            answer,
            asked_at: self.now,
            session: self.sessions.get(&facts.name).map(|session| self.state(session)),
            runs: Some(self.load.runs.get(&facts.name).copied().unwrap_or(0)),
            outcomes,
            machine,
            facts,
        }
    }

    /// A session reaches its machine after 3 s, and its agent after 20 s.
    pub(super) fn state(&self, session: &Session) -> SessionState {
        let after = |seconds| session.began + SignedDuration::from_secs(seconds);
        let is_refused = self.unreachable || self.unproved;
        let by = |seconds| Some(after(seconds)).filter(|at| *at <= self.now && !is_refused);
        let stage = match (session.lost, by(3), by(20)) {
            (Some(since), ..) => Stage::Reconnecting {
                last_error: "the connection timed out".into(),
                since,
            },
            (None, None, _) if self.unproved && after(3) <= self.now => Stage::Unproved {
                last_error: "the file of its proof is empty".into(),
            },
            (None, None, _) => Stage::Dialing {
                last_error: self.unreachable.then(|| "connection refused".into()),
            },
            (None, Some(_), None) => Stage::Bootstrapping {
                step: "packages".into(),
                index: 3,
                total: 6,
            },
            (None, Some(_), Some(_)) => self.bootstrap.clone().map_or(Stage::Ready, Stage::Failed),
        };
        let ready = by(20).filter(|_| self.bootstrap.is_none());
        SessionState {
            environment: self.environment_of(session),
            stage,
            host_key: by(3).map(|_| "ssh-ed25519 AAAA".into()),
            reachable_at: by(3),
            bootstrapped_at: ready,
            ready_at: ready,
            ..SessionState::default()
        }
    }

    /// A change of the environment takes no time, and fails where the story says so.
    fn environment_of(&self, session: &Session) -> EnvironmentState {
        let asked_for = session.asked_for.clone();
        let failure = self.environment_fails.clone();
        EnvironmentState {
            in_use: match (&asked_for, &failure) {
                (Some(hash), None) => Some(hash.clone()),
                _ => session.in_use.clone(),
            },
            failed: asked_for.zip(failure.map(Box::new)),
            ..EnvironmentState::default()
        }
    }

    fn asked_environment(&self, name: &str) -> Option<&str> {
        self.sessions.get(name)?.asked_for.as_deref()
    }

    pub(super) fn act_on_machine(
        &mut self,
        name: &str,
        machine: &Machine,
        action: &MachineAction,
        outcomes: &mut Outcomes,
        memory: &mut MachineMemory,
    ) {
        let facts = facts::machine_facts(machine);
        let (now, fails) = (self.now, self.environment_fails.is_some());
        match action {
            MachineAction::Order => {
                let answer = self.order(&facts);
                memory.ordered(&answer, self.now);
                outcomes.order = Some(answer);
            }
            MachineAction::Connect { environment, .. } => {
                let session = self.sessions.entry(name.to_owned()).or_insert(Session {
                    began: now,
                    lost: None,
                    asked_for: None,
                    in_use: None,
                });
                if session.asked_for != *environment {
                    // What it was asked for last is in use, unless that failed.
                    if let Some(hash) = session.asked_for.take().filter(|_| !fails) {
                        session.in_use = Some(hash);
                    }
                    session.asked_for.clone_from(environment);
                }
            }
            MachineAction::Disconnect => drop(self.sessions.remove(name)),
            MachineAction::Delete => {
                self.asked.insert(name.to_owned(), now);
                let cloud = self.clouds.get_mut(&facts.spec.provider).unwrap();
                outcomes.deletion = Some(match (&cloud.account, cloud.find(&facts.reference(CLUSTER))) {
                    (Err(problem), _) => Err(problem.clone()),
                    (Ok(_), _) if cloud.foreign => Ok(Deletion::Foreign),
                    (Ok(_), None) => Ok(Deletion::Gone),
                    (Ok(_), Some(id)) => {
                        let (machine, at) = cloud.machines.get_mut(&id).unwrap();
                        if machine.phase != ProviderPhase::Stopping {
                            machine.phase = ProviderPhase::Stopping;
                            *at = now + SignedDuration::from_secs(cloud.takes.1);
                        }
                        Ok(Deletion::InProgress)
                    }
                });
            }
            MachineAction::RemoveFinalizer => {
                self.machines.remove(name);
                self.sessions.remove(name);
            }
            MachineAction::DoubtLeadership => panic!("nobody else leads"),
        }
    }

    /// Orders a machine, which takes a second.
    pub(crate) fn order(&mut self, facts: &facts::MachineFacts) -> Result<String, ProviderError> {
        self.now += SignedDuration::from_secs(1);
        let now = self.now;
        let cloud = self.clouds.get_mut(&facts.spec.provider).unwrap();
        if let Some(problem) = cloud
            .next_orders
            .pop_front()
            .or_else(|| cloud.every_order.clone())
        {
            return Err(problem);
        }
        self.ordered += 1;
        let id = format!("i-{}", self.ordered);
        let machine = ProviderMachine {
            id: id.clone(),
            mark: facts.mark(CLUSTER),
            phase: ProviderPhase::starting("it boots"),
            endpoint: None,
            private_address: None,
            private_interface: None,
            host_key: None,
            rental: Rental {
                hourly_price: cloud.bills,
                ..Rental::default()
            },
        };
        let starts = now + SignedDuration::from_secs(cloud.takes.0);
        cloud.machines.insert(id.clone(), (machine, starts));
        Ok(id)
    }
}
