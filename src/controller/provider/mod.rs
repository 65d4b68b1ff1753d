//! Providers: connects their accounts, proves the credentials by a real call, and keeps
//! one Offer object for everything that can be rented.
//!
//! Observe, plan ([`skyward_planner::provider::plan`]), act. Between two looks the process remembers only
//! when the next call is due; after a restart the account alone gives the same Offers and status. At rest
//! each refresh writes one status and nothing else.

mod credentials;
pub(crate) mod restored;
mod rotation;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream};
use jiff::Timestamp;
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
    runtime::{
        applier,
        controller::{Action, Config, Error as ControllerError},
        reflector::ObjectRef,
    },
};
use serde_json::json;
use skyward_api::{Machine, Offer, Provider as ProviderObject, ProviderStatus, labels};
use skyward_core::{ErrorKind, PoolScope, Provider, ProviderError, Scope};
use skyward_planner::{
    base::key::Key,
    provider::{
        deletion::{self, Left, Owners},
        plan::{self, Observed, Plan, ProviderMemory, Refresh},
    },
};
use tokio::{sync::Semaphore, time::timeout};

use crate::{
    accounts::{
        clients::{Account, Revision},
        sweeps::resource_sweep,
    },
    base::{backoff::Backoff, broadcast::Change},
    context::Context,
    newest::Newest,
    restore::gate::Gated,
};
use rotation::Rotated;

/// Providers looked at at the same time. Each that answers takes some MB for its offers: with 64
/// the controller took 108 MiB, and its limit is 96.
const CONCURRENCY: u16 = 8;
/// Offers of one Provider written at the same time.
const WRITES: usize = 16;
/// Offers of all Providers written at the same time: the API server turns away a client with too
/// many requests.
const ALL_WRITES: usize = 128;
/// Longest wait for an account and everything it offers.
const CALL_DEADLINE: Duration = Duration::from_mins(1);
/// Longest wait for the API server.
const API_DEADLINE: Duration = Duration::from_secs(15);
/// First wait after a write that failed.
const RETRY: Duration = Duration::from_secs(2);

/// Why a reconcile failed; the next one begins anew.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("could not {0}")]
    Api(&'static str, #[source] Box<kube::Error>),
    #[error("could not {0}: the API server did not answer in time")]
    TimedOut(&'static str),
}

impl Error {
    fn category(&self) -> &'static str {
        match self {
            Self::Api(_, error) => match error.as_ref() {
                kube::Error::Api(status) if status.is_conflict() => "conflict",
                kube::Error::Api(_) => "refused",
                _ => "unavailable",
            },
            Self::TimedOut(_) => "timeout",
        }
    }
}

/// The state of this controller besides the context.
struct Controller {
    context: Context,
    memory: Mutex<BTreeMap<String, ProviderMemory>>,
    rotated: Rotated,
    failures: Backoff<String>,
    /// Accounts that answered and take the place of another one, by name of the Provider: they are
    /// used once the status names them.
    taking_over: Mutex<BTreeMap<String, (String, Account)>>,
    newest: Newest<ProviderObject>,
    /// Offers that are being written.
    writes: Semaphore,
}

