//! The answers of Novita.

use std::sync::LazyLock;

use serde_json::{Value, json};
use skyward_core::Market;
use skyward_provider_kit::lookup::Listed;
use skyward_providers::novita::{
    client::{is_refused, one},
    errors::provider_error,
    map,
    offers::{COUNTS, Catalogue},
    wire::{Instance, Product},
};

use super::{Heard, bodies, failed, machine, offered};

fn known() -> Vec<Value> {
    let mut known = vec![
        fixture!("novita", "instances.json"),
        fixture!("novita", "products.json"),
        json!({ "instance": { "id": "a", "status": "pending", "connectComponentSSH": { "sshCommand": "ssh -p 7 root@a.b" } } }),
        json!({ "id": "9f0c2a7be1d4", "instanceId": "9f0c2a7be1d4" }),
    ];
    known.extend(bodies(fixture!("novita", "errors.json")));
    known
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    super::seeds(&known())
}

pub(crate) fn run(data: &[u8]) {
    static KNOWN: LazyLock<Vec<Value>> = LazyLock::new(known);
    let heard = Heard::of(data, "Novita", &KNOWN);
    heard.judged(provider_error, &["/id", "/instanceId"]);
    match one(&heard.answer) {
        // What is there was not refused.
        Ok(Some(_)) => assert!(!heard.answer.is_success() || !is_refused(&heard.answer)),
        Ok(None) => {}
        Err(error) => failed(&error),
    }
    for listed in heard.each::<Instance>("/instances") {
        let seen = map::machine(&listed, false);
        machine(&listed, seen.as_ref());
        if let Some(password) = seen.and_then(|seen| seen.endpoint?.password) {
            assert!(!password.expose().is_empty());
        }
        let ended = map::machine(&listed, true);
        assert_eq!(ended.map(|ended| ended.mark), listed.mark());
    }
    let products = || heard.each::<Product>("/data");
    let catalogue = Catalogue::new(COUNTS.map(|_| products()));
    let offers = catalogue.offers();
    for offer in &offers {
        for (market, price) in [(Market::OnDemand, offer.on_demand), (Market::Spot, offer.spot)] {
            // Of two products with one id the first counts.
            let sold = catalogue
                .sold(&offer.instance_type, market)
                .map(|(_, price)| price);
            assert!(sold.is_some() || price.is_none() || products().len() > 1);
        }
    }
    offered(&offers);
}
