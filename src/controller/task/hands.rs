//! Carries effects out. No choices are made here: each effect is complete, and what
//! became of it goes back as an event.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use skyward_api::{GROUP, Machine, Task, TaskStatus, VERSION, shared::EnvFrom};
use skyward_remote::{
    AgentError, MachineKey,
    protocol::{Fact, Started, fact},
};
use tokio::{
    sync::{Semaphore, mpsc},
    time::timeout,
};

use crate::{
    board::Key,
    context::Context,
    task::{
        collect::{self, AnyAgent},
        dispatcher::is_complete,
        environment,
        housekeeping::Expiry,
        message::{
            CollectError, CollectOrder, Collected, Effect, Event, Resolved, StartError, StartOrder,
            WriteError,
        },
        model::{Place, RunId},
        references::References,
        status,
    },
};

/// Longest wait for the API server.
const DEADLINE: Duration = Duration::from_secs(20);
/// Writes to the API server at once, over all Pools.
const WRITES: usize = 64;
/// Ended runs whose log or result is fetched at once, over all Pools.
const COLLECTS: usize = 32;
/// Running logs that are copied at once, over all Pools: apart, so that large results
/// never keep live logs waiting. Each holds at most 1 MiB.
const COPIES: usize = 16;

/// What all dispatchers share to carry effects out.
pub(crate) struct Hands {
    pub(crate) context: Context,
    references: References,
    expiry: Expiry,
    writes: Semaphore,
    collects: Semaphore,
    copies: Semaphore,
}

impl Hands {
    pub(crate) fn new(context: Context, expiry: Expiry) -> Arc<Self> {
        Arc::new(Self {
            references: References::new(context.client.clone()),
            context,
            expiry,
            writes: Semaphore::new(WRITES),
            collects: Semaphore::new(COLLECTS),
            copies: Semaphore::new(COPIES),
        })
    }

    fn tasks(&self, pool: &Key) -> Api<Task> {
        Api::namespaced(self.context.client.clone(), &pool.namespace)
    }

    fn agent(&self, pool: &Key, machine: &str) -> Option<AnyAgent> {
        let key = MachineKey::new(pool.namespace.as_str(), machine);
        self.context
            .sessions
            .agent(&key)
            .map(|agent| Arc::new(agent) as AnyAgent)
    }

    /// The agent, if it is still the connection that was decided on.
    fn agent_on(&self, pool: &Key, machine: &str, connection: u64) -> Result<AnyAgent, AgentError> {
        self.agent(pool, machine)
            .filter(|agent| agent.connection() == connection)
            .ok_or_else(|| AgentError::Disconnected("another connection has taken over".to_owned()))
    }

    /// What takes no time; gives back what does.
    pub(crate) fn at_once(&self, pool: &Key, effect: Effect) -> Option<Effect> {
        match effect {
            Effect::Live(uid, runs) => self.context.live.set(&uid, runs),
            Effect::Entered(phase) => self.context.metrics.task_entered(phase),
            Effect::RunEnded(reason) => self.context.metrics.run(reason),
            Effect::Publish { uid, name, event } => {
                let task = ObjectReference {
                    api_version: Some(format!("{GROUP}/{VERSION}")),
                    kind: Some("Task".to_owned()),
                    namespace: Some(pool.namespace.clone()),
                    name: Some(name.to_string()),
                    uid: Some(uid.to_string()),
                    ..ObjectReference::default()
                };
                self.context.events.publish(&task, *event);
            }
            Effect::Expire { uid, name, at } => self.expiry.at(&pool.namespace, &name, &uid, at),
            Effect::Abdicate => {
                tracing::error!(%pool, "an agent takes orders from a newer leader: this process ends");
                self.context
                    .superseded
                    .notice(format!("an agent of Pool \"{pool}\""));
            }
            other => return Some(other),
        }
        None
    }

