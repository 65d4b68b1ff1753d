//! Carries out a Machine's plan; makes no choices. The answers to order and deletion are handed
//! back, for the next plan to judge.

use std::time::Duration;

use kube::{
    Api, Resource, ResourceExt,
    api::{PatchParams, PostParams},
};
use skyward_api::{Machine, MachinePhase, MachineStatus, Pool, labels, pool::Image};
use skyward_core::{Deletion, ErrorKind, ProviderError, clock, machine::Endpoint};
use skyward_planner::{
    accounts::{
        resolved::{INSTANCE_TIMEOUT, ResolvedProvider},
        unavailable::Unavailable,
    },
    base::time::elapsed,
    machine::{
        facts::{MachineMemory, Observed, Outcomes},
        plan::{
            draft::{Action, Plan, Trust},
            terms,
        },
    },
    pool::environment::canonical,
};
use skyward_remote::{HostKey, SessionSpec};
use tokio::time::timeout;

use super::{
    observe::read_terms,
    order::{Environment, OrderParts, SessionParts, order, session},
};
use crate::{
    api::{ApiError, finalizer_patch, write},
    base::broadcast::Change,
    context::Context,
    keys::{self, PoolKey},
    newest::Record,
    reconcile::{Failure, Retry},
    references::materials,
    versions,
};

/// Cached state of a Machine between two looks; losing it costs a look.
#[derive(Clone, Debug, Default)]
pub struct MachineCache {
    /// The memory of its plan.
    pub memory: MachineMemory,
    /// The Pool's key, once read.
    key: Option<PoolKey>,
    /// The session as last asked for.
    session: Option<(SessionInputs, SessionSpec)>,
}

impl From<MachineMemory> for MachineCache {
    fn from(memory: MachineMemory) -> Self {
        Self {
            memory,
            ..Self::default()
        }
    }
}

/// The inputs of a session; unchanged inputs need no look at Secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SessionInputs {
    /// How to reach the machine.
    endpoint: Endpoint,
    /// The host key it must show.
    trust: Trust,
    /// Generation of the Pool it was made from.
    generation: i64,
    /// Hash of the environment to make there.
    environment: Option<String>,
}

/// Why acting stopped. The next plan starts from a new observation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The Pool's key.
    #[error(transparent)]
    Key(#[from] keys::Error),
    /// Its account has as many orders and returns in flight as it may.
    #[error("too many orders and returns of its account are in flight")]
    NoTurn,
    /// Its Pool gives it up.
    #[error("its Pool gives it up")]
    GivenUp,
    /// The versions of its packages.
    #[error(transparent)]
    Versions(#[from] versions::Error),
    /// An object that the machine's preparation needs is missing.
    #[error("{0}")]
    Missing(String),
}

impl Failure for Error {
    fn category(&self) -> &'static str {
        match self {
            Self::Api(error) => error.category(),
            Self::Key(_) => "key",
            Self::Versions(_) => "versions",
            Self::NoTurn => "no_turn",
            Self::GivenUp => "given_up",
            Self::Missing(_) => "missing",
        }
    }

    fn retry(&self) -> Retry {
        match self {
            Self::Api(error) => error.retry(),
            Self::NoTurn | Self::GivenUp => Retry::Unsaid(AFTER_OTHERS),
            Self::Key(_) | Self::Versions(_) | Self::Missing(_) => Retry::Doubled(Duration::from_secs(3)),
        }
    }
}

/// The next look of one whose turn did not come.
const AFTER_OTHERS: Duration = Duration::from_millis(250);
/// Warnings about steps that fail, which the Pool's condition reports once for all machines.
const IN_CONDITIONS: [&str; 2] = [
    skyward_planner::events::reason::BOOTSTRAP_FAILED,
    skyward_planner::events::reason::ENVIRONMENT_FAILED,
];
/// Longest wait for the store.
const DEADLINE: Duration = Duration::from_secs(15);