/// Runs until shutdown.
pub async fn run(context: Context) {
    let changes = context.feed.subscribe();
    let all = context.caches.providers.state();
    let first = stream::iter(
        all.into_iter()
            .map(|provider| ObjectRef::new(&provider.name_any())),
    );
    let controller = Arc::new(Controller {
        context: context.clone(),
        memory: Mutex::default(),
        rotated: Rotated::default(),
        failures: Backoff::default(),
        taking_over: Mutex::default(),
        newest: Newest::default(),
        writes: Semaphore::new(ALL_WRITES),
    });
    let noting = controller.clone();
    let rotated = rotation::watch(context.client.clone(), &context.config.namespace)
        .flat_map(move |seen| stream::iter(noting.rotated(&seen)));
    let waking = controller.clone();
    let then = changes
        .stream()
        .flat_map(move |change| stream::iter(waking.concerned(&change)));
    let held = context
        .holds
        .news
        .clone()
        .stream()
        .map(|name| ObjectRef::new(&name));
    let queue = first
        .chain(stream::select(stream::select(then, rotated), held))
        .take_until(context.shutdown.clone().cancelled_owned())
        .map(Ok::<ObjectRef<ProviderObject>, std::convert::Infallible>);
    applier(
        |provider, controller: Arc<Controller>| async move { controller.reconcile(provider).await }.boxed(),
        |provider, _, controller| {
            Action::requeue(controller.failures.delay(&provider.name_any(), RETRY))
        },
        controller.clone(),
        context.caches.providers.clone(),
        queue,
        Config::default().concurrency(CONCURRENCY),
    )
    .for_each(|result| {
        match result {
            Ok((provider, _)) => controller.failures.succeeded(&provider.name),
            Err(ControllerError::ObjectNotFound(gone)) => controller.forget(&gone.name),
            Err(ControllerError::ReconcilerFailed(error, provider)) => {
                let times = controller.failures.failed(provider.name.clone());
                if times.is_power_of_two() {
                    let cause = std::error::Error::source(&error).map(ToString::to_string);
                    tracing::warn!(%error, cause, provider = provider.name, times, "a Provider could not be reconciled; it is tried again");
                }
            }
            Err(error) => tracing::warn!(%error, "the queue of Providers failed"),
        }
        std::future::ready(())
    })
    .await;
}

impl Controller {
    /// Providers that a change concerns.
    fn concerned(&self, change: &Change) -> Vec<ObjectRef<ProviderObject>> {
        match change {
            Change::Provider(name) => vec![ObjectRef::new(name)],
            Change::Machine { machine, .. } => {
                let reference = ObjectRef::new(&machine.name).within(&machine.namespace);
                match self.context.caches.machines.get(&reference) {
                    Some(machine) => vec![ObjectRef::new(&machine.spec.provider)],
                    // The Machine is gone, and with it the name of its Provider.
                    None => self
                        .context
                        .caches
                        .providers
                        .state()
                        .iter()
                        .map(|provider| ObjectRef::new(&provider.name_any()))
                        .collect(),
                }
            }
            Change::Pool(_) | Change::Offers(_) => Vec::new(),
        }
    }

    /// Providers whose credentials changed.
    fn rotated(&self, seen: &rotation::Seen) -> Vec<ObjectRef<ProviderObject>> {
        let providers = self.context.caches.providers.state();
        self.rotated
            .note(seen, providers.iter().map(AsRef::as_ref))
            .iter()
            .map(|name| ObjectRef::new(name))
            .collect()
    }

    /// Forgets everything about a Provider but its account.
    fn begin_anew(&self, name: &str) {
        self.memory
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(name);
        self.takes_over().remove(name);
        self.newest.forget(&Key::new(String::new(), name));
    }

    /// Forgets a deleted Provider. Its account stays while machines need it for their deletion.
    fn forget(&self, name: &str) {
        self.begin_anew(name);
        self.context.holds.forget(name);
        self.context.metrics.restore(name, false, None);
        if self.context.fleet.used(name, "").total == 0 {
            self.context.providers.remove(name);
        }
    }

    async fn reconcile(&self, provider: Arc<ProviderObject>) -> Result<Action, Error> {
        let started = Instant::now();
        let (name, about) = (provider.name_any(), provider.object_ref(&()));
        let turn = async { self.look(&self.newest.of(provider)).await };
        let result = match self.context.panics.turn("provider", &about, turn).await {
            Ok(result) => result,
            Err(broken) => {
                if broken.panicked {
                    self.begin_anew(&name);
                }
                return Ok(Action::requeue(broken.rest));
            }
        };
        let category = result.as_ref().err().map(Error::category);
        self.context
            .metrics
            .reconciled("Provider", started.elapsed(), category);
        result
    }

