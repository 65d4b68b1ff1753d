//! Gathers what the plan of a Provider may know. When the account is due, it is asked; a client that
//! answered is used from then on.

use std::{collections::BTreeSet, sync::Arc};

use kube::ResourceExt;
use skyward_api::{Machine, Provider as ProviderObject};
use skyward_core::{Provider, ProviderError, clock};
use skyward_planner::{
    provider::{
        deletion::{self, Left, Owners},
        plan::{self, Observed, Refresh},
    },
    restore::evidence::Evidence,
};
use tokio::sync::Semaphore;

use super::{ProviderCache, Providers, credentials};
use crate::{
    accounts::{
        clients::{Account, Revision},
        sweeps::resource_sweep,
    },
    restore::gate::Gated,
};

/// What a look at a Provider found.
pub(super) struct Seen {
    /// All that its plan may know.
    pub(super) observed: Observed,
    /// The evidence of old memory that its verdict was made from.
    pub(super) judged: Option<Arc<Evidence>>,
}

impl Providers {
    pub(super) async fn observe(&self, provider: &Arc<ProviderObject>, cache: &mut ProviderCache) -> Seen {
        let name = provider.name_any();
        let secret = self.rotated.take(&name);
        let answer = if plan::is_due(provider, &cache.memory, secret.as_deref(), clock::now()) {
            match self.ask(provider, cache).await {
                Refresh::Failed(problem) => Refresh::Failed(self.explained(provider, problem)),
                answer => answer,
            }
        } else {
            Refresh::NotAsked
        };
        // Machines come and go more often than offers are compared.
        let offers = if plan::compares_offers(provider, &cache.memory, &answer) {
            self.context.caches.offers.state()
        } else {
            Vec::new()
        };
        let machines = self.context.fleet.used(&name, "").total;
        let left = if plan::goes(provider, machines) {
            self.left(provider, &answer, cache).await
        } else {
            Left::NotAsked
        };
        let (verdict, judged) = self.verdict(provider);
        if verdict.held {
            self.context.holds.set(&name, true);
        }
        let now = clock::now();
        let unavailable = &self.context.unavailable;
        if let Some(status) = &provider.status {
            unavailable.recall(&name, &status.barred_offers, now);
        }
        let account = self.context.providers.get(&name);
        let observed = Observed {
            verdict,
            provider: provider.clone(),
            machines,
            left,
            barred: unavailable.now().barred(&name, now),
            shown: self.context.fleet.of_provider(&name),
            offers,
            answer,
            capabilities: account.map(|account| account.provider.capabilities().clone()),
        };
        Seen { observed, judged }
    }

    /// From now on this client is used. Refusals of the former client may not concern it.
    pub(super) fn begin(&self, name: &str, account: Account) {
        self.context.unavailable.forget(name);
        self.context.providers.set(name, account);
    }

    /// Asks the account for its id and its offers; notes the version of the Secret that was used.
    async fn ask(&self, object: &ProviderObject, cache: &mut ProviderCache) -> Refresh {
        let read = credentials::read(&self.context.client, &self.context.config.namespace, object).await;
        if let Ok(read) = &read {
            cache.memory.secret.clone_from(&read.version);
        }
        let (ungated, secret) = match read.and_then(|read| Ok((self.client(object, &read)?, read.version))) {
            Ok(connected) => connected,
            Err(error) => return Refresh::Failed(error),
        };
        let gated = Gated::new(ungated.clone(), self.context.holds.clone(), &object.name_any());
        let provider: Arc<dyn Provider> = Arc::new(gated);
        let account = match provider.account().await {
            Ok(account) => account,
            Err(error) => return Refresh::Failed(error),
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
            cache.taking_over = Some((plan::shown_account(&account), connected));
        } else if self
            .context
            .providers
            .get(&name)
            .is_none_or(|known| known.revision != connected.revision)
        {
            self.begin(&name, connected);
        }
        match provider.offers().await {
            Ok(offers) => Refresh::Complete { account, offers },
            Err(error) => Refresh::Failed(error),
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
        let machines = self.context.caches.machines_at(name);
        let recorded: Vec<&Machine> = machines.iter().map(AsRef::as_ref).collect();
        let regions: BTreeSet<&String> = recorded.iter().map(|machine| &machine.spec.region).collect();
        let scope = self.context.scope(regions.into_iter().cloned());
        Ok(plan::shows_any(&recorded, &provider.list(&scope).await?))
    }

    /// Machines and resources of ours that the account still has.
    async fn left(&self, provider: &ProviderObject, answer: &Refresh, cache: &ProviderCache) -> Left {
        let name = provider.name_any();
        let Some(account) = self.context.providers.get(&name) else {
            let problem = match answer {
                Refresh::Failed(problem) => Some(problem),
                Refresh::NotAsked | Refresh::Complete { .. } => cache.memory.problem.as_ref(),
            };
            return problem.map_or(Left::NotAsked, |problem| Left::Unknown(problem.to_string()));
        };
        let caches = &self.context.caches;
        let scope = self.context.scope(resource_sweep::regions(&self.context, &name));
        let asked = async {
            let listed = account.provider.list(&scope).await?;
            let leftovers = account.provider.leftovers(&scope).await?;
            Ok::<_, ProviderError>((listed, leftovers))
        };
        match asked.await {
            Ok((listed, leftovers)) => {
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
            Err(error) => Left::Unknown(error.to_string()),
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
}