    /// Carries one effect out and tells what became of it.
    pub(crate) async fn carry_out(self: Arc<Self>, pool: Key, effect: Effect, event_tx: mpsc::Sender<Event>) {
        let event = match effect {
            Effect::Resolve { uid, refs } => Event::Resolved(
                uid,
                self.references
                    .resolve(&pool.namespace, &refs)
                    .await
                    .map(Arc::new),
            ),
            Effect::Write {
                uid,
                name,
                write,
                version,
                status,
            } => {
                let result = self.write(&pool, &uid, &name, &version, &status).await;
                Event::Written { uid, write, result }
            }
            Effect::Reread { uid, name } => Event::Reread(uid, self.read(&pool, &name).await),
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
                    Ok(agent) => agent.stop(&run.to_string(), grace, why).await.map(Box::new),
                    Err(error) => Err(error),
                };
                Event::Stopped {
                    run,
                    connection,
                    result,
                }
            }
            Effect::Collect(order) => {
                let result = self.collect(&pool, &order).await.map(Box::new);
                Event::Collected(order.run, result)
            }
            Effect::Recall(run) => {
                let Context { store, metrics, .. } = &self.context;
                let result = collect::recall(store, &run, metrics).await;
                Event::Recalled(run, result.map(|found| found.map(Box::new)))
            }
            Effect::CopyLog { run, machine } => {
                self.copy_log(&pool, &run, &machine).await;
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
                if let Err(error) = self.context.store.delete_task(&uid).await {
                    // The store's hourly sweep finds it again.
                    tracing::warn!(%uid, %error, "logs and results of a deleted Task stay for now");
                }
                return;
            }
            Effect::Live(..)
            | Effect::Entered(_)
            | Effect::RunEnded(_)
            | Effect::Publish { .. }
            | Effect::Expire { .. }
            | Effect::Abdicate => return,
        };
        // A dispatcher that ended needs no events any more.
        let _ = event_tx.send(event).await;
    }

    async fn write(
        &self,
        pool: &Key,
        uid: &str,
        name: &str,
        version: &str,
        status: &TaskStatus,
    ) -> Result<Arc<Task>, WriteError> {
        let patch = match serde_json::from_value(status::patch(uid, version, status)) {
            Ok(patch) => Patch::Json::<()>(patch),
            Err(error) => return Err(WriteError::Invalid(error.to_string())),
        };
        let _permit = self.writes.acquire().await;
        self.context.metrics.api_write("Task");
        let api = self.tasks(pool);
        match timeout(DEADLINE, api.patch_status(name, &PatchParams::default(), &patch)).await {
            Ok(Ok(task)) => Ok(Arc::new(task)),
            Ok(Err(kube::Error::Api(answer))) => Err(match answer.code {
                404 => WriteError::Gone,
                409 => WriteError::Conflict,
                400 | 413 | 422 => WriteError::Invalid(answer.message.clone()),
                code => {
                    tracing::warn!(%pool, task = name, code, error = %answer.message,
                        "a status could not be written");
                    WriteError::Unknown(answer.message.clone())
                }
            }),
            Ok(Err(error)) => {
                tracing::warn!(%pool, task = name, %error, "a status could not be written");
                Err(WriteError::Unknown(error.to_string()))
            }
            Err(_) => Err(WriteError::Unknown("the API server does not answer".to_owned())),
        }
    }

    async fn read(&self, pool: &Key, name: &str) -> Result<Option<Arc<Task>>, String> {
        match timeout(DEADLINE, self.tasks(pool).get_opt(name)).await {
            Ok(Ok(task)) => Ok(task.map(Arc::new)),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("the API server does not answer".to_owned()),
        }
    }

    /// Past every cache: what is not in here is gone.
    async fn list_machines(&self, pool: &Key) -> Result<Vec<Place>, String> {
        let api: Api<Machine> = Api::namespaced(self.context.client.clone(), &pool.namespace);
        let params = ListParams::default().fields(&format!("spec.pool={}", pool.name));
        match timeout(DEADLINE, api.list(&params)).await {
            Ok(Ok(list)) => Ok(list
                .items
                .iter()
                .map(|machine| Place {
                    slot: machine.spec.slot,
                    attempt: machine.spec.attempt,
                })
                .collect()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("the API server does not answer".to_owned()),
        }
    }

    async fn follow(
        &self,
        pool: &Key,
        place: Place,
        machine: &str,
        connection: u64,
        event_tx: &mpsc::Sender<Event>,
    ) -> Result<(), AgentError> {
        let agent = self.agent_on(pool, machine, connection)?;
        let mut facts = agent.watch(0).await?;
        let replayed = Event::Replayed { place, connection };
        if !agent.marks_replay() {
            // An older agent does not say when: it cannot be waited for.
            let _ = event_tx.send(replayed).await;
        }
        while let Some(fact) = facts.next().await {
            let fact = fact?;
            if let Some(fact::Fact::Reclaim(reclaim)) = fact.fact {
                // It is the Machine's matter; what that leads to is shown as another view.
                let key = MachineKey::new(pool.namespace.as_str(), machine);
                self.context.sessions.reclaimed(&key, reclaim);
                continue;
            }
            for event in told(place, connection, fact) {
                if event_tx.send(event).await.is_err() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    async fn start(
        &self,
        pool: &Key,
        order: &StartOrder,
    ) -> Result<skyward_remote::protocol::RunState, StartError> {
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
            Arc::new(
                self.references
                    .resolve(&pool.namespace, &refs)
                    .await
                    .map_err(StartError::References)?,
            )
        };
        let spec = environment::run_spec(order, &pool.namespace, &task, &resolved);
        let agent = self
            .agent_on(pool, &order.machine, order.connection)
            .map_err(StartError::Agent)?;
        agent.start(spec).await.map_err(StartError::Agent)
    }

    async fn collect(&self, pool: &Key, order: &CollectOrder) -> Result<Collected, CollectError> {
        let CollectOrder {
            run: _,
            machine,
            finished,
            gone: _,
            keep: _,
            refs,
            resolved,
        } = order;
        let holds_secrets = refs.iter().any(|reference| reference.secret_ref.is_some());
        let resolved: Option<Arc<Resolved>> = match resolved {
            Some(resolved) => Some(resolved.clone()),
            None if !holds_secrets => Some(Arc::default()),
            None => self
                .references
                .resolve(&pool.namespace, refs)
                .await
                .ok()
                .map(Arc::new),
        };
        let secrets = resolved.as_ref().map(|resolved| resolved.secrets.as_slice());
        // What the fact carries itself waits for nobody.
        let permit = if is_complete(finished) {
            None
        } else {
            self.collects.acquire().await.ok()
        };
        let agent = self.agent(pool, machine);
        let Context { store, metrics, .. } = &self.context;
        let collected = collect::collect(store, agent.as_deref(), order, secrets, metrics).await;
        drop(permit);
        collected
    }

    async fn copy_log(&self, pool: &Key, run: &RunId, machine: &str) {
        let Ok(_permit) = self.copies.acquire().await else {
            return;
        };
        if let Some(agent) = self.agent(pool, machine) {
            collect::copy_log(&self.context.store, &*agent, run, &self.context.metrics).await;
        }
    }
}

/// What an agent's fact is to a dispatcher. The end of the recorded ones also names runs that
/// the agent has promised to start, of which no fact tells yet.
fn told(place: Place, connection: u64, fact: Fact) -> Vec<Event> {
    let Some(fact::Fact::Replayed(replayed)) = fact.fact else {
        return vec![Event::Fact(place, Box::new(fact))];
    };
    let accepted = replayed.accepted.into_iter().map(|run_id| {
        let promised = Fact {
            run_id,
            fact: Some(fact::Fact::Started(Started::default())),
            ..Fact::default()
        };
        Event::Fact(place, Box::new(promised))
    });
    accepted.chain([Event::Replayed { place, connection }]).collect()
}

/// The clock, in one place.
pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}

#[cfg(test)]
mod tests {
    use skyward_remote::protocol::Replayed;

    use super::*;

    #[test]
    fn promised_runs_are_told_before_the_end_of_the_replay() {
        let place = Place { slot: 1, attempt: 2 };
        let mark = Fact {
            fact: Some(fact::Fact::Replayed(Replayed {
                accepted: vec!["uid-1-0".into()],
            })),
            ..Fact::default()
        };
        let events = told(place, 7, mark);
        assert!(matches!(&events[0], Event::Fact(_, fact) if fact.run_id == "uid-1-0"));
        assert!(matches!(events[1], Event::Replayed { connection: 7, .. }));
        assert_eq!(events.len(), 2);
    }
}