/// Carries out; answers with what effects met.
pub(super) async fn act(
    context: &Context,
    record: &mut Record<'_, Machine>,
    cache: &mut MachineCache,
    seen: &Observed,
    plan: &Plan,
) -> Result<Outcomes, Error> {
    let machine = &record.object().clone();
    let mut outcomes = Outcomes::default();
    let claim = seen
        .session
        .as_ref()
        .and_then(|session| session.newer_epoch.as_ref());
    // Only a proof that a controller of ours made counts: a machine may claim any epoch.
    let proved = claim.filter(|claim| context.seal.proves(claim.epoch, &claim.proof));
    context.holds.epoch_of(
        &seen.machine.spec.provider,
        &seen.machine.name,
        proved.map(|claim| claim.epoch),
    );
    cache.memory.order_not_before = plan.order_not_before;
    if let Some((what, why)) = &plan.shortage {
        context
            .unavailable
            .remember(what.clone(), why.clone(), clock::now());
        if let Unavailable::Dear { provider, .. } = what {
            // The Provider's status must have the epoch before this process may end.
            context.feed.publish(&Change::Provider(provider.clone()));
        }
    }
    if plan.keep_log {
        keep_log(context, seen).await;
    }
    if let Some((hash, text)) = &plan.keep_lock {
        // The next machine's turn comes with this status.
        let (client, namespace) = (&context.client, &context.config.namespace);
        versions::keep(client, namespace, &seen.machine.spec.pool_uid, hash, text).await?;
    }
    if let Some(status) = &plan.status {
        let fresh = write_status(context, machine, status).await?;
        cache.memory.last_write = Some(clock::now());
        tell_metrics(context, seen, status);
        record.wrote(fresh);
        publish(context, machine, seen, plan);
    }
    for action in &plan.actions {
        match action {
            Action::Order => {
                let answer = place_order(context, machine, cache, seen).await?;
                if let Some(answer) = &answer {
                    cache.memory.ordered(answer, clock::now());
                }
                outcomes.order = answer;
            }
            Action::Connect {
                endpoint,
                trust,
                environment,
            } => {
                let inputs = SessionInputs {
                    endpoint: endpoint.clone(),
                    trust: trust.clone(),
                    generation: seen
                        .pool
                        .as_ref()
                        .and_then(|pool| pool.metadata.generation)
                        .unwrap_or(0),
                    environment: environment.clone(),
                };
                connect(context, cache, seen, inputs).await?;
            }
            Action::Disconnect => {
                context.sessions.remove(&seen.machine.session_key());
                cache.session = None;
            }
            Action::DoubtLeadership => context.step_down.doubt(format!(
                "the agent of Machine \"{}/{}\"",
                seen.machine.namespace, seen.machine.name
            )),
            Action::Delete => {
                outcomes.deletion_asked_at = Some(clock::now());
                outcomes.deletion = delete(context, seen).await?;
            }
            Action::RemoveFinalizer => remove_finalizer(context, record.object()).await?,
        }
    }
    if plan.status.is_none() {
        publish(context, machine, seen, plan);
    }
    Ok(outcomes)
}

fn publish(context: &Context, machine: &Machine, seen: &Observed, plan: &Plan) {
    let about = machine.object_ref(&());
    for event in &plan.events {
        // People look for trouble of a machine at its Pool.
        if event.kind == skyward_planner::events::EventKind::Warning
            && !IN_CONDITIONS.contains(&event.reason)
            && let Some(pool) = &seen.pool
        {
            context
                .events
                .publish(&pool.object_ref(&()), event.clone().about(about.clone()));
        }
        context.events.publish(&about, event.clone());
    }
}

