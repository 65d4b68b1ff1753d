//! Gathers what a Machine's plan may know. Makes no decision.

use std::time::Duration;

use jiff::Timestamp;
use kube::{ResourceExt, runtime::reflector::ObjectRef};
use skyward_api::{Machine, Pool, Provider as ProviderObject};
use tokio::time::timeout;

use crate::{
    accounts::fleet::beyond,
    base::key::Key,
    context::Context,
    pool::{
        choice::candidate::template_hashes,
        observe::{namespace_facts, provider_facts},
        plan::cost::of_budget,
    },
};

use super::facts::{Looked, LookupOutcome, MachineMemory, Observed, Outcomes, Terms, machine_facts, runs};

/// Longest wait for a provider's answer.
const DEADLINE: Duration = Duration::from_secs(30);

/// Gathers.
pub async fn observe(
    context: &Context,
    machine: &Machine,
    memory: &mut MachineMemory,
    outcomes: Outcomes,
) -> Observed {
    let facts = machine_facts(machine);
    let pool = context
        .caches
        .pools
        .get(&ObjectRef::new(&facts.spec.pool).within(&facts.namespace))
        .filter(|pool| pool.uid().as_deref() == Some(facts.spec.pool_uid.as_str()));
    let provider = context
        .caches
        .providers
        .get(&ObjectRef::<ProviderObject>::new(&facts.spec.provider));
    let client = context
        .providers
        .get(&facts.spec.provider)
        .map(|account| account.provider);
    let asked_at = Timestamp::now();
    let answer = match client.as_ref().filter(|_| facts.is_asked_about()) {
        None => LookupOutcome::Unknown(None),
        Some(client) => match timeout(DEADLINE, client.get(&facts.reference(&context.cluster))).await {
            Ok(answer) => {
                if let Err(error) = &answer {
                    memory.heard(error, Timestamp::now());
                }
                LookupOutcome::of(answer)
            }
            Err(_) => LookupOutcome::Unknown(Some("the provider did not answer in time".to_owned())),
        },
    };
    let pool_key = Key::new(facts.namespace.clone(), facts.spec.pool.clone());
    let kind = provider.as_deref().and_then(|provider| provider.spec.account());
    let looked = Looked {
        terms: facts
            .may_be_ordered()
            .then(|| Terms::read(context, machine, pool.as_deref())),
        kind: kind.and_then(|(kind, _)| (context.capabilities)(kind)),
        current: pool
            .as_ref()
            .is_some_and(|pool| template_hashes(&pool.spec).contains(&facts.spec.template_hash)),
        pool,
        provider: provider.as_deref(),
        capabilities: client.as_ref().map(|client| client.capabilities()),
        tells_changes: client.as_ref().is_some_and(|client| client.changes().is_some()),
        answer,
        asked_at,
        session: context.sessions.state(&facts.session_key()),
        runs: runs(&context.loads, &pool_key, &facts),
        outcomes,
        machine,
        facts,
    };
    looked.observed(memory, Timestamp::now())
}

impl Terms {
    /// As they are now.
    pub(crate) fn read(context: &Context, machine: &Machine, pool: Option<&Pool>) -> Self {
        let (spec, namespace) = (&machine.spec, machine.namespace().unwrap_or_default());
        let provider = context
            .caches
            .providers
            .get(&ObjectRef::<ProviderObject>::new(&spec.provider));
        let (machines, _) = context.fleet.of_pool(&spec.pool_uid);
        Self {
            namespace: namespace_facts(context, &namespace),
            provider: provider_facts(context, &namespace, &spec.provider),
            provider_goes: provider.is_some_and(|provider| provider.metadata.deletion_timestamp.is_some()),
            beyond: beyond(machine),
            budget: pool.and_then(|pool| of_budget(pool, &machines, Timestamp::now())),
        }
    }
}
