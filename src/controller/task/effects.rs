//! Carries effects out. No choices are made here: each effect is complete, and its outcome goes
//! back as an event.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Api, ResourceExt, api::ListParams, runtime::reflector::ObjectRef};
use skyward_api::{Machine, Task, TaskPhase, for_each::ConfigMapKey, shared::EnvFrom, task::Source};
use skyward_core::clock;
use skyward_planner::{
    base::key::Key,
    task::{
        dependencies::Found,
        message::{
            CollectError, CollectOrder, Collected, Effect, Event, FetchKey, FetchOrder, FetchedSource,
            StartError, StartOrder,
        },
        model::{RunId, SlotAttempt, Uid},
        references::{Resolved, Unresolved},
        run::{Progress, RunState, Told},
    },
};
use skyward_remote::{
    Agent, AgentError, MachineKey,
    protocol::{self, Fact, Started, fact},
    turns::Turns,
};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout},
};

use crate::{
    context::Context,
    deadline::words,
    guard::Guarded,
    references::Place,
    task::{
        collect::{self, AnyReader},
        delivery::{self, Deliverer},
        environment,
        git::{self, Fetcher},
        housekeeping::Expiry,
        map, own_pool, progress, reclaim,
        told::{self, answered, weighed},
        writes::{Writes, Written},
    },
};

/// Longest wait for the store.
const DEADLINE: Duration = Duration::from_secs(20);
/// Ended runs whose log or result is fetched at once, over all Pools.
const COLLECTS: usize = 32;
/// Running logs that are copied at once, over all Pools: apart, so that large results
/// never keep live logs waiting.
const COPIES: usize = 16;
/// Tasks that are read for Tasks that depend on them at once, over all Pools. One may have more than a MiB.
const LOOKUPS: usize = 16;
/// Most fetches, most copies, and most of those reads, of one namespace: a transfer holds two pieces at most, of
/// 768 KiB each.
const EACH: usize = 6;

/// The subject of the message that a Secret or ConfigMap is missing.
const WAITING: &str = "the Task";

/// The state that all dispatchers share to carry effects out.
pub(crate) struct EffectRunner {
    pub(crate) context: Context,
    expiry: Expiry,
    writes: Writes,
    collects: Arc<Turns>,
    copies: Arc<Turns>,
    deliveries: Arc<Turns>,
    lookups: Arc<Turns>,
    fetches: git::UnderWay,
    progress: progress::Pace,
    pub(crate) maps: map::Maps,
}

impl EffectRunner {
    pub(crate) fn new(context: Context, expiry: Expiry) -> Arc<Self> {
        Arc::new(Self {
            context,
            expiry,
            writes: Writes::default(),
            collects: Turns::new(COLLECTS, EACH),
            copies: Turns::new(COPIES, EACH),
            deliveries: delivery::turns(),
            lookups: Turns::new(LOOKUPS, EACH),
            fetches: git::UnderWay::default(),
            progress: progress::Pace::default(),
            maps: map::Maps::default(),
        })
    }

    /// Whether how far a Task of that Pool is may be written now.
    pub(crate) fn may_tell_progress(&self, pool: &Key) -> bool {
        self.progress.take(pool, Instant::now())
    }

    fn tasks(&self, pool: &Key) -> Api<Task> {
        Api::namespaced(self.context.client.clone(), &pool.namespace)
    }

    fn agent(&self, pool: &Key, machine: &str) -> Option<Agent> {
        let key = MachineKey::new(pool.namespace.as_str(), machine);
        self.context.sessions.agent(&key)
    }

    /// The agent, if it is still the connection that was decided on.
    fn agent_on(&self, pool: &Key, machine: &str, connection: u64) -> Result<Agent, AgentError> {
        self.agent(pool, machine)
            .filter(|agent| agent.connection == connection)
            .ok_or_else(|| AgentError::Disconnected("another connection has taken over".to_owned()))
    }

