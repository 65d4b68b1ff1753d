//! The process looks at a Provider: asks the account, plans, and writes, as `provider/` does.

use std::sync::Arc;

use kube::ResourceExt;
use skyward_api::{Provider, ProviderStatus, labels};
use skyward_core::{ErrorKind, ProviderError, Scope};
use skyward_planner::provider::{
    deletion::{self, Left, Owners},
    plan::{self, Observed, Plan, ProviderMemory, Refresh},
};

use super::{
    client::Client,
    planted::Fault,
    process::Work,
    server::Refused,
    world::{Crashed, World},
};
use crate::restore::seal::Seal;

impl World {
    pub(super) fn reconcile_provider(&mut self, name: &str) -> Result<(), Crashed> {
        let Some(cached) = self.process.providers.get(name).cloned() else {
            self.process.looks.remove(name);
            self.process.taking_over.remove(name);
            if self.process.fleet.used(name, "").total == 0 {
                self.process.clients.remove(name);
            }
            return Ok(());
        };
        let provider = self.process.newest_providers.of(cached);
        let uid = provider.uid().unwrap_or_default();
        let known = self.process.looks.get(name).filter(|(of, _)| *of == uid);
        let mut memory = known.map(|(_, memory)| memory.clone()).unwrap_or_default();
        let answer = if plan::due_in(&provider, &memory, self.time()).is_zero() {
            self.ask(&provider)
        } else {
            Refresh::NotAsked
        };
        let compares = plan::compares_offers(&provider, &memory, &answer);
        let offers: Vec<_> = if compares {
            self.published.values().cloned().collect()
        } else {
            Vec::new()
        };
        let machines = self.process.fleet.used(name, "").total;
        let left = if plan::goes(&provider, machines) {
            self.left(&provider, &answer, &memory)
        } else {
            Left::NotAsked
        };
        let shown = self.process.fleet.of_provider(name);
        let capabilities = self.process.clients.contains_key(name);
        let (verdict, judged) = self.verdict(&provider);
        let observed = Observed {
            verdict: verdict.clone(),
            provider: provider.clone(),
            machines,
            left,
            shown,
            barred: self.process.unavailable.barred(name, self.time()),
            offers,
            answer,
            capabilities: capabilities.then(|| self.kind_of(name).capabilities.clone()),
        };
        let pseudonyms = Seal::new(&[0; 32], "simulated");
        let plan = plan::plan(&observed, &mut memory, &pseudonyms, self.time());
        let again = super::pools::seconds(plan.again);
        let unwritten = ProviderMemory {
            written_at: None,
            ..memory.clone()
        };
        let on_record = plan
            .status
            .as_ref()
            .or(provider.status.as_ref())
            .map(|status| status.account.clone());
        let writes = plan.status.is_some();
        let decision = verdict.decided.clone().or_else(|| {
            let status = provider.status.as_ref();
            status.and_then(|status| status.after_restore.clone())
        });
        let before = if writes { unwritten } else { memory.clone() };
        self.process.looks.insert(name.to_owned(), (uid.clone(), before));
        let again = match self.carry_out(provider, plan)? {
            Ok(()) => {
                self.process.looks.insert(name.to_owned(), (uid, memory));
                self.carry_out_decision(name, decision.as_ref(), (verdict.held, judged))?;
                let due = self.process.taking_over.remove(name);
                if let Some((_, client)) = due.filter(|(account, _)| Some(account) == on_record.as_ref()) {
                    self.process.clients.insert(name.to_owned(), client);
                    let now = self.now;
                    self.process.accounts_changed(now);
                }
                again
            }
            Err(_) => 2,
        };
        let at = self.now + again;
        self.process.wake(Work::Provider(name.to_owned()), at);
        Ok(())
    }

    /// Asks the account for its id and its offers.
    fn ask(&mut self, object: &Provider) -> Refresh {
        let name = object.name_any();
        let secret = self.secrets[&name].clone();
        let kind = self.kind_of(&name);
        let everywhere = || kind.regions.iter().map(|&region| region.to_owned()).collect();
        let regions: Vec<String> = object
            .spec
            .account()
            .and_then(|(_, settings)| serde_json::from_value(settings.get("regions")?.clone()).ok())
            .unwrap_or_else(everywhere);
        let revision = (secret.version, object.metadata.generation.unwrap_or_default());
        let error = |kind| ProviderError::new(kind, "check the account", "no");
        if self.clouds[&secret.account].revoked {
            return Refresh::Failed(error(ErrorKind::Credentials));
        }
        if self.chance(self.odds.calls) {
            return Refresh::Failed(error(ErrorKind::Transient));
        }
        let used = self.process.fleet.used(&name, "").total;
        let recorded = self.process.fleet.of_provider(&name);
        if let Some(problem) = plan::other_account(object, used, &recorded, &secret.account)
            && !self.has(Fault::AccountsConfused)
        {
            return Refresh::Failed(problem);
        }
        let client = Client::new(secret.account.clone(), revision, regions.clone());
        let now = self.now;
        if plan::takes_over(object, &secret.account) {
            self.process.clients.remove(&name);
            self.process
                .taking_over
                .insert(name, (plan::shown_account(&secret.account), client));
            self.process.accounts_changed(now);
        } else if self
            .process
            .clients
            .get(&name)
            .is_none_or(|known| known.revision != revision)
        {
            self.process.clients.insert(name, client);
            self.process.accounts_changed(now);
        }
        if self.chance(self.odds.calls) {
            return Refresh::Failed(error(ErrorKind::Transient));
        }
        Refresh::Complete {
            account: secret.account,
            offers: kind.offers(&regions),
        }
    }

