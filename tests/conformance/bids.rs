//! Vast.ai's spot market, where the GPUs of a lower bid go to the renter who pays more.

use std::time::Duration;

use skyward_conformance::{Bench, machine, order};
use skyward_core::{ErrorKind, Market, ProviderPhase};

use crate::in_virtual_time;

#[test]
fn machines_of_one_account_do_not_take_their_gpu_from_each_other() {
    in_virtual_time(async || {
        let bench = Bench::start("vastai", None).await;
        let offers = bench.provider.offers().await.unwrap();
        // Only one host has such an offer, and it has only one.
        let only = offers
            .iter()
            .find(|offer| offer.instance_type.starts_with("1x RTX 3090/"))
            .unwrap();
        let first = order(only, Market::Spot, 0);
        let (running, _) = bench.bring_up(&first).await;
        for (slot, market) in [(1, Market::OnDemand), (2, Market::Spot)] {
            let mut second = order(only, market, slot);
            second.max_hourly_cost = second.max_hourly_cost.map(|most| most * 10);
            let refused = bench.provider.create(&second).await.unwrap_err();
            assert_eq!(refused.kind, ErrorKind::NoCapacity, "{refused}");
        }
        bench.pass(Duration::from_mins(1)).await;
        let found = bench
            .provider
            .get(&machine(&first, Some(&running.id)))
            .await
            .unwrap();
        assert_eq!(found.unwrap().phase, ProviderPhase::Running);
        bench.bring_down(&first, Some(&running.id)).await;
        bench.judge("one account's bids");
    });
}
