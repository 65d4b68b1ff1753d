//! Carries out a plan; makes no choices.
//!
//! Order: the status with the new attempts, from the resource version that the plan was
//! made from (a plan made on an old view is refused here, before it costs anything);
//! then the actions; then the Events. The next plan judges the outcomes of the actions.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{
    Api, Resource,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use skyward_api::{Machine, Pool, labels, machine::MachineSpec, pool::PoolStatus};
use skyward_core::{Deletion, ErrorKind, PoolScope, ProviderError};
use skyward_planner::{
    accounts::quota::Quota,
    base::key::Key,
    events::reason,
    pool::{
        facts::Observed,
        plan::draft::{Action, Plan, Why},
    },
};
use tokio::{sync::Semaphore, time::timeout};

use crate::{accounts::fleet::Reserved, context::Context, keys};

/// Why acting stopped. The next plan starts from a new observation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The plan was made from an old view.
    #[error("the Pool changed meanwhile")]
    Stale,
    /// Another Pool took the last machines of a limit.
    #[error("another Pool was faster")]
    LimitRace,
    /// The API server refused or is away.
    #[error("could not {0}")]
    Api(&'static str, #[source] kube::Error),
    /// The API server refuses a Machine of this Pool, and would again at once.
    #[error("the API server refuses the record of a machine: {0}")]
    Refused(String),
    /// It did not answer.
    #[error("could not {0}: no answer in time")]
    Late(&'static str),
    /// The Pool's key.
    #[error(transparent)]
    Key(#[from] keys::Error),
    /// The provider refused to delete what it lists.
    #[error(transparent)]
    Provider(#[from] skyward_core::ProviderError),
}

impl Error {
    /// Stable name for metrics.
    pub const fn category(&self) -> &'static str {
        match self {
            Self::Stale => "conflict",
            Self::LimitRace => "limit_race",
            Self::Api(..) => "api",
            Self::Refused(_) => "refused",
            Self::Late(_) => "api_late",
            Self::Key(_) => "key",
            Self::Provider(_) => "provider",
        }
    }
}

/// Machines created or deleted at the same time, for one Pool.
const CONCURRENT: usize = 16;
/// The same for all Pools together: the API server turns away a client with too many requests.
static WRITES: Semaphore = Semaphore::const_new(512);
/// Longest wait for one answer.
const DEADLINE: Duration = Duration::from_secs(15);

/// Longest wait for one answer of a provider.
const PROVIDER_DEADLINE: Duration = Duration::from_mins(1);

/// Events that compare the status with what it was: once it is written, no later plan tells
/// them, also if an action of this one fails.
const NEWS_OF_STATUS: &[&str] = &[
    reason::COST_FINAL,
    reason::POOL_PROVISIONED,
    reason::POOL_READY,
    reason::POOL_STALLED,
];

/// Carries the plan out; answers with the Pool as last written, if it was.
pub async fn act(
    context: &Context,
    pool: &Arc<Pool>,
    seen: &Observed,
    plan: &Plan,
) -> Result<Option<Arc<Pool>>, Error> {
    let mut written: Option<Arc<Pool>> = None;
    let orders = orders(plan);
    if !orders.is_empty() {
        let limits: BTreeMap<String, Quota> = seen
            .providers
            .iter()
            .map(|(name, facts)| (name.clone(), facts.limits))
            .collect();
        if !context
            .fleet
            .reserve(&seen.pool.namespace, &limits, reservations(seen, &orders))
        {
            return Err(Error::LimitRace);
        }
    }
    let key = Key::new(&seen.pool.namespace, &seen.pool.name);
    let outdated = context.loads.outdates(&key, numbers(&seen.pool.status));
    if differs(&plan.status, &seen.pool.status, outdated) && !plan.actions.contains(&Action::AddFinalizer) {
        match write_status(context, pool, &plan.status).await {
            Ok(fresh) => written = Some(Arc::new(fresh)),
            Err(error) => {
                for (name, _) in &orders {
                    context.fleet.cancel(&Key::new(&seen.pool.namespace, *name));
                }
                return Err(error);
            }
        }
    }
    let about = pool.object_ref(&());
    let (news, rest): (Vec<_>, Vec<_>) = plan
        .events
        .iter()
        .partition(|event| NEWS_OF_STATUS.contains(&event.reason));
    for event in news {
        context.events.publish(&about, event.clone());
    }
    actions(context, pool, seen, plan, &orders, &mut written).await?;
    for event in rest {
        context.events.publish(&about, event.clone());
    }
    Ok(written)
}

type Orders<'a> = Vec<(&'a str, &'a MachineSpec)>;

fn orders(plan: &Plan) -> Orders<'_> {
    plan.actions
        .iter()
        .filter_map(|action| match action {
            Action::CreateMachine { name, spec } => Some((name.as_str(), spec.as_ref())),
            _ => None,
        })
        .collect()
}

fn reservations(seen: &Observed, orders: &Orders<'_>) -> Vec<(String, Reserved)> {
    orders
        .iter()
        .map(|(name, spec)| ((*name).to_owned(), Reserved::of(&seen.pool.uid, spec)))
        .collect()
}

/// The numbers of running and waiting Tasks in a status.
pub(super) const fn numbers(status: &PoolStatus) -> (u32, u32) {
    (status.running_tasks, status.waiting_tasks)
}

/// Spending alone is not worth a write: the status has it as of the last write. Other numbers of
/// Tasks are worth one when the numbers on record have been outdated for a while.
fn differs(new: &PoolStatus, old: &PoolStatus, outdated: bool) -> bool {
    let mut old = old.clone();
    if !outdated {
        (old.running_tasks, old.waiting_tasks) = numbers(new);
    }
    if let (Some(old), Some(new)) = (&mut old.cost, &new.cost) {
        old.spent.clone_from(&new.spent);
    }
    *new != old
}

async fn write_status(context: &Context, pool: &Pool, status: &PoolStatus) -> Result<Pool, Error> {
    let api = pools(context, pool);
    let mut object = pool.clone();
    object.status = Some(status.clone());
    let name = object.metadata.name.clone().unwrap_or_default();
    context.metrics.api_write("Pool");
    call(
        "write the Pool's status",
        api.replace_status(&name, &PostParams::default(), &object),
    )
    .await
}

async fn actions(
    context: &Context,
    pool: &Arc<Pool>,
    seen: &Observed,
    plan: &Plan,
    orders: &Orders<'_>,
    written: &mut Option<Arc<Pool>>,
) -> Result<(), Error> {
    let mut deletions = Vec::new();
    let mut no_key = None;
    for action in &plan.actions {
        match action {
            Action::AddFinalizer => {
                *written = Some(Arc::new(set_finalizer(context, pool, true).await?));
            }
            Action::EnsureKey => {
                let ensured = keys::ensure(
                    &context.client,
                    &context.config.namespace,
                    &seen.pool.uid,
                    &seen.pool.name,
                )
                .await;
                // Nothing is ordered without a key; deletions go on.
                if let Err(error) = ensured {
                    for (name, _) in orders {
                        context.fleet.cancel(&Key::new(&seen.pool.namespace, *name));
                    }
                    no_key = Some(Error::from(error));
                }
            }
            Action::CreateMachine { .. } => {}
            Action::DeleteMachine {
                name,
                uid,
                why,
                finish_runs,
            } => deletions.push((name, uid, *why, *finish_runs)),
            Action::Release { provider, scope } => release(context, provider, scope).await?,
            Action::DeleteUnrecorded(provider, machine) => {
                if let Some(account) = context.providers.get(provider) {
                    tracing::warn!(
                        pool = seen.pool.name,
                        id = machine.id,
                        "a machine without record is deleted"
                    );
                    match timeout(PROVIDER_DEADLINE, account.provider.delete(machine)).await {
                        Ok(answer) => drop(answer?),
                        Err(_) => return Err(Error::Late("delete a machine without record")),
                    }
                }
            }
            Action::DeleteLogs => {
                // The sweep finds logs that stay.
                let deleted = timeout(DEADLINE, context.store.delete_pool(&seen.pool.uid)).await;
                if let Ok(Err(error)) = deleted {
                    tracing::warn!(pool = seen.pool.name, %error, "logs of its machines stay for now");
                }
            }
            Action::ReleaseKey => {
                keys::delete(&context.client, &context.config.namespace, &seen.pool.uid).await?;
            }
            Action::RemoveFinalizer => {
                let fresh = written.clone().unwrap_or_else(|| pool.clone());
                set_finalizer(context, &fresh, false).await?;
            }
        }
    }
    let mut effects: Vec<BoxFuture<'_, Result<(), Error>>> =
        Vec::with_capacity(deletions.len() + orders.len());
    for (name, uid, why, finish) in deletions {
        effects.push(in_turn(delete_machine(context, seen, name, uid, why, finish)).boxed());
    }
    for (name, spec) in orders.iter().filter(|_| no_key.is_none()) {
        effects.push(in_turn(create_machine(context, pool, seen, name, spec)).boxed());
    }
    // All effects are tried, even when one fails.
    let results: Vec<Result<(), Error>> = stream::iter(effects).buffer_unordered(CONCURRENT).collect().await;
    match no_key {
        Some(error) => Err(error),
        None => results.into_iter().collect(),
    }
}

/// Runs an effect when its turn among the effects of all Pools has come.
async fn in_turn<T>(effect: impl Future<Output = T>) -> T {
    // Never closed, so there is no error.
    let _turn = WRITES.acquire().await;
    effect.await
}

/// Returns the resources that the machines of a Pool shared at a provider. A resource that is still
/// in use is an error: the Pool stays until a later try finds none.
async fn release(context: &Context, provider: &str, scope: &PoolScope) -> Result<(), Error> {
    let Some(account) = context.providers.get(provider) else {
        return Ok(());
    };
    let late = || {
        ProviderError::new(
            ErrorKind::Transient,
            "return what the machines shared",
            "the provider did not answer in time",
        )
    };
    match timeout(DEADLINE, account.provider.release(scope)).await {
        Ok(Ok(Deletion::Gone)) => Ok(()),
        Ok(Ok(Deletion::InProgress | Deletion::Foreign)) => Err(Error::Provider(ProviderError::new(
            ErrorKind::Transient,
            "return what the machines shared",
            "it is still in use; it is tried again",
        ))),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(late().into()),
    }
}

async fn create_machine(
    context: &Context,
    pool: &Pool,
    seen: &Observed,
    name: &str,
    spec: &MachineSpec,
) -> Result<(), Error> {
    let api: Api<Machine> = Api::namespaced(context.client.clone(), &seen.pool.namespace);
    let object = record(pool, seen, name, spec);
    context.metrics.api_write("Machine");
    let params = PostParams {
        field_manager: Some(labels::MANAGER.to_owned()),
        ..Default::default()
    };
    let key = Key::new(&seen.pool.namespace, name);
    match call("record a machine", api.create(&params, &object)).await {
        Ok(_) => {
            tracing::info!(
                namespace = key.namespace,
                machine = name,
                offer = spec.offer,
                "machine recorded and ordered"
            );
            Ok(())
        }
        // The Machine exists: an answer was lost. The watch shows it.
        Err(Error::Stale) => Ok(()),
        Err(Error::Api(_, kube::Error::Api(status))) if (400..500).contains(&status.code) => {
            // Certainly not created.
            context.fleet.cancel(&key);
            Err(Error::Refused(status.message.clone()))
        }
        // Perhaps created: the reservation stays until a look decides.
        Err(error) => Err(error),
    }
}

fn record(pool: &Pool, seen: &Observed, name: &str, spec: &MachineSpec) -> Machine {
    let spec = &MachineSpec {
        installation: Some(seen.cluster.clone()),
        ..spec.clone()
    };
    let mut machine = Machine::new(name, spec.clone());
    let label = |text: &str| {
        let end = text.len().min(63);
        text.get(..end)
            .unwrap_or_default()
            .trim_end_matches(|c: char| !c.is_ascii_alphanumeric())
            .to_owned()
    };
    machine.metadata.namespace = Some(seen.pool.namespace.clone());
    machine.metadata.finalizers = Some(vec![labels::FINALIZER.to_owned()]);
    machine.metadata.labels = Some(
        [
            (labels::MANAGED_BY, labels::MANAGER.to_owned()),
            (labels::POOL, label(&seen.pool.name)),
            (labels::POOL_UID, seen.pool.uid.clone()),
            (labels::SLOT, spec.slot.to_string()),
            (labels::PROVIDER, label(&spec.provider)),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into(),
    );
    machine.metadata.owner_references = Some(vec![OwnerReference {
        api_version: Pool::api_version(&()).into_owned(),
        kind: Pool::kind(&()).into_owned(),
        name: pool.metadata.name.clone().unwrap_or_default(),
        uid: seen.pool.uid.clone(),
        controller: Some(true),
        block_owner_deletion: None,
    }]);
    machine
}

async fn delete_machine(
    context: &Context,
    seen: &Observed,
    name: &str,
    uid: &str,
    why: Why,
    finish_runs: bool,
) -> Result<(), Error> {
    let api: Api<Machine> = Api::namespaced(context.client.clone(), &seen.pool.namespace);
    if finish_runs {
        // The annotation that says how it drains is written before the deletion.
        let patch = serde_json::json!({ "metadata": { "uid": uid, "annotations": { labels::FINISH_RUNS: why.words() } } });
        context.metrics.api_write("Machine");
        match call(
            "mark a machine",
            api.patch(name, &PatchParams::default(), &Patch::Merge(patch)),
        )
        .await
        {
            Ok(_) => {}
            Err(error) if is_gone(&error) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some(uid.to_owned()),
            resource_version: None,
        }),
        ..DeleteParams::background()
    };
    context.metrics.api_write("Machine");
    match call("delete a machine", api.delete(name, &params)).await {
        Ok(answer) => {
            let is_deleting = |machine: &Machine| machine.metadata.deletion_timestamp.is_some();
            if let Some(machine) = answer.left().filter(is_deleting) {
                context.fleet.note_deletion(machine);
            }
            tracing::info!(
                namespace = seen.pool.namespace,
                machine = name,
                why = why.words(),
                "machine given up"
            );
            Ok(())
        }
        Err(error) if is_gone(&error) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whether the object is gone: it does not exist, or another has its name.
fn is_gone(error: &Error) -> bool {
    matches!(error, Error::Stale)
        || matches!(error, Error::Api(_, kube::Error::Api(status)) if status.code == 404)
}

/// Puts our finalizer on, or takes it off, from the version that was decided on.
async fn set_finalizer(context: &Context, pool: &Pool, on: bool) -> Result<Pool, Error> {
    let mut finalizers = pool.metadata.finalizers.clone().unwrap_or_default();
    finalizers.retain(|name| name != labels::FINALIZER);
    if on {
        finalizers.push(labels::FINALIZER.to_owned());
    }
    let patch = serde_json::json!({
        "metadata": { "resourceVersion": pool.metadata.resource_version, "finalizers": finalizers }
    });
    let name = pool.metadata.name.clone().unwrap_or_default();
    context.metrics.api_write("Pool");
    let (api, params, patch) = (pools(context, pool), PatchParams::default(), Patch::Merge(patch));
    match call("change the Pool's finalizers", api.patch(&name, &params, &patch)).await {
        Err(error) if !on && matches!(&error, Error::Api(_, kube::Error::Api(s)) if s.code == 404) => {
            Ok(pool.clone())
        }
        other => other,
    }
}

fn pools(context: &Context, pool: &Pool) -> Api<Pool> {
    Api::namespaced(
        context.client.clone(),
        pool.metadata.namespace.as_deref().unwrap_or_default(),
    )
}

async fn call<T>(what: &'static str, call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Error> {
    match timeout(DEADLINE, call).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(kube::Error::Api(status))) if status.code == 409 => Err(Error::Stale),
        Ok(Err(error)) => Err(Error::Api(what, error)),
        Err(_) => Err(Error::Late(what)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_tasks_are_written_when_those_on_record_are_outdated_and_not_before() {
        let with = |running_tasks, waiting_tasks| PoolStatus {
            running_tasks,
            waiting_tasks,
            ..PoolStatus::default()
        };
        assert!(
            !differs(&with(0, 3), &with(7, 4), false),
            "they change with every Task"
        );
        assert!(differs(&with(0, 4), &with(7, 4), true));
        assert!(differs(&with(7, 3), &with(7, 4), true));
        assert!(!differs(&with(7, 4), &with(7, 4), true), "they are written once");
    }
}
