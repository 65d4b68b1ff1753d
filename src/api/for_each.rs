//! `forEach` of a Task: which items its work is done for. Here are its shape, its rules, and what each form means.
//!
//! The API server's rules cannot read `items`, as any JSON may be in them; they see whether it is there (`dyn`), and
//! compare the object that it is in. So a change of `items` is refused unless `parallelism` changes with it: then it means
//! nothing, because a Task's items are read once.
//!
//! Items are numbered from 0. The items of a matrix are made when they are asked for: a million of them take no room.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Most items of a map.
pub const MOST_ITEMS: u64 = 1_000_000;
/// Most bytes of one item, as JSON.
pub const ITEM_BYTES: usize = 256 * 1024;
/// Most bytes of all items of a file or result together.
pub const ALL_BYTES: u64 = 64 * 1024 * 1024;

/// The items that the work is done for, once for each. A function gets its item as first argument; a command has
/// `$(SKYWARD_ITEM)`, `$(SKYWARD_ITEM_INDEX)` and `$(SKYWARD_ITEM_TOTAL)` replaced; a script has them as variables.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(dyn(self).items), has(self.count), has(self.matrix), has(self.itemsFrom)].filter(x, x).size() == 1").message("forEach needs exactly one of items, count, matrix and itemsFrom, such as forEach: {count: 100}"))]
#[x_kube(validation = crate::for_each::items_are_fixed())]
#[x_kube(validation = crate::rule::fixed("count", "create another Task"))]
#[x_kube(validation = crate::rule::fixed("matrix", "create another Task"))]
#[x_kube(validation = crate::rule::fixed("itemsFrom", "create another Task"))]
#[x_kube(validation = crate::rule::fixed("maxFailedItems", "create another Task"))]
pub struct ForEach {
    /// The items themselves: any JSON. For more than 1,024 write them into a file, and name that in `itemsFrom`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024), extend("items" = {"x-kubernetes-preserve-unknown-fields": true, "nullable": true}))]
    pub items: Option<Vec<Value>>,
    /// How many items: the numbers from 0 to `count` - 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub count: Option<u32>,
    /// Each combination of the values of some axes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matrix: Option<Matrix>,
    /// Items that are read when the Task starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items_from: Option<ItemsFrom>,
    /// Most items that run at the same time. Default: as many as the Pool has places. May be changed while the
    /// Task runs: where fewer are to run, items that have begun end first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub parallelism: Option<u32>,
    /// How many items may fail: when one more has failed, no other item begins, and the Task fails. Default: all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub max_failed_items: Option<u32>,
}

/// A change of another field is refused by the rule of that field.
fn items_are_fixed() -> kube::core::Rule {
    let changed = ["parallelism", "maxFailedItems"].map(|field| {
        format!(
            "has(self.{field}) != has(oldSelf.{field}) || (has(self.{field}) && self.{field} != oldSelf.{field})"
        )
    });
    kube::core::Rule::new(format!(
        "self == oldSelf || has(self.count) || has(self.matrix) || has(self.itemsFrom) || {}",
        changed.join(" || ")
    ))
    .message("items cannot be changed; create another Task")
    .field_path(".items")
}

/// Each combination of the values of the axes, without the combinations that an entry of `exclude` matches. The entries of
/// `include` come last. The last axis changes fastest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("(has(self.axes) && size(self.axes) > 0) || (has(self.include) && size(self.include) > 0)").message("matrix needs an axis, such as axes: [{name: seed, values: [1, 2, 3]}]"))]
pub struct Matrix {
    /// The axes; an item has a field of the name of each.
    #[serde(default)]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub axes: Vec<Axis>,
    /// Further items, with any fields.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), extend("items" = {"type": "object", "maxProperties": 16, "x-kubernetes-preserve-unknown-fields": true}))]
    pub include: Vec<BTreeMap<String, Value>>,
    /// Combinations that are left out: each combination that has all the values of an entry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), extend("items" = {"type": "object", "minProperties": 1, "maxProperties": 8, "x-kubernetes-preserve-unknown-fields": true}))]
    pub exclude: Vec<BTreeMap<String, Value>>,
}

/// One axis of a matrix.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Axis {
    /// Its name, which items have as a field.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = crate::rule::matches("^[A-Za-z_][A-Za-z0-9_]*$", "the name of an axis must be letters, digits and _, such as learning_rate"))]
    pub name: String,
    /// Its values: any JSON.
    #[schemars(length(min = 1, max = 1024), extend("items" = {"x-kubernetes-preserve-unknown-fields": true, "nullable": true}))]
    pub values: Vec<Value>,
}

/// Where items are read from, once, when the Task starts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.sourceFile), has(self.configMapKeyRef), has(self.taskResult)].filter(x, x).size() == 1").message("itemsFrom needs exactly one of sourceFile, configMapKeyRef and taskResult, such as itemsFrom: {sourceFile: items.jsonl}"))]
pub struct ItemsFrom {
    /// A file of the Task's source with one JSON value in each line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(validation = Rule::new("!self.matches(r'(^|/)[.]{0,2}(/|$)')").message("sourceFile must be a file of the source, such as data/items.jsonl"))]
    pub source_file: Option<String>,
    /// A key of a ConfigMap of this namespace, with one JSON value in each line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<ConfigMapKey>,
    /// Name of a Task of this namespace whose result is a list: each entry is an item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub task_result: Option<String>,
}

/// A key of a ConfigMap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigMapKey {
    /// Name of the ConfigMap.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// The key.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_sweep_comes_back_as_it_was_written() {
        let written = json!({
            "matrix": {
                "axes": [{ "name": "lr", "values": [0.1, 0.01] }, { "name": "seed", "values": [1, 2, 3] }],
                "exclude": [{ "lr": 0.1, "seed": 3 }],
            },
            "parallelism": 64,
            "maxFailedItems": 10,
        });
        let read: ForEach = serde_json::from_value(written.clone()).unwrap();
        let matrix = read.matrix.as_ref().unwrap();
        assert_eq!(matrix.axes[1].values, [json!(1), json!(2), json!(3)]);
        assert_eq!(serde_json::to_value(&read).unwrap(), written);
        let from = json!({ "itemsFrom": { "configMapKeyRef": { "name": "x", "key": "items" } } });
        let read: ForEach = serde_json::from_value(from.clone()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), from);
    }
}
