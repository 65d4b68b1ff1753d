//! Providers are looked at.

use super::*;

impl World {
    pub(super) fn look_at_provider(&mut self, name: &str) -> bool {
        let shown = self.shown(name);
        let Some(object) = self.clouds[name].object.clone() else {
            return false;
        };
        let machines = shown.len() as u32;
        let cloud = self.clouds.get_mut(name).unwrap();
        let (mut memory, secret) = (std::mem::take(&mut cloud.memory), cloud.secret.to_string());
        let answer = if provider::is_due(&object, &memory, Some(&secret), self.now) {
            let other = |account: &String| provider::other_account(&object, machines, &shown, account);
            match &cloud.account {
                Ok(account) => match other(account) {
                    Some(problem) => Refresh::Failed(problem),
                    None => Refresh::Complete {
                        account: account.clone(),
                        offers: cloud.offers.clone(),
                    },
                },
                Err(problem) => Refresh::Failed(problem.clone()),
            }
        } else {
            Refresh::NotAsked
        };
        let listed: Vec<ProviderMachine> = cloud
            .machines
            .values()
            .map(|(machine, _)| machine.clone())
            .collect();
        let left = match &cloud.account {
            Ok(_) => {
                let recorded = shown.iter().map(AsRef::as_ref);
                let owners = Owners::of(&object, [&object], recorded, &self.pool);
                deletion::left(CLUSTER, &listed, &[], &owners)
            }
            Err(problem) => Left::Unknown(problem.to_string()),
        };
        let written: Vec<Arc<OfferObject>> = cloud.written.values().cloned().collect();
        let observed = provider::Observed {
            verdict: Verdict::default(),
            provider: Arc::new(object.clone()),
            machines,
            shown,
            barred: self.unavailable.barred(name, self.now),
            offers: written,
            answer,
            left,
            capabilities: Some(cloud.capabilities.clone()),
        };
        let plan = provider::plan(&observed, &mut memory, &Unchanged, self.now);
        cloud.memory = ProviderMemory { secret, ..memory };
        for gone in &plan.delete {
            cloud.written.remove(gone);
        }
        for offer in &plan.apply {
            cloud.written.insert(offer.name_any(), Arc::new(offer.clone()));
        }
        let old = object.status.clone().unwrap_or_default();
        if let Some(object) = &mut cloud.object
            && let Some(status) = &plan.status
        {
            object.status = Some(status.clone());
        }
        if plan.remove_finalizer {
            cloud.object = None;
        }
        let timeless = |status: &skyward_api::ProviderStatus| skyward_api::ProviderStatus {
            refreshed_at: None,
            cost: None,
            machines: 0,
            ..status.clone()
        };
        let is_news = plan
            .status
            .as_ref()
            .is_some_and(|new| timeless(new) != timeless(&old));
        let acts = plan.add_finalizer
            || plan.remove_finalizer
            || plan.event.is_some()
            || !plan.apply.is_empty()
            || !plan.delete.is_empty()
            || !plan.release.is_empty();
        if is_news || acts || (self.tells_providers && plan.status.is_some()) {
            self.tell(&format!("Provider {name}"), &render::provider(&old, &plan));
        }
        self.schedule(&format!("Provider {name}"), Next::After(plan.again));
        acts || plan.status.is_some()
    }

    pub(super) fn provider_facts(&self, name: &str) -> ProviderFacts {
        let cloud = self.clouds.get(name);
        let object = cloud.and_then(|cloud| cloud.object.as_ref());
        let conditions = object.and_then(|object| object.status.as_ref());
        let ready = conditions.and_then(|status| find(&status.conditions, READY));
        let account = match (object, ready) {
            (None, _) => {
                let there = self.clouds.iter().filter(|(_, cloud)| cloud.object.is_some());
                AccountFacts::NotFound(there.map(|(name, _)| name.clone()).collect())
            }
            (Some(object), _) if object.metadata.deletion_timestamp.is_some() => AccountFacts::Deleting,
            (_, Some(ready)) if ready.status == "True" => AccountFacts::Ready,
            (_, Some(ready)) => {
                AccountFacts::NotReady(format!("Provider \"{name}\" is not ready: {}", ready.message))
            }
            (_, None) => AccountFacts::NotReady(format!("Provider \"{name}\" was not checked yet")),
        };
        let standing = standing(
            object.and_then(|object| object.spec.limits.as_ref()),
            Some(&BTreeMap::new()),
        );
        let shown = self.shown(name);
        let cost = object.and_then(|object| object.status.as_ref()?.cost.as_ref());
        let month = |limit: Option<Usd>, namespace: Option<&str>| {
            let namespace = namespace.map(|namespace| (namespace, &Unchanged as &dyn Pseudonyms));
            Some((limit?, spent_this_month(cost, &shown, namespace, self.now)))
        };
        let seconds = |time: fn(&Capabilities) -> Duration| {
            cloud.map_or(0, |cloud| time(&cloud.capabilities).as_secs() as u32)
        };
        ProviderFacts {
            account,
            account_id: "acme".into(),
            admits: cloud.map_or(Ok(()), |cloud| cloud.admits.clone()),
            own_nodes: false,
            overridable: object
                .map(|object| object.spec.overridable.iter().cloned().collect())
                .unwrap_or_default(),
            limits: standing.limits,
            used: self.used(name),
            month: month(standing.monthly, None),
            month_in_namespace: month(standing.monthly_in_namespace, Some("team")),
            billing_step_seconds: seconds(|capabilities| capabilities.billing_step),
            billing_minimum_seconds: seconds(|capabilities| capabilities.billing_minimum),
            proves_host_keys: object.zip(cloud).is_some_and(|(object, cloud)| {
                are_proved(
                    ResolvedProvider::of(&object.spec).host_key_policy,
                    cloud.capabilities.host_keys,
                )
            }),
            idle_timeout: None,
            marketplace: cloud.is_some_and(|cloud| cloud.capabilities.marketplace),
            unpriced: cloud.is_some_and(|cloud| cloud.capabilities.unpriced),
        }
    }
}