    /// Machines and resources of ours that the account still has.
    fn left(&mut self, provider: &Provider, answer: &Refresh, memory: &ProviderMemory) -> Left {
        let name = &provider.name_any();
        if !self.process.clients.contains_key(name) {
            let problem = match answer {
                Refresh::Failed(problem) => Some(problem),
                Refresh::NotAsked | Refresh::Complete { .. } => memory.problem.as_ref(),
            };
            return problem.map_or(Left::NotAsked, |problem| Left::Unknown(problem.to_string()));
        }
        let scope = Scope {
            cluster: "cluster".into(),
            pool_uid: None,
            namespace: None,
            regions: self.regions_of_pools(name).into_iter().collect(),
        };
        let lists = self
            .list(name, &scope)
            .and_then(|listed| Ok((listed, self.leftovers(name, &scope.regions)?)));
        self.perhaps_catch_up();
        match lists {
            Ok((listed, leftovers)) => {
                let process = &self.process;
                let machines = process.machines.values().map(AsRef::as_ref);
                let pools = process.pools.values().map(AsRef::as_ref);
                let providers = process.providers.values().map(AsRef::as_ref);
                let owners = Owners::of(provider, providers, machines, pools);
                deletion::left("cluster", &listed, &leftovers, &owners)
            }
            Err(error) => Left::Unknown(error.to_string()),
        }
    }

    fn carry_out(&mut self, mut provider: Arc<Provider>, plan: Plan) -> Result<Result<(), Refused>, Crashed> {
        let name = provider.name_any();
        let now = self.now;
        if plan.add_finalizer {
            self.boundary()?;
            match self.set_finalizer(&provider, true) {
                Ok(fresh) => provider = fresh,
                Err(refused) => return Ok(Err(refused)),
            }
        }
        for offer in plan.apply {
            let offer = Arc::new(offer);
            self.process.offers.apply(&offer);
            self.published.insert(offer.name_any(), offer);
            self.process.wake_pools_of(&name, now);
        }
        for gone in plan.delete {
            if let Some(offer) = self.published.remove(&gone) {
                self.process.offers.remove(&offer);
            }
            self.process.wake_pools_of(&name, now);
        }
        if let Some(status) = plan.status {
            self.boundary()?;
            let before = self.changed_at;
            let timeless = |status: &ProviderStatus| ProviderStatus {
                refreshed_at: None,
                ..status.clone()
            };
            let is_refresh = provider.status.as_ref().map(timeless) == Some(timeless(&status));
            let written = self.write(|server| {
                let write = |object: &mut Provider| object.status = Some(status);
                server.providers.write(&mut server.version, &provider, write)
            });
            if is_refresh {
                self.changed_at = before;
            }
            match written {
                Ok(fresh) => {
                    self.process.newest_providers.wrote(&provider, fresh.clone());
                    provider = fresh;
                }
                Err(refused) => return Ok(Err(refused)),
            }
        }
        for scope in plan.release {
            self.boundary()?;
            let _the_next_look_tells = self.release(&name, &scope);
        }
        if plan.remove_finalizer {
            self.boundary()?;
            match self.set_finalizer(&provider, false) {
                Ok(_) => {
                    self.process.clients.remove(&name);
                    self.process.accounts_changed(now);
                }
                Err(refused) => return Ok(Err(refused)),
            }
        }
        Ok(Ok(()))
    }

    fn set_finalizer(&mut self, provider: &Arc<Provider>, on: bool) -> Result<Arc<Provider>, Refused> {
        let fresh = self.write(|server| {
            server.providers.write(&mut server.version, provider, |object| {
                object.finalizers_mut().retain(|name| name != labels::FINALIZER);
                if on {
                    object.finalizers_mut().push(labels::FINALIZER.to_owned());
                }
            })
        })?;
        self.process.newest_providers.wrote(provider, fresh.clone());
        Ok(fresh)
    }
}