/// Stores the bootstrap's output of a machine that is given up. If that fails, the machine is given
/// up all the same.
async fn keep_log(context: &Context, seen: &Observed) {
    let (machine, namespace) = (&seen.machine.name, &seen.machine.namespace);
    let Some(transcript) = context.sessions.transcript(&seen.machine.session_key()) else {
        return;
    };
    let keep = async {
        let text = tokio::task::spawn_blocking(move || transcript.text()).await?;
        let pool = &seen.machine.spec.pool_uid;
        let stored = context
            .store
            .put_bootstrap_log(namespace, pool, machine, text.into());
        anyhow::Ok(stored.await?)
    };
    match timeout(DEADLINE, keep).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::warn!(namespace, machine, %error, "what the machine's bootstrap printed is not stored");
        }
        Err(_) => {
            tracing::warn!(
                namespace,
                machine,
                "what the machine's bootstrap printed is not stored: the store takes too long"
            );
        }
    }
}

/// What became of a change of the environment of a machine that took runs, where `new` tells it.
fn environment_change(old: &MachineStatus, new: &MachineStatus) -> Option<&'static str> {
    let environment = |status: &MachineStatus| status.environment.clone().unwrap_or_default();
    let (before, now) = (environment(old), environment(new));
    if old.ready_at.is_some() && !before.hash.is_empty() && before.hash != now.hash {
        return Some("done");
    }
    (now.failed.is_some() && now.failed != before.failed).then_some("failed")
}

fn tell_metrics(context: &Context, seen: &Observed, status: &MachineStatus) {
    let old = &seen.machine.status;
    let name = &seen.machine.name;
    let namespace = &seen.machine.namespace;
    if let (None, Some(ready)) = (&old.ready_at, &status.ready_at) {
        context
            .metrics
            .machine_ready(elapsed(seen.machine.created_at, ready.0));
    }
    if let Some(outcome) = environment_change(old, status) {
        context.metrics.environment_changed(outcome);
    }
    if old.phase != status.phase {
        let phase = status.phase.unwrap_or_default();
        if phase == MachinePhase::Failed {
            let why = status
                .conditions
                .last()
                .map(|c| c.message.as_str())
                .unwrap_or_default();
            tracing::warn!(namespace, machine = name, why, "machine failed");
        } else {
            tracing::info!(
                namespace,
                machine = name,
                phase = phase.as_str(),
                "machine entered a phase"
            );
        }
    }
}

async fn write_status(
    context: &Context,
    machine: &Machine,
    status: &MachineStatus,
) -> Result<Machine, Error> {
    let mut object = machine.clone();
    object.status = Some(status.clone());
    let (api, name, params) = (api(context, machine), machine.name_any(), PostParams::default());
    let answer = api.replace_status(&name, &params, &object);
    Ok(write(&context.metrics, "Machine", "write the Machine's status", answer).await?)
}

async fn pool_key(context: &Context, cache: &mut MachineCache, seen: &Observed) -> Result<PoolKey, Error> {
    if let Some(key) = &cache.key {
        return Ok(key.clone());
    }
    let spec = &seen.machine.spec;
    let key = keys::ensure(
        &context.client,
        &context.config.namespace,
        &spec.pool_uid,
        &spec.pool,
    )
    .await?;
    cache.key = Some(key.clone());
    Ok(key)
}

async fn place_order(
    context: &Context,
    machine: &Machine,
    cache: &mut MachineCache,
    seen: &Observed,
) -> Result<Option<Result<String, ProviderError>>, Error> {
    let (Some(account), Some(pool)) = (context.providers.get(&seen.machine.spec.provider), &seen.pool) else {
        return Ok(None);
    };
    let key = pool_key(context, cache, seen).await?;
    let spec = &seen.machine.spec;
    let capabilities = account.provider.capabilities();
    let parts = OrderParts {
        cluster: &context.cluster,
        authorized_key: &key.public,
        capabilities,
        offer: spec.offer_id.clone(),
        waits: seen.waits,
        host_token: spec
            .proves_host_key
            .then(|| context.seal.host_token(&seen.machine.mark(&context.cluster))),
    };
    let order = order(&seen.machine, &pool.spec, parts);
    let Some(_turn) = account.turn().await else {
        cache.memory.waits_for_its_turn(None, clock::now());
        return Err(Error::NoTurn);
    };
    // The key and the turn took a while: if the terms broke meanwhile, the next plan says so.
    let terms = read_terms(context, machine, Some(pool));
    if !terms::hold(&terms, &seen.machine.namespace, spec) {
        return Ok(None);
    }
    if !context.fleet.may_order(machine) {
        return Err(Error::GivenUp);
    }
    let answer = account.provider.create(&order).await;
    if let Err(error) = &answer
        && error.kind != ErrorKind::Indeterminate
    {
        context.fleet.was_refused(&seen.machine.uid);
    }
    Ok(Some(answer.map(|accepted| accepted.id)))
}