    /// Carries out effects that take no time; gives the other effects back.
    pub(crate) fn at_once(&self, pool: &Key, effect: Effect) -> Option<Effect> {
        match effect {
            Effect::Live(uid, runs) => self.context.live.set(&uid, runs),
            Effect::Progress(run, progress) => self.context.live.progress(&run, progress),
            Effect::Entered(phase) => self.context.metrics.task_entered(phase),
            Effect::Failed(reason) => self.context.metrics.task_failed(reason),
            Effect::Retried(cause) => self.context.metrics.task_retried(cause),
            Effect::RunEnded(reason, forked) => {
                self.context.metrics.run(reason);
                self.context.metrics.function(forked);
            }
            Effect::Warn(what) => tracing::warn!(pool = %pool, "{what}"),
            Effect::Publish { uid, name, event } => {
                let task = ObjectReference {
                    uid: Some(uid.to_string()),
                    ..ObjectRef::<Task>::new(&name).within(&pool.namespace).into()
                };
                self.context.events.publish(&task, *event);
            }
            Effect::CancelFetch(fetch) => self.fetches.cancel(pool, fetch),
            Effect::Expire { uid, name, at } => self.expiry.at(&pool.namespace, &name, &uid, at),
            Effect::DoubtLeadership(machine) => self
                .context
                .step_down
                .doubt(format!("the agent of Machine \"{}/{machine}\"", pool.namespace)),
            Effect::Fetch(order) => {
                self.fetches.begin(pool, FetchKey::Number(order.number));
                return Some(Effect::Fetch(order));
            }
            Effect::Start(order) => {
                self.fetches.begin(pool, FetchKey::Run(order.run.clone()));
                return Some(Effect::Start(order));
            }
            Effect::BeginMap(order) => {
                self.maps.begin(&order.uid);
                return Some(Effect::BeginMap(order));
            }
            Effect::TellMap(uid, news) => self.maps.tell(&uid, *news),
            Effect::EndMap(uid) => self.maps.end(&uid),
            other => return Some(other),
        }
        None
    }

    /// Carries one effect out and sends its outcome.
    pub(crate) async fn carry_out(self: Arc<Self>, pool: Key, effect: Effect, event_tx: mpsc::Sender<Event>) {
        let event = match effect {
            Effect::Resolve {
                uid,
                refs,
                source,
                items,
            } => {
                let looked = self.look_for_items(&pool, &uid, items.as_deref()).await;
                let resolved = match looked {
                    Ok(()) => self.resolve(&pool, &refs, source.as_ref()).await,
                    Err(why) => Err(why),
                };
                Event::Resolved(uid, resolved)
            }
            Effect::Write {
                uid,
                name,
                write,
                version,
                status,
            } => {
                let Context { client, metrics, .. } = &self.context;
                let written = Written {
                    uid: &uid,
                    name: &name,
                    version: &version,
                    status: &status,
                };
                let result = self.writes.write(client, metrics, &pool, written).await;
                Event::Written { uid, write, result }
            }
            Effect::Fetch(order) => Event::Fetched {
                number: order.number,
                result: self.fetch(&pool, &order).await,
            },
            Effect::Reread { uid, name } => Event::Reread(uid, self.read(&pool, &name).await),
            Effect::ReadDependency(name) => {
                let found = self.read_dependency(&pool, &name).await;
                Event::Dependency(name, found)
            }
            Effect::MakePool(object) => {
                let _turn = self.writes.turn(&pool).await;
                Event::PoolMade(own_pool::make(&self.context, &pool, &object).await)
            }
            Effect::DeletePool(uid) => {
                let _turn = self.writes.turn(&pool).await;
                Event::PoolDeleted(own_pool::delete(&self.context, &pool, uid).await)
            }
            Effect::ListMachines => Event::MachinesListed(self.list_machines(&pool).await),
            Effect::Follow {
                place,
                machine,
                connection,
            } => {
                if let Err(error) = self.follow(&pool, place, &machine, connection, &event_tx).await {
                    tracing::debug!(%pool, %machine, %error, "an agent's facts ended");
                }
                Event::FollowEnded { place, connection }
            }
            Effect::Start(order) => {
                let result = self.start(&pool, &order).await.map(Box::new);
                let StartOrder { run, connection, .. } = *order;
                Event::Started {
                    run,
                    connection,
                    result,
                }
            }
            Effect::Stop {
                run,
                machine,
                connection,
                grace,
                why,
            } => {
                let result = match self.agent_on(&pool, &machine, connection) {
                    Ok(agent) => agent
                        .stop(&run.to_string(), grace, why)
                        .await
                        .map(|state| Box::new(told::state(answered(&agent.account(), state)))),
                    Err(error) => Err(error),
                };
                Event::Stopped {
                    run,
                    connection,
                    result,
                }
            }
            Effect::Collect(mut order) => {
                // While any Provider is held nothing is given up: all Providers share the store.
                order.give_up &= !self.context.holds.any();
                let mut result = self.collect(&pool, &order).await;
                if let Err(CollectError::Full(_) | CollectError::Quota(_)) = &result
                    && reclaim::make_room(&self.context, &pool.namespace).await
                {
                    result = self.collect(&pool, &order).await;
                }
                if let Err(CollectError::Full(_) | CollectError::Quota(_)) = &result {
                    let since = self.waits_since(&order.run).await;
                    if event_tx
                        .send(Event::Held(order.run.clone(), since))
                        .await
                        .is_err()
                    {
                        return;
                    }
                }
                Event::Collected(order.run, result)
            }
            Effect::Recall(run) => {
                let Context { store, metrics, .. } = &self.context;
                let result = collect::recall(store, &run, metrics).await;
                Event::Recalled(run, result.map(|found| found.map(Box::new)))
            }
            Effect::RecallTask { uid, after } => {
                let Context { store, metrics, .. } = &self.context;
                let result = collect::recall_later(store, &uid, after, metrics).await;
                Event::TaskRecalled(uid, result)
            }
            Effect::KeepRanks { uid, ranks, attempt } => {
                let Context { store, metrics, .. } = &self.context;
                let result = collect::keep_ranks(store, &uid, &ranks, attempt, metrics).await;
                Event::RanksKept { uid, attempt, result }
            }
            Effect::CopyLog { run, machine, limit } => {
                self.copy_log(&pool, &run, &machine, limit).await;
                Event::LogCopied(run)
            }
            Effect::Forget { machine, runs } => {
                let ids = runs.iter().map(ToString::to_string).collect();
                let result = match self.agent(&pool, &machine) {
                    Some(agent) => agent.forget(ids).await,
                    None => Err(AgentError::Disconnected("not connected".to_owned())),
                };
                Event::Forgotten { runs, result }
            }
            Effect::DeleteStored(uid) => {
                if self.context.holds.any() {
                    // Whether the Task is gone for good is not known; the hourly sweep decides.
                    return;
                }
                if let Err(error) = self.context.store.discard(&uid).await {
                    // The store's hourly sweep finds it again.
                    tracing::warn!(%uid, %error, "logs and results of a deleted Task stay for now");
                }
                return;
            }
            Effect::BeginMap(order) => {
                if let Some(news) = self.maps.take(&order.uid) {
                    map::run(self, pool, *order, news, event_tx).await;
                }
                return;
            }
            Effect::Live(..)
            | Effect::TellMap(..)
            | Effect::EndMap(_)
            | Effect::Progress(..)
            | Effect::Entered(_)
            | Effect::Failed(_)
            | Effect::Retried(_)
            | Effect::RunEnded(..)
            | Effect::Warn(_)
            | Effect::Publish { .. }
            | Effect::Expire { .. }
            | Effect::CancelFetch(_)
            | Effect::DoubtLeadership(_) => return,
        };
        // A dispatcher that ended needs no events any more.
        let _ = event_tx.send(event).await;
    }

