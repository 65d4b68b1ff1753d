//! The items of a Task with `forEach`, as its status counts them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The counts of the items of a Task with `forEach`, as they were last written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ItemsStatus {
    /// How many items the Task has.
    pub total: u32,
    /// Items that a machine has now.
    #[serde(default)]
    pub active: u32,
    /// Items that succeeded.
    #[serde(default)]
    pub succeeded: u32,
    /// Items that failed for good.
    #[serde(default)]
    pub failed: u32,
    /// Indices of the failed items, from 0, as ranges such as `0-3,7`. What does not fit into 4 KiB is counted at the end, as
    /// `+12 more`; all of them: `kubectl skyward results TASK --failed`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 4096))]
    pub failed_indexes: String,
}

impl ItemsStatus {
    /// Items with an outcome, of all, as `1200/1000000`.
    pub fn done(&self) -> String {
        format!("{}/{}", self.succeeded.saturating_add(self.failed), self.total)
    }

    /// Items that have no outcome and that no machine has.
    pub fn waiting(&self) -> u32 {
        let others = [self.succeeded, self.failed, self.active];
        others.into_iter().fold(self.total, u32::saturating_sub)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_with_an_outcome_are_counted_whether_they_succeeded_or_failed() {
        let items = ItemsStatus {
            total: 1_000_000,
            active: 8,
            succeeded: 1197,
            failed: 3,
            failed_indexes: "4-6".to_owned(),
        };
        assert_eq!(items.done(), "1200/1000000");
        assert_eq!(items.waiting(), 998_792);
        // Somebody may have written anything into a status.
        let less = ItemsStatus { total: 3, ..items };
        assert_eq!(less.waiting(), 0);
    }
}
