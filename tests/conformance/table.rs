//! What the table of kinds says of each cloud, so far as its simulator can tell: regions, what is swept, and what
//! a halted machine costs.

use std::collections::BTreeSet;
use std::time::Duration;

use skyward_cloudsim::{Fault, Rule};
use skyward_conformance::{ACCOUNT, Bench, scope};
use skyward_core::{
    Market,
    provider::{Halted, Regions},
};

use crate::for_each;

#[test]
fn what_an_account_keeps_beside_machines_is_said_to_be_swept() {
    for_each(async |kind| {
        let bench = Bench::start(kind, None).await;
        let said: BTreeSet<&str> = bench.provider.capabilities().swept.iter().copied().collect();
        let order = bench.order(Market::OnDemand, 0).await;
        let (running, _) = bench.bring_up(&order).await;
        let left = async || {
            let left = bench.provider.leftovers(&scope()).await.unwrap();
            left.into_iter().map(|left| left.kind).collect::<BTreeSet<&str>>()
        };
        let with_it = left().await;
        bench.end(&order, Some(&running.id)).await;
        let mut kinds = left().await;
        kinds.extend(with_it);
        assert!(
            kinds.is_subset(&said),
            "{kind}: {kinds:?} are found, {said:?} are said"
        );
        bench.bring_down(&order, Some(&running.id)).await;
    });
}

#[test]
fn offers_are_of_the_regions_that_are_said() {
    for_each(async |kind| {
        let bench = Bench::start(kind, None).await;
        let Regions::Known(said) = bench.provider.capabilities().regions else {
            return;
        };
        for offer in bench.provider.offers().await.unwrap() {
            assert!(said.contains(&offer.region.as_str()), "{kind}: {}", offer.region);
        }
    });
}

#[test]
fn a_halted_machine_costs_what_is_said() {
    for_each(async |kind| {
        let bench = Bench::start(kind, None).await;
        let order = bench.order(Market::OnDemand, 0).await;
        let create = bench.subject.create[&Market::OnDemand];
        bench.sim.fault(Rule::once(create, Fault::Halts { after: 900 }));
        bench.bring_up(&order).await;
        let hourly = || bench.sim.meter(|meter| meter.hourly(ACCOUNT));
        let running = hourly();
        bench.pass(Duration::from_mins(16)).await;
        match bench.provider.capabilities().halted {
            // The table has no word for it: GPUs and disk cost on, vCPUs and memory do not.
            Halted::Full if kind == "tensordock" => {
                assert!(hourly() < running && hourly() + hourly() > running);
            }
            Halted::Full => assert_eq!(hourly(), running, "{kind}"),
            // A host of Vast.ai that loses a container is simulated as one that bills it on.
            Halted::Disk | Halted::Nothing if kind == "vastai" => {}
            Halted::Disk | Halted::Nothing => assert!(hourly() < running, "{kind}"),
        }
    });
}