    async fn look(&self, provider: &ProviderObject) -> Result<Action, Error> {
        let name = provider.name_any();
        let mut memory = self.recall(&name, &provider.uid().unwrap_or_default());
        let secret = self.rotated.take(&name);
        let answer = if plan::is_due(provider, &memory, secret.as_deref(), Timestamp::now()) {
            match self.ask(provider, &mut memory.secret).await {
                Refresh::Failed(problem) => Refresh::Failed(self.explained(provider, problem)),
                answer => answer,
            }
        } else {
            Refresh::NotAsked
        };
        let capabilities = self
            .context
            .providers
            .get(&name)
            .map(|account| account.provider.capabilities().clone());
        // Machines come and go more often than offers are compared.
        let compares = plan::compares_offers(provider, &memory, &answer);
        let offers = if compares {
            self.context.caches.offers.state()
        } else {
            Vec::new()
        };
        let machines = self.context.fleet.used(&name, "").total;
        let left = if plan::goes(provider, machines) {
            self.left(provider, &answer, &memory).await
        } else {
            Left::NotAsked
        };
        let (verdict, judged) = self.verdict(provider);
        if verdict.held {
            self.context.holds.set(&name, true);
        }
        let now = Timestamp::now();
        let unavailable = &self.context.unavailable;
        if let Some(status) = &provider.status {
            unavailable.recall(&name, &status.barred_offers, now);
        }
        let observed = Observed {
            verdict: &verdict,
            provider,
            machines,
            left,
            barred: unavailable.now().barred(&name, now),
            shown: &self.context.fleet.of_provider(&name),
            pseudonyms: &self.context.seal,
            offers: &offers,
            answer,
            capabilities,
        };
        let (plan, memory) = plan::plan(&observed, memory, Timestamp::now());
        let again = plan.again;
        let on_record = plan
            .status
            .as_ref()
            .or(provider.status.as_ref())
            .map(|status| status.account.clone());
        // If a write below fails, the account's answer stays valid, but not that the status was
        // written.
        let unwritten = ProviderMemory {
            written_at: None,
            ..memory.clone()
        };
        self.remember(
            &name,
            if plan.status.is_some() {
                unwritten
            } else {
                memory.clone()
            },
        );
        self.act(provider, plan).await?;
        self.remember(&name, memory);
        self.restored(provider, &verdict, judged.as_ref()).await;
        let due = self
            .takes_over()
            .remove(&name)
            .filter(|(account, _)| Some(account) == on_record.as_ref());
        if let Some((_, account)) = due {
            self.begin(&name, account);
        }
        Ok(Action::requeue(again.max(Duration::from_millis(100))))
    }

    /// From now on this client is used. Refusals of the former client may not concern it.
    fn begin(&self, name: &str, account: Account) {
        self.context.unavailable.forget(name);
        self.context.providers.set(name, account);
    }

    fn takes_over(&self) -> MutexGuard<'_, BTreeMap<String, (String, Account)>> {
        self.taking_over.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The memory of this object; an object of the same name with another UID has none.
    fn recall(&self, name: &str, uid: &str) -> ProviderMemory {
        self.memory
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(name)
            .filter(|memory| memory.uid == uid)
            .cloned()
            .unwrap_or_else(|| ProviderMemory {
                uid: uid.to_owned(),
                ..ProviderMemory::default()
            })
    }

    fn remember(&self, name: &str, memory: ProviderMemory) {
        self.memory
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(name.to_owned(), memory);
    }

