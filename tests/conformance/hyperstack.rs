//! Tests of Hyperstack alone: machines and keys belong to environments, which are returned with their Pool.

use std::{collections::BTreeSet, time::Duration};

use serde_json::json;
use skyward_conformance::{Bench, order, passes, pool};
use skyward_core::{Deletion, Market, Offer, Usd, offer::Availability};
use tokio::time::sleep;

use crate::{
    in_virtual_time,
    marks::{Mark, exchange},
};

#[test]
fn an_environment_and_its_key_are_made_once_and_returned_with_their_pool() {
    in_virtual_time(async || {
        let bench = Bench::start("hyperstack", None).await;
        let order = bench.order(Market::OnDemand, 0).await;
        let (running, refused) = bench.bring_up(&order).await;
        assert!(refused.is_empty(), "{refused:?}");
        assert_eq!(bench.left().await, ["SSH key", "environment"]);
        bench.end(&order, Some(&running.id)).await;
        assert_eq!(bench.left().await, ["SSH key", "environment"]);
        bench.bring_down(&order, Some(&running.id)).await;
        assert_eq!(bench.left().await, [""; 0]);
        bench.judge("an environment");
    });
}

#[test]
fn the_fast_network_is_offered_where_flavors_have_its_label() {
    in_virtual_time(async || {
        let bench = Bench::start("hyperstack", Some(json!({ "networkOptimised": true }))).await;
        let offers = bench.provider.offers().await.unwrap();
        let regions: BTreeSet<&str> = offers.iter().map(|offer| offer.region.as_str()).collect();
        assert_eq!(regions, BTreeSet::from(["CANADA-1", "US-1"]));
    });
}

#[test]
fn an_offer_costs_its_gpus_and_its_address_to_the_last_digit() {
    in_virtual_time(async || {
        let bench = Bench::start("hyperstack", None).await;
        let offers = bench.provider.offers().await.unwrap();
        let one = offers.iter().find(|offer| offer.instance_type == "n3-H100x1");
        let price = one.and_then(|offer| offer.on_demand).map(Usd::exact);
        assert_eq!(price.as_deref(), Some("1.90672043"));
    });
}

#[test]
fn an_environment_that_people_use_is_told_when_it_stays() {
    in_virtual_time(async || {
        let bench = Bench::start("hyperstack", None).await;
        let order = bench.order(Market::OnDemand, 0).await;
        let (running, _) = bench.bring_up(&order).await;
        bench.end(&order, Some(&running.id)).await;
        // A key that a person put there by hand: it carries no name of ours.
        bench.sim.world(|world| {
            let keys = world
                .resources
                .values_mut()
                .filter(|thing| thing.kind == "keypair");
            keys.for_each(|key| key.name = "of a person".to_owned());
        });
        let first = bench.provider.release(&pool()).await;
        assert_eq!(first.unwrap(), Deletion::InProgress);
        sleep(Duration::from_mins(3)).await;
        let told = bench.provider.release(&pool()).await.unwrap_err();
        assert!(passes(&told) && told.message.contains("key pairs"), "{told}");
        assert_eq!(bench.left().await, ["environment"]);
    });
}

#[test]
fn a_pool_has_an_environment_and_a_key_in_each_region_that_it_orders_in() {
    in_virtual_time(async || {
        let bench = Bench::start("hyperstack", None).await;
        let offers = bench.provider.offers().await.unwrap();
        let is_sold = |offer: &&Offer| offer.availability != Availability::No && offer.on_demand.is_some();
        let mut regions = BTreeSet::new();
        let mut orders = Vec::new();
        for offer in offers.iter().filter(is_sold) {
            if orders.len() < 2 && regions.insert(&offer.region) {
                let slot = u32::try_from(orders.len()).unwrap();
                orders.push(order(offer, Market::OnDemand, slot));
            }
        }
        assert_eq!(orders.len(), 2, "two regions have something in stock");
        for order in &orders {
            let (running, refused) = bench.bring_up(order).await;
            assert!(refused.is_empty(), "{refused:?}");
            assert_eq!(running.rental.region.as_ref(), Some(&order.region));
        }
        let left = bench.left().await;
        assert_eq!(left, ["SSH key", "SSH key", "environment", "environment"]);
        for order in &orders {
            bench.end(order, None).await;
        }
        bench.bring_down(&orders[0], None).await;
        bench.judge("two regions");
    });
}

#[test]
fn machines_that_must_reach_each_other_have_addresses_in_one_network() {
    in_virtual_time(async || {
        let bench = Bench::start("hyperstack", None).await;
        let orders = bench.connected_pair().await;
        assert_eq!(bench.left().await, ["SSH key", "environment"]);
        for order in &orders {
            bench.end(order, None).await;
        }
        bench.bring_down(&orders[0], None).await;
        bench.judge("a network");
    });
}

#[test]
fn an_environment_with_a_machine_of_somebody_else_stays_with_the_machine() {
    in_virtual_time(async || {
        let bench = Bench::start("hyperstack", None).await;
        let order = bench.order(Market::OnDemand, 0).await;
        let (running, _) = bench.bring_up(&order).await;
        // As one that a person made there by hand.
        let mut mark = Mark::default();
        exchange(&bench, "hyperstack", &running.id, &mut mark);
        for _ in 0..2 {
            let refused = bench.provider.release(&pool()).await.unwrap_err();
            assert!(
                passes(&refused) && refused.message.contains(&running.id),
                "{refused}"
            );
        }
        assert_eq!(bench.left().await, ["environment"]);
        assert_eq!(bench.machines(), 1);
        exchange(&bench, "hyperstack", &running.id, &mut mark);
        bench.bring_down(&order, Some(&running.id)).await;
        assert_eq!(bench.provider.release(&pool()).await.unwrap(), Deletion::Gone);
        bench.judge("somebody else's machine");
    });
}
