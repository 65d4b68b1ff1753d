//! Carries effects out in the world and answers them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{world::World, *};

/// A run as its agent has it.
#[derive(Clone, Debug)]
pub(super) struct AgentRun {
    pub(super) finished: Option<Finished>,
    pub(super) stopping: bool,
}

#[derive(Debug)]
pub(super) struct Machine {
    pub(super) connection: Option<u64>,
    pub(super) following: Option<u64>,
    pub(super) runs: BTreeMap<RunId, AgentRun>,
    pub(super) forgotten: BTreeSet<RunId>,
    pub(super) ready: bool,
    pub(super) changing: bool,
    pub(super) environment: &'static str,
    pub(super) deleting: bool,
    pub(super) ending: bool,
    pub(super) out_of_memory: Option<Arc<str>>,
    /// Whether it answers to every command that our epoch is too old.
    pub(super) refuses_epoch: bool,
}

/// The place of a machine of the Pool "p", from its name.
fn place_in(name: &str) -> Option<SlotAttempt> {
    let (slot, attempt) = name.strip_prefix("p-")?.split_once('.')?;
    Some(SlotAttempt {
        slot: slot.parse().ok()?,
        attempt: attempt.parse().ok()?,
    })
}

impl World {
    fn machine_named(&mut self, name: &str) -> Option<(SlotAttempt, &mut Machine)> {
        let place = place_in(name)?;
        Some((place, self.machines.get_mut(&place)?))
    }

    fn refuses_epoch(&mut self, name: &str) -> bool {
        self.machine_named(name)
            .is_some_and(|(_, machine)| machine.refuses_epoch)
    }