    /// Asks the account for its id and its offers; notes the version of the Secret that was used.
    async fn ask(&self, object: &ProviderObject, asked_with: &mut String) -> Refresh {
        let read = credentials::read(&self.context.client, &self.context.config.namespace, object).await;
        if let Ok(read) = &read {
            asked_with.clone_from(&read.version);
        }
        let (ungated, secret) = match read.and_then(|read| Ok((self.client(object, &read)?, read.version))) {
            Ok(connected) => connected,
            Err(error) => return Refresh::Failed(error),
        };
        let gated = Gated::new(ungated.clone(), self.context.holds.clone(), &object.name_any());
        let provider: Arc<dyn Provider> = Arc::new(gated);
        let account = match timeout(CALL_DEADLINE, provider.account()).await {
            Ok(Ok(account)) => account,
            Ok(Err(error)) => return Refresh::Failed(error),
            Err(_) => return Refresh::Failed(late("check the account")),
        };
        let used = self.context.fleet.used(&object.name_any(), "").total;
        let (name, revision) = (object.name_any(), Revision::of(object, &secret));
        let recorded = self.context.fleet.of_provider(&name);
        if let Some(other) = plan::other_account(object, used, &recorded, &account)
            && let Some(problem) = plan::refusal(other, self.has_ours(&name, &provider).await)
        {
            // An identity that moved to another account keeps its client, which would find none of
            // the machines from now on.
            if self
                .context
                .providers
                .get(&name)
                .is_some_and(|known| known.revision == revision)
            {
                self.context.providers.remove(&name);
            }
            return Refresh::Failed(problem);
        }
        // The account answered: from now on Machines are ordered and deleted through it.
        let connected = Account {
            provider: provider.clone(),
            ungated,
            revision,
            turns: Arc::new(Semaphore::new(self.context.config.concurrency.into())),
        };
        if plan::takes_over(object, &account) {
            // Nothing is ordered until the status names the account: after a crash in between
            // machines would be looked for at the wrong one.
            self.context.providers.remove(&name);
            self.takes_over()
                .insert(name, (plan::shown_account(&account), connected));
        } else if self
            .context
            .providers
            .get(&name)
            .is_none_or(|known| known.revision != connected.revision)
        {
            self.begin(&name, connected);
        }
        match timeout(CALL_DEADLINE, provider.offers()).await {
            Ok(Ok(offers)) => Refresh::Complete { account, offers },
            Ok(Err(error)) => Refresh::Failed(error),
            Err(_) => Refresh::Failed(late("list what the account offers")),
        }
    }

    /// Adds the Secret and its keys to a problem with the credentials.
    fn explained(&self, object: &ProviderObject, problem: ProviderError) -> ProviderError {
        let kind = object.spec.account().map(|(kind, _)| kind).unwrap_or_default();
        let keys = (self.context.credential_keys)(kind);
        credentials::explained(problem, &object.spec, &self.context.config.namespace, keys)
    }

    /// Whether these credentials show a machine on record: then they are of its account, whatever
    /// its id. Some clouds name an account by its key.
    async fn has_ours(&self, name: &str, provider: &Arc<dyn Provider>) -> Result<bool, ProviderError> {
        let machines = self.context.caches.machines.state();
        let recorded: Vec<&Machine> = machines
            .iter()
            .map(AsRef::as_ref)
            .filter(|machine| machine.spec.provider == name)
            .collect();
        let regions: BTreeSet<&String> = recorded.iter().map(|machine| &machine.spec.region).collect();
        let scope = Scope {
            cluster: self.context.cluster.clone(),
            pool_uid: None,
            namespace: None,
            regions: regions.into_iter().cloned().collect(),
        };
        let listed = timeout(CALL_DEADLINE, provider.list(&scope))
            .await
            .unwrap_or_else(|_| Err(late("list the machines")))?;
        Ok(plan::shows_any(&recorded, &listed))
    }