    /// The values to mask in what a Task's work says; `None`: they cannot be read now.
    pub(crate) async fn secrets(&self, pool: &Key, refs: &[EnvFrom]) -> Option<Vec<String>> {
        if !refs.iter().any(|reference| reference.secret_ref.is_some()) {
            return Some(Vec::new());
        }
        let resolved = self.resolve(pool, refs, None).await.ok()?;
        Some(resolved.secrets.to_vec())
    }

    /// Whether the ConfigMap is there that has the items of a Task, if one has them.
    async fn look_for_items(
        &self,
        pool: &Key,
        uid: &Uid,
        key: Option<&ConfigMapKey>,
    ) -> Result<(), Unresolved> {
        let Some(key) = key else { return Ok(()) };
        map::look_for_config_map(&self.context, pool, uid, key).await
    }

    async fn resolve(
        &self,
        pool: &Key,
        refs: &[EnvFrom],
        source: Option<&Source>,
    ) -> Result<Arc<Resolved>, Unresolved> {
        let references = &self.context.references;
        let mut resolved = references.resolve(&pool.namespace, refs, WAITING).await?;
        if let Some(source) = source {
            let uid = self.context.caches.namespace_uid(&pool.namespace);
            let place = Place {
                namespace: &pool.namespace,
                uid: uid.as_deref(),
            };
            let bundle = references.source(place, source).await?;
            resolved.source = Some(bundle.digest.clone());
        }
        Ok(Arc::new(resolved))
    }

