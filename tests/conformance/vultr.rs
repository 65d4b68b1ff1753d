//! Tests of Vultr alone: two APIs for two kinds of machines, and a VPC that orders join.

use serde_json::json;
use skyward_conformance::{Bench, connect, machine};
use skyward_core::{Market, order::PoolShape};

use crate::in_virtual_time;

#[test]
fn bare_metal_is_ordered_and_is_found_and_ended_by_settings_that_offer_none() {
    in_virtual_time(async || {
        let mut bench = Bench::start("vultr", Some(json!({ "mode": "bare-metal" }))).await;
        let order = bench.order(Market::OnDemand, 0).await;
        assert!(order.instance_type.starts_with("vbm-"), "{order:?}");
        let (running, refused) = bench.bring_up(&order).await;
        assert!(refused.is_empty(), "{refused:?}");
        assert_eq!(running.rental.hourly_price, order.max_hourly_cost);
        let url = bench.simulator.url("vultr").to_owned();
        bench.provider = connect("vultr", &url, &bench.subject.credentials, json!({}));
        let offers = bench.provider.offers().await.unwrap();
        assert!(offers.iter().all(|offer| offer.instance_type.starts_with("vcg-")));
        let listed = bench.list().await.unwrap();
        assert_eq!(listed.len(), 1);
        let reference = machine(&order, Some(&running.id));
        assert_eq!(
            bench.provider.get(&reference).await.unwrap().as_ref(),
            listed.first()
        );
        bench.bring_down(&order, Some(&running.id)).await;
        bench.judge("bare metal");
    });
}

#[test]
fn machines_that_must_reach_each_other_have_private_addresses_and_others_have_none() {
    in_virtual_time(async || {
        let bench = Bench::start("vultr", None).await;
        for connected in [true, false] {
            let mut order = bench.order(Market::OnDemand, 0).await;
            order.pool = PoolShape {
                machines: 2,
                connected,
            };
            let (running, _) = bench.bring_up(&order).await;
            assert_eq!(running.private_address.is_some(), connected, "{running:?}");
            bench.bring_down(&order, Some(&running.id)).await;
        }
        bench.judge("a VPC");
    });
}
