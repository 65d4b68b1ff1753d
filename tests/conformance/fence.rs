//! A process that was paused and is no longer the leader changes nothing at any cloud, also not
//! between the look and the order that follows from it.

use std::{collections::BTreeSet, time::Duration};

use skyward_cloudsim::{Fault, Rule, core::cloud::Effect};
use skyward_conformance::{Bench, machine, pool};
use skyward_core::{ErrorKind, Market, error::ErrorClass};
use tokio::time::Instant;

use crate::{for_each, markets};

/// How long the Lease still lasts when a call begins.
const LASTS: Duration = Duration::from_secs(9);
/// Latency of a slow cloud: longer than the Lease lasts, and short enough that all calls before an order, of which RunPod's
/// spot market needs three, fit into the time of one operation.
const SLOW: Fault = Fault::Latency { millis: 10_000 };

/// Calls that the cloud got since its log was cleared and that may have changed something.
pub(crate) fn changes(bench: &Bench) -> BTreeSet<String> {
    let known = bench.sim.known_calls();
    let reads = |name: &str| {
        // The calls of AWS are all POST, and known by their names; so is a search of Vast.ai, which its description lacks.
        const READS: [&str; 5] = [
            "ssm.GetParameter",
            "pricing.GetProducts",
            "servicequotas.ListServiceQuotas",
            "sts.GetCallerIdentity",
            "offers.search",
        ];
        name.starts_with("ec2.Describe")
            || READS.contains(&name)
            || known
                .iter()
                .any(|call| call.name == name && call.effect == Effect::Read)
    };
    let requests = bench.sim.requests().into_iter();
    requests
        .filter(|entry| entry.method != "GET" && !reads(&entry.call))
        .map(|entry| entry.call)
        .collect()
}

#[test]
fn a_lease_that_runs_out_between_the_look_and_the_order_orders_nothing_at_any_cloud() {
    for_each(async |kind| {
        for market in markets(kind) {
            let bench = Bench::start(kind, None).await;
            let order = bench.order(market, 0).await;
            // Without a pause: the calls that this test is about are made.
            bench.sim.forget();
            let (running, _) = bench.bring_up(&order).await;
            assert!(
                changes(&bench).contains(bench.subject.create[&market]),
                "{kind} {market:?}: {:?}",
                changes(&bench)
            );
            bench.bring_down(&order, Some(&running.id)).await;
            bench.judge(kind);
            drop(bench);

            let bench = Bench::start(kind, None).await;
            let order = bench.order(market, 0).await;
            bench.sim.forget();
            bench.sim.fault(Rule::always("read", SLOW));
            bench.fence.open_until(Instant::now() + LASTS);
            let error = bench.provider.create(&order).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::NotLeading, "{kind} {market:?}: {error}");
            assert_eq!(
                error.kind.class(),
                ErrorClass::Retryable,
                "no refusal of the cloud"
            );
            assert_eq!(changes(&bench), BTreeSet::new(), "{kind} {market:?}");
            assert_eq!(bench.machines(), 0, "{kind} {market:?}");
        }
    });
}

#[test]
fn a_lease_that_runs_out_while_a_machine_is_looked_at_ends_and_returns_nothing_at_any_cloud() {
    for_each(async |kind| {
        let bench = Bench::start(kind, None).await;
        let order = bench.order(Market::OnDemand, 0).await;
        let (running, _) = bench.bring_up(&order).await;
        bench.sim.forget();
        bench.sim.fault(Rule::always("read", SLOW));
        let reference = machine(&order, Some(&running.id));
        for release in [false, true] {
            bench.fence.open_until(Instant::now() + LASTS);
            let answer = if release {
                bench.provider.release(&pool()).await
            } else {
                bench.provider.delete(&reference).await
            };
            // At a cloud where Pools share nothing, there is nothing to return.
            match answer {
                Ok(_) => assert!(release, "{kind}"),
                Err(error) => assert_eq!(error.kind, ErrorKind::NotLeading, "{kind}: {error}"),
            }
            assert_eq!(changes(&bench), BTreeSet::new(), "{kind}");
        }
        assert_eq!(bench.machines(), 1, "{kind}");
    });
}