    async fn fetch(&self, pool: &Key, order: &FetchOrder) -> Result<FetchedSource, StartError> {
        let begun = self.fetches.begun(pool, FetchKey::Number(order.number))?;
        let work = async {
            let agent = self
                .agent_on(pool, &order.machine, order.connection)
                .map_err(StartError::Agent)?;
            let fetcher = Fetcher {
                context: &self.context,
                namespace: &pool.namespace,
                machine: &order.machine,
                agent: &agent,
            };
            fetcher.first(&order.source).await
        };
        begun.unless_cancelled(work).await
    }

    pub(crate) async fn read(&self, pool: &Key, name: &str) -> Result<Option<Arc<Task>>, String> {
        let task = self.tasks(pool).get_opt(name).await;
        task.map(|task| task.map(Arc::new)).map_err(|error| words(&error))
    }

    /// The Task of that name, which others depend on, past all caches: ended Tasks are not watched.
    async fn read_dependency(&self, pool: &Key, name: &str) -> Result<Option<Found>, String> {
        let _turn = self.lookups.wait(&pool.namespace, &pool.name).await;
        let api: Api<Guarded<Task>> = Api::namespaced(self.context.client.clone(), &pool.namespace);
        let found = api.get_opt(name).await.map_err(|error| words(&error))?;
        Ok(found.and_then(|task| match task.0 {
            Ok(task) => Found::of(&task),
            // It is left alone by everybody until somebody corrects or deletes it: it is waited for.
            Err(invalid) => Some(Found {
                uid: invalid.metadata.uid?.into(),
                phase: TaskPhase::Pending,
                reason: String::new(),
                has_items: false,
            }),
        }))
    }

    /// A fresh list, without any cache: an object that is not in it is gone.
    async fn list_machines(&self, pool: &Key) -> Result<Vec<SlotAttempt>, String> {
        let api: Api<Machine> = Api::namespaced(self.context.client.clone(), &pool.namespace);
        let params = ListParams::default().fields(&format!("spec.pool={}", pool.name));
        let list = api.list(&params).await.map_err(|error| words(&error))?;
        Ok(list
            .items
            .iter()
            .filter(|machine| self.context.is_ours(&machine.spec))
            .map(|machine| SlotAttempt {
                slot: machine.spec.slot,
                attempt: machine.spec.attempt,
            })
            .collect())
    }

