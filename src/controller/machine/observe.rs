//! Gathers the facts for a Machine's plan. Makes no decision.

use kube::ResourceExt;
use skyward_api::{Machine, Pool};
use skyward_core::clock;
use skyward_planner::{
    accounts::quota::beyond,
    base::key::Key,
    machine::facts::{
        Asked, Looked, LookupOutcome, MachineFacts, MachineMemory, Observed, Outcomes, Terms, machine_facts,
    },
    pool::{environment::has_turn, plan::cost::of_budget, resolved::Timeouts},
};

use crate::{
    context::Context,
    hints::pool_loads::PoolLoads,
    pool::observe::{namespace_facts, provider_facts},
};

/// Gathers the facts.
pub async fn observe(
    context: &Context,
    machine: &Machine,
    memory: &mut MachineMemory,
    outcomes: Outcomes,
) -> Observed {
    let facts = machine_facts(machine);
    let pool_key = Key::new(facts.namespace.clone(), facts.spec.pool.clone());
    let pool = context
        .caches
        .pool(&pool_key)
        .filter(|pool| pool.uid().as_deref() == Some(facts.spec.pool_uid.as_str()));
    let provider = context.caches.provider(&facts.spec.provider);
    let client = context
        .providers
        .get(&facts.spec.provider)
        .map(|account| account.provider);
    let asked_at = clock::now();
    let answer = match client.as_ref().filter(|_| facts.is_asked_about()) {
        None => LookupOutcome::Unknown(None),
        Some(client) => {
            let answer = client.get(&facts.reference(&context.cluster)).await;
            if let Err(error) = &answer {
                memory.heard(error, clock::now());
            }
            LookupOutcome::of(answer)
        }
    };
    let kind = provider.as_deref().and_then(|provider| provider.spec.account());
    let resolved = pool.as_deref().map(|pool| context.resolved.of(pool));
    let runs = runs(&context.loads, &pool_key, &facts, pool.as_deref());
    let looked = Looked {
        terms: facts
            .may_be_ordered()
            .then(|| read_terms(context, machine, pool.as_deref())),
        kind: kind.and_then(|(kind, _)| (context.capabilities)(kind)),
        timeouts: resolved
            .as_ref()
            .map_or_else(Timeouts::default, |pool| pool.timeouts),
        current: resolved.as_ref().is_some_and(|pool| pool.asks_for(machine)),
        asked: resolved.as_ref().and_then(|pool| Asked::of(pool, machine)),
        pool,
        provider: provider.as_deref(),
        capabilities: client.as_ref().map(|client| client.capabilities()),
        tells_changes: client.as_ref().is_some_and(|client| client.changes().is_some()),
        answer,
        asked_at,
        session: context.sessions.state(&facts.session_key()),
        runs,
        outcomes,
        machine,
        facts,
    };
    looked.observed(memory, clock::now())
}

/// The terms that an order must satisfy, as they are now.
pub(crate) fn read_terms(context: &Context, machine: &Machine, pool: Option<&Pool>) -> Terms {
    let (spec, namespace) = (&machine.spec, machine.namespace().unwrap_or_default());
    let provider = context.caches.provider(&spec.provider);
    let (machines, _) = context.fleet.of_pool(&spec.pool_uid);
    Terms {
        namespace: namespace_facts(context, &namespace),
        provider: provider_facts(context, &namespace, &spec.provider),
        provider_goes: provider.is_some_and(|provider| provider.metadata.deletion_timestamp.is_some()),
        beyond: beyond(machine),
        budget: pool.and_then(|pool| of_budget(pool, &machines, clock::now())),
    }
}

/// Runs that hold a machine. A machine that goes, or whose turn it is to change its environment, is free of them
/// only when its dispatcher knows that it gets no more.
pub(crate) fn runs(loads: &PoolLoads, key: &Key, facts: &MachineFacts, pool: Option<&Pool>) -> Option<u32> {
    if facts.deleting_since.is_some() || has_turn(pool, &facts.name) {
        loads.runs_left_on(key, &facts.name)
    } else {
        loads.runs_on(key, &facts.name)
    }
}
