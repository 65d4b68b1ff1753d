//! Carries out a plan; makes no choices.
//!
//! Order: the status with the new attempts, from the resource version that the plan was
//! made from (a plan made on an old view is refused here, before it costs anything);
//! then the actions; then the Events. The next plan judges the outcomes of the actions.

use std::{collections::BTreeMap, time::Duration};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use skyward_api::{
    Machine, Pool, labels,
    machine::MachineSpec,
    pool::{PoolStatus, ScalingReason},
};
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

use crate::{
    accounts::fleet::Reserved,
    api::{ApiError, finalizer_patch, write},
    context::Context,
    keys,
    newest::Record,
    reconcile::{AFTER_CONFLICT, Failure, Retry},
    versions,
};

/// Why acting stopped. The next plan starts from a new observation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another Pool took the last machines of a limit.
    #[error("another Pool was faster")]
    LimitRace,
    /// A machine that would be given up because its order was refused is being ordered.
    #[error("a machine to give up is being ordered")]
    OrderRace,
    /// The API server.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The API server refuses a Machine of this Pool; asked again at once it would do so again.
    #[error("the API server refuses the record of a machine: {0}")]
    Refused(String),
    /// The Pool's key.
    #[error(transparent)]
    Key(#[from] keys::Error),
    /// The versions of its packages.
    #[error(transparent)]
    Versions(#[from] versions::Error),
    /// The provider refused to delete what it lists.
    #[error(transparent)]
    Provider(#[from] skyward_core::ProviderError),
}

impl Failure for Error {
    fn category(&self) -> &'static str {
        match self {
            Self::Api(error) => error.category(),
            Self::LimitRace => "limit_race",
            Self::OrderRace => "order_race",
            Self::Refused(_) => "refused",
            Self::Key(_) => "key",
            Self::Versions(_) => "versions",
            Self::Provider(_) => "provider",
        }
    }

    fn retry(&self) -> Retry {
        match self {
            Self::Api(error) => error.retry(),
            Self::LimitRace | Self::OrderRace => Retry::Unsaid(AFTER_CONFLICT),
            // The next plan waits.
            Self::Refused(_) => Retry::Fixed(AFTER_CONFLICT),
            Self::Key(_) | Self::Versions(_) | Self::Provider(_) => Retry::Doubled(Duration::from_secs(3)),
        }
    }
}

/// Machines created or deleted at the same time, for one Pool.
const CONCURRENT: usize = 16;
/// The same for all Pools together: the API server turns away a client with too many requests.
static WRITES: Semaphore = Semaphore::const_new(512);
/// Longest wait for the store.
const DEADLINE: Duration = Duration::from_secs(15);

/// Events that compare the status with what it was: once it is written, no later plan tells
/// them, also if an action of this one fails.
const NEWS_OF_STATUS: &[&str] = &[
    reason::COST_FINAL,
    reason::ENVIRONMENT_CHANGED,
    reason::ENVIRONMENT_CHANGING,
    reason::GROWTH_FAILED,
    reason::POOL_GROWS,
    reason::POOL_PROVISIONED,
    reason::POOL_READY,
    reason::POOL_SHRINKS,
    reason::POOL_SLEEPS,
    reason::POOL_SLEEPS_SOON,
    reason::POOL_STALLED,
    reason::POOL_WAKES,
];

/// Carries out.
pub(super) async fn act(
    context: &Context,
    record: &mut Record<'_, Pool>,
    seen: &Observed,
    plan: &Plan,
) -> Result<(), Error> {
    let about = record.object().object_ref(&());
    let orders = orders(plan);
    withdraw(context, seen, plan, !orders.is_empty()).await?;
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
        match write_status(context, record.object(), &plan.status).await {
            Ok(fresh) => {
                record.wrote(fresh);
                if let Some(reason) = scaled(&plan.status, &seen.pool.status) {
                    context.metrics.pool_scaled(reason);
                }
            }
            Err(error) => {
                for (name, _) in &orders {
                    context.fleet.cancel(&Key::new(&seen.pool.namespace, *name));
                }
                return Err(error);
            }
        }
    }
    let (news, rest): (Vec<_>, Vec<_>) = plan
        .events
        .iter()
        .partition(|event| NEWS_OF_STATUS.contains(&event.reason));
    for event in news {
        context.events.publish(&about, event.clone());
    }
    actions(context, record, seen, plan, &orders).await?;
    for event in rest {
        context.events.publish(&about, event.clone());
    }
    Ok(())
}

/// Gives up the machines whose orders were refused, before anything else: the same plan may order others in their slots, so
/// none of them may be ordered from now on.
async fn withdraw(context: &Context, seen: &Observed, plan: &Plan, orders: bool) -> Result<(), Error> {
    let effects = plan.actions.iter().filter_map(|action| match action {
        Action::DeleteMachine {
            name,
            uid,
            why,
            finish_runs,
        } if was_refused(seen, name) => Some(async move {
            if !context.fleet.withdraw(uid) && orders {
                return Err(Error::OrderRace);
            }
            let deleted = in_turn(delete_machine(context, seen, name, uid, *why, *finish_runs)).await;
            if deleted.is_err() {
                context.fleet.keep(uid);
            }
            deleted
        }),
        _ => None,
    });
    let effects: Vec<_> = effects.collect();
    let results: Vec<Result<(), Error>> = stream::iter(effects).buffer_unordered(CONCURRENT).collect().await;
    results.into_iter().collect()
}

