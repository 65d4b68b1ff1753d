//! What belongs to an instance and has an id and tags of its own: its volumes, its network
//! interfaces, and the request that it was launched for when it is a spot instance.

use std::collections::BTreeMap;

use serde_json::json;

use super::input::{list, text};
use crate::core::machine::Machine;

/// Where the detail of a machine has the tags of its parts, by their ids.
pub const TAGS: &str = "partTags";

/// The parts of an instance, with their kinds.
pub fn of(machine: &Machine) -> Vec<(&str, &'static str)> {
    let detail = &machine.detail;
    let mut all = Vec::new();
    for (place, kind) in [("volumes", "volume"), ("interfaces", "network-interface")] {
        let ids = list(detail, place).iter().filter_map(|part| text(part, "id"));
        all.extend(ids.map(|id| (id, kind)));
    }
    all.extend(text(detail, "spotRequest").map(|id| (id, "spot-instances-request")));
    all
}

/// The tags of a part.
pub fn tags_of(machine: &Machine, part: &str) -> BTreeMap<String, String> {
    serde_json::from_value(machine.detail[TAGS][part].clone()).unwrap_or_default()
}

/// Gives a part these tags and no others.
pub fn set_tags(machine: &mut Machine, part: &str, tags: &BTreeMap<String, String>) {
    machine.detail[TAGS][part] = json!(tags);
}
