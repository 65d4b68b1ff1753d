//! The answers of Massed Compute.

use std::sync::LazyLock;

use serde_json::{Value, json};
use skyward_core::Market;
use skyward_providers::massedcompute::{
    errors::provider_error,
    map,
    offers::{self, is_spot},
    wire::{Instance, Inventory, Told},
};

use super::{Heard, bodies, machine, offered};

fn known() -> Vec<Value> {
    let mut known = vec![
        fixture!("massedcompute", "instances.json"),
        fixture!("massedcompute", "inventory.json"),
        json!({ "runningInstance": { "uuid": "u", "name": "n", "status": "rented", "os_booted": 1 } }),
        json!({ "response": "4c75e43b-1111-4222-8333-444455556666", "sshKey": { "id": "k", "name": "n" } }),
    ];
    known.extend(bodies(fixture!("massedcompute", "errors.json")));
    known
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    super::seeds(&known())
}

pub(crate) fn run(data: &[u8]) {
    static KNOWN: LazyLock<Vec<Value>> = LazyLock::new(known);
    let heard = Heard::of(data, "Massed Compute", &KNOWN);
    heard.judged(provider_error, &["/response", "/sshKey/id"]);
    let told = heard.at::<Told>("").map_or_else(Vec::new, |told| told.0);
    for instance in heard.each::<Instance>("/runningInstances").iter().chain(&told) {
        for ended in [false, true] {
            machine(instance, map::machine(instance, ended).as_ref());
        }
    }
    if let Some(inventory) = heard.at::<Inventory>("/gpu_inventory") {
        let made = offers::offers(&inventory);
        for offer in &made {
            for market in [Market::OnDemand, Market::Spot] {
                let sold = offers::sold(&inventory, &offer.instance_type, market);
                assert!(sold.is_none_or(|(written, price)| {
                    written.trim() == offer.instance_type
                        && !price.is_zero()
                        && (market == Market::Spot) == is_spot(&written)
                }));
            }
        }
        offered(&made);
    }
}
