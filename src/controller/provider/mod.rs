//! Providers: connects their accounts, proves the credentials by a real call, and keeps
//! one Offer object for everything that can be rented.
//!
//! Begin reading at [`skyward_planner::provider::plan`]: what should happen next, as a pure function.
//! [`observe`] gathers its facts, [`act`] carries the plan out; this file says when a Provider is looked at.
//! Between two looks the process remembers only when the next call is due; after a restart the account alone
//! gives the same Offers and status. At rest each refresh writes one status and nothing else.

mod act;
mod credentials;
mod observe;
pub(crate) mod restored;
mod rotation;

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use jiff::Timestamp;
use kube::ResourceExt;
use skyward_api::Provider as ProviderObject;
use skyward_core::{Credentials, ProviderError};
use skyward_planner::{
    base::{key::Key, requeue::Next},
    provider::plan::{self, Plan, ProviderMemory, Refresh},
};
use tokio::sync::Semaphore;

use self::{observe::Seen, rotation::Rotated};
use crate::{
    accounts::clients::Account,
    api::ApiError,
    base::broadcast::Change,
    context::Context,
    newest::Record,
    reconcile::{Reconcile, drive},
};

/// The credentials of a Provider, from its Secret in the namespace of the operator, for what is no controller.
pub async fn credentials_of(
    client: &kube::Client,
    namespace: &str,
    provider: &ProviderObject,
) -> Result<Credentials, ProviderError> {
    let read = credentials::read(client, namespace, provider).await?;
    Ok(read.credentials)
}

/// Providers looked at at the same time. Each that answers takes some MB for its offers: with 64
/// the controller took 108 MiB, and its limit is 96.
const CONCURRENCY: u16 = 8;
/// Offers of all Providers written at the same time: the API server turns away a client with too
/// many requests.
const ALL_WRITES: usize = 128;
/// Least time between two looks that a plan wants.
const LEAST: Duration = Duration::from_millis(100);

/// What its reconciles need besides what is remembered of each Provider.
struct Providers {
    context: Context,
    rotated: Arc<Rotated>,
    /// Offers that are being written.
    writes: Semaphore,
}

/// Cached state of a Provider between two looks; losing it costs a look.
#[derive(Default)]
struct ProviderCache {
    memory: ProviderMemory,
    /// An account that answered and takes the place of another one: it is used once the status
    /// names it.
    taking_over: Option<(String, Account)>,
}

/// Runs until shutdown.
pub async fn run(context: Context) {
    let changes = context.feed.subscribe();
    let first = stream::iter(all(&context));
    let rotated = Arc::new(Rotated::default());
    let credentials = {
        let (context, rotated) = (context.clone(), rotated.clone());
        rotation::watch(context.client.clone(), &context.config.namespace).flat_map(move |seen| {
            let providers = context.caches.providers.state();
            let concerned = rotated.note(&seen, providers.iter().map(AsRef::as_ref));
            stream::iter(concerned.into_iter().map(key))
        })
    };
    let then = {
        let context = context.clone();
        let changes = changes.stream();
        changes.flat_map(move |change| stream::iter(concerned(&context, change)))
    };
    let held = context.holds.news.clone().stream().map(key);
    let queue = first.chain(stream::select(stream::select(then, credentials), held));
    let providers = Providers {
        context: context.clone(),
        rotated,
        writes: Semaphore::new(ALL_WRITES),
    };
    drive(
        providers,
        &context,
        context.caches.providers.clone(),
        queue,
        CONCURRENCY,
    )
    .await;
}

fn key(name: String) -> Key {
    Key::new(String::new(), name)
}

fn all(context: &Context) -> Vec<Key> {
    context.provider_names().into_iter().map(key).collect()
}

/// Providers that a change concerns.
fn concerned(context: &Context, change: Change) -> Vec<Key> {
    match change {
        Change::Provider(name) => vec![key(name)],
        Change::Machine { machine, .. } => match context.caches.machine(&machine) {
            Some(machine) => vec![key(machine.spec.provider.clone())],
            // The Machine is gone, and with it the name of its Provider.
            None => all(context),
        },
        Change::Pool(_) | Change::Offers(_) | Change::Namespace(_) | Change::CronTask(_) => Vec::new(),
    }
}

impl Reconcile for Providers {
    const KIND: &'static str = "Provider";
    const CONTROLLER: &'static str = "provider";

    type Object = ProviderObject;
    type Memory = ProviderCache;
    type Seen = Seen;
    type Plan = Plan;
    type Outcomes = ();
    type Error = ApiError;

    async fn observe(&self, provider: &Arc<ProviderObject>, cache: &mut ProviderCache, (): ()) -> Seen {
        self.observe(provider, cache).await
    }

    fn plan(&self, seen: &Seen, cache: &mut ProviderCache, now: Timestamp) -> Plan {
        plan::plan(&seen.observed, &mut cache.memory, &self.context.seal, now)
    }

    fn next(plan: &Plan) -> Next {
        Next::After(plan.again.max(LEAST))
    }

    async fn act(
        &self,
        record: &mut Record<'_, ProviderObject>,
        cache: &mut ProviderCache,
        seen: &Seen,
        plan: Plan,
    ) -> Result<(), ApiError> {
        let Seen { observed, judged } = seen;
        let compared = matches!(observed.answer, Refresh::Complete { .. });
        self.carry_out(record, &mut cache.memory, compared, plan).await?;
        self.restored(&observed.provider, &observed.verdict, judged.as_ref())
            .await;
        let shown = record.object().status.as_ref().map(|status| &status.account);
        if let Some((account, client)) = cache.taking_over.take()
            && shown == Some(&account)
        {
            self.begin(&record.object().name_any(), client);
        }
        Ok(())
    }

    fn warn(key: &Key, error: &ApiError, source: Option<String>, times: u32) {
        tracing::warn!(provider = key.name, %error, source, times, "a Provider could not be reconciled; it is tried again");
    }

    /// Its account stays while machines need it for their deletion.
    fn forget(&self, Key { name, .. }: &Key) {
        self.context.holds.forget(name);
        self.context.metrics.restore(name, false, None);
        if self.context.fleet.used(name, "").total == 0 {
            self.context.providers.remove(name);
        }
    }
}
