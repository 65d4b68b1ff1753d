//! Tokens that the cloud already knows: of an order whose machine has ended, or, in a restored
//! cluster, of another machine.

use std::time::Duration;

use jiff::SignedDuration;
use serde_json::json;
use skyward_cloudsim::{Fault, Rule, When};
use skyward_conformance::{Bench, can_be_tried, connect, mark};
use skyward_core::{ErrorKind, Market, Order, Provider, Secret};
use tokio::time::{Instant, sleep};

use crate::{for_each, in_virtual_time};

#[test]
fn p2_an_order_whose_machine_has_ended_is_answered_by_one_that_has_not() {
    for_each(async |kind| {
        let bench = Bench::start(kind, None).await;
        let order = bench.order(Market::OnDemand, 0).await;
        let (first, _) = bench.bring_up(&order).await;
        bench.end(&order, Some(&first.id)).await;
        let (second, refused) = bench.bring_up(&order).await;
        assert_ne!(first.id, second.id, "{kind}: {refused:?}");
        bench.bring_down(&order, Some(&second.id)).await;
        bench.judge(kind);
    });
}

#[test]
fn p2_an_order_with_the_token_of_another_machine_succeeds_within_a_minute() {
    if !can_be_tried("aws") {
        return;
    }
    in_virtual_time(async || {
        let bench = Bench::start("aws", None).await;
        let first = bench.order(Market::OnDemand, 0).await;
        let (running, _) = bench.bring_up(&first).await;
        bench.end(&first, Some(&running.id)).await;
        // The snapshot is older: the attempt is counted again, for another Machine.
        let again = Order {
            mark: mark(1),
            ..first.clone()
        };
        let began = Instant::now();
        let accepted = loop {
            match bench.provider.create(&again).await {
                Ok(accepted) => break accepted,
                Err(error) => assert_eq!(error.kind, ErrorKind::Indeterminate, "{error}"),
            }
            assert!(began.elapsed() < Duration::from_mins(1), "the token is used up");
            sleep(Duration::from_secs(5)).await;
        };
        assert_ne!(accepted.id, running.id);
        let (second, _) = bench.bring_up(&again).await;
        assert_eq!(second.id, accepted.id, "ordered again it is the same machine");
        assert_eq!(bench.machines(), 1);
        bench.bring_down(&again, Some(&second.id)).await;
        bench.judge("a token of before");
    });
}

/// Orders until that succeeds, for a minute at most.
async fn ordered(provider: &dyn Provider, order: &Order) -> String {
    let began = Instant::now();
    loop {
        match provider.create(order).await {
            Ok(accepted) => return accepted.id,
            Err(error) => assert_eq!(error.kind, ErrorKind::Indeterminate, "{error}"),
        }
        assert!(began.elapsed() < Duration::from_mins(1), "it is never accepted");
        sleep(Duration::from_secs(5)).await;
    }
}

/// A machine that proves its host key has a launch template of its own, which goes with the answer to the order
/// and is made anew, under the same name, when the order is repeated.
#[test]
fn p2_an_order_with_a_template_of_its_own_is_the_same_order_whatever_ec2_compares() {
    if !can_be_tried("aws") {
        return;
    }
    for (compares, shown_after) in [(false, 0), (true, 0), (true, 30)] {
        in_virtual_time(async || {
            let story = format!("templates are compared: {compares}, machines shown after {shown_after} s");
            let bench = Bench::start("aws", None).await;
            let set = bench.sim.control("compare-templates", &json!({ "on": compares }));
            assert!(matches!(set, Some(Ok(_))), "{set:?}");
            let created = SignedDuration::from_secs(shown_after);
            bench.sim.world(|world| world.lag.created = created);
            let order = Order {
                host_token: Some(Secret::new("c0ffee00".repeat(8))),
                ..bench.order(Market::OnDemand, 0).await
            };
            // The answer is lost, and the next one comes when its process is gone.
            bench
                .sim
                .fault(Rule::once("ec2.CreateFleet", Fault::Cut { when: When::After }));
            let lost = bench.provider.create(&order).await.unwrap_err();
            assert_eq!(lost.kind, ErrorKind::Indeterminate, "{story}");
            let first = ordered(&*bench.provider, &order).await;
            let url = bench.simulator.url("aws");
            let settings = bench.subject.settings.clone();
            let another = connect("aws", url, &bench.subject.credentials, settings);
            assert_eq!(ordered(&*another, &order).await, first, "{story}");
            assert_eq!(bench.machines(), 1, "{story}");
            bench.bring_down(&order, Some(&first)).await;
            bench.judge(&story);
        });
    }
}
