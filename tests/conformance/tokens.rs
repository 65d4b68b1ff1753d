//! Tokens that the cloud already knows: of an order whose machine has ended, or, in a restored
//! cluster, of another machine.

use std::time::Duration;

use skyward_conformance::{Bench, can_be_tried, mark};
use skyward_core::{ErrorKind, Market, Order};
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