async fn connect(
    context: &Context,
    cache: &mut MachineCache,
    seen: &Observed,
    mut inputs: SessionInputs,
) -> Result<(), Error> {
    let Some(pool) = &seen.pool else { return Ok(()) };
    let was_ready = seen.machine.status.ready_at.is_some();
    if inputs.environment.is_none() {
        cache.memory.missing = None;
        // Its Pool will record which environment it is to have, and wakes it then.
        if !was_ready {
            return Ok(());
        }
    }
    if let Some((made_from, spec)) = &cache.session {
        // A machine of an older spec keeps the session it has.
        let same_but_generation = made_from.endpoint == inputs.endpoint
            && made_from.trust == inputs.trust
            && made_from.environment == inputs.environment;
        if *made_from == inputs || (same_but_generation && !seen.current) {
            context.sessions.ensure(spec.clone());
            return Ok(());
        }
    }
    let key = pool_key(context, cache, seen).await?;
    let (environment, missing) = match environment(context, pool, inputs.environment.as_deref()).await {
        Ok(environment) => (environment, None),
        // The next plan reports this in a condition: the log alone would leave users paying for a
        // machine that waits.
        Err(Error::Missing(missing)) => (None, Some(missing)),
        Err(error) => return Err(error),
    };
    cache.memory.missing.clone_from(&missing);
    if environment.is_none() {
        // Runs of a machine that was ready need a connection, whatever is missing for another environment.
        inputs.environment = None;
        if !was_ready {
            return missing.map_or(Ok(()), |missing| Err(Error::Missing(missing)));
        }
    }
    let provider = context.caches.provider(&seen.machine.spec.provider);
    let account = context.providers.get(&seen.machine.spec.provider);
    let kind = provider.as_deref().and_then(|provider| provider.spec.account());
    let capabilities = account
        .as_ref()
        .map(|account| account.provider.capabilities())
        // Before its account answers, too.
        .or_else(|| (context.capabilities)(kind?.0));
    // Without capabilities its agent would not be told which variables to hide from its work.
    if capabilities.is_none() {
        return Ok(());
    }
    let parts = SessionParts {
        endpoint: inputs.endpoint.clone(),
        host_key: match &inputs.trust {
            Trust::Key(key) => HostKey::Known(key.clone()),
            Trust::Proof => HostKey::Proved(context.seal.host_token(&seen.machine.mark(&context.cluster))),
            Trust::FirstContact => HostKey::First,
        },
        key: &key,
        environment,
        resolved: &context.resolved.of(pool),
        instance_timeout: provider.as_deref().map_or(INSTANCE_TIMEOUT, |provider| {
            ResolvedProvider::of(&provider.spec).instance_timeout
        }),
        capabilities,
        epoch: context.epoch,
        epoch_proof: context.seal.prove(context.epoch),
        installation: &context.cluster,
    };
    let spec = session(&seen.machine, pool, seen.waits, parts);
    context.sessions.ensure(spec.clone());
    cache.session = Some((inputs, spec));
    missing.map_or(Ok(()), |missing| Err(Error::Missing(missing)))
}

