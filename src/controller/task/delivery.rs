//! Brings the files of a Task to the machine of a run, before the run starts there.

use std::sync::Arc;

use skyward_api::{
    Task,
    condition::reason,
    task::{BundleSource, Source},
};
use skyward_planner::{
    base::key::Key,
    task::{
        message::{StartError, StartOrder},
        references::{Unresolved, unchanged},
        status::Why,
    },
};
use skyward_remote::{Agent, agent::BundleBytes as _, turns::Turns};

use crate::{context::Context, references::Place, task::git::Fetcher};

/// Machines that are sent files at once, over all Pools and in one namespace: each holds one part, and of
/// a selection of an upload its manifest.
const AT_ONCE: usize = 8;
const EACH: usize = 3;

pub(crate) fn turns() -> Arc<Turns> {
    Turns::new(AT_ONCE, EACH)
}

/// Brings files to a machine.
pub(crate) struct Deliverer<'a> {
    pub(crate) turns: &'a Arc<Turns>,
    pub(crate) context: &'a Context,
    pub(crate) pool: &'a Key,
    pub(crate) agent: &'a Agent,
}

impl Deliverer<'_> {
    /// The machine has the files of the order when this succeeds. Most machines have them from an earlier run.
    pub(crate) async fn deliver(&self, order: &StartOrder, source: &Source) -> Result<(), StartError> {
        let agent = self.agent;
        let digest = agrees(order, agent.takes_bundles()).map_err(StartError::References)?;
        if agent.has_bundle(digest).await.map_err(StartError::Agent)? {
            return Ok(());
        }
        if source.git.is_none() {
            return self.send(source, digest).await;
        }
        match self.send(&stored(digest), digest).await {
            // It is not in the store, or that cannot be read: the machine fetches it.
            Err(StartError::References(_)) => {}
            sent => return sent,
        }
        let fetcher = Fetcher {
            context: self.context,
            namespace: &self.pool.namespace,
            machine: &order.machine,
            agent,
        };
        fetcher.again(source, digest, &order.commit).await
    }

    /// Sends the files of a source that the controller reads.
    async fn send(&self, source: &Source, digest: &str) -> Result<(), StartError> {
        let Self {
            turns,
            context,
            pool,
            agent,
        } = self;
        let _turn = turns.wait(&pool.namespace, &pool.name).await;
        // Another process of the Task may have had its turn before.
        if agent.has_bundle(digest).await.map_err(StartError::Agent)? {
            return Ok(());
        }
        let uid = context.caches.namespace_uid(&pool.namespace);
        let place = Place {
            namespace: &pool.namespace,
            uid: uid.as_deref(),
        };
        let found = context.references.source(place, source).await;
        let bundle = found.map_err(StartError::References)?;
        unchanged(Some(source), Some(digest), Some(&bundle.digest)).map_err(StartError::References)?;
        let put = agent.put_bundle(digest, &*bundle).await;
        put.map_err(StartError::Agent)?;
        context.metrics.source_sent(bundle.bytes());
        Ok(())
    }
}

/// What a machine fetched, as the store has it: only the selected files.
fn stored(digest: &str) -> Source {
    Source {
        bundle: Some(BundleSource {
            digest: digest.to_owned(),
        }),
        ..Source::default()
    }
}

/// The digest that is on record, if the machine can take files.
fn agrees(order: &StartOrder, takes_bundles: bool) -> Result<&str, Unresolved> {
    let Some(digest) = &order.source else {
        return Err(Unresolved {
            reason: reason::SOURCE_REFUSED,
            message: "the status of the Task does not say which files it runs with, as after a change by hand or a step back to an older version of the operator; delete the Task and create it again".to_owned(),
        });
    };
    if !takes_bundles {
        return Err(outdated(&order.machine, "knows no source"));
    }
    Ok(digest)
}

/// Whether the agent knows functions of the kind that the Task has.
pub(crate) fn takes(task: &Task, takes_pickles: bool, machine: &str) -> Result<(), Unresolved> {
    let function = task.spec.function.as_ref();
    let is_pickle = function.is_some_and(|function| function.pickle.is_some());
    if is_pickle && !takes_pickles {
        return Err(outdated(machine, "knows no pickled functions"));
    }
    Ok(())
}

/// The agent of a machine is too old for a run; `lacks` says what it cannot do.
pub(crate) fn outdated(machine: &str, lacks: &str) -> Unresolved {
    Unresolved {
        reason: reason::AGENT_OUTDATED,
        message: format!(
            "the agent of machine \"{machine}\" is of an earlier version, which {lacks}; it is replaced once the runs there have ended, and the Task goes on by itself"
        ),
    }
}

/// Workers of a map run on a machine whose agent knows no items, as after the operator was set back to an earlier version
/// for a while. They never end by themselves, and the agent is not replaced before they do.
pub(crate) fn outdated_under_workers(machine: &str) -> Why {
    let message = format!(
        "the agent of machine \"{machine}\" is of an earlier version, which runs no items of forEach, and is replaced once the runs there have ended; delete Machine \"{machine}\" where workers of this Task run already: their items then run elsewhere"
    );
    Why::new(reason::AGENT_OUTDATED, message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use skyward_planner::{
        pool::resolved::ResolvedPool,
        task::model::{PoolView, RunId},
    };

    use super::*;

    #[test]
    fn no_run_starts_without_the_files_that_are_on_record() {
        let pool: skyward_api::Pool = serde_json::from_value(json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Pool",
            "metadata": { "name": "p", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "provider": "c" },
        }))
        .unwrap();
        let order = |source: Option<&str>| StartOrder {
            run: RunId::new(&"t".into(), 1, 0),
            name: "t".into(),
            machine: "p-0".into(),
            connection: 1,
            pool: Arc::new(PoolView::of(&pool, &ResolvedPool::of(&pool.spec)).unwrap()),
            slot: 0,
            accelerator: None,
            peers: Vec::new(),
            processes: 1,
            grace: std::time::Duration::ZERO,
            task: None,
            resolved: None,
            source: source.map(ToOwned::to_owned),
            commit: String::new(),
            items: None,
        };
        let refusal = |source, takes| {
            agrees(&order(source), takes)
                .map(ToOwned::to_owned)
                .map_err(|error| error.reason)
        };
        assert_eq!(refusal(Some("sha256:a"), true), Ok("sha256:a".to_owned()));
        assert_eq!(refusal(Some("sha256:a"), false), Err(reason::AGENT_OUTDATED));
        assert_eq!(refusal(None, true), Err(reason::SOURCE_REFUSED));
    }

    #[test]
    fn no_pickle_is_sent_to_an_agent_that_would_run_an_empty_source() {
        let task = |function: serde_json::Value| -> Task {
            serde_json::from_value(json!({
                "apiVersion": "skyward.dev/v1alpha1", "kind": "Task", "metadata": { "name": "t" },
                "spec": { "pool": "p", "function": function },
            }))
            .unwrap()
        };
        let pickle =
            task(json!({ "pickle": { "data": "AAAA", "python": "3.12.4", "cloudpickle": "3.1.1" } }));
        let source = task(json!({ "source": "def main(): ..." }));
        let refusal = |task, knows| takes(task, knows, "p-0").err().map(|error| error.reason);
        assert_eq!(refusal(&pickle, false), Some(reason::AGENT_OUTDATED));
        assert_eq!((refusal(&pickle, true), refusal(&source, false)), (None, None));
    }
}
