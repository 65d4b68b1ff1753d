//! The answers of Vast.ai.

use std::sync::LazyLock;

use serde_json::{Value, json};
use skyward_core::Market;
use skyward_providers::vastai::{
    config::Settings,
    errors::provider_error,
    map,
    offers::{self, Group},
    wire::{Ask, Instance, Ordered, Overlay},
};

use super::{Heard, bodies, machine, now, offered};

fn known() -> Vec<Value> {
    let mut known = vec![
        fixture!("vastai", "asks.json"),
        fixture!("vastai", "instances.json"),
        json!([{ "name": "skyward-a.9", "cluster_id": 9, "instances": [1, 2] }]),
        json!({ "success": true, "new_contract": 7, "id": 1 }),
    ];
    known.extend(bodies(fixture!("vastai", "errors.json")));
    known
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    super::seeds(&known())
}

pub(crate) fn run(data: &[u8]) {
    static KNOWN: LazyLock<Vec<Value>> = LazyLock::new(known);
    let heard = Heard::of(data, "Vast.ai", &KNOWN);
    heard.judged(provider_error, &["/id"]);
    let _ = (heard.at::<Ordered>(""), heard.each::<Overlay>(""));
    let settings = Settings::default();
    let instances = heard.each::<Instance>("/instances");
    let held = offers::bids(&instances);
    for instance in &instances {
        for lost in [false, true] {
            machine(instance, map::machine(instance, &settings, lost, now()).as_ref());
        }
        let _ = (map::overlay_of(instance), map::silent(instance));
    }
    let on_demand = heard.each::<Ask>("/ondemand");
    let bids = [
        heard.each::<Ask>("/bid"),
        heard.each("/offers"),
        on_demand.clone(),
    ]
    .concat();
    for ask in &bids {
        let _ = offers::own_bid(ask, &held);
        for group in Group::of(ask).into_iter().chain(Group::in_cluster(ask)) {
            for market in [Market::OnDemand, Market::Spot] {
                let _ = offers::query_of(&group, market, &settings, 100);
            }
            let _ = group.has(ask);
        }
        let price = offers::price(ask, Market::OnDemand, settings.bid_multiplier());
        let bid = offers::bid_for(ask, settings.bid_multiplier(), price);
        assert!(
            bid.zip(price).is_none_or(|(bid, price)| bid <= price),
            "a bid is above its ceiling"
        );
    }
    offered(&offers::offers(&on_demand, &bids, &settings));
}
