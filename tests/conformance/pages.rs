//! RunPod's list of pods in pages: what is on a later one exists as well.

use skyward_conformance::{Bench, order, scope};
use skyward_core::{Market, Order};

use crate::in_virtual_time;

#[test]
fn machines_on_every_page_of_the_list_are_seen() {
    in_virtual_time(async || {
        let bench = Bench::start("runpod", None).await;
        bench
            .sim
            .control("pages", &serde_json::json!({"pods": 2}))
            .unwrap()
            .unwrap();
        let offers = bench.provider.offers().await.unwrap();
        let offer = offers.iter().find(|offer| offer.on_demand.is_some()).unwrap();
        let orders: Vec<Order> = (0..5).map(|slot| order(offer, Market::OnDemand, slot)).collect();
        for order in &orders {
            bench.provider.create(order).await.unwrap();
        }
        assert_eq!(bench.provider.list(&scope()).await.unwrap().len(), 5);
        for order in &orders {
            bench.bring_down(order, None).await;
        }
        bench.judge("pages");
    });
}