    /// Carries an effect out. `before` and `after`: the connection breaks then.
    pub(super) fn carry_out(&mut self, effect: Effect, before: bool, after: bool) {
        let lost = || AgentError::Disconnected("test".into());
        if self.told {
            println!(
                "{} does (lost before: {before}, after: {after}) {effect:?}",
                self.now
            );
        }
        self.write_down(&effect);
        match effect {
            Effect::Resolve { uid, source, .. } => {
                let result = if self.missing_references {
                    Err("Secret \"s\" is missing".into())
                } else {
                    let recorded = self.status(&uid).source.map(|source| source.digest);
                    let now = self.content.map(ToOwned::to_owned).or(recorded);
                    Ok(Arc::new(Resolved {
                        source: source.map(|_| now.unwrap_or_default()),
                        ..Resolved::default()
                    }))
                };
                self.answers.push_back(Event::Resolved(uid, result));
            }
            Effect::Fetch(order) => {
                let number = order.number;
                self.fetches.push(*order);
                let result = if before || after {
                    Some(Err(StartError::Agent(lost())))
                } else {
                    self.repository.clone()
                };
                let answer = result.map(|result| Event::Fetched {
                    number,
                    result: result.map(|source| FetchedSource {
                        source,
                        not_kept: None,
                    }),
                });
                self.answers.extend(answer);
            }
            Effect::CancelFetch(fetch) => self.cancelled.push(fetch),
            Effect::Write {
                uid,
                write,
                version,
                status,
                ..
            } => {
                let result = if before {
                    Err(WriteError::Unknown("test".into()))
                } else {
                    self.write(&uid, &version, *status)
                };
                let result = if after {
                    Err(WriteError::Unknown("test".into()))
                } else {
                    result
                };
                self.answers.push_back(Event::Written { uid, write, result });
            }
            Effect::Reread { uid, .. } => {
                let result = if before || after {
                    Err("test".to_owned())
                } else {
                    Ok(self.objects.get(&uid).cloned().map(Arc::new))
                };
                self.answers.push_back(Event::Reread(uid, result));
            }
            Effect::ReadDependency(name) => {
                self.dependency_reads += 1;
                let result = if before || after {
                    Err("test".to_owned())
                } else {
                    let mut tasks = self.objects.values();
                    let found = tasks.find(|task| task.metadata.name.as_deref() == Some(&*name));
                    Ok(found.and_then(Found::of))
                };
                self.answers.push_back(Event::Dependency(name, result));
            }
            Effect::MakePool(pool) => {
                let result = if before {
                    Err(PoolError::Unknown("test".to_owned()))
                } else {
                    self.make_pool(&pool)
                };
                let result = if after {
                    Err(PoolError::Unknown("test".to_owned()))
                } else {
                    result
                };
                self.answers.push_back(Event::PoolMade(result));
            }
            Effect::DeletePool(uid) => {
                if !before {
                    self.delete_pool(&uid);
                }
                let result = if before || after {
                    Err("test".to_owned())
                } else {
                    Ok(())
                };
                self.answers.push_back(Event::PoolDeleted(result));
            }
            Effect::ListMachines => {
                let result = if before {
                    Err("test".to_owned())
                } else {
                    Ok(self.machines.keys().copied().collect())
                };
                self.answers.push_back(Event::MachinesListed(result));
            }
            Effect::Follow {
                place, connection, ..
            } => {
                let Some(machine) = self.machines.get_mut(&place) else {
                    return;
                };
                if machine.connection != Some(connection) || before {
                    self.answers.push_back(Event::FollowEnded { place, connection });
                    return;
                }
                machine.following = Some(connection);
                for (id, run) in &machine.runs {
                    self.answers.push_back(fact_of(place, id, None));
                    if run.finished.is_some() {
                        self.answers.push_back(fact_of(place, id, run.finished.clone()));
                    }
                }
                self.answers.push_back(Event::Replayed { place, connection });
            }
            Effect::Start(order) => {
                let StartOrder {
                    run,
                    connection,
                    machine,
                    source,
                    peers,
                    processes,
                    ..
                } = *order;
                self.started_with.push((run.uid.clone(), source));
                self.told_of.insert(run.clone(), (peers.len(), processes));
                let result = if before {
                    Err(lost())
                } else if self.refuses_epoch(&machine) {
                    Err(AgentError::StaleEpoch)
                } else {
                    self.start(&machine, &run, connection)
                };
                let result = if after { Err(lost()) } else { result };
                self.answers.push_back(Event::Started {
                    run,
                    connection,
                    result: result
                        .map(|state| Box::new(state.into()))
                        .map_err(StartError::Agent),
                });
            }
            Effect::Stop {
                run,
                machine,
                connection,
                ..
            } => {
                let result = if before {
                    Err(lost())
                } else if self.refuses_epoch(&machine) {
                    Err(AgentError::StaleEpoch)
                } else {
                    match self.machine_named(&machine) {
                        Some((_, machine)) if machine.connection == Some(connection) => {
                            match machine.runs.get_mut(&run) {
                                None => Err(AgentError::NotFound),
                                Some(known) => {
                                    known.stopping |= known.finished.is_none();
                                    Ok(state_of(known))
                                }
                            }
                        }
                        _ => Err(lost()),
                    }
                };
                let result = if after { Err(lost()) } else { result };
                self.answers.push_back(Event::Stopped {
                    run,
                    connection,
                    result: result.map(|state| Box::new(state.into())),
                });
            }
            Effect::Collect(order) => {
                let name = order.machine.to_string();
                let reachable = self
                    .machine_named(&name)
                    .is_some_and(|(_, machine)| machine.connection.is_some());
                let run = order.run.clone();
                let complete = is_complete(&order.finished);
                assert!(
                    !order.gone || place_in(&name).is_none_or(|place| !self.machines.contains_key(&place)),
                    "{run} is given up although its machine is there"
                );
                let is_full = matches!(
                    self.store_problem,
                    Some(CollectError::Full(_) | CollectError::Quota(_))
                );
                if is_full && !order.give_up {
                    let since = if self.writes_no_since {
                        self.now
                    } else {
                        *self.waits_since.entry(run.clone()).or_insert(self.now)
                    };
                    self.answers.push_back(Event::Held(run.clone(), since));
                }
                let is_withheld = self.withholds && reachable && !complete;
                let result = if (is_full && order.give_up) || (is_withheld && order.unreadable) {
                    self.gave_up.push(run.clone());
                    let mut given_up = collected(&order.finished);
                    given_up.reason = reason::RESULT_NOT_STORED;
                    Ok(Box::new(given_up))
                } else if let Some(problem) = &self.store_problem {
                    Err(problem.clone())
                } else if is_withheld {
                    Err(CollectError::Machine("its machine sends nothing".to_owned()))
                } else if (reachable && !before) || complete || order.gone {
                    let collected = Box::new(collected(&order.finished));
                    if order.keep {
                        self.outcomes.insert(run.clone(), collected.clone());
                    }
                    Ok(collected)
                } else {
                    Err(CollectError::Machine("lost".to_owned()))
                };
                let result = match result {
                    Ok(_) if after => Err(CollectError::Store("the answer is lost".to_owned())),
                    other => other,
                };
                self.answers.push_back(Event::Collected(run, result));
            }
            Effect::Recall(run) => {
                let result = match &self.store_problem {
                    Some(problem) => Err(problem.clone()),
                    None if before => Err(CollectError::Store("test".to_owned())),
                    None => Ok(self.outcomes.get(&run).cloned()),
                };
                self.answers.push_back(Event::Recalled(run, result));
            }
            Effect::RecallTask { uid, after } => {
                let newest = self
                    .outcomes
                    .keys()
                    .filter(|run| run.uid == uid && run.attempt > after);
                let newest = newest.max_by_key(|run| run.attempt).cloned();
                let outcome = newest.as_ref().and_then(|run| {
                    let collected = self.outcomes[run].clone();
                    let goes_on = [reason::STOPPED, reason::INTERRUPTED].contains(&collected.reason);
                    (!goes_on && run.rank == 0).then_some((run.attempt, collected))
                });
                let remembered = Remembered {
                    newest: newest.map_or(0, |run| run.attempt),
                    outcome,
                };
                let result = match &self.store_problem {
                    Some(problem) => Err(problem.clone()),
                    None if before => Err(CollectError::Store("test".to_owned())),
                    None => Ok(remembered),
                };
                self.answers.push_back(Event::TaskRecalled(uid, result));
            }
            Effect::KeepRanks { uid, ranks, attempt } => {
                let result = match &self.store_problem {
                    Some(problem) => Err(problem.clone()),
                    None if before => Err(CollectError::Store("test".to_owned())),
                    None => Ok(self.keep_ranks(&uid, &ranks, attempt)),
                };
                let result = if after {
                    Err(CollectError::Store("test".to_owned()))
                } else {
                    result
                };
                self.answers.push_back(Event::RanksKept { uid, attempt, result });
            }
            Effect::CopyLog { run, .. } => self.answers.push_back(Event::LogCopied(run)),
            Effect::Forget { machine, runs } => {
                let refuses = self.refuses_epoch(&machine);
                let result = match self.machine_named(&machine) {
                    _ if refuses => Err(AgentError::StaleEpoch),
                    Some((_, machine)) if machine.connection.is_some() && !before => {
                        for id in &runs {
                            if let Some(run) = machine.runs.remove(id) {
                                assert!(run.finished.is_some(), "{id} is forgotten while it runs");
                                machine.forgotten.insert(id.clone());
                            }
                        }
                        Ok(())
                    }
                    _ => Err(lost()),
                };
                for id in &runs {
                    let status = self.status(&id.uid);
                    let needed = status.phase == Some(TaskPhase::Running) && status.attempt == id.attempt;
                    assert!(
                        result.is_err() || !needed,
                        "{id} is forgotten before its end is on record"
                    );
                }
                let result = if after { Err(lost()) } else { result };
                self.answers.push_back(Event::Forgotten { runs, result });
            }
            Effect::BeginMap(order) => {
                let before = self.maps.insert(order.uid, None);
                assert!(before.is_none(), "a map runs once");
            }
            Effect::TellMap(uid, news) => drop(self.maps.insert(uid, Some(*news))),
            Effect::EndMap(uid) => drop(self.maps.remove(&uid)),
            Effect::DeleteStored(uid) => self.deleted_stored.push(uid),
            Effect::Publish { event, .. } => self.published.push(event.reason),
            Effect::Failed(reason) => self.counted.push(reason),
            Effect::Retried(cause) => self.counted.push(cause.as_str().to_owned()),
            Effect::DoubtLeadership(machine) => self.doubted.push(machine),
            Effect::Expire { .. }
            | Effect::Live(..)
            | Effect::Progress(..)
            | Effect::Entered(_)
            | Effect::RunEnded(..)
            | Effect::Warn(_) => {}
        }
    }

