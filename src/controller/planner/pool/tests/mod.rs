//! Tables over the Pool's plan, by subject, and properties that hold for every world.

mod accelerators;
mod admission;
mod autoscale;
mod bootstraps;
mod failures;
mod giving_up;
mod loads;
mod market;
mod money;
mod ordering;
mod properties;
mod rollout;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use rstest::rstest;
use skyward_api::{
    MachinePhase,
    condition::{READY, RECONCILING, STALLED, find, reason},
    environment::{MachineEnvironment, PoolEnvironment},
    machine::Market,
    offer::Architecture,
    pool::{Place, PoolPhase, PoolSpec, PoolStatus},
};
use skyward_core::{MachineRef, Mark, Usd};

use super::{
    choice::candidate::template_hashes,
    facts::{Failure, MachineFacts, Observed, PoolFacts, Refusal, RemainingMachines},
    plan::{
        audit::audit,
        draft::{Action, Plan, Why},
    },
    resolved::ResolvedPool,
};
use crate::{
    accounts::{
        facts::{AccountFacts, NamespaceFacts, ProviderFacts},
        offers::{OfferIndex, tests::offer},
        quota::{Quota, Used},
        unavailable::{REMEMBERED, Unavailable, UnavailableOfferings},
    },
    base::requeue::Next,
    pool::load::PoolLoad,
};

const NOW: i64 = 100_000;

pub(crate) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// A Pool that wants that many machines, in a world in which all is well.
pub(crate) fn world(desired: u32) -> Observed {
    let spec: PoolSpec =
        serde_json::from_value(serde_json::json!({ "provider": "local", "nodes": { "desired": desired } }))
            .unwrap();
    Observed {
        cluster: "cluster".into(),
        pool: PoolFacts {
            namespace: "team".into(),
            name: "train".into(),
            uid: "0a1b2c3d-0000".into(),
            generation: 1,
            created_at: at(0),
            deleting_since: None,
            finalizer: true,
            resolved: Arc::new(ResolvedPool::of(&spec)),
            spec,
            status: PoolStatus {
                observed_generation: Some(1),
                last_attempt: 100,
                environment: Some(PoolEnvironment {
                    hash: "a".into(),
                    proven: true,
                    ..PoolEnvironment::default()
                }),
                ..PoolStatus::default()
            },
        },
        machines: Vec::new(),
        load: Some(PoolLoad::default()),
        providers: BTreeMap::from([("local".to_owned(), provider())]),
        namespace: NamespaceFacts::Active,
        missing_references: Ok(Vec::new()),
        tried_with: Some("as at first".into()),
        too_large_references: None,
        has_references: false,
        environment: Some("a".into()),
        offers: BTreeMap::from([(
            "local".to_owned(),
            Arc::new(OfferIndex::of([offer("local-x", serde_json::json!({}))])),
        )]),
        unavailable: Arc::default(),
        architectures: [Architecture::Amd64, Architecture::Arm64].into(),
        leftovers: RemainingMachines::NotAsked,
        refusal: None,
        unread: Vec::new(),
        nonce: 7,
    }
}

/// A Provider that can be used without limits.
pub(crate) fn provider() -> ProviderFacts {
    ProviderFacts {
        account: AccountFacts::Ready,
        account_id: "acme".into(),
        admits: Ok(()),
        own_nodes: false,
        overridable: BTreeSet::new(),
        limits: Quota::default(),
        used: Used::default(),
        month: None,
        month_in_namespace: None,
        billing_step_seconds: 1,
        billing_minimum_seconds: 0,
        marketplace: false,
        unpriced: false,
        proves_host_keys: false,
        idle_timeout: None,
    }
}

fn of_local(seen: &mut Observed) -> &mut ProviderFacts {
    seen.providers.get_mut("local").unwrap()
}

pub(crate) fn ready(slot: u32) -> MachineFacts {
    MachineFacts {
        name: format!("m-{slot}"),
        uid: Some(format!("uid-{slot}")),
        slot,
        attempt: slot + 1,
        phase: MachinePhase::Ready,
        ready: true,
        deleting: false,
        current: true,
        changing: false,
        environment: Some(MachineEnvironment {
            hash: "a".into(),
            ..MachineEnvironment::default()
        }),
        provisioned: true,
        ordered_at: Some(at(900)),
        ready_at: Some(at(1_000)),
        failure: None,
        runs: Some(0),
        address: format!("10.0.0.{slot}"),
        hourly_price: Usd::ZERO,
        place: Place {
            provider: "local".into(),
            region: String::new(),
        },
        proves_host_key: false,
        refused: false,
        perhaps_ordered: false,
        market: Market::OnDemand,
        accelerator: String::new(),
        reclaimed: false,
        bill: None,
        concern: None,
    }
}

fn booting(slot: u32) -> MachineFacts {
    MachineFacts {
        phase: MachinePhase::Accepted,
        ready: false,
        provisioned: false,
        ready_at: None,
        address: String::new(),
        concern: Some((reason::BOOTING.into(), "it boots".into())),
        ..ready(slot)
    }
}

fn failed(slot: u32, when: i64) -> MachineFacts {
    MachineFacts {
        phase: MachinePhase::Failed,
        failure: Some(Failure {
            at: at(when),
            reason: reason::IMAGE_PULL_FAILED.into(),
            message: "image \"x\" cannot be pulled".into(),
            bootstrap: None,
        }),
        ..booting(slot)
    }
}

fn busy(slot: u32) -> MachineFacts {
    MachineFacts {
        runs: Some(2),
        ..ready(slot)
    }
}

/// What is seen, after a test changed the spec.
fn resolved(seen: &Observed) -> Observed {
    let mut seen = seen.clone();
    seen.pool.resolved = Arc::new(ResolvedPool::of(&seen.pool.spec));
    seen
}

fn plan(seen: &Observed, now: Timestamp) -> Plan {
    super::plan::plan(&resolved(seen), now)
}

fn decide(seen: &Observed) -> Plan {
    decide_at(seen, NOW)
}

fn decide_at(seen: &Observed, now: i64) -> Plan {
    let plan = plan(seen, at(now));
    assert_eq!(audit(&resolved(seen), &plan), Vec::<String>::new(), "{plan:#?}");
    plan
}

fn created(plan: &Plan) -> Vec<u32> {
    let slot = |action: &Action| match action {
        Action::CreateMachine { spec, .. } => Some(spec.slot),
        _ => None,
    };
    plan.actions.iter().filter_map(slot).collect()
}

fn deleted(plan: &Plan) -> Vec<(String, Why, bool)> {
    let name = |action: &Action| match action {
        Action::DeleteMachine {
            name,
            why,
            finish_runs,
            ..
        } => Some((name.clone(), *why, *finish_runs)),
        _ => None,
    };
    plan.actions.iter().filter_map(name).collect()
}

fn deleted_names(plan: &Plan) -> Vec<String> {
    deleted(plan).into_iter().map(|(name, _, _)| name).collect()
}

fn condition(plan: &Plan, type_: &str) -> Option<(String, String, String)> {
    find(&plan.status.conditions, type_).map(|c| (c.status.clone(), c.reason.clone(), c.message.clone()))
}
