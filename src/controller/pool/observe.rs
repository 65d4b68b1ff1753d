//! Gathers the facts for a Pool's plan. Makes no decision.
//!
//! Everything comes from caches, except references (looked up at most every some
//! seconds) and, while a Pool is deleted, the provider's own list of machines.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{
    Api, ResourceExt,
    core::{Selector, SelectorExt},
    runtime::reflector::ObjectRef,
};
use skyward_api::{
    Machine, MachinePhase, Pool, Provider as ProviderObject,
    condition::{self, find},
    pool::PoolSpec,
};
use skyward_core::{Capabilities, MachineRef, Scope, Usd, clock};
use skyward_planner::{
    accounts::{
        cost::{Pseudonyms, spent_this_month},
        facts::{AccountFacts, NamespaceFacts, ProviderFacts},
        host_keys::are_proved,
        limits::standing,
        resolved::ResolvedProvider,
    },
    base::key::Key,
    pool::{
        facts::{
            MachineFacts, Observed, PoolFacts, RemainingMachines, machine_facts, ordered_from, pool_facts,
            providers_of, regions_at,
        },
        plan,
    },
};
use tokio::time::timeout;

use super::{
    environment::{EnvironmentCheck, environment},
    references::{ReferenceCheck, Unusable, all_references, unusable_references},
};
use crate::{accounts::fleet::Reserved, context::Context};

/// A Machine that the watch has not shown yet.
pub(crate) fn reserved_facts(name: String, reserved: Reserved) -> MachineFacts {
    MachineFacts {
        name,
        uid: None,
        slot: reserved.slot,
        attempt: reserved.attempt,
        phase: MachinePhase::Ordered,
        ready: false,
        deleting: false,
        current: true,
        changing: false,
        environment: None,
        provisioned: false,
        ordered_at: None,
        ready_at: None,
        failure: None,
        runs: None,
        address: String::new(),
        hourly_price: Usd::ZERO,
        place: reserved.place,
        reclaimed: false,
        bill: None,
        proves_host_key: false,
        refused: false,
        perhaps_ordered: false,
        market: reserved.market,
        accelerator: reserved.accelerator,
        concern: None,
    }
}

/// Gathers the facts.
pub(super) async fn observe(
    context: &Context,
    references: &mut Option<ReferenceCheck>,
    known: &mut Option<EnvironmentCheck>,
    pool: &Pool,
) -> Observed {
    let facts = pool_facts(pool, context.resolved.of(pool));
    let key = Key::new(facts.namespace.clone(), facts.name.clone());
    let load = context.loads.load(&key);
    let (shown, reserved) = context.fleet.of_pool(&facts.uid);
    let mut machines: Vec<MachineFacts> = shown
        .iter()
        .map(|machine| MachineFacts {
            perhaps_ordered: context
                .fleet
                .perhaps_ordered(machine.metadata.uid.as_deref().unwrap_or_default()),
            ..machine_facts(machine, &facts.resolved, load.as_ref())
        })
        .collect();
    machines.extend(
        reserved
            .into_iter()
            .map(|(key, reserved)| reserved_facts(key.name, reserved)),
    );
    machines.sort_by_key(|machine| (machine.slot, machine.attempt));
    let mut unread = context.caches.unreadable.of_pool(&facts.uid);
    unread.retain(|unread| !machines.iter().any(|machine| machine.name == unread.name));

    let providers = facts
        .spec
        .providers()
        .into_iter()
        .map(|name| (name.to_owned(), provider_facts(context, &facts.namespace, name)))
        .collect();
    let namespace = namespace_facts(context, &facts.namespace);
    let offers = facts
        .spec
        .providers()
        .into_iter()
        .map(|name| (name.to_owned(), context.offers.of(name)))
        .collect();
    let leftovers = if facts.deleting_since.is_some() && machines.is_empty() && facts.status.last_attempt > 0
    {
        leftovers(context, &facts).await
    } else {
        RemainingMachines::NotAsked
    };
    let has_references = !all_references(&facts.spec).is_empty();
    // Without rights in the namespace a look would only be refused.
    let may_look = facts.deleting_since.is_none() && namespace != NamespaceFacts::NotServed;
    let unusable = if !may_look || !has_references {
        Ok(Unusable::default())
    } else {
        unusable_references(context, &facts, references).await
    };
    let environment = if may_look {
        environment(context, &facts, known).await
    } else {
        None
    };
    let versions = unusable.as_ref().ok().map(|found| found.versions.as_str());
    let versions = versions.filter(|_| may_look || !has_references);
    let tried_with = plan::bootstraps::tried_with(&facts.spec, versions, &generations(context, &facts.spec));
    let (missing_references, too_large_references) = match unusable {
        Ok(Unusable {
            missing, too_large, ..
        }) => (Ok(missing), too_large),
        Err(why) => (Err(why), None),
    };
    Observed {
        cluster: context.cluster.clone(),
        pool: facts,
        machines,
        load,
        providers,
        namespace,
        missing_references,
        too_large_references,
        tried_with,
        has_references,
        environment,
        offers,
        unavailable: context.unavailable.now(),
        architectures: context.architectures.clone(),
        leftovers,
        refusal: None,
        unread,
        nonce: rand::random(),
    }
}