fn was_refused(seen: &Observed, name: &str) -> bool {
    let mut machines = seen.machines.iter();
    machines.any(|machine| machine.name == name && machine.refused)
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

/// Why a plan works towards another number of machines than the one before.
fn scaled(new: &PoolStatus, old: &PoolStatus) -> Option<ScalingReason> {
    let scaling = new.scaling.as_ref()?;
    let changed = old.desired_machines.is_some() && new.desired_machines != old.desired_machines;
    scaling.reason.filter(|_| changed)
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
    let params = PostParams::default();
    let answer = api.replace_status(&name, &params, &object);
    Ok(write(&context.metrics, "Pool", "write the Pool's status", answer).await?)
}

async fn actions(
    context: &Context,
    record: &mut Record<'_, Pool>,
    seen: &Observed,
    plan: &Plan,
    orders: &Orders<'_>,
) -> Result<(), Error> {
    let mut deletions = Vec::new();
    let mut no_key = None;
    for action in &plan.actions {
        match action {
            Action::AddFinalizer => {
                let fresh = set_finalizer(context, record.object(), true).await?;
                record.wrote(fresh);
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
            } => {
                if !was_refused(seen, name) {
                    deletions.push((name, uid, *why, *finish_runs));
                }
            }
            Action::Release { provider, scope } => release(context, provider, scope).await?,
            Action::DeleteUnrecorded(provider, machine) => {
                if let Some(account) = context.providers.get(provider) {
                    tracing::warn!(
                        pool = seen.pool.name,
                        id = machine.id,
                        "a machine without record is deleted"
                    );
                    account.provider.delete(machine).await?;
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
                // The key was the trace of this Pool. What its machines shared at a former account of a
                // Provider is seen only when those credentials come back.
                context.holds.had(&seen.pool.uid);
                let (client, namespace) = (&context.client, &context.config.namespace);
                versions::delete(client, namespace, &seen.pool.uid).await?;
                keys::delete(client, namespace, &seen.pool.uid).await?;
            }
            Action::RemoveFinalizer => {
                set_finalizer(context, record.object(), false).await?;
            }
        }
    }
    let pool = record.object();
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
    match account.provider.release(scope).await? {
        Deletion::Gone => Ok(()),
        Deletion::InProgress | Deletion::Foreign => Err(Error::Provider(ProviderError::new(
            ErrorKind::Transient,
            "return what the machines shared",
            "it is still in use; it is tried again",
        ))),
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
    let params = PostParams {
        field_manager: Some(labels::MANAGER.to_owned()),
        ..Default::default()
    };
    let key = Key::new(&seen.pool.namespace, name);
    let answer = api.create(&params, &object);
    match write(&context.metrics, "Machine", "record a machine", answer).await {
        Ok(_) => {
            tracing::info!(
                namespace = key.namespace,
                machine = name,
                offer = spec.offer,
                "machine recorded and ordered"
            );
            Ok(())
        }
        // It is there: an answer of ours was lost. The watch shows it.
        Err(ApiError::Stale(..)) => Ok(()),
        Err(error) => match error.refusal() {
            Some((400..500, why)) => {
                // Certainly not created.
                context.fleet.cancel(&key);
                Err(Error::Refused(why.to_owned()))
            }
            // Perhaps created: the reservation stays until somebody has looked.
            _ => Err(error.into()),
        },
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
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        let answer = api.patch(name, &params, &patch);
        match write(&context.metrics, "Machine", "mark a machine", answer).await {
            Ok(_) => {}
            Err(error) if is_gone(&error) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
    let params = DeleteParams::background().preconditions(Preconditions {
        uid: Some(uid.to_owned()),
        resource_version: None,
    });
    let answer = api.delete(name, &params);
    match write(&context.metrics, "Machine", "delete a machine", answer).await {
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
        Err(error) => Err(error.into()),
    }
}

/// Not there, or another of that name: what was meant is gone.
fn is_gone(error: &ApiError) -> bool {
    matches!(error, ApiError::Stale(..)) || error.is_not_found()
}

/// Puts our finalizer on, or takes it off, from the version that was decided on.
async fn set_finalizer(context: &Context, pool: &Pool, on: bool) -> Result<Pool, Error> {
    let (api, name) = (pools(context, pool), pool.name_any());
    let (params, patch) = (PatchParams::default(), finalizer_patch(pool, on));
    let answer = api.patch(&name, &params, &patch);
    match write(&context.metrics, "Pool", "change the Pool's finalizers", answer).await {
        Err(error) if !on && error.is_not_found() => Ok(pool.clone()),
        other => Ok(other?),
    }
}

fn pools(context: &Context, pool: &Pool) -> Api<Pool> {
    Api::namespaced(
        context.client.clone(),
        pool.metadata.namespace.as_deref().unwrap_or_default(),
    )
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
