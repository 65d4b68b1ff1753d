//! Tells a run its place on the machine, and which of the machine's accelerators belong to that place.
//!
//! Runs of one machine would otherwise all use its first accelerator. Places in the number of the
//! accelerators or below have neighbouring ones, as many as fit evenly; more places than accelerators share them
//! in turn.

use std::collections::BTreeMap;

use crate::protocol::RunSpec;

/// Adds the variables of the run's place, and answers with the `instance_info` that names the place. A
/// variable of accelerators that the Pool or the Task sets stays as it is.
pub(super) fn number(spec: &RunSpec, environment: &mut BTreeMap<String, String>) -> String {
    let places = spec.places;
    if places == 0 {
        return spec.instance_info.clone();
    }
    // There are more runs than places while a Pool's concurrency shrinks.
    let place = spec.place % places;
    environment.insert("SKYWARD_WORKER".into(), place.to_string());
    environment.insert("SKYWARD_WORKERS_PER_NODE".into(), places.to_string());
    if let Some(devices) = spec.devices.as_ref().filter(|devices| devices.count > 0) {
        let seen = share(place, places, devices.count).map(|device| device.to_string());
        let seen = seen.collect::<Vec<_>>().join(",");
        environment.entry(devices.variable.clone()).or_insert(seen);
    }
    described(&spec.instance_info, place, places).unwrap_or_else(|| spec.instance_info.clone())
}

/// The accelerators of a place.
fn share(place: u32, places: u32, devices: u32) -> std::ops::Range<u32> {
    if places > devices {
        let device = place % devices;
        return device..device + 1;
    }
    let begins = |place: u32| (u64::from(place) * u64::from(devices) / u64::from(places)) as u32;
    begins(place)..begins(place + 1)
}

/// The controller's description of the run, with the place in it.
fn described(info: &str, place: u32, places: u32) -> Option<String> {
    let mut info: serde_json::Map<String, serde_json::Value> = serde_json::from_str(info).ok()?;
    let number = |name: &str| {
        info.get(name)
            .and_then(serde_json::Value::as_u64)
            .unwrap_or_default()
    };
    let (node, nodes) = (number("node"), number("total_nodes"));
    let (worker, workers) = (u64::from(place), u64::from(places));
    for (name, value) in [
        ("worker", worker),
        ("workers_per_node", workers),
        (
            "global_worker_index",
            node.saturating_mul(workers).saturating_add(worker),
        ),
        ("total_workers", nodes.saturating_mul(workers)),
    ] {
        info.insert(name.to_owned(), value.into());
    }
    serde_json::to_string(&info).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::protocol::Devices;

    fn spec(places: u32, place: u32, devices: u32) -> RunSpec {
        RunSpec {
            places,
            place,
            devices: (devices > 0).then(|| Devices {
                variable: "CUDA_VISIBLE_DEVICES".to_owned(),
                count: devices,
            }),
            instance_info: json!({ "node": 2, "total_nodes": 3, "worker": 0, "pool": "p" }).to_string(),
            ..RunSpec::default()
        }
    }

    #[test]
    fn each_place_sees_its_share_of_the_accelerators() {
        for (places, devices, expected) in [
            (1, 8, &["0,1,2,3,4,5,6,7"][..]),
            (2, 8, &["0,1,2,3", "4,5,6,7"]),
            (3, 8, &["0,1", "2,3,4", "5,6,7"]),
            (4, 4, &["0", "1", "2", "3"]),
            (5, 2, &["0", "1", "0", "1", "0"]),
        ] {
            let seen = (0..places).map(|place| {
                let mut environment = BTreeMap::new();
                number(&spec(places, place, devices), &mut environment);
                environment["CUDA_VISIBLE_DEVICES"].clone()
            });
            assert_eq!(seen.collect::<Vec<_>>(), expected, "{places} places");
        }
    }

    #[test]
    fn what_a_user_says_of_accelerators_stays_and_a_machine_without_any_has_no_variable() {
        let mut environment = BTreeMap::from([("CUDA_VISIBLE_DEVICES".to_owned(), "7".to_owned())]);
        number(&spec(2, 0, 8), &mut environment);
        assert_eq!(environment["CUDA_VISIBLE_DEVICES"], "7");
        let mut environment = BTreeMap::new();
        number(&spec(2, 0, 0), &mut environment);
        assert_eq!(
            environment.keys().collect::<Vec<_>>(),
            ["SKYWARD_WORKER", "SKYWARD_WORKERS_PER_NODE"]
        );
    }

    #[test]
    fn a_run_is_told_its_place_in_variables_and_description() {
        // Place 5 of 4: more runs than places.
        for (place, worker) in [(1, 1), (5, 1)] {
            let mut environment = BTreeMap::new();
            let info: Value = serde_json::from_str(&number(&spec(4, place, 0), &mut environment)).unwrap();
            let expected = json!({ "node": 2, "total_nodes": 3, "worker": worker, "workers_per_node": 4,
                "global_worker_index": 9, "total_workers": 12, "pool": "p" });
            assert_eq!(info, expected);
            let told = ["SKYWARD_WORKER", "SKYWARD_WORKERS_PER_NODE"].map(|name| &*environment[name]);
            assert_eq!(told, ["1", "4"]);
        }
        let old = spec(0, 0, 8);
        let mut environment = BTreeMap::new();
        assert_eq!(number(&old, &mut environment), old.instance_info);
        assert!(environment.is_empty());
        let odd = RunSpec {
            instance_info: "[]".to_owned(),
            ..spec(2, 1, 0)
        };
        assert_eq!(number(&odd, &mut environment), "[]");
    }

    proptest! {
        #[test]
        fn places_that_are_no_more_than_the_accelerators_see_each_of_them_once(places in 1..64_u32, more in 0..64_u32) {
            let devices = places + more;
            let all: Vec<u32> = (0..places).flat_map(|place| share(place, places, devices)).collect();
            prop_assert_eq!(all, (0..devices).collect::<Vec<_>>());
            let sizes = || (0..places).map(|place| share(place, places, devices).len());
            prop_assert!(sizes().max().unwrap() - sizes().min().unwrap() <= 1);
        }

        #[test]
        fn no_numbers_of_places_and_accelerators_are_too_large(places: u32, place: u32, devices in 1..u32::MAX) {
            if places > 0 {
                let share = share(place % places, places, devices);
                prop_assert!(!share.is_empty() && share.end <= devices);
            }
        }
    }
}