    /// The store has the newest outcome of each of these ranks under that attempt, too.
    fn keep_ranks(&mut self, uid: &Uid, ranks: &[u32], attempt: u32) -> Vec<(u32, Box<Collected>)> {
        let mut kept = Vec::new();
        for rank in ranks {
            let is_its = |run: &RunId| run.uid == *uid && run.rank == *rank && run.attempt < attempt;
            let earlier = self
                .outcomes
                .iter()
                .rev()
                .find(|(run, collected)| is_its(run) && collected.reason == reason::SUCCEEDED);
            if let Some(collected) = earlier.map(|(_, collected)| collected.clone()) {
                self.outcomes
                    .insert(RunId::new(uid, attempt, *rank), collected.clone());
                kept.push((*rank, collected));
            }
        }
        kept
    }

    fn write(&mut self, uid: &Uid, version: &str, status: TaskStatus) -> Result<Arc<Task>, WriteError> {
        let Some(task) = self.objects.get_mut(uid) else {
            return Err(WriteError::Gone);
        };
        if task.metadata.resource_version.as_deref() != Some(version) {
            return Err(WriteError::Conflict);
        }
        if self
            .invalid
            .contains(task.metadata.name.as_deref().unwrap_or_default())
        {
            return Err(WriteError::Invalid("invalid data, got null".into()));
        }
        let old = task
            .status
            .as_ref()
            .and_then(|status| status.phase)
            .unwrap_or_default();
        assert!(!old.is_finished(), "{uid} had ended already");
        if status.phase.unwrap_or_default().is_finished() {
            *self.ends.entry(uid.clone()).or_default() += 1;
        }
        *self.writes.entry(uid.clone()).or_default() += 1;
        self.edit(uid, |task| task.status = Some(status));
        Ok(Arc::new(self.objects[uid].clone()))
    }

