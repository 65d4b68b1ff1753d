//! The Pool is looked at.

use super::*;

impl World {
    pub(super) fn observe_pool(&self, pool: &Pool) -> Observed {
        let facts = pool_facts(pool, Arc::new(ResolvedPool::of(&pool.spec)));
        let of = |machine| machine_facts(machine, &facts.resolved, Some(&self.load));
        let mut machines: Vec<_> = self.machines.values().map(of).collect();
        machines.sort_by_key(|machine| (machine.slot, machine.attempt));
        let named: BTreeSet<String> = facts.spec.providers().into_iter().map(str::to_owned).collect();
        let generations = named.iter().map(|name| {
            let object = self.clouds.get(name).and_then(|cloud| cloud.object.as_ref());
            (name.clone(), object.and_then(|object| object.metadata.generation))
        });
        let leftovers =
            if facts.deleting_since.is_some() && machines.is_empty() && facts.status.last_attempt > 0 {
                self.leftovers(&providers_of(&facts))
            } else {
                RemainingMachines::NotAsked
            };
        let offers = |name: &String| {
            let written = self
                .clouds
                .get(name)
                .map(|cloud| cloud.written.values().cloned().collect::<Vec<_>>());
            (
                name.clone(),
                Arc::new(OfferIndex::of(written.unwrap_or_default())),
            )
        };
        let is_tried = self.missing.is_ok();
        Observed {
            cluster: CLUSTER.into(),
            machines,
            load: Some(self.load.clone()),
            providers: named
                .iter()
                .map(|name| (name.clone(), self.provider_facts(name)))
                .collect(),
            namespace: self.namespace.clone(),
            missing_references: self.missing.clone(),
            too_large_references: self.too_large.clone(),
            tried_with: tried_with(
                &facts.spec,
                is_tried.then_some(self.references),
                &generations.collect(),
            ),
            has_references: !matches!(self.missing.as_deref(), Ok([])) || self.too_large.is_some(),
            environment: self.environment(&facts.spec),
            offers: named.iter().map(offers).collect(),
            unavailable: Arc::new(self.unavailable.clone()),
            architectures: [Architecture::Amd64].into(),
            leftovers,
            refusal: self.refusal.clone(),
            unread: self.unread.clone(),
            nonce: 7,
            pool: facts,
        }
    }

    /// Hash of the environment of an image. Stories without an image do not speak of environments.
    fn environment(&self, spec: &PoolSpec) -> Option<String> {
        let contents = Contents {
            ca_bundle: Some(self.references),
            steps_env: &BTreeMap::new(),
            credentials: &[],
        };
        let text = canonical(spec.image.as_ref()?, &contents);
        let is_known = matches!(self.missing.as_deref(), Ok([]));
        is_known.then(|| short_digest(text.expose().as_bytes())[..HASH].to_owned())
    }

    pub(super) fn leftovers(&self, names: &BTreeSet<String>) -> RemainingMachines {
        let mut found = Vec::new();
        let mut asked = false;
        for name in names {
            let Some(cloud) = self.clouds.get(name).filter(|cloud| cloud.object.is_some()) else {
                continue;
            };
            asked = true;
            if let Err(problem) = &cloud.account {
                return RemainingMachines::Unknown(format!("Provider \"{name}\": {problem}"));
            }
            found.extend(cloud.machines.values().map(|(machine, _)| {
                let reference = MachineRef {
                    id: Some(machine.id.clone()),
                    mark: machine.mark.clone(),
                    region: String::new(),
                    started: false,
                };
                (name.clone(), reference)
            }));
        }
        if asked {
            RemainingMachines::Known(found)
        } else {
            RemainingMachines::NoProvider
        }
    }

    pub(super) fn look_at_pool(&mut self, always: bool) -> bool {
        let Some(pool) = self.pool.clone() else {
            return false;
        };
        let seen = self.observe_pool(&pool);
        let plan = pool::plan::plan(&seen, self.now);
        assert_eq!(audit(&seen, &plan), Vec::<String>::new(), "{plan:#?}");
        let old = pool.status.clone().unwrap_or_default();
        let is_news = uncounted(&plan.status) != uncounted(&old);
        let acts = !plan.actions.is_empty() || !plan.events.is_empty();
        if is_news || acts || always {
            let told = std::mem::replace(&mut self.reasons, plan.reasons.clone());
            self.tell("Pool team/train", &render::pool(&old, &plan, &told));
        }
        self.schedule("Pool", plan.next);
        let object = self.pool.as_mut().unwrap();
        if is_news && !plan.actions.contains(&PoolAction::AddFinalizer) {
            object.status = Some(plan.status.clone());
        }
        for action in plan.actions {
            self.act_on_pool(action);
        }
        is_news || acts
    }

    pub(super) fn act_on_pool(&mut self, action: PoolAction) {
        let now = Time(self.now);
        match action {
            PoolAction::AddFinalizer => {
                self.pool.as_mut().unwrap().metadata.finalizers = Some(vec![labels::FINALIZER.to_owned()]);
            }
            PoolAction::RemoveFinalizer => self.pool = None,
            PoolAction::CreateMachine { name, spec } => {
                self.refusal = None;
                self.recorded += 1;
                let mut machine = Machine::new(&name, *spec);
                machine.metadata.namespace = Some("team".into());
                machine.metadata.uid = Some(format!("uid-{}", self.recorded));
                machine.metadata.creation_timestamp = Some(now);
                machine.metadata.finalizers = Some(vec![labels::FINALIZER.to_owned()]);
                self.machines.insert(name, machine);
            }
            PoolAction::DeleteMachine {
                name, finish_runs, ..
            } => self.delete_machine(&name, finish_runs),
            PoolAction::DeleteUnrecorded(provider, machine) => {
                drop(
                    self.cloud(&provider)
                        .machines
                        .remove(&machine.id.unwrap_or_default()),
                );
            }
            PoolAction::EnsureKey
            | PoolAction::Release { .. }
            | PoolAction::DeleteLogs
            | PoolAction::ReleaseKey => {}
        }
    }

    /// A Machine is deleted, by its Pool or by a person.
    pub(crate) fn delete_machine(&mut self, name: &str, finish_runs: bool) {
        let now = self.now;
        let machine = self.machines.get_mut(name).unwrap();
        machine.metadata.deletion_timestamp.get_or_insert(Time(now));
        if finish_runs {
            machine
                .annotations_mut()
                .insert(labels::FINISH_RUNS.into(), String::new());
        }
    }
}

/// A status without what is written only together with something else.
fn uncounted(status: &PoolStatus) -> PoolStatus {
    let mut status = status.clone();
    (status.running_tasks, status.waiting_tasks) = (0, 0);
    if let Some(cost) = &mut status.cost {
        cost.spent.clear();
    }
    status
}