    async fn follow(
        &self,
        pool: &Key,
        place: SlotAttempt,
        machine: &str,
        connection: u64,
        event_tx: &mpsc::Sender<Event>,
    ) -> Result<(), AgentError> {
        let agent = self.agent_on(pool, machine, connection)?;
        let account = agent.account();
        let mut facts = agent.watch(0).await?;
        let replayed = Event::Replayed { place, connection };
        if !agent.marks_replay() {
            // An older agent does not tell the end of its facts: it cannot be waited for.
            let _ = event_tx.send(replayed).await;
        }
        while let Some(fact) = facts.next().await {
            let fact = fact?;
            if let Some(fact::Fact::Reclaim(reclaim)) = fact.fact {
                // The Machine controller acts on it; the dispatcher sees the new view.
                let key = MachineKey::new(pool.namespace.as_str(), machine);
                self.context.sessions.reclaimed(&key, reclaim);
                continue;
            }
            if let Some(fact::Fact::NotForked(told)) = fact.fact {
                let key = MachineKey::new(pool.namespace.as_str(), machine);
                self.context.sessions.not_forked(&key, &told.why);
                continue;
            }
            if let Some(fact::Fact::Progress(protocol::Progress { done, total })) = fact.fact {
                if let Some(run) = RunId::parse(&fact.run_id)
                    && event_tx
                        .send(Event::Progress(place, run, Progress { done, total }))
                        .await
                        .is_err()
                {
                    return Ok(());
                }
                continue;
            }
            for event in unrolled(fact) {
                let event = match event {
                    // The stream is not read on until there is room for this fact.
                    Some(fact) => {
                        let Some(told) = weighed(&account, fact).await else {
                            let full = "there is no room for what the machines of its namespace tell";
                            return Err(AgentError::Busy(full.to_owned()));
                        };
                        match told::fact(told) {
                            Some(told) => Event::Fact(place, Box::new(told)),
                            None => continue,
                        }
                    }
                    None => Event::Replayed { place, connection },
                };
                if event_tx.send(event).await.is_err() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    async fn start(&self, pool: &Key, order: &StartOrder) -> Result<Told<RunState>, StartError> {
        let begun = self.fetches.begun(pool, FetchKey::Run(order.run.clone()))?;
        let task = match &order.task {
            Some(task) => task.clone(),
            None => self
                .read(pool, &order.name)
                .await
                .map_err(StartError::NotNow)?
                .filter(|task| task.uid().as_deref() == Some(&*order.run.uid))
                .ok_or(StartError::TaskGone)?,
        };
        let resolved = if let Some(resolved) = &order.resolved {
            resolved.clone()
        } else {
            let refs: Vec<EnvFrom> = order
                .pool
                .env_from
                .iter()
                .chain(&task.spec.env_from)
                .cloned()
                .collect();
            let resolved = self.resolve(pool, &refs, None).await;
            resolved.map_err(StartError::References)?
        };
        let spec = environment::run_spec(order, &pool.namespace, &task, &resolved);
        let agent = self
            .agent_on(pool, &order.machine, order.connection)
            .map_err(StartError::Agent)?;
        delivery::takes(&task, agent.takes_pickles(), &order.machine).map_err(StartError::References)?;
        if order.items.is_some() && !agent.runs_items() {
            let old = delivery::outdated(&order.machine, "runs no items of forEach");
            return Err(StartError::References(old));
        }
        if let Some(source) = &task.spec.source {
            let deliverer = Deliverer {
                turns: &self.deliveries,
                context: &self.context,
                pool,
                agent: &agent,
            };
            begun.unless_cancelled(deliverer.deliver(order, source)).await?;
        }
        let state = agent.start(spec).await.map_err(StartError::Agent)?;
        Ok(told::state(answered(&agent.account(), state)))
    }

    async fn collect(&self, pool: &Key, order: &CollectOrder) -> Result<Box<Collected>, CollectError> {
        let refs = &order.refs;
        let holds_secrets = refs.iter().any(|reference| reference.secret_ref.is_some());
        let resolved: Option<Arc<Resolved>> = match &order.resolved {
            Some(resolved) => Some(resolved.clone()),
            None if !holds_secrets => Some(Arc::default()),
            None => self.resolve(pool, refs, None).await.ok(),
        };
        let secrets = resolved.as_ref().map(|resolved| resolved.secrets.as_slice());
        let Context { store, metrics, .. } = &self.context;
        let agent = || Some(Arc::new(self.agent(pool, &order.machine)?) as AnyReader);
        collect::collect_in_turns(&self.collects, pool, store, agent, order, secrets, metrics).await
    }

    /// Since when the log and result of a run wait for room, also under an earlier leader.
    async fn waits_since(&self, run: &RunId) -> Timestamp {
        let (store, id) = (&self.context.store, run.to_string());
        let known = store.waits_since(&run.uid, &id, SystemTime::now());
        match timeout(DEADLINE, known).await {
            Ok(Ok(since)) => Timestamp::try_from(since).unwrap_or_else(|_| now()),
            // Then the wait counts from when this process learnt of it.
            Ok(Err(_)) | Err(_) => now(),
        }
    }

    async fn copy_log(&self, pool: &Key, run: &RunId, machine: &str, limit: u64) {
        let _turn = self.copies.wait(&pool.namespace, &pool.name).await;
        if let Some(agent) = self.agent(pool, machine) {
            let Context { store, metrics, .. } = &self.context;
            store.charge(&run.uid, &pool.namespace);
            collect::copy_log(store, &agent, run, limit, metrics).await;
        }
    }
}

/// An agent's fact for a dispatcher; `None`: all recorded facts were told. The end of the
/// recorded facts also names runs that the agent has promised to start and no fact tells of yet.
fn unrolled(fact: Fact) -> Vec<Option<Fact>> {
    let Some(fact::Fact::Replayed(replayed)) = fact.fact else {
        return vec![Some(fact)];
    };
    let accepted = replayed.accepted.into_iter().map(|run_id| {
        Some(Fact {
            run_id,
            fact: Some(fact::Fact::Started(Started::default())),
            ..Fact::default()
        })
    });
    accepted.chain([None]).collect()
}

/// The clock, in one place.
pub(crate) fn now() -> Timestamp {
    clock::now()
}

#[cfg(test)]
mod tests {
    use skyward_remote::protocol::Replayed;

    use super::*;

    #[test]
    fn promised_runs_are_told_before_the_end_of_the_replay() {
        let mark = Fact {
            fact: Some(fact::Fact::Replayed(Replayed {
                accepted: vec!["uid-1-0".into()],
            })),
            ..Fact::default()
        };
        let events = unrolled(mark);
        assert_eq!(
            events[0].as_ref().map(|fact| fact.run_id.as_str()),
            Some("uid-1-0")
        );
        assert_eq!((events.len(), &events[1]), (2, &None));
    }
}