    /// Machines and resources of ours that the account still has.
    async fn left(&self, provider: &ProviderObject, answer: &Refresh, memory: &ProviderMemory) -> Left {
        let name = provider.name_any();
        let Some(account) = self.context.providers.get(&name) else {
            let problem = match answer {
                Refresh::Failed(problem) => Some(problem),
                Refresh::NotAsked | Refresh::Complete { .. } => memory.problem.as_ref(),
            };
            return problem.map_or(Left::NotAsked, |problem| Left::Unknown(problem.to_string()));
        };
        let caches = &self.context.caches;
        let scope = Scope {
            cluster: self.context.cluster.clone(),
            pool_uid: None,
            namespace: None,
            regions: resource_sweep::regions(&self.context, &name)
                .into_iter()
                .collect(),
        };
        let asked = async {
            let listed = account.provider.list(&scope).await?;
            let leftovers = account.provider.leftovers(&scope).await?;
            Ok::<_, ProviderError>((listed, leftovers))
        };
        match timeout(CALL_DEADLINE, asked).await {
            Ok(Ok((listed, leftovers))) => {
                // Read after the lists, so that machines recorded meanwhile are known too.
                let providers = caches.providers.state();
                let (machines, pools) = (caches.machines.state(), caches.pools.state());
                let owners = Owners::of(
                    provider,
                    providers.iter().map(AsRef::as_ref),
                    machines.iter().map(AsRef::as_ref),
                    pools.iter().map(AsRef::as_ref),
                );
                deletion::left(&self.context.cluster, &listed, &leftovers, &owners)
            }
            Ok(Err(error)) => Left::Unknown(error.to_string()),
            Err(_) => Left::Unknown(format!("it did not answer within {} s", CALL_DEADLINE.as_secs())),
        }
    }

    /// Returns the resources that Pools shared at an account; the next look tells whether that
    /// worked.
    async fn release(&self, provider: &str, scopes: &[PoolScope]) {
        let Some(account) = self.context.providers.get(provider) else {
            return;
        };
        for scope in scopes {
            let answer = timeout(CALL_DEADLINE, account.provider.release(scope)).await;
            if let Ok(Err(error)) = answer {
                tracing::warn!(provider, pool_uid = scope.pool_uid, %error, "what a Pool shared could not be returned; it is tried again");
            }
        }
    }

    /// The client of this object, its generation and its Secret: the one at hand, or a new one.
    fn client(
        &self,
        object: &ProviderObject,
        read: &credentials::Read,
    ) -> Result<Arc<dyn Provider>, ProviderError> {
        match self.context.providers.get(&object.name_any()) {
            Some(account) if account.revision == Revision::of(object, &read.version) => Ok(account.ungated),
            _ => (self.context.factory)(object, &read.credentials),
        }
    }

    async fn act(&self, provider: &ProviderObject, plan: Plan) -> Result<(), Error> {
        let Plan {
            add_finalizer,
            apply,
            delete,
            status,
            release,
            event,
            remove_finalizer,
            again: _,
        } = plan;
        let mut provider = provider.clone();
        if add_finalizer {
            let mut finalizers = provider.metadata.finalizers.clone().unwrap_or_default();
            finalizers.push(labels::FINALIZER.to_owned());
            provider = self.set_finalizers(&provider, &finalizers).await?;
        }
        let mut effects: Vec<BoxFuture<'_, Result<(), Error>>> = Vec::new();
        effects.extend(apply.into_iter().map(|offer| self.apply_offer(offer).boxed()));
        effects.extend(delete.into_iter().map(|name| self.delete_offer(name).boxed()));
        let mut effects = stream::iter(effects).buffer_unordered(WRITES);
        let mut failure = None;
        while let Some(result) = effects.next().await {
            failure = failure.or(result.err());
        }
        if let Some(status) = status {
            provider = self.write_status(&provider, &status).await?;
        }
        if let Some(error) = failure {
            return Err(error);
        }
        self.release(&provider.name_any(), &release).await;
        if let Some(event) = event {
            self.context.events.publish(&provider.object_ref(&()), event);
        }
        if remove_finalizer {
            let finalizers: Vec<String> = provider
                .metadata
                .finalizers
                .iter()
                .flatten()
                .filter(|name| *name != labels::FINALIZER)
                .cloned()
                .collect();
            self.set_finalizers(&provider, &finalizers).await?;
            self.context.providers.remove(&provider.name_any());
        }
        Ok(())
    }

