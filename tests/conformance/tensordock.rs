//! Tests of TensorDock alone: orders that fail after their effect, hardware that is chosen, and ports that lead to
//! machines.

use jiff::SignedDuration;
use serde_json::json;
use skyward_cloudsim::{Fault, Rule, When};
use skyward_conformance::{Bench, machine};
use skyward_core::{ErrorKind, Market, Order};

use crate::in_virtual_time;

#[test]
fn an_order_that_fails_after_its_effect_is_found_in_the_list_at_once() {
    for fault in [
        Fault::Cut { when: When::After },
        Fault::Server {
            status: 500,
            when: When::After,
        },
    ] {
        in_virtual_time(async || {
            let bench = Bench::start("tensordock", None).await;
            let order = bench.order(Market::OnDemand, 0).await;
            bench.sim.fault(Rule::once("instances.create", fault.clone()));
            let id = bench.provider.create(&order).await.unwrap().id;
            assert_eq!((bench.machines(), bench.sim.calls("instances.create")), (1, 1));
            bench.bring_down(&order, Some(&id)).await;
            bench.judge("an order that failed after its effect");
        });
    }
}

#[test]
fn an_order_that_is_refused_after_its_effect_is_in_doubt_while_no_list_can_be_read() {
    in_virtual_time(async || {
        let bench = Bench::start("tensordock", None).await;
        let order = bench.order(Market::OnDemand, 0).await;
        let refused = Fault::Server {
            status: 409,
            when: When::After,
        };
        bench.sim.fault(Rule::once("instances.create", refused));
        let unread = Fault::Server {
            status: 503,
            when: When::Before,
        };
        // The look before the order is answered.
        bench
            .sim
            .fault(Rule::always("instances.list", unread).skipping(1));
        let error = bench.provider.create(&order).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Indeterminate, "{error}");
        assert_eq!(bench.machines(), 1);
    });
}

#[test]
fn a_slow_order_is_waited_for_longer_than_at_other_clouds() {
    in_virtual_time(async || {
        let bench = Bench::start("tensordock", None).await;
        let order = bench.order(Market::OnDemand, 0).await;
        let slow = Fault::Latency { millis: 45_000 };
        bench.sim.fault(Rule::once("instances.create", slow));
        let id = bench.provider.create(&order).await.unwrap().id;
        bench.bring_down(&order, Some(&id)).await;
        bench.judge("a slow order");
    });
}

#[test]
fn a_machine_costs_its_disk_too_and_no_more_than_its_order_may() {
    in_virtual_time(async || {
        let bench = Bench::start("tensordock", None).await;
        let plain = bench.order(Market::OnDemand, 0).await;
        let order = Order {
            disk_bytes: Some(200_000_000_000),
            ..plain.clone()
        };
        // At the price of the smallest disk it is not sold.
        let refused = bench.provider.create(&order).await.unwrap_err();
        assert!(refused.message.contains("its price is"), "{refused}");
        assert_eq!(bench.machines(), 0);
        let order = Order {
            max_hourly_cost: plain.max_hourly_cost.map(|price| price * 2),
            ..order
        };
        let (running, _) = bench.bring_up(&order).await;
        assert!(running.rental.hourly_price > plain.max_hourly_cost, "{running:?}");
        bench.bring_down(&order, Some(&running.id)).await;
        bench.judge("a disk");
    });
}

#[test]
fn offers_are_of_the_place_that_the_settings_name() {
    in_virtual_time(async || {
        let bench = Bench::start("tensordock", None).await;
        let region = bench.order(Market::OnDemand, 0).await.region;
        let bench = Bench::start("tensordock", Some(json!({ "location": region }))).await;
        let offers = bench.provider.offers().await.unwrap();
        assert!(!offers.is_empty());
        assert!(offers.iter().all(|offer| offer.region == region), "{offers:?}");
    });
}

#[test]
fn a_machine_of_which_lists_show_nothing_for_a_minute_is_found_by_its_id() {
    in_virtual_time(async || {
        let bench = Bench::start("tensordock", None).await;
        bench
            .sim
            .world(|world| world.lag.created = SignedDuration::from_mins(1));
        let order = bench.order(Market::OnDemand, 0).await;
        let id = bench.provider.create(&order).await.unwrap().id;
        let found = bench.provider.get(&machine(&order, Some(&id))).await.unwrap();
        assert_eq!(found.map(|found| found.id), Some(id.clone()));
        assert!(
            bench
                .provider
                .create(&order)
                .await
                .is_ok_and(|again| again.id == id)
        );
        bench.bring_down(&order, Some(&id)).await;
        bench.judge("a list that lags");
    });
}