    fn start(&mut self, machine: &str, id: &RunId, connection: u64) -> Result<RunState, AgentError> {
        let status = self.status(&id.uid);
        let lost = Err(AgentError::Disconnected("test".into()));
        let Some((place, machine)) = self.machine_named(machine) else {
            return lost;
        };
        if machine.connection != Some(connection) {
            return lost;
        }
        if let Some(run) = machine.runs.get(id) {
            return Ok(state_of(run));
        }
        assert!(!machine.forgotten.contains(id), "{id} runs again");
        machine.runs.insert(
            id.clone(),
            AgentRun {
                finished: None,
                stopping: false,
            },
        );
        if machine.following == Some(connection) {
            self.answers.push_back(fact_of(place, id, None));
        }
        let state = state_of(&self.machines[&place].runs[id]);
        // The task may have been deleted or edited since; but never is an attempt started
        // that is not on record, or while an older one still runs.
        assert!(
            status.attempt == id.attempt || !self.objects.contains_key(&id.uid),
            "{id} is not on record: {status:?}"
        );
        for machine in self.machines.values() {
            for (other, run) in &machine.runs {
                if other.uid == id.uid && other.attempt != id.attempt {
                    assert!(run.finished.is_some(), "{id} starts while {other} runs");
                }
            }
        }
        Ok(state)
    }
}

pub(super) fn fact_of(place: SlotAttempt, id: &RunId, finished: Option<Finished>) -> Event {
    let fact = Fact {
        run: id.clone(),
        finished,
    };
    Event::Fact(place, Box::new(fact.into()))
}

fn state_of(run: &AgentRun) -> RunState {
    run.finished.clone().map_or(RunState::Running, RunState::Finished)
}

fn collected(finished: &Finished) -> Collected {
    let reason = match finished.ending {
        Ending::Exited if finished.exit_code == 0 => reason::SUCCEEDED,
        Ending::Exited => reason::NON_ZERO_EXIT,
        Ending::StartFailed => reason::START_FAILED,
        Ending::OutOfMemory => reason::OUT_OF_MEMORY,
        Ending::FunctionRaised => reason::FUNCTION_RAISED,
        _ => reason::STOPPED,
    };
    // No machine has told when such a run began and ended.
    let is_our_word = matches!(finished.ending, Ending::OutOfMemory);
    let time = |milliseconds: u64| {
        let at = Timestamp::from_millisecond(milliseconds as i64).unwrap();
        is_our_word.then_some(Time(at))
    };
    Collected {
        reason,
        result: RunResult {
            reason: reason.to_owned(),
            exit_code: Some(finished.exit_code),
            message: finished.message.clone(),
            exception: finished.exception.clone(),
            started_at: time(finished.started_ms),
            finished_at: time(finished.finished_ms),
            ..RunResult::default()
        },
    }
}