/// Generations of the Providers that a Pool names; `None` of one that does not exist.
fn generations(context: &Context, spec: &PoolSpec) -> BTreeMap<String, Option<i64>> {
    let generation = |name: &str| context.caches.provider(name)?.metadata.generation;
    let names = spec.providers().into_iter();
    names.map(|name| (name.to_owned(), generation(name))).collect()
}

fn account_facts(context: &Context, name: &str, provider: Option<&ProviderObject>) -> AccountFacts {
    let Some(provider) = provider else {
        let mut existing = context.provider_names();
        existing.sort();
        return AccountFacts::NotFound(existing);
    };
    if provider.metadata.deletion_timestamp.is_some() {
        return AccountFacts::Deleting;
    }
    if context.holds.is_held(name) {
        return AccountFacts::NotReady(format!(
            "Provider \"{name}\" is held: this cluster remembers less than its machines (condition RestoreDetected)"
        ));
    }
    let conditions = provider
        .status
        .as_ref()
        .map(|status| status.conditions.as_slice())
        .unwrap_or_default();
    let is_known = context.holds.is_settled(std::iter::once(&name.to_owned()));
    match find(conditions, condition::READY) {
        // Before the account's first list a restored Pool could count attempts that it has
        // forgotten.
        Some(ready) if ready.status == "True" && !is_known => AccountFacts::NotReady(format!(
            "Provider \"{name}\" has not listed its machines yet since the controller started"
        )),
        Some(ready) if ready.status == "True" && context.providers.get(name).is_some() => AccountFacts::Ready,
        Some(ready) if ready.status == "True" => AccountFacts::NotReady(format!(
            "Provider \"{name}\" was not checked yet since the controller started"
        )),
        Some(ready) => AccountFacts::NotReady(format!("Provider \"{name}\" is not ready: {}", ready.message)),
        None => AccountFacts::NotReady(format!("Provider \"{name}\" was not checked yet")),
    }
}

pub(crate) fn provider_facts(context: &Context, namespace: &str, name: &str) -> ProviderFacts {
    let provider = context.caches.provider(name);
    let spec = provider.as_ref().map(|provider| &provider.spec);
    let labels = context.caches.namespaces.get(&ObjectRef::new(namespace));
    let client = context.providers.get(name);
    let limits = spec.and_then(|spec| spec.limits.as_ref());
    let standing = standing(limits, labels.as_ref().map(|namespace| namespace.labels()));
    let month = |limit: Option<Usd>, namespace: Option<&str>| {
        Some((limit?, spent(context, provider.as_deref()?, namespace)))
    };
    let seconds = |time: fn(&Capabilities) -> Duration| {
        client.as_ref().map_or(0, |client| {
            u32::try_from(time(client.provider.capabilities()).as_secs()).unwrap_or(u32::MAX)
        })
    };
    ProviderFacts {
        billing_step_seconds: seconds(|capabilities| capabilities.billing_step),
        billing_minimum_seconds: seconds(|capabilities| capabilities.billing_minimum),
        idle_timeout: spec.and_then(|spec| ResolvedProvider::of(spec).idle_timeout),
        proves_host_keys: spec.zip(client.as_ref()).is_some_and(|(spec, client)| {
            are_proved(
                ResolvedProvider::of(spec).host_key_policy,
                client.provider.capabilities().host_keys,
            )
        }),
        marketplace: client
            .as_ref()
            .is_some_and(|client| client.provider.capabilities().marketplace),
        unpriced: client
            .as_ref()
            .is_some_and(|client| client.provider.capabilities().unpriced),
        account: account_facts(context, name, provider.as_deref()),
        account_id: provider
            .as_ref()
            .and_then(|provider| provider.status.as_ref())
            .map(|status| status.account.clone())
            .unwrap_or_default(),
        admits: match (spec, &labels) {
            (Some(spec), Some(namespace)) => match Selector::try_from(spec.allowed_namespaces.clone()) {
                Ok(selector) if selector.matches(namespace.labels()) => Ok(()),
                Ok(_) | Err(_) => Err(describe_selector(&spec.allowed_namespaces)),
            },
            (None, _) | (_, None) => Ok(()),
        },
        own_nodes: spec.is_some_and(|spec| spec.container.is_some()),
        overridable: spec
            .map(|spec| spec.overridable.iter().cloned().collect())
            .unwrap_or_default(),
        limits: standing.limits,
        used: context.fleet.used(name, namespace),
        month: month(standing.monthly, None),
        month_in_namespace: month(standing.monthly_in_namespace, Some(namespace)),
    }
}

