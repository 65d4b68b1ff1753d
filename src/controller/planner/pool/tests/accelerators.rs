//! The accelerators in the record of a machine and in the columns of a Pool.

use serde_json::{Value, json};
use skyward_api::{
    machine::MachineSpec,
    offer::OfferedAccelerator,
    pool::Topology,
    shared::{Count, Size},
};

use super::*;
use crate::accelerators::of_record;

/// A Pool of that spec before one Offer.
fn before(pool: Value, offered: Value) -> Observed {
    let mut seen = world(1);
    seen.pool.spec = serde_json::from_value(pool).unwrap();
    let index = OfferIndex::of([offer("local-x", offered)]);
    seen.offers = BTreeMap::from([("local".to_owned(), Arc::new(index))]);
    seen
}

/// The record of the one machine that is ordered.
fn record(seen: &Observed) -> MachineSpec {
    let plan = decide(seen);
    let mut records = plan.actions.into_iter().filter_map(|action| match action {
        Action::CreateMachine { spec, .. } => Some(*spec),
        _ => None,
    });
    records.next().unwrap()
}

fn granted(name: &str, count: f64) -> OfferedAccelerator {
    OfferedAccelerator {
        name: name.into(),
        count: Count::of(count),
        memory: Some(Size("24Gi".into())),
        form_factor: None,
    }
}

fn gpus(count: f64) -> Value {
    json!({ "accelerator": { "name": "L4", "count": Count::of(count), "memory": "24Gi" } })
}

#[rstest]
#[case::more_than_asked_for(json!({ "accelerator": { "name": "L4" } }), 4.0, Some(granted("L4", 4.0)))]
#[case::by_the_type_of_machine(json!({ "instanceType": "local-x" }), 8.0, Some(granted("L4", 8.0)))]
#[case::a_part(json!({ "accelerator": { "name": "L4", "count": "0.125" } }), 0.25, Some(granted("L4", 0.25)))]
fn a_rented_machine_has_what_its_offer_has(
    #[case] candidate: Value,
    #[case] offered: f64,
    #[case] expected: Option<OfferedAccelerator>,
) {
    let mut pool = candidate;
    pool["provider"] = "local".into();
    let spec = record(&before(pool, gpus(offered)));
    assert_eq!(spec.granted_accelerator, expected);
    assert_eq!(of_record(&spec), expected);
}

#[rstest]
#[case::as_many_as_it_asks_for(json!({ "accelerator": { "name": "L4", "count": 2 } }), Some(granted("L4", 2.0)))]
#[case::one(json!({ "accelerator": { "name": "L4" } }), Some(granted("L4", 1.0)))]
#[case::none(json!({}), None)]
fn a_pod_has_what_it_asks_for_whatever_its_node_has(
    #[case] candidate: Value,
    #[case] expected: Option<OfferedAccelerator>,
) {
    let mut pool = candidate;
    pool["provider"] = "local".into();
    let mut seen = before(pool, gpus(8.0));
    of_local(&mut seen).own_nodes = true;
    let spec = record(&seen);
    assert_eq!(spec.granted_accelerator, expected);
    assert_eq!(of_record(&spec), expected);
}

/// Otherwise every machine would be replaced when the operator is upgraded.
#[test]
fn what_an_offer_has_is_no_part_of_the_digest() {
    let ask = json!({ "provider": "local", "accelerator": { "name": "L4" } });
    let hashes = template_hashes(&serde_json::from_value(ask.clone()).unwrap());
    for count in [4.0, 8.0] {
        let spec = record(&before(ask.clone(), gpus(count)));
        assert_eq!(hashes, [spec.template_hash]);
    }
}

#[test]
fn the_columns_name_the_machines_and_before_there_are_any_the_candidates() {
    let columns = |seen: &Observed| {
        let status = decide(seen).status;
        (status.provider, status.accelerator)
    };
    let are = |provider: &str, accelerator: &str| (provider.to_owned(), accelerator.to_owned());
    let candidates = json!({
        "candidates": [
            { "provider": "local", "accelerator": { "name": "L4" } },
            { "provider": "elsewhere", "accelerator": { "name": "A100-80GB" } },
            { "provider": "local" },
        ],
        "nodes": { "desired": 0 },
    });
    let mut seen = before(candidates, json!({}));
    seen.providers.insert("elsewhere".into(), provider());
    assert_eq!(columns(&seen), are("local,elsewhere", "L4,A100"));
    let of = |slot, provider: &str, accelerator: &str| MachineFacts {
        place: Place {
            provider: provider.into(),
            region: String::new(),
        },
        accelerator: accelerator.into(),
        ..ready(slot)
    };
    seen.pool.spec.nodes.desired = 2;
    seen.pool.spec.topology = Some(Topology::Independent);
    seen.machines = vec![of(0, "local", "L4"), of(1, "elsewhere", "L4")];
    assert_eq!(columns(&seen), are("elsewhere,local", "L4"));
    seen.machines = vec![of(0, "local", ""), of(1, "local", "")];
    assert_eq!(columns(&seen), are("local", ""), "neither has any");
    seen.pool.deleting_since = Some(at(NOW));
    assert_eq!(columns(&seen), are("local", ""));
}

#[test]
fn an_offer_without_accelerators_grants_none() {
    let seen = before(json!({ "provider": "local" }), json!({}));
    assert_eq!(record(&seen).granted_accelerator, None);
}