    /// Writes with the resource version of the plan, so that a plan made on an old view is refused.
    /// Returns the new object.
    async fn set_finalizers(
        &self,
        provider: &ProviderObject,
        finalizers: &[String],
    ) -> Result<ProviderObject, Error> {
        let api: Api<ProviderObject> = Api::all(self.context.client.clone());
        let patch = json!({
            "metadata": { "resourceVersion": provider.metadata.resource_version, "finalizers": finalizers }
        });
        self.context.metrics.api_write("Provider");
        let name = provider.name_any();
        let written = call("change the finalizers of the Provider", async {
            api.patch_metadata(&name, &PatchParams::apply(labels::MANAGER), &Patch::Merge(patch))
                .await
        })
        .await?;
        let fresh = ProviderObject {
            metadata: written.metadata,
            ..provider.clone()
        };
        self.newest.wrote(provider, Arc::new(fresh.clone()));
        Ok(fresh)
    }

    /// Writes with the version of the plan, which added the cost of machines to its amounts.
    async fn write_status(
        &self,
        provider: &ProviderObject,
        status: &ProviderStatus,
    ) -> Result<ProviderObject, Error> {
        let api: Api<ProviderObject> = Api::all(self.context.client.clone());
        // JSON leaves out empty fields, which a merge patch would have to name: so the whole status
        // is replaced.
        let patch = json!([
            { "op": "test", "path": "/metadata/uid", "value": provider.metadata.uid },
            { "op": "add", "path": "/metadata/resourceVersion", "value": provider.metadata.resource_version },
            { "op": "add", "path": "/status", "value": status },
        ]);
        let patch: Patch<()> = match serde_json::from_value(patch) {
            Ok(patch) => Patch::Json(patch),
            Err(error) => {
                return Err(Error::Api(
                    "write the status of the Provider",
                    Box::new(kube::Error::SerdeError(error)),
                ));
            }
        };
        self.context.metrics.api_write("Provider");
        let name = provider.name_any();
        let fresh: ProviderObject = call("write the status of the Provider", async {
            api.patch_status(&name, &PatchParams::apply(labels::MANAGER), &patch)
                .await
        })
        .await?;
        self.newest.wrote(provider, Arc::new(fresh.clone()));
        Ok(fresh)
    }

    async fn apply_offer(&self, offer: Offer) -> Result<(), Error> {
        // Never closed, so there is no error.
        let _turn = self.writes.acquire().await;
        let api: Api<Offer> = Api::all(self.context.client.clone());
        self.context.metrics.api_write("Offer");
        let name = offer.name_any();
        let parameters = PatchParams::apply(labels::MANAGER).force();
        call("write an Offer", async {
            api.patch(&name, &parameters, &Patch::Apply(&offer)).await
        })
        .await
        .map(drop)
    }

    async fn delete_offer(&self, name: String) -> Result<(), Error> {
        // Never closed, so there is no error.
        let _turn = self.writes.acquire().await;
        let api: Api<Offer> = Api::all(self.context.client.clone());
        self.context.metrics.api_write("Offer");
        let deleted = call("delete an Offer", async {
            api.delete(&name, &DeleteParams::default()).await
        })
        .await;
        match deleted {
            Err(Error::Api(_, error)) if matches!(error.as_ref(), kube::Error::Api(status) if status.is_not_found()) => {
                Ok(())
            }
            other => other.map(drop),
        }
    }
}

/// The outcome of a call that the account did not answer.
fn late(operation: &'static str) -> ProviderError {
    ProviderError::new(
        ErrorKind::Transient,
        operation,
        format!("the provider did not answer within {} s", CALL_DEADLINE.as_secs()),
    )
}

/// One call of the API server with its deadline.
async fn call<T>(
    what: &'static str,
    answer: impl Future<Output = Result<T, kube::Error>> + Send,
) -> Result<T, Error> {
    match timeout(API_DEADLINE, answer).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(Error::Api(what, Box::new(error))),
        Err(_) => Err(Error::TimedOut(what)),
    }
}