/// Spending of this month at a Provider, in all or of one namespace.
fn spent(context: &Context, provider: &ProviderObject, namespace: Option<&str>) -> Usd {
    let cost = provider.status.as_ref().and_then(|status| status.cost.as_ref());
    let machines = context.fleet.of_provider(&provider.name_any());
    let namespace = namespace.map(|namespace| (namespace, &context.seal as &dyn Pseudonyms));
    spent_this_month(cost, &machines, namespace, clock::now())
}

pub(crate) fn namespace_facts(context: &Context, name: &str) -> NamespaceFacts {
    match context.caches.namespaces.get(&ObjectRef::new(name)) {
        _ if !context.config.serves(name) => NamespaceFacts::NotServed,
        None => NamespaceFacts::Unknown,
        Some(namespace) if namespace.metadata.deletion_timestamp.is_some() => NamespaceFacts::Terminating,
        Some(_) => NamespaceFacts::Active,
    }
}

/// A selector as `kubectl -l` takes it.
fn describe_selector(selector: &LabelSelector) -> String {
    Selector::try_from(selector.clone())
        .map_or_else(|error| format!("(not a selector: {error})"), |s| s.to_string())
}

/// Longest wait for the list of a Provider that the Pool ordered from.
const ORDERED: Duration = Duration::from_secs(30);
/// Longest wait for a Provider that is asked only to be sure: the Pool's other clouds wait for it
/// in each look.
const NAMED: Duration = Duration::from_secs(5);

async fn leftovers(context: &Context, pool: &PoolFacts) -> RemainingMachines {
    let mut machines = Vec::new();
    let mut asked = false;
    for name in providers_of(pool) {
        if context.caches.provider(&name).is_none() {
            continue;
        }
        asked = true;
        match listed(context, pool, &name).await {
            Ok(listed) => machines.extend(listed),
            Err(why) if ordered_from(pool, &name) => return RemainingMachines::Unknown(why),
            Err(_) => {}
        }
    }
    if asked {
        RemainingMachines::Known(machines)
    } else {
        RemainingMachines::NoProvider
    }
}

/// The machines of a Pool that one Provider still lists.
async fn listed(
    context: &Context,
    pool: &PoolFacts,
    name: &str,
) -> Result<Vec<(String, MachineRef)>, String> {
    let account = context
        .providers
        .get(name)
        .ok_or_else(|| format!("Provider \"{name}\" is not ready"))?;
    let scope = Scope {
        cluster: context.cluster.clone(),
        pool_uid: Some(pool.uid.clone()),
        namespace: Some(pool.namespace.clone()),
        regions: regions_at(pool, name),
    };
    let deadline = if ordered_from(pool, name) { ORDERED } else { NAMED };
    let listed = timeout(deadline, account.provider.list(&scope))
        .await
        .map_err(|_| format!("Provider \"{name}\" did not list its machines in time"))?
        .map_err(|error| format!("Provider \"{name}\": {error}"))?;
    Ok(listed
        .into_iter()
        .map(|machine| {
            let reference = MachineRef {
                id: Some(machine.id),
                mark: machine.mark,
                region: machine.rental.region.unwrap_or_default(),
                started: false,
            };
            (name.to_owned(), reference)
        })
        .collect())
}

/// A Machine that the watch has not shown for long: does it exist? `None` = not known.
pub async fn look_up(context: &Context, key: &Key) -> Option<Option<Arc<Machine>>> {
    let api: Api<Machine> = Api::namespaced(context.client.clone(), &key.namespace);
    Some(api.get_opt(&key.name).await.ok()?.map(Arc::new))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_the_watch_has_not_shown_is_named_with_its_place_and_its_accelerator() {
        let spec = serde_json::from_value(serde_json::json!({
            "pool": "train", "poolUid": "uid", "slot": 0, "attempt": 1, "provider": "local", "offer": "o",
            "instanceType": "x", "market": "OnDemand", "hourlyPrice": "0", "token": "t", "templateHash": "h",
            "grantedAccelerator": { "name": "H100", "count": 1 }
        }))
        .unwrap();
        let facts = reserved_facts("m".into(), Reserved::of("uid", &spec));
        assert_eq!(
            (facts.place.provider.as_str(), facts.accelerator.as_str()),
            ("local", "H100")
        );
    }
}