/// The environment of that hash, as the Pool and the objects that its steps read are now. `None` where they are another
/// one: the Pool's record will say so, and wakes the machine.
async fn environment(
    context: &Context,
    pool: &Pool,
    hash: Option<&str>,
) -> Result<Option<Environment>, Error> {
    let Some(hash) = hash else { return Ok(None) };
    let namespace = pool.namespace().unwrap_or_default();
    let uid = pool.uid().unwrap_or_default();
    let empty = Image::default();
    let image = pool.spec.image.as_ref().unwrap_or(&empty);
    let gathered = materials::gather(&context.references, &namespace, image).await;
    let materials = gathered.map_err(Error::Missing)?;
    let found = context
        .seal
        .environment(&uid, &canonical(image, &materials.contents()));
    if found != hash {
        tracing::debug!(
            namespace,
            hash,
            found,
            "a machine waits for its Pool's record of the environment"
        );
        return Ok(None);
    }
    let versions = if image.pip.is_empty() {
        None
    } else {
        versions::get(&context.client, &context.config.namespace, &uid, hash).await?
    };
    Ok(Some(Environment {
        hash: hash.to_owned(),
        materials,
        versions: versions.map(Into::into),
    }))
}

async fn delete(
    context: &Context,
    seen: &Observed,
) -> Result<Option<Result<Deletion, ProviderError>>, Error> {
    let Some(account) = context.providers.get(&seen.machine.spec.provider) else {
        return Ok(None);
    };
    let machine = seen.machine.reference(&context.cluster);
    let _turn = account.turn().await.ok_or(Error::NoTurn)?;
    Ok(Some(account.provider.delete(&machine).await))
}

/// A record of another installation: its machine is that one's, and nothing is done with it. A
/// record that is deleted goes, and the machine stays.
pub(super) async fn let_foreign_go(context: &Context, machine: &Machine) -> Result<(), Error> {
    if machine.metadata.deletion_timestamp.is_some()
        && machine.finalizers().iter().any(|name| name == labels::FINALIZER)
    {
        remove_finalizer(context, machine).await?;
    }
    Ok(())
}

async fn remove_finalizer(context: &Context, machine: &Machine) -> Result<(), Error> {
    let (api, name) = (api(context, machine), machine.name_any());
    let (params, patch) = (PatchParams::default(), finalizer_patch(machine, false));
    let answer = api.patch(&name, &params, &patch);
    match write(&context.metrics, "Machine", "let the Machine go", answer).await {
        Ok(_) => tracing::info!(namespace = machine.namespace(), machine = name, "machine is gone"),
        Err(error) if error.is_not_found() => {}
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

fn api(context: &Context, machine: &Machine) -> Api<Machine> {
    Api::namespaced(
        context.client.clone(),
        machine.metadata.namespace.as_deref().unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use skyward_api::environment::{EnvironmentFailure, MachineEnvironment};

    use super::*;

    fn status(hash: &str, failed: Option<&str>, is_ready: bool) -> MachineStatus {
        let at = || Time(Timestamp::UNIX_EPOCH);
        let failed = failed.map(|hash| EnvironmentFailure {
            hash: hash.to_owned(),
            machine: "m".to_owned(),
            failure: skyward_api::machine::BootstrapFailure::default(),
            message: String::new(),
            at: at(),
        });
        MachineStatus {
            ready_at: is_ready.then(at),
            environment: Some(MachineEnvironment {
                hash: hash.to_owned(),
                failed,
                ..MachineEnvironment::default()
            }),
            ..MachineStatus::default()
        }
    }

    #[test]
    fn a_change_of_an_environment_is_counted_once_and_the_first_environment_is_none() {
        let ready = |hash| status(hash, None, true);
        let changes = vec![
            (MachineStatus::default(), status("", None, false), None),
            (status("", None, false), ready("a"), None),
            (ready("a"), ready("a"), None),
            (ready("a"), ready("b"), Some("done")),
            (ready("a"), status("a", Some("b"), true), Some("failed")),
            (status("a", Some("b"), true), status("a", Some("b"), true), None),
            (
                status("a", Some("b"), true),
                status("a", Some("c"), true),
                Some("failed"),
            ),
            (status("a", Some("b"), true), ready("a"), None),
            (status("a", Some("b"), true), ready("c"), Some("done")),
        ];
        for (old, new, expected) in changes {
            assert_eq!(environment_change(&old, &new), expected, "{old:?} {new:?}");
        }
    }
}
